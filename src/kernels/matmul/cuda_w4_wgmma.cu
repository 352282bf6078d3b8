// y = x W^T with 4- or 8-bit weights and bf16 x for 17 tokens and more, on Hopper (compute
// capability 9.0).
//
// Weights are the A operand of wgmma, made in registers from codes that lie in the order of its
// fragments; tokens are the B operand, in shared memory. A block is 12 warps and computes tiles of
// 128 or 256 rows x 32 to 256 tokens: one thread of the last warp copies stages of 128 inputs
// (codes, scales, x) into a ring, two warpgroups multiply. Codes do not wait for the kernel before
// this one in the stream; x does.
//
// Work is cut so that all multiprocessors have the same:
//   split 2, 4, 8   the blocks of a cluster share the inputs of one tile and add their sums through
//   its memory split 0         tiles x steps are one line, cut into equal runs ("stream-K"). A run
//   may begin within a tile: its
//                   block writes these sums to the workspace, and the block with the tile's first
//                   step adds them, in order. What is more than two tiles a block is left whole.
// Sums are added in a fixed order: results do not change between calls.
#include <atomic>

#include "kernels/matmul/cuda_sm90.cuh"
#include "kernels/matmul/cuda_w4_wgmma.cuh"

namespace nibble::kernels::cuda {
namespace {

constexpr int kStrip = 64;  // rows
constexpr int kBlock = 64;  // inputs
constexpr int kStepBlocks = 2;
constexpr int kMostStages = 32;
constexpr int kMostBlocks = 1024;  // of a grid that uses the workspace
constexpr size_t kFlagBytes = kMostBlocks * sizeof(uint32_t);

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
  int scale_rows;    // scales of a row and step: 1, 2 (groups of 64 or 192, ...) or 4 (of 32)
  int scale_at_end;  // one group: the sums are multiplied
  int scales_are_bf16;
  int y_is_bf16;
  int y_in_quads;  // four rows are aligned, and all or none exist
  int y_in_pairs;  // pairs of bf16 rows are aligned
  int token_tiles;
  int shared_tiles;  // the tiles that are cut into equal runs; the rest are whole
  int tiles;
  int split;
  int stages;
  float4* partial;
  uint32_t* flags;
  void* y;
  int64_t ldy;
};

// Steps [begin, end) of a tile.
struct Segment {
  int tile, begin, end;
};

// A block's segments, in order.
class Segments {
 public:
  __device__ explicit Segments(const Work& w)
      : w_(w), me_(static_cast<int>(gridDim.x - 1 - blockIdx.x)), at_(begin_of(me_)) {}

  __device__ bool next(Segment& s) {
    if (w_.split > 1) {
      if (whole_ > 0) return false;
      ++whole_;
      const int rank = static_cast<int>(blockIdx.x) % w_.split;
      s.tile = static_cast<int>(blockIdx.x) / w_.split;
      s.begin = w_.steps * rank / w_.split;
      s.end = w_.steps * (rank + 1) / w_.split;
      return true;
    }
    const int end = begin_of(me_ + 1);
    if (at_ < end) {
      s.tile = at_ / w_.steps;
      s.begin = at_ - s.tile * w_.steps;
      s.end = min(w_.steps, s.begin + end - at_);
      at_ += s.end - s.begin;
      return true;
    }
    s = {w_.shared_tiles + me_ + whole_ * static_cast<int>(gridDim.x), 0, w_.steps};
    ++whole_;
    return s.tile < w_.tiles;
  }

  __device__ int me() const { return me_; }
  // Where a block's run begins on the line of shared tiles. Later runs belong to blocks that are
  // started earlier, so that no block waits for one that has yet to find room.
  __device__ int begin_of(int block) const {
    return static_cast<int>(static_cast<int64_t>(w_.shared_tiles) * w_.steps * block / gridDim.x);
  }

 private:
  const Work& w_;
  int me_;
  int at_;
  int whole_ = 0;
};

// What a block computes at a time: kStrips x 64 rows, kTokens tokens. kSplitK warpgroups share a
// strip and take steps in turn. kOnSums: scales multiply f32 sums, else bf16 weights.
template <int kTokens_, int kStrips_, int kSplitK_, bool kOnSums_, int kBits_, int kPerProcessor_>
struct Tile {
  static constexpr int kTokens = kTokens_;
  static constexpr int kStrips = kStrips_;
  static constexpr int kSplitK = kSplitK_;
  static constexpr bool kOnSums = kOnSums_;
  static constexpr int kBits = kBits_;
  static constexpr int kPerProcessor = kPerProcessor_;

