// A decoder-only transformer: what a model declares (DecoderSpec), what loading fills (Decoder), and
// the forward pass. It knows no architecture by name and no file.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "device/stream.h"
#include "kernels/activation/activation.h"
#include "kernels/rope/rope.h"
#include "layers/linear.h"

namespace nibble::layers {

// The tensors of a decoder by their part; names hold "{}" where the layer's number goes.
enum class Part : uint8_t {
  kEmbedding, kFinalNorm, kLmHead,
  kAttentionNorm, kQ, kK, kV, kO,
  kFfnNorm, kGate, kUp, kDown,
  kCount,
};
using PartNames = std::array<std::string, static_cast<size_t>(Part::kCount)>;

// "model.layers.{}.self_attn.q_proj" and so on.
PartNames llama_part_names();

struct DecoderSpec {
  std::string architecture;
  int64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  int64_t max_positions = 0;
  float norm_eps = 1e-6f;
  float attention_scale = 1.0f;
  kernels::ActivationKind activation = kernels::ActivationKind::kSilu;
  kernels::RopeConfig rope;
  std::vector<int64_t> windows;  // per layer: tokens a query sees, itself included; 0 is all
  bool tied_embeddings = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  PartNames names = llama_part_names();

  std::string module(Part part, int64_t layer = 0) const;
};

// A linear layer that the spec asks for, in the order a token meets them.
struct DeclaredLinear {
  Part part;
  int64_t layer;
  int64_t n, k;
  bool bias;
};
// Embedding and lm_head are not among them.
std::vector<DeclaredLinear> declared_linears(const DecoderSpec& spec);

}  // namespace nibble::layers
