// Reading the keys of config.json that most decoder families share, with their checks.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string_view>

#include "base/json.h"
#include "layers/decoder.h"
#include "nibble/result.h"

namespace nibble::models {

// How a family spells the shared keys, and what its class in transformers takes for those that
// config.json leaves out (published configs leave out what equals the default).
struct Family {
  std::string_view kv_heads_key = "num_key_value_heads";  // "": as many as query heads
  std::string_view ffn_key = "intermediate_size";
  std::string_view activation_key = "hidden_act";
  std::string_view norm_eps_key = "rms_norm_eps";
  std::string_view theta_key = "rope_theta";
  std::string_view partial_key = "partial_rotary_factor";
  // Most families turn whole heads and have no use for the partial key.
  bool partial_rotary = false;
  bool rotary = true;             // false: no rope keys are read (learned positions)
  bool yarn_is_longrope = false;  // its first configs called longrope so

  int64_t vocab = 0;     // 0: the key is required; so with the following
  int64_t kv_heads = 0;  // 0: as many as there are query heads
  int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  int64_t heads = 0;
  int64_t max_positions = 2048;
  int64_t original_positions = 0;  // not 0: original_max_position_embeddings stands at the top
  double norm_eps = 1e-6;
  double theta = 10000.0;
  double partial = 1.0;
  std::string_view activation = "silu";
  bool tied = false;
};

// hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim,
// intermediate_size, vocab_size, rms_norm_eps, hidden_act, tie_word_embeddings,
// max_position_embeddings and the rope keys; module names are those of Llama.
Result<layers::DecoderSpec> read_common(const base::Json& config, const Family& family = {});

// The rope of `parameters` (rope_scaling's or rope_parameters' keys; null: none) for spec.head_dim.
// What stands in neither `parameters` nor, beside them, in `config`, is the family's default.
Result<kernels::RopeConfig> read_rope(const base::Json& config, const base::Json* parameters,
                                      const Family& family, layers::DecoderSpec& spec);

// One of the shared keys of positive size, or `fallback` when it is absent.
Result<int64_t> get_size_or(const base::Json& config, std::string_view key, int64_t fallback);
Result<float> get_positive_or(const base::Json& config, std::string_view key, double fallback);

// The object `key` of `parent`; an empty one when it is absent.
Result<base::Json> object_or_empty(const base::Json& parent, std::string_view key);

// Every layer sees the same `window` tokens (0: all).
void same_window(layers::DecoderSpec& spec, int64_t window);

// layer_types -> spec.windows; without that key every layer i for which `slides(i)`.
Result<void> read_layer_types(const base::Json& config, layers::DecoderSpec& spec, int64_t window,
                              const std::function<bool(int64_t)>& slides);

// Notes for keys that stand in config.json and that a model of this kind does not read.
void note_ignored(const base::Json& config, std::initializer_list<std::string_view> keys,
                  layers::DecoderSpec& spec);

}  // namespace nibble::models
