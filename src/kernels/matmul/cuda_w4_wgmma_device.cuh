// y = x W^T with 4- or 8-bit weights and bf16 x for 17 tokens and more, on Hopper (sm_90a only).
//
// Weights are the A operand of wgmma, made in registers from codes that lie in the order of its
// fragments; tokens are the B operand, in shared memory. A block computes tiles of 128 or 256 rows
// x 32 to 256 tokens: a warpgroup for each 64 rows multiplies, and three warps of another copy
// stages of 128 inputs (codes; scales and zeros; x) into a ring. Codes do not wait for the kernel
// before this one in the stream; x does.
//
// Work is cut so that all multiprocessors have the same:
//   split 2, 4, 8: the blocks of a cluster share the inputs of a tile and add their sums through
//   its memory. split 0: tiles x steps are one line, cut into equal runs ("stream-K"). A run may
//   begin within a tile: its block writes these sums to the workspace, and the block with the
//   tile's first step adds them, in order. What is more than two tiles a block is left whole.
// Sums are added in a fixed order: results do not change between calls.
//
// cuda_w4_wgmma.cu has the variants and starts them.
#pragma once

#include "kernels/matmul/cuda_sm90.cuh"
#include "kernels/matmul/cuda_w4_fragment.cuh"

namespace nibble::kernels::cuda::w4 {

inline constexpr int kStepBlocks = 2;
inline constexpr int kProcessors = 132;  // of the card that this is tuned for
inline constexpr int kMostStages = 32;
inline constexpr int kMostBlocks = 1024;  // of a grid that uses the workspace
inline constexpr int kMostWarps = 16;     // that leave sums there
inline constexpr size_t kFlagBytes = kMostBlocks * kMostWarps * sizeof(uint32_t);

// n / what it was made for, where n x divisor is less than 2^40 and n than 2^23.
struct Divisor {
  uint64_t magic;
  __device__ int divide(int n) const {
    return static_cast<int>((static_cast<uint32_t>(n) * magic) >> 40);
  }
};

struct Work {
  const uint8_t* codes;
  const uint8_t* scales;
  const uint8_t* zeros;
  int n, m;
  int blocks;  // of 64 inputs
  int steps;   // of 128
  int strips;  // of 64 rows
  int groups;
  int group;
  int scale_rows;  // scales of a row and step: 1, 2 (groups of 64 or 192, ...) or 4 (of 32)
  int has_zeros;
  int scale_at_end;  // one group: the sums are multiplied
  int scales_are_bf16;
  int y_is_bf16;
  int y_in_quads;  // four rows are aligned, and all or none exist
  int y_in_pairs;  // pairs of bf16 rows are aligned
  int token_tiles;
  int shared_tiles;  // the tiles that are cut into equal runs; the rest are whole
  int tiles;
  int split;
  // Of the steps of shared tiles: a block has `run`, the first `longer` blocks one more.
  int run;
  int longer;
  Divisor by_steps, by_token_tiles, by_group, by_split;
  int stages;
  float4* partial;
  uint32_t* flags;
  void* y;
  int64_t ldy;
};

// Steps [begin, end) of a tile, and where it lies.
struct Segment {
  int tile, begin, end;
  int row_tile, token_tile;
};

// A block's segments, in order. Every role of a block counts them for itself, before its first copy
// or product: so there is no division.
class Segments {
 public:
  __device__ explicit Segments(const Work& w)
      : w_(w), me_(static_cast<int>(gridDim.x - 1 - blockIdx.x)), at_(begin_of(me_)) {}

  __device__ bool next(Segment& s) {
    if (!find(s)) return false;
    s.row_tile = w_.token_tiles == 1 ? s.tile : w_.by_token_tiles.divide(s.tile);
    s.token_tile = s.tile - s.row_tile * w_.token_tiles;
    return true;
  }

  __device__ int me() const { return me_; }
  // Where a block's run begins on the line of shared tiles. Later runs belong to blocks that are
  // started earlier, so that no block waits for one that has yet to find room.
  __device__ int begin_of(int block) const { return block * w_.run + min(block, w_.longer); }

