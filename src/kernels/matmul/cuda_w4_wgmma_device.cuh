// y = x W^T with 4- or 8-bit weights and bf16 x for 17 tokens and more, on Hopper (sm_90a only).
//
// Weights are the A operand of wgmma, made in registers from codes that lie in the order of its
// fragments; tokens are the B operand, in shared memory. A block computes tiles of 64 to 256 rows
// x 32 to 192 tokens: warpgroups multiply, each 64 or 128 rows, and three warps of another copy
// stages of 128 or 256 inputs (codes; scales and zeros; x) into a ring. Codes do not wait for the
// kernel before this one in the stream; x does.
//
// Sums are added in a fixed order: results do not change between calls.
//
// cuda_w4_wgmma.cu has the variants and starts them.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/matmul/cuda_sm90.cuh"
#include "kernels/matmul/cuda_w4_fragment.cuh"
#include "kernels/matmul/cuda_w4_sums.cuh"
#include "kernels/matmul/cuda_w4_work.cuh"

namespace nibble::kernels::cuda::w4 {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The ring: its stages and for each a barrier that tells that it is full and one that it is free.
template <class S>
struct Ring {
  uint32_t barriers;
  int stages;

  __device__ Ring(uint32_t memory, const Work& w)
      : barriers((memory + 1023) & ~1023u), stages(w.stages) {}
  __device__ uint32_t full(int s) const { return barriers + 16 * s; }
  __device__ uint32_t empty(int s) const { return barriers + 16 * s + 8; }
  __device__ uint32_t stage(int s) const { return barriers + kBarrierBytes + s * S::kStageBytes; }
};

__device__ inline Segments segments_of(const Work& w) {
  return {w.runs, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)};
}

// ---- the copies ---------------------------------------------------------------------------------

// Three warps, of which a thread each copies codes, scales and zeros, and x. What does not exist of
// weights (the last tile's strips, the last stage's groups) is what is before it, and
// blocks of codes are left out: nothing that is stored comes from them, or their x is zero. An
// instruction saved here is a stage that comes sooner; the compiler has to see that it is one
// thread (elect).
inline constexpr int kArrivals = 3;

template <class S>
class Producer {
 public:
  __device__ Producer(const Work& w, const CUtensorMap* map, const Ring<S>& ring)
      : w_(w), map_(map), ring_(ring) {}

  __device__ void run(int warp) {
    if (!sm90::elect()) return;
    if (warp == 0) {
      codes();
    } else if (warp == 1) {
      scales();
    } else if (warp == 2) {
      x();
    }
  }

 private:
  __device__ void wait() const { sm90::barrier_wait(ring_.empty(s_), phase_ ^ 1); }
  __device__ void advance() {
    if (++s_ == ring_.stages) s_ = 0, phase_ ^= 1;
  }

  // A tile's first strip; strip i of it is this + min(i, last_strip).
  __device__ int first_strip(const Segment& g) const {
    return min(g.row_tile * S::kStrips, w_.strips - 1);
  }
  __device__ int last_strip(const Segment& g) const {
    return min(S::kStrips, w_.strips - first_strip(g)) - 1;
  }

  __device__ void codes() {
    constexpr int kBytes = S::kBlocks * S::kTileBytes;  // of a strip
    const uint64_t policy = w_.runs.token_tiles == 1 ? sm90::evict_first() : sm90::evict_normal();
    const int64_t stride = static_cast<int64_t>(w_.blocks) * S::kTileBytes;
    Segment g;
    for (Segments all = segments_of(w_); all.next(g);) {
      const int last = last_strip(g);
      const int first = g.begin * S::kBlocks;
      const uint8_t* from =
          w_.codes + (static_cast<int64_t>(first_strip(g)) * w_.blocks + first) * S::kTileBytes;
      int left = (w_.blocks - first) * S::kTileBytes;
#pragma unroll 1
      for (int step = g.begin; step < g.end; ++step) {
        wait();
        const uint32_t full = ring_.full(s_);
        const uint32_t to = ring_.stage(s_) + S::kCodesAt;
        const auto bytes = static_cast<uint32_t>(min(left, kBytes));
        sm90::barrier_expect(full, S::kStrips * bytes);
#pragma unroll
        for (int i = 0; i < S::kStrips; ++i) {
          sm90::copy_bulk(to + i * kBytes, from + min(i, last) * stride, bytes, full, policy);
        }
        from += kBytes;
        left -= kBytes;
        advance();
      }
    }
  }