  static constexpr int kRows = kStrip * kStrips;
  static constexpr int kConsumers = 128 * kStrips * kSplitK;  // threads
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
  static constexpr int kTileBytes = kStrip * kBlock * kBits / 8;
  static constexpr int kXBlockBytes = kTokens * kBlock * 2;
  static constexpr int kScaleRows = kOnSums ? 1 : 4;
  static constexpr int kCodesAt = kStepBlocks * kXBlockBytes;
  static constexpr int kScalesAt = kCodesAt + kStrips * kStepBlocks * kTileBytes;
  static constexpr int kZerosAt = kScalesAt + kStrips * kScaleRows * kStrip * 2;
  static constexpr int kStageBytes =
      (kZerosAt + kStrips * kScaleRows * kStrip + 1023) / 1024 * 1024;

  static constexpr int kCount = kTokens / 2;  // sums of a thread
  static constexpr int kLd = kRows + 4;       // of the sums in shared memory: no bank conflicts
  static constexpr int kSumBytes = kTokens * kLd * 4;
};

// Shared memory: up to 1024 bytes to align it, barriers, the ring.
constexpr int kBarrierBytes = 1024;
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

// Three warps: one thread for codes, one for x, 32 for scales and zeros. Parts of weights that do
// not exist (the last tile's strips, the last step's block) are those before them: nothing that is
// stored comes from them, or their x is zero. An instruction saved here is a stage that comes
// sooner.
constexpr int kArrivals = 2 + 32;

template <class S>
class Producer {
 public:
  __device__ Producer(const Work& w, const CUtensorMap* map, const Ring<S>& ring)
      : w_(w), map_(map), ring_(ring) {}

  __device__ void run(int warp) {
    const bool first = threadIdx.x % 32 == 0;
    if (warp == 0) {
      if (first) codes();
    } else if (warp == 1) {
      scales(static_cast<int>(threadIdx.x) % 32);
    } else if (warp == 2) {
      if (first) x();
    }
  }

 private:
  __device__ void wait() const { sm90::barrier_wait(ring_.empty(s_), phase_ ^ 1); }
  __device__ void advance() {
    if (++s_ == ring_.stages) s_ = 0, phase_ ^= 1;
  }

  // A tile's first strip; strip i of it is this + min(i, last_strip).
  __device__ int first_strip(const Segment& g) const {
    return g.tile / w_.token_tiles * S::kStrips;
  }
  __device__ int last_strip(const Segment& g) const {
    return min(S::kStrips, w_.strips - first_strip(g)) - 1;
  }

  __device__ void codes() {
    constexpr int kBytes = kStepBlocks * S::kTileBytes;
    const uint64_t policy = w_.token_tiles == 1 ? sm90::evict_first() : sm90::evict_normal();
    Segment g;
    for (Segments all(w_); all.next(g);) {
      const int last = last_strip(g);
      const uint8_t* from =
          w_.codes + (static_cast<int64_t>(first_strip(g)) * w_.blocks + g.begin * kStepBlocks) *
                         S::kTileBytes;
      const int64_t stride = static_cast<int64_t>(w_.blocks) * S::kTileBytes;
#pragma unroll 1
      for (int step = g.begin; step < g.end; ++step) {
        wait();
        const uint32_t full = ring_.full(s_);
        const uint32_t to = ring_.stage(s_) + S::kCodesAt;
        sm90::barrier_expect(full, S::kStrips * kBytes);
        const bool both = step * kStepBlocks + 1 < w_.blocks;
#pragma unroll
        for (int i = 0; i < S::kStrips; ++i) {
          const uint8_t* strip = from + min(i, last) * stride;
          sm90::copy_bulk(to + i * kBytes, strip, both ? kBytes : kBytes / 2, full, policy);
          if (!both) sm90::copy_bulk(to + i * kBytes + kBytes / 2, strip, kBytes / 2, full, policy);
        }
        from += kBytes;
        advance();
      }
    }
  }

