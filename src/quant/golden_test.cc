// Every weight of the golden folders, bit for bit as the formats' own tools dequantize it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/number.h"
#include "checkpoint/safetensors.h"
#include "quant/gguf_blocks.h"
#include "quant/golden_support.h"

namespace nibble::quant {
namespace {

// CRC-32 as zlib computes it, of the bytes of `values`.
std::string crc32_of(const std::vector<float>& values) {
  uint32_t crc = 0xffffffffu;
  const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(float); ++i) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1)));
  }
  return fmt::format("{:08x}", crc ^ 0xffffffffu);
}

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

// The layer's weight, through the three verbs as load/ runs them.
Result<tensor::QuantizedWeight> load_layer(const checkpoint::Checkpoint& opened,
                                           const QuantizationConfig& config,
                                           const LinearLayer& layer) {
  NIBBLE_ASSIGN(const auto method, config.linear_method(layer, lookup_of(opened)));
  NIBBLE_ASSIGN(const RawWeights raw, load_whole(opened, layer, *method));
  NIBBLE_ASSIGN(auto weight, method->process_weights_after_loading(layer.n, layer.k, raw));
  EXPECT_EQ(weight.format, method->weight_format());
  EXPECT_EQ(weight.activation, method->activation_format());
  return weight;
}

void check_folder(const std::string& folder) {
  SCOPED_TRACE(folder);
  const auto opened = checkpoint::Checkpoint::open(folder);
  ASSERT_TRUE(opened) << message(opened);
  const auto config = config_of(*opened);
  ASSERT_TRUE(config) << message(config);
  EXPECT_EQ((*config)->warnings, std::vector<std::string>{});
  std::ifstream file(folder + "/expected/weights_crc32.json");
  std::stringstream text;
  text << file.rdbuf();
  const base::Json wanted = json(text.str(), "weights_crc32.json");
  std::map<std::string, std::vector<float>> values;  // small folders have only the CRCs
  if (const std::string whole = folder + "/expected/weights.safetensors";
      std::filesystem::exists(whole)) {
    values = read_values(whole);
  }
  ASSERT_FALSE(layers_of(folder).empty());
  for (const LinearLayer& layer : layers_of(folder)) {
    const auto weight = load_layer(*opened, **config, layer);
    ASSERT_TRUE(weight) << layer.module << ": " << message(weight);
    const std::vector<float> w = dequantize(*weight);
    EXPECT_EQ(crc32_of(w), wanted.find(layer.module)->find("crc32")->as_string()) << layer.module;
    const auto it = values.find(layer.module);
    if (it == values.end()) continue;
    ASSERT_EQ(w.size(), it->second.size());
    for (size_t i = 0; i < w.size(); ++i) {
      ASSERT_EQ(base::bits_from_f32(w[i]), base::bits_from_f32(it->second[i]))
          << layer.module << " row " << i / static_cast<size_t>(layer.k) << " input "
          << i % static_cast<size_t>(layer.k);
    }
  }
}

TEST(golden, every_gptq_folder_dequantizes_as_gptqmodel_does) {
  const auto folders = folders_of("gptq");
  EXPECT_GE(folders.size(), 28u);
  for (const std::string& folder : folders) check_folder(folder);
}

TEST(golden, every_awq_folder_dequantizes_as_autoawq_does) {
  const auto folders = folders_of("awq");
  EXPECT_GE(folders.size(), 10u);
  for (const std::string& folder : folders) check_folder(folder);
}

TEST(golden, every_fp8_folder_dequantizes_as_its_formula_says) {
  const auto folders = folders_of("fp8");
  EXPECT_GE(folders.size(), 13u);
  for (const std::string& folder : folders) check_folder(folder);
}

TEST(golden, folders_of_codes_with_scales_dequantize_as_their_formulas_say) {
  for (const auto& [scheme, count] : {std::pair<const char*, size_t>{"petit_nvfp4", 1},
                                      {"mxfp4", 2},
                                      {"mxfp8", 2},
                                      {"fbgemm_fp8", 1},
                                      {"w8a8_fp8", 2},
                                      {"w8a8_int8", 1},
                                      {"blockwise_int8", 1},
                                      {"qoq", 3}}) {
    const auto folders = folders_of(scheme);
    EXPECT_GE(folders.size(), count) << scheme;
    for (const std::string& folder : folders) check_folder(folder);
  }
}

TEST(golden, every_torchao_folder_dequantizes_as_torchao_does) {
  const auto folders = folders_of("torchao");
  EXPECT_GE(folders.size(), 5u);
  for (const std::string& folder : folders) check_folder(folder);
}

TEST(golden, every_modelopt_folder_dequantizes_as_modelopt_does) {
  const auto folders = folders_of("modelopt");
  EXPECT_GE(folders.size(), 15u);
  for (const std::string& folder : folders) check_folder(folder);
}

TEST(golden, every_bitsandbytes_folder_dequantizes_as_bitsandbytes_does) {
  const auto folders = folders_of("bitsandbytes");
  EXPECT_GE(folders.size(), 9u);
  for (const std::string& folder : folders) check_folder(folder);
}

TEST(golden, every_auto_round_folder_dequantizes_as_its_layout_says) {
  const auto folders = folders_of("auto_round");
  EXPECT_GE(folders.size(), 11u);
  for (const std::string& folder : folders) check_folder(folder);
}

TEST(golden, every_hqq_folder_dequantizes_as_hqq_does) {
  const auto folders = folders_of("hqq");
  EXPECT_GE(folders.size(), 7u);
  for (const std::string& folder : folders) check_folder(folder);
}

TEST(golden, every_bitnet_folder_dequantizes_as_transformers_does) {
  const auto folders = folders_of("bitnet");
  EXPECT_GE(folders.size(), 3u);
  for (const std::string& folder : folders) check_folder(folder);
}

TEST(golden, every_eetq_folder_dequantizes_as_eetq_quantized_it) {
  const auto folders = folders_of("eetq");
  EXPECT_GE(folders.size(), 1u);
  for (const std::string& folder : folders) check_folder(folder);
}

TEST(golden, every_compressed_tensors_folder_dequantizes_as_compressed_tensors_does) {
  const auto folders = folders_of("compressed_tensors");
  EXPECT_GE(folders.size(), 32u);
  for (const std::string& folder : folders) check_folder(folder);
}

TEST(golden, every_quark_folder_dequantizes_as_quark_does) {
  const auto folders = folders_of("quark");
  EXPECT_GE(folders.size(), 12u);
  for (const std::string& folder : folders) check_folder(folder);
}

}  // namespace
}  // namespace nibble::quant