 private:
  __device__ bool find(Segment& s) {
    if (w_.split > 1) {
      if (whole_ > 0) return false;
      ++whole_;
      const int block = static_cast<int>(blockIdx.x);
      s.tile = w_.by_split.divide(block);
      const int rank = block - s.tile * w_.split;
      s.begin = w_.by_split.divide(w_.steps * rank);
      s.end = w_.by_split.divide(w_.steps * (rank + 1));
      return true;
    }
    const int end = begin_of(me_ + 1);
    if (at_ < end) {
      s.tile = w_.by_steps.divide(at_);
      s.begin = at_ - s.tile * w_.steps;
      s.end = min(w_.steps, s.begin + end - at_);
      at_ += s.end - s.begin;
      return true;
    }
    s.tile = w_.shared_tiles + me_ + whole_ * static_cast<int>(gridDim.x);
    s.begin = 0;
    s.end = w_.steps;
    ++whole_;
    return s.tile < w_.tiles;
  }

  const Work& w_;
  int me_;
  int at_;
  int whole_ = 0;
};

// What a block computes at a time: kStrips x 64 rows, kTokens tokens. A warpgroup has kWide strips;
// kSlices warpgroups share them, each with 128 of a stage's inputs. kOnSums: scales multiply f32
// sums, else bf16 weights.
template <int kTokens_, int kStrips_, int kWide_, int kSlices_, bool kOnSums_, int kBits_,
          int kPerProcessor_>
struct Tile {
  static constexpr int kTokens = kTokens_;
  static constexpr int kStrips = kStrips_;
  static constexpr int kSlices = kSlices_;
  static constexpr int kWide = kWide_;
  static constexpr bool kOnSums = kOnSums_;
  static constexpr int kBits = kBits_;
  static constexpr int kPerProcessor = kPerProcessor_;

  static constexpr int kRows = kStrip * kStrips;
  static constexpr int kOwners = 128 * kStrips / kWide;  // threads that end with a tile's sums
  static constexpr int kConsumers = kOwners * kSlices;
  static constexpr int kThreads = kConsumers + 128;
  // Registers of a thread; a warpgroup gives others what it does not need.
  static constexpr bool kMany = kConsumers * kPerProcessor > 256;
  static constexpr int kConsumerRegisters = !kMany               ? 224
                                            : kPerProcessor == 2 ? 96
                                            : kTokens > 32       ? 112
                                                                 : 104;
  static constexpr int kProducerRegisters = !kMany               ? 56
                                            : kPerProcessor == 2 ? 48
                                            : kTokens > 32       ? 32
                                                                 : 64;

  // A stage of the ring: x, codes, scales and zeros as [strip][kScaleRows][64].
  static constexpr int kBlocks = kStepBlocks * kSlices;  // of 64 inputs
  static constexpr int kInputs = kBlocks * kBlock;
  static constexpr int kTileBytes = kStrip * kBlock * kBits / 8;
  static constexpr int kXBlockBytes = kTokens * kBlock * 2;
  static constexpr int kScaleRows = (kOnSums ? 1 : 4) * kSlices;
  static constexpr int kCodesAt = kBlocks * kXBlockBytes;
  static constexpr int kScalesAt = kCodesAt + kStrips * kBlocks * kTileBytes;
  static constexpr int kZerosAt = kScalesAt + kStrips * kScaleRows * kStrip * 2;
  static constexpr int kStageBytes =
      (kZerosAt + kStrips * kScaleRows * kStrip + 1023) / 1024 * 1024;

  static constexpr int kCount = kTokens / 2;  // sums of a thread and strip
  static constexpr int kLd = kRows + 4;       // of the sums in shared memory: no bank conflicts
  static constexpr int kSliceBytes = kTokens * kLd * 4;
  static constexpr int kSumBytes = kSlices * kSliceBytes;
  // What other slices hand to the first, where a tile's inputs are not split over a cluster.
  static constexpr int kHandedBytes = (kSlices - 1) * kOwners * kWide * kCount * 4;
};

// Shared memory: up to 1024 bytes to align it, barriers, the ring.
inline constexpr int kBarrierBytes = 1024;
constexpr int shared_bytes(int stages, int stage_bytes) {
  return 1024 + kBarrierBytes + stages * stage_bytes;
}

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

// ---- the copies ---------------------------------------------------------------------------------

// Three warps, of which a thread each copies codes, scales and zeros, and x. What does not exist of
// weights (the last tile's strips, the last stage's groups) is what is before it, and blocks of
// codes are left out: nothing that is stored comes from them, or their x is zero. An instruction
// saved here is a stage that comes sooner; the compiler has to see that it is one thread (elect).
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
  __device__ int first_strip(const Segment& g) const { return g.row_tile * S::kStrips; }
  __device__ int last_strip(const Segment& g) const {
    return min(S::kStrips, w_.strips - first_strip(g)) - 1;
  }