  __device__ void scales(int lane) {
    const int count = w_.scale_rows;                  // of a step
    const int inputs = kStepBlocks * kBlock / count;  // that share one
    Segment g;
    for (Segments all(w_); all.next(g);) {
      const int last = last_strip(g);
      const int first_row = first_strip(g) * w_.groups;
      int group = g.begin * kStepBlocks * kBlock / w_.group;
      int within = g.begin * kStepBlocks * kBlock - group * w_.group;  // inputs
#pragma unroll 1
      for (int step = g.begin; step < g.end; ++step) {
        wait();
        const uint32_t stage = ring_.stage(s_);
        // Of each strip and row `kBytes` bytes, 16 a lane.
        const auto rows = [&]<int kBytes>(const uint8_t* from, uint32_t to) {
          constexpr int kPieces = kBytes / 16;
#pragma unroll 1
          for (int i = lane; i < S::kStrips * kPieces * count; i += 32) {
            const int strip = i / kPieces % S::kStrips;
            const int row = i / (kPieces * S::kStrips);
            const int next = inputs == w_.group ? row : within + row * inputs >= w_.group ? 1 : 0;
            const int of =
                first_row + min(strip, last) * w_.groups + min(group + next, w_.groups - 1);
            const int piece = i % kPieces * 16;
            sm90::copy_16(to + (strip * S::kScaleRows + row) * kBytes + piece,
                          from + static_cast<int64_t>(of) * kBytes + piece);
          }
        };
        if (!w_.scale_at_end) rows.template operator()<2 * kStrip>(w_.scales, stage + S::kScalesAt);
        if (w_.zeros != nullptr) rows.template operator()<kStrip>(w_.zeros, stage + S::kZerosAt);
        sm90::barrier_arrive_after_copies(ring_.full(s_));
        for (within += kStepBlocks * kBlock; within >= w_.group; ++group) within -= w_.group;
        advance();
      }
    }
  }

  __device__ void x() {
    const uint64_t policy = sm90::evict_last();
    sm90::wait_for_earlier_grid();
    Segment g;
    for (Segments all(w_); all.next(g);) {
      const int token = g.tile % w_.token_tiles * S::kTokens;
#pragma unroll 1
      for (int step = g.begin; step < g.end; ++step) {
        wait();
        const uint32_t full = ring_.full(s_);
        const uint32_t to = ring_.stage(s_);
        sm90::barrier_expect(full, kStepBlocks * S::kXBlockBytes);
#pragma unroll
        for (int b = 0; b < kStepBlocks; ++b) {
          sm90::copy_tile(to + b * S::kXBlockBytes, map_, (step * kStepBlocks + b) * kBlock, token,
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

// ---- codes to numbers
// ------------------------------------------------------------------------------------------------

// What is subtracted from and multiplied with the weights of rows g and g + 8, as pairs of bf16.
struct Grid {
  uint32_t zero[2];
  uint32_t scale[2];
};

template <int kBits>
__device__ void zeros_of(uint32_t pair, uint32_t (&zero)[2]) {
  if constexpr (kBits == 4) {
    zero[0] = (pair & 0xffu) * 0x10001u | kBf16Magic;
    zero[1] = (pair >> 8) * 0x10001u | kBf16Magic;
  } else {
    for (int h = 0; h < 2; ++h) {
      const float v = static_cast<float>(static_cast<int8_t>(pair >> (8 * h)));
      zero[h] = __byte_perm(__float_as_uint(v), 0, 0x3232);
    }
  }
}

__device__ inline void bf16_scales_of(uint32_t pair, bool are_bf16, uint32_t (&scale)[2]) {
  if (!are_bf16) {
    const float2 s = w4_scales(pair, false);
    const __nv_bfloat162 rounded = __floats2bfloat162_rn(s.x, s.y);
    pair = *reinterpret_cast<const uint32_t*>(&rounded);
  }
  scale[0] = __byte_perm(pair, 0, 0x1010);
  scale[1] = __byte_perm(pair, 0, 0x3232);
}

// Step j of 16 inputs of a block: the A fragment.
template <int kBits, bool kScaled>
__device__ void fragment(const uint32_t (&codes)[kBits], int j, const Grid& grid, bool zeros,
                         uint32_t (&a)[4]) {
  if constexpr (kBits == 4) {
    a[0] = sub_bf16x2(w4_pair<0>(codes[j]), grid.zero[0]);
    a[1] = sub_bf16x2(w4_pair<1>(codes[j]), grid.zero[1]);
    a[2] = sub_bf16x2(w4_pair<2>(codes[j]), grid.zero[0]);
    a[3] = sub_bf16x2(w4_pair<3>(codes[j]), grid.zero[1]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // 128 + the low seven bits, minus 128, or 256 where the eighth is set.
      const uint32_t bytes = codes[2 * j + i / 2] >> (8 * (i % 2));
      a[i] = sub_bf16x2(and_or(bytes, 0x007f007fu, kBf16Magic),
                        and_or(bytes, 0x00800080u, kBf16Magic));
      if (zeros) a[i] = sub_bf16x2(a[i], grid.zero[i % 2]);
    }
  }
  if constexpr (kScaled) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = mul_bf16x2(a[i], grid.scale[i % 2]);
  }
}

// A square of 4 x 4 over the four lanes of a row, transposed.
__device__ inline void trade(uint32_t (&v)[4], int t) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool high = (t & step) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & step) != 0) continue;
      const uint32_t got = __shfl_xor_sync(0xffffffffu, high ? v[i] : v[i + step], step);
      if (high) {
        v[i] = got;
      } else {
        v[i + step] = got;
      }
    }
  }
}

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

template <int kCount>
__device__ void store_sums(const Work& w, int row, int token, const float (&d)[kCount]) {
  if (w.y_is_bf16 && w.y_in_pairs) {
    // Lanes of rows g and g ^ 1 trade, and each stores two rows of one token.
    const bool odd = (threadIdx.x & 4) != 0;
    const int mine = token + (odd ? 1 : 0);
#pragma unroll
    for (int j = 0; j < kCount; j += 2) {
      const float other = __shfl_xor_sync(0xffffffffu, odd ? d[j] : d[j + 1], 4);
      const float low = odd ? other : d[j];
      const float high = odd ? d[j + 1] : other;
      const int r = (row & ~1) + j / 2 % 2 * 8;
      const int t = mine + j / 4 * 8;
      if (r < w.n && t < w.m) {
        *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(w.y) + t * w.ldy + r) =
            __floats2bfloat162_rn(low, high);
      }
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) store(w, row + j / 2 % 2 * 8, token + j / 4 * 8 + j % 2, d[j]);
}

template <class S>
struct Sums {
  static constexpr int kCount = S::kCount;
  static constexpr int kQuads = kCount / 4;
  using Registers = float[kCount];

