// y = x W^T with 4- or 8-bit codes and 1 to 16 tokens on Hopper (compute capability 9.0): the time
// to read the codes, nearly.
//
// A strip of 64 rows at a time. The blocks of a cluster share its inputs: each holds its part of x
// in shared memory for good, so that x is read once a block. In a block
//
//   1 producer warp    copies stages of codes and scales into a ring (bulk copies, a barrier each);
//                      it does not wait for the kernel before this one, codes do not change. Some
//                      more of them it puts into the card's cache, so that memory works while that
//                      kernel ends and x comes
//   consumer warps     load x; then one has a unit of 128 inputs, or two share it, with two row
//                      tiles of 16 each; kSplit units at a time: codes become bf16 in registers
//                      (mma.m16n8k16), sums are f32 and are scaled once a unit, or once 32 or 64
//                      inputs
//   3 or 4             add what the consumers of a strip leave in shared memory, send other ranks
//     reducer warps    their rows, add what these sent and write y, while the consumers are at the
//                      next strip
//
// Sums are added in a fixed order: results do not change between calls.
//
// The kernel; cuda_w4_few.cu, which alone includes this, launches it.
#pragma once

#include "kernels/matmul/cuda_sm90.cuh"
#include "kernels/matmul/cuda_w4_few_work.cuh"

namespace nibble::kernels::cuda {
namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

using namespace sm90;  // NOLINT: instructions

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
template <int kCount>
__device__ void load_words(uint32_t (&v)[kCount], const uint8_t* from) {
  if constexpr (kCount == 4) {
    const auto all = *reinterpret_cast<const uint4*>(from);
    v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
  } else if constexpr (kCount == 2) {
    const auto all = *reinterpret_cast<const uint2*>(from);
    v[0] = all.x, v[1] = all.y;
  } else {
    v[0] = *reinterpret_cast<const uint32_t*>(from);
  }
}
__device__ inline uint32_t at_rank(uint32_t address, int rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// Four floats to another rank's shared memory, which its barrier is told of.
__device__ inline void send(uint32_t to, uint32_t barrier, const float (&v)[4]) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%2, %3, %4, %5}, "
      "[%1];" ::"r"(to),
      "r"(barrier), "r"(__float_as_uint(v[0])), "r"(__float_as_uint(v[1])),
      "r"(__float_as_uint(v[2])), "r"(__float_as_uint(v[3]))
      : "memory");
}

struct Barriers {
  uint32_t full, empty, sums_read, received;  // addresses of the first of each
  __device__ Barriers(uint32_t at, int stages)
      : full(at),
        empty(full + 8 * stages),
        sums_read(empty + 8 * stages),
        received(sums_read + 8) {}
};

// The named barriers of a block, beside 0, which tells that the others are made: of the reducers;
// of consumers and reducers, where sums are handed over; of consumers, where x is.
constexpr int kReducersSync = 1;
constexpr int kSummedSync = 2;
constexpr int kInputsSync = 3;

// Into the card's cache: w.ahead bytes of codes from unit u of a strip on, and their scales where
// these are neighbours.
template <class S>
__device__ void read_ahead(const Work& w, const Place& place, int strip, int u) {
  constexpr int kCovers = kUnit / S::kScaleRows;
  const bool neighbours = w.group <= kCovers;
  for (int left = w.ahead / S::kUnitCodes; left > 0 && strip < place.last; ++strip, u = 0) {
    const int units = min(place.units - u, left);
    if (units <= 0) continue;
    left -= units;
    const int i = weight_of(w, strip);
    const int64_t s = strip - w.first_strip[i];
    const int64_t unit = place.first_unit + u;
    prefetch_bulk(w.weight[i].codes + (s * w.units + unit) * S::kUnitCodes, units * S::kUnitCodes);
    if (!neighbours) continue;
    const int64_t row = s * w.groups + unit * S::kScaleRows;
    const int rows = units * S::kScaleRows;
    prefetch_bulk(w.weight[i].scales + row * kStrip * 2, rows * kStrip * 2);
    if constexpr (S::kZeros) prefetch_bulk(w.weight[i].zeros + row * kStrip, rows * kStrip);
  }
}

