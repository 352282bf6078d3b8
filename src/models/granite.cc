// Granite 3 (dense): Llama with four multipliers.
//
//   x  = embedding_multiplier * embed(token)
//   s  = attention_multiplier * q . k             instead of 1 / sqrt(head_dim)
//   x += residual_multiplier * block(x)
//   logits = head(norm x) / logits_scaling
#include "models/architecture.h"
#include "models/config.h"

namespace nibble::models {

Result<layers::DecoderSpec> granite(const base::Json& config) {
  NIBBLE_ASSIGN(layers::DecoderSpec spec, read_common(config));
  NIBBLE_ASSIGN(const bool attention_bias, config.get_bool_or("attention_bias", false));
  NIBBLE_ASSIGN(const bool mlp_bias, config.get_bool_or("mlp_bias", false));
  spec.qkv_bias = attention_bias;
  spec.o_bias = attention_bias;
  spec.mlp_bias = mlp_bias;
  NIBBLE_ASSIGN(spec.embedding_scale, get_positive_or(config, "embedding_multiplier", 1));
  NIBBLE_ASSIGN(spec.attention_scale, get_positive_or(config, "attention_multiplier", 1));
  NIBBLE_ASSIGN(spec.residual_scale, get_positive_or(config, "residual_multiplier", 1));
  NIBBLE_ASSIGN(const float divisor, get_positive_or(config, "logits_scaling", 1));
  spec.logit_scale = 1 / divisor;
  return spec;
}

}  // namespace nibble::models
