// What the tests of compressed-tensors checkpoints write: dictionaries, and codes that are packed
// as the tool packs them.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "quant/test_support.h"

namespace nibble::quant {

using tensor::DType;

inline const std::string kModule = "model.layers.0.mlp.up_proj";
inline const std::string kGroups = "config.json: quantization_config: config_groups: ";
inline const std::string kG = kGroups + "g: ";

// A dictionary with one group; `weights` and `inputs` are the members of its arguments.
inline std::string dictionary(const std::string& weights, const std::string& inputs = "",
                              const std::string& more = "",
                              const std::string& targets = "\"Linear\"") {
  return fmt::format(
      R"({{"quant_method": "compressed-tensors", {} "config_groups": {{"g": {{"targets": [{}],
          "weights": {{{}}}, "input_activations": {}}}}}}})",
      more, targets, weights, inputs.empty() ? "null" : "{" + inputs + "}");
}

inline const std::string kInt4 =
    R"("num_bits": 4, "type": "int", "strategy": "group", "group_size": 8)";
inline const std::string kInt8 = R"("num_bits": 8, "type": "int", "strategy": "channel")";
inline const std::string kFp8 = R"("num_bits": 8, "type": "float", "strategy": "tensor")";
inline const std::string kFp4 = R"("num_bits": 4, "type": "float", "strategy": "tensor_group",
                            "group_size": 16)";

inline LinearLayer layer(int64_t n, int64_t k, const std::string& module = kModule) {
  return {module, n, k, false, {}};
}

// Code (n * 5 + k * 3) % 2^bits, as the tool offsets and packs them.
inline int64_t code(int64_t n, int64_t k, int64_t bits) {
  return (n * 5 + k * 3) % (int64_t{1} << bits);
}

inline int64_t words_of(int64_t k, int64_t bits, bool dense) {
  const int64_t in_word = 32 / bits;
  return dense ? (k * bits + 31) / 32 : (k + in_word - 1) / in_word;
}

inline std::vector<int32_t> packed(int64_t n, int64_t k, int64_t bits, bool dense = true) {
  const int64_t in_word = 32 / bits;
  const int64_t words = words_of(k, bits, dense);
  std::vector<uint32_t> out(static_cast<size_t>(n * words));
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t i = 0; i < k; ++i) {
      const int64_t at = dense ? i * bits : i / in_word * 32 + i % in_word * bits;
      const auto c = static_cast<uint64_t>(code(row, i, bits)) << (at % 32);
      const auto word = static_cast<size_t>(row * words + at / 32);
      out[word] |= static_cast<uint32_t>(c);
      if (c >> 32 != 0) out[word + 1] |= static_cast<uint32_t>(c >> 32);
    }
  }
  return {out.begin(), out.end()};
}

inline TestCheckpoint with_packed(int64_t n, int64_t k, int64_t bits, int64_t groups,
                                  bool dense = true, const std::string& module = kModule) {
  TestCheckpoint out;
  out.add(module + ".weight_packed", DType::kS32, {n, words_of(k, bits, dense)},
          packed(n, k, bits, dense));
  std::vector<float> scale;
  for (int64_t i = 0; i < n * groups; ++i) scale.push_back(0.5f + static_cast<float>(i));
  out.add(module + ".weight_scale", DType::kF32, {n, groups}, scale);
  return out;
}

inline void expect_codes(const tensor::QuantizedWeight& w, int64_t bits, int64_t group) {
  const std::vector<float> got = dequantize(w);
  for (int64_t n = 0; n < w.n; ++n) {
    for (int64_t k = 0; k < w.k; ++k) {
      const auto q = static_cast<float>(code(n, k, bits) - (int64_t{1} << (bits - 1)));
      const int64_t groups = (w.k + group - 1) / group;
      const float scale = 0.5f + static_cast<float>(n * groups + k / group);
      ASSERT_EQ(got[static_cast<size_t>(n * w.k + k)], q * scale) << n << ", " << k;
    }
  }
}

}  // namespace nibble::quant
