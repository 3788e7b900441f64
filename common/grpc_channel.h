// Channels to our own servers. Thread-safe.
#pragma once

#include "grpcpp/support/channel_arguments.h"

namespace ridge {

// For servers that are in reach directly: a proxy of the environment (http_proxy), which is for the outside,
// is not used.
grpc::ChannelArguments DirectChannelArguments();

}  // namespace ridge
