// GPT-NeoX, Pythia: attention and MLP side by side, each behind its own LayerNorm; q, k and v in
// one tensor, head by head; a part of each head turned.
//
//   x += dense(attention(...(n1 x))) + dense_4h_to_h(gelu(dense_h_to_4h(n2 x)))
//
//   query_key_value  (3 hidden, hidden)  rows: q of head 0, k of head 0, v of head 0, q of
//   head 1...
#include "models/architecture.h"
#include "models/config.h"

namespace nibble::models {

using layers::Part;

Result<layers::DecoderSpec> gpt_neox(const base::Json& config) {
  NIBBLE_ASSIGN(layers::DecoderSpec spec, read_common(config, {.kv_heads_key = "",
                                                               .norm_eps_key = "layer_norm_eps",
                                                               .theta_key = "rotary_emb_base",
                                                               .partial_key = "rotary_pct",
                                                               .partial_rotary = true,
                                                               .vocab = 50432,
                                                               .norm_eps = 1e-5,
                                                               .partial = 0.25,
                                                               .activation = "gelu"}));
  NIBBLE_ASSIGN(spec.parallel, config.get_bool_or("use_parallel_residual", true));
  NIBBLE_ASSIGN(const bool attention_bias, config.get_bool_or("attention_bias", true));
  spec.norm = layers::NormKind::kLayer;
  spec.norm_bias = true;
  spec.qkv_bias = attention_bias;
  spec.o_bias = attention_bias;
  spec.mlp_bias = true;
  spec.qkv_order = layers::QkvOrder::kHeads;
  spec.names = {{Part::kEmbedding, "gpt_neox.embed_in"},
                {Part::kAttentionNorm, "gpt_neox.layers.{}.input_layernorm"},
                {Part::kQkv, "gpt_neox.layers.{}.attention.query_key_value"},
                {Part::kO, "gpt_neox.layers.{}.attention.dense"},
                {Part::kFfnNorm, "gpt_neox.layers.{}.post_attention_layernorm"},
                {Part::kUp, "gpt_neox.layers.{}.mlp.dense_h_to_4h"},
                {Part::kDown, "gpt_neox.layers.{}.mlp.dense_4h_to_h"},
                {Part::kFinalNorm, "gpt_neox.final_layer_norm"},
                {Part::kLmHead, "embed_out"}};
  spec.other_head_name = "lm_head";
  return spec;
}

}  // namespace nibble::models
