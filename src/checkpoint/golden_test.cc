// Files written by the formats' own tools (tools/golden/make_checkpoint_samples.py,
// make_torchao_bins.py).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"

namespace nibble::checkpoint {
namespace {

std::string golden(std::string_view name) {
  return fmt::format("{}/tests/golden/checkpoint/{}", NIBBLE_SOURCE_DIR, name);
}

// The script numbers its tensors and fills number t with the bytes t, t + 1, ...
void expect_counted(const Checkpoint& c, std::string_view name, int start, uint64_t bytes,
                    int modulus = 256) {
  const tensor::TensorInfo* info = c.find(name);
  ASSERT_NE(info, nullptr) << name;
  EXPECT_EQ(info->bytes, bytes) << name;
  const auto view = c.view(*info);
  ASSERT_TRUE(view) << view.error().message;
  for (uint64_t i = 0; i < bytes; ++i) {
    const int want = (start + static_cast<int>(i)) % 256 % modulus;
    ASSERT_EQ(static_cast<int>(view->data[i]), want) << name << " at " << i;
  }
  c.drop(*info);
}

class Golden : public testing::TestWithParam<bool> {
 protected:
  static Result<Checkpoint> open(std::string_view name) {
    return Checkpoint::open(golden(name), {.mmap = GetParam()});
  }
};
INSTANTIATE_TEST_SUITE_P(golden, Golden, testing::Bool(),
                         [](const auto& row) { return row.param ? "mapped" : "read"; });

TEST_P(Golden, every_dtype_that_torch_stores) {
  const auto c = open("dtypes");
  ASSERT_TRUE(c) << c.error().message;
  // In the order of the script's table.
  const std::pair<const char*, int> types[] = {
      {"BOOL", 8},        {"U8", 8},      {"I8", 8},          {"U16", 16},    {"I16", 16},
      {"U32", 32},        {"I32", 32},    {"U64", 64},        {"I64", 64},    {"F16", 16},
      {"BF16", 16},       {"F32", 32},    {"F64", 64},        {"C64", 64},    {"F8_E4M3", 8},
      {"F8_E4M3FNUZ", 8}, {"F8_E5M2", 8}, {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8}, {"F4", 4}};
  int t = 0;
  for (const auto& [name, bits] : types) {
    const int modulus = t == 0 ? 2 : 256;  // bools
    expect_counted(*c, name, t++, static_cast<uint64_t>(bits), modulus);
    EXPECT_EQ(c->find(name)->dtype, *dtype_from_safetensors(name));
    EXPECT_EQ(c->find(name)->shape, (tensor::Shape{2, 4})) << name;
  }
  EXPECT_EQ(c->find("scalar")->shape, tensor::Shape{});
  EXPECT_EQ(c->find("nothing")->shape, (tensor::Shape{3, 0}));
  EXPECT_TRUE(c->view(*c->find("nothing")));
  EXPECT_EQ(c->tensors().size(), 22u);
  EXPECT_EQ(c->metadata().find("format")->second, "pt");
}

TEST_P(Golden, shards_of_huggingface_hub) {
  const auto c = open("sharded");
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->file_count(), 4u);
  EXPECT_TRUE(c->warnings().empty());
  EXPECT_TRUE(c->notes().empty());
  for (int t = 0; t < 7; ++t) {
    expect_counted(*c, fmt::format("model.layers.{}.weight", t), t, 128);
  }
}

void expect_values(const GgufMetadata& m) {
  EXPECT_EQ(m.entries()[0].key, "general.architecture");
  EXPECT_EQ(*m.get_int("t.u8"), 200);
  EXPECT_EQ(*m.get_int("t.s8"), -3);
  EXPECT_EQ(*m.get_int("t.u16"), 65535);
  EXPECT_EQ(*m.get_int("t.s16"), -300);
  EXPECT_EQ(*m.get_int("t.u32"), 4'000'000'000);
  EXPECT_EQ(*m.get_int("t.s32"), -7);
  EXPECT_EQ(*m.get_double("t.f32"), 0.5);
  EXPECT_EQ(*m.get_uint("t.u64"), UINT64_MAX);
  EXPECT_EQ(*m.get_int("t.s64"), INT64_MIN);
  EXPECT_EQ(*m.get_double("t.f64"), 1e300);
  EXPECT_TRUE(*m.get_bool("t.bool"));
  EXPECT_EQ(*m.get_string("t.string"), "caf\u00e9");
  EXPECT_EQ(*m.get_strings("t.strings"), (std::vector<std::string_view>{"a", "", "\u4e2d"}));
  EXPECT_EQ(*m.get_ints("t.ints"), (std::vector<int64_t>{-1, 2, 3}));
  EXPECT_EQ(*m.get_floats("t.floats"), (std::vector<float>{0.5f, -2.0f}));
  EXPECT_EQ(*m.get_bools("t.bools"), (std::vector<bool>{true, false}));
}

TEST_P(Golden, every_tensor_type_of_gguf) {
  const auto c = open("gguf/types.gguf");
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->kind(), CheckpointKind::kGguf);
  EXPECT_EQ(c->gguf_version(), 3u);
  EXPECT_EQ(c->config(), nullptr);
  expect_values(*c->gguf());
  EXPECT_EQ(c->tensors().size(), 32u);
  EXPECT_TRUE(c->warnings().empty());
  int t = 0;
  for (const tensor::TensorInfo& info : c->tensors()) {  // the file's order is the script's
    EXPECT_EQ(info.shape, (tensor::Shape{2, 256})) << info.name;
    expect_counted(*c, info.name, t++, *tensor::byte_count(info.dtype, {2, 256}));
  }
}

TEST_P(Golden, an_alignment_other_than_32_and_reversed_shapes) {
  const auto c = open("gguf/aligned.gguf");
  ASSERT_TRUE(c) << c.error().message;
  expect_counted(*c, "a", 0, 20);
  expect_counted(*c, "b", 1, 24);
  EXPECT_EQ(c->find("b")->shape, (tensor::Shape{1, 2, 3}));
  EXPECT_EQ(c->find("b")->offset % 128, 0u);
}

TEST_P(Golden, a_split_gguf_opens_by_its_folder_and_by_any_of_its_files) {
  for (const char* path : {"split", "split/m-00001-of-00003.gguf", "split/m-00003-of-00003.gguf"}) {
    const auto c = open(path);
    ASSERT_TRUE(c) << c.error().message;
    EXPECT_EQ(c->file_count(), 3u);
    EXPECT_EQ(c->describe(*c->find("t4")), "m-00003-of-00003.gguf: t4");
    expect_values(*c->gguf());
    for (int t = 0; t < 5; ++t) expect_counted(*c, fmt::format("t{}", t), t, 64);
  }
}

std::string hex(const tensor::TensorView& view) {
  std::string out;
  for (uint64_t i = 0; i < view.bytes; ++i) {
    out += fmt::format("{:02x}", static_cast<unsigned>(view.data[i]));
  }
  return out;
}

// expected.json: every tensor with its bytes, every tensor subclass as JSON.
void expect_torchao(const Checkpoint& c, std::string_view folder) {
  using tensor::DType;
  const std::map<std::string, DType> types = {
      {"int8", DType::kS8},           {"uint8", DType::kU8},    {"int32", DType::kS32},
      {"int64", DType::kS64},         {"float32", DType::kF32}, {"bfloat16", DType::kBF16},
      {"float8_e4m3fn", DType::kE4M3}};
  const auto text = c.read_small_file("expected.json");
  ASSERT_TRUE(text) << text.error().message;
  const auto expected = base::parse_json(*text, folder);
  ASSERT_TRUE(expected) << expected.error().message;
  const base::JsonObject& tensors = expected->find("tensors")->as_object();
  EXPECT_EQ(c.tensors().size(), tensors.size());
  for (const auto& [name, wanted] : tensors) {
    const tensor::TensorInfo* info = c.find(name);
    ASSERT_NE(info, nullptr) << name;
    EXPECT_EQ(info->dtype, types.at(*wanted.get_string("dtype"))) << name;
    tensor::Shape shape;
    for (const base::Json& n : wanted.find("shape")->as_array()) shape.push_back(n.as_int());
    EXPECT_EQ(info->shape, shape) << name;
    const auto view = c.view(*info);
    ASSERT_TRUE(view) << view.error().message;
    EXPECT_EQ(hex(*view), *wanted.get_string("hex")) << name;
  }
  const base::JsonObject& metadata = expected->find("metadata")->as_object();
  EXPECT_EQ(c.metadata().size(), metadata.size());
  for (const auto& [name, wanted] : metadata) {
    ASSERT_EQ(c.metadata().count(name), 1u) << name;
    EXPECT_EQ(c.metadata().at(name), wanted.dump()) << name;
  }
  EXPECT_TRUE(c.warnings().empty());
}

TEST_P(Golden, tensor_subclasses_of_torchao_new_and_old) {
  for (const char* folder : {"torchao", "torchao_old"}) {
    const auto c = open(folder);
    ASSERT_TRUE(c) << c.error().message;
    expect_torchao(*c, folder);
  }
}

}  // namespace
}  // namespace nibble::checkpoint
