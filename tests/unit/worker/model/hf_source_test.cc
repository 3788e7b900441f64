#include "worker/model/hf_source.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/half.h"
#include "kernels/rope_table.h"
#include "tests/unit/worker/model/file_builders.h"
#include "worker/model/hf_config.h"

namespace ridge::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Golden(const std::string& name) {
  return std::string(RIDGE_TEST_DATA_DIR) + "/" + name;
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A fresh directory of this test.
std::string MakeDirectory() {
  const std::string path = WriteFile("model", "");
  std::filesystem::remove_all(path);
  std::filesystem::create_directory(path);
  return path;
}

void Put(const std::string& directory, const std::string& name, const std::string& contents) {
  std::ofstream(directory + "/" + name, std::ios::binary) << contents;
}

std::string LlamaConfigWith(const std::string& from, const std::string& to) {
  const std::string text = ReadText(Golden("tiny-llama/config.json"));
  const std::string changed = absl::StrReplaceAll(text, {{from, to}});
  EXPECT_NE(changed, text);
  return changed;
}

std::string ConfigError(const std::string& text) {
  const auto config = ConfigFromHfJson(text, "dir/config.json");
  return config.ok() ? "no error" : std::string(config.status().message());
}

TEST(HfConfig, BothKeyStylesSayTheSame) {
  for (const char* model : {"tiny-llama", "tiny-llama3", "tiny-qwen2", "tiny-qwen3"}) {
    const auto classic = ConfigFromHfJson(ReadText(Golden(model) + "/config.json"), "config.json");
    const auto v5 = ConfigFromHfJson(ReadText(Golden(model) + "/config.v5.json"), "config.v5.json");
    ASSERT_TRUE(classic.ok()) << classic.status();
    ASSERT_TRUE(v5.ok()) << v5.status();
    EXPECT_EQ(CanonicalText(*classic), CanonicalText(*v5));
  }
}

TEST(HfConfig, ReadsLlama) {
  const auto config = ConfigFromHfJson(ReadText(Golden("tiny-llama/config.json")), "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_EQ(config->num_layers, 2);
  EXPECT_EQ(config->hidden_size, 64);
  EXPECT_EQ(config->num_heads, 4);
  EXPECT_EQ(config->num_kv_heads, 2);
  EXPECT_EQ(config->head_dim, 32);
  EXPECT_EQ(config->mlp_size, 160);
  EXPECT_EQ(config->vocab_size, 512);
  EXPECT_EQ(config->context_length, 512);
  EXPECT_EQ(config->norm_eps, 1e-5f);
  EXPECT_EQ(config->rope_theta, 1e4f);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_FALSE(config->tied_embedding);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2));
  EXPECT_EQ(config->bos_token_id, 1);
}

TEST(HfConfig, ReadsQwen2) {
  const auto config = ConfigFromHfJson(ReadText(Golden("tiny-qwen2/config.json")), "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "qwen2");
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->norm_eps, 1e-6f);
  EXPECT_EQ(config->rope_theta, 1e6f);
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_TRUE(config->tied_embedding);
}

