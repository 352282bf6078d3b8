// Products of 1 to 16 tokens with 4- and 8-bit codes in tiles, on Hopper.
#pragma once

#include "kernels/activation/activation.h"
#include "kernels/matmul/cuda_w4.cuh"

namespace nibble::kernels::cuda {

// What a product leaves of y for the product after a norm: y times the norm's weights, rounded, and
// the sums of squares of y's eight by eight rows. Nothing where weight is null.
struct NextNorm {
  const float* weight = nullptr;  // (n), 16-byte aligned
  void* rows = nullptr;           // (m, n) bf16
  float* squares = nullptr;       // (m, n / 8)
};

// Up to four weights that read the same x, in one launch: q, k and v; gate and up. They have the
// same k, group, bits and kind of scales; each its own rows, zeros (all have them, or none; none
// at 8 bits) and y. Their x and m are not read.
struct W4Few {
  const W4Args* weights = nullptr;
  int count = 0;
  // (m, ldx): bf16 with zeros from k to the next multiple of 128, or f32 with k a multiple of 8.
  // 16-byte aligned rows.
  const void* x = nullptr;
  bool x_is_f32 = false;
  int64_t ldx = 0;
  int k = 0;  // of x; zeros follow. Rows that squares are of have as many
  int m = 0;  // 1 to 16, with f32 to 8
  // Where x is rows times RMSNorm's weights: of these rows' eight by eight inputs the sums of
  // squares (m, k / 8), k a multiple of 32, 16-byte aligned; y is what it would be of normalized
  // rows. Null: x is as it is.
  const float* squares = nullptr;
  float norm_eps = 0;
  bool add = false;  // y += x W^T, of f32
  NextNorm next;     // of one weight that adds, n a multiple of 64
  // Two weights of as many rows, gate and up: y of the first = function(x G^T) * (x U^T), and the
  // second has none.
  bool gated = false;
  Activation function = Activation::kSilu;
  cudaStream_t stream = nullptr;
};

constexpr int kFewTokens = 16;
constexpr int kFewTokensF32 = 8;
// With `squares`, `add` or `gated`: with more tokens passes of their own take less than what these
// add to the reducers' work.
constexpr int kFewTokensFused = 4;

// How inputs are shared: a cluster of `ranks` blocks for each strip of rows, a ring of `stages`.
struct W4FewPlan {
  int ranks = 0;  // 1, 2, 4, 8; 0: does not fit
  int stages = 0;
  int early = 0;      // of these, copied before the kernel before this one has ended
  bool wide = false;  // a warp has 64 rows, not 32
  double time = 0;    // microseconds that it should take
};
W4FewPlan plan_w4_few(const W4Few& args, int multiprocessors);

// An error where the above does not hold, or the plan's ranks are 0.
cudaError_t launch_w4_few(const W4Few& args, const W4FewPlan& plan, int multiprocessors);

}  // namespace nibble::kernels::cuda
