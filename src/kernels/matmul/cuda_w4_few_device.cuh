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

#include "kernels/activation/cuda_functions.cuh"
#include "kernels/matmul/cuda_w4_few_operands.cuh"

namespace nibble::kernels::cuda {
namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

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
    const Strip of = strip_of(w, strip);
    const Weight& weight = w.weight[of.weight];
    const int64_t unit = place.first_unit + u;
    prefetch_bulk(weight.codes + (int64_t{of.at} * w.units + unit) * S::kUnitCodes,
                  units * S::kUnitCodes);
    if (!neighbours) continue;
    const int64_t row = int64_t{of.at} * w.groups + unit * S::kScaleRows;
    const int rows = units * S::kScaleRows;
    prefetch_bulk(weight.scales + row * kStrip * 2, rows * kStrip * 2);
    if constexpr (S::kZeros) prefetch_bulk(weight.zeros + row * kStrip, rows * kStrip);
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
    const Strip of = strip_of(w, strip);
    const Weight& weight = w.weight[of.weight];
    const int64_t s = of.at;
    const uint8_t* codes = weight.codes + (s * w.units + place.first_unit) * S::kUnitCodes;
    const uint8_t* scales = weight.scales + s * w.groups * kStrip * 2;
    const uint8_t* zeros = S::kZeros ? weight.zeros + s * w.groups * kStrip : nullptr;
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
        if (w.early < w.stages) wait_for_previous();
      }
    }
  }
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

// Four rows of a token's y.
__device__ inline void write(const Weight& to, bool is_bf16, int row, int token,
                             const float (&v)[4]) {
  const int64_t at = token * to.ldy + row;
  if (is_bf16) {
    auto* y = static_cast<__nv_bfloat16*>(to.y) + at;
    if (row + 4 <= to.n && reinterpret_cast<uintptr_t>(y) % sizeof(uint2) == 0) {
      return put_4({v[0], v[1], v[2], v[3]}, y);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (row + j < to.n) put(v[j], y + j);
    }
  } else {
    auto* y = static_cast<float*>(to.y) + at;
    if (row + 4 <= to.n && reinterpret_cast<uintptr_t>(y) % sizeof(float4) == 0) {
      return put_4({v[0], v[1], v[2], v[3]}, y);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (row + j < to.n) put(v[j], y + j);
    }
  }
}

// What four rows of a token are finished with: what there is of y where it is added to, and the
// next norm's weights.
struct Beside {
  float4 y, norm;
};
__device__ inline Beside beside_of(const Work& w, const Weight& to, int row, int token) {
  Beside out = {};
  if (!w.add) return out;
  const auto* y = static_cast<const float*>(to.y) + token * to.ldy + row;
  if (row + 4 <= to.n && reinterpret_cast<uintptr_t>(y) % sizeof(float4) == 0) {
    out.y = __ldcg(reinterpret_cast<const float4*>(y));
  } else {
    if (row < to.n) out.y.x = __ldcg(y);
    if (row + 1 < to.n) out.y.y = __ldcg(y + 1);
    if (row + 2 < to.n) out.y.z = __ldcg(y + 2);
    if (row + 3 < to.n) out.y.w = __ldcg(y + 3);
  }
  if (w.next.weight != nullptr) {
    out.norm = *reinterpret_cast<const float4*>(w.next.weight + row);
  }
  return out;
}

// What x's norm leaves to be done to sums: 1 / sqrt(mean(x^2) + eps) for each token, or 1.
template <class S>
__device__ void find_factors(const Work& w, float* factors, int thread) {
  const int lane = thread % 32;
  const int eighths = w.k / 8;
  for (int token = thread / 32; token < w.m; token += S::kReducers / 32) {
    float factor = 1;
    if (w.squares != nullptr) {
      const float* from = w.squares + static_cast<int64_t>(token) * eighths;
      float sum = 0;
#pragma unroll 4
      for (int i = lane * 4; i < eighths; i += 128) {
        const float4 v = __ldcg(reinterpret_cast<const float4*>(from + i));
        sum += v.x + v.y + (v.z + v.w);
      }
      factor = 1.0f / sqrtf(over_warp<Sum>(sum) / static_cast<float>(w.k) + w.norm_eps);
    }
    if (lane == 0) factors[token] = factor;
  }
  sync_some(kReducersSync, S::kReducers);
}

// The reducers' part in a strip. Each rank finishes 64 / ranks rows: it gets the others' sums of
// these by asynchronous stores. No rank overwrites what another has not read: to send strip n + 2
// it has finished n + 1, for which the other had sent n + 1, after all its threads had read n. So
// two exchanges are enough.
template <class S>
struct Reduction {
  const Work& w;
  const Place& place;
  const Barriers& bars;
  const float* sums;
  float* exchange;
  int thread;
  int rows_mine;

  __device__ int token_of(int item) const { return (item << w.log_ranks) / (kStrip / 4); }
  __device__ int row_of(int item) const { return item * 4 & (rows_mine - 1); }
  __device__ uint32_t received(int n) const { return bars.received + 8 * (n % kExchanges); }
  __device__ float* part_of(int n, int source, int token) const {
    return exchange + ((n % kExchanges * w.ranks + source) * w.m + token) * rows_mine;
  }
  __device__ void sums_are_read() const {
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(bars.sums_read);
  }