TEST(HfConfig, ReadsQwen3) {
  const auto config = ConfigFromHfJson(ReadText(Golden("tiny-qwen3/config.json")), "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "qwen3");
  EXPECT_EQ(config->head_dim, 32);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_TRUE(config->qk_norm);
}

TEST(HfConfig, ReadsScaledPositions) {
  const auto divisors = [](const std::string& scaling) {
    const auto config =
        ConfigFromHfJson(LlamaConfigWith("\"use_cache\": true", "\"rope_scaling\": {" + scaling + "}"), "c");
    EXPECT_TRUE(config.ok()) << config.status();
    return config->rope_divisors;
  };
  EXPECT_THAT(divisors("\"type\": \"default\""), ElementsAre());
  EXPECT_EQ(divisors("\"type\": \"linear\", \"factor\": 2.5"), std::vector<double>(16, 2.5));
  const std::vector<double> llama3 = divisors(
      "\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0,"
      "\"original_max_position_embeddings\": 64");
  EXPECT_EQ(llama3, kernels::Llama3RopeDivisors(1e4, 32, {8, 1, 4, 64}));
  EXPECT_EQ(llama3.front(), 1.0);
  EXPECT_EQ(llama3.back(), 8.0);
}

TEST(HfConfig, NamesTheKeyOfScaledPositions) {
  const auto error = [](const std::string& scaling) {
    return ConfigError(LlamaConfigWith("\"use_cache\": true", "\"rope_scaling\": " + scaling));
  };
  EXPECT_THAT(error("3"), HasSubstr("dir/config.json: rope_scaling: not an object"));
  EXPECT_THAT(
      error("{\"rope_type\": \"yarn\", \"factor\": 4.0}"),
      HasSubstr("rope_scaling: rope_type: \"yarn\" is not supported, only default, linear and llama3"));
  EXPECT_THAT(error("{\"type\": \"dynamic\", \"factor\": 4.0}"),
              HasSubstr("rope_scaling: type: \"dynamic\""));
  EXPECT_THAT(error("{\"rope_type\": 3}"), HasSubstr("rope_scaling: rope_type: not a string"));
  EXPECT_THAT(error("{\"rope_type\": \"linear\"}"), HasSubstr("rope_scaling: factor: missing"));
  EXPECT_THAT(error("{\"rope_type\": \"linear\", \"factor\": 0}"),
              HasSubstr("rope_scaling: factor: not a positive number"));
  EXPECT_THAT(error("{\"rope_type\": \"llama3\", \"factor\": 8}"),
              HasSubstr("rope_scaling: low_freq_factor: missing"));
  EXPECT_THAT(
      error("{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": 4,"
            "\"original_max_position_embeddings\": 64}"),
      HasSubstr("rope_scaling: high_freq_factor: not above low_freq_factor"));
  EXPECT_THAT(error("{\"rope_theta\": \"x\"}"), HasSubstr("rope_scaling: rope_theta: not a number"));
  EXPECT_THAT(error("{\"partial_rotary_factor\": 0.5}"), HasSubstr("rope_scaling: partial_rotary_factor"));
}

TEST(HfConfig, NamesPathAndKey) {
  EXPECT_THAT(ConfigError("[]"), HasSubstr("dir/config.json: not a JSON object"));
  EXPECT_THAT(ConfigError("{"), HasSubstr("dir/config.json: not a JSON object"));
  EXPECT_THAT(ConfigError("{}"), HasSubstr("dir/config.json: architectures"));
  EXPECT_THAT(ConfigError(LlamaConfigWith("LlamaForCausalLM", "MambaForCausalLM")),
              HasSubstr("architectures: \"MambaForCausalLM\" is not supported"));
  EXPECT_THAT(ConfigError(LlamaConfigWith("num_hidden_layers", "layers")),
              HasSubstr("num_hidden_layers: missing"));
  EXPECT_THAT(ConfigError(LlamaConfigWith("\"hidden_size\": 64", "\"hidden_size\": -64")),
              HasSubstr("hidden_size: not an integer"));
  EXPECT_THAT(ConfigError(LlamaConfigWith("\"hidden_size\": 64", "\"hidden_size\": \"64\"")),
              HasSubstr("hidden_size: not an integer"));
  EXPECT_THAT(ConfigError(LlamaConfigWith("\"hidden_size\": 64", "\"hidden_size\": 6400000000")),
              HasSubstr("hidden_size: not an integer"));
  EXPECT_THAT(ConfigError(LlamaConfigWith("\"hidden_size\": 64", "\"hidden_size\": 0")),
              HasSubstr("hidden_size: 0 is not in"));
  EXPECT_THAT(ConfigError(LlamaConfigWith("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3")),
              HasSubstr("num_key_value_heads: 3 does not divide the 4 heads"));
  EXPECT_THAT(ConfigError(LlamaConfigWith("silu", "gelu")), HasSubstr("hidden_act: \"gelu\": only silu"));
  EXPECT_THAT(ConfigError(LlamaConfigWith("\"attention_bias\": false", "\"attention_bias\": true")),
              HasSubstr("attention_bias"));
  EXPECT_THAT(ConfigError(LlamaConfigWith("\"mlp_bias\": false", "\"mlp_bias\": true")),
              HasSubstr("mlp_bias"));
  EXPECT_THAT(ConfigError(LlamaConfigWith("\"use_cache\": true", "\"quantization_config\": {}")),
              HasSubstr("quantization_config"));
  EXPECT_THAT(ConfigError(LlamaConfigWith("\"eos_token_id\": 2", "\"eos_token_id\": [2, \"x\"]")),
              HasSubstr("eos_token_id"));
  EXPECT_THAT(ConfigError(LlamaConfigWith("\"eos_token_id\": 2", "\"eos_token_id\": 512")),
              HasSubstr("eos_token_id: 512 is outside"));
  EXPECT_EQ(ConfigError(LlamaConfigWith("\"eos_token_id\": 2", "\"eos_token_id\": null")), "no error");
}

TEST(HfConfig, RefusesWhatWouldComputeOtherwise) {
  const auto error = [](const std::string& key) {
    return ConfigError(LlamaConfigWith("\"use_cache\": true", key));
  };
  for (const char* key : {"quantization_config", "compression_config", "num_experts", "num_local_experts",
                          "n_routed_experts", "attn_logit_softcapping", "final_logit_softcapping"}) {
    EXPECT_THAT(error(absl::StrCat("\"", key, "\": 8")),
                HasSubstr(absl::StrCat("config.json: ", key, ": not supp")));
    EXPECT_EQ(error(absl::StrCat("\"", key, "\": null")), "no error");
  }
  EXPECT_EQ(error("\"num_experts\": 0"), "no error");
  EXPECT_THAT(error("\"partial_rotary_factor\": 0.5"), HasSubstr("partial_rotary_factor: only 1"));
  EXPECT_THAT(ConfigError(LlamaConfigWith("silu", "relu")), HasSubstr("hidden_act: \"relu\": only silu"));
  EXPECT_THAT(ConfigError(LlamaConfigWith("\"llama\"", "\"mistral\"")),
              HasSubstr("model_type: \"mistral\" is not that of LlamaForCausalLM"));
  EXPECT_THAT(error("\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e4}}"),
              HasSubstr("rope_parameters: one for each kind of layer"));
}

TEST(HfConfig, WindowsCountOnlyWhereTheyHideSomething) {
  const auto error = [](const std::string& keys) {
    return ConfigError(LlamaConfigWith("\"use_cache\": true", keys));
  };
  // Two layers, a context of 512.
  EXPECT_EQ(error("\"sliding_window\": 100"), "no error");
  EXPECT_EQ(error("\"use_sliding_window\": false, \"sliding_window\": 100"), "no error");
  EXPECT_EQ(error("\"use_sliding_window\": true, \"sliding_window\": 512, \"max_window_layers\": 0"),
            "no error");
  EXPECT_EQ(error("\"use_sliding_window\": true, \"sliding_window\": 100, \"max_window_layers\": 2"),
            "no error");
  EXPECT_THAT(error("\"use_sliding_window\": true, \"sliding_window\": 100, \"max_window_layers\": 1"),
              HasSubstr("use_sliding_window: not supported"));
  EXPECT_EQ(error("\"layer_types\": [\"full_attention\", \"full_attention\"]"), "no error");
  EXPECT_THAT(error("\"layer_types\": [\"full_attention\", \"sliding_attention\"]"),
              HasSubstr("layer_types: only full_attention"));
  EXPECT_THAT(error("\"layer_types\": 3"), HasSubstr("layer_types: not a list"));
}

TEST(HfConfig, TheFamilyComesFromItsArchitectureOrItsType) {
  EXPECT_EQ(ConfigError(LlamaConfigWith("\"LlamaForCausalLM\"\n  ]", "\"LlamaForCausalLM\"\n  ], \"x\": 1")),
            "no error");
  const std::string by_type = LlamaConfigWith("\"architectures\"", "\"ignored\"");
  const auto config = ConfigFromHfJson(by_type, "c");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_THAT(ConfigError(absl::StrReplaceAll(by_type, {{"\"llama\"", "\"mamba\""}})),
              HasSubstr("model_type: \"mamba\" is not supported, only llama, qwen2 and qwen3"));
}

TEST(HfConfig, Qwen3sHeadsAreOf128WhereTheFileDoesNotSay) {
  std::string text = ReadText(Golden("tiny-qwen3/config.json"));
  text = absl::StrReplaceAll(text, {{"\"head_dim\": 32,", ""}});
  const auto config = ConfigFromHfJson(text, "c");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 128);
}

