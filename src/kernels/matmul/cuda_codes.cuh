// Codes of a CudaWeight as float32 numbers, eight at a time.
#pragma once

#include "kernels/cuda/device.cuh"

namespace nibble::kernels::cuda {

constexpr int kChunk = 8;

// Values of all codes in shared memory, for code_bits of 4 and 8. Call with the whole block.
template <int kBits>
__device__ void load_values(const CudaWeight& w, float* values) {
  if constexpr (kBits <= 8) {
    for (int i = threadIdx.x; i < (1 << kBits); i += blockDim.x) values[i] = w.value[i];
    __syncthreads();
  }
}

// The codes at inputs [k, k + 8) of a row, as they are valued without scale. Rows are padded to 32
// codes, so that no check is needed.
template <int kBits>
__device__ void codes_of(const CudaWeight& w, const float* values, int64_t n, int k,
                         float (&v)[kChunk]) {
  const auto* row = static_cast<const char*>(w.code) + n * w.row_bytes;
  if constexpr (kBits == 4) {
    const uint32_t codes = *reinterpret_cast<const uint32_t*>(row + k / 2);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v[i] = values[codes >> (4 * i) & 15u];
  } else if constexpr (kBits == 8) {
    const uint2 codes = *reinterpret_cast<const uint2*>(row + k);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      v[i] = values[(i < 4 ? codes.x : codes.y) >> (8 * (i % 4)) & 255u];
    }
  } else if constexpr (kBits == 16) {
    const uint4 codes = *reinterpret_cast<const uint4*>(row + 2 * k);
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const auto bits = static_cast<unsigned short>(words[i / 2] >> (16 * (i % 2)));
      v[i] = w.is_bf16 != 0 ? __uint_as_float(uint32_t{bits} << 16)
                            : __half2float(__ushort_as_half(bits));
    }
  } else {
    const auto* from = reinterpret_cast<const float4*>(row + 4 * k);
    const float4 a = from[0];
    const float4 b = from[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
  }
}

// weight_format.h's formula. Compiled without fused multiply-add: the numbers are the canonical
// ones, bit for bit.
__device__ inline float scaled(const CudaWeight& w, int64_t n, int64_t scale_row, int g, float v) {
  if (w.zero != nullptr) v -= w.zero[n * w.groups + g];
  if (w.scale != nullptr) v *= w.scale[scale_row + g];
  if (w.offset != nullptr) v += w.offset[n * w.groups + g];
  return v;
}

// The weights at inputs [k, k + 8) of row n, in the order of the codes; beyond the row's end they
// are anything finite that the padding holds.
template <int kBits>
__device__ void weights_of(const CudaWeight& w, const float* values, int64_t n, int k,
                           float (&v)[kChunk]) {
  codes_of<kBits>(w, values, n, k, v);
  if (w.scale == nullptr && w.zero == nullptr && w.offset == nullptr) return;
  const int64_t scale_row = n / w.group_n * w.groups;
  const int group = static_cast<int>(w.group_k);
  const int last = static_cast<int>(w.groups) - 1;
  if (group % kChunk == 0 || last == 0) {
    const int g = last == 0 ? 0 : k / group;
    const int there = g < last ? g : last;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v[i] = scaled(w, n, scale_row, there, v[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const int g = (k + i) / group;
      v[i] = scaled(w, n, scale_row, g < last ? g : last, v[i]);
    }
  }
}

// call.operator()<kBits>() for the weight's bits.
template <class Call>
void with_bits(const CudaWeight& w, const Call& call) {
  switch (w.code_bits) {
    case 4:
      return call.template operator()<4>();
    case 8:
      return call.template operator()<8>();
    case 16:
      return call.template operator()<16>();
    default:
      return call.template operator()<32>();
  }
}

}  // namespace nibble::kernels::cuda
