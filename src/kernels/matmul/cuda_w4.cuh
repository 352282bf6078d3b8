// Products with 4- and 8-bit codes in tiles (W4A16, W8A16) on Hopper: the arguments of a launch and
// how a word of codes becomes bf16 numbers. One layout serves every number of tokens:
//
//   codes    [strips of 64 rows][blocks of 64 inputs][4 row tiles of 16][32 lanes][4 words, 8 at 8
//   bits]
//            A lane's word j (two at 8 bits) is its part of the A operand of mma.m16n8k16 for
//            inputs 16 j to 16 j + 15, and so of wgmma m64k16, whose warp w multiplies row tile w.
//            With g = lane / 4, t = lane % 4:
//              register 0: row g, inputs 2t, 2t+1        register 1: row g+8, inputs 2t, 2t+1
//              register 2: row g, inputs 2t+8, 2t+9      register 3: row g+8, inputs 2t+8, 2t+9
//            4 bits: nibbles i and i+4 are register i, unsigned. 8 bits: bytes 0, 2 of the two
//            words are registers 0 and 2, bytes 1, 3 registers 1 and 3, signed.
//   scales   [strips][groups][64] f16 or bf16; at g*8 + tile*2 + half is that of row
//            tile*16 + half*8 + g
//   zeros    [strips][groups][64] u8 (4 bits) or s8 (8 bits, for 17 tokens and more alone), in
//            the same order; absent when all are 8 (0 at 8 bits)
//
// Rows are padded to 64, inputs to 64 (128 for up to 16 tokens): whatever codes, finite scales.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace nibble::kernels::cuda {

// y (m, n) = x (m, k) W^T.
struct W4Args {
  const void* codes = nullptr;
  const void* scales = nullptr;
  const void* zeros = nullptr;
  int bits = 4;  // or 8
  int n = 0;
  int k = 0;
  int group = 128;  // 32, a multiple of 64, or k
  bool scales_are_bf16 = true;
  bool scales_fold = true;  // CudaTiles
  const __nv_bfloat16* x =
      nullptr;      // (m, ldx), zeros from k to the next multiple of 64; 16-byte aligned
  int64_t ldx = 0;  // a multiple of 8
  int m = 0;
  void* y = nullptr;  // (m, ldy)
  int64_t ldy = 0;
  bool y_is_bf16 = false;
  void* workspace = nullptr;  // bytes of w4_workspace, zeroed once; of one stream at a time
  // Other streams may have such products, too. Blocks of 17 tokens and more wait for each other, so
  // the card is asked to place all or none: 0.2 us.
  bool others = false;
  cudaStream_t stream = nullptr;
};

#ifdef __CUDACC__

#if __CUDA_ARCH__ >= 900
__device__ inline uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
// a b + c, rounded once; numbers below 2^-126 are not flushed.
__device__ inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
}
#endif

// The two 16-bit scales of a lane's rows g and g + 8 as f32.
__device__ inline float2 w4_scales(uint32_t pair, bool are_bf16) {
  if (are_bf16)
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

#endif

}  // namespace nibble::kernels::cuda
