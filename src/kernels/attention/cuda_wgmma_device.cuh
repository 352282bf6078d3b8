// Hopper's products of a warpgroup (wgmma) for attention: 16-bit numbers, sums in f32, and how
// their tiles lie in shared memory. Compiled for sm_90a only.
//
// A tile of rows of D numbers, D a multiple of 64, is D / 64 pieces, one after the other; a piece
// has of each row 64 numbers, 128 bytes, whose chunks of 16 bytes are swizzled:
//
//   chunk c of row r lies at   r * 128 + (c ^ r % 8) * 16
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/matmul/cuda_sm90.cuh"

namespace nibble::kernels::cuda {

// Where 8 numbers from `column` on, a multiple of 8, lie in a tile of `rows` rows.
__device__ inline uint32_t tile_offset(int rows, int row, int column) {
  return static_cast<uint32_t>((column / 64 * rows + row) * 128 + (column / 8 % 8 ^ row % 8) * 16);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Of a piece whose rows are what the product keeps (queries; keys of Q K^T): a step of 16 numbers
// is 32 bytes further on.
__device__ constexpr uint64_t describe_rows(uint32_t address) {
  return uint64_t{sm90::describe_tile(address)} | uint64_t{sm90::kTileHigh} << 32;
}
// Of a tile of `rows` rows over which the product sums (values of P V), with D columns: pieces are
// rows * 128 bytes apart, 8 rows 1024. A step of 16 rows is 2048 bytes further on.
__device__ constexpr uint64_t describe_columns(uint32_t address, int rows) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) |
         (static_cast<uint64_t>(rows * 128 >> 4) << 16) | (uint64_t{1024 >> 4} << 32) |
         (uint64_t{1} << 62);
}
// As the card has been seen to take them: an address of shared memory / 16, from bit 16 on the
// distance of pieces / 16 (rows: not used, 1), from bit 32 on that of 8 rows, at the top the
// swizzle.
static_assert(describe_rows(0x1c00) == 0x40000040000101c0);
static_assert(describe_columns(0x1c00, 128) == 0x40000040040001c0);
constexpr uint64_t kRowsStep = 32 >> 4;
constexpr uint64_t kColumnsStep = 2048 >> 4;

// clang-format off
#define NIBBLE_D8(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
  "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define NIBBLE_D32(d, i) NIBBLE_D8(d, i), NIBBLE_D8(d, i + 8), NIBBLE_D8(d, i + 16), NIBBLE_D8(d, i + 24)
#define NIBBLE_NAMES_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NIBBLE_NAMES_64 NIBBLE_NAMES_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// d (64, 128) = a b^T, or + d: both are rows in shared memory.
#define NIBBLE_SCORES(type) \
  asm volatile( \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" NIBBLE_NAMES_64 "}, " \
      "%64, %65, p, 1, 1, 0, 0;\n}" \
      : NIBBLE_D32(d, 0), NIBBLE_D32(d, 32) : "l"(a), "l"(b), "r"(add))
template <class M>
__device__ void multiply_rows(float (&d)[64], uint64_t a, uint64_t b, int add) {
  if constexpr (std::is_same_v<M, __half>) {
    NIBBLE_SCORES("f16");
  } else {
    NIBBLE_SCORES("bf16");
  }
}

// d (64, 128 or 64) += a b: a in registers, b columns in shared memory.
#define NIBBLE_SUMS_64(type) \
  asm volatile( \
      "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" NIBBLE_NAMES_64 "}, " \
      "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}" \
      : NIBBLE_D32(d, 0), NIBBLE_D32(d, 32) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define NIBBLE_SUMS_32(type) \
  asm volatile( \
      "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" NIBBLE_NAMES_32 "}, " \
      "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}" \
      : NIBBLE_D32(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
template <class M>
__device__ void add_product(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (std::is_same_v<M, __half>) {
    NIBBLE_SUMS_64("f16");
  } else {
    NIBBLE_SUMS_64("bf16");
  }
}
template <class M>
__device__ void add_product(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (std::is_same_v<M, __half>) {
    NIBBLE_SUMS_32("f16");
  } else {
    NIBBLE_SUMS_32("bf16");
  }
}

#undef NIBBLE_SUMS_32
#undef NIBBLE_SUMS_64
#undef NIBBLE_SCORES
#undef NIBBLE_NAMES_64
#undef NIBBLE_NAMES_32
#undef NIBBLE_D32
#undef NIBBLE_D8
// clang-format on

// What this thread has written to shared memory, tensor cores may read once a barrier says so.
__device__ inline void let_tensor_cores_read() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#endif

}  // namespace nibble::kernels::cuda
