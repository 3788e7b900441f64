// A running service: a router or a worker, over gRPC.
//
// One thread sends at the scheduled times; messages are read on gRPC's own threads and stamped there. A token
// has the time of the message that brought it, also where it shares it with others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "bench/measure/target.h"
#include "bench/workload/prompts.h"
#include "grpcpp/channel.h"
#include "ridge/v1/inference.grpc.pb.h"

namespace ridge::bench {

struct GrpcTargetConfig {
  std::string target = "127.0.0.1:50050";      // host:port
  int connections = 4;                         // the streams are spread over them
  absl::Duration timeout = absl::Minutes(10);  // of each request
  std::string model = "";                      // asked for by name; empty: whatever is served
};

class GrpcTarget : public Target {
 public:
  explicit GrpcTarget(const GrpcTargetConfig& config);
  ~GrpcTarget() override;

  // What is served, once every connection is there. Does not wait for a service that is not.
  absl::StatusOr<v1::GetModelResponse> GetModel();

  // Whether a worker itself answers; a router does not say what is behind it.
  bool IsWorker();

  // A text as the service tokenises it, without special tokens around it.
  absl::StatusOr<Encoded> Encode(absl::string_view text);

  absl::StatusOr<std::vector<TargetResult>> Run(absl::Span<const TargetRequest> requests,
                                                const RunLimits& limits) override;

 private:
  const GrpcTargetConfig config_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs_;  // one a channel
};

}  // namespace ridge::bench