// A unit's rows of scales are neighbours when groups are not larger than what a row covers.
template <class S>
__device__ void produce(const Work& w, const Place& place, const Barriers& bars, uint32_t ring) {
  const uint64_t policy = evict_first();
  constexpr int kCovers = kUnit / S::kScaleRows;
  const bool neighbours = w.group <= kCovers;
  int slot = 0;
  uint32_t parity = 1;
  int done = 0;
  for (int strip = place.first; strip < place.last; ++strip) {
    const int i = weight_of(w, strip);
    const int64_t s = strip - w.first_strip[i];
    const uint8_t* codes = w.weight[i].codes + (s * w.units + place.first_unit) * S::kUnitCodes;
    const uint8_t* scales = w.weight[i].scales + s * w.groups * kStrip * 2;
    const uint8_t* zeros = S::kZeros ? w.weight[i].zeros + s * w.groups * kStrip : nullptr;
    for (int u = 0; u < place.units; u += S::kSplit) {
      const uint32_t bar = bars.full + 8 * slot;
      const uint32_t to = ring + slot * S::kStageBytes;
      barrier_wait(bars.empty + 8 * slot, parity);
      const int here = min(S::kSplit, place.units - u);
      const int rows = here * S::kScaleRows;
      barrier_expect(bar, here * S::kUnitCodes + rows * kStrip * (S::kZeros ? 3 : 2));
      copy_bulk(to, codes + int64_t{u} * S::kUnitCodes, here * S::kUnitCodes, bar, policy);
      const auto copy_rows = [&](int stage_row, int64_t row, int count) {
        copy_bulk(to + S::kCodeBytes + stage_row * kStrip * 2, scales + row * kStrip * 2,
                  count * kStrip * 2, bar, policy);
        if constexpr (S::kZeros) {
          copy_bulk(to + S::kCodeBytes + S::kScaleBytes + stage_row * kStrip, zeros + row * kStrip,
                    count * kStrip, bar, policy);
        }
      };
      const int row = (place.first_unit + u) * S::kScaleRows;
      if (neighbours) {
        copy_rows(0, row, rows);
      } else {
        for (int r = 0; r < rows; ++r) copy_rows(r, int64_t{row + r} * kCovers / w.group, 1);
      }
      if (++slot == w.stages) slot = 0, parity ^= 1;
      if (++done == w.early) {
        read_ahead<S>(w, place, strip, u + S::kSplit);
        if (w.early < w.stages) wait_for_earlier_grid();
      }
    }
  }
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
  wait_for_earlier_grid();
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

// Up to 8 tokens: codes are the first operand of products, sums [tile] of rows g and g + 8 (c / 2)
// and tokens 2t + c % 2. Up to 16: the second, with a product for rows 0 to 7 and one for 8 to 15
// of a tile; sums [tile][half] of tokens g and g + 8 (c / 2) and rows 2t + c % 2.
template <class S>
__device__ void consume(const Work& w, const Place& place, const Barriers& bars,
                        const uint8_t* ring, float* sums, const Inputs& inputs) {
  constexpr bool kFew = S::kTokenTiles == 1;
  constexpr int kHalves = S::kTokenTiles;
  constexpr int kTiles = S::kTiles;
  constexpr int kSteps = 8 / S::kScaleRows;  // of 16 inputs, for each scale
  constexpr int kBlockCodes = S::kUnitCodes / 2;
  constexpr int kTileCodes = kBlockCodes / 4;
  constexpr int kXRows = kFew ? 1 : 2;  // of scales: those of a lane's sums
  using C = Codes<S>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int row_warp = warp % S::kRowWarps;
  const int tile = row_warp * kTiles;
  const int mine = warp / S::kRowWarps;  // of kSplit
  load_x<S>(w, place, inputs);
  // Beyond the last token: another time the last.
  const int x_token = min(lane % S::kTokens, w.m - 1);
  const uint32_t x_first = shared_address(inputs.x) +
                           (x_token * inputs.stride + mine * kUnit + lane / S::kTokens * 8) * 2;
  // Each of the warps that share units has its own, to wait for none.
  const auto x_sums_of = [&](int u) {
    return inputs.sums + (row_warp * w.slice + u) * S::kScaleRows * S::kTokens;
  };
  int slot = 0;
  uint32_t parity = 0;
  for (int strip = place.first; strip < place.last; ++strip) {
    float sum[kTiles][kHalves][4] = {};
    uint32_t x_at = x_first;
    for (int u = mine; u < place.units + mine; u += S::kSplit) {
      float* x_sums = x_sums_of(u);
      if (strip == place.first && u < place.units) sum_x<S>(x_sums, x_at);
      barrier_wait(bars.full + 8 * slot, parity);
      if (u < place.units) {
        const uint8_t* stage = ring + slot * S::kStageBytes;
        const uint8_t* codes =
            stage + mine * S::kUnitCodes + tile * kTileCodes + lane * (kTileCodes / 32);
        C code[kTiles];
        uint32_t x[4];
#pragma unroll
        for (int r = 0; r < S::kScaleRows; ++r) {
          const int row = mine * S::kScaleRows + r;
          const uint8_t* scales = stage + S::kCodeBytes + row * kStrip * 2;
          const auto at = [&](int o) { return (kFew ? g : 2 * t + o) * 8 + tile * 2; };
          uint32_t pairs[kXRows][kTiles];
#pragma unroll
          for (int o = 0; o < kXRows; ++o) load_words(pairs[o], scales + at(o) * 2);
          // Of a lane's sums: what zeros, or a zero of 1, take off.
          float minus[kHalves][4];
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const float x_sum = x_sums[r * S::kTokens + (kFew ? 2 * t + c % 2 : g + c / 2 * 8)];
            minus[0][c] = kFew && c > 1 ? x_sum * C::kPower1 : x_sum;
            if constexpr (!kFew) minus[1][c] = x_sum * C::kPower1;
          }
          constexpr float kNothing[kHalves][4] = {};
          const float(&begin)[kHalves][4] = *(S::kZeros ? &kNothing : &minus);
          float part[kTiles][kHalves][4];
#pragma unroll
          for (int q = 0; q < kSteps; ++q) {
            const int j = r * kSteps + q;
            if (j % 4 == 0) {
#pragma unroll
              for (int i = 0; i < kTiles; ++i) {
                code[i].load(codes + j / 4 * kBlockCodes + i * kTileCodes);
              }
            }
            if (!kFew || j % 2 == 0) load_matrices(x, x_at + j * 32);
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
              uint32_t a[4];
              code[i].step(j % 4, a);
#pragma unroll
              for (int n = 0; n < kHalves; ++n) {
                const float(&add)[4] = *(q == 0 ? &begin[n] : &part[i][n]);
                if constexpr (kFew) {
                  mma(part[i][n], a, x[j % 2 * 2], x[j % 2 * 2 + 1], add);
                } else {
                  mma(part[i][n], x, a[n], a[n + 2], add);
                }
              }
            }
          }
          const uint8_t* zeros = stage + S::kCodeBytes + S::kScaleBytes + row * kStrip;
          uint32_t zero[kXRows][kTiles / 2] = {};  // of row tiles' halves, as bytes
          if constexpr (S::kZeros) {
#pragma unroll
            for (int o = 0; o < kXRows; ++o) load_words(zero[o], zeros + at(o));
          }
          float2 scale[kXRows][kTiles];
          const auto set_scales = [&](bool are_bf16) {
#pragma unroll
            for (int o = 0; o < kXRows; ++o) {
              for (int i = 0; i < kTiles; ++i) scale[o][i] = w4_scales(pairs[o][i], are_bf16);
            }
          };
          if (w.scales_are_bf16) {
            set_scales(true);
          } else {
            set_scales(false);
          }
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
#pragma unroll
            for (int n = 0; n < kHalves; ++n) {
#pragma unroll
              for (int c = 0; c < 4; ++c) {
                const int o = kFew ? 0 : c % 2;
                const int half = kFew ? c / 2 : n;
                float all = part[i][n][c];
                if constexpr (S::kZeros) {
                  const uint32_t byte = zero[o][i / 2] >> (i % 2 * 16 + half * 8) & 0xffu;
                  all = fmaf(static_cast<float>(byte), minus[n][c], all);
                }
                sum[i][n][c] = fmaf(half == 0 ? scale[o][i].x : scale[o][i].y, all, sum[i][n][c]);
              }
            }
          }
        }
      }
      x_at += S::kSplit * kUnit * 2;
      __syncwarp();
      if (lane == 0) barrier_arrive(bars.empty + 8 * slot);
      if (++slot == w.stages) slot = 0, parity ^= 1;
    }
    barrier_wait(bars.sums_read, (strip - place.first) % 2 ^ 1);
    float* to = sums + mine * w.m * S::kSumRow + tile * 16;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int n = 0; n < kHalves; ++n) {
        const float(&v)[4] = sum[i][n];
        if constexpr (kFew) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int token = 2 * t + c % 2;
            if (token < w.m) {
              to[token * S::kSumRow + i * 16 + c / 2 * 8 + g] =
                  v[c] * (c < 2 ? C::kUndo0 : C::kUndo1);
            }
          }
        } else {
          const float undo = n == 0 ? C::kUndo0 : C::kUndo1;
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int token = g + 8 * h;
            if (token < w.m) {
              *reinterpret_cast<float2*>(to + token * S::kSumRow + i * 16 + n * 8 + 2 * t) =
                  make_float2(v[2 * h] * undo, v[2 * h + 1] * undo);
            }
          }
        }
      }
    }
    arrive_some(kSummedSync, S::kConsumers + S::kReducers);
  }
}