  __device__ void scales() {
    const uint64_t policy = sm90::evict_normal();
    const int rows = w_.scale_rows * S::kSlices;              // of a stage
    const int inputs = kStepBlocks * kBlock / w_.scale_rows;  // that share one
    const bool some_scales = w_.scale_at_end == 0;
    const bool some_zeros = w_.has_zeros != 0;
    const uint32_t bytes =
        S::kStrips * rows * ((some_scales ? 2 * kStrip : 0) + (some_zeros ? kStrip : 0));
    Segment g;
    for (Segments all = segments_of(w_); all.next(g);) {
      const int last = last_strip(g);
      const int first_row = first_strip(g) * w_.groups;
      int group = w_.by_group.divide(g.begin * S::kInputs);
      int within = g.begin * S::kInputs - group * w_.group;  // inputs
#pragma unroll 1
      for (int step = g.begin; step < g.end; ++step) {
        wait();
        const uint32_t full = ring_.full(s_);
        const uint32_t stage = ring_.stage(s_);
        sm90::barrier_expect(full, bytes);
#pragma unroll 1
        for (int row = 0; row < rows; ++row) {
          const int of = first_row + min(group, w_.groups - 1);
#pragma unroll
          for (int i = 0; i < S::kStrips; ++i) {
            const int64_t at = static_cast<int64_t>(of + min(i, last) * w_.groups) * kStrip;
            const uint32_t to = (i * S::kScaleRows + row) * kStrip;
            if (some_scales) {
              sm90::copy_bulk(stage + S::kScalesAt + 2 * to, w_.scales + 2 * at, 2 * kStrip, full,
                              policy);
            }
            if (some_zeros) {
              sm90::copy_bulk(stage + S::kZerosAt + to, w_.zeros + at, kStrip, full, policy);
            }
          }
          within += inputs;
          if (within >= w_.group) within -= w_.group, ++group;
        }
        advance();
      }
    }
  }

  // Nobody writes a stage's tokens from tile_tokens on: what lies there, whatever it is, is
  // multiplied too, into sums of those tokens alone, which are not stored.
  __device__ void x() {
    const uint64_t policy = sm90::evict_last();
    const uint32_t bytes = S::kBlocks * w_.tile_tokens * (2 * kBlock);
    bool waited = false;
    Segment g;
    for (Segments all = segments_of(w_); all.next(g);) {
      const int token = g.token_tile * w_.tile_tokens;
#pragma unroll 1
      for (int step = g.begin; step < g.end; ++step) {
        wait();
        const uint32_t full = ring_.full(s_);
        const uint32_t to = ring_.stage(s_);
        sm90::barrier_expect(full, bytes);
        // Only here, so that what comes before has been fetched and done.
        if (!waited) wait_for_previous();
        waited = true;
#pragma unroll
        for (int b = 0; b < S::kBlocks; ++b) {
          sm90::copy_tile(to + b * S::kXBlockBytes, map_, step * S::kInputs + b * kBlock, token,
                          full, policy);
        }
        advance();
      }
    }
  }

  const Work& w_;
  const CUtensorMap* map_;
  const Ring<S>& ring_;
  int s_ = 0;
  uint32_t phase_ = 0;
};

// ---- the products -------------------------------------------------------------------------------

// A warpgroup: kWide strips of a tile, one slice of its inputs.
template <class S>
struct Consumer {
  static constexpr int kCount = S::kCount;
  static constexpr int kWide = S::kWide;
  static constexpr int kBits = S::kBits;
  static constexpr bool kOnSums = S::kOnSums;
  static constexpr bool kFolded = S::kWeights == Weights::kFolded;
  // Where registers are short codes come a block at a time, once those before are used.
  static constexpr bool kShort = S::kMany && kCount >= 64;
  static constexpr int kHeld = kShort ? 1 : kStepBlocks;
  using Codes = uint32_t[kWide][kHeld][kBits];
  using Fragments = uint32_t[kWide][2][4];
  using Accumulators = float[kWide][kCount];

  const Work& w;
  const Ring<S>& ring;
  const int strip = static_cast<int>(threadIdx.x) % S::kOwners / 128 * kWide;  // the first
  const int slice = static_cast<int>(threadIdx.x) / S::kOwners;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // To a slice's x in a stage; a lane's codes from where the stage begins; and its scales, from
  // where these do, with zeros in half as many bytes.
  int back;
  int codes_at;
  int in_scales;
  // For each segment anew: between them registers are short.
  __device__ void find_places() {
    back = S::kSlices == 1 ? 0 : sm90::once(slice * kStepBlocks * S::kXBlockBytes);
    codes_at = sm90::once(S::kCodesAt + (strip * S::kBlocks + slice * kStepBlocks) * S::kTileBytes +
                          (warp * 32 + lane) * (kBits * 4));
    in_scales = sm90::once((strip * S::kScaleRows + slice * (kOnSums ? 1 : w.scale_rows)) * 128 +
                           lane / 4 * 16 + warp * 4);
  }
  __device__ uint32_t scale_at(uint32_t at) const { return at - back + S::kScalesAt + in_scales; }
  __device__ uint32_t zero_at(uint32_t at) const { return at - back + S::kZerosAt + in_scales / 2; }
  // The stage at hand and its barrier.
  int s = 0;
  uint32_t stage = ring.stage(0) + slice * kStepBlocks * S::kXBlockBytes;
  uint32_t full = ring.full(0);
  uint32_t phase = 0;
  bool ready = false;    // seen to be full
  uint32_t to_free = 0;  // the barrier of the stage whose products may still run

