// Products of 17 tokens and more with 4- and 8-bit codes on Hopper, and the panel for a library's
// product.
#pragma once

#include <cstddef>

#include "kernels/matmul/cuda_w4.cuh"

namespace nibble::kernels::cuda {

// How a product is cut: tiles of `rows` x `tokens` outputs, and how many blocks share the inputs of
// one.
struct W4Choice {
  int rows = 128;        // 64, 128, 256
  int tokens = 64;       // of a tile, at most: 32 to 192
  bool on_sums = false;  // scales multiply f32 sums (groups of 128 n), else bf16 weights
  int split = 0;         // blocks for each tile; 0: equal runs of all work, one for each block
  int wide = 1;          // strips of 64 rows that a warpgroup has
  int slices = 1;        // of a stage's inputs: each has warpgroups of its own
  int stages = 0;        // of the ring; 0: as many as fit
};

// The fastest by what they took on an H200 (docs/cuda-notebook.md).
W4Choice choose_w4(const W4Args& args, int multiprocessors);

// False where this product cannot be cut so.
bool w4_can(const W4Args& args, const W4Choice& choice);

// Of the workspace, whatever the choice.
size_t w4_workspace(int multiprocessors);

cudaError_t launch_w4_wgmma(const W4Args& args, const W4Choice& choice);

// Rows [first, first + rows) as bf16 into panel (rows, ldp); first is a multiple of 64, ldp of 8
// and at least k padded to 64; panel aligned to 16 bytes.
cudaError_t launch_w4_panel(const W4Args& args, int first, int rows, __nv_bfloat16* panel,
                            int64_t ldp);

}  // namespace nibble::kernels::cuda
