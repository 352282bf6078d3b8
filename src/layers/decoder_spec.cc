#include <fmt/format.h>

#include "base/check.h"
#include "layers/decoder.h"

namespace nibble::layers {

PartNames llama_part_names() {
  return {{Part::kEmbedding, "model.embed_tokens"},
          {Part::kAttentionNorm, "model.layers.{}.input_layernorm"},
          {Part::kQ, "model.layers.{}.self_attn.q_proj"},
          {Part::kK, "model.layers.{}.self_attn.k_proj"},
          {Part::kV, "model.layers.{}.self_attn.v_proj"},
          {Part::kO, "model.layers.{}.self_attn.o_proj"},
          {Part::kFfnNorm, "model.layers.{}.post_attention_layernorm"},
          {Part::kGate, "model.layers.{}.mlp.gate_proj"},
          {Part::kUp, "model.layers.{}.mlp.up_proj"},
          {Part::kDown, "model.layers.{}.mlp.down_proj"},
          {Part::kFinalNorm, "model.norm"},
          {Part::kLmHead, "lm_head"}};
}

std::string DecoderSpec::module(Part part, int64_t layer) const {
  const std::string& name = names[part];
  const size_t hole = name.find("{}");
  if (hole == name.npos) return name;
  return fmt::format("{}{}{}", name.substr(0, hole), layer, name.substr(hole + 2));
}

std::vector<DeclaredLinear> declared_linears(const DecoderSpec& s) {
  const int64_t q = s.heads * s.head_dim;
  const int64_t kv = s.kv_heads * s.head_dim;
  // Head by head, an even share of the rows is a share of the heads: that needs no parts.
  const std::vector<int64_t> qkv_parts =
      s.qkv_order == QkvOrder::kParts ? std::vector<int64_t>{q, kv, kv} : std::vector<int64_t>{};
  std::vector<DeclaredLinear> out;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    const DeclaredLinear all[] = {
        {Part::kQ, layer, q, s.hidden, s.qkv_bias, {}},
        {Part::kK, layer, kv, s.hidden, s.qkv_bias, {}},
        {Part::kV, layer, kv, s.hidden, s.qkv_bias, {}},
        {Part::kQkv, layer, q + 2 * kv, s.hidden, s.qkv_bias, qkv_parts},
        {Part::kO, layer, s.hidden, q, s.o_bias, {}},
        {Part::kGate, layer, s.ffn, s.hidden, s.mlp_bias, {}},
        {Part::kUp, layer, s.ffn, s.hidden, s.mlp_bias, {}},
        {Part::kGateUp, layer, 2 * s.ffn, s.hidden, s.mlp_bias, {s.ffn, s.ffn}},
        {Part::kDown, layer, s.hidden, s.ffn, s.mlp_bias, {}}};
    for (const DeclaredLinear& linear : all) {
      if (s.has(linear.part)) out.push_back(linear);
    }
  }
  return out;
}

std::vector<DeclaredNorm> declared_norms(const DecoderSpec& s) {
  const int64_t q = s.qk_norm_whole_row ? s.heads * s.head_dim : s.head_dim;
  const int64_t k = s.qk_norm_whole_row ? s.kv_heads * s.head_dim : s.head_dim;
  std::vector<DeclaredNorm> out;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    const DeclaredNorm all[] = {{Part::kAttentionNorm, layer, s.hidden},
                                {Part::kQNorm, layer, q},
                                {Part::kKNorm, layer, k},
                                {Part::kPostAttentionNorm, layer, s.hidden},
                                {Part::kFfnNorm, layer, s.hidden},
                                {Part::kPostFfnNorm, layer, s.hidden}};
    for (const DeclaredNorm& norm : all) {
      if (s.has(norm.part)) out.push_back(norm);
    }
  }
  if (s.has(Part::kFinalNorm)) out.push_back({Part::kFinalNorm, 0, s.hidden});
  return out;
}

Linear& DecoderLayer::linear(Part part) {
  switch (part) {
    case Part::kQ:
      return q;
    case Part::kK:
      return k;
    case Part::kV:
      return v;
    case Part::kQkv:
      return qkv;
    case Part::kO:
      return o;
    case Part::kGate:
      return gate;
    case Part::kUp:
      return up;
    case Part::kGateUp:
      return gate_up;
    case Part::kDown:
      return down;
    default:
      NIBBLE_CHECK(false && "not a linear part of a block");
  }
}

Norm& DecoderLayer::norm(Part part) {
  switch (part) {
    case Part::kAttentionNorm:
      return attention_norm;
    case Part::kQNorm:
      return q_norm;
    case Part::kKNorm:
      return k_norm;
    case Part::kPostAttentionNorm:
      return post_attention_norm;
    case Part::kFfnNorm:
      return ffn_norm;
    case Part::kPostFfnNorm:
      return post_ffn_norm;
    default:
      NIBBLE_CHECK(false && "not a norm of a block");
  }
}

std::vector<const Linear*> DecoderLayer::linears() const {
  std::vector<const Linear*> out;
  for (const Linear* one : {&q, &k, &v, &qkv, &o, &gate, &up, &gate_up, &down}) {
    if (!one->name.empty()) out.push_back(one);
  }
  return out;
}

}  // namespace nibble::layers
