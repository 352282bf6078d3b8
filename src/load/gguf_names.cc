#include "load/gguf_names.h"

#include <fmt/format.h>

#include <utility>

namespace nibble::load {
namespace {

using layers::Part;

constexpr std::pair<Part, std::string_view> kParts[] = {
    {Part::kEmbedding, "token_embd"},
    {Part::kPositions, "position_embd"},
    {Part::kAttentionNorm, "blk.{}.attn_norm"},
    {Part::kQ, "blk.{}.attn_q"},
    {Part::kK, "blk.{}.attn_k"},
    {Part::kV, "blk.{}.attn_v"},
    {Part::kQkv, "blk.{}.attn_qkv"},
    {Part::kQNorm, "blk.{}.attn_q_norm"},
    {Part::kKNorm, "blk.{}.attn_k_norm"},
    {Part::kO, "blk.{}.attn_output"},
    {Part::kPostAttentionNorm, "blk.{}.post_attention_norm"},
    {Part::kFfnNorm, "blk.{}.ffn_norm"},
    {Part::kGate, "blk.{}.ffn_gate"},
    {Part::kUp, "blk.{}.ffn_up"},
    {Part::kGateUp, "blk.{}.ffn_up"},
    {Part::kDown, "blk.{}.ffn_down"},
    {Part::kPostFfnNorm, "blk.{}.post_ffw_norm"},
    {Part::kFinalNorm, "output_norm"},
    {Part::kLmHead, "output"},
};

// The last words of the names that Hugging Face models use, behind the layer's number.
constexpr std::pair<std::string_view, std::string_view> kInLayer[] = {
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"attention.query_key_value", "attn_qkv"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.out_proj", "attn_output"},
    {"self_attn.dense", "attn_output"},
    {"attention.dense", "attn_output"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.c_fc", "ffn_up"},
    {"mlp.fc1", "ffn_up"},
    {"fc1", "ffn_up"},
    {"mlp.dense_h_to_4h", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.c_proj", "ffn_down"},
    {"mlp.fc2", "ffn_down"},
    {"fc2", "ffn_down"},
    {"mlp.dense_4h_to_h", "ffn_down"},
};

constexpr std::pair<std::string_view, std::string_view> kOutside[] = {
    {"embed_tokens", "token_embd"},
    {"embed_in", "token_embd"},
    {"lm_head", "output"},
    {"embed_out", "output"},
};

}  // namespace

void use_gguf_names(const checkpoint::Checkpoint& checkpoint, layers::DecoderSpec& spec) {
  const bool has_q = spec.has(Part::kQ) || spec.has(Part::kQkv);
  const bool fused = checkpoint.find("blk.0.attn_qkv.weight") != nullptr;
  for (const auto& [part, name] : kParts) {
    bool wanted = spec.has(part);
    if (part == Part::kQkv) wanted = has_q && fused;
    if (part == Part::kQ || part == Part::kK || part == Part::kV) wanted = has_q && !fused;
    spec.names[part] = wanted ? name : "";
  }
  spec.qkv_order = layers::QkvOrder::kParts;
  spec.other_head_name.clear();
  spec.norm_adds_one = false;
}

std::string gguf_module_name(std::string_view module) {
  constexpr std::string_view kLayers = "layers.";
  const size_t layers = module.find(kLayers);
  if (layers == module.npos) {
    for (const auto& [hf, gguf] : kOutside) {
      if (module == hf || module.ends_with(fmt::format(".{}", hf))) return std::string(gguf);
    }
    return std::string(module);
  }
  const std::string_view rest = module.substr(layers + kLayers.size());
  const size_t dot = rest.find('.');
  if (dot == rest.npos) return std::string(module);
  for (const auto& [hf, gguf] : kInLayer) {
    if (rest.substr(dot + 1) == hf) return fmt::format("blk.{}.{}", rest.substr(0, dot), gguf);
  }
  return std::string(module);
}

}  // namespace nibble::load
