#include "worker/model/gguf_source.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/half.h"
#include "tests/unit/worker/model/file_builders.h"

namespace ridge::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kHidden = 32;
constexpr int kHeads = 2;
constexpr int kKvHeads = 1;
constexpr int kHeadDim = 8;  // not hidden / heads
constexpr int kMlp = 256;    // a whole block of every type
constexpr int kVocab = 5;

// Element (row, col) of tensor number `tag`, exact in fp16.
float ValueOf(int tag, int row, int col) {
  return static_cast<float>((tag * 131 + row * 33 + col) % 2048);
}

std::string MatrixF32(int tag, int rows, int cols) {
  std::string data;
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) data += Bytes(ValueOf(tag, r, c));
  }
  return data;
}

// As converters write q and k of a llama: per head, rows [2][d / 2] become [d / 2][2].
std::string PermutedF32(int tag, int heads, int cols) {
  std::string data;
  for (int h = 0; h < heads; ++h) {
    for (int j = 0; j < kHeadDim / 2; ++j) {
      for (int s = 0; s < 2; ++s) {
        for (int c = 0; c < cols; ++c) data += Bytes(ValueOf(tag, h * kHeadDim + s * kHeadDim / 2 + j, c));
      }
    }
  }
  return data;
}

struct Variant {
  std::string architecture = "llama";
  bool bias = false;
  bool output = false;
  std::string skip = {};  // a tensor that is left out; "*": all are
  uint32_t kv_heads = kKvHeads;
};

GgufBuilder SmallModel(const Variant& variant) {
  const std::string a = variant.architecture + ".";
  const bool permuted = variant.architecture == "llama";
  GgufBuilder builder;
  builder.Text("general.architecture", variant.architecture).Text("general.name", "Small");
  builder.U32(a + "block_count", 1).U32(a + "embedding_length", kHidden).U32(a + "context_length", 128);
  builder.U32(a + "attention.head_count", kHeads).U32(a + "attention.head_count_kv", variant.kv_heads);
  builder.U32(a + "attention.key_length", kHeadDim).U32(a + "feed_forward_length", kMlp);
  builder.F32(a + "attention.layer_norm_rms_epsilon", 1e-5f).F32(a + "rope.freq_base", 5000.0f);
  builder.U32("tokenizer.ggml.eos_token_id", 2)
      .U32("tokenizer.ggml.eot_token_id", 3)
      .U32("tokenizer.ggml.eom_token_id", 4)
      .U32("tokenizer.ggml.bos_token_id", 1);
  const auto add = [&](const std::string& name, std::vector<uint64_t> dimensions, const std::string& data) {
    if (variant.skip != "*" && name != variant.skip)
      builder.Tensor(name, std::move(dimensions), kF32.ggml_id, data);
  };
  const auto matrix = [&](const std::string& name, int tag, int rows, int cols) {
    add(name, {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)}, MatrixF32(tag, rows, cols));
  };
  matrix("token_embd.weight", 1, kVocab, kHidden);
  add("blk.0.attn_norm.weight", {kHidden}, MatrixF32(2, 1, kHidden));
  const auto projection = [&](const std::string& name, int tag, int heads) {
    const std::string data =
        permuted ? PermutedF32(tag, heads, kHidden) : MatrixF32(tag, heads * kHeadDim, kHidden);
    add(name, {kHidden, static_cast<uint64_t>(heads * kHeadDim)}, data);
  };
  projection("blk.0.attn_q.weight", 3, kHeads);
  projection("blk.0.attn_k.weight", 4, kKvHeads);
  matrix("blk.0.attn_v.weight", 5, kKvHeads * kHeadDim, kHidden);
  if (variant.bias) {
    // One number a row of the matrix, in the order of its rows.
    const auto bias = [&](const std::string& name, int tag, int heads) {
      const std::string data = permuted ? PermutedF32(tag, heads, 1) : MatrixF32(tag, heads * kHeadDim, 1);
      add(name, {static_cast<uint64_t>(heads * kHeadDim)}, data);
    };
    bias("blk.0.attn_q.bias", 6, kHeads);
    bias("blk.0.attn_k.bias", 7, kKvHeads);
    add("blk.0.attn_v.bias", {kHeadDim}, MatrixF32(8, kHeadDim, 1));
  }
  matrix("blk.0.attn_output.weight", 9, kHidden, kHeads * kHeadDim);
  add("blk.0.ffn_norm.weight", {kHidden}, MatrixF32(10, 1, kHidden));
  matrix("blk.0.ffn_gate.weight", 11, kMlp, kHidden);
  matrix("blk.0.ffn_up.weight", 12, kMlp, kHidden);
  matrix("blk.0.ffn_down.weight", 13, kHidden, kMlp);
  add("output_norm.weight", {kHidden}, MatrixF32(14, 1, kHidden));
  if (variant.output) matrix("output.weight", 15, kVocab, kHidden);
  return builder;
}