  __device__ void codes() {
    constexpr int kBytes = S::kBlocks * S::kTileBytes;  // of a strip
    const uint64_t policy = w_.token_tiles == 1 ? sm90::evict_first() : sm90::evict_normal();
    const int64_t stride = static_cast<int64_t>(w_.blocks) * S::kTileBytes;
    Segment g;
    for (Segments all(w_); all.next(g);) {
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
    for (Segments all(w_); all.next(g);) {
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

  __device__ void x() {
    const uint64_t policy = sm90::evict_last();
    bool waited = false;
    Segment g;
    for (Segments all(w_); all.next(g);) {
      const int token = g.token_tile * S::kTokens;
#pragma unroll 1
      for (int step = g.begin; step < g.end; ++step) {
        wait();
        const uint32_t full = ring_.full(s_);
        const uint32_t to = ring_.stage(s_);
        sm90::barrier_expect(full, S::kBlocks * S::kXBlockBytes);
        // Only here, so that what comes before has been fetched and done.
        if (!waited) sm90::wait_for_earlier_grid();
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

// ---- what becomes of sums
// --------------------------------------------------------------------------------------------

// Two rows' numbers, in memory as y's type.
__device__ inline void store(const Work& w, int row, int token, float v) {
  if (row >= w.n || token >= w.m) return;
  const int64_t at = token * w.ldy + row;
  if (w.y_is_bf16) {
    static_cast<__nv_bfloat16*>(w.y)[at] = __float2bfloat16_rn(v);
  } else {
    static_cast<float*>(w.y)[at] = v;
  }
}

// Rows row to row + 3, row a multiple of 4.
__device__ inline void store_rows(const Work& w, int row, int token, float4 v) {
  if (!w.y_in_quads) {
    store(w, row, token, v.x);
    store(w, row + 1, token, v.y);
    store(w, row + 2, token, v.z);
    store(w, row + 3, token, v.w);
  } else if (w.y_is_bf16) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y);
    const __nv_bfloat162 high = __floats2bfloat162_rn(v.z, v.w);
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(w.y) + token * w.ldy + row) = make_uint2(
        *reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high));
  } else {
    *reinterpret_cast<float4*>(static_cast<float*>(w.y) + token * w.ldy + row) = v;
  }
}

__device__ inline void put(float* to, float v) { *to = v; }
__device__ inline void put(__nv_bfloat16* to, float v) { *to = __float2bfloat16_rn(v); }

// A thread's sums of a strip, as they lie in wgmma's registers: its first row and token. These are
// loops of few instructions: whatever is run once a product is fetched for it.
template <class T, int kCount>
__device__ void store_each(const Work& w, int row, int token, const float (&d)[kCount]) {
  T* to = static_cast<T*>(w.y) + token * w.ldy + row;
  const bool first = row < w.n;
  const bool second = row + 8 < w.n;
#pragma unroll
  for (int j = 0; j < kCount; j += 4) {
    const int t = token + j * 2;
    if (t < w.m && first) put(to, d[j]);
    if (t < w.m && second) put(to + 8, d[j + 2]);
    if (t + 1 < w.m && first) put(to + w.ldy, d[j + 1]);
    if (t + 1 < w.m && second) put(to + w.ldy + 8, d[j + 3]);
    to += 8 * w.ldy;
  }
}

template <int kCount>
__device__ void store_sums(const Work& w, int row, int token, const float (&d)[kCount]) {
  if (!w.y_is_bf16) return store_each<float>(w, row, token, d);
  if (!w.y_in_pairs) return store_each<__nv_bfloat16>(w, row, token, d);
  // Lanes of rows g and g ^ 1 trade, and each stores two rows of one token.
  const bool odd = (threadIdx.x & 4) != 0;
  __nv_bfloat162 pair[kCount / 2];
#pragma unroll
  for (int j = 0; j < kCount; j += 2) {
    const float other = __shfl_xor_sync(0xffffffffu, odd ? d[j] : d[j + 1], 4);
    pair[j / 2] = __floats2bfloat162_rn(odd ? other : d[j], odd ? d[j + 1] : other);
  }
  row &= ~1;
  token += odd ? 1 : 0;
  auto* to = static_cast<__nv_bfloat16*>(w.y) + token * w.ldy + row;
  const bool first = row < w.n;
  const bool second = row + 8 < w.n;
#pragma unroll
  for (int j = 0; j < kCount; j += 4) {
    const bool is = token + j * 2 < w.m;
    if (is && first) *reinterpret_cast<__nv_bfloat162*>(to) = pair[j / 2];
    if (is && second) *reinterpret_cast<__nv_bfloat162*>(to + 8) = pair[j / 2 + 1];
    to += 8 * w.ldy;
  }
}

template <class S>
struct Sums {
  static constexpr int kCount = S::kCount;
  static constexpr int kQuads = kCount / 4;
  using Registers = float[kCount];
  using AllRegisters = float[S::kWide][kCount];

  static __device__ uint32_t* flag_of(const Work& w, int block) {
    return w.flags + block * kMostWarps + threadIdx.x / 32;
  }

  // A part of a tile, for the block that has its first step: for the same warp of it, which `tell`
  // tells of it. What was stored before takes its time to be seen by others, so there should be
  // work between the two.
  static __device__ void leave(const Work& w, int me, const AllRegisters& all) {
    float4* to = part_of(w, me);
#pragma unroll
    for (int s = 0; s < S::kWide; ++s) {
      const Registers& d = all[s];
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        __stcg(to + (s * kQuads + i) * S::kOwners,
               make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]));
      }
    }
  }
  static __device__ float4* part_of(const Work& w, int block) {
    return w.partial + static_cast<int64_t>(block) * S::kWide * kQuads * S::kOwners + threadIdx.x;
  }
  static __device__ void tell(const Work& w, int me) {
    __threadfence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) sm90::store_release(flag_of(w, me), 1);
  }

  static __device__ void gather(const Work& w, const Segments& all, const Segment& g,
                                AllRegisters& sums) {
    const int end = (g.tile + 1) * w.steps;
    int last = all.me();
    while (all.begin_of(last + 1) < end) ++last;
    for (int i = all.me() + 1 + static_cast<int>(threadIdx.x) % 32; i <= last; i += 32) {
      uint32_t* flag = flag_of(w, i);
      while (sm90::load_acquire(flag) == 0) {
      }
      *flag = 0;  // for the next launch
    }
    __syncwarp();
#pragma unroll(S::kWide* kQuads <= 8 ? 4 : 1)
    for (int p = all.me() + 1; p <= last; ++p) {
      const float4* at = part_of(w, p);
#pragma unroll
      for (int s = 0; s < S::kWide; ++s) {
        Registers& d = sums[s];
#pragma unroll
        for (int i = 0; i < kQuads; ++i) {
          const float4 v = __ldcg(at + (s * kQuads + i) * S::kOwners);
          d[4 * i] += v.x, d[4 * i + 1] += v.y, d[4 * i + 2] += v.z, d[4 * i + 3] += v.w;
        }
      }
    }
  }

  // d *= the scales of rows that are strip's and of row + 8.
  static __device__ void scale(const Work& w, int strip, Registers& d) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 % 4;
    const auto* from = reinterpret_cast<const uint32_t*>(
        w.scales + static_cast<int64_t>(min(strip, w.strips - 1)) * w.groups * 2 * kStrip);
    const float2 s = w4_scales(from[lane / 4 * 4 + warp], w.scales_are_bf16);
