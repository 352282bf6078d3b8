// OLMo 2: blocks read the residual stream as it is and are normalized on their way out; q and k
// are normalized over all heads at once.
//
//   x += n1(o(attention(rope(q_norm(q x)), rope(k_norm(k x)), v x)))
//   x += n2(down(silu(gate x) * up x))
#include "models/architecture.h"
#include "models/config.h"

namespace nibble::models {

using layers::Part;

Result<layers::DecoderSpec> olmo2(const base::Json& config) {
  NIBBLE_ASSIGN(layers::DecoderSpec spec, read_common(config, {.vocab = 50304, .norm_eps = 1e-5}));
  NIBBLE_ASSIGN(const bool bias, config.get_bool_or("attention_bias", false));
  spec.qkv_bias = bias;
  spec.o_bias = bias;
  spec.qk_norm_whole_row = true;
  spec.names[Part::kAttentionNorm].clear();
  spec.names[Part::kFfnNorm].clear();
  spec.names[Part::kQNorm] = "model.layers.{}.self_attn.q_norm";
  spec.names[Part::kKNorm] = "model.layers.{}.self_attn.k_norm";
  spec.names[Part::kPostAttentionNorm] = "model.layers.{}.post_attention_layernorm";
  spec.names[Part::kPostFfnNorm] = "model.layers.{}.post_feedforward_layernorm";
  return spec;
}

}  // namespace nibble::models