TEST(HfSource, ReadsTinyCheckpoint) {
  const auto source = HfSource::Open(Golden("tiny-qwen2"));
  ASSERT_TRUE(source.ok()) << source.status();
  const ModelConfig& config = (*source)->config();
  EXPECT_EQ(config.name, "tiny-qwen2");
  // All of the file's tensors, and nothing else: it is fp16 throughout.
  const auto file = SafetensorsFile::Open(Golden("tiny-qwen2/model.safetensors"));
  int64_t elements = 0;
  for (const auto& [name, tensor] : (*file)->tensors()) elements += tensor.rows * tensor.cols;
  EXPECT_EQ(config.num_parameters(), elements);
  std::vector<Half> rows(3 * 64);
  ASSERT_TRUE((*source)->ReadRows({TensorRole::kDown, 1}, 61, 1, absl::MakeSpan(rows).subspan(0, 160)).ok());
  const StoredTensor* down = FindTensor((*file)->tensors(), "model.layers.1.mlp.down_proj.weight");
  EXPECT_EQ(std::memcmp(rows.data(), down->data.data() + 61 * 160 * 2, 160 * 2), 0);
}

// The smallest model, in a type of choice.
SafetensorsBuilder SmallWeights(const std::string& dtype, const std::function<std::string(float)>& encode) {
  SafetensorsBuilder builder;
  float next = 0.0f;
  const auto add = [&](const std::string& name, int rows, int cols) {
    std::string data;
    for (int i = 0; i < rows * cols; ++i) data += encode(next += 1.0f);
    const std::string shape =
        rows == 1 ? std::to_string(cols) : std::to_string(rows) + "," + std::to_string(cols);
    builder.Tensor(name, dtype, "[" + shape + "]", data);
  };
  const std::string layer = "model.layers.0.";
  add("model.embed_tokens.weight", 4, 2);
  add(layer + "input_layernorm.weight", 1, 2);
  for (const char* name : {"q", "k", "v", "o"}) add(layer + "self_attn." + name + "_proj.weight", 2, 2);
  add(layer + "post_attention_layernorm.weight", 1, 2);
  for (const char* name : {"gate", "up", "down"}) add(layer + "mlp." + name + "_proj.weight", 2, 2);
  add("model.norm.weight", 1, 2);
  return builder;
}

