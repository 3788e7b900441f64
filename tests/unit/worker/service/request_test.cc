#include "worker/service/request.h"

#include <functional>

#include <limits>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/service/small_model.h"

namespace ridge::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

const ServedModel& Model() {
  static const ServedModel* const model = new ServedModel(SmallModel());
  return *model;
}

const ServedModel& TextlessModel() {
  static const ServedModel* const model = new ServedModel(SmallModelWithoutTokenizer());
  return *model;
}

absl::StatusOr<ResolvedCall> ResolveText(const std::string& text, const ServedModel& model = Model()) {
  return Resolve(FromText<v1::GenerateRequest>(text), model);
}

std::vector<TokenId> Bytes(absl::string_view text) {
  return {text.begin(), text.end()};
}

struct BadRequest {
  std::string request;
  const char* message;  // begins with
};

void ExpectRefused(const std::vector<BadRequest>& requests, const ServedModel& model) {
  for (const BadRequest& bad : requests) {
    const absl::Status status = ResolveText(bad.request, model).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.request << ": " << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(bad.message)) << bad.request;
  }
}

TEST(RequestTest, ABadInputNamesItsField) {
  ExpectRefused(
      {
          {"", "input: one of prompt, prompt_ids, chat is required"},
          {"prompt: ''", "prompt: empty"},
          {"prompt_ids {}", "prompt_ids: empty"},
          {"prompt_ids { ids: [1, 2, 3, 60000] }",
           "prompt_ids.ids[3]: 60000 is outside the vocabulary of 1000"},
          {"prompt_ids { ids: -1 }", "prompt_ids.ids[0]: -1 is outside the vocabulary of 1000"},
          {"prompt_ids { ids: 1000 }", "prompt_ids.ids[0]: 1000 is outside"},
          {"chat {}", "chat.messages: empty"},
          {"chat { messages { role: 'user' } messages { role: 'boss' } }", "chat.messages[1].role: \"boss\""},
          {"chat { messages { content: 'x' } }", "chat.messages[0].role: \"\""},
          {"prompt: 'a' add_generation_prompt: true", "add_generation_prompt: applies to chat only"},
          {"chat { messages { role: 'user' } } add_special_tokens: true",
           "add_special_tokens: applies to prompt only"},
          {"prompt_ids { ids: 1 } add_special_tokens: true", "add_special_tokens: applies to prompt only"},
          {"prompt_ids { ids: 1 } add_generation_prompt: true",
           "add_generation_prompt: applies to chat only"},
          {"prompt_ids { ids: 1 } parse_special_tokens: true",
           "parse_special_tokens: applies to prompt and chat only"},
          {"prompt: '" + std::string(4096, 'a') + "'",
           "prompt: 4096 tokens leave no room in the context of 4096"},
      },
      Model());
}

TEST(RequestTest, ATextThatCannotFitIsRefusedBeforeItIsTokenised) {
  ServedModel model = SmallModel();
  model.context_length = 100;
  model.longest_token_bytes = 7;
  EXPECT_EQ(MostPromptBytes(model), 2100);
  ExpectRefused({{"prompt: '" + std::string(2100, 'a') + "'", "prompt: 2100 tokens leave no room"},
                 {"prompt: '" + std::string(2101, 'a') + "'",
                  "prompt: 2101 bytes of text are more than the context can hold, 2100"},
                 {"chat { messages { role: 'user' content: '" + std::string(2000, 'a') +
                      "' } messages { role: 'user' content: '" + std::string(101, 'a') + "' } }",
                  "chat: 2"}},
                model);
}

TEST(RequestTest, ABadLimitOrStopNamesItsField) {
  const std::string input = "prompt: 'a' ";
  std::string many_stops = input, many_ids = input;
  for (int i = 0; i < 17; ++i) many_stops += "stop: 'x' ";
  for (int i = 0; i < 1025; ++i) many_ids += "stop_token_ids: 1 ";
  ExpectRefused(
      {
          {input + "max_tokens: 0", "max_tokens: 0 is less than 1"},
          {input + "max_tokens: -5", "max_tokens: -5 is less than 1"},
          {input + "min_tokens: -1", "min_tokens: -1 is negative"},
          {input + "min_tokens: 5 max_tokens: 3", "min_tokens: 5 is more than max_tokens 3"},
          {input + "stop: 'a' stop: 'b' stop: ''", "stop[2]: empty"},
          {input + "stop: '" + std::string(1025, 's') + "'", "stop[0]: 1025 bytes are more than 1024"},
          {many_stops, "stop: 17 strings are more than 16"},
          {input + "stop_token_ids: [1, 1000]", "stop_token_ids[1]: 1000 is outside the vocabulary of 1000"},
          {many_ids, "stop_token_ids: 1025 ids are more than 1024"},
          {input + "return_text: false return_ids: false",
           "return_ids: false together with return_text false"},
          {input + "request_id: '" + std::string(257, 'r') + "'", "request_id: longer than 256 bytes"},
          {input + "n: 0", "n: 0 is less than 1"},
      },
      Model());
}

