// y = x W^T with 4- or 8-bit weights and bf16 x for 17 tokens and more, on Hopper (compute
// capability 9.0).
//
// Weights are the A operand of wgmma, made in registers from codes that lie in the order of its
// fragments; tokens are the B operand, in shared memory. A block is 12 warps and computes tiles of
// 128 or 256 rows x 32 to 256 tokens: three warps copy stages of 128 inputs (one the codes, one the
// scales, one x) into a ring, two warpgroups multiply. Codes do not wait for the kernel before this
// one in the stream; x does.
//
// Work is cut so that all multiprocessors have the same:
//   split 2, 4, 8   The blocks of a cluster share the inputs of one tile and add their sums through
//                   its memory.
//   split 0         Tiles x steps are one line, cut into equal runs ("stream-K"). A run may begin
//                   within a tile: its block writes these sums to the workspace, and the block with
//                   the tile's first step adds them, in order. What is more than two tiles a block
//                   is left whole.
// Sums are added in a fixed order: results do not change between calls.
//
// The kernel; cuda_w4_wgmma.cu, which alone includes this, launches it.
#pragma once

#include "kernels/matmul/cuda_sm90.cuh"
#include "kernels/matmul/cuda_w4_wgmma.cuh"

namespace nibble::kernels::cuda {
namespace {

constexpr int kStrip = 64;  // rows
constexpr int kBlock = 64;  // inputs
constexpr int kStepBlocks = 2;
constexpr int kConsumers = 256;                  // threads
constexpr int kBlockThreads = kConsumers + 128;  // registers are given by warpgroups
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
  int scale_rows;     // scales of a row and step: 1, 2 (groups of 64 or 192, ...) or 4 (of 32)
  bool scale_at_end;  // one group: the sums are multiplied
  bool scales_are_bf16;
  bool y_is_bf16;
  bool y_in_pairs;  // pairs of bf16 rows are aligned
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

template <int kTokens, int kHeights, int kBits>
struct Sizes {
  static constexpr int kStrips = 2 * kHeights;
  static constexpr int kRows = kStrip * kStrips;
  static constexpr int kTileBytes = kStrip * kBlock * kBits / 8;
  static constexpr int kXBlockBytes = kTokens * kBlock * 2;
  static constexpr int kXBytes = kStepBlocks * kXBlockBytes;
  static constexpr int kStageBytes = kXBytes + kStrips * kStepBlocks * kTileBytes;
  static constexpr int kLd = kRows + 4;  // of the sums of a cluster's block: no bank conflicts
  static constexpr int kSumBytes = kTokens * kLd * 4;
  __host__ __device__ static constexpr int scale_bytes(int scale_rows) {
    return kStrips * scale_rows * kStrip * 3;
  }
  static size_t shared_bytes(int stages, int scale_rows) {
    return 1024 + static_cast<size_t>(stages) * (kStageBytes + scale_bytes(scale_rows) + 16);
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Where the parts of the ring lie.
template <class S>
struct Ring {
  uint32_t base, scales, barriers;
  int stages, scale_bytes, scale_rows;

  __device__ Ring(uint32_t memory, const Work& w)
      : base((memory + 1023) & ~1023u),
        stages(w.stages),
        scale_bytes(S::scale_bytes(w.scale_rows)),
        scale_rows(w.scale_rows) {
    scales = base + static_cast<uint32_t>(stages) * S::kStageBytes;
    barriers = scales + static_cast<uint32_t>(stages * scale_bytes);
  }
  __device__ uint32_t full(int s) const { return barriers + 16 * s; }
  __device__ uint32_t empty(int s) const { return barriers + 16 * s + 8; }
  __device__ uint32_t x(int s) const { return base + s * S::kStageBytes; }
  __device__ uint32_t codes(int s) const { return x(s) + S::kXBytes; }
  __device__ uint32_t scale(int s, int strip) const {
    return scales + s * scale_bytes + strip * scale_rows * (2 * kStrip);
  }
  __device__ uint32_t zero(int s, int strip) const {
    return scales + s * scale_bytes + S::kStrips * scale_rows * (2 * kStrip) +
           strip * scale_rows * kStrip;
  }
};

// ---- the copies ---------------------------------------------------------------------------------

// Three warps, one thread each: codes, scales and zeros, x. Parts of weights that do not exist (the
// last tile's strips, the last step's block) are those before them: nothing that is stored comes
// from them, or their x is zero. An instruction saved here is a stage that comes sooner.
constexpr int kProducers = 3;

template <class S, int kTokens>
class Producer {
 public:
  __device__ Producer(const Work& w, const CUtensorMap* map, const Ring<S>& ring)
      : w_(w), map_(map), ring_(ring) {}

  __device__ void run(int warp) {
    if (warp == 0) {
      codes();
    } else if (warp == 1) {
      scales();
    } else if (warp == 2) {
      x();
    }
  }

 private:
  // The next stage, once it is free.
  __device__ uint32_t next(uint32_t bytes) {
    const int s = s_;
    const uint32_t full = ring_.full(s);
    sm90::barrier_wait(ring_.empty(s), phase_ ^ 1);
    sm90::barrier_expect(full, bytes);
    return full;
  }
  __device__ void advance() {
    if (++s_ == ring_.stages) s_ = 0, phase_ ^= 1;
  }
  __device__ uint64_t policy() const {
    return w_.token_tiles == 1 ? sm90::evict_first() : sm90::evict_normal();
  }
  __device__ int strip_of(const Segment& g, int i) const {
    return min(g.tile / w_.token_tiles * S::kStrips + i, w_.strips - 1);
  }

  __device__ void codes() {
    constexpr int kBytes = kStepBlocks * S::kTileBytes;
    const uint64_t policy = this->policy();
    Segment g;
    for (Segments all(w_); all.next(g);) {
      const uint8_t* from[S::kStrips];
#pragma unroll
      for (int i = 0; i < S::kStrips; ++i) {
        const int64_t block =
            static_cast<int64_t>(strip_of(g, i)) * w_.blocks + g.begin * kStepBlocks;
        from[i] = w_.codes + block * S::kTileBytes;
      }
#pragma unroll 1
      for (int step = g.begin; step < g.end; ++step) {
        const uint32_t full = next(S::kStrips * kBytes);
        const uint32_t to = ring_.codes(s_);
        const bool both = step * kStepBlocks + 1 < w_.blocks;
#pragma unroll
        for (int i = 0; i < S::kStrips; ++i) {
          sm90::copy_bulk(to + i * kBytes, from[i], both ? kBytes : kBytes / 2, full, policy);
          if (!both)
            sm90::copy_bulk(to + i * kBytes + kBytes / 2, from[i], kBytes / 2, full, policy);
          from[i] += kBytes;
        }
        advance();
      }
    }
  }

  __device__ void scales() {
    const uint64_t policy = this->policy();
    const int count = ring_.scale_rows;               // of a step
    const int inputs = kStepBlocks * kBlock / count;  // that share one
    const uint32_t all_rows = S::kStrips * count * kStrip;
    const uint32_t bytes =
        (w_.scale_at_end ? 0 : 2 * all_rows) + (w_.zeros != nullptr ? all_rows : 0);
    Segment g;
    for (Segments all(w_); all.next(g);) {
      int group = g.begin * kStepBlocks * kBlock / w_.group;
      int within = g.begin * kStepBlocks * kBlock - group * w_.group;  // inputs
      int64_t row[S::kStrips];
#pragma unroll
      for (int i = 0; i < S::kStrips; ++i)
        row[i] = static_cast<int64_t>(strip_of(g, i)) * w_.groups;
#pragma unroll 1
      for (int step = g.begin; step < g.end; ++step) {
        const uint32_t full = next(bytes);
        const bool run = count == 1 || (inputs == w_.group && group + count <= w_.groups);
#pragma unroll 1
        for (int r = 0; r < count; r += run ? count : 1) {
          const int rows = run ? count : 1;
          const int there = min(group, w_.groups - 1);
#pragma unroll
          for (int i = 0; i < S::kStrips; ++i) {
            if (!w_.scale_at_end) {
              sm90::copy_bulk(ring_.scale(s_, i) + r * 2 * kStrip,
                              w_.scales + (row[i] + there) * 2 * kStrip, rows * 2 * kStrip, full,
                              policy);
            }
            if (w_.zeros != nullptr) {
              sm90::copy_bulk(ring_.zero(s_, i) + r * kStrip, w_.zeros + (row[i] + there) * kStrip,
                              rows * kStrip, full, policy);
            }
          }
          within += rows * inputs;
          while (within >= w_.group) within -= w_.group, ++group;
        }
        advance();
      }
    }
  }

  __device__ void x() {
    const uint64_t policy = sm90::evict_last();
    sm90::wait_for_earlier_grid();
    Segment g;
    for (Segments all(w_); all.next(g);) {
      const int token = g.tile % w_.token_tiles * kTokens;
#pragma unroll 1
      for (int step = g.begin; step < g.end; ++step) {
        const uint32_t full = next(S::kXBytes);
#pragma unroll
        for (int b = 0; b < kStepBlocks; ++b) {
          sm90::copy_tile(ring_.x(s_) + b * S::kXBlockBytes, map_,
                          (step * kStepBlocks + b) * kBlock, token, full, policy);
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

template <class S, int kTokens, int kHeights>
struct Sums {
  static constexpr int kCount = kTokens / 2;
  static constexpr int kQuads = kHeights * kCount / 4;

  // A part of a tile, for the block that has its first step.
  static __device__ void leave(const Work& w, int me, const float (&d)[kHeights][kCount]) {
    float4* to = w.partial + static_cast<int64_t>(me) * kQuads * kConsumers + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float* v = &d[i / (kCount / 4)][i % (kCount / 4) * 4];
      __stcg(to + i * kConsumers, make_float4(v[0], v[1], v[2], v[3]));
    }
    __threadfence();
    sm90::sync_some(1, kConsumers);
    if (threadIdx.x == 0) sm90::store_release(w.flags + me, 1);
  }

  static __device__ void gather(const Work& w, const Segments& all, const Segment& g,
                                float (&d)[kHeights][kCount]) {
    const int end = (g.tile + 1) * w.steps;
    int from = all.me();
    while (all.begin_of(++from) < end) {
      while (sm90::load_acquire(w.flags + from) == 0) {
      }
      const float4* at = w.partial + static_cast<int64_t>(from) * kQuads * kConsumers + threadIdx.x;
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const float4 v = __ldcg(at + i * kConsumers);
        float* to = &d[i / (kCount / 4)][i % (kCount / 4) * 4];
        to[0] += v.x, to[1] += v.y, to[2] += v.z, to[3] += v.w;
      }
    }
    sm90::sync_some(1, kConsumers);
    // For the next launch.
    if (threadIdx.x == 0) {
      for (int i = all.me() + 1; i < from; ++i) w.flags[i] = 0;
    }
  }

  static __device__ void scale(const Work& w, int strip, float (&d)[kCount]) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 % 4;
    const auto* from = reinterpret_cast<const uint32_t*>(
        w.scales + static_cast<int64_t>(min(strip, w.strips - 1)) * w.groups * 2 * kStrip);
    const float2 s = w4_scales(from[lane / 4 * 4 + warp], w.scales_are_bf16);
#pragma unroll
    for (int j = 0; j < kCount; ++j) d[j] *= j / 2 % 2 == 0 ? s.x : s.y;
  }

  // The blocks of a cluster add their sums, each for its share of the tokens. All consumers.
  static __device__ void stage(uint32_t at, int row, const float (&d)[kHeights][kCount]) {
    sm90::sync_some(1, kConsumers);  // nobody reads the ring any more
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < kHeights; ++m) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const int r = row + m * kStrip + j / 2 % 2 * 8;
        const int token = j / 4 * 8 + 2 * t + j % 2;
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(at + (token * S::kLd + r) * 4), "f"(d[m][j])
                     : "memory");
      }
    }
  }
  static __device__ void add_cluster(const Work& w, uint32_t at, int first_row, int first_token) {
    const int rank = static_cast<int>(sm90::cluster_rank());
    const int tokens = kTokens / w.split;
    constexpr int kRowQuads = S::kRows / 4;
    for (int i = threadIdx.x; i < tokens * kRowQuads; i += kConsumers) {
      const int token = rank * tokens + i / kRowQuads;
      const int row = i % kRowQuads * 4;
      if (first_token + token >= w.m || first_row + row >= w.n) continue;
      float4 sum = make_float4(0, 0, 0, 0);
      for (int p = 0; p < w.split; ++p) {
        const float4 v =
            sm90::load_of_cluster(at + (token * S::kLd + row) * 4, static_cast<uint32_t>(p));
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
      }
      store(w, first_row + row, first_token + token, sum.x);
      store(w, first_row + row + 1, first_token + token, sum.y);
      store(w, first_row + row + 2, first_token + token, sum.z);
      store(w, first_row + row + 3, first_token + token, sum.w);
    }
  }
};

// ---- the products
// ----------------------------------------------------------------------------------------------------

// The two warpgroups: strips [kHeights wg, kHeights (wg + 1)) of a tile each.
template <int kTokens, int kHeights, bool kOnSums, int kBits, class S>
struct Consumer {
  static constexpr int kCount = kTokens / 2;
  using Out = Sums<S, kTokens, kHeights>;

