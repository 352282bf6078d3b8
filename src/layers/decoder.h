// A decoder-only transformer: what a model declares (DecoderSpec), what loading fills (Decoder),
// and the forward pass. It knows no architecture by name and no file.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/recording.h"
#include "device/stream.h"
#include "kernels/activation/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/ops.h"
#include "kernels/rope/rope.h"
#include "layers/linear.h"

namespace nibble::layers {

// The tensors of a decoder by their part, in the order a token meets them.
enum class Part : uint8_t {
  kEmbedding,
  kProjectIn,  // of embeddings that are narrower than the rest (opt-350m)
  kPositions,  // learned positions (OPT)
  kAttentionNorm,
  kQ,
  kK,
  kV,
  kQkv,  // the three in one tensor
  kQNorm,
  kKNorm,
  kO,
  kPostAttentionNorm,  // of what attention adds (Gemma 2, OLMo 2)
  kFfnNorm,
  kGate,
  kUp,
  kGateUp,  // the two in one tensor, gate first
  kDown,
  kPostFfnNorm,
  kFinalNorm,
  kProjectOut,  // back to the width of the embeddings
  kLmHead,
  kCount,
};

// What each part is called in the checkpoint, "{}" where the layer's number goes: "model.norm",
// "model.layers.{}.mlp.up_proj". A part without a name is one that the model does not have.
class PartNames {
 public:
  PartNames() = default;
  PartNames(std::initializer_list<std::pair<Part, std::string_view>> names) {
    for (const auto& [part, name] : names) (*this)[part] = name;
  }
  std::string& operator[](Part part) { return names_[static_cast<size_t>(part)]; }
  const std::string& operator[](Part part) const { return names_[static_cast<size_t>(part)]; }

 private:
  std::array<std::string, static_cast<size_t>(Part::kCount)> names_;
};

// Llama's: norms before attention and before a gated MLP, everything in its own tensor.
PartNames llama_part_names();

enum class NormKind : uint8_t { kRms, kLayer };
// The rows of a fused kQkv: all of q, then all of k, then all of v; or head by head q, k, v.
enum class QkvOrder : uint8_t { kParts, kHeads };

// One block, with every field at its default:
//
//   x += residual_scale * o(attention(rope(q(n1 x)), rope(k(n1 x)), v(n1 x)))
//   x += residual_scale * down(activation(gate(n2 x)) * up(n2 x))
//
// Which norms there are, whether projections are fused and whether the MLP has a gate is said by
// the names: see PartNames. With norms_after, x = n1(x + o(...)), x = n2(x + down(...)) instead.
struct DecoderSpec {
  std::string architecture;
  int64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  int64_t embedding_width = 0;  // of the embedding and the head, if not `hidden`
  int64_t max_positions = 0;    // max_position_embeddings
  int64_t context = 0;          // tokens the model is made for, rope_scaling included

  NormKind norm = NormKind::kRms;
  float norm_eps = 1e-6f;
  bool norm_bias = false;
  bool norm_adds_one = false;      // the stored weights are w - 1 (Gemma)
  bool norms_after = false;        // of a block's sum, not of its input (opt-350m)
  bool qk_norm_whole_row = false;  // q and k are normalized over all heads at once, not one by one

  float attention_scale = 1.0f;
  float attention_soft_cap = 0;  // 0: none
  std::vector<int64_t> windows;  // per layer: tokens a query sees, itself included; 0 is all
  QkvOrder qkv_order = QkvOrder::kParts;
  bool rotary = true;
  kernels::RopeConfig rope;
  std::optional<kernels::RopeConfig> window_rope;  // of the layers with a window, if not `rope`
  int64_t first_position = 0;                      // the row of kPositions for token 0

  kernels::Activation activation = kernels::Activation::kSilu;
  bool parallel = false;  // attention and MLP read the same x; without an FFN norm, the same n1 x
  float embedding_scale = 1, residual_scale = 1, logit_scale = 1;
  float logit_soft_cap = 0;  // 0: none

  bool tied_embeddings = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false, head_bias = false;
  PartNames names = llama_part_names();
  std::string other_head_name;  // how some files of the family call the head

  // Tensors that other parts of the checkpoint's model need: a segment of their names, the reason.
  std::vector<std::pair<std::string, std::string>> unused;
  // What the reader of the config should know: keys without effect.
  std::vector<std::string> notes;