absl::StatusOr<std::unique_ptr<GgufSource>> Open(const GgufBuilder& builder) {
  return GgufSource::Open(WriteFile("model.gguf", builder.Build()));
}

std::string ErrorOf(const GgufBuilder& builder) {
  const auto source = Open(builder);
  return source.ok() ? "no error" : std::string(source.status().message());
}

std::vector<float> Read(const WeightSource& source, TensorId id, int64_t row_begin, int64_t row_count) {
  std::vector<Half> bits(static_cast<size_t>(row_count * ShapeOf(source.config(), id).cols));
  const absl::Status status = source.ReadRows(id, row_begin, row_count, absl::MakeSpan(bits));
  EXPECT_TRUE(status.ok()) << status;
  std::vector<float> values;
  for (Half half : bits) values.push_back(kernels::HalfToFloat(half));
  return values;
}

// Reads a matrix whole and in two uneven pieces.
void ExpectMatrix(const WeightSource& source, TensorRole role, int tag) {
  const TensorShape shape = ShapeOf(source.config(), {role, 0});
  std::vector<float> expected;
  for (int r = 0; r < shape.rows; ++r) {
    for (int c = 0; c < shape.cols; ++c) expected.push_back(ValueOf(tag, r, c));
  }
  EXPECT_EQ(Read(source, {role, 0}, 0, shape.rows), expected) << "tag " << tag;
  const int64_t cut = shape.rows / 3;
  std::vector<float> pieces = Read(source, {role, 0}, 0, cut);
  for (float value : Read(source, {role, 0}, cut, shape.rows - cut)) pieces.push_back(value);
  EXPECT_EQ(pieces, expected) << "tag " << tag;
}

TEST(GgufSource, ReadsConfiguration) {
  const auto source = Open(SmallModel({}));
  ASSERT_TRUE(source.ok()) << source.status();
  const ModelConfig& config = (*source)->config();
  EXPECT_EQ(config.name, "Small");
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.num_layers, 1);
  EXPECT_EQ(config.hidden_size, kHidden);
  EXPECT_EQ(config.num_heads, kHeads);
  EXPECT_EQ(config.num_kv_heads, kKvHeads);
  EXPECT_EQ(config.head_dim, kHeadDim);
  EXPECT_EQ(config.mlp_size, kMlp);
  EXPECT_EQ(config.vocab_size, kVocab);
  EXPECT_EQ(config.context_length, 128);
  EXPECT_EQ(config.norm_eps, 1e-5f);
  EXPECT_EQ(config.rope_theta, 5000.0f);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_TRUE(config.tied_embedding);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2, 3, 4));
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.num_parameters(), 5 * 32 + 32 + 16 * 32 + 2 * 8 * 32 + 32 * 16 + 32 + 3 * 256 * 32 + 32);
}

TEST(GgufSource, LlamaRowPermutationIsUndone) {
  const auto source = Open(SmallModel({.bias = true}));
  ASSERT_TRUE(source.ok()) << source.status();
  ExpectMatrix(**source, TensorRole::kQuery, 3);
  ExpectMatrix(**source, TensorRole::kKey, 4);
  ExpectMatrix(**source, TensorRole::kValue, 5);
  std::vector<float> bias;
  for (int i = 0; i < kHeads * kHeadDim; ++i) bias.push_back(ValueOf(6, i, 0));
  EXPECT_EQ(Read(**source, {TensorRole::kQueryBias, 0}, 0, 1), bias);
}

TEST(GgufSource, Qwen2KeepsItsRowOrder) {
  const auto source = Open(SmallModel({.architecture = "qwen2", .bias = true, .output = true}));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->config().architecture, "qwen2");
  EXPECT_TRUE((*source)->config().qkv_bias);
  EXPECT_FALSE((*source)->config().tied_embedding);
  ExpectMatrix(**source, TensorRole::kQuery, 3);
  ExpectMatrix(**source, TensorRole::kKey, 4);
  ExpectMatrix(**source, TensorRole::kOutput, 15);
  std::vector<float> bias;
  for (int i = 0; i < kHeadDim; ++i) bias.push_back(ValueOf(7, i, 0));
  EXPECT_EQ(Read(**source, {TensorRole::kKeyBias, 0}, 0, 1), bias);
}

