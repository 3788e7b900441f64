// A client of Inference for tests: reads streams, and expects of each one what the API promises of all.
//
// Threads: a Client is thread-safe; a Stream belongs to one thread, except for Cancel.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "ridge/v1/inference.grpc.pb.h"

namespace ridge::testing {

struct Answer {
  grpc::Status status;
  std::vector<int32_t> ids;
  std::string text;
  std::vector<float> logprobs;
  int messages = 0;
  std::optional<v1::Summary> summary;
};

// "code: message", for failures.
std::string Describe(const grpc::Status& status);

class Stream {
 public:
  // Opens it.
  Stream(v1::Inference::Stub* stub, const v1::GenerateRequest& request, absl::Duration timeout);

  // Waits for the next message; false at the end of the stream.
  bool Read();
  // Reads what is left.
  const Answer& Finish();
  void Cancel() { context_.TryCancel(); }
  // What came so far; the status only after Finish.
  const Answer& answer() const { return answer_; }

 private:
  void Take(const v1::GenerateResponse& message);

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
  Answer answer_;
  bool finished_ = false;
};

inline constexpr char kGenerateMethod[] = "/ridge.v1.Inference/Generate";

class Client {
 public:
  explicit Client(const std::string& address);

  std::unique_ptr<Stream> Open(const v1::GenerateRequest& request, absl::Duration timeout = absl::Minutes(2));
  Answer Ask(const v1::GenerateRequest& request) { return Open(request)->Finish(); }

  // Any method with one request message of any bytes; `response` takes the bytes of the first answer.
  grpc::Status CallRaw(const std::string& method, const std::string& request,
                       std::string* response = nullptr);

  v1::Inference::Stub* stub() { return stub_.get(); }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

// A greedy request that goes on for exactly `max_tokens`.
v1::GenerateRequest GreedyRequest(const std::vector<int32_t>& prompt_ids, int32_t max_tokens);

}  // namespace ridge::testing