TEST(RequestTest, ABadSamplingFieldNamesItself) {
  const std::string nan_or_range[] = {"nan", "inf", "-inf", "-0.1", "100.5"};
  for (const std::string& value : nan_or_range) {
    ExpectRefused({{"prompt: 'a' sampling { temperature: " + value + " }", "sampling.temperature: "}},
                  Model());
  }
  ExpectRefused(
      {
          {"prompt: 'a' sampling { temperature: 200 }", "sampling.temperature: 200 is not in [0, 100]"},
          {"prompt: 'a' sampling { top_p: 0 }", "sampling.top_p: 0 is not in (0, 1]"},
          {"prompt: 'a' sampling { top_p: 1.5 }", "sampling.top_p: 1.5 is not in (0, 1]"},
          {"prompt: 'a' sampling { top_p: nan }", "sampling.top_p: nan is not in (0, 1]"},
          {"prompt: 'a' sampling { min_p: -0.5 }", "sampling.min_p: -0.5 is not in [0, 1]"},
          {"prompt: 'a' sampling { min_p: nan }", "sampling.min_p: nan is not in [0, 1]"},
          {"prompt: 'a' sampling { top_k: -1 }", "sampling.top_k: -1 is negative; 0 is off"},
          {"prompt: 'a' sampling { repetition_penalty: 0 }",
           "sampling.repetition_penalty: 0 is not in (0, 10]"},
          {"prompt: 'a' sampling { presence_penalty: 3 }", "sampling.presence_penalty: 3 is not in [-2, 2]"},
          {"prompt: 'a' sampling { frequency_penalty: nan }",
           "sampling.frequency_penalty: nan is not in [-2, 2]"},
      },
      Model());
}

TEST(RequestTest, ABadControlNamesItself) {
  const std::string input = "prompt: 'a' ";
  std::string many_biases, many_words;
  for (int i = 0; i < 1025; ++i) many_biases += absl::StrCat("logit_bias { key: ", i, " value: 1 } ");
  for (int i = 0; i < 65; ++i) many_words += "bad_words: 'x' ";
  ServedModel large = SmallModel();
  large.config.vocab_size = 2000;
  ExpectRefused(
      {{input + "sampling {" + many_biases + "}", "sampling.logit_bias: 1025 entries are more than 1024"}},
      large);
  ExpectRefused(
      {
          {input + "sampling { logit_bias { key: 1000 value: 1 } }",
           "sampling.logit_bias[1000]: outside the vocabulary of 1000"},
          {input + "sampling { logit_bias { key: 5 value: 100.5 } }",
           "sampling.logit_bias[5]: 100.5 is not in [-100, 100]"},
          {input + "sampling { logit_bias { key: 5 value: nan } }", "sampling.logit_bias[5]: nan is not in"},
          {input + "sampling { allowed_token_ids: [1, -1] }", "sampling.allowed_token_ids[1]: -1 is outside"},
          {input + "sampling { bad_token_ids: 1000 }", "sampling.bad_token_ids[0]: 1000 is outside"},
          {input + "sampling { bad_words: ['x', ''] }", "sampling.bad_words[1]: empty"},
          {input + "sampling { bad_words: '" + std::string(257, 'x') + "' }",
           "sampling.bad_words[0]: 257 bytes are more than 256"},
          {input + "sampling {" + many_words + "}", "sampling.bad_words: 65 words are more than 64"},
          {input + "sampling { allowed_token_ids: [7, 8] bad_token_ids: [8, 7] }",
           "sampling.allowed_token_ids: together with"},
          {input + "sampling { allowed_token_ids: 257 } min_tokens: 1",
           "sampling.allowed_token_ids: together"},
          {input + "sampling { allowed_token_ids: 98 bad_words: 'ab' }",
           "sampling.allowed_token_ids: together"},
          {input + "logprobs: 21", "logprobs: 21 is not in 0 to 20"},
          {input + "logprobs: -1", "logprobs: -1 is not in 0 to 20"},
          {input + "prompt_logprobs: 21 echo: true", "prompt_logprobs: 21 is not in 0 to 20"},
          {input + "prompt_logprobs: 0", "prompt_logprobs: needs echo"},
          {input + "truncate_prompt_tokens: 0", "truncate_prompt_tokens: 0 is less than 1"},
          {input + "priority: 101", "priority: 101 is not in -100 to 100"},
          {input + "n: 129", "n: 129 is more than 128"},
      },
      Model());
  ExpectRefused({{"prompt_ids { ids: 1 } sampling { bad_words: 'x' }",
                  "sampling.bad_words: the model has no tokenizer"}},
                TextlessModel());
}