TEST(GgufSource, Qwen3HasNormsOfQueryAndKey) {
  GgufBuilder builder = SmallModel({.architecture = "qwen3"});
  builder.Tensor("blk.0.attn_q_norm.weight", {kHeadDim}, kF32.ggml_id, MatrixF32(16, 1, kHeadDim));
  EXPECT_THAT(ErrorOf(builder), HasSubstr("tensor blk.0.attn_k_norm.weight: missing"));
  builder.Tensor("blk.0.attn_k_norm.weight", {kHeadDim}, kF32.ggml_id, MatrixF32(17, 1, kHeadDim));
  const auto source = Open(builder);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->config().architecture, "qwen3");
  EXPECT_FALSE((*source)->config().qkv_bias);
  EXPECT_TRUE((*source)->config().qk_norm);
  ExpectMatrix(**source, TensorRole::kQuery, 3);
  ExpectMatrix(**source, TensorRole::kQueryNorm, 16);
  ExpectMatrix(**source, TensorRole::kKeyNorm, 17);
}

TEST(GgufSource, RotaryFrequenciesAreDividedByAFactorAndByATensor) {
  const auto divisors = [](const GgufBuilder& builder) {
    const auto source = Open(builder);
    EXPECT_TRUE(source.ok()) << source.status();
    return (*source)->config().rope_divisors;
  };
  EXPECT_THAT(divisors(SmallModel({})), ElementsAre());
  GgufBuilder builder = SmallModel({});
  builder.Tensor("rope_freqs.weight", {4}, kF32.ggml_id, BytesOf<float>({1.0f, 1.5f, 8.0f, 8.0f}));
  EXPECT_THAT(divisors(builder), ElementsAre(1.0, 1.5, 8.0, 8.0));
  builder.F32("llama.rope.scaling.factor", 2.0f);
  EXPECT_THAT(divisors(builder), ElementsAre(2.0, 3.0, 16.0, 16.0));
  builder.Text("llama.rope.scaling.type", "none");
  EXPECT_THAT(divisors(builder), ElementsAre(1.0, 1.5, 8.0, 8.0));
  GgufBuilder linear = SmallModel({});
  linear.Text("llama.rope.scaling.type", "linear").F32("llama.rope.scaling.factor", 4.0f);
  EXPECT_THAT(divisors(linear), ElementsAre(4.0, 4.0, 4.0, 4.0));
}

TEST(GgufSource, ReadsEveryOtherTensor) {
  const auto source = Open(SmallModel({}));
  ASSERT_TRUE(source.ok()) << source.status();
  ExpectMatrix(**source, TensorRole::kTokenEmbedding, 1);
  ExpectMatrix(**source, TensorRole::kAttentionNorm, 2);
  ExpectMatrix(**source, TensorRole::kAttentionOutput, 9);
  ExpectMatrix(**source, TensorRole::kMlpNorm, 10);
  ExpectMatrix(**source, TensorRole::kGate, 11);
  ExpectMatrix(**source, TensorRole::kUp, 12);
  ExpectMatrix(**source, TensorRole::kDown, 13);
  ExpectMatrix(**source, TensorRole::kFinalNorm, 14);
}