  // A part of a tile, for the block that has its first step.
  static __device__ void leave(const Work& w, int me, const Registers& d) {
    float4* to = w.partial + static_cast<int64_t>(me) * kQuads * S::kConsumers + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      __stcg(to + i * S::kConsumers,
             make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]));
    }
    __threadfence();
    sm90::sync_some(1, S::kConsumers);
    if (threadIdx.x == 0) sm90::store_release(w.flags + me, 1);
  }

  static __device__ void gather(const Work& w, const Segments& all, const Segment& g,
                                Registers& d) {
    const int end = (g.tile + 1) * w.steps;
    int from = all.me();
    while (all.begin_of(++from) < end) {
      while (sm90::load_acquire(w.flags + from) == 0) {
      }
      const float4* at =
          w.partial + static_cast<int64_t>(from) * kQuads * S::kConsumers + threadIdx.x;
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const float4 v = __ldcg(at + i * S::kConsumers);
        d[4 * i] += v.x, d[4 * i + 1] += v.y, d[4 * i + 2] += v.z, d[4 * i + 3] += v.w;
      }
    }
    sm90::sync_some(1, S::kConsumers);
    // For the next launch.
    if (threadIdx.x == 0) {
      for (int i = all.me() + 1; i < from; ++i) w.flags[i] = 0;
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

  // The blocks of a cluster, and the warpgroups that share a strip, add their sums, each block for
  // its share of the tokens. All consumers.
  static __device__ void stage(uint32_t at, int row, const Registers& d) {
    sm90::sync_some(1, S::kConsumers);  // nobody reads the ring any more
    at += threadIdx.x / (128 * S::kStrips) * S::kSumBytes;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int token = j / 4 * 8 + threadIdx.x % 4 * 2 + j % 2;
      const uint32_t to = at + (token * S::kLd + row + j / 2 % 2 * 8) * 4;
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(d[j]) : "memory");
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
        for (int part = 0; part < S::kSplitK; ++part) {
          const float4 v = sm90::load_of_cluster(
              at + part * S::kSumBytes + (token * S::kLd + row) * 4, static_cast<uint32_t>(p));
          sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
      }
      store_rows(w, first_row + row, first_token + token, sum);
    }
  }
};

// ---- the products -------------------------------------------------------------------------------

// A warpgroup: one strip of a tile.
template <class S>
struct Consumer {
  static constexpr int kCount = S::kCount;
  static constexpr int kBits = S::kBits;
  static constexpr bool kOnSums = S::kOnSums;

  const Work& w;
  const Ring<S>& ring;
  const int wg = static_cast<int>(threadIdx.x) / 128;
  const int strip = wg % S::kStrips;
  const int turn = S::kSplitK == 1 ? 0 : wg / S::kStrips;  // whose it is
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // A lane's codes, scales and zeros in a stage.
  const int codes_at =
      S::kCodesAt + strip * kStepBlocks * S::kTileBytes + (warp * 32 + lane) * (kBits * 4);
  const int scale_at = S::kScalesAt + strip * S::kScaleRows * 128 + lane / 4 * 16 + warp * 4;
  const int zero_at = S::kZerosAt + strip * S::kScaleRows * 64 + lane / 4 * 8 + warp * 2;
  int s = turn;  // the stage at hand
  uint32_t phase = 0;
  uint32_t to_free = 0;  // the barrier of the stage whose products may still run