TEST(RequestTest, ChoicesAreBoundedByWhatRunsAtOnce) {
  ServedModel model = SmallModel();
  model.max_batch = 4;
  EXPECT_EQ(ResolveText("prompt: 'a' n: 4", model)->num_choices, 4);
  EXPECT_EQ(ResolveText("prompt: 'a'", model)->num_choices, 1);
  ExpectRefused({{"prompt: 'a' n: 5", "n: 5 is more than the server's --max_batch, 4"}}, model);
}

TEST(RequestTest, WhatTheDeviceCannotDoIsRefusedByName) {
  ServedModel model = SmallModel();
  model.extended_sampling = false;
  const std::string reason = ": this server's device cannot do it";
  const std::pair<const char*, const char*> fields[] = {
      {"sampling { repetition_penalty: 1.1 }", "sampling.repetition_penalty"},
      {"sampling { presence_penalty: 1 }", "sampling.presence_penalty"},
      {"sampling { frequency_penalty: -1 }", "sampling.frequency_penalty"},
      {"sampling { logit_bias { key: 1 value: 2 } }", "sampling.logit_bias"},
      {"sampling { allowed_token_ids: 1 }", "sampling.allowed_token_ids"},
      {"sampling { bad_token_ids: 1 }", "sampling.bad_token_ids"},
      {"sampling { bad_words: 'x' }", "sampling.bad_words"},
      {"min_tokens: 1", "min_tokens"},
      {"n: 2", "n"},
      {"logprobs: 5", "logprobs"},
      {"prompt_logprobs: 0 echo: true", "prompt_logprobs"}};
  for (const auto& [text, field] : fields) {
    ExpectRefused({{std::string("prompt: 'a' ") + text, (field + reason).c_str()}}, model);
  }
  const absl::StatusOr<ResolvedCall> plain = ResolveText("prompt: 'a' logprobs: 0 echo: true", model);
  EXPECT_TRUE(plain.ok()) << plain.status();
}

TEST(RequestTest, ControlsAreSortedAndDistinct) {
  const absl::StatusOr<ResolvedCall> call = ResolveText(
      "prompt: 'a' min_tokens: 3 stop_token_ids: [9, 9, 257] logprobs: 5 prompt_logprobs: 2 echo: true "
      "sampling { allowed_token_ids: [8, 7, 7, 9, 300] bad_token_ids: [7, 7] presence_penalty: 0.5 "
      "logit_bias { key: 9 value: 1 } logit_bias { key: 3 value: -2 } }");
  ASSERT_TRUE(call.ok()) << call.status();
  const TokenControls& controls = call->spec.controls;
  EXPECT_THAT(controls.allowed_ids, ElementsAre(7, 8, 9, 300));
  EXPECT_THAT(controls.banned_ids, ElementsAre(7));
  EXPECT_THAT(controls.late_ids, ElementsAre(9, kImEnd));
  EXPECT_EQ(controls.min_tokens, 3);
  ASSERT_EQ(controls.bias.size(), 2u);
  EXPECT_EQ(controls.bias[0].id, 3);
  EXPECT_EQ(controls.bias[0].bias, -2.0f);
  EXPECT_EQ(call->spec.sampling.presence_penalty, 0.5f);
  EXPECT_EQ(call->spec.sampling.top_logprobs, 5);
  EXPECT_TRUE(call->spec.prompt_logprobs);
  EXPECT_EQ(call->spec.sampling.prompt_top_logprobs, 2);
}

