// The operands of products of 1 to 16 tokens (cuda_w4_few_device.cuh): codes, which become bf16 in
// registers, and x, which lies in shared memory together with its sums.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/matmul/cuda_sm90.cuh"
#include "kernels/matmul/cuda_w4_few_work.cuh"

namespace nibble::kernels::cuda {
namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

using namespace sm90;  // NOLINT: instructions

// The named barriers of a block, beside 0, which tells that the others are made: of the reducers;
// of consumers and reducers, where sums are handed over; of consumers, where x is.
constexpr int kReducersSync = 1;
constexpr int kSummedSync = 2;
constexpr int kInputsSync = 3;

__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from));
}
__device__ inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                           const float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
}
// What a warp has of x in shared memory, and what it makes of it there.
struct Inputs {
  uint8_t* x;
  float* sums;
  int stride;  // of x
};

// The codes of a lane for 64 inputs of a row tile; step(j) is the A operand of 16 of them.
//
// A code masked out where it lies, in the low byte of a bf16, is one: code 2^-133, or four bits
// higher code 2^-129, also where its top bit is the exponent's lowest. So products are exact with x
// times 2^64, and a mask is all that a pair costs. Bytes are made unsigned. What codes have too
// much, the zero, is taken off the sums: zero times the sum of x, with which they begin where all
// zeros are the same. The scales' sums have the powers undone.
constexpr float kXPower = 0x1p64f;
constexpr uint32_t kXPowerPair = 0x5f805f80u;
template <class S>
struct Codes {
  uint4 words[S::kBits / 4];

  static constexpr float kUndo0 = 0x1p69f;
  static constexpr float kUndo1 = S::kBits == 4 ? 0x1p65f : 0x1p69f;
  static constexpr float kPower1 = S::kBits == 4 ? 16 : 1;  // of rows g + 8 against rows g
  // What is too much in each code: minus the zero there is, or -1 for those given; twice.
  static constexpr uint32_t kMinus = S::kZeros       ? 0x80018001u
                                     : S::kBits == 4 ? 0x80088008u
                                                     : 0x80808080u;

