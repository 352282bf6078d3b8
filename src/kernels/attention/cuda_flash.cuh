// What the two kernels of cuda_flash.h share: products of fragments of 16 rows of queries (mma.sync
// m16n8k16), the softmax that is carried along, and how rows come into shared memory.
//
// A warp has 16 rows. In a fragment of results, a thread has of rows lane / 4 and lane / 4 + 8 the
// columns 2 (lane % 4) and the next of every 8.
#pragma once

#include <type_traits>

#include "kernels/attention/cuda_flash.h"
#include "kernels/attention/cuda_kv.cuh"
#include "kernels/rope/cuda.cuh"

namespace nibble::kernels::cuda {

constexpr float kLog2E = 1.44269504f;

// The type that products are made of: that of the cache; bf16 for codes, which it holds exactly.
template <class S>
using Factor = std::conditional_t<std::is_same_v<S, __half>, __half, __nv_bfloat16>;

// Bytes from row to row in shared memory: 16 more than a row, so that 8 rows lie in all banks.
template <class T, int D>
constexpr int kPitch = D* static_cast<int>(sizeof(T)) + 16;

template <class M>
__device__ uint32_t pair_of(float a, float b) {
  if constexpr (std::is_same_v<M, __half>) {
    const __half2 pair = __floats2half2_rn(a, b);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// What rounding to a pair has lost.
template <class M>
__device__ uint32_t rest_of(uint32_t pair, float a, float b) {
  float2 kept;
  if constexpr (std::is_same_v<M, __half>) {
    kept = __half22float2(*reinterpret_cast<const __half2*>(&pair));
  } else {
    kept = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
  }
  return pair_of<M>(a - kept.x, b - kept.y);
}

// A warp keeps a token's key or value, which stands at `position`: in the cache, and if `to` is not
// null also there, with its scale.
template <class S, int D>
__device__ void keep_row(const CudaStep& step, int64_t kv_head, int64_t token, int64_t position,
                         bool of_value, char* to, float* scale, int lane) {
  using Four = std::conditional_t<sizeof(S) == 1, uint32_t, uint2>;
  constexpr int kRounds = (D + 4 * kWarp - 1) / (4 * kWarp);
  const CudaKv& kv = step.kv;
  const float* value = step.v + token * step.ldv + kv_head * D;
  const float* key = step.k + token * step.ldk + kv_head * D;
  float4 v[kRounds];
  int most = 0;
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int d = 4 * (lane + i * kWarp);
    v[i] = {0, 0, 0, 0};
    if (d >= D) continue;
    v[i] = of_value ? *reinterpret_cast<const float4*>(value + d) : turned_4(step, token, key, d);
    most = max(max(most, max(magnitude(v[i].x), magnitude(v[i].y))),
               max(magnitude(v[i].z), magnitude(v[i].w)));
  }
  RowCode how;
  if constexpr (sizeof(S) == 1) {
    how = code_for(kv, kv_head, position, of_value, over_warp<Max>(most), lane);
    if (to != nullptr && lane == 0) *scale = how.scale;
  }
  S* row = of_value ? value_row<S>(kv, kv_head, position) : key_row<S>(kv, kv_head, position);
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int d = 4 * (lane + i * kWarp);
    if (d >= D) continue;
    alignas(8)
        const S codes[4] = {encode<S>(kv.type, how, v[i].x), encode<S>(kv.type, how, v[i].y),
                            encode<S>(kv.type, how, v[i].z), encode<S>(kv.type, how, v[i].w)};
    const Four four = *reinterpret_cast<const Four*>(codes);
    *reinterpret_cast<Four*>(row + d) = four;
    if (to != nullptr) *reinterpret_cast<Four*>(to + d * static_cast<int>(sizeof(S))) = four;
  }
}

#if __CUDA_ARCH__ >= 900

// d (16, 8) += a (16, 16) b (16, 8).
template <class M>
__device__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<M, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Four 8 x 8 matrices of 16-bit numbers; lane i has the address of row i % 8 of matrix i / 8.
__device__ inline void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void load_matrices_turned(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// 16 bytes to shared memory, later; zeros where there are none.
__device__ inline void copy_16(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}
__device__ inline void copy_4(void* to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(there ? 4 : 0)
               : "memory");
}
__device__ inline void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All copies but those of the last `kLeft` groups have come.
template <int kLeft>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// 16 codes to bf16, which holds them exactly.
__device__ inline void widen(int32_t type, float zero, const uint4& codes, uint4* out) {
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  uint32_t wide[8];
  if (type == static_cast<int32_t>(KvType::kS8)) {
    // A byte after the exponent of 2^23 is that number plus the byte.
    const float less = 8388608.0f + 128.0f + zero;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t word = words[i / 2] ^ 0x80808080u;
      const uint32_t a = __byte_perm(word, 0x4b000000u, i % 2 == 0 ? 0x7440 : 0x7442);
      const uint32_t b = __byte_perm(word, 0x4b000000u, i % 2 == 0 ? 0x7441 : 0x7443);
      wide[i] = pair_of<__nv_bfloat16>(__uint_as_float(a) - less, __uint_as_float(b) - less);
    }
  } else {
    const bool e4m3 = type == static_cast<int32_t>(KvType::kE4M3);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto two = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> (i % 2 * 16));
      const __half2 half = e4m3 ? __half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3))
                                : __half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E5M2));
      const float2 v = __half22float2(half);
      wide[i] = pair_of<__nv_bfloat16>(v.x, v.y);
    }
  }
  out[0] = make_uint4(wide[0], wide[1], wide[2], wide[3]);
  out[1] = make_uint4(wide[4], wide[5], wide[6], wide[7]);
}