  // Every lane tells for itself: what one told for its warp would be as right and as fast, but no
  // tool sees that the others' reads came before.
  __device__ void release() {
    if (to_free != 0) sm90::barrier_arrive(to_free);
    to_free = 0;
  }

  __device__ void advance() {
    to_free = full + 8;
    if (++s == ring.stages) s = 0, phase ^= 1;
    full = ring.full(s);
    stage = ring.stage(s) + slice * kStepBlocks * S::kXBlockBytes;
    ready = sm90::barrier_is_done(full, phase);
  }

  __device__ uint32_t load_scales(uint32_t at, int row) const {
    constexpr uint32_t kOnes = 0x3f803f80;
    if (!kOnSums && w.scale_at_end != 0) return kOnes;
    return sm90::load_shared_u32(scale_at(at) + row * 128);
  }
  __device__ bool scales_are_bf16() const {
    return w.scales_are_bf16 != 0 || (!kOnSums && w.scale_at_end != 0);
  }

  // By a row of a stage's scales, which are `pair`.
  __device__ void grid_of(uint32_t at, int row, uint32_t pair, Grid& grid) const {
    if constexpr (!kOnSums) {
      bf16_scales_of(pair, scales_are_bf16(), Powers<kBits>::kUndo, grid.scale);
    }
    default_zeros<kBits>(grid.zero);
    if (w.has_zeros != 0) {
      zeros_of<kBits>(sm90::load_shared_u16(zero_at(at) + row * 64), grid.zero);
    }
  }

  // Of strip s for half c of a step, but where it is folded; `pair` are the step's first scales.
  __device__ void grid_of(uint32_t at, int s, int c, uint32_t pair, Grid& grid) const {
    const int first = s * S::kScaleRows;
    if (c == 0) return grid_of(at, first, pair, grid);
    if constexpr (!kOnSums) {
      if (c % 2 == 0 ? w.scale_rows == 1 : w.scale_rows != 4) return;
      const int row = first + c * w.scale_rows / 4;
      grid_of(at, row, load_scales(at, row), grid);
    }
  }