  // To all ranks their rows of strip n, and from them this rank's.
  __device__ void share(int n) const {
    for (int i = thread; i < kStrip / 4 * w.m; i += S::kReducers) {
      const int token = i / (kStrip / 4);
      const int row = i % (kStrip / 4) * 4;
      float v[4] = {};
      add_sums(token, row, v);
      const int owner = row * w.ranks / kStrip;
      float* to = part_of(n, place.rank, token) + (row & (rows_mine - 1));
      if (owner == place.rank) {
        *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
      } else {
        send(address_in(shared_address(to), owner), address_in(received(n), owner), v);
      }
    }
    sums_are_read();
    sync_some(kReducersSync, S::kReducers);
    barrier_wait(received(n), n / kExchanges % 2);
  }

  // What consumers have left of four rows of a token.
  __device__ void add_sums(int token, int row, float (&v)[4]) const {
#pragma unroll
    for (int s = 0; s < S::kSplit; ++s) {
      const float4 part =
          *reinterpret_cast<const float4*>(sums + (s * w.m + token) * S::kSumRow + row);
      v[0] += part.x, v[1] += part.y, v[2] += part.z, v[3] += part.w;
    }
  }
  // What the ranks have of them.
  __device__ void add_parts(int n, int token, int row, float (&v)[4]) const {
#pragma unroll 4
    for (int source = 0; source < w.ranks; ++source) {
      const float4 part = *reinterpret_cast<const float4*>(part_of(n, source, token) + row);
      v[0] += part.x, v[1] += part.y, v[2] += part.z, v[3] += part.w;
    }
  }
};

// Four rows of a token, and their part of the next norm.
__device__ inline void finish(const Work& w, const Weight& to, int row, int token,
                              const Beside& to_add, float (&v)[4]) {
  if (w.add) v[0] += to_add.y.x, v[1] += to_add.y.y, v[2] += to_add.y.z, v[3] += to_add.y.w;
  write(to, w.y_is_bf16, row, token, v);
  if (w.next.weight == nullptr) return;
  const float4& by = to_add.norm;
  const int64_t at = static_cast<int64_t>(token) * to.n + row;
  put_4({v[0] * by.x, v[1] * by.y, v[2] * by.z, v[3] * by.w},
        static_cast<__nv_bfloat16*>(w.next.rows) + at);
  float squares = fmaf(v[0], v[0], v[1] * v[1]) + fmaf(v[2], v[2], v[3] * v[3]);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  squares += __shfl_xor_sync(3u << (lane & ~1), squares, 1);  // of the eight rows of two threads
  if (lane % 2 == 0) w.next.squares[at / 8] = squares;
}

// In this order: the sums; the factor of x's norm; the activation, where the weights are gate and
// up: their strips take turns, and gate's waits in registers for up's (a thread then has four rows
// of one token); what there is of y, which is asked for before the sums are there.
template <class S>
__device__ void reduce(const Work& w, const Place& place, const Barriers& bars, const float* sums,
                       float* exchange, float* factors) {
  const int thread = static_cast<int>(threadIdx.x) - S::kConsumers - 32;
  const Reduction<S> strips = {w, place, bars, sums, exchange, thread, kStrip >> w.log_ranks};
  const int items = strips.rows_mine / 4 * w.m;
  const bool gated = S::kTokenTiles == 1 && w.gated != 0;
  float kept[4] = {};
  wait_for_previous();
  find_factors<S>(w, factors, thread);
  for (int n = 0; n < place.last - place.first; ++n) {
    const Strip strip = strip_of(w, place.first + n);
    const Weight& to = w.weight[gated ? 0 : strip.weight];
    const int first_row = strip.at * kStrip + place.rank * strips.rows_mine;
    int token = strips.token_of(thread);
    int row = strips.row_of(thread);
    Beside beside = {};
    if (thread < items) beside = beside_of(w, to, first_row + row, token);
    if (w.ranks > 1 && thread == 0) {
      barrier_expect(strips.received(n), (w.ranks - 1) * w.m * strips.rows_mine * 4);
    }
    sync_some(kSummedSync, S::kConsumers + S::kReducers);
    if (w.ranks > 1) strips.share(n);
    for (int i = thread; i < items; i += S::kReducers) {
      if (i != thread) {
        token = strips.token_of(i);
        row = strips.row_of(i);
        beside = beside_of(w, to, first_row + row, token);
      }
      float v[4] = {};
      if (w.ranks == 1) {
        strips.add_sums(token, row, v);
      } else {
        strips.add_parts(n, token, row, v);
      }
      const float factor = factors[token];
#pragma unroll
      for (float& one : v) one *= factor;
      if (gated && strip.weight == 0) {
        apply(w.function, v);
#pragma unroll
        for (int j = 0; j < 4; ++j) kept[j] = v[j];
        continue;
      }
      if (gated) {
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] *= kept[j];
      }
      finish(w, to, first_row + row, token, beside, v);
    }
    if (w.ranks == 1) strips.sums_are_read();
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
  let_next_start();
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
    reduce<S>(w, place, bars, sums, reinterpret_cast<float*>(shared + at.exchange),
              reinterpret_cast<float*>(shared + at.factors));
  } else {
    consume<S>(w, place, bars, shared, sums,
               {shared + at.x, reinterpret_cast<float*>(shared + at.x_sums), at.x_stride});
  }
#endif
}

}  // namespace
}  // namespace nibble::kernels::cuda