  const Work& w;
  const Ring<S>& ring;
  const int wg = static_cast<int>(threadIdx.x) / 128;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // A lane's codes, scales and zeros of the first stage.
  const uint32_t codes_at = ring.codes(0) + wg * kHeights * kStepBlocks * S::kTileBytes +
                            (warp * 32 + lane) * (kBits * 4);
  const uint32_t scale_at = ring.scale(0, wg* kHeights) + lane / 4 * 16 + warp * 4;
  const uint32_t zero_at = ring.zero(0, wg* kHeights) + lane / 4 * 8 + warp * 2;
  int s = 0;  // the stage at hand
  uint32_t phase = 0;
  int before = -1;  // the stage whose products may still run

  __device__ void release() {
    if (before >= 0 && lane == 0) sm90::barrier_arrive(ring.empty(before));
    before = -1;
  }

  // Of strip m of the warpgroup's and a row of the step's scales.
  __device__ void grid_of(int m, int row, Grid& grid) const {
    const int at = m * ring.scale_rows + row;
    if constexpr (!kOnSums) {
      grid.scale[0] = grid.scale[1] = 0x3f803f80u;
      if (!w.scale_at_end) {
        bf16_scales_of(sm90::load_shared_u32(scale_at + s * ring.scale_bytes + at * 2 * kStrip),
                       w.scales_are_bf16, grid.scale);
      }
    }
    grid.zero[0] = grid.zero[1] = kBf16Magic | 0x00080008u;
    if (w.zeros != nullptr) {
      zeros_of<kBits>(sm90::load_shared_u16(zero_at + s * ring.scale_bytes + at * kStrip),
                      grid.zero);
    }
  }

