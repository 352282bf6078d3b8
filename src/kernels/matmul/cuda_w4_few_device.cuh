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
//     reducer warps    their rows, add what these sent and finish y (cuda_w4_few_reduce.cuh), while
//                      the consumers are at the next strip
//
// Sums are added in a fixed order: results do not change between calls.
//
// The kernel; cuda_w4_few.cu, which alone includes this, launches it.
#pragma once

#include "kernels/matmul/cuda_w4_few_reduce.cuh"

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
      barrier_arrive(bars.empty + 8 * slot);
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
        barrier_init(bars.empty + 8 * i, S::kConsumers);
      }
      barrier_init(bars.sums_read, S::kReducers);
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
    const int thread = static_cast<int>(threadIdx.x) - S::kConsumers - 32;
    auto* exchange = reinterpret_cast<float*>(shared + at.exchange);
    const Reduction<S> strips = {w, place, bars, sums, exchange, thread, kStrip >> w.log_ranks};
    constexpr bool kMore = S::kTokenTiles > 1;  // tokens than kFewTokensFused
    if (kMore || (w.squares == nullptr && w.gated == 0 && !w.add)) {
      reduce_plain<S>(w, strips);
    } else {
      reduce<S>(w, strips, reinterpret_cast<float*>(shared + at.factors));
    }
  } else {
    consume<S>(w, place, bars, shared, sums,
               {shared + at.x, reinterpret_cast<float*>(shared + at.x_sums), at.x_stride});
  }
#endif
}

}  // namespace
}  // namespace nibble::kernels::cuda
