// Instructions of Hopper that CUDA C++ has no functions for: barriers in shared memory, bulk
// copies, wgmma, clusters. Compiled for sm_90a only.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace nibble::kernels::cuda::sm90 {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void barrier_inits_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Whether a wait would be over.
__device__ inline bool barrier_is_done(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// Copies that tell the barrier of their bytes.
__device__ inline void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier,
                                 uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], "
      "%2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
// Into the cache of the card alone.
__device__ inline void prefetch_bulk(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
__device__ inline void copy_tile(uint32_t to, const CUtensorMap* map, int column, int row,
                                 uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ inline void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ inline uint64_t evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline uint64_t evict_normal() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline uint64_t evict_last() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// True in one thread of a warp. Where this is asked, the compiler knows that it is one.
__device__ inline bool elect() {
  uint32_t is;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}"
      : "=r"(is));
  return is != 0;
}

// Registers of a warpgroup's threads, of what the block has.
template <int kCount>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// This block's shared address as it is in `rank`'s block of the cluster.
__device__ inline uint32_t address_in(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// A barrier of `threads` threads of the block; 0 is __syncthreads.
__device__ inline void sync_some(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same, without waiting for the others.
__device__ inline void arrive_some(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// What another block may write or read meanwhile.
__device__ inline float4 load_relaxed(const float4* p) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
__device__ inline void store_relaxed(float4* p, float4 v) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.x), "f"(v.y),
               "f"(v.z), "f"(v.w)
               : "memory");
}

// Four 8 x 8 matrices of 16 bits; lane i tells where column i % 8 of matrix i / 8 goes.
__device__ inline void store_matrices_turned(uint32_t address, const uint32_t (&v)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
      : "memory");
}

__device__ inline uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ inline uint32_t load_shared_u32(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
__device__ inline uint32_t load_shared_u16(uint32_t address) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
  return v;
}

__device__ inline void store_shared(uint32_t address, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y),
               "f"(v.z), "f"(v.w)
               : "memory");
}

// The same number, which the compiler then does not compute again in a loop.
__device__ inline int once(int v) {
  asm volatile("" : "+r"(v));
  return v;
}

