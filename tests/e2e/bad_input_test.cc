// Bad requests through the router: each is refused with its field's name, and changes nothing for the next
// one.

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/client.h"
#include "tests/e2e/servers.h"

namespace ridge::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::vector<int32_t> kPrompt = {71, 5, 301};

v1::GenerateRequest GoodRequest() {
  return GreedyRequest(kPrompt, 4);
}

struct BadRequest {
  std::string field;
  v1::GenerateRequest request;
};

// GoodRequest, spoilt by `spoil`.
template <typename Spoil>
BadRequest Bad(const std::string& field, Spoil spoil) {
  BadRequest bad{field, GoodRequest()};
  spoil(&bad.request);
  return bad;
}

using Request = v1::GenerateRequest;

std::vector<BadRequest> BadInputs() {
  return {
      Bad("input", [](Request* r) { r->clear_prompt_ids(); }),
      Bad("prompt_ids", [](Request* r) { r->mutable_prompt_ids()->clear_ids(); }),
      // The context is 512.
      Bad("prompt_ids", [](Request* r) { r->mutable_prompt_ids()->mutable_ids()->Resize(512, 1); }),
      Bad("prompt_ids", [](Request* r) { r->mutable_prompt_ids()->mutable_ids()->Resize(100000, 1); }),
      // So is the vocabulary.
      Bad("prompt_ids.ids[1]", [](Request* r) { r->mutable_prompt_ids()->set_ids(1, 512); }),
      Bad("prompt_ids.ids[2]", [](Request* r) { r->mutable_prompt_ids()->set_ids(2, -1); }),
      Bad("stop_token_ids[0]", [](Request* r) { r->add_stop_token_ids(512); }),
      // This model has no tokenizer.
      Bad("prompt", [](Request* r) { r->set_prompt("text"); }),
      Bad("chat", [](Request* r) { r->mutable_chat()->add_messages()->set_role("user"); }),
      Bad("stop", [](Request* r) { r->add_stop("text"); }),
      Bad("return_text", [](Request* r) { r->set_return_text(true); }),
  };
}

std::vector<BadRequest> BadLimits() {
  return {
      Bad("max_tokens", [](Request* r) { r->set_max_tokens(0); }),
      Bad("max_tokens", [](Request* r) { r->set_max_tokens(-3); }),
      Bad("min_tokens", [](Request* r) { r->set_min_tokens(5); }),  // more than max_tokens
      Bad("min_tokens", [](Request* r) { r->set_min_tokens(-1); }),
      Bad("return_ids", [](Request* r) { r->set_return_ids(false); }),  // and there is no text
      Bad("add_special_tokens", [](Request* r) { r->set_add_special_tokens(true); }),
      Bad("add_generation_prompt", [](Request* r) { r->set_add_generation_prompt(true); }),
      Bad("parse_special_tokens", [](Request* r) { r->set_parse_special_tokens(true); }),
      Bad("request_id", [](Request* r) { r->set_request_id(std::string(257, 'x')); }),
      Bad("n", [](Request* r) { r->set_n(0); }),
      Bad("n", [](Request* r) { r->set_n(129); }),
      Bad("logprobs", [](Request* r) { r->set_logprobs(-1); }),
      Bad("logprobs", [](Request* r) { r->set_logprobs(21); }),
      Bad("prompt_logprobs", [](Request* r) { r->set_prompt_logprobs(0); }),  // without echo
      Bad("truncate_prompt_tokens", [](Request* r) { r->set_truncate_prompt_tokens(0); }),
      // Reserved for a later version.
      Bad("field 32",
          [](Request* r) { r->GetReflection()->MutableUnknownFields(r)->AddLengthDelimited(32, "x"); }),
  };
}