  // d += sums of a group x its scales.
  static __device__ void add(float (&d)[kCount], const float (&sum)[kCount], float2 scale) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) d[j] = fmaf(sum[j], j / 2 % 2 == 0 ? scale.x : scale.y, d[j]);
  }

  // Of block b of the stage.
  __device__ void load_codes(uint32_t at, int b, Codes& codes) const {
#pragma unroll
    for (int s = 0; s < kWide; ++s) {
#pragma unroll
      for (int q = 0; q < kBits / 4; ++q) {
        const uint4 v =
            sm90::load_shared(at - back + codes_at + (s * S::kBlocks + b) * S::kTileBytes + q * 16);
        uint32_t* to = &codes[s][b % kHeld][q * 4];
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
      }
    }
  }

  // What the step of the stage at hand begins with, while the one before is still at work.
  __device__ void load_ahead(Codes& codes, uint32_t (&pair)[kWide]) const {
    if (!ready) sm90::barrier_wait(full, phase);
    load_codes(stage, 0, codes);
#pragma unroll
    for (int s = 0; s < kWide; ++s) pair[s] = load_scales(stage, s * S::kScaleRows);
  }

  __device__ void fold_all(const uint32_t (&pair)[kWide], Grid (&grid)[kWide]) const {
#pragma unroll
    for (int s = 0; s < kWide; ++s) fold<kBits>(pair[s], scales_are_bf16(), grid[s]);
  }

  // Of half c of a step: 32 inputs.
  __device__ void make(uint32_t at, int c, const Codes& codes, const uint32_t (&pair)[kWide],
                       Grid (&grid)[kWide], Fragments& a) const {
    const int b = c / 2, half = c % 2;
#pragma unroll
    for (int s = 0; s < kWide; ++s) {
      if constexpr (!kFolded) grid_of(at, s, c, pair[s], grid[s]);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        fragment<kBits, S::kWeights>(codes[s][b % kHeld], 2 * half + j, grid[s], a[s][j]);
      }
    }
  }

  static __device__ void multiply(uint32_t x, int c, const Fragments& a, Accumulators& sums) {
    sm90::wgmma_fence();
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int from = c / 2 * S::kXBlockBytes + (2 * (c % 2) + j) * 32;
      const uint32_t tile = x + (from >> 4);
#pragma unroll
      for (int s = 0; s < kWide; ++s) sm90::wgmma(sums[s], a[s][j], tile, !kOnSums || c + j != 0);
    }
    sm90::wgmma_commit();
  }

  // Groups' sums times their scales, once no product is under way.
  static __device__ void add_groups(Accumulators& d, Accumulators& group,
                                    const float2 (&scale)[kWide]) {
    sm90::wgmma_wait<0>();
#pragma unroll
    for (int s = 0; s < kWide; ++s) {
      sm90::keep(group[s]);
      add(d[s], group[s], scale[s]);
    }
  }

  static __device__ void zero(Accumulators& sums) {
#pragma unroll
    for (int s = 0; s < kWide; ++s) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) sums[s][j] = 0;
    }
  }

  // Steps [begin, end), added to d where scales are on sums; else d is what they make.
  __device__ void run(int begin, int end, Accumulators& d) {
    Accumulators group;  // where scales are on sums
    float2 scale[kWide] = {};
    Fragments a[2];
    Grid grid[kWide];
    Codes codes;
    uint32_t pair[kWide];
    zero(kOnSums ? group : d);
    constexpr int kHalves = 2 * kStepBlocks;
    load_ahead(codes, pair);
    if constexpr (kFolded) fold_all(pair, grid);
#pragma unroll 1
    for (int step = begin; step < end; ++step) {
      const uint32_t at = stage;
      uint32_t x = 0;
      // A half's weights are made while the tensor cores have those of the one before.
#pragma unroll
      for (int c = 0; c < kHalves; ++c) {
        if (c + 1 == kHalves && !kShort && step + 1 < end) load_ahead(codes, pair);
        make(at, c, codes, pair, grid, a[c % 2]);
        // The same in all lanes, which the compiler sees by this: descriptions are uniform
        // registers.
        if (c == 0) x = sm90::describe_tile(__shfl_sync(0xffffffffu, at, 0));
        if constexpr (kOnSums) {
          if (c == 0) {
            add_groups(d, group, scale);
#pragma unroll
            for (int s = 0; s < kWide; ++s) {
              scale[s] = f32_scales_of<kBits>(pair[s], w.scales_are_bf16 != 0);
            }
          }
        }
        multiply(x, c, a[c % 2], kOnSums ? group : d);
        if (c == (kShort ? 1 : 0)) load_codes(at, 1, codes);
        sm90::wgmma_wait<1>();
        if (c == 0) release();
        if (c == 1) advance();
      }
      if (kShort && step + 1 < end) load_ahead(codes, pair);
      if constexpr (kFolded) fold_all(pair, grid);
    }
    if constexpr (kOnSums) {
      add_groups(d, group, scale);
    } else {
      sm90::wgmma_wait<0>();
#pragma unroll
      for (int s = 0; s < kWide; ++s) sm90::keep(d[s]);
    }
    release();
  }

  __device__ uint32_t end_of_ring() const { return ring.stage(ring.stages); }

  // This warp's own, to turn sums in.
  __device__ uint32_t turn() const {
    return end_of_ring() + S::kTradedBytes + threadIdx.x / 32 * S::kTurnBytes;
  }

  __device__ void all_segments() {
    using Out = Sums<S>;
    Segments all = segments_of(w);
    Segment g;
    for (bool again = false; all.next(g); again = true) {
      Accumulators d;
      if constexpr (kOnSums) zero(d);
      find_places();
      run(g.begin, g.end, d);
      if constexpr (S::kSlices > 1) {
        constexpr int kBytes = 128 * kWide * kCount * 4;
        Out::trade(again, strip, slice,
                   end_of_ring() + strip / kWide * kBytes + threadIdx.x % 128 * 16, d);
      }
      Out::finish(w, all, g, slice, turn(), g.row_tile * S::kRows + strip * kStrip + warp * 16, d);
    }
  }
};

#endif  // sm_90a

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    multiply(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ Work w) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  const Ring<S> ring(sm90::shared_address(memory), w);
  let_next_start();
  const int producer = static_cast<int>(threadIdx.x) - S::kConsumers;
  if (producer >= 0 && producer < ring.stages) {
    sm90::barrier_init(ring.full(producer), kArrivals);
    sm90::barrier_init(ring.empty(producer), S::kConsumers);
    sm90::barrier_inits_done();
    if (producer == 0) sm90::prefetch_map(&x_map);
  }
  __syncthreads();
  if (producer >= 0) {
    sm90::give_registers<S::kProducerRegisters>();
    Producer<S>(w, &x_map, ring).run(producer / 32);
  } else {
    sm90::take_registers<S::kConsumerRegisters>();
    wait_for_previous();
    Consumer<S>{w, ring}.all_segments();
  }
#endif
}

}  // namespace nibble::kernels::cuda::w4
