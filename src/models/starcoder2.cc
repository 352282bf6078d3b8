// StarCoder 2: LayerNorm with biases, biases everywhere, an MLP without a gate.
//
//   x += o(attention(rope(q(n1 x)), rope(k(n1 x)), v(n1 x)))
//   x += c_proj(gelu(c_fc(n2 x)))
#include "models/architecture.h"
#include "models/config.h"

namespace nibble::models {

using layers::Part;

Result<layers::DecoderSpec> starcoder2(const base::Json& config) {
  NIBBLE_ASSIGN(layers::DecoderSpec spec, read_common(config, {.norm_eps_key = "norm_epsilon",
                                                               .vocab = 49152,
                                                               .kv_heads = 2,
                                                               .max_positions = 4096,
                                                               .norm_eps = 1e-5,
                                                               .activation = "gelu_pytorch_tanh",
                                                               .tied = true}));
  NIBBLE_ASSIGN(const bool bias, config.get_bool_or("use_bias", true));
  spec.qkv_bias = bias;
  spec.o_bias = bias;
  spec.mlp_bias = bias;
  spec.norm = layers::NormKind::kLayer;
  spec.norm_bias = true;
  if (config.find_set("sliding_window") != nullptr) {
    NIBBLE_ASSIGN(const int64_t window, get_size_or(config, "sliding_window", 0));
    same_window(spec, window);
  }
  spec.names[Part::kGate].clear();
  spec.names[Part::kUp] = "model.layers.{}.mlp.c_fc";
  spec.names[Part::kDown] = "model.layers.{}.mlp.c_proj";
  return spec;
}

}  // namespace nibble::models