  bool has(Part part) const { return !names[part].empty(); }
  int64_t width() const { return embedding_width != 0 ? embedding_width : hidden; }
  std::string module(Part part, int64_t layer = 0) const;
};

// A linear layer that the spec asks for, in the order a token meets them.
struct DeclaredLinear {
  Part part;
  int64_t layer;
  int64_t n, k;
  bool bias;
  std::vector<int64_t> parts;  // outputs of each part of a fused one
};
// Embedding, positions, lm_head and the projections beside them are not among them.
std::vector<DeclaredLinear> declared_linears(const DecoderSpec& spec);

// A norm that the spec asks for: a weight of `size` floats, and a bias if spec.norm_bias.
struct DeclaredNorm {
  Part part;
  int64_t layer;
  int64_t size;
};
std::vector<DeclaredNorm> declared_norms(const DecoderSpec& spec);

// One norm's weights; empty when the model has none at this place.
struct Norm {
  device::Floats weight;  // ones already added (norm_adds_one)
  device::Floats bias;    // empty without norm_bias
};

// One block's weights; parts that the spec has no name for are empty.
struct DecoderLayer {
  Norm attention_norm;  // (hidden)
  Linear q, k, v, qkv;
  Norm q_norm, k_norm;  // (head_dim), or whole rows
  Linear o;
  Norm post_attention_norm;  // (hidden)
  Norm ffn_norm;             // (hidden)
  Linear gate, up, gate_up, down;
  Norm post_ffn_norm;  // (hidden)

  Linear& linear(Part part);
  Norm& norm(Part part);
  std::vector<const Linear*> linears() const;  // those there are, in a token's order
  // What reads the results of the norms.
  Together attention_readers() const { return {&q, &k, &v, &qkv}; }
  Together ffn_readers() const { return {&gate, &up, &gate_up}; }
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
  Linear embedding;                // (vocab, width())
  Linear project_in, project_out;  // (hidden, width()) and back, or empty
  Linear positions;                // (rows, hidden); empty without learned positions
  std::vector<DecoderLayer> layers;
  Norm final_norm;  // (hidden)
  Linear lm_head;   // empty when spec.tied_embeddings
  CacheFormat cache;
  bool exact = false;  // --precision exact: attention multiplies in float32 on a card, too

  const Linear& head() const { return spec.tied_embeddings ? embedding : lm_head; }
};

// What a forward pass tells a listener, layer by layer: the module's name and its output
// (m, n), contiguous, in the host's memory. For `compare`, and to find the first output that is not
// finite.
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
  Result<void> reserve(device::Stream& stream, int64_t tokens);  // room for this many in all
  void truncate(int64_t tokens);
  void set_length(int64_t tokens);  // after a step of a card that was recorded
  kernels::KvCache& layer(int64_t i) { return layers_[static_cast<size_t>(i)]; }

 private:
  int64_t capacity_ = 0;
  std::vector<kernels::KvCache> layers_;
};

// Runs a Decoder where its weights are: on a CPU or a card, which the stream knows and nothing here
// asks. Owns the activations of one step; reuse it from step to step.
class Runner {
 public:
  // `decoder` must outlive the runner.
  static Result<Runner> create(const Decoder& decoder, kernels::Ops ops);

  // Tokens at positions [cache.length(), + m), ids in range. Appends their keys and values to the
  // cache and returns the final hidden states (m, width()), the stream's, valid until the next
  // call. `length` is the length of the whole sequence this batch is part of (see
  // kernels::Rope::frequencies).
  Result<const float*> forward(device::Stream& stream, std::span<const int32_t> tokens,
                               int64_t length, DecoderCache& cache, const Listener& listener = {});

  // forward() in two parts, of which the second may be recorded: what the host does, and the
  // kernels. After kernels that a recording did, cache.set_length() is the caller's. `sent` when
  // both are done.
  Result<void> prepare(device::Stream& stream, std::span<const int32_t> tokens, int64_t length,
                       DecoderCache& cache);
  const float* run(device::Stream& stream, DecoderCache& cache, const Listener& listener = {});
  void sent(device::Stream& stream) { staging_.sent(stream); }

  // logits (m, vocab) of hidden states (m, width()), to the stream's memory.
  void logits(device::Stream& stream, const float* hidden, int64_t m, float* out);

