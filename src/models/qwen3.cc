// Qwen 3 (dense): Llama with an RMSNorm on every head of q and k.
//
//   q = rope(q_norm(q(n1 x)))      k = rope(k_norm(k(n1 x)))
#include "models/architecture.h"
#include "models/config.h"
#include "models/qwen.h"

namespace nibble::models {

using layers::Part;

Result<layers::DecoderSpec> qwen3(const base::Json& config) {
  NIBBLE_ASSIGN(layers::DecoderSpec spec,
                read_common(config, {.kv_heads = 32, .head_dim = 128, .max_positions = 32768}));
  NIBBLE_ASSIGN(const bool bias, config.get_bool_or("attention_bias", false));
  spec.qkv_bias = bias;
  spec.o_bias = bias;
  spec.names[Part::kQNorm] = "model.layers.{}.self_attn.q_norm";
  spec.names[Part::kKNorm] = "model.layers.{}.self_attn.k_norm";
  NIBBLE_TRY(read_qwen_windows(config, spec));
  return spec;
}

}  // namespace nibble::models
