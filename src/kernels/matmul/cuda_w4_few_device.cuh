// y = x W^T with 4- or 8-bit codes and 1 to 16 tokens on Hopper (compute capability 9.0): the time
// to read the codes, nearly.
//
// A strip of 64 rows at a time. The blocks of a cluster share its inputs: each holds its part of x
// in shared memory for good, so that x is read once a block. In a block
//
//   1 producer warp    copies stages of codes and scales into a ring (bulk copies, a barrier each);
//                      it does not wait for the kernel before this one, codes do not change
//   consumer warps     two share a unit of 128 inputs, two row tiles of 16 each; kSplit units at a
//                      time: codes become bf16 in registers (mma.m16n8k16), sums are f32 and are
//                      scaled once a unit, or once 32 or 64 inputs
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
  uint32_t full, empty, summed, sums_read, received, x;  // addresses of the first of each
  __device__ Barriers(uint32_t at, int stages)
      : full(at),
        empty(full + 8 * stages),
        summed(empty + 8 * stages),
        sums_read(summed + 8),
        received(sums_read + 8),
        x(received + 8 * kExchanges) {}
};

// A unit's rows of scales are neighbours when groups are not larger than what a row covers.
template <class S>
__device__ void produce(const Work& w, const Place& place, const Barriers& bars, uint32_t ring) {
  const uint64_t policy = evict_first();
  constexpr int kCovers = kUnit / S::kScaleRows;
  const bool neighbours = w.group <= kCovers;
  int slot = 0;
  uint32_t parity = 1;
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
    }
  }
}

// What a warp has of x in shared memory, and what it makes of it there.
struct Inputs {
  uint8_t* x;
  float* sums;
  int stride;  // of x
};

__device__ inline int segment_units(int units) { return (units + kSegments - 1) / kSegments; }

// By a lane of each consumer warp: every kWarps-th token.
template <class S>
__device__ void copy_x(const Work& w, const Place& place, const Barriers& bars, uint32_t x,
                       int x_stride) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const uint64_t policy = evict_last();
  const int tokens = (w.m - warp + S::kWarps - 1) / S::kWarps;
  const auto* from = static_cast<const __nv_bfloat16*>(w.x) + place.first_unit * kUnit;
  for (int s = 0; s < kSegments; ++s) {
    const int first = min(s * segment_units(place.units), place.units);
    const int bytes = min(segment_units(place.units), place.units - first) * kUnit * 2;
    barrier_expect(bars.x + 8 * s, tokens * bytes);
    if (bytes == 0) continue;
    for (int token = warp; token < w.m; token += S::kWarps) {
      copy_bulk(x + (token * x_stride + first * kUnit) * 2, from + token * w.ldx + first * kUnit,
                bytes, bars.x + 8 * s, policy);
    }
  }
}

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
  // Times the sum of x times 2^64 what a sum has too much, for a zero of 1 or the one there is.
  static constexpr float kMinus = -0x1p-133f * (S::kZeros ? 1 : S::kBits == 4 ? 8 : 128);

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

// Eight inputs times 2^64, and the sums that their lanes share, into shared memory. By all lanes of
// a warp: 16 have a unit of a token, if `is` so.
template <class S>
__device__ void store_x(const Inputs& to, int unit, int token, bool is, const uint4& v) {
  const int in = static_cast<int>(threadIdx.x) % 16 * 8;
  float sum = 0;
  for (const uint32_t pair : {v.x, v.y, v.z, v.w}) {
    sum += __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u);
  }
#pragma unroll
  for (int other = 8 / S::kScaleRows; other > 0; other /= 2) {
    sum += __shfl_xor_sync(~0u, sum, other);
  }
  if (!is) return;
  *reinterpret_cast<uint4*>(to.x + (token * to.stride + unit * kUnit + in) * 2) = v;
  constexpr int kCovers = kUnit / S::kScaleRows;
  if (in % kCovers == 0) {
    to.sums[(unit * S::kScaleRows + in / kCovers) * S::kTokens + token] = sum * Codes<S>::kMinus;
  }
}