  __device__ void release() {
    if (to_free != 0 && lane == 0) sm90::barrier_arrive(to_free);
    to_free = 0;
  }

  // By a row of the step's scales.
  __device__ void grid_of(uint32_t stage, int row, Grid& grid) const {
    if constexpr (!kOnSums) {
      grid.scale[0] = grid.scale[1] = 0x3f803f80u;
      if (!w.scale_at_end) {
        bf16_scales_of(sm90::load_shared_u32(stage + scale_at + row * 128), w.scales_are_bf16,
                       grid.scale);
      }
    }
    grid.zero[0] = grid.zero[1] = kBf16Magic | 0x00080008u;
    if (w.zeros != nullptr) {
      zeros_of<kBits>(sm90::load_shared_u16(stage + zero_at + row * 64), grid.zero);
    }
  }

  // Of block b of the step, for inputs [32 half, 32 half + 32).
  __device__ void grid_of(uint32_t stage, int b, int half, Grid& grid) const {
    if constexpr (kOnSums) {
      if (b == 0 && half == 0) grid_of(stage, 0, grid);
    } else if (half == 0) {
      grid_of(stage, b * 2 * w.scale_rows / 4, grid);
    } else if (w.scale_rows == 4) {
      grid_of(stage, 2 * b + 1, grid);
    }
  }