TEST(GgufSource, NamesWhatIsWrong) {
  EXPECT_THAT(ErrorOf(SmallModel({.skip = "blk.0.ffn_up.weight"})),
              HasSubstr("tensor blk.0.ffn_up.weight: missing"));
  EXPECT_THAT(ErrorOf(SmallModel({.skip = "token_embd.weight"})),
              HasSubstr("tensor token_embd.weight: missing"));
  GgufBuilder extra = SmallModel({});
  extra.Tensor("blk.0.attn_q_norm.weight", {kHeadDim}, kF32.ggml_id, std::string(4 * kHeadDim, '\0'));
  EXPECT_THAT(ErrorOf(extra), HasSubstr("tensor blk.0.attn_q_norm.weight: not part of a llama model"));
  GgufBuilder zero = SmallModel({});
  zero.Tensor("rope_freqs.weight", {4}, kF32.ggml_id, std::string(16, '\0'));
  EXPECT_THAT(ErrorOf(zero), HasSubstr("tensor rope_freqs.weight: number 0, 0, is not positive"));
  GgufBuilder half = SmallModel({});
  half.Tensor("rope_freqs.weight", {2}, kF32.ggml_id, std::string(8, '\0'));
  EXPECT_THAT(ErrorOf(half), HasSubstr("tensor rope_freqs.weight: not 4 numbers of type F32"));
  GgufBuilder shape = SmallModel({.skip = "blk.0.ffn_up.weight"});
  shape.Tensor("blk.0.ffn_up.weight", {kMlp, kHidden}, kF32.ggml_id, std::string(kMlp * kHidden * 4, '\0'));
  EXPECT_THAT(ErrorOf(shape), HasSubstr("tensor blk.0.ffn_up.weight: 32 x 256, expected 256 x 32"));
  GgufBuilder scaled = SmallModel({});
  scaled.Text("llama.rope.scaling.type", "yarn");
  EXPECT_THAT(ErrorOf(scaled), HasSubstr("llama.rope.scaling.type"));
  const auto with = [](const std::string& key, uint32_t value) {
    GgufBuilder builder = SmallModel({});
    return ErrorOf(builder.U32(key, value));
  };
  EXPECT_THAT(with("llama.expert_count", 8), HasSubstr("metadata llama.expert_count: experts"));
  EXPECT_EQ(with("llama.expert_count", 0), "no error");
  EXPECT_THAT(with("llama.attention.value_length", 4), HasSubstr("metadata llama.attention.value_length: "));
  EXPECT_THAT(with("llama.rope.dimension_count", 4), HasSubstr("metadata llama.rope.dimension_count: "));
  EXPECT_THAT(with("llama.attention.sliding_window", 64),
              HasSubstr("metadata llama.attention.sliding_window: "));
  EXPECT_EQ(with("llama.attention.sliding_window", 128), "no error");
  EXPECT_THAT(ErrorOf(SmallModel({.kv_heads = 3})),
              HasSubstr("model.gguf: metadata llama.attention.head_count_kv: 3 does not divide the 2 heads"));
  EXPECT_THAT(ErrorOf(GgufBuilder().Text("general.architecture", "mamba")),
              HasSubstr("general.architecture: \"mamba\""));
  EXPECT_THAT(ErrorOf(GgufBuilder()), HasSubstr("metadata general.architecture: missing"));
  GgufBuilder no_layers;
  no_layers.Text("general.architecture", "llama").Tensor("token_embd.weight", {1, 1}, kF32.ggml_id, "1234");
  EXPECT_THAT(ErrorOf(no_layers), HasSubstr("metadata llama.block_count: missing"));
}

// The same model in one file and in three, the first without tensors.
class SplitGguf : public testing::Test {
 protected:
  static GgufBuilder Part(GgufBuilder builder, uint32_t number, uint32_t count) {
    return builder.U32("split.no", number).U32("split.count", count).U32("split.tensors.count", 11);
  }
  static std::string Write(int number, const GgufBuilder& builder) {
    return WriteFile("m-0000" + std::to_string(number) + "-of-00003.gguf", builder.Build());
  }
  static std::string WriteAll() {
    const auto tensors = [](bool second) {
      GgufBuilder builder;
      int i = 0;
      const auto whole = GgufFile::Open(WriteFile("whole.gguf", SmallModel({}).Build()));
      for (const auto& [name, tensor] : (*whole)->tensors()) {
        if ((i++ % 2 == 1) != second) continue;
        std::vector<uint64_t> dimensions = {static_cast<uint64_t>(tensor.cols)};
        if (tensor.rows > 1) dimensions.push_back(static_cast<uint64_t>(tensor.rows));
        builder.Tensor(name, dimensions, kF32.ggml_id, std::string(tensor.data.begin(), tensor.data.end()));
      }
      return builder;
    };
    Write(2, Part(tensors(false), 1, 3));
    Write(3, Part(tensors(true), 2, 3));
    return Write(1, Part(SmallModel({.skip = "*"}), 0, 3));
  }
  static std::string ErrorOf(const std::string& path) {
    const auto source = GgufSource::Open(path);
    return source.ok() ? "no error" : std::string(source.status().message());
  }
};