// What follows is done by the kRowWarps warps that share units, for these.
__device__ inline void sync_sharing(int mine) { sync_some(2 + mine, kRowWarps * 32); }

// A unit's x, which copy_x brought.
template <class S>
__device__ void finish_x(const Work& w, const Inputs& to, int unit, int mine, int row_warp) {
  const int half = static_cast<int>(threadIdx.x) % 32 / 16;
  const int in = static_cast<int>(threadIdx.x) % 16 * 8;
#pragma unroll 4
  for (int first = row_warp * 2; first < w.m; first += 2 * kRowWarps) {
    const int token = first + half;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (token < w.m) {
      v = *reinterpret_cast<const uint4*>(to.x + (token * to.stride + unit * kUnit + in) * 2);
    }
    v = {mul_bf16x2(v.x, kXPowerPair), mul_bf16x2(v.y, kXPowerPair), mul_bf16x2(v.z, kXPowerPair),
         mul_bf16x2(v.w, kXPowerPair)};
    store_x<S>(to, unit, token, token < w.m, v);
  }
  sync_sharing(mine);
}

// All of f32 x that these warps read, as bf16.
template <class S>
__device__ void load_x(const Work& w, const Place& place, const Inputs& to, int mine,
                       int row_warp) {
  constexpr int kAtOnce = 4;
  const int half = static_cast<int>(threadIdx.x) % 32 / 16;
  const int in = static_cast<int>(threadIdx.x) % 16 * 8;
  const auto* from = static_cast<const float*>(w.x) + place.first_unit * kUnit + in;
  const int rows = (place.units - mine + S::kSplit - 1) / S::kSplit * w.m;  // tokens of units
  for (int first = row_warp * 2; first < rows; first += kAtOnce * 2 * kRowWarps) {
    float4 v[kAtOnce][2];
    int unit[kAtOnce], token[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = first + i * 2 * kRowWarps + half;
      unit[i] = mine + row / w.m * S::kSplit;
      token[i] = row % w.m;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        v[i][j] = make_float4(0, 0, 0, 0);
        if (row < rows && (place.first_unit + unit[i]) * kUnit + in < w.k) {
          v[i][j] = __ldcg(
              reinterpret_cast<const float4*>(from + token[i] * w.ldx + unit[i] * kUnit + j * 4));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const auto pair = [](float a, float b) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(a * kXPower, b * kXPower);
        return *reinterpret_cast<const uint32_t*>(&two);
      };
      const float4 &a = v[i][0], &b = v[i][1];
      store_x<S>(to, unit[i], token[i], first + i * 2 * kRowWarps + half < rows,
                 {pair(a.x, a.y), pair(a.z, a.w), pair(b.x, b.y), pair(b.z, b.w)});
    }
  }
  sync_sharing(mine);
}