  // d += sums of a group x its scales.
  static __device__ void add(float (&d)[kCount], const float (&sum)[kCount], float2 scale) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) d[j] = fmaf(sum[j], j / 2 % 2 == 0 ? scale.x : scale.y, d[j]);
  }

  __device__ void run(const Segment& g, float (&d)[kCount]) {
    float group[kOnSums ? kCount : 1];
    float2 scale = make_float2(0, 0);
    uint32_t a[2][2][4];
    Grid grid;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      d[j] = 0;
      if constexpr (kOnSums) group[j] = 0;
    }
    for (int step = g.begin + turn; step < g.end; step += S::kSplitK) {
      sm90::barrier_wait(ring.full(s), phase);
      const uint32_t stage = ring.stage(s);
      const uint32_t x = sm90::describe_tile(stage);
#pragma unroll
      for (int b = 0; b < kStepBlocks; ++b) {
        uint32_t codes[kBits];
#pragma unroll
        for (int q = 0; q < kBits / 4; ++q) {
          const uint4 v = sm90::load_shared(stage + codes_at + b * S::kTileBytes + 16 * q);
          codes[4 * q] = v.x, codes[4 * q + 1] = v.y;
          codes[4 * q + 2] = v.z, codes[4 * q + 3] = v.w;
        }
        // A half's weights are made while the tensor cores have those of the one before.
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          grid_of(stage, b, half, grid);
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            fragment<kBits, !kOnSums>(codes, 2 * half + j, grid, w.zeros != nullptr, a[half][j]);
          }
          if constexpr (kOnSums) {
            if (b == 0 && half == 0) {  // the sums of the group before are done
              const uint32_t pair = sm90::load_shared_u32(stage + scale_at);
              sm90::wgmma_wait<0>();
              sm90::keep(group);
              add(d, group, scale);
              scale = w4_scales(pair, w.scales_are_bf16);
            }
          }
          sm90::wgmma_fence();
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int at = b * S::kXBlockBytes + (2 * half + j) * 32;
            const uint32_t tile = x + (at >> 4);
            if constexpr (kOnSums) {
              sm90::wgmma(group, a[half][j], tile, at != 0);
            } else {
              sm90::wgmma(d, a[half][j], tile, 1);
            }
          }
          sm90::wgmma_commit();
          sm90::wgmma_wait<1>();
          if (b == 0 && half == 0) release();
        }
      }
      to_free = ring.empty(s);
      s += S::kSplitK;
      if (s >= ring.stages) s -= ring.stages, phase ^= 1;
    }
    sm90::wgmma_wait<0>();
    release();
    if constexpr (kOnSums) {
      sm90::keep(group);
      add(d, group, scale);
    } else {
      sm90::keep(d);
    }
  }

  __device__ void all_segments() {
    using Out = Sums<S>;
    const int in_tile = strip * kStrip + warp * 16 + lane / 4;
    Segments all(w);
    Segment g;
    while (all.next(g)) {
      float d[kCount];
      run(g, d);
      const int first_row = g.tile / w.token_tiles * S::kRows;
      const int token = g.tile % w.token_tiles * S::kTokens;
      if (w.split == 1 && g.begin != 0) {
        Out::leave(w, all.me(), d);
        continue;
      }
      if (w.split == 1 && g.end != w.steps) Out::gather(w, all, g, d);
      if (w.scale_at_end) Out::scale(w, first_row / kStrip + strip, d);
      if (S::kSplitK > 1 || w.split > 1) {
        Out::stage(ring.stage(0), in_tile, d);
        sm90::cluster_sync();
        Out::add_cluster(w, ring.stage(0), first_row, token);
        sm90::cluster_sync();  // until all have read this block's sums
        return;
      }
      store_sums(w, first_row + in_tile, token + lane % 4 * 2, d);
    }
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
    sm90::barrier_init(ring.empty(producer), S::kStrips * 4);
    sm90::barrier_inits_done();
    if (producer == 0) sm90::prefetch_map(&x_map);
  }
  __syncthreads();
  if (producer >= 0) {
    sm90::give_registers<S::kProducerRegisters>();
    Producer<S>(w, &x_map, ring).run(producer / 32);
    if (S::kSplitK > 1 || w.split > 1) {
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

// ---- launching
// -------------------------------------------------------------------------------------------------------

using Kernel = void (*)(CUtensorMap, Work);

struct Variant {
  W4Choice choice;
  int bits;
  int per_processor;
  int threads;
  Kernel kernel;
  int stage_bytes;
  int sum_bytes;
};

template <int kTokens, int kStrips, int kSplitK, bool kOnSums, int kBits, int kPerProcessor>
constexpr Variant variant() {
  using S = Tile<kTokens, kStrips, kSplitK, kOnSums, kBits, kPerProcessor>;
  return {{S::kRows, kTokens, kOnSums, kSplitK},
          kBits,
          kPerProcessor,
          S::kThreads,
          multiply<S>,
          S::kStageBytes,
          S::kSumBytes * kSplitK};
}

constexpr Variant kVariants[] = {
    variant<32, 2, 1, true, 4, 2>(),   variant<32, 4, 1, true, 4, 1>(),
    variant<32, 2, 2, true, 4, 1>(),   variant<64, 2, 1, true, 4, 1>(),
    variant<64, 4, 1, true, 4, 1>(),   variant<64, 2, 2, true, 4, 1>(),
    variant<64, 4, 1, false, 4, 1>(),  variant<128, 2, 1, true, 4, 1>(),
    variant<128, 2, 1, false, 4, 1>(), variant<128, 4, 1, false, 4, 1>(),
    variant<256, 2, 1, false, 4, 1>(),
};

int scale_rows_of(const W4Args& args) {
  const bool one = args.group >= args.k;
  return one || args.group % 128 == 0 ? 1 : args.group % 64 == 0 ? 2 : 4;
}

const Variant* find(const W4Args& args, const W4Choice& choice) {
  for (const Variant& v : kVariants) {
    if (v.choice.rows == choice.rows && v.choice.tokens == choice.tokens &&
        v.choice.on_sums == choice.on_sums && v.choice.split_k == choice.split_k &&
        v.bits == args.bits) {
      return &v;
    }
  }
  return nullptr;
}

int div_up(int a, int b) { return (a + b - 1) / b; }

void describe_weight(const W4Args& args, Work& w) {
  w.codes = static_cast<const uint8_t*>(args.codes);
  w.scales = static_cast<const uint8_t*>(args.scales);
  w.zeros = static_cast<const uint8_t*>(args.zeros);
  w.scales_are_bf16 = args.scales_are_bf16;
  w.n = args.n;
  w.blocks = div_up(args.k, kBlock);
  w.steps = div_up(w.blocks, kStepBlocks);
  w.strips = div_up(args.n, kStrip);
  w.group = args.group;
  w.groups = div_up(args.k, args.group);
  w.scale_rows = scale_rows_of(args);
}

struct Card {
  int processors = 0;
  int shared = 0;  // bytes that a block may have
};
// Also lets the kernels have all shared memory. Cards are few: counted once each.
cudaError_t card(Card& out) {
  constexpr int kMost = 64;
  static std::atomic<int> processors[kMost];
  static std::atomic<int> shared[kMost];
  int device = 0;
  if (const cudaError_t e = cudaGetDevice(&device); e != cudaSuccess) return e;
  if (device >= kMost) return cudaErrorInvalidDevice;
  if (shared[device] == 0) {
    int count = 0;
    int bytes = 0;
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    if (const cudaError_t e =
            cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
        e != cudaSuccess) {
      return e;
    }
    for (const Variant& v : kVariants) {
      const cudaError_t e =
          cudaFuncSetAttribute(reinterpret_cast<const void*>(v.kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      if (e != cudaSuccess) return e;
    }
    processors[device] = count;
    shared[device] = bytes;
  }
  out = {processors[device], shared[device]};
  return cudaSuccess;
}

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

cudaError_t describe_x(const W4Args& args, int tokens, CUtensorMap& map) {
  static std::atomic<Encode> known{nullptr};
  Encode encode = known;
  if (encode == nullptr) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                           cudaEnableDefault, &result);
    if (e != cudaSuccess) return e;
    if (found == nullptr) return cudaErrorNotSupported;
    known = encode = reinterpret_cast<Encode>(found);
  }
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(div_up(args.k, kBlock)) * kBlock,
                               static_cast<cuuint64_t>(args.m)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(args.ldx) * 2};
  const cuuint32_t box[2] = {kBlock, static_cast<cuuint32_t>(tokens)};
  const cuuint32_t every[2] = {1, 1};
  const CUresult r =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<__nv_bfloat16*>(args.x), sizes,
             strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

bool w4_can(const W4Args& args, const W4Choice& choice) {
  const Variant* v = find(args, choice);
  if (v == nullptr || (choice.on_sums && scale_rows_of(args) != 1)) return false;
  if (choice.split_k > 1 && choice.split == 0) return false;
  return choice.split < 2 || choice.split <= div_up(div_up(args.k, kBlock), kStepBlocks);
}

size_t w4_workspace(int multiprocessors) {
  // Sums of 256 x 128 outputs a block, or of two smaller ones.
  return kFlagBytes + static_cast<size_t>(multiprocessors) * 256 * 128 * sizeof(float);
}

W4Choice choose_w4(const W4Args& args, int multiprocessors) {
  W4Choice c;
  c.tokens = args.m <= 32 ? 32 : args.m <= 64 ? 64 : args.m <= 128 ? 128 : 256;
  c.on_sums = c.tokens <= 64 && scale_rows_of(args) == 1;
  const int tiles = div_up(args.n, c.rows) * div_up(args.m, c.tokens);
  if (tiles * 2 <= multiprocessors) {
    c.split = 2;
    while (c.split < 8 && tiles * c.split * 2 <= multiprocessors) c.split *= 2;
  }
  if (!w4_can(args, c)) c.split = 0;
  return c;
}

cudaError_t launch_w4_wgmma(const W4Args& args, const W4Choice& choice) {
  if (!w4_can(args, choice)) return cudaErrorInvalidValue;
  const Variant& v = *find(args, choice);
  Card c;
  if (const cudaError_t e = card(c); e != cudaSuccess) return e;
  CUtensorMap map;
  if (const cudaError_t e = describe_x(args, v.choice.tokens, map); e != cudaSuccess) return e;

  Work w{};
  describe_weight(args, w);
  w.m = args.m;
  w.scale_at_end = w.groups == 1 && !v.choice.on_sums;
  w.y = args.y;
  w.ldy = args.ldy;
  w.y_is_bf16 = args.y_is_bf16;
  w.y_in_quads =
      args.n % 4 == 0 && args.ldy % 4 == 0 && reinterpret_cast<uintptr_t>(args.y) % 16 == 0;
  w.y_in_pairs =
      args.n % 2 == 0 && args.ldy % 2 == 0 && reinterpret_cast<uintptr_t>(args.y) % 4 == 0;
  w.flags = static_cast<uint32_t*>(args.workspace);
  w.partial = reinterpret_cast<float4*>(static_cast<uint8_t*>(args.workspace) + kFlagBytes);
  w.token_tiles = div_up(args.m, v.choice.tokens);
  w.tiles = div_up(args.n, v.choice.rows) * w.token_tiles;

  int blocks = 0;
  if (choice.split > 1 || choice.split_k > 1) {
    w.split = choice.split;
    blocks = w.tiles * w.split;
  } else {
    w.split = 1;
    const int places = c.processors * v.per_processor;
    blocks = choice.split == 1 ? min(w.tiles, places)
                               : static_cast<int>(min(int64_t{w.tiles} * w.steps, int64_t{places}));
    const int waves = w.tiles / blocks;
    if (choice.split == 0 && w.tiles % blocks != 0) {
      w.shared_tiles = waves > 1 ? w.tiles - (waves - 1) * blocks : w.tiles;
    }
  }

  const int most = (c.shared + 1024) / v.per_processor - 1024;
  w.stages = choice.stages > 0 ? choice.stages : kMostStages;
  while (w.stages > 1 && shared_bytes(w.stages, v.stage_bytes) > most) --w.stages;
  if (w.stages % choice.split_k != 0 && w.stages > 1) --w.stages;
  if ((choice.split > 1 || choice.split_k > 1) && w.stages * v.stage_bytes < v.sum_bytes) {
    w.stages = div_up(v.sum_bytes, v.stage_bytes);
  }

  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(v.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes(w.stages, v.stage_bytes));
  config.stream = args.stream;
  cudaLaunchAttribute attribute[2];
  attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute[0].val.programmaticStreamSerializationAllowed = 1;
  attribute[1].id = cudaLaunchAttributeClusterDimension;
  attribute[1].val.clusterDim.x = static_cast<unsigned>(w.split);
  attribute[1].val.clusterDim.y = attribute[1].val.clusterDim.z = 1;
  config.attrs = attribute;
  config.numAttrs = w.split > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, v.kernel, map, w);
}

// ---- the panel
// -----------------------------------------------------------------------------------------------------

namespace {

// A warp makes 16 rows x 64 inputs. A lane has pairs of inputs of two rows; the four lanes of a row
// trade so that each has eight neighbours.
template <int kBits>
__global__ void __launch_bounds__(256)
    make_panel(Work w, int first_strip, int strips, int rows, __nv_bfloat16* panel, int64_t ldp) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int64_t count = int64_t{strips} * w.blocks * 4;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  for (int64_t i = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32; i < count;
       i += warps) {
    const int tile = static_cast<int>(i % 4);
    const int block = static_cast<int>(i / 4 % w.blocks);
    const int strip = static_cast<int>(i / 4 / w.blocks);
    const int64_t of_strip = first_strip + strip;
    const auto* from = reinterpret_cast<const uint4*>(
        w.codes + ((of_strip * w.blocks + block) * 4 + tile) * (kStrip * kBlock * kBits / 32) +
        lane * (kBits * 4));
    uint32_t codes[kBits];
#pragma unroll
    for (int q = 0; q < kBits / 4; ++q) {
      const uint4 v = __ldcs(from + q);
      codes[4 * q] = v.x, codes[4 * q + 1] = v.y, codes[4 * q + 2] = v.z, codes[4 * q + 3] = v.w;
    }
    uint32_t pair[2][8];  // [row g or g + 8][eight inputs 8 h]: inputs 8 h + 2 t, 8 h + 2 t + 1
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      Grid grid;
      const int group = min((block * kBlock + j / 2 * (kBlock / 2)) / w.group, w.groups - 1);
      const int64_t at = (of_strip * w.groups + group) * kStrip + g * 8 + tile * 2;
      bf16_scales_of(*reinterpret_cast<const uint32_t*>(w.scales + 2 * at), w.scales_are_bf16,
                     grid.scale);
      grid.zero[0] = grid.zero[1] = kBf16Magic | 0x00080008u;
      if (w.zeros != nullptr)
        zeros_of<kBits>(*reinterpret_cast<const uint16_t*>(w.zeros + at), grid.zero);
      uint32_t a[4];
      fragment<kBits, true>(codes, j, grid, w.zeros != nullptr, a);
      pair[0][2 * j] = a[0], pair[1][2 * j] = a[1];
      pair[0][2 * j + 1] = a[2], pair[1][2 * j + 1] = a[3];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = strip * kStrip + tile * 16 + r * 8 + g;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // A transposed square of 4 x 4: lane t ends with what the four lanes have of inputs 8 (4
        // half + t).
        uint32_t v[4];
#pragma unroll
        for (int h = 0; h < 4; ++h) v[h] = pair[r][4 * half + h];
        trade(v, t);
        if (row < rows) {
          *reinterpret_cast<uint4*>(panel + row * ldp + block * kBlock + (4 * half + t) * 8) =
              make_uint4(v[0], v[1], v[2], v[3]);
        }
      }
    }
  }
#endif
}

}  // namespace

cudaError_t launch_w4_panel(const W4Args& args, int first, int rows, __nv_bfloat16* panel,
                            int64_t ldp) {
  Work w{};
  describe_weight(args, w);
  const int strips = div_up(rows, kStrip);
  const int64_t warps = int64_t{strips} * w.blocks * 4;
  const auto blocks = static_cast<unsigned>(min((warps + 7) / 8, int64_t{132 * 32}));
  make_panel<4><<<blocks, 256, 0, args.stream>>>(w, first / kStrip, strips, rows, panel, ldp);
  return cudaGetLastError();
}

}  // namespace nibble::kernels::cuda