  // d (one strip) += sums of a group x its scales.
  static __device__ void add(float (&d)[kCount], const float (&sum)[kCount], float2 scale) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) d[j] = fmaf(sum[j], j / 2 % 2 == 0 ? scale.x : scale.y, d[j]);
  }

  __device__ void run(const Segment& g, float (&d)[kHeights][kCount]) {
    float group[kOnSums ? kHeights : 1][kOnSums ? kCount : 1];
    float2 scale[kHeights];
    uint32_t a[2][4][4];
#pragma unroll
    for (int m = 0; m < kHeights; ++m) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        d[m][j] = 0;
        if constexpr (kOnSums) group[m][j] = 0;
      }
      scale[m] = make_float2(0, 0);
    }
    for (int step = g.begin; step < g.end; ++step) {
      sm90::barrier_wait(ring.full(s), phase);
      uint32_t codes[kStepBlocks][kHeights][kBits];
#pragma unroll
      for (int c = 0; c < kStepBlocks * kHeights; ++c) {
        const int b = c / kHeights, m = c % kHeights;
        const uint32_t at = codes_at + s * S::kStageBytes + (m * kStepBlocks + b) * S::kTileBytes;
#pragma unroll
        for (int q = 0; q < kBits / 4; ++q) {
          const uint4 v = sm90::load_shared(at + 16 * q);
          codes[b][m][4 * q] = v.x, codes[b][m][4 * q + 1] = v.y;
          codes[b][m][4 * q + 2] = v.z, codes[b][m][4 * q + 3] = v.w;
        }
      }
      const uint64_t x = sm90::describe_tile(ring.x(s));
#pragma unroll
      for (int c = 0; c < kStepBlocks * kHeights; ++c) {
        const int b = c / kHeights, m = c % kHeights;
        Grid grid;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (j == 0 || (j == 2 && !kOnSums)) {
            grid_of(m, kOnSums ? 0 : (2 * b + j / 2) * ring.scale_rows / 4, grid);
          }
          fragment<kBits, !kOnSums>(codes[b][m], j, grid, w.zeros != nullptr, a[c % 2][j]);
        }
        if constexpr (kOnSums) {
          if (c == 0) {  // the sums of the group before are done
            sm90::wgmma_wait<0>();
#pragma unroll
            for (int h = 0; h < kHeights; ++h) {
              sm90::keep(group[h]);
              add(d[h], group[h], scale[h]);
              const uint32_t pair =
                  sm90::load_shared_u32(scale_at + s * ring.scale_bytes + h * 2 * kStrip);
              scale[h] = w4_scales(pair, w.scales_are_bf16);
            }
          }
        }
        sm90::wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint64_t tile = x + static_cast<uint64_t>((b * S::kXBlockBytes + j * 32) >> 4);
          if constexpr (kOnSums) {
            sm90::wgmma(group[m], a[c % 2][j], tile, b != 0 || j != 0);
          } else {
            sm90::wgmma(d[m], a[c % 2][j], tile, 1);
          }
        }
        sm90::wgmma_commit();
        sm90::wgmma_wait<1>();
        if (c == 0) release();
      }
      before = s;
      if (++s == ring.stages) s = 0, phase ^= 1;
    }
    sm90::wgmma_wait<0>();
    release();