#pragma unroll
    for (int j = 0; j < kCount; ++j) d[j] *= j / 2 % 2 == 0 ? s.x : s.y;
  }

  // The blocks of a cluster add their sums, each for its share of the tokens. All consumers.
  static __device__ void stage(uint32_t at, int row, const Registers& d) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int token = j / 4 * 8 + threadIdx.x % 4 * 2 + j % 2;
      const uint32_t to = at + (token * S::kLd + row + j / 2 % 2 * 8) * 4;
      sm90::store_shared(to, d[j]);
    }
  }
  static __device__ void add_cluster(const Work& w, uint32_t at, int first_row, int first_token) {
    const int rank = static_cast<int>(sm90::cluster_rank());
    const int tokens = S::kTokens / w.split;
    constexpr int kRowQuads = S::kRows / 4;
    for (int i = threadIdx.x; i < tokens * kRowQuads; i += S::kConsumers) {
      const int token = rank * tokens + i / kRowQuads;
      const int row = i % kRowQuads * 4;
      if (first_token + token >= w.m || first_row + row >= w.n) continue;
      float4 sum = make_float4(0, 0, 0, 0);
      for (int p = 0; p < w.split; ++p) {
#pragma unroll
        for (int s = 0; s < S::kSlices; ++s) {
          const float4 v = sm90::load_of_cluster(
              at + s * S::kSliceBytes + (token * S::kLd + row) * 4, static_cast<uint32_t>(p));
          sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
      }
      store_rows(w, first_row + row, first_token + token, sum);
    }
  }
};

