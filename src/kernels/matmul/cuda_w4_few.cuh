// Products of 1 to 16 tokens with 4- and 8-bit codes in tiles, on Hopper.
#pragma once

#include "kernels/matmul/cuda_w4.cuh"

namespace nibble::kernels::cuda {

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
  int k = 0;  // of f32 x; zeros follow
  int m = 0;  // 1 to 16, with f32 to 8
  cudaStream_t stream = nullptr;
};

constexpr int kFewTokens = 16;
constexpr int kFewTokensF32 = 8;

// How inputs are shared: a cluster of `ranks` blocks for each strip of rows, a ring of `stages`.
struct W4FewPlan {
  int ranks = 0;  // 1, 2, 4, 8; 0: does not fit
  int stages = 0;
  int early = 0;      // of these, copied before the kernel before this one has ended
  bool wide = false;  // a warp has 64 rows, not 32
};
W4FewPlan plan_w4_few(const W4Few& args, int multiprocessors);

// An error where the above does not hold, or the plan's ranks are 0.
cudaError_t launch_w4_few(const W4Few& args, const W4FewPlan& plan, int multiprocessors);

}  // namespace nibble::kernels::cuda