#pragma unroll
    for (int m = 0; m < kHeights; ++m) {
      if constexpr (kOnSums) {
        sm90::keep(group[m]);
        add(d[m], group[m], scale[m]);
      } else {
        sm90::keep(d[m]);
      }
    }
  }

  __device__ void all_segments() {
    const int in_tile = wg * kHeights * kStrip + warp * 16 + lane / 4;
    Segments all(w);
    Segment g;
    while (all.next(g)) {
      float d[kHeights][kCount];
      run(g, d);
      const int first_row = g.tile / w.token_tiles * S::kRows;
      const int token = g.tile % w.token_tiles * kTokens;
      if (w.split == 1 && g.begin != 0) {
        Out::leave(w, all.me(), d);
        continue;
      }
      if (w.split == 1 && g.end != w.steps) Out::gather(w, all, g, d);
      if (w.scale_at_end) {
#pragma unroll
        for (int m = 0; m < kHeights; ++m) {
          Out::scale(w, first_row / kStrip + wg * kHeights + m, d[m]);
        }
      }
      if (w.split > 1) {
        Out::stage(ring.base, in_tile, d);
        sm90::cluster_sync();
        Out::add_cluster(w, ring.base, first_row, token);
        sm90::cluster_sync();
        return;
      }
#pragma unroll
      for (int m = 0; m < kHeights; ++m) {
        store_sums(w, first_row + in_tile + m * kStrip, token + threadIdx.x % 4 * 2, d[m]);
      }
    }
  }
};

