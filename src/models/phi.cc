// Phi 1, 1.5 and 2: attention and MLP side by side behind one LayerNorm, half of each head turned,
// biases everywhere, the head's included.
//
//   x += dense(attention(rope(q(n x)), rope(k(n x)), v(n x))) + fc2(gelu(fc1(n x)))
#include <fmt/format.h>

#include "models/architecture.h"
#include "models/config.h"

namespace nibble::models {

using layers::Part;

Result<layers::DecoderSpec> phi(const base::Json& config) {
  NIBBLE_ASSIGN(layers::DecoderSpec spec, read_common(config, {.norm_eps_key = "layer_norm_eps",
                                                               .partial_rotary = true,
                                                               .vocab = 51200,
                                                               .norm_eps = 1e-5,
                                                               .partial = 0.5,
                                                               .activation = "gelu_new"}));
  spec.norm = layers::NormKind::kLayer;
  spec.norm_bias = true;
  spec.parallel = true;
  spec.qkv_bias = spec.o_bias = spec.mlp_bias = spec.head_bias = true;
  spec.names[Part::kFfnNorm].clear();
  spec.names[Part::kGate].clear();
  spec.names[Part::kO] = "model.layers.{}.self_attn.dense";
  spec.names[Part::kUp] = "model.layers.{}.mlp.fc1";
  spec.names[Part::kDown] = "model.layers.{}.mlp.fc2";
  spec.names[Part::kFinalNorm] = "model.final_layernorm";
  NIBBLE_ASSIGN(const bool qk_norm, config.get_bool_or("qk_layernorm", false));
  if (qk_norm) {
    spec.names[Part::kQNorm] = "model.layers.{}.self_attn.q_layernorm";
    spec.names[Part::kKNorm] = "model.layers.{}.self_attn.k_layernorm";
  }
  return spec;
}

}  // namespace nibble::models
