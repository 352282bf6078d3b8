// Gemma 3: Gemma 2 with norms on the heads of q and k instead of soft caps, five layers with a
// sliding window for each one without, and a rope of their own for those with.
#include "models/architecture.h"
#include "models/config.h"
#include "models/gemma.h"

namespace nibble::models {

using base::Json;
using layers::Part;

namespace {

// rope_parameters has an object for each kind of layer; before transformers 5 there were
// rope_theta and rope_scaling for the full ones, rope_local_base_freq for the others.
Result<void> read_ropes(const Json& config, layers::DecoderSpec& spec) {
  NIBBLE_ASSIGN(const Json parameters, object_or_empty(config, "rope_parameters"));
  NIBBLE_ASSIGN(Json full, object_or_empty(parameters, "full_attention"));
  NIBBLE_ASSIGN(const Json sliding, object_or_empty(parameters, "sliding_attention"));
  NIBBLE_ASSIGN(const Json scaling, object_or_empty(config, "rope_scaling"));
  const std::string where = scaling.as_object().empty() ? full.where() : scaling.where();
  for (const char* key : {"rope_type", "type", "rope_theta", "factor", "attention_factor",
                          "original_max_position_embeddings", "beta_fast", "beta_slow",
                          "low_freq_factor", "high_freq_factor"}) {
    if (const Json* value = scaling.find_set(key); value != nullptr) full.set(key, *value);
  }
  full.set_where(where);
  NIBBLE_ASSIGN(spec.rope, read_rope(config, &full, {.theta = 1e6}, spec));
  NIBBLE_ASSIGN(spec.window_rope,
                read_rope(config, &sliding, {.theta_key = "rope_local_base_freq"}, spec));
  spec.context = spec.max_positions;  // here it is the length after scaling
  return {};
}

}  // namespace

Result<layers::DecoderSpec> gemma3(const Json& config) {
  NIBBLE_ASSIGN(layers::DecoderSpec spec,
                read_common(config, {.activation_key = "hidden_activation",
                                     .rotary = false,
                                     .vocab = 262208,
                                     .kv_heads = 4,
                                     .head_dim = 256,
                                     .heads = 8,
                                     .max_positions = 131072,
                                     .activation = "gelu_pytorch_tanh",
                                     .tied = true}));
  NIBBLE_TRY(be_gemma2(config, 0, spec));
  note_ignored(config, {"attn_logit_softcapping"}, spec);
  spec.names[Part::kQNorm] = "model.layers.{}.self_attn.q_norm";
  spec.names[Part::kKNorm] = "model.layers.{}.self_attn.k_norm";
  NIBBLE_ASSIGN(const int64_t window, get_size_or(config, "sliding_window", 4096));
  NIBBLE_ASSIGN(const int64_t pattern, get_size_or(config, "sliding_window_pattern", 6));
  NIBBLE_TRY(read_layer_types(config, spec, window,
                              [pattern](int64_t layer) { return (layer + 1) % pattern != 0; }));
  spec.rotary = true;
  NIBBLE_TRY(read_ropes(config, spec));
  return spec;
}

}  // namespace nibble::models
