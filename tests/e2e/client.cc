#include "tests/e2e/client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/grpc_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"

namespace ridge::testing {
namespace {

void SetTimeout(grpc::ClientContext* context, absl::Duration timeout) {
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
}

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address) {
  grpc::ChannelArguments arguments = DirectChannelArguments();
  // A channel of one's own: no connection is shared with an earlier client of the same port.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

std::string Describe(const grpc::Status& status) {
  return absl::StrCat(status.error_code(), ": ", status.error_message());
}

Stream::Stream(v1::Inference::Stub* stub, const v1::GenerateRequest& request, absl::Duration timeout) {
  SetTimeout(&context_, timeout);
  reader_ = stub->Generate(&context_, request);
}

bool Stream::Read() {
  v1::GenerateResponse message;
  if (finished_ || !reader_->Read(&message)) return false;
  Take(message);
  return true;
}

const Answer& Stream::Finish() {
  while (Read()) {
  }
  if (!std::exchange(finished_, true)) answer_.status = reader_->Finish();
  EXPECT_EQ(answer_.status.ok(), answer_.summary.has_value()) << Describe(answer_.status);
  return answer_;
}

void Stream::Take(const v1::GenerateResponse& message) {
  EXPECT_EQ(message.sequence_number(), static_cast<uint64_t>(answer_.messages));
  EXPECT_FALSE(answer_.summary.has_value()) << "a message after the summary";
  ++answer_.messages;
  for (const v1::ChoiceTokens& choice : message.choices()) {
    EXPECT_EQ(choice.choice(), 0);
    for (const v1::Token& token : choice.tokens()) {
      EXPECT_EQ(token.ordinal(), static_cast<int32_t>(answer_.ids.size()));
      answer_.ids.push_back(token.id());
      answer_.text += token.text();
      if (token.has_logprob()) answer_.logprobs.push_back(token.logprob());
    }
  }
  if (!message.has_summary()) return;
  answer_.summary = message.summary();
  EXPECT_EQ(message.summary().usage().completion_tokens(), static_cast<int32_t>(answer_.ids.size()));
}

Client::Client(const std::string& address)
    : channel_(OpenChannel(address)), stub_(v1::Inference::NewStub(channel_)) {}

std::unique_ptr<Stream> Client::Open(const v1::GenerateRequest& request, absl::Duration timeout) {
  return std::make_unique<Stream>(stub_.get(), request, timeout);
}

grpc::Status Client::CallRaw(const std::string& method, const std::string& request, std::string* response) {
  const grpc::Slice slice(request);
  const grpc::ByteBuffer message(&slice, 1);
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  SetTimeout(&context, absl::Minutes(2));
  grpc::CompletionQueue queue;
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  if (done()) {
    call->WriteLast(message, grpc::WriteOptions(), nullptr);
    done();
    grpc::ByteBuffer answer;
    call->Read(&answer, nullptr);
    while (done()) {
      grpc::Slice whole;
      if (response != nullptr && response->empty() && answer.DumpToSingleSlice(&whole).ok()) {
        response->assign(reinterpret_cast<const char*>(whole.begin()), whole.size());
      }
      call->Read(&answer, nullptr);
    }
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  done();
  return status;
}

v1::GenerateRequest GreedyRequest(const std::vector<int32_t>& prompt_ids, int32_t max_tokens) {
  v1::GenerateRequest request;
  request.mutable_prompt_ids()->mutable_ids()->Add(prompt_ids.begin(), prompt_ids.end());
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  return request;
}

}  // namespace ridge::testing
