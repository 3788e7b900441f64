#include "common/grpc_channel.h"

namespace ridge {

grpc::ChannelArguments DirectChannelArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return arguments;
}

}  // namespace ridge