// ---- the products -------------------------------------------------------------------------------

// A warpgroup: kWide strips of a tile, one slice of its inputs.
template <class S>
struct Consumer {
  static constexpr int kCount = S::kCount;
  static constexpr int kWide = S::kWide;
  static constexpr int kBits = S::kBits;
  static constexpr bool kOnSums = S::kOnSums;

  const Work& w;
  const Ring<S>& ring;
  const int strip = static_cast<int>(threadIdx.x) % S::kOwners / 128 * kWide;  // the first
  const int slice = static_cast<int>(threadIdx.x) / S::kOwners;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // A lane's codes, scales and zeros of the first strip in a stage, from the slice's x on.
  const int codes_at = S::kCodesAt - slice * kStepBlocks * S::kXBlockBytes +
                       strip * S::kBlocks * S::kTileBytes + slice * kStepBlocks * S::kTileBytes +
                       (warp * 32 + lane) * (kBits * 4);
  const int row_at = strip * S::kScaleRows + slice * (kOnSums ? 1 : w.scale_rows);
  const int scale_at = S::kScalesAt - slice * kStepBlocks * S::kXBlockBytes + row_at * 128 +
                       lane / 4 * 16 + warp * 4;
  const int zero_at =
      S::kZerosAt - slice * kStepBlocks * S::kXBlockBytes + row_at * 64 + lane / 4 * 8 + warp * 2;
  // The stage at hand and its barrier.
  int s = 0;
  uint32_t stage = ring.stage(0) + slice * kStepBlocks * S::kXBlockBytes;
  uint32_t full = ring.full(0);
  uint32_t phase = 0;
  bool ready = false;    // seen to be full
  uint32_t to_free = 0;  // the barrier of the stage whose products may still run

  __device__ void release() {
    if (to_free != 0 && lane == 0) sm90::barrier_arrive(to_free);
    to_free = 0;
  }

  __device__ void advance() {
    to_free = full + 8;
    if (++s == ring.stages) s = 0, phase ^= 1;
    full = ring.full(s);
    stage = ring.stage(s) + slice * kStepBlocks * S::kXBlockBytes;
    ready = sm90::barrier_is_done(full, phase);
  }

  // By a row of a stage's scales.
  __device__ void grid_of(uint32_t at, int row, Grid& grid) const {
    if constexpr (!kOnSums) {
      grid.scale[0] = (Powers<kBits>::kUndo & 0xffffu) * 0x10001u;
      grid.scale[1] = (Powers<kBits>::kUndo >> 16) * 0x10001u;
      if (w.scale_at_end == 0) {
        bf16_scales_of<kBits>(sm90::load_shared_u32(at + scale_at + row * 128),
                              w.scales_are_bf16 != 0, grid.scale);
      }
    }
    default_zeros<kBits>(grid.zero);
    if (w.has_zeros != 0) {
      zeros_of<kBits>(sm90::load_shared_u16(at + zero_at + row * 64), grid.zero);
    }
  }

  // Of strip s, block b, for inputs [32 half, 32 half + 32).
  __device__ void grid_of(uint32_t at, int s, int b, int half, Grid& grid) const {
    const int row = s * S::kScaleRows;
    if constexpr (kOnSums) {
      if (b == 0 && half == 0) grid_of(at, row, grid);
    } else if (half == 0) {
      grid_of(at, row + b * 2 * w.scale_rows / 4, grid);
    } else if (w.scale_rows == 4) {
      grid_of(at, row + 2 * b + 1, grid);
    }
  }