TEST(RequestTest, NoMoreTokensAreReportedThanTheVocabularyHas) {
  ServedModel model = SmallModelWithoutTokenizer();
  model.config.vocab_size = 5;
  model.config.eos_token_ids = {4};
  const std::string prompt = "prompt_ids { ids: [1, 2] } echo: true ";
  const absl::StatusOr<ResolvedCall> call =
      ResolveText(prompt + "logprobs: 20 prompt_logprobs: 6 sampling { top_k: 20 }", model);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->spec.sampling.top_logprobs, 5);
  EXPECT_EQ(call->spec.sampling.prompt_top_logprobs, 5);
  EXPECT_EQ(call->spec.sampling.top_k, 20);
  EXPECT_EQ(ResolveText(prompt + "logprobs: 4", model)->spec.sampling.top_logprobs, 4);
  ExpectRefused({{prompt + "logprobs: 21", "logprobs: 21 is not in 0 to 20"},
                 {prompt + "sampling { logit_bias { key: 5 value: 1 } }", "sampling.logit_bias[5]: outside"},
                 {prompt + "sampling { bad_token_ids: [0, 5] }", "sampling.bad_token_ids[1]: 5 is outside"},
                 {prompt + "sampling { bad_token_ids: [0, 1, 2, 3, 4] }", "sampling.bad_token_ids: together"},
                 {prompt + "min_tokens: 1 stop_token_ids: [0, 1, 2, 3]", "sampling.bad_token_ids: together"}},
                model);
}

TEST(RequestTest, MinTokensHaveToFitTheContext) {
  const int32_t context = Model().context_length;
  const auto resolve = [](int32_t min_tokens, const char* more) {
    return ResolveText(absl::StrCat("prompt: 'abc' min_tokens: ", min_tokens, more));
  };
  EXPECT_EQ(resolve(7, "")->spec.controls.min_tokens, 7);
  EXPECT_EQ(resolve(context - 3, "")->spec.controls.min_tokens, context - 3);
  const std::string error = absl::StrCat("min_tokens: ", context - 2, " is more than the ", context - 3,
                                         " that a prompt of 3 tokens leaves in the context of ", context);
  EXPECT_EQ(resolve(context - 2, "").status(), absl::InvalidArgumentError(error));
  EXPECT_EQ(resolve(context - 2, " max_tokens: 2147483647").status().message(), error);
  EXPECT_EQ(resolve(INT32_MAX, "").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RequestTest, BadWordsBanWhatHoldsThemAndWhatCompletesThem) {
  const absl::StatusOr<ResolvedCall> call =
      ResolveText("prompt: 'a' sampling { bad_token_ids: 5 bad_words: ['w30', 'ab'] }");
  ASSERT_TRUE(call.ok()) << call.status();
  // " w300" to " w309" hold the first.
  EXPECT_THAT(call->spec.controls.banned_ids,
              ElementsAre(5, 300, 301, 302, 303, 304, 305, 306, 307, 308, 309));
  ASSERT_NE(call->spec.bans, nullptr);
  EXPECT_THAT(call->spec.bans->Banned(0), IsEmpty());
  EXPECT_THAT(call->spec.bans->Banned(call->spec.bans->Advance(0, 'a')), ElementsAre('b'));
}

TEST(RequestTest, ALongPromptIsCutWhereAsked) {
  EXPECT_EQ(ResolveText("prompt: 'abcdef' truncate_prompt_tokens: 2")->spec.prompt, Bytes("ef"));
  EXPECT_EQ(ResolveText("prompt: 'abcdef' truncate_prompt_tokens: 6")->spec.prompt, Bytes("abcdef"));
  EXPECT_EQ(ResolveText("prompt: 'abcdef' truncate_prompt_tokens: 7")->spec.prompt, Bytes("abcdef"));
  EXPECT_EQ(ResolveText("prompt_ids { ids: [1, 2, 3] } truncate_prompt_tokens: 1")->spec.prompt,
            std::vector<TokenId>({3}));
  // A text that is longer than the context could hold.
  ServedModel model = SmallModel();
  model.context_length = 100;
  model.longest_token_bytes = 7;
  const absl::StatusOr<ResolvedCall> call =
      ResolveText("prompt: '" + std::string(5000, 'a') + "z' truncate_prompt_tokens: 10", model);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->spec.prompt, Bytes("aaaaaaaaaz"));
  ExpectRefused({{"prompt: '" + std::string((4 << 20) + 1, 'a') + "' truncate_prompt_tokens: 10",
                  "prompt: 4194305 bytes of text are more than one call can hold"}},
                model);
}

