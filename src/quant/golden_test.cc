// Every weight of the golden folders, bit for bit as the formats' own tools dequantize it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/number.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "quant/gguf_blocks.h"
#include "quant/test_support.h"

namespace nibble::quant {
namespace {

const std::string kGolden = std::string(NIBBLE_SOURCE_DIR) + "/tests/golden/";

// The tensors of one safetensors file of f32 values, by name.
std::map<std::string, std::vector<float>> read_values(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  const std::string bytes = text.str();
  std::map<std::string, std::vector<float>> out;
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  const auto head = checkpoint::safetensors_head_bytes({data, std::min<size_t>(bytes.size(), 512)},
                                                       bytes.size(), path);
  EXPECT_TRUE(head) << message(head);
  if (!head) return out;
  const auto header = checkpoint::parse_safetensors_header({data, *head}, bytes.size(), path);
  EXPECT_TRUE(header) << message(header);
  if (!header) return out;
  for (const tensor::TensorInfo& info : header->tensors) {
    std::vector<float>& values = out[info.name];
    values.resize(info.bytes / sizeof(float));
    std::memcpy(values.data(), data + info.offset, info.bytes);
  }
  return out;
}

TEST(golden, every_gguf_type_dequantizes_as_the_gguf_package_does) {
  const auto opened = checkpoint::Checkpoint::open(kGolden + "gguf/all_types.gguf");
  ASSERT_TRUE(opened) << message(opened);
  const auto expected = read_values(kGolden + "gguf/all_types.expected.safetensors");
  int seen = 0;
  for (const tensor::TensorInfo& info : opened->tensors()) {
    ASSERT_TRUE(gguf_readable(info.dtype)) << info.name;
    const auto view = opened->view(info);
    ASSERT_TRUE(view) << message(view);
    const auto weight = gguf_to_canonical(info.dtype, info.shape[0], info.shape[1], *view);
    ASSERT_TRUE(weight) << info.name << ": " << message(weight);
    const std::vector<float> values = dequantize(*weight);
    const std::vector<float>& wanted = expected.at(info.name);
    ASSERT_EQ(values.size(), wanted.size()) << info.name;
    EXPECT_EQ(std::memcmp(values.data(), wanted.data(), values.size() * sizeof(float)), 0)
        << info.name;
    ++seen;
  }
  EXPECT_EQ(static_cast<size_t>(seen), expected.size());
}

}  // namespace
}  // namespace nibble::quant