  // d += sums of a group x its scales.
  static __device__ void add(float (&d)[kCount], const float (&sum)[kCount], float2 scale) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) d[j] = fmaf(sum[j], j / 2 % 2 == 0 ? scale.x : scale.y, d[j]);
  }

  __device__ void load_codes(uint32_t at, uint32_t (&codes)[kWide][kStepBlocks][kBits]) const {
#pragma unroll
    for (int s = 0; s < kWide; ++s) {
#pragma unroll
      for (int q = 0; q < kStepBlocks * kBits / 4; ++q) {
        const int b = q / (kBits / 4);
        const uint4 v = sm90::load_shared(at + codes_at + (s * S::kBlocks + b) * S::kTileBytes +
                                          q % (kBits / 4) * 16);
        uint32_t* to = &codes[s][b][q % (kBits / 4) * 4];
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
      }
    }
  }

  // Steps [begin, end), added to d where scales are on sums; else d is what they make.
  __device__ void run(int begin, int end, float (&d)[kWide][kCount]) {
    float group[kOnSums ? kWide : 1][kOnSums ? kCount : 1];
    float2 scale[kWide];
    uint32_t a[2][kWide][2][4];
    Grid grid[kWide];
#pragma unroll
    for (int s = 0; s < kWide; ++s) {
      scale[s] = make_float2(0, 0);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        if constexpr (kOnSums) {
          group[s][j] = 0;
        } else {
          d[s][j] = 0;
        }
      }
    }
#pragma unroll 1
    for (int step = begin; step < end; ++step) {
      if (!ready) sm90::barrier_wait(full, phase);
      // The same in all lanes, which the compiler sees by this: descriptions are uniform registers.
      const uint32_t at = __shfl_sync(0xffffffffu, stage, 0);
      const uint32_t x = sm90::describe_tile(at);
      uint32_t codes[kWide][kStepBlocks][kBits];
      load_codes(at, codes);
      uint32_t pair[kWide];
      if constexpr (kOnSums) {
#pragma unroll
        for (int s = 0; s < kWide; ++s) {
          pair[s] = sm90::load_shared_u32(at + scale_at + s * S::kScaleRows * 128);
        }
      }
      // A half's weights are made while the tensor cores have those of the one before.
#pragma unroll
      for (int c = 0; c < 2 * kStepBlocks; ++c) {
        const int b = c / 2, half = c % 2;
#pragma unroll
        for (int s = 0; s < kWide; ++s) {
          grid_of(at, s, b, half, grid[s]);
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            fragment<kBits, !kOnSums>(codes[s][b], 2 * half + j, grid[s], w.has_zeros != 0,
                                      a[half][s][j]);
          }
        }
        if constexpr (kOnSums) {
          if (c == 0) {  // the sums of the group before are done
            sm90::wgmma_wait<0>();
#pragma unroll
            for (int s = 0; s < kWide; ++s) {
              sm90::keep(group[s]);
              add(d[s], group[s], scale[s]);
              scale[s] = f32_scales_of<kBits>(pair[s], w.scales_are_bf16 != 0);
            }
          }
        }
        sm90::wgmma_fence();
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int from = b * S::kXBlockBytes + (2 * half + j) * 32;
          const uint32_t tile = x + (from >> 4);
#pragma unroll
          for (int s = 0; s < kWide; ++s) {
            if constexpr (kOnSums) {
              sm90::wgmma(group[s], a[half][s][j], tile, c + j != 0);
            } else {
              sm90::wgmma(d[s], a[half][s][j], tile, 1);
            }
          }
        }
        sm90::wgmma_commit();
        sm90::wgmma_wait<1>();
        if (c == 0) release();
        if (c == 2) advance();
      }
    }
    sm90::wgmma_wait<0>();
    release();