constexpr char kSmallConfig[] =
    R"({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 2, "num_attention_heads": 1,
        "intermediate_size": 2, "vocab_size": 4, "max_position_embeddings": 16, "tie_word_embeddings": true,
        "rms_norm_eps": 1e-5, "eos_token_id": 1})";

TEST(HfSource, ConvertsEveryType) {
  const std::pair<std::string, std::function<std::string(float)>> types[] = {
      {"F32", [](float x) { return Bytes(x); }},
      {"F16", [](float x) { return Bytes(kernels::FloatToHalf(x)); }},
      {"BF16", [](float x) { return Bytes(x).substr(2); }},
  };
  for (const auto& [dtype, encode] : types) {
    const std::string directory = MakeDirectory();
    Put(directory, "config.json", kSmallConfig);
    Put(directory, "model.safetensors", SmallWeights(dtype, encode).Build());
    const auto source = HfSource::Open(directory);
    ASSERT_TRUE(source.ok()) << source.status();
    std::vector<Half> row(2);
    ASSERT_TRUE((*source)->ReadRows({TensorRole::kKey, 0}, 1, 1, absl::MakeSpan(row)).ok());
    EXPECT_EQ(kernels::HalfToFloat(row[0]), 17.0f) << dtype;
    EXPECT_EQ(kernels::HalfToFloat(row[1]), 18.0f) << dtype;
  }
}

TEST(HfSource, AddsEndOfSequenceIdsOfGenerationConfig) {
  const std::string directory = MakeDirectory();
  Put(directory, "config.json", kSmallConfig);
  Put(directory, "generation_config.json", R"({"eos_token_id": [3, 1]})");
  Put(directory, "model.safetensors", SmallWeights("F32", [](float x) { return Bytes(x); }).Build());
  const auto source = HfSource::Open(directory + "/");
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->config().eos_token_ids, ElementsAre(1, 3));
  EXPECT_EQ("/" + (*source)->config().name, directory.substr(directory.rfind('/')));
}

TEST(HfSource, NamesWhatIsWrong) {
  const auto encode = [](float x) { return Bytes(x); };
  const auto error = [](const std::string& directory) {
    const auto source = HfSource::Open(directory);
    return source.ok() ? "no error" : std::string(source.status().message());
  };
  const std::string directory = MakeDirectory();
  EXPECT_THAT(error(directory), HasSubstr(directory + "/config.json"));
  Put(directory, "config.json", kSmallConfig);
  EXPECT_THAT(error(directory), HasSubstr(directory + "/model.safetensors"));
  Put(directory, "model.safetensors",
      SmallWeights("F32", encode).Tensor("extra", "F32", "[1]", "1234").Build());
  EXPECT_THAT(error(directory), HasSubstr("model.safetensors: tensor extra: not part of a llama model"));
  Put(directory, "model.safetensors",
      SmallWeights("F32", encode).Tensor("lm_head.weight", "F32", "[1]", "1234").Build());
  Put(directory, "config.json",
      absl::StrReplaceAll(kSmallConfig,
                          {{"\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false"}}));
  EXPECT_THAT(error(directory), HasSubstr("tensor lm_head.weight: 1 x 1, expected 4 x 2"));
}

