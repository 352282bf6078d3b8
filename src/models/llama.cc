// Llama 2 and 3, SmolLM2, TinyLlama and their relatives: RMSNorm before attention and before a
// gated MLP, rotary positions, grouped-query attention.
//
//   x += o(attention(rope(q(n1 x)), rope(k(n1 x)), v(n1 x)))
//   x += down(silu(gate(n2 x)) * up(n2 x))
#include "models/architecture.h"
#include "models/config.h"

namespace nibble::models {

Result<layers::DecoderSpec> llama(const base::Json& config) {
  NIBBLE_ASSIGN(layers::DecoderSpec spec, read_common(config));
  NIBBLE_ASSIGN(bool attention_bias, config.get_bool_or("attention_bias", false));
  NIBBLE_ASSIGN(bool mlp_bias, config.get_bool_or("mlp_bias", false));
  spec.qkv_bias = attention_bias;
  spec.o_bias = attention_bias;
  spec.mlp_bias = mlp_bias;
  note_ignored(config, {"sliding_window", "layer_types"}, spec);
  return spec;
}

}  // namespace nibble::models