#pragma unroll
    for (int s = 0; s < kWide; ++s) {
      if constexpr (kOnSums) {
        sm90::keep(group[s]);
        add(d[s], group[s], scale[s]);
      } else {
        sm90::keep(d[s]);
      }
    }
  }

  // Slices add their sums, in the first one's registers. Barriers of the strip: 2, 4, ...: they are
  // handed over; 3, 5, ...: they were read.
  __device__ void hand_over(bool again, float (&sums)[kWide][kCount]) {
    const int barrier = 2 + 2 * strip;
    uint32_t at = end_of_ring() + strip * 128 * kCount * 4 + threadIdx.x % 128 * 16;
    if (slice == 0) {
      if (again) sm90::arrive_some(barrier + 1, 256);
      sm90::sync_some(barrier, 256);
    } else if (again) {
      sm90::sync_some(barrier + 1, 256);
    }
#pragma unroll
    for (int s = 0; s < kWide; ++s) {
      float(&d)[kCount] = sums[s];
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        if (slice == 0) {
          const uint4 v = sm90::load_shared(at);
          d[i] += __uint_as_float(v.x), d[i + 1] += __uint_as_float(v.y);
          d[i + 2] += __uint_as_float(v.z), d[i + 3] += __uint_as_float(v.w);
        } else {
          sm90::store_shared(at, make_float4(d[i], d[i + 1], d[i + 2], d[i + 3]));
        }
        at += 128 * 16;
      }
    }
    if (slice != 0) sm90::arrive_some(barrier, 256);
  }
  __device__ uint32_t end_of_ring() const { return ring.stage(ring.stages); }

  __device__ void all_segments() {
    using Out = Sums<S>;
    const int in_tile = strip * kStrip + warp * 16 + lane / 4;
    constexpr int kStepsBeforeTelling = 3;
    Segments all(w);
    Segment g;
    bool owing = false;  // sums were left, and nobody was told
    for (bool again = false; all.next(g); again = true) {
      float d[kWide][kCount];
      if constexpr (kOnSums) {
#pragma unroll
        for (int s = 0; s < kWide; ++s) {
#pragma unroll
          for (int j = 0; j < kCount; ++j) d[s][j] = 0;
        }
        const int middle = owing ? min(g.begin + kStepsBeforeTelling, g.end) : g.begin;
#pragma unroll 1
        for (int part = owing ? 0 : 1; part < 2; ++part) {
          run(part == 0 ? g.begin : middle, part == 0 ? middle : g.end, d);
          if (part == 0) Out::tell(w, all.me());
        }
        owing = false;
      } else {
        run(g.begin, g.end, d);
      }
      if constexpr (S::kSlices > 1) {
        static_assert(S::kSlices == 2);
        if (w.split == 1) {
          hand_over(again, d);
          if (slice != 0) continue;
        }
      }
      const int first_row = g.row_tile * S::kRows;
      const int token = g.token_tile * S::kTokens;
      if (w.split == 1 && g.begin != 0) {
        Out::leave(w, all.me(), d);
        owing = kOnSums;
        if (!owing) Out::tell(w, all.me());
        continue;
      }
      if (w.split == 1 && g.end != w.steps) Out::gather(w, all, g, d);
      if (w.split > 1) sm90::sync_some(1, S::kConsumers);  // nobody reads the ring any more
#pragma unroll
      for (int s = 0; s < kWide; ++s) {
        if (w.scale_at_end) Out::scale(w, first_row / kStrip + strip + s, d[s]);
        if (w.split > 1) {
          Out::stage(ring.stage(0) + slice * S::kSliceBytes, in_tile + s * kStrip, d[s]);
        } else {
          store_sums(w, first_row + in_tile + s * kStrip, token + lane % 4 * 2, d[s]);
        }
      }
      if (w.split > 1) {
        sm90::cluster_sync();
        Out::add_cluster(w, ring.stage(0), first_row, token);
        sm90::cluster_sync();  // until all have read this block's sums
        return;
      }
    }
    if (owing) Out::tell(w, all.me());
  }
};

#endif  // sm_90a

template <class S>
__global__ __launch_bounds__(S::kThreads, S::kPerProcessor) void multiply(
    const __grid_constant__ CUtensorMap x_map, const __grid_constant__ Work w) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  const Ring<S> ring(sm90::shared_address(memory), w);
  sm90::let_later_grid_start();
  const int producer = static_cast<int>(threadIdx.x) - S::kConsumers;
  if (producer >= 0 && producer < ring.stages) {
    sm90::barrier_init(ring.full(producer), kArrivals);
    sm90::barrier_init(ring.empty(producer), S::kConsumers / 32);
    sm90::barrier_inits_done();
    if (producer == 0) sm90::prefetch_map(&x_map);
  }
  __syncthreads();
  if (producer >= 0) {
    sm90::give_registers<S::kProducerRegisters>();
    Producer<S>(w, &x_map, ring).run(producer / 32);
    if (w.split > 1) {
      __syncwarp();
      sm90::cluster_sync();
      sm90::cluster_sync();
    }
  } else {
    sm90::take_registers<S::kConsumerRegisters>();
    sm90::wait_for_earlier_grid();
    Consumer<S>{w, ring}.all_segments();
  }
#endif
}

}  // namespace nibble::kernels::cuda::w4
