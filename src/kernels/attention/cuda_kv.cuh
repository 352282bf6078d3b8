// A cache of keys and values on a card: where a row lies, and how its numbers are held. What is
// stored is what the CPU stores (reference.cc), bit for bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/attention/kv_cache.h"
#include "kernels/cuda/device.cuh"

namespace nibble::kernels::cuda {

// A head's part of the page that holds a token.
__device__ inline char* head_of(const CudaKv& kv, int64_t head, int64_t token) {
  return static_cast<char*>(const_cast<void*>(kv.pages[token / kv.page_tokens])) +
         head * kv.head_bytes;
}

template <class T>
__device__ T* key_row(const CudaKv& kv, int64_t head, int64_t token) {
  return reinterpret_cast<T*>(head_of(kv, head, token)) + token % kv.page_tokens * kv.key_dim;
}

template <class T>
__device__ T* value_row(const CudaKv& kv, int64_t head, int64_t token) {
  return reinterpret_cast<T*>(head_of(kv, head, token) + kv.key_bytes) +
         token % kv.page_tokens * kv.value_pad;
}

// A token's own scale of its key, or of its value.
__device__ inline float* own_scale(const CudaKv& kv, int64_t head, int64_t token, bool of_value) {
  return reinterpret_cast<float*>(head_of(kv, head, token) + kv.scale_offset) +
         (of_value ? kv.page_tokens : 0) + token % kv.page_tokens;
}

__device__ inline float head_scale(const CudaKv& kv, int64_t head, bool of_value) {
  return kv.scales == nullptr ? 1.0f : kv.scales[(of_value ? kv.heads : 0) + head];
}
__device__ inline float head_zero(const CudaKv& kv, int64_t head, bool of_value) {
  return kv.scales == nullptr ? 0.0f : kv.scales[(of_value ? 3 : 2) * kv.heads + head];
}

// How one row is held; of floats, as they are.
struct RowCode {
  float scale = 1;
  float zero = 0;
};

// The value of a code, before scale and zero point.
__device__ inline float value_of(int32_t, float v) { return v; }
__device__ inline float value_of(int32_t, __half v) { return __half2float(v); }
__device__ inline float value_of(int32_t, __nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline float value_of(int32_t type, uint8_t code) {
  if (type == static_cast<int32_t>(KvType::kS8))
    return static_cast<float>(static_cast<int8_t>(code));
  const auto format = type == static_cast<int32_t>(KvType::kE4M3) ? __NV_E4M3 : __NV_E5M2;
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, format)));
}

template <class T>
__device__ T encode(int32_t type, RowCode how, float v);
template <>
__device__ inline float encode<float>(int32_t, RowCode, float v) {
  return v;
}
template <>
__device__ inline __half encode<__half>(int32_t, RowCode, float v) {
  return __float2half_rn(v);
}
template <>
__device__ inline __nv_bfloat16 encode<__nv_bfloat16>(int32_t, RowCode, float v) {
  return __float2bfloat16_rn(v);
}
template <>
__device__ inline uint8_t encode<uint8_t>(int32_t type, RowCode how, float v) {
  if (type == static_cast<int32_t>(KvType::kS8)) {
    const float rounded = nearbyintf(v / how.scale + how.zero);
    return static_cast<uint8_t>(static_cast<int8_t>(fminf(fmaxf(rounded, -128.0f), 127.0f)));
  }
  const auto format = type == static_cast<int32_t>(KvType::kE4M3) ? __NV_E4M3 : __NV_E5M2;
  return __nv_cvt_float_to_fp8(v / how.scale, __NV_SATFINITE, format);
}

// To the output of a step, from element `at` on.
__device__ inline void put_out(const CudaStep& step, int64_t at, float v) {
  if (step.out_is_bf16 != 0) return put(v, static_cast<__nv_bfloat16*>(step.out) + at);
  put(v, static_cast<float*>(step.out) + at);
}
__device__ inline void put_out_2(const CudaStep& step, int64_t at, float2 v) {
  if (step.out_is_bf16 != 0) return put_2(v, static_cast<__nv_bfloat16*>(step.out) + at);
  put_2(v, static_cast<float*>(step.out) + at);
}
__device__ inline void put_out_4(const CudaStep& step, int64_t at, float4 v) {
  if (step.out_is_bf16 != 0) return put_4(v, static_cast<__nv_bfloat16*>(step.out) + at);
  put_4(v, static_cast<float*>(step.out) + at);
}

// Magnitudes compare like the integers of their bits, nan above inf.
__device__ inline int magnitude(float v) { return __float_as_int(fabsf(v)); }

// How a row is held whose largest magnitude is `most`. Notes a row that is not finite.
__device__ inline RowCode code_for(const CudaKv& kv, int64_t head, int64_t token, bool of_value,
                                   int most, int lane) {
  constexpr int kInfinity = 0x7f800000;
  if (most >= kInfinity && lane == 0) atomicMin(kv.first_bad, static_cast<long long>(token));
  if (kv.scale_offset < 0) return {head_scale(kv, head, of_value), head_zero(kv, head, of_value)};
  const auto type = static_cast<KvType>(kv.type);
  const float range = type == KvType::kE4M3 ? 448.0f : type == KvType::kE5M2 ? 57344.0f : 127.0f;
  const float scale = (most >= kInfinity ? INFINITY : __int_as_float(most)) / range;
  if (lane == 0) *own_scale(kv, head, token, of_value) = scale > 0 ? scale : 1.0f;
  return {scale > 0 ? scale : 1.0f, 0.0f};
}

}  // namespace nibble::kernels::cuda