#endif  // sm_90a

template <int kTokens, int kHeights, bool kOnSums, int kBits, int kPerProcessor>
__global__ __launch_bounds__(kBlockThreads,
                             kPerProcessor) void multiply(const __grid_constant__ CUtensorMap x_map,
                                                          const __grid_constant__ Work w) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Sizes<kTokens, kHeights, kBits>;
  extern __shared__ uint8_t memory[];
  const Ring<S> ring(sm90::shared_address(memory), w);
  sm90::let_later_grid_start();
  if (const int i = static_cast<int>(threadIdx.x) - kConsumers; i >= 0 && i < ring.stages) {
    sm90::barrier_init(ring.full(i), kProducers);
    sm90::barrier_init(ring.empty(i), kConsumers / 32);
    sm90::barrier_inits_done();
    if (i == 0) sm90::prefetch_map(&x_map);
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    sm90::give_registers<kPerProcessor == 1 ? 56 : 48>();
    if (threadIdx.x % 32 == 0) {
      Producer<S, kTokens>(w, &x_map, ring)
          .run(static_cast<int>(threadIdx.x) / 32 - kConsumers / 32);
    }
    if (w.split > 1) {
      __syncwarp();
      sm90::cluster_sync();
      sm90::cluster_sync();
    }
  } else {
    sm90::take_registers<kPerProcessor == 1 ? 224 : 96>();
    sm90::wait_for_earlier_grid();
    Consumer<kTokens, kHeights, kOnSums, kBits, S>{w, ring}.all_segments();
  }
#endif
}

}  // namespace
}  // namespace nibble::kernels::cuda
