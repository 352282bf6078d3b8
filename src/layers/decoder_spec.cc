#include <fmt/format.h>

#include "layers/decoder.h"

namespace nibble::layers {

PartNames llama_part_names() {
  return {"model.embed_tokens",
          "model.norm",
          "lm_head",
          "model.layers.{}.input_layernorm",
          "model.layers.{}.self_attn.q_proj",
          "model.layers.{}.self_attn.k_proj",
          "model.layers.{}.self_attn.v_proj",
          "model.layers.{}.self_attn.o_proj",
          "model.layers.{}.post_attention_layernorm",
          "model.layers.{}.mlp.gate_proj",
          "model.layers.{}.mlp.up_proj",
          "model.layers.{}.mlp.down_proj"};
}

std::string DecoderSpec::module(Part part, int64_t layer) const {
  const std::string& name = names[static_cast<size_t>(part)];
  const size_t hole = name.find("{}");
  if (hole == name.npos) return name;
  return fmt::format("{}{}{}", name.substr(0, hole), layer, name.substr(hole + 2));
}

std::vector<DeclaredLinear> declared_linears(const DecoderSpec& s) {
  const int64_t q = s.heads * s.head_dim;
  const int64_t kv = s.kv_heads * s.head_dim;
  std::vector<DeclaredLinear> out;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    out.push_back({Part::kQ, layer, q, s.hidden, s.qkv_bias});
    out.push_back({Part::kK, layer, kv, s.hidden, s.qkv_bias});
    out.push_back({Part::kV, layer, kv, s.hidden, s.qkv_bias});
    out.push_back({Part::kO, layer, s.hidden, q, s.o_bias});
    out.push_back({Part::kGate, layer, s.ffn, s.hidden, s.mlp_bias});
    out.push_back({Part::kUp, layer, s.ffn, s.hidden, s.mlp_bias});
    out.push_back({Part::kDown, layer, s.hidden, s.ffn, s.mlp_bias});
  }
  return out;
}

}  // namespace nibble::layers