TEST(RequestTest, LogprobsOfALongPromptAreBounded) {
  ServedModel model = SmallModel();
  model.context_length = 100000;
  const std::string text = "prompt: '" + std::string(20000, 'a') + "' echo: true prompt_logprobs: ";
  EXPECT_TRUE(ResolveText(text + "12", model).ok());
  ExpectRefused({{text + "13",
                  "prompt_logprobs: 13 and the token's own for each of 20000 tokens are more than 262144"}},
                model);
}

TEST(RequestTest, WhatIsSwitchedOffIsAccepted) {
  const absl::StatusOr<ResolvedCall> call = ResolveText(
      "prompt: 'a' model: 'small' n: 1 echo: false priority: 0 min_tokens: 0 add_generation_prompt: false "
      "sampling { repetition_penalty: 1 presence_penalty: 0 frequency_penalty: 0 top_k: 0 min_p: 0 top_p: 1 "
      "}");
  EXPECT_TRUE(call.ok()) << call.status();
}

TEST(RequestTest, AnotherModelIsNotFound) {
  const absl::Status status = ResolveText("prompt: 'a' model: 'large'").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "model: \"large\" is not served here; there is \"small\"");
}

TEST(RequestTest, WithoutATokenizerOnlyIdsAreTaken) {
  ExpectRefused(
      {
          {"prompt: 'a'", "prompt: the model has no tokenizer; send prompt_ids"},
          {"chat { messages { role: 'user' } }", "chat: the model has no tokenizer; send prompt_ids"},
          {"prompt_ids { ids: 1 } stop: 'x'", "stop: the model has no tokenizer"},
          {"prompt_ids { ids: 1 } return_text: true", "return_text: the model has no tokenizer"},
          {"prompt_ids { ids: 1 } return_ids: false", "return_ids: false leaves nothing to return"},
      },
      TextlessModel());
  const absl::StatusOr<ResolvedCall> call = ResolveText("prompt_ids { ids: [1, 2] }", TextlessModel());
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_FALSE(call->return_text);
  EXPECT_TRUE(call->return_ids);
}

TEST(RequestTest, ChatNeedsATemplate) {
  ServedModel model = SmallModel();
  model.chat_template.reset();
  ExpectRefused({{"chat { messages { role: 'user' } }", "chat: the model has no chat template"}}, model);
}

TEST(RequestTest, DefaultsAreThoseOfTheProto) {
  const absl::StatusOr<ResolvedCall> call = ResolveText("prompt: 'abc'");
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->spec.prompt, Bytes("abc"));
  EXPECT_EQ(call->spec.sampling.temperature, 1.0f);
  EXPECT_EQ(call->spec.sampling.top_p, 1.0f);
  EXPECT_EQ(call->spec.sampling.top_k, 0);
  EXPECT_EQ(call->spec.sampling.min_p, 0.0f);
  EXPECT_FALSE(call->spec.sampling.logprobs);
  EXPECT_EQ(call->spec.max_tokens, 4093);
  EXPECT_EQ(call->spec.limit_reason, FinishReason::kContext);
  EXPECT_THAT(call->spec.stop_ids, ElementsAre(kImEnd));
  EXPECT_FALSE(call->include_stop);
  EXPECT_TRUE(call->skip_special);
  EXPECT_TRUE(call->return_text);
  EXPECT_TRUE(call->return_ids);
}

TEST(RequestTest, EachRequestWithoutASeedDrawsItsOwn) {
  EXPECT_NE(ResolveText("prompt: 'a'")->spec.sampling.seed, ResolveText("prompt: 'a'")->spec.sampling.seed);
  EXPECT_EQ(ResolveText("prompt: 'a' sampling { seed: 0 }")->spec.sampling.seed, 0u);
}