__device__ inline void write(const Work& w, int strip, int row_of_strip, int token,
                             const float (&v)[4]) {
  const int i = weight_of(w, strip);
  const Weight& to = w.weight[i];
  const int row = (strip - w.first_strip[i]) * kStrip + row_of_strip;
  const int64_t at = token * to.ldy + row;
  if (w.y_is_bf16) {
    auto* y = static_cast<__nv_bfloat16*>(to.y) + at;
    const __nv_bfloat162 two[2] = {__floats2bfloat162_rn(v[0], v[1]),
                                   __floats2bfloat162_rn(v[2], v[3])};
    if (row + 4 <= to.n && reinterpret_cast<uintptr_t>(y) % sizeof(uint2) == 0) {
      *reinterpret_cast<uint2*>(y) = *reinterpret_cast<const uint2*>(two);
      return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (row + j < to.n) y[j] = j % 2 == 0 ? two[j / 2].x : two[j / 2].y;
    }
  } else {
    auto* y = static_cast<float*>(to.y) + at;
    if (row + 4 <= to.n && reinterpret_cast<uintptr_t>(y) % sizeof(float4) == 0) {
      *reinterpret_cast<float4*>(y) = make_float4(v[0], v[1], v[2], v[3]);
      return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (row + j < to.n) y[j] = v[j];
    }
  }
}