  __device__ void load(const uint8_t* from) {
#pragma unroll
    for (int i = 0; i < S::kBits / 4; ++i) words[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  __device__ uint32_t word(int i) const {
    const uint4& v = words[i / 4];
    return i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
  }
  __device__ void step(int j, uint32_t (&a)[4]) const {
    if constexpr (S::kBits == 4) {
      const uint32_t low = word(j);
      const uint32_t high = low >> 8;
      a[0] = low & 0x000f000fu;
      a[1] = low & 0x00f000f0u;
      a[2] = high & 0x000f000fu;
      a[3] = high & 0x00f000f0u;
    } else {
      a[0] = (word(2 * j) & 0x00ff00ffu) ^ 0x00800080u;
      a[1] = (word(2 * j) >> 8 & 0x00ff00ffu) ^ 0x00800080u;
      a[2] = (word(2 * j + 1) & 0x00ff00ffu) ^ 0x00800080u;
      a[3] = (word(2 * j + 1) >> 8 & 0x00ff00ffu) ^ 0x00800080u;
    }
  }
};

// Eight inputs times 2^64 as bf16.
__device__ inline uint4 inputs_of(const uint4 (&v)[1]) {
  return {mul_bf16x2(v[0].x, kXPowerPair), mul_bf16x2(v[0].y, kXPowerPair),
          mul_bf16x2(v[0].z, kXPowerPair), mul_bf16x2(v[0].w, kXPowerPair)};
}
__device__ inline uint4 inputs_of(const uint4 (&v)[2]) {
  const auto pair = [](uint32_t a, uint32_t b) {
    const __nv_bfloat162 two =
        __floats2bfloat162_rn(__uint_as_float(a) * kXPower, __uint_as_float(b) * kXPower);
    return *reinterpret_cast<const uint32_t*>(&two);
  };
  return {pair(v[0].x, v[0].y), pair(v[0].z, v[0].w), pair(v[1].x, v[1].y), pair(v[1].z, v[1].w)};
}

// All of this block's x, by its consumer warps: 256 inputs of a token at a time, eight a lane, and
// several of these are asked for before the first is looked at. They follow each other by units
// where a warp has more of these than of tokens, else by tokens.
template <class S>
__device__ void load_x(const Work& w, const Place& place, const Inputs& to) {
  constexpr int kWords = S::kXIsF32 ? 2 : 1;
  constexpr int kAtOnce = S::kTokenTiles == 1 ? 4 : 8;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int half = static_cast<int>(threadIdx.x) % 32 / 16;
  const int in = static_cast<int>(threadIdx.x) % 16 * 8;
  const int pairs = (place.units + 1) / 2;
  int first_pair = warp;  // where there are more warps than pairs, these share the tokens
  int first_token = 0;
  int share = 1;
  if (pairs < S::kWarps) {
    for (; first_pair >= pairs; first_pair -= pairs) ++first_token;
    for (int left = S::kWarps - 2 * pairs; left >= 0; left -= pairs) ++share;
  }
  const bool by_units = pairs > w.m * S::kWarps;
  const int unit_step = by_units ? 2 * S::kWarps : 0;
  const int token_step = by_units ? 0 : share;
  const int64_t from_step = by_units ? unit_step * kUnit : token_step * w.ldx;
  const int to_step = (by_units ? unit_step * kUnit : token_step * to.stride) * 2;
  const int next_unit = by_units ? kAtOnce * unit_step : 2 * S::kWarps;
  const int next_token = by_units ? 1 : kAtOnce * share;
  const int last_unit = place.units - half;
  const auto some = [&](int first_unit, int first, int i) {
    return first_unit + i * unit_step < last_unit && first + i * token_step < w.m;
  };
  const auto load = [&](int unit, int token) {
    const auto* from = static_cast<const typename S::X*>(w.x) + token * w.ldx +
                       (place.first_unit + unit + half) * kUnit + in;
    uint8_t* at = to.x + (token * to.stride + (unit + half) * kUnit + in) * 2;
    uint4 v[kAtOnce][kWords];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool is =
          some(unit, token, i) &&
          (!S::kXIsF32 || (place.first_unit + unit + half + i * unit_step) * kUnit + in < w.k);
#pragma unroll
      for (int j = 0; j < kWords; ++j) {
        v[i][j] = make_uint4(0, 0, 0, 0);
        if (is) v[i][j] = __ldcg(reinterpret_cast<const uint4*>(from + j * 4));
      }
      from += from_step;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (some(unit, token, i)) *reinterpret_cast<uint4*>(at) = inputs_of(v[i]);
      at += to_step;
    }
  };
  wait_for_previous();
  if (first_token < share) {
    for (int unit = 2 * first_pair; unit < place.units; unit += next_unit) {
      for (int token = first_token; token < w.m; token += next_token) load(unit, token);
    }
  }
  sync_some(kInputsSync, S::kConsumers);
}

// The sums of x that go with a unit's scales, as Codes needs them, by one product more a step.
template <class S>
__device__ void sum_x(float* sums, uint32_t x_at) {
  constexpr bool kFew = S::kTokenTiles == 1;
  constexpr int kSteps = 8 / S::kScaleRows;
  using C = Codes<S>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t x[4];
#pragma unroll
  for (int r = 0; r < S::kScaleRows; ++r) {
    float sum[2][4] = {};
#pragma unroll
    for (int q = 0; q < kSteps; ++q) {
      const int j = r * kSteps + q;
      float(&to)[4] = sum[q % 2];
      if (!kFew || j % 2 == 0) load_matrices(x, x_at + j * 32);
      if constexpr (kFew) {
        mma(to, {C::kMinus, C::kMinus, C::kMinus, C::kMinus}, x[j % 2 * 2], x[j % 2 * 2 + 1], to);
      } else {
        mma(to, x, C::kMinus, C::kMinus, to);
      }
    }
    float* at = sums + r * S::kTokens;
    if constexpr (kFew) {
      if (lane < 4) {
        at[2 * lane] = sum[0][0] + sum[1][0];
        at[2 * lane + 1] = sum[0][1] + sum[1][1];
      }
    } else if (lane % 4 == 0) {
      at[lane / 4] = sum[0][0] + sum[1][0];
      at[lane / 4 + 8] = sum[0][2] + sum[1][2];
    }
  }
  __syncwarp();
}

#endif

}  // namespace
}  // namespace nibble::kernels::cuda
