// Gemma 1: Llama with norms that store w - 1, scaled embeddings and a gelu.
//
//   x  = sqrt(hidden) * embed(token)
//   x += o(attention(rope(q(n1 x)), rope(k(n1 x)), v(n1 x)))
//   x += down(gelu_tanh(gate(n2 x)) * up(n2 x))
#include "models/gemma.h"

#include <fmt/format.h>

#include <cmath>

#include "models/architecture.h"
#include "models/config.h"

namespace nibble::models {

using layers::Part;

Result<float> get_soft_cap(const base::Json& config, std::string_view key, float fallback) {
  if (config.find(key) != nullptr && config.find_set(key) == nullptr) return 0.0f;
  if (config.find(key) == nullptr) return fallback;
  return get_positive_or(config, key, fallback);
}

Result<void> be_gemma(const base::Json& config, layers::DecoderSpec& spec) {
  NIBBLE_ASSIGN(const bool both_ways, config.get_bool_or("use_bidirectional_attention", false));
  if (both_ways) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: use_bidirectional_attention: true is not supported; nibble runs "
                            "models that read from left to right",
                            config.where()));
  }
  NIBBLE_ASSIGN(const bool bias, config.get_bool_or("attention_bias", false));
  spec.qkv_bias = bias;
  spec.o_bias = bias;
  spec.norm_adds_one = true;
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.hidden));
  return {};
}

Result<void> be_gemma2(const base::Json& config, float cap, layers::DecoderSpec& spec) {
  NIBBLE_TRY(be_gemma(config, spec));
  NIBBLE_ASSIGN(const float scalar, get_positive_or(config, "query_pre_attn_scalar", 256));
  spec.attention_scale = 1.0f / std::sqrt(scalar);
  NIBBLE_ASSIGN(spec.logit_soft_cap, get_soft_cap(config, "final_logit_softcapping", cap));
  spec.names[Part::kPostAttentionNorm] = "model.layers.{}.post_attention_layernorm";
  spec.names[Part::kFfnNorm] = "model.layers.{}.pre_feedforward_layernorm";
  spec.names[Part::kPostFfnNorm] = "model.layers.{}.post_feedforward_layernorm";
  return {};
}

Result<layers::DecoderSpec> gemma(const base::Json& config) {
  NIBBLE_ASSIGN(layers::DecoderSpec spec, read_common(config, {.vocab = 256000,
                                                               .kv_heads = 16,
                                                               .head_dim = 256,
                                                               .heads = 16,
                                                               .max_positions = 8192,
                                                               .activation = "gelu_pytorch_tanh",
                                                               .tied = true}));
  // The first configs say "gelu" and mean the other one.
  if (spec.activation == kernels::Activation::kGelu) {
    spec.activation = kernels::Activation::kGeluTanh;
  }
  NIBBLE_TRY(be_gemma(config, spec));
  return spec;
}

}  // namespace nibble::models