// Each rank finishes 64 / ranks rows of every strip: it gets the others' sums of these by
// asynchronous stores. No rank overwrites what another has not read: to send strip n + 2 it has
// finished n + 1, for which the other had sent n + 1, after all its threads had read n. So two
// exchanges are enough.
template <class S>
__device__ void reduce(const Work& w, const Place& place, const Barriers& bars, const float* sums,
                       float* exchange) {
  wait_for_earlier_grid();
  const int thread = static_cast<int>(threadIdx.x) - S::kConsumers - 32;
  const int rows_mine = kStrip >> w.log_ranks;
  const int count = place.last - place.first;
  for (int n = 0; n < count; ++n) {
    const uint32_t received = bars.received + 8 * (n % kExchanges);
    const auto part_of = [&](int source, int token) {
      return exchange + ((n % kExchanges * w.ranks + source) * w.m + token) * rows_mine;
    };
    if (w.ranks > 1 && thread == 0) {
      barrier_expect(received, (w.ranks - 1) * w.m * rows_mine * 4);
    }
    sync_some(kSummedSync, S::kConsumers + S::kReducers);
    for (int i = thread; i < kStrip / 4 * w.m; i += S::kReducers) {
      const int token = i / (kStrip / 4);
      const int row = i % (kStrip / 4) * 4;
      float v[4] = {};
#pragma unroll
      for (int s = 0; s < S::kSplit; ++s) {
        const float4 part =
            *reinterpret_cast<const float4*>(sums + (s * w.m + token) * S::kSumRow + row);
        v[0] += part.x, v[1] += part.y, v[2] += part.z, v[3] += part.w;
      }
      if (w.ranks == 1) {
        write(w, place.first + n, row, token, v);
        continue;
      }
      const int owner = row * w.ranks / kStrip;
      float* to = part_of(place.rank, token) + (row & (rows_mine - 1));
      if (owner == place.rank) {
        *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
      } else {
        send(at_rank(shared_address(to), owner), at_rank(received, owner), v);
      }
    }
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(bars.sums_read);
    if (w.ranks == 1) continue;
    sync_some(kReducersSync, S::kReducers);
    barrier_wait(received, n / kExchanges % 2);
    for (int i = thread; i < rows_mine / 4 * w.m; i += S::kReducers) {
      const int token = (i << w.log_ranks) / (kStrip / 4);
      const int row = i * 4 & (rows_mine - 1);
      float v[4] = {};
      for (int source = 0; source < w.ranks; ++source) {
        const float4 part = *reinterpret_cast<const float4*>(part_of(source, token) + row);
        v[0] += part.x, v[1] += part.y, v[2] += part.z, v[3] += part.w;
      }
      write(w, place.first + n, place.rank * rows_mine + row, token, v);
    }
  }
}

