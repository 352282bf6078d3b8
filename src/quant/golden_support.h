// The golden folders (tests/golden), for tests that walk them.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "checkpoint/checkpoint.h"
#include "quant/test_support.h"

namespace nibble::quant {

inline const std::string kGolden = std::string(NIBBLE_SOURCE_DIR) + "/tests/golden/";

inline TensorLookup lookup_of(const checkpoint::Checkpoint& opened) {
  return {opened.tensors(), [&opened](std::string_view name) { return opened.find(name); }};
}

inline Result<std::unique_ptr<QuantizationConfig>> config_of(const checkpoint::Checkpoint& opened) {
  NIBBLE_ASSIGN(const QuantizationSource source,
                find_quantization(opened.config(), opened.hf_quant_config(),
                                  opened.quantize_config(), "quantize_config.json"));
  CheckpointFacts facts;
  facts.config = opened.config();
  facts.quantization = source.dictionary;
  facts.quantization_where = source.where;
  facts.method = source.method;
  facts.hf_quant_config = opened.hf_quant_config();
  facts.tensors = lookup_of(opened);
  facts.metadata = &opened.metadata();
  for (uint32_t i = 0; i < opened.file_count(); ++i) facts.files.push_back(opened.file_name(i));
  NIBBLE_ASSIGN(const Scheme* scheme, detect_scheme(facts, ""));
  return parse_scheme(*scheme, facts);
}

// The tensors that a method asks for, whole.
inline Result<RawWeights> load_whole(const checkpoint::Checkpoint& opened, const LinearLayer& layer,
                                     const LinearMethod& method) {
  RawWeights raw;
  for (const WeightSpec& spec : method.create_weights()) {
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
  return raw;
}

// The folders of one scheme that have expected weights.
inline std::vector<std::string> folders_of(const std::string& scheme) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(kGolden + scheme)) {
    if (std::filesystem::exists(entry.path() / "expected" / "weights_crc32.json")) {
      out.push_back(entry.path().string());
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

// The linear layers of a golden folder, with the sizes that its expected weights have.
inline std::vector<LinearLayer> layers_of(const std::string& folder) {
  std::ifstream file(folder + "/expected/weights_crc32.json");
  std::stringstream text;
  text << file.rdbuf();
  std::vector<LinearLayer> out;
  const base::Json all = json(text.str(), "weights_crc32.json");
  for (const auto& [module, entry] : all.as_object()) {
    const base::JsonArray& shape = entry.find("shape")->as_array();
    out.push_back({module, shape[0].as_int(), shape[1].as_int(), false, {}});
  }
  return out;
}

}  // namespace nibble::quant