// wgmma's description of a K-major tile in shared memory with rows of 128 bytes, swizzled (eight
// rows are 1024 bytes): the low word, and the high one, which is the same for all. Steps along a
// row add to the low one by 16 bytes. In a cluster an address has the block's rank in its high
// bits.
__device__ constexpr uint32_t describe_tile(uint32_t address) {
  return (address & 0x3ffffu) >> 4 | 1u << 16;
}
constexpr uint32_t kTileHigh = 0x40000040;  // the same, for what holds whole descriptors
#define NIBBLE_TILE_HIGH "0x40000040"

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving reads of accumulators before a wait.
template <int kCount>
__device__ inline void keep(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// d (64 rows of A, tokens of B) = A B^T + d or A B^T: bf16 from registers and from shared memory,
// sums in f32. d[4 j + 2 h + i] is row 16 warp + g + 8 h, token 8 j + 2 t + i.
// clang-format off
#define NIBBLE_D8(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
  "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define NIBBLE_D16(d) NIBBLE_D8(d, 0), NIBBLE_D8(d, 8)
#define NIBBLE_D24(d) NIBBLE_D16(d), NIBBLE_D8(d, 16)
#define NIBBLE_D32(d) NIBBLE_D24(d), NIBBLE_D8(d, 24)
#define NIBBLE_D40(d) NIBBLE_D32(d), NIBBLE_D8(d, 32)
#define NIBBLE_D48(d) NIBBLE_D40(d), NIBBLE_D8(d, 40)
#define NIBBLE_D56(d) NIBBLE_D48(d), NIBBLE_D8(d, 48)
#define NIBBLE_D60(d) NIBBLE_D56(d), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define NIBBLE_D64(d) NIBBLE_D56(d), NIBBLE_D8(d, 56)
#define NIBBLE_D72(d) NIBBLE_D64(d), NIBBLE_D8(d, 64)
#define NIBBLE_D80(d) NIBBLE_D72(d), NIBBLE_D8(d, 72)
#define NIBBLE_D88(d) NIBBLE_D80(d), NIBBLE_D8(d, 80)
#define NIBBLE_D96(d) NIBBLE_D88(d), NIBBLE_D8(d, 88)
#define NIBBLE_NAMES16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NIBBLE_NAMES24 NIBBLE_NAMES16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NIBBLE_NAMES32 NIBBLE_NAMES24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define NIBBLE_NAMES40 NIBBLE_NAMES32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NIBBLE_NAMES48 NIBBLE_NAMES40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NIBBLE_NAMES56 NIBBLE_NAMES48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NIBBLE_NAMES60 NIBBLE_NAMES56 ", %56, %57, %58, %59"
#define NIBBLE_NAMES64 NIBBLE_NAMES56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NIBBLE_NAMES72 NIBBLE_NAMES64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define NIBBLE_NAMES80 NIBBLE_NAMES72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define NIBBLE_NAMES88 NIBBLE_NAMES80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define NIBBLE_NAMES96 NIBBLE_NAMES88 ", %88, %89, %90, %91, %92, %93, %94, %95"

// Sums of a thread, tokens, and the numbers of the operands after the sums: a's, b's and add's.
#define NIBBLE_WGMMA(sums, tokens, a0, a1, a2, a3, at_b, at_add)                                    \
  __device__ inline void wgmma(float (&d)[sums], const uint32_t (&a)[4], uint32_t b, int add) {     \
    asm volatile(                                                                                   \
        "{\n.reg .pred p;\n.reg .b64 t;\nsetp.ne.b32 p, %" #at_add ", 0;\nmov.b64 t, {%" #at_b ", " \
        NIBBLE_TILE_HIGH "};\nwgmma.mma_async.sync.aligned.m64n" #tokens "k16.f32.bf16.bf16 {"      \
        NIBBLE_NAMES##sums "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, t, p, 1, 1, 0;\n}"         \
        : NIBBLE_D##sums(d)                                                                         \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));                            \
  }

NIBBLE_WGMMA(16, 32, 16, 17, 18, 19, 20, 21)
NIBBLE_WGMMA(24, 48, 24, 25, 26, 27, 28, 29)
NIBBLE_WGMMA(32, 64, 32, 33, 34, 35, 36, 37)
NIBBLE_WGMMA(40, 80, 40, 41, 42, 43, 44, 45)
NIBBLE_WGMMA(48, 96, 48, 49, 50, 51, 52, 53)
NIBBLE_WGMMA(56, 112, 56, 57, 58, 59, 60, 61)
NIBBLE_WGMMA(60, 120, 60, 61, 62, 63, 64, 65)
NIBBLE_WGMMA(64, 128, 64, 65, 66, 67, 68, 69)
NIBBLE_WGMMA(72, 144, 72, 73, 74, 75, 76, 77)
NIBBLE_WGMMA(80, 160, 80, 81, 82, 83, 84, 85)
NIBBLE_WGMMA(96, 192, 96, 97, 98, 99, 100, 101)

#undef NIBBLE_TILE_HIGH
#undef NIBBLE_WGMMA
#undef NIBBLE_D8
#undef NIBBLE_D16
#undef NIBBLE_NAMES16
#undef NIBBLE_D24
#undef NIBBLE_NAMES24
#undef NIBBLE_D32
#undef NIBBLE_NAMES32
#undef NIBBLE_D40
#undef NIBBLE_NAMES40
#undef NIBBLE_D48
#undef NIBBLE_NAMES48
#undef NIBBLE_D56
#undef NIBBLE_NAMES56
#undef NIBBLE_D60
#undef NIBBLE_NAMES60
#undef NIBBLE_D64
#undef NIBBLE_NAMES64
#undef NIBBLE_D72
#undef NIBBLE_NAMES72
#undef NIBBLE_D80
#undef NIBBLE_NAMES80
#undef NIBBLE_D88
#undef NIBBLE_NAMES88
#undef NIBBLE_D96
#undef NIBBLE_NAMES96
// clang-format on

#endif

}  // namespace nibble::kernels::cuda::sm90