#endif

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) few_tokens(const __grid_constant__ Work w) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Memory at = memory_of<S>(w.m, w.slice, w.ranks, w.stages);
  const Place place(w);
  const Barriers bars(shared_address(shared + at.barriers), w.stages);
  const auto begin_cluster = [&] {
    if (w.ranks > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  };
  // Other ranks' barriers must be there before anything is sent; nobody else waits for them. That
  // they are made is released with them (barrier_inits_done), not by all threads' arrivals.
  const auto others_began = [&] {
    if (w.ranks > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  };
  let_later_grid_start();
  if (warp == S::kWarps) {
    if (elect()) {
      for (int i = 0; i < w.stages; ++i) {
        barrier_init(bars.full + 8 * i, 1);
        barrier_init(bars.empty + 8 * i, S::kWarps);
      }
      barrier_init(bars.sums_read, S::kReducers / 32);
      for (int i = 0; i < kExchanges; ++i) barrier_init(bars.received + 8 * i, 1);
      barrier_inits_done();
    }
    __syncwarp();
    arrive_some(0, S::kThreads);
    begin_cluster();
    if (elect()) produce<S>(w, place, bars, shared_address(shared));
    __syncwarp();
    others_began();
    return;
  }
  sync_some(0, S::kThreads);
  begin_cluster();
  others_began();
  auto* sums = reinterpret_cast<float*>(shared + at.sums);
  if (warp > S::kWarps) {
    reduce<S>(w, place, bars, sums, reinterpret_cast<float*>(shared + at.exchange));
  } else {
    consume<S>(w, place, bars, shared, sums,
               {shared + at.x, reinterpret_cast<float*>(shared + at.x_sums), at.x_stride});
  }
#endif
}

}  // namespace
}  // namespace nibble::kernels::cuda