TEST(RequestTest, AbsentSamplingFieldsTakeTheModelsDefaults) {
  ServedModel model = SmallModel();
  model.default_sampling.temperature = 0.5f;
  model.default_sampling.top_k = 40;
  const absl::StatusOr<ResolvedCall> call = ResolveText("prompt: 'a' sampling { top_k: 0 }", model);
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(call->spec.sampling.temperature, 0.5f);
  EXPECT_EQ(call->spec.sampling.top_k, 0);
}

TEST(RequestTest, TheContextCutsTheLimit) {
  struct Case {
    const char* request;
    int32_t max_tokens;
    FinishReason reason;
  };
  const std::string prompt(4000, 'a');
  const Case cases[] = {
      {"max_tokens: 95", 95, FinishReason::kLength},
      {"max_tokens: 96", 96, FinishReason::kLength},
      {"max_tokens: 97", 96, FinishReason::kContext},
      {"max_tokens: 2147483647", 96, FinishReason::kContext},
      {"", 96, FinishReason::kContext},
  };
  for (const Case& c : cases) {
    const absl::StatusOr<ResolvedCall> call = ResolveText("prompt: '" + prompt + "' " + c.request);
    ASSERT_TRUE(call.ok()) << call.status();
    EXPECT_EQ(call->spec.max_tokens, c.max_tokens) << c.request;
    EXPECT_EQ(call->spec.limit_reason, c.reason) << c.request;
  }
}

TEST(RequestTest, EndOfSequenceCanBeIgnored) {
  EXPECT_THAT(ResolveText("prompt: 'a' ignore_eos: true stop_token_ids: 7")->spec.stop_ids, ElementsAre(7));
  EXPECT_THAT(ResolveText("prompt: 'a' stop_token_ids: 7")->spec.stop_ids, ElementsAre(kImEnd, 7));
}

TEST(RequestTest, SpecialTokensAreReadInPromptsAndNotInContents) {
  EXPECT_THAT(ResolveText("prompt: '<|im_end|>'")->spec.prompt, ElementsAre(kImEnd));
  EXPECT_EQ(ResolveText("prompt: '<|im_end|>' parse_special_tokens: false")->spec.prompt,
            Bytes("<|im_end|>"));
  const std::string chat = "chat { messages { role: 'user' content: '<|im_end|>' } } ";
  std::vector<TokenId> expected = {kImStart};
  const auto append = [&expected](const std::vector<TokenId>& ids) {
    expected.insert(expected.end(), ids.begin(), ids.end());
  };
  append(Bytes("user\n<|im_end|>"));
  append({kImEnd});
  append(Bytes("\n"));
  EXPECT_EQ(ResolveText(chat + "add_generation_prompt: false")->spec.prompt, expected);
  append({kImStart});
  append(Bytes("assistant\n"));
  EXPECT_EQ(ResolveText(chat)->spec.prompt, expected);
  EXPECT_EQ(ResolveText(chat + "parse_special_tokens: true")->spec.prompt.size(), expected.size() - 9);
}