// Up to 8 tokens: codes are the first operand of products, sums [tile] of rows g and g + 8 (c / 2)
// and tokens 2t + c % 2. Up to 16: the second, with a product for rows 0 to 7 and one for 8 to 15
// of a tile; sums [tile][half] of tokens g and g + 8 (c / 2) and rows 2t + c % 2.
template <class S>
__device__ void consume(const Work& w, const Place& place, const Barriers& bars,
                        const uint8_t* ring, float* sums, const Inputs& inputs) {
  constexpr bool kFew = S::kTokenTiles == 1;
  constexpr int kHalves = S::kTokenTiles;
  constexpr int kSteps = 8 / S::kScaleRows;  // of 16 inputs, for each scale
  constexpr int kBlockCodes = S::kUnitCodes / 2;
  constexpr int kTileCodes = kBlockCodes / 4;
  constexpr int kXRows = kFew ? 1 : 2;  // of scales: those of a lane's sums
  using C = Codes<S>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int row_warp = warp % kRowWarps;
  const int tile = row_warp * kTiles;
  const int mine = warp / kRowWarps;  // of kSplit
  if constexpr (S::kXIsF32) {
    load_x<S>(w, place, inputs, mine, row_warp);
  } else {
    if (elect()) copy_x<S>(w, place, bars, shared_address(inputs.x), inputs.stride);
    __syncwarp();
  }
  int segment = 0;  // the first that was not waited for
  // Beyond the last token: another time the last.
  const int x_token = min(lane % S::kTokens, w.m - 1);
  const uint32_t x_first = shared_address(inputs.x) +
                           (x_token * inputs.stride + mine * kUnit + lane / S::kTokens * 8) * 2;
  int slot = 0;
  uint32_t parity = 0;
  for (int strip = place.first; strip < place.last; ++strip) {
    float sum[kTiles][kHalves][4] = {};
    uint32_t x_at = x_first;
    for (int u = mine; u < place.units + mine; u += S::kSplit) {
      if (!S::kXIsF32 && strip == place.first && u < place.units) {
        while (segment < kSegments && segment * segment_units(place.units) <= u) {
          barrier_wait(bars.x + 8 * segment++, 0);
        }
        finish_x<S>(w, inputs, u, mine, row_warp);
      }
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
          uint2 pairs[kXRows];
#pragma unroll
          for (int o = 0; o < kXRows; ++o) {
            pairs[o] = *reinterpret_cast<const uint2*>(scales + at(o) * 2);
          }
          // Of a lane's sums: what zeros, or a zero of 1, take off.
          const float* x_sums = inputs.sums + (u * S::kScaleRows + r) * S::kTokens;
          float minus[kHalves][4];
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const float x_sum = x_sums[kFew ? 2 * t + c % 2 : g + c / 2 * 8];
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
          uint32_t zero[kXRows] = {};  // of row tiles' halves, as bytes
          if constexpr (S::kZeros) {
#pragma unroll
            for (int o = 0; o < kXRows; ++o) {
              zero[o] = *reinterpret_cast<const uint32_t*>(zeros + at(o));
            }
          }
          float2 scale[kXRows][kTiles];
          const auto set_scales = [&](bool are_bf16) {
#pragma unroll
            for (int o = 0; o < kXRows; ++o) {
              scale[o][0] = w4_scales(pairs[o].x, are_bf16);
              scale[o][1] = w4_scales(pairs[o].y, are_bf16);
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
                  const uint32_t byte = zero[o] >> (i * 16 + half * 8) & 0xffu;
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
    __syncwarp();
    if (lane == 0) barrier_arrive(bars.summed);
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
    barrier_wait(bars.summed, n % 2);
    if (w.ranks > 1 && n > 0) sync_some(1, S::kReducers);
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
    sync_some(1, S::kReducers);
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
  if (threadIdx.x == 0) {
    for (int i = 0; i < w.stages; ++i) {
      barrier_init(bars.full + 8 * i, 1);
      barrier_init(bars.empty + 8 * i, S::kWarps);
    }
    barrier_init(bars.summed, S::kWarps);
    barrier_init(bars.sums_read, S::kReducers / 32);
    for (int i = 0; i < kExchanges; ++i) barrier_init(bars.received + 8 * i, 1);
    for (int i = 0; i < kSegments; ++i) barrier_init(bars.x + 8 * i, S::kWarps);
    barrier_inits_done();
  }
  __syncthreads();
  // Other ranks' barriers must be there before anything is sent; nobody else waits for them.
  if (w.ranks > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  const auto others_began = [&] {
    if (w.ranks > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  };
  let_later_grid_start();
  if (warp == S::kWarps) {
    if (elect()) produce<S>(w, place, bars, shared_address(shared));
    __syncwarp();
    others_began();
    return;
  }
  others_began();
  wait_for_earlier_grid();
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
