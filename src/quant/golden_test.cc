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

TensorLookup lookup_of(const checkpoint::Checkpoint& opened) {
  return {opened.tensors(), [&opened](std::string_view name) { return opened.find(name); }};
}

Result<std::unique_ptr<QuantizationConfig>> config_of(const checkpoint::Checkpoint& opened) {
  NIBBLE_ASSIGN(const QuantizationSource source,
                find_quantization(opened.config(), opened.hf_quant_config(),
                                  opened.quantize_config(), "quantize_config.json"));
  CheckpointFacts facts;
  facts.config = opened.config();
  facts.quantization = source.dictionary;
  facts.quantization_where = source.where;
  facts.method = source.method;
  facts.tensors = lookup_of(opened);
  NIBBLE_ASSIGN(const Scheme* scheme, detect_scheme(facts, ""));
  return scheme->parse(facts);
}

// The layer's weight, through the three verbs as load/ runs them.
Result<tensor::QuantizedWeight> load_layer(const checkpoint::Checkpoint& opened,
                                           const QuantizationConfig& config,
                                           const LinearLayer& layer) {
  NIBBLE_ASSIGN(const auto method, config.linear_method(layer, lookup_of(opened)));
  RawWeights raw;
  for (const WeightSpec& spec : method->create_weights()) {
    const std::string name = layer.module + "." + spec.suffix;
    const tensor::TensorInfo* info = opened.find(name);
    if (info == nullptr) {
      if (spec.required) return fail(ErrorCode::kNotFound, "missing " + name);
      continue;
    }
    if (spec.slot == Slot::kUnused) continue;
    NIBBLE_ASSIGN(tensor::TensorView view, opened.view(*info));
    raw.set(spec.slot, view);
  }
  NIBBLE_ASSIGN(auto weight, method->process_weights_after_loading(layer.n, layer.k, raw));
  EXPECT_EQ(weight.format, method->weight_format());
  EXPECT_EQ(weight.activation, method->activation_format());
  return weight;
}

std::vector<std::string> folders_of(const std::string& scheme) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(kGolden + scheme)) {
    if (std::filesystem::exists(entry.path() / "expected" / "weights_crc32.json")) {
      out.push_back(entry.path().string());
    }
  }
  std::sort(out.begin(), out.end());
  return out;
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
  const auto values = read_values(folder + "/expected/weights.safetensors");
  ASSERT_FALSE(wanted.as_object().empty());
  for (const auto& [module, entry] : wanted.as_object()) {
    const base::JsonArray& shape = entry.find("shape")->as_array();
    const LinearLayer layer{module, shape[0].as_int(), shape[1].as_int(), false, {}};
    const auto weight = load_layer(*opened, **config, layer);
    ASSERT_TRUE(weight) << module << ": " << message(weight);
    const std::vector<float> w = dequantize(*weight);
    if (const auto it = values.find(module); it != values.end()) {
      for (size_t i = 0; i < w.size(); ++i) {
        ASSERT_EQ(base::bits_from_f32(w[i]), base::bits_from_f32(it->second[i]))
            << module << " row " << i / static_cast<size_t>(layer.k) << " input "
            << i % static_cast<size_t>(layer.k);
      }
    }
    EXPECT_EQ(crc32_of(w), entry.find("crc32")->as_string()) << module;
  }
}

TEST(golden, every_gptq_folder_dequantizes_as_gptqmodel_does) {
  const auto folders = folders_of("gptq");
  EXPECT_GE(folders.size(), 28u);
  for (const std::string& folder : folders) check_folder(folder);
}

TEST(golden, every_awq_folder_dequantizes_as_autoawq_does) {
  const auto folders = folders_of("awq");
  EXPECT_GE(folders.size(), 9u);
  for (const std::string& folder : folders) check_folder(folder);
}

TEST(golden, every_fp8_folder_dequantizes_as_its_formula_says) {
  const auto folders = folders_of("fp8");
  EXPECT_GE(folders.size(), 13u);
  for (const std::string& folder : folders) check_folder(folder);
}

}  // namespace
}  // namespace nibble::quant