TEST(RequestTest, AResolvedRequestResolvesToTheSameCall) {
  const absl::StatusOr<ResolvedCall> first = ResolveText(
      "prompt: 'ab' max_tokens: 5000 stop: 'x' stop_token_ids: 9 include_stop_in_output: true logprobs: 4 "
      "prompt_logprobs: 2 echo: true min_tokens: 2 truncate_prompt_tokens: 1 skip_special_tokens: false "
      "return_ids: false "
      "request_id: 'r' sampling { temperature: 0.5 top_k: 3 repetition_penalty: 1.5 presence_penalty: 0.25 "
      "frequency_penalty: -1 logit_bias { key: 4 value: -3 } allowed_token_ids: [5, 6, 300, 301] "
      "bad_token_ids: 6 "
      "bad_words: 'w300' } n: 3");
  ASSERT_TRUE(first.ok()) << first.status();
  const v1::ResolvedRequest resolved = ToProto(*first, Model());
  const absl::StatusOr<ResolvedCall> second = Resolve(resolved, Model());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(second->spec.prompt, ElementsAre('b'));
  EXPECT_EQ(second->spec.sampling.seed, first->spec.sampling.seed);
  EXPECT_EQ(second->spec.sampling.temperature, 0.5f);
  EXPECT_EQ(second->spec.sampling.top_k, 3);
  EXPECT_TRUE(second->spec.sampling.logprobs);
  EXPECT_EQ(second->spec.sampling.top_logprobs, 4);
  EXPECT_TRUE(second->spec.prompt_logprobs);
  EXPECT_EQ(second->spec.sampling.prompt_top_logprobs, 2);
  EXPECT_TRUE(second->echo);
  EXPECT_EQ(second->num_choices, 3);
  EXPECT_EQ(second->spec.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(second->spec.sampling.presence_penalty, 0.25f);
  EXPECT_EQ(second->spec.sampling.frequency_penalty, -1.0f);
  EXPECT_EQ(second->spec.controls.bias.size(), 1u);
  EXPECT_EQ(second->spec.controls.allowed_ids, first->spec.controls.allowed_ids);
  EXPECT_THAT(second->spec.controls.banned_ids, ElementsAre(6, 300));
  EXPECT_EQ(second->spec.controls.min_tokens, 2);
  EXPECT_NE(second->spec.bans, nullptr);
  EXPECT_EQ(second->spec.max_tokens, 4095);
  EXPECT_EQ(second->spec.limit_reason, FinishReason::kContext);
  EXPECT_THAT(second->spec.stop_ids, ElementsAre(kImEnd, 9));
  EXPECT_THAT(second->stops, ElementsAre("x"));
  EXPECT_TRUE(second->include_stop);
  EXPECT_FALSE(second->skip_special);
  EXPECT_FALSE(second->return_ids);
  EXPECT_EQ(second->client_request_id, "r");
  EXPECT_EQ(ToProto(*second, Model()).SerializeAsString(), resolved.SerializeAsString());
}

TEST(RequestTest, AResolvedRequestKeepsItsOwnEndOfSequence) {
  v1::ResolvedRequest resolved = ToProto(*ResolveText("prompt: 'a' ignore_eos: true"), Model());
  EXPECT_THAT(Resolve(resolved, Model())->spec.stop_ids, IsEmpty());
  resolved.add_eos_token_ids(5);
  EXPECT_THAT(Resolve(resolved, Model())->spec.stop_ids, ElementsAre(5));
  resolved.add_eos_token_ids(1000);
  EXPECT_THAT(std::string(Resolve(resolved, Model()).status().message()),
              StartsWith("resolved.eos_token_ids[1]: 1000"));
}

TEST(RequestTest, AResolvedRequestOfOtherNumericsIsRefused) {
  v1::ResolvedRequest resolved = ToProto(*ResolveText("prompt: 'a'"), Model());
  resolved.set_numerics_id("other");
  EXPECT_EQ(Resolve(resolved, Model()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(RequestTest, AResolvedRequestLeavesNothingToADefault) {
  const v1::ResolvedRequest complete = ToProto(*ResolveText("prompt: 'a'"), Model());
  const auto expect_required = [&](const char* field,
                                   const std::function<void(v1::GenerateRequest*)>& clear) {
    v1::ResolvedRequest resolved = complete;
    clear(resolved.mutable_request());
    const absl::Status status = Resolve(resolved, Model()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()), std::string("resolved.request.") + field + ": required");
  };
  expect_required("prompt_ids", [](v1::GenerateRequest* request) { request->set_prompt("a"); });
  expect_required("max_tokens", [](v1::GenerateRequest* request) { request->clear_max_tokens(); });
  expect_required("sampling.temperature",
                  [](v1::GenerateRequest* request) { request->mutable_sampling()->clear_temperature(); });
  expect_required("sampling.presence_penalty", [](v1::GenerateRequest* request) {
    request->mutable_sampling()->clear_presence_penalty();
  });
  expect_required("sampling.frequency_penalty", [](v1::GenerateRequest* request) {
    request->mutable_sampling()->clear_frequency_penalty();
  });
  expect_required("sampling.top_p",
                  [](v1::GenerateRequest* request) { request->mutable_sampling()->clear_top_p(); });
  expect_required("sampling.top_k",
                  [](v1::GenerateRequest* request) { request->mutable_sampling()->clear_top_k(); });
  expect_required("sampling.min_p",
                  [](v1::GenerateRequest* request) { request->mutable_sampling()->clear_min_p(); });
  expect_required("sampling.repetition_penalty", [](v1::GenerateRequest* request) {
    request->mutable_sampling()->clear_repetition_penalty();
  });
  expect_required("sampling.seed",
                  [](v1::GenerateRequest* request) { request->mutable_sampling()->clear_seed(); });
}

}  // namespace
}  // namespace ridge::worker