// Whether the configuration ties the output or not, what is stored decides where the two disagree.
TEST(HfSource, OutputMayBeStoredThoughItIsTied) {
  const auto encode = [](float x) { return Bytes(x); };
  std::string same, other;
  for (float x = 1; x <= 8; ++x) same += Bytes(x), other += Bytes(x + 1);
  const auto tied = [&](const std::string& output) {
    const std::string directory = MakeDirectory();
    Put(directory, "config.json", kSmallConfig);
    SafetensorsBuilder builder = SmallWeights("F32", encode);
    Put(directory, "model.safetensors", builder.Tensor("lm_head.weight", "F32", "[4,2]", output).Build());
    const auto source = HfSource::Open(directory);
    EXPECT_TRUE(source.ok()) << source.status();
    return (*source)->config().tied_embedding;
  };
  EXPECT_TRUE(tied(same));
  EXPECT_FALSE(tied(other));
}

TEST(HfSource, ReadsShards) {
  const std::string directory = MakeDirectory();
  const std::string whole = ReadText(Golden("tiny-qwen3/model.safetensors"));
  Put(directory, "config.json", ReadText(Golden("tiny-qwen3/config.json")));
  const auto file = SafetensorsFile::Open(Golden("tiny-qwen3/model.safetensors")).value();
  SafetensorsBuilder shards[2];
  std::string map;
  int i = 0;
  for (const auto& [name, tensor] : file->tensors()) {
    const std::string shape = tensor.rows == 1 ? absl::StrCat("[", tensor.cols, "]")
                                               : absl::StrCat("[", tensor.rows, ",", tensor.cols, "]");
    shards[i % 2].Tensor(name, "F16", shape, std::string(tensor.data.data(), tensor.data.size()));
    absl::StrAppend(&map, map.empty() ? "" : ",", "\"", name, "\":\"model-", i % 2, ".safetensors\"");
    ++i;
  }
  Put(directory, "model-0.safetensors", shards[0].Build());
  Put(directory, "model-1.safetensors", shards[1].Build());
  Put(directory, "model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
  const auto sharded = HfSource::Open(directory);
  ASSERT_TRUE(sharded.ok()) << sharded.status();
  const auto single = HfSource::Open(Golden("tiny-qwen3")).value();
  EXPECT_EQ((*sharded)->Fingerprint(), single->Fingerprint());
}

TEST(HfSource, OverflowNamesTensorAndElement) {
  const std::string directory = MakeDirectory();
  Put(directory, "config.json", kSmallConfig);
  Put(directory, "model.safetensors",
      SmallWeights("F32", [](float x) { return Bytes(x == 4.0f ? 1e30f : x); }).Build());
  const auto source = HfSource::Open(directory);
  ASSERT_TRUE(source.ok()) << source.status();
  std::vector<Half> rows(8);
  EXPECT_THAT(
      std::string((*source)->ReadRows({TensorRole::kTokenEmbedding}, 0, 4, absl::MakeSpan(rows)).message()),
      HasSubstr("tensor model.embed_tokens.weight: element 1 of row 1 does not fit fp16"));
}

TEST(HfSource, FingerprintFollowsWeightsConfigurationAndTokenizer) {
  const std::string directory = MakeDirectory();
  const auto fingerprint = [&] { return HfSource::Open(directory).value()->Fingerprint(); };
  Put(directory, "config.json", kSmallConfig);
  Put(directory, "model.safetensors", SmallWeights("F32", [](float x) { return Bytes(x); }).Build());
  const std::string base = fingerprint();
  EXPECT_EQ(base, fingerprint());
  Put(directory, "tokenizer.json", "{}");
  const std::string with_tokenizer = fingerprint();
  EXPECT_NE(base, with_tokenizer);
  Put(directory, "config.json", absl::StrReplaceAll(kSmallConfig, {{"1e-5", "1e-6"}}));
  const std::string other_eps = fingerprint();
  EXPECT_NE(with_tokenizer, other_eps);
  Put(directory, "model.safetensors", SmallWeights("F32", [](float x) { return Bytes(x + 1); }).Build());
  EXPECT_NE(other_eps, fingerprint());
}

}  // namespace
}  // namespace ridge::worker
