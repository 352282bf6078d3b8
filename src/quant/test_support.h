// What the tests of schemes share: a checkpoint in memory, and a layer taken through the verbs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "quant/scheme.h"

namespace nibble::quant {

// Named tensors with their bytes. Keep it alive while views into it are used.
class TestCheckpoint {
 public:
  template <class T>
  void add(const std::string& name, tensor::DType dtype, tensor::Shape shape,
           const std::vector<T>& values) {
    std::string bytes(values.size() * sizeof(T), '\0');
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    add_bytes(name, dtype, std::move(shape), std::move(bytes));
  }
  void add_bytes(const std::string& name, tensor::DType dtype, tensor::Shape shape,
                 std::string bytes) {
    tensor::TensorInfo info;
    info.name = name;
    info.dtype = dtype;
    info.shape = std::move(shape);
    info.bytes = bytes.size();
    remove(name);
    infos_.push_back(std::move(info));
    bytes_[name] = std::move(bytes);
  }
  void remove(const std::string& name) {
    for (size_t i = 0; i < infos_.size(); ++i) {
      if (infos_[i].name == name) infos_.erase(infos_.begin() + static_cast<ptrdiff_t>(i));
    }
    bytes_.erase(name);
  }

  TensorLookup lookup() const {
    return {infos_, [this](std::string_view name) -> const tensor::TensorInfo* {
              for (const auto& info : infos_) {
                if (info.name == name) return &info;
              }
              return nullptr;
            }};
  }
  tensor::TensorView view(const std::string& name) const {
    const tensor::TensorInfo* info = lookup().find(name);
    const std::string& bytes = bytes_.at(name);
    return {info->dtype, info->shape, reinterpret_cast<const std::byte*>(bytes.data()),
            bytes.size()};
  }
  bool has(const std::string& name) const { return bytes_.count(name) != 0; }

  std::map<std::string, std::string, std::less<>> metadata;  // of the headers

 private:
  std::vector<tensor::TensorInfo> infos_;
  std::map<std::string, std::string> bytes_;
};

inline base::Json json(std::string_view text, std::string_view where = "config.json") {
  auto parsed = base::parse_json(text, where);
  EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error().message);
  return parsed ? *parsed : base::Json();
}

// The config of a checkpoint whose quantization dictionary is `dictionary` (JSON text).
inline Result<std::unique_ptr<QuantizationConfig>> parse_config(const TestCheckpoint& checkpoint,
                                                                std::string_view dictionary,
                                                                std::vector<std::string> files = {
                                                                    "model.safetensors"}) {
  const base::Json config =
      json("{\"quantization_config\": " + std::string(dictionary) + "}", "config.json");
  NIBBLE_ASSIGN(const QuantizationSource source, find_quantization(&config, nullptr, nullptr, ""));
  CheckpointFacts facts;
  facts.config = &config;
  facts.quantization = source.dictionary;
  facts.quantization_where = source.where;
  facts.method = source.method;
  facts.tensors = checkpoint.lookup();
  facts.metadata = &checkpoint.metadata;
  facts.files = std::move(files);
  NIBBLE_ASSIGN(const Scheme* scheme, detect_scheme(facts, ""));
  return parse_scheme(*scheme, facts);
}

// The tensors that a method asks for, whole, as the loader would hand them over. A missing required
// tensor and one of another type are errors in the loader's words, shortened.
inline Result<RawWeights> load_whole(const TestCheckpoint& checkpoint, const LinearLayer& layer,
                                     const LinearMethod& method) {
  RawWeights raw;
  for (const WeightSpec& spec : method.create_weights()) {
    const std::string name = layer.module + "." + spec.suffix;
    if (!checkpoint.has(name)) {
      if (spec.required) return fail(ErrorCode::kNotFound, "missing " + name);
      continue;
    }
    if (spec.slot == Slot::kUnused) continue;
    const tensor::TensorView view = checkpoint.view(name);
    if (std::find(spec.dtypes.begin(), spec.dtypes.end(), view.dtype) == spec.dtypes.end()) {
      return fail(ErrorCode::kCorrupt,
                  name + " has the type " + std::string(tensor::name(view.dtype)));
    }
    raw.set(spec.slot, view);
  }
  return raw;
}

inline Result<tensor::QuantizedWeight> load_layer(
    const TestCheckpoint& checkpoint, std::string_view dictionary, const LinearLayer& layer,
    std::vector<std::string> files = {"model.safetensors"}) {
  NIBBLE_ASSIGN(const auto config, parse_config(checkpoint, dictionary, std::move(files)));
  NIBBLE_ASSIGN(const auto method, config->linear_method(layer, checkpoint.lookup()));
  NIBBLE_ASSIGN(const RawWeights raw, load_whole(checkpoint, layer, *method));
  NIBBLE_ASSIGN(tensor::QuantizedWeight weight,
                method->process_weights_after_loading(layer.n, layer.k, raw));
  EXPECT_EQ(weight.format, method->weight_format());
  EXPECT_EQ(weight.activation, method->activation_format());
  return weight;
}

inline std::vector<float> dequantize(const tensor::QuantizedWeight& weight) {
  std::vector<float> out(static_cast<size_t>(weight.n * weight.k));
  for (int64_t n = 0; n < weight.n; ++n) dequantize_row(weight, n, out.data() + n * weight.k);
  return out;
}

template <class T>
std::string message(const Result<T>& result) {
  return result ? "no error" : result.error().message;
}

}  // namespace nibble::quant