 private:
  Runner(const Decoder& decoder, kernels::Ops ops, kernels::Rope rope,
         std::optional<kernels::Rope> window_rope);
  Result<void> reserve(device::Stream& stream, int64_t m);
  Result<void> stage(device::Stream& stream, std::span<const int32_t> tokens, int64_t length);
  void embed_tokens(device::Stream& stream, const Listener& listener);
  void block_with_norms_after(device::Stream& stream, int64_t layer, kernels::KvCache& cache,
                              const Listener& listener);
  kernels::ConstRows block_input(device::Stream& stream, const Norm& norm, kernels::Held held);
  void normalize(device::Stream& stream, const Norm& norm, const float* x, kernels::Rows y,
                 int64_t m, int64_t width);
  // Where a block's last product writes: its own rows, or x_, which it then adds to, and may half
  // normalize.
  struct BlockOutput {
    float* to;
    kernels::HalfNormed next = {};
  };
  // The norm of the block that comes next, and what reads its results.
  struct NextBlock {
    const Norm* norm = nullptr;
    Together readers = {};
  };
  BlockOutput block_output(const device::Stream& stream, const Linear& last, Part norm_after,
                           const NextBlock& next, const Listener& listener) const;
  void left_by(const BlockOutput& out);
  // q, k and v of the step, with the strides of a token.
  struct Qkv {
    float* q;
    int64_t ldq;
    float* k;
    int64_t ldk;
    float* v;
    int64_t ldv;
  };
  Qkv project_qkv(device::Stream& stream, const DecoderLayer& w, kernels::ConstRows x,
                  const Listener& listener);
  void attention_block(device::Stream& stream, int64_t layer, kernels::ConstRows x,
                       kernels::KvCache& cache, const Listener& listener,
                       const BlockOutput& output);
  // What gate and up become, with the stride of a token.
  struct Inner {
    kernels::Rows rows;
    int64_t stride;
  };
  Inner run_gate_up(device::Stream& stream, const DecoderLayer& w, kernels::ConstRows x,
                    const Listener& listener);
  void ffn_block(device::Stream& stream, int64_t layer, kernels::ConstRows x,
                 const Listener& listener, const BlockOutput& output);

  const Decoder* decoder_;
  kernels::Ops ops_;
  kernels::Rope rope_;
  std::optional<kernels::Rope> window_rope_;
  kernels::RopeRows rope_rows_;
  kernels::RopeRows window_rope_rows_;
  // The step that was prepared. What kernels are to know of it lies where they read it.
  device::Staging staging_;
  int64_t position_ = 0;
  int64_t m_ = 0;
  std::vector<int32_t> ids_;           // the tokens
  std::vector<int32_t> position_ids_;  // rows of the learned positions
  const int32_t* placed_ids_ = nullptr;
  const int32_t* placed_position_ids_ = nullptr;
  const int32_t* placed_position_ = nullptr;  // on a CPU nobody reads it
  int64_t capacity_ = 0;                      // rows the buffers below hold
  device::Memory memory_;     // one allocation, cut into the following, each (capacity, ...)
  float* narrow_ = nullptr;   // width(), where it is not hidden
  float* x_ = nullptr;        // hidden: the residual stream
  float* normed_ = nullptr;   // hidden
  float* squares_ = nullptr;  // hidden / 8: of x_, where normed_ is half normalized
  float* delta_ = nullptr;    // hidden: what the last block adds, if not to x_ itself; `pending_`
                              // until it was added
  float* beside_ = nullptr;   // hidden: what the MLP of a parallel block adds
  float* qkv_ = nullptr;      // (heads + 2 kv_heads) * head_dim, where they are fused
  float* q_ = nullptr;        // heads * head_dim
  float* k_ = nullptr;        // kv_heads * head_dim
  float* v_ = nullptr;        // kv_heads * head_dim
  float* mixed_ = nullptr;    // heads * head_dim: the output of attention
  float* gate_ = nullptr;     // ffn; 2 ffn where gate and up are fused
  float* up_ = nullptr;       // ffn
  float* inner_ = nullptr;    // ffn numbers of 16 bits: what `down` reads, where it is not f32
  bool has_inner_ = false;
  bool pending_ = false;
  kernels::HalfNormed ahead_;  // what the last block has left for the next one, if anything
};

}  // namespace nibble::layers
