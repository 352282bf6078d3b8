// A decoder-only transformer: what a model declares (DecoderSpec), what loading fills (Decoder),
// and the forward pass. It knows no architecture by name and no file.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "device/stream.h"
#include "kernels/activation/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/ops.h"
#include "kernels/rope/rope.h"
#include "layers/linear.h"

namespace nibble::layers {

// The tensors of a decoder by their part; names hold "{}" where the layer's number goes.
enum class Part : uint8_t {
  kEmbedding,
  kFinalNorm,
  kLmHead,
  kAttentionNorm,
  kQ,
  kK,
  kV,
  kO,
  kFfnNorm,
  kGate,
  kUp,
  kDown,
  kCount,
};
using PartNames = std::array<std::string, static_cast<size_t>(Part::kCount)>;

// "model.layers.{}.self_attn.q_proj" and so on.
PartNames llama_part_names();

struct DecoderSpec {
  std::string architecture;
  int64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  int64_t max_positions = 0;  // max_position_embeddings
  int64_t context = 0;        // tokens the model is made for, rope_scaling included
  float norm_eps = 1e-6f;
  float attention_scale = 1.0f;
  kernels::Activation activation = kernels::Activation::kSilu;
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

// One block's weights.
struct DecoderLayer {
  std::vector<float> attention_norm;  // (hidden)
  Linear q, k, v, o;
  std::vector<float> ffn_norm;  // (hidden)
  Linear gate, up, down;
};

// How the keys and values of a sequence are kept.
struct CacheFormat {
  kernels::KvType type = kernels::KvType::kF16;
  bool token_scales = false;              // see kernels::KvShape
  std::vector<kernels::KvScales> scales;  // of each layer, or none
};

// A model after loading.
struct Decoder {
  DecoderSpec spec;
  Linear embedding;  // (vocab, hidden)
  std::vector<DecoderLayer> layers;
  std::vector<float> final_norm;  // (hidden)
  Linear lm_head;                 // empty when spec.tied_embeddings
  CacheFormat cache;

  const Linear& head() const { return spec.tied_embeddings ? embedding : lm_head; }
};

// What a forward pass tells a listener, layer by layer: the module's name and its output
// (m, n), contiguous. For `compare`, and to find the first output that is not finite.
using Listener = std::function<void(std::string_view module, const float* y, int64_t m, int64_t n)>;

// The keys and values of a sequence: one cache for each layer.
class DecoderCache {
 public:
  // Takes no memory yet. `capacity` is the most tokens it will hold.
  static Result<DecoderCache> create(const DecoderSpec& spec, const CacheFormat& format,
                                     int64_t capacity);
  // What `tokens` tokens take, in bytes.
  static int64_t bytes_for(const DecoderSpec& spec, const CacheFormat& format, int64_t tokens);

  int64_t length() const { return layers_.front().size(); }
  int64_t capacity() const { return capacity_; }
  Result<void> reserve(int64_t tokens);  // room for this many in all
  void truncate(int64_t tokens);
  kernels::KvCache& layer(int64_t i) { return layers_[static_cast<size_t>(i)]; }

 private:
  int64_t capacity_ = 0;
  std::vector<kernels::KvCache> layers_;
};

// Runs a Decoder. Owns the activations of one step; reuse it from step to step.
class Runner {
 public:
  // `decoder` must outlive the runner.
  static Result<Runner> create(const Decoder& decoder, kernels::Ops ops);

  // Tokens at positions [cache.length(), + m), ids in range. Appends their keys and values to the
  // cache and returns the final hidden states (m, hidden), valid until the next call. `length` is
  // the length of the whole sequence this batch is part of (see kernels::Rope::frequencies).
  Result<const float*> forward(device::Stream& stream, std::span<const int32_t> tokens,
                               int64_t length, DecoderCache& cache, const Listener& listener = {});

  // logits (m, vocab) of hidden states (m, hidden).
  void logits(device::Stream& stream, const float* hidden, int64_t m, float* out);

 private:
  Runner(const Decoder& decoder, kernels::Ops ops, kernels::Rope rope);
  Result<void> reserve(int64_t m);
  void attention_block(device::Stream& stream, int64_t layer, int64_t position, int64_t m,
                       kernels::KvCache& cache, const Listener& listener);
  void ffn_block(device::Stream& stream, int64_t layer, int64_t m, const Listener& listener);

  const Decoder* decoder_;
  kernels::Ops ops_;
  kernels::Rope rope_;
  kernels::RopeRows rope_rows_;
  int64_t capacity_ = 0;     // rows the buffers below hold
  tensor::Buffer memory_;    // one allocation, cut into the following, each (capacity, ...)
  float* x_ = nullptr;       // hidden: the residual stream
  float* normed_ = nullptr;  // hidden
  float* delta_ = nullptr;   // hidden: what a block adds
  float* q_ = nullptr;       // heads * head_dim
  float* k_ = nullptr;       // kv_heads * head_dim
  float* v_ = nullptr;       // kv_heads * head_dim
  float* mixed_ = nullptr;   // heads * head_dim: the output of attention
  float* gate_ = nullptr;    // ffn
  float* up_ = nullptr;      // ffn
};

}  // namespace nibble::layers
