// OPT: LayerNorm with biases, learned positions, biases everywhere, an MLP with ReLU and no gate.
//
//   x  = embed(token) + positions[i + 2]
//   x += out_proj(attention(q(n1 x), k(n1 x), v(n1 x)))
//   x += fc2(relu(fc1(n2 x)))
//
// opt-350m has its norms behind the sums, none at the end, and narrower embeddings, which
// project_in and project_out join to the rest.
#include <fmt/format.h>

#include "models/architecture.h"
#include "models/config.h"

namespace nibble::models {

using layers::Part;

namespace {

// The shape of opt-350m, and what old fine-tunes lack.
Result<void> read_variants(const base::Json& config, layers::DecoderSpec& spec) {
  NIBBLE_ASSIGN(const int64_t width, get_size_or(config, "word_embed_proj_dim", spec.hidden));
  if (width != spec.hidden) {
    spec.embedding_width = width;
    spec.names[Part::kProjectIn] = "model.decoder.project_in";
    spec.names[Part::kProjectOut] = "model.decoder.project_out";
  }
  NIBBLE_ASSIGN(const bool before, config.get_bool_or("do_layer_norm_before", true));
  NIBBLE_ASSIGN(const bool removed, config.get_bool_or("_remove_final_layer_norm", false));
  spec.norms_after = !before;
  if (!before || removed) spec.names[Part::kFinalNorm].clear();
  NIBBLE_ASSIGN(const bool affine, config.get_bool_or("layer_norm_elementwise_affine", true));
  if (affine) return {};
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("{}: layer_norm_elementwise_affine: false is not supported", config.where()));
}

}  // namespace

Result<layers::DecoderSpec> opt(const base::Json& config) {
  NIBBLE_ASSIGN(layers::DecoderSpec spec,
                read_common(config, {.kv_heads_key = "",
                                     .ffn_key = "ffn_dim",
                                     .activation_key = "activation_function",
                                     .norm_eps_key = "",
                                     .rotary = false,
                                     .vocab = 50272,
                                     .norm_eps = 1e-5,
                                     .activation = "relu",
                                     .tied = true}));
  NIBBLE_ASSIGN(const bool bias, config.get_bool_or("enable_bias", true));
  spec.norm = layers::NormKind::kLayer;
  spec.norm_bias = true;
  spec.qkv_bias = spec.o_bias = spec.mlp_bias = bias;
  spec.first_position = 2;
  spec.unused.emplace_back("version", "a number that the tool which trained it saved");
  spec.names = {{Part::kEmbedding, "model.decoder.embed_tokens"},
                {Part::kPositions, "model.decoder.embed_positions"},
                {Part::kAttentionNorm, "model.decoder.layers.{}.self_attn_layer_norm"},
                {Part::kQ, "model.decoder.layers.{}.self_attn.q_proj"},
                {Part::kK, "model.decoder.layers.{}.self_attn.k_proj"},
                {Part::kV, "model.decoder.layers.{}.self_attn.v_proj"},
                {Part::kO, "model.decoder.layers.{}.self_attn.out_proj"},
                {Part::kFfnNorm, "model.decoder.layers.{}.final_layer_norm"},
                {Part::kUp, "model.decoder.layers.{}.fc1"},
                {Part::kDown, "model.decoder.layers.{}.fc2"},
                {Part::kFinalNorm, "model.decoder.final_layer_norm"},
                {Part::kLmHead, "lm_head"}};
  NIBBLE_TRY(read_variants(config, spec));
  return spec;
}

}  // namespace nibble::models