std::vector<BadRequest> BadSampling() {
  return {
      Bad("sampling.temperature", [](Request* r) { r->mutable_sampling()->set_temperature(-1); }),
      Bad("sampling.temperature", [](Request* r) { r->mutable_sampling()->set_temperature(NAN); }),
      Bad("sampling.temperature", [](Request* r) { r->mutable_sampling()->set_temperature(INFINITY); }),
      Bad("sampling.top_p", [](Request* r) { r->mutable_sampling()->set_top_p(0); }),
      Bad("sampling.top_p", [](Request* r) { r->mutable_sampling()->set_top_p(1.5f); }),
      Bad("sampling.top_k", [](Request* r) { r->mutable_sampling()->set_top_k(-1); }),
      Bad("sampling.min_p", [](Request* r) { r->mutable_sampling()->set_min_p(2); }),
      Bad("sampling.repetition_penalty",
          [](Request* r) { r->mutable_sampling()->set_repetition_penalty(0); }),
      Bad("sampling.logit_bias[1]",
          [](Request* r) { (*r->mutable_sampling()->mutable_logit_bias())[1] = 200; }),
      Bad("sampling.allowed_token_ids[0]",
          [](Request* r) { r->mutable_sampling()->add_allowed_token_ids(-1); }),
      Bad("sampling.bad_words", [](Request* r) { r->mutable_sampling()->add_bad_words("x"); }),
  };
}

class BadInputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<Server> worker =
        StartWorker({"--model", TestDataPath("tiny-llama"), "--kv-cache-bytes", "16MiB"});
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    absl::StatusOr<Server> router = StartRouter({worker_.grpc});
    ASSERT_TRUE(router.ok()) << router.status();
    router_ = *std::move(router);
    client_ = std::make_unique<Client>(router_.grpc);
  }

  void TearDown() override {
    if (client_ == nullptr) return;
    const Answer answer = client_->Ask(GoodRequest());
    EXPECT_TRUE(answer.status.ok()) << Describe(answer.status);
  }

  void ExpectAllRefused(const std::vector<BadRequest>& bad_requests) {
    Client direct(worker_.grpc);
    for (const BadRequest& bad : bad_requests) {
      SCOPED_TRACE(bad.field);
      const grpc::Status status = client_->Ask(bad.request).status;
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << Describe(status);
      EXPECT_THAT(status.error_message(), StartsWith(bad.field + ": "));
      EXPECT_EQ(direct.Ask(bad.request).status.error_message(), status.error_message())
          << "the router changes no error";
    }
    const absl::StatusOr<MetricsPage> page = MetricsPage::Scrape(router_.metrics);
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_EQ(page->Value("ridge_router_requests_total{code=\"INVALID_ARGUMENT\"}"),
              static_cast<double>(bad_requests.size()));
  }

  Server worker_;
  Server router_;
  std::unique_ptr<Client> client_;
};

TEST_F(BadInputTest, InputsThatTheModelCannotTake) {
  ExpectAllRefused(BadInputs());
}

TEST_F(BadInputTest, LimitsAndContradictions) {
  ExpectAllRefused(BadLimits());
}

TEST_F(BadInputTest, SamplingOutOfRange) {
  ExpectAllRefused(BadSampling());
}

TEST_F(BadInputTest, AnUnknownModelIsNotFound) {
  v1::GenerateRequest request = GoodRequest();
  request.set_model("another");
  const grpc::Status status = client_->Ask(request).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << Describe(status);
  EXPECT_THAT(status.error_message(), HasSubstr("another"));
}

TEST_F(BadInputTest, InvalidUtf8) {
  // As raw bytes, since our own library would not send them.
  const struct {
    const char* field;
    std::string bytes;
  } kCases[] = {
      {"prompt",
       "\x12\x03"
       "a\xff"
       "b"},
      {"model", "\x0a\x02\xc3\x28"},
      {"stop[1]", std::string("\x12\x01") + "a" + "\x5a\x01" + "b" + "\x5a\x02\xe2\x82"},
      // chat{messages{content: "\x80"}}
      {"chat.messages[0].content", "\x22\x05\x0a\x03\x12\x01\x80"},
  };
  for (const auto& bad : kCases) {
    SCOPED_TRACE(bad.field);
    const grpc::Status status = client_->CallRaw(kGenerateMethod, bad.bytes);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << Describe(status);
    EXPECT_THAT(status.error_message(), StartsWith(std::string(bad.field) + ": "));
    EXPECT_THAT(status.error_message(), HasSubstr("UTF-8"));
  }
}

TEST_F(BadInputTest, BytesThatAreNoMessage) {
  const grpc::Status status = client_->CallRaw(kGenerateMethod, "\x12\x7f short");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << Describe(status);
  EXPECT_THAT(status.error_message(), HasSubstr("GenerateRequest"));
}

}  // namespace
}  // namespace ridge::testing