// Step k of 16 keys or dimensions d of 16 values, rows of shared memory, as factors: the first two
// words belong to keys (or dimensions) 0 to 7, the others to 8 to 15.
template <class M, int D>
__device__ void load_keys(uint32_t (&b)[4], const char* keys, int k, int lane) {
  load_matrices(b,
                keys + (lane / 16 * 8 + lane % 8) * kPitch<M, D> + (k * 16 + lane / 8 % 2 * 8) * 2);
}
template <class M, int D>
__device__ void load_values(uint32_t (&b)[4], const char* values, int d, int lane) {
  load_matrices_turned(
      b, values + (lane / 8 % 2 * 8 + lane % 8) * kPitch<M, D> + (d * 16 + lane / 16 * 8) * 2);
}

// The softmax of a thread's two rows: the largest score, the sum of e^(s - top) of its columns.
struct Softmax {
  float top[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
};

// Scores to shares of e^(s - top); what was summed before is brought to the new top.
template <int kTiles, int kSums>
__device__ void carry(Softmax& softmax, float (&s)[kTiles][4], float (&o)[kSums][4]) {
  float kept[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = softmax.top[r];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) top = fmaxf(top, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float base = top == -INFINITY ? 0.0f : top * kLog2E;  // no key yet: all shares are 0
    kept[r] = exp2f(fmaf(softmax.top[r], kLog2E, -base));
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      s[j][2 * r] = exp2f(fmaf(s[j][2 * r], kLog2E, -base));
      s[j][2 * r + 1] = exp2f(fmaf(s[j][2 * r + 1], kLog2E, -base));
      sum += s[j][2 * r] + s[j][2 * r + 1];
    }
    softmax.sum[r] = fmaf(softmax.sum[r], kept[r], sum);
    softmax.top[r] = top;
  }
  if (!__any_sync(0xffffffffu, kept[0] != 1.0f || kept[1] != 1.0f)) return;
#pragma unroll
  for (int d = 0; d < kSums; ++d) {
    o[d][0] *= kept[0];
    o[d][1] *= kept[0];
    o[d][2] *= kept[1];
    o[d][3] *= kept[1];
  }
}

// The sums of the four threads of a row together.
__device__ inline void finish(Softmax& softmax) {
#pragma unroll
  for (float& sum : softmax.sum) {
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  }
}

// Scores as the model has them: token scales, the soft cap, and which keys a row sees.
struct Sight {
  int first[2];  // of the thread's rows, from the tile's first key on
  int end[2];
};
template <int kTiles>
__device__ void mask(float (&s)[kTiles][4], const Sight& sight, int lane) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = j * 8 + lane % 4 * 2 + i % 2;
      if (key < sight.first[i / 2] || key >= sight.end[i / 2]) s[j][i] = -INFINITY;
    }
  }
}
template <int kTiles>
__device__ void cap(float (&s)[kTiles][4], float soft_cap) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[j][i] = soft_cap * tanhf(s[j][i] / soft_cap);
  }
}
// s *= of_key[column].
template <int kTiles>
__device__ void scale_columns(float (&s)[kTiles][4], const float* of_key, int lane) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    const float2 scale = *reinterpret_cast<const float2*>(of_key + j * 8 + lane % 4 * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) s[j][i] *= i % 2 == 0 ? scale.x : scale.y;
  }
}

#endif  // __CUDA_ARCH__ >= 900

// call.operator()<S, D>() for the cache of a step that fits.
template <int D, class Call>
void with_stored(int32_t type, const Call& call) {
  switch (static_cast<KvType>(type)) {
    case KvType::kBf16:
      return call.template operator()<__nv_bfloat16, D>();
    case KvType::kF16:
      return call.template operator()<__half, D>();
    default:
      return call.template operator()<uint8_t, D>();
  }
}
template <class Call>
void with_shape(const CudaKv& kv, const Call& call) {
  switch (kv.key_dim) {
    case 32:
      return with_stored<32>(kv.type, call);
    case 64:
      return with_stored<64>(kv.type, call);
    case 80:
      return with_stored<80>(kv.type, call);
    case 96:
      return with_stored<96>(kv.type, call);
    case 128:
      return with_stored<128>(kv.type, call);
    default:
      return with_stored<256>(kv.type, call);
  }
}

}  // namespace nibble::kernels::cuda
