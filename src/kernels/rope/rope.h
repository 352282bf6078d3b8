// Rotary position embedding: pairs of a head's elements are turned by an angle that grows with the
// position.
//
//   (a, b) -> (a cos t - b sin t, a sin t + b cos t)     t = position * f[i], i the pair
//
//   f[i] = theta^(-2 i / rotary_dim), changed by the model's `rope_scaling` (RopeType)
//
// Angles, cos and sin are computed in double and rounded once to float32.
#pragma once

#include <cstdint>
#include <vector>

#include "device/stream.h"
#include "kernels/ops.h"
#include "nibble/result.h"

namespace nibble::kernels {

// The values of rope_type in config.json, as in Hugging Face transformers' modeling_rope_utils.
enum class RopeType : uint8_t {
  kDefault,       // "default"
  kLinear,        // "linear": f / factor
  kDynamic,       // "dynamic" (NTK): theta grows with the length of the sequence
  kYarn,          // "yarn": high frequencies kept, low ones divided, a ramp between
  kLlama3,        // "llama3": the same idea by wavelength
  kLongRope,      // "longrope": a divisor for each pair, one set for short and one for long
  kProportional,  // "proportional": the first pairs of the whole head turn, the others stay
};

// Which elements make pair i of the first `rotary_dim` of a head.
enum class PairOrder : uint8_t {
  kHalves,      // (i, i + rotary_dim / 2): Hugging Face's Llama, "neox"
  kNeighbours,  // (2 i, 2 i + 1): GPT-J; GGUF files of the Llama family
};

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  PairOrder order = PairOrder::kHalves;
  int head_dim = 0;
  int rotary_dim = 0;  // int(head_dim * partial_rotary_factor); 0: head_dim
  double theta = 10000;
  // The configuration's keys of the same name. Zero stands for "not given" where the format has a
  // rule for that: factor (yarn, longrope: max / original), attention_factor, mscale,
  // mscale_all_dim, beta_fast (32), beta_slow (1).
  double factor = 1;
  double attention_factor = 0;
  double beta_fast = 0;
  double beta_slow = 0;
  double mscale = 0;
  double mscale_all_dim = 0;
  bool truncate = true;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t max_positions = 0;           // max_position_embeddings
  int64_t original_max_positions = 0;  // original_max_position_embeddings
  std::vector<double> short_factor;
  std::vector<double> long_factor;
  std::vector<double> divisors;  // one for each pair, or none: GGUF's rope_freqs.weight
};

// cos and sin for the tokens of one step; made once and used by every layer.
struct RopeRows {
  PairOrder order = PairOrder::kHalves;
  int64_t m = 0;
  int64_t rotary_dim = 0;
  // kHalves: (m, rotary_dim / 2). kNeighbours: (m, rotary_dim), each cos twice, sin as -s, +s.
  std::vector<float> cos;
  std::vector<float> sin;
  // Where a card's kernels find them; whoever steps brings them there.
  const float* placed_cos = nullptr;
  const float* placed_sin = nullptr;
};

class Rope {
 public:
  // The error says which number of the configuration makes no sense.
  static Result<Rope> create(RopeConfig config);

  // One frequency for each pair, for a sequence of `length` tokens. Only kDynamic and kLongRope
  // look at the length. transformers takes the largest position of the call plus one; a caller that
  // cuts a prompt into batches gives the prompt's length to all of them.
  std::vector<double> frequencies(int64_t length) const;

  // cos and sin are multiplied by it (yarn, longrope; else 1).
  double attention_factor() const { return attention_factor_; }

  // Fills `rows` for positions [position, position + m); reuses its memory.
  void fill(device::ThreadPool& pool, int64_t position, int64_t m, int64_t length,
            RopeRows* rows) const;

  const RopeConfig& config() const { return config_; }

 private:
  RopeConfig config_;
  double attention_factor_ = 1;
  std::vector<double> short_frequencies_;
  std::vector<double> long_frequencies_;  // kLongRope only
};

// Turns x (m, heads, head_dim) in place; ldx is the stride of a token in elements. On a CPU: a
// card's kernels turn in attend().
void rotate(device::Stream& stream, const Ops& ops, const RopeRows& rows, float* x, int64_t ldx,
            int64_t heads, int64_t head_dim);

// The functions of one ISA, over one head.
struct RopeOps {
  void (*halves)(const float* cos, const float* sin, int64_t pairs, float* x) noexcept;
  void (*neighbours)(const float* cos, const float* sin, int64_t n, float* x) noexcept;
};
extern const RopeOps kRopeReference;
extern const RopeOps kRopeAvx2;
extern const RopeOps kRopeAvx512;

}  // namespace nibble::kernels