TEST_F(SplitGguf, ReadsTheTensorsOfAllParts) {
  const auto source = GgufSource::Open(WriteAll());
  ASSERT_TRUE(source.ok()) << source.status();
  const auto whole = GgufSource::Open(WriteFile("whole.gguf", SmallModel({}).Build()));
  for (const TensorId id : TensorsOf((*source)->config())) {
    const int64_t rows = ShapeOf((*source)->config(), id).rows;
    EXPECT_EQ(Read(**source, id, 0, rows), Read(**whole, id, 0, rows));
  }
}

TEST_F(SplitGguf, SaysWhatToGiveAndWhatIsWrong) {
  const std::string first = WriteAll();
  std::string second = first;
  second.replace(second.find("00001"), 5, "00002");
  EXPECT_THAT(ErrorOf(second),
              HasSubstr("split.no: part 2 of a model in 3 files; give the first one, that ends in "
                        "-00001-of-00003.gguf"));
  EXPECT_THAT(
      ErrorOf(WriteFile("renamed.gguf", Part(SmallModel({}), 0, 3).Build())),
      HasSubstr(
          "split.count: part 1 of a model in 3 files, but its name does not end in -00001-of-00003.gguf"));
  Write(2, Part(GgufBuilder(), 2, 3));
  EXPECT_THAT(ErrorOf(first), HasSubstr("-00002-of-00003.gguf: metadata split.no: 2, expected 1"));
  Write(2, Part(GgufBuilder(), 1, 4));
  EXPECT_THAT(ErrorOf(first),
              HasSubstr("-00002-of-00003.gguf: metadata split.count: 4, where the first part has 3"));
  Write(2, Part(GgufBuilder(), 1, 3));
  EXPECT_THAT(ErrorOf(first), HasSubstr("split.tensors.count: 11, where the parts have 5"));
  Write(2, Part(SmallModel({}), 1, 3));
  EXPECT_THAT(ErrorOf(first),
              HasSubstr("-00003-of-00003.gguf: tensor blk.0.attn_norm.weight: another part has it too"));
  std::remove(second.c_str());
  EXPECT_THAT(ErrorOf(first), HasSubstr("-00002-of-00003.gguf: cannot open"));
}

TEST(GgufSource, OverflowNamesTensorAndElement) {
  GgufBuilder builder = SmallModel({.skip = "blk.0.ffn_up.weight"});
  std::vector<float> values(kMlp * kHidden, 1.0f);
  values[3 * kHidden + 7] = 1e6f;
  builder.Tensor("blk.0.ffn_up.weight", {kHidden, kMlp}, kF32.ggml_id, BytesOf(values));
  const auto source = Open(builder);
  ASSERT_TRUE(source.ok()) << source.status();
  std::vector<Half> out(2 * kHidden);
  EXPECT_TRUE((*source)->ReadRows({TensorRole::kUp, 0}, 0, 2, absl::MakeSpan(out)).ok());
  const absl::Status status = (*source)->ReadRows({TensorRole::kUp, 0}, 2, 2, absl::MakeSpan(out));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("model.gguf: tensor blk.0.ffn_up.weight: element 7 of row 3 does not fit fp16"));
}

// A scale that is infinite or not a number, wherever it stands in a block.
TEST(GgufSource, ScalesThatAreNotFiniteAreAnErrorThatNamesTheTensor) {
  const struct {
    uint32_t type;
    size_t block_elements, block_bytes;
    std::vector<size_t> scales;
  } kFormats[] = {{2, 32, 18, {0}},      {3, 32, 20, {0, 2}},    {6, 32, 22, {0}},
                  {7, 32, 24, {0, 2}},   {8, 32, 34, {0}},       {10, 256, 84, {80, 82}},
                  {11, 256, 110, {108}}, {12, 256, 144, {0, 2}}, {13, 256, 176, {0, 2}},
                  {14, 256, 210, {208}}};
  for (const auto& format : kFormats) {
    for (size_t scale : format.scales) {
      for (Half bits : {Half{0x7C00}, Half{0xFC00}, Half{0x7E01}}) {
        const size_t blocks = kMlp * kHidden / format.block_elements;
        std::string data(blocks * format.block_bytes, '\x01');
        for (size_t block = 0; block < blocks; ++block) {
          for (size_t at : format.scales) std::memcpy(&data[block * format.block_bytes + at], "\x00\x3c", 2);
        }
        std::memcpy(&data[format.block_bytes + scale], &bits, 2);
        GgufBuilder builder = SmallModel({.skip = "blk.0.ffn_down.weight"});
        builder.Tensor("blk.0.ffn_down.weight", {kMlp, kHidden}, format.type, data);
        const auto source = Open(builder);
        ASSERT_TRUE(source.ok()) << source.status();
        std::vector<Half> out(kMlp * kHidden);
        const absl::Status status =
            (*source)->ReadRows({TensorRole::kDown, 0}, 0, kHidden, absl::MakeSpan(out));
        const size_t element = format.block_elements;
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr("tensor blk.0.ffn_down.weight: element " + std::to_string(element % kMlp) +
                              " of row " + std::to_string(element / kMlp) + " does not fit fp16"))
            << format.type;
      }
    }
  }
}

// Weights that ReadRows took as whole leaves are not read again; others are when the fingerprint is asked
// for.
TEST(GgufSource, FingerprintDoesNotDependOnHowWeightsWereRead) {
  const std::string path = WriteFile("model.gguf", SmallModel({.bias = true}).Build());
  const auto fingerprint = [&](int64_t rows_at_once) {
    const auto source = GgufSource::Open(path).value();
    for (TensorId id : TensorsOf(source->config())) {
      const TensorShape shape = ShapeOf(source->config(), id);
      for (int64_t row = 0; rows_at_once > 0 && row < shape.rows; row += rows_at_once) {
        const int64_t count = std::min(rows_at_once, shape.rows - row);
        Read(*source, id, row, count);
      }
    }
    return source->Fingerprint();
  };
  const std::string unread = fingerprint(0);
  EXPECT_EQ(fingerprint(1), unread);
  EXPECT_EQ(fingerprint(7), unread);
  EXPECT_EQ(fingerprint(128), unread);
  EXPECT_EQ(fingerprint(1000), unread);
}

TEST(GgufSource, FingerprintFollowsWeightsAndConfiguration) {
  const auto fingerprint = [](const GgufBuilder& builder) {
    const auto source = Open(builder);
    return source.ok() ? (*source)->Fingerprint() : source.status().ToString();
  };
  const std::string base = fingerprint(SmallModel({}));
  EXPECT_EQ(base.size(), 64u);
  EXPECT_EQ(base, fingerprint(SmallModel({})));
  EXPECT_NE(base, fingerprint(SmallModel({.output = true})));
  GgufBuilder changed = SmallModel({.skip = "output_norm.weight"});
  changed.Tensor("output_norm.weight", {kHidden}, kF32.ggml_id, MatrixF32(15, 1, kHidden));
  EXPECT_NE(base, fingerprint(changed));
  GgufBuilder tokenizer = SmallModel({});
  tokenizer.Text("tokenizer.ggml.pre", "x");
  EXPECT_NE(base, fingerprint(tokenizer));
}

TEST(GgufSource, TruncationAtEveryLengthIsAnError) {
  const std::string whole = SmallModel({}).Build();
  for (size_t length = 1; length < whole.size(); length += 1 + length / 40) {
    const auto source = GgufSource::Open(WriteFile("model.gguf", whole.substr(0, length)));
    ASSERT_FALSE(source.ok()) << length;
    EXPECT_THAT(std::string(source.status().message()), HasSubstr("model.gguf: ")) << length;
  }
}

// Whatever bytes stand in header and metadata: an error in one line that names the file, or a model that can
// be read.
TEST(GgufSource, MutatedHeadersAreRefusedOrRead) {
  const std::string whole = SmallModel({.bias = true}).Build();
  const size_t header = whole.find("output_norm.weight") + 64;
  std::mt19937 random(11);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string mutated = whole;
    for (uint32_t count = 1 + random() % 4; count > 0; --count) {
      mutated[random() % header] = static_cast<char>(random() % 3 == 0 ? 0xFF : random());
    }
    const auto source = GgufSource::Open(WriteFile("model.gguf", mutated));
    if (!source.ok()) {
      ++refused;
      ASSERT_THAT(std::string(source.status().message()), HasSubstr("model.gguf: ")) << i;
      ASSERT_EQ(source.status().message().find('\n'), absl::string_view::npos) << i;
      continue;
    }
    for (TensorId id : TensorsOf((*source)->config())) {
      const TensorShape shape = ShapeOf((*source)->config(), id);
      std::vector<Half> out(static_cast<size_t>(shape.size()));
      (*source)->ReadRows(id, 0, shape.rows, absl::MakeSpan(out)).IgnoreError();
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace ridge::worker
