// y = x W^T with 4- or 8-bit codes and 1 to 16 tokens on Hopper (compute capability 9.0): the time
// to read the codes, nearly.
//
// A strip of 64 rows at a time. The blocks of a cluster share its inputs: each holds its part of x
// in shared memory for good, so that x is read once a block. In a block
//
//   1 producer warp    copies stages of codes and scales into a ring (bulk copies, a barrier each);
//                      it does not wait for the kernel before this one, codes do not change
//   8 consumer warps   each 16 kTiles rows and every kSplit-th unit of 128 inputs: codes become
//                      bf16 in registers (mma.m16n8k16's A operand), x is B, sums are f32 and are
//                      scaled once a unit, or once 32 or 64 inputs
//   3 reducer warps    add what the consumers of a strip leave in shared memory, send other ranks
//                      their rows, add what these sent and write y, while the consumers are at the
//                      next strip
//
// Sums are added in a fixed order: results do not change between calls.
#include <algorithm>

#include "kernels/matmul/cuda_sm90.cuh"
#include "kernels/matmul/cuda_w4_few.cuh"

namespace nibble::kernels::cuda {
namespace {

constexpr int kStrip = 64;  // rows
constexpr int kUnit = 128;  // inputs
constexpr int kMostWeights = 4;
constexpr int kExchanges = 4;  // of sums between ranks that are under way: see Reducers
constexpr int kSegments = 4;   // of x, that are waited for one by one
constexpr int kReducers = 96;  // threads
constexpr int kSharedMost = 227 * 1024;

struct Weight {
  const uint8_t* codes;
  const uint8_t* scales;
  const uint8_t* zeros;
  void* y;
  int64_t ldy;
  int n;
};

struct Work {
  Weight weight[kMostWeights];
  int first_strip[kMostWeights + 1];  // of all strips; those beyond `count` are at the end
  const void* x;
  int64_t ldx;
  int m;
  int k;       // of f32 x; zeros follow
  int units;   // of 128 inputs
  int slice;   // units of a rank, but for the last
  int groups;  // rows of scales of a strip
  int group;
  int clusters;
  int ranks;
  int stages;
  bool scales_are_bf16;
  bool y_is_bf16;

  __host__ __device__ int strips() const { return first_strip[kMostWeights]; }
};

// What is compiled for: codes' bits, tokens' tiles of 8, rows' tiles of 16 a warp, warps that share
// the units of a row, scales of a row and unit.
template <int kBits_, int kTokenTiles_, int kTiles_, int kSplit_, int kScaleRows_, bool kZeros_,
          class X_>
struct Shape {
  static constexpr int kBits = kBits_;
  static constexpr int kTokenTiles = kTokenTiles_;
  static constexpr int kTiles = kTiles_;
  static constexpr int kSplit = kSplit_;
  static constexpr int kScaleRows = kScaleRows_;
  static constexpr bool kZeros = kZeros_;
  using X = X_;
  static constexpr bool kXIsF32 = sizeof(X) == 4;

  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kRowWarps = 4 / kTiles;  // that share a unit
  static constexpr int kWarps = kRowWarps * kSplit;
  static constexpr int kConsumers = kWarps * 32;
  static constexpr int kThreads = kConsumers + 32 + kReducers;

  // A stage: kSplit units of codes, then of scales, then of zeros.
  static constexpr int kUnitCodes = kStrip * kUnit * kBits / 8;
  static constexpr int kCodeBytes = kSplit * kUnitCodes;
  static constexpr int kScaleBytes = kSplit * kScaleRows * kStrip * 2;
  static constexpr int kZeroBytes = kZeros ? kSplit * kScaleRows * kStrip : 0;
  static constexpr int kStageBytes = kCodeBytes + kScaleBytes + kZeroBytes;

  static constexpr int kSumRow = kStrip + 4;  // floats; the warp's stores hit all banks
  static constexpr int kSumBytes = kSplit * kTokens * kSumRow * 4;
};

// Shared memory: the ring, barriers, sums [kSplit][tokens][kSumRow], exchange
// [kExchanges][source rank][token][rows of a rank], x [token][x_stride].
struct Memory {
  int barriers, sums, exchange, x, bytes;
  int x_stride;  // bf16 numbers; rows are 16 bytes apart in banks
};
template <class S>
__host__ __device__ Memory memory_of(int m, int slice, int ranks, int stages) {
  Memory out;
  out.barriers = stages * S::kStageBytes;
  out.sums = out.barriers + ((2 * stages + 2 + kExchanges + kSegments) * 8 + 127) / 128 * 128;
  out.exchange = out.sums + S::kSumBytes;
  out.x = out.exchange + (ranks == 1 ? 0 : kExchanges * kStrip * m * 4);
  out.x_stride = slice * kUnit + 8;
  out.bytes = out.x + m * out.x_stride * 2;
  return out;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

using namespace sm90;  // NOLINT: instructions

__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
__device__ inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
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

// Where this block stands.
struct Place {
  int rank, first, last;  // strips [first, last)
  int first_unit, units;  // of this rank
  __device__ explicit Place(const Work& w) {
    rank = static_cast<int>(blockIdx.x) % w.ranks;
    const int cluster = static_cast<int>(blockIdx.x) / w.ranks;
    first = static_cast<int>(int64_t{w.strips()} * cluster / w.clusters);
    last = static_cast<int>(int64_t{w.strips()} * (cluster + 1) / w.clusters);
    first_unit = rank * w.slice;
    units = min(w.slice, w.units - first_unit);
  }
};

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

__device__ inline int weight_of(const Work& w, int strip) {
  int i = 0;
  while (strip >= w.first_strip[i + 1]) ++i;
  return i;
}

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

// Inputs of a segment of x.
__device__ inline int segment_units(int units) { return (units + kSegments - 1) / kSegments; }

// By one warp: a copy for each token and segment.
template <class S>
__device__ void copy_x(const Work& w, const Place& place, const Barriers& bars, uint32_t x,
                       int x_stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint64_t policy = evict_last();
  const auto* from = static_cast<const typename S::X*>(w.x) + place.first_unit * kUnit;
  for (int s = 0; s < kSegments; ++s) {
    const int first = min(s * segment_units(place.units), place.units);
    const int count = min(segment_units(place.units), place.units - first);
    if (lane == 0) barrier_expect(bars.x + 8 * s, w.m * count * kUnit * 2);
    __syncwarp();
    if (lane < w.m && count > 0) {
      copy_bulk(x + (lane * x_stride + first * kUnit) * 2, from + lane * w.ldx + first * kUnit,
                count * kUnit * 2, bars.x + 8 * s, policy);
    }
  }
}

// By all consumers; f32 becomes bf16.
template <class S>
__device__ void load_x(const Work& w, const Place& place, __nv_bfloat16* x, int x_stride) {
  constexpr int kAtOnce = 2;
  const int first = place.first_unit * kUnit;
  const int chunks = place.units * kUnit / 8;
  for (int row = 0; row < w.m; ++row) {
    const float* from = static_cast<const float*>(w.x) + row * w.ldx + first;
    for (int i = threadIdx.x; i < chunks; i += kAtOnce * S::kConsumers) {
      float4 v[kAtOnce][2];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int c = i + j * S::kConsumers;
        v[j][0] = v[j][1] = make_float4(0, 0, 0, 0);
        if (c < chunks && first + 8 * c < w.k) {
          v[j][0] = reinterpret_cast<const float4*>(from)[2 * c];
          v[j][1] = reinterpret_cast<const float4*>(from)[2 * c + 1];
        }
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int c = i + j * S::kConsumers;
        if (c >= chunks) continue;
        __nv_bfloat162 pairs[4] = {__floats2bfloat162_rn(v[j][0].x, v[j][0].y),
                                   __floats2bfloat162_rn(v[j][0].z, v[j][0].w),
                                   __floats2bfloat162_rn(v[j][1].x, v[j][1].y),
                                   __floats2bfloat162_rn(v[j][1].z, v[j][1].w)};
        *reinterpret_cast<uint4*>(x + row * x_stride + 8 * c) =
            *reinterpret_cast<const uint4*>(pairs);
      }
    }
  }
  sync_some(2, S::kConsumers);
}

// 128 + the zero of a row twice, as bf16: what its 4-bit codes are less.
constexpr uint32_t kNoZero = 0x43084308u;
__device__ inline uint32_t zero_pair(uint32_t zero) { return (0x4300u | zero) * 0x10001u; }

// The codes of a lane for 64 inputs of a row tile; step(j) is the A operand of 16 of them.
template <class S>
struct Codes {
  uint4 words[S::kBits / 4];

  __device__ void load(const uint8_t* from) {
#pragma unroll
    for (int i = 0; i < S::kBits / 4; ++i) words[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  __device__ uint32_t word(int i) const {
    const uint4& v = words[i / 4];
    return i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
  }
  __device__ void step(int j, uint32_t upper, uint32_t lower, uint32_t (&a)[4]) const {
    if constexpr (S::kBits == 4) {
      const uint32_t w = word(j);
      a[0] = sub_bf16x2(w4_pair<0>(w), upper);
      a[1] = sub_bf16x2(w4_pair<1>(w), lower);
      a[2] = sub_bf16x2(w4_pair<2>(w), upper);
      a[3] = sub_bf16x2(w4_pair<3>(w), lower);
    } else {
      a[0] = w8_pair(word(2 * j));
      a[1] = w8_pair(word(2 * j) >> 8);
      a[2] = w8_pair(word(2 * j + 1));
      a[3] = w8_pair(word(2 * j + 1) >> 8);
    }
  }
  // Bytes 0 and 2, signed: 128 + the low seven bits, less 128 or, where the sign is set, 256.
  __device__ static uint32_t w8_pair(uint32_t w) {
    return sub_bf16x2(and_or(w, 0x007f007fu, kBf16Magic), and_or(w, 0x00800080u, kBf16Magic));
  }
};

template <class S>
__device__ void consume(const Work& w, const Place& place, const Barriers& bars,
                        const uint8_t* ring, float* sums, uint32_t x, int x_stride) {
  constexpr int kTokenTiles = S::kTokenTiles;
  constexpr int kTiles = S::kTiles;
  constexpr int kSteps = 8 / S::kScaleRows;  // of 16 inputs, for each scale
  constexpr int kBlockCodes = S::kUnitCodes / 2;
  constexpr int kTileCodes = kBlockCodes / 4;
  // Few products a step: two chains of sums hide their latency.
  constexpr int kChains = kTiles * kTokenTiles >= 4 || kSteps < 2 ? 1 : 2;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int tile = warp % S::kRowWarps * kTiles;
  const int mine = warp / S::kRowWarps;      // of kSplit
  int segment = S::kXIsF32 ? kSegments : 0;  // the first that was not waited for
  uint32_t x_at[kTokenTiles];                // beyond the last token: another time the last
#pragma unroll
  for (int i = 0; i < kTokenTiles; ++i) {
    const int token = min(i * 8 + lane % 8, w.m - 1);
    x_at[i] = x + (token * x_stride + mine * kUnit + lane / 8 * 8) * 2;
  }
  int slot = 0;
  uint32_t parity = 0;
  for (int strip = place.first; strip < place.last; ++strip) {
    float sum[kTiles][kTokenTiles][4] = {};
    for (int u = 0; u < place.units; u += S::kSplit) {
      const uint32_t full = bars.full + 8 * slot;
      if (u + mine < place.units) {
        while (segment < kSegments && segment * segment_units(place.units) <= u + mine) {
          barrier_wait(bars.x + 8 * segment++, 0);
        }
        uint32_t b[kTokenTiles][4][4];
#pragma unroll
        for (int i = 0; i < kTokenTiles; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) load_matrices(b[i][j], x_at[i] + u * kUnit * 2 + j * 64);
        }
        barrier_wait(full, parity);
        const uint8_t* stage = ring + slot * S::kStageBytes;
        const uint8_t* codes =
            stage + mine * S::kUnitCodes + tile * kTileCodes + lane * (kTileCodes / 32);
        Codes<S> code[2][kTiles];
#pragma unroll
        for (int i = 0; i < 2 * kTiles; ++i) {
          code[i / kTiles][i % kTiles].load(codes + i / kTiles * kBlockCodes +
                                            i % kTiles * kTileCodes);
        }
#pragma unroll
        for (int r = 0; r < S::kScaleRows; ++r) {
          const int row = mine * S::kScaleRows + r;
          float2 scale[kTiles];
          uint32_t zero[kTiles][2];
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
            const int at = g * 8 + (tile + i) * 2;
            scale[i] = w4_scales(
                *reinterpret_cast<const uint32_t*>(stage + S::kCodeBytes + (row * kStrip + at) * 2),
                w.scales_are_bf16);
            zero[i][0] = zero[i][1] = kNoZero;
            if constexpr (S::kZeros) {
              const uint32_t two = *reinterpret_cast<const uint16_t*>(
                  stage + S::kCodeBytes + S::kScaleBytes + row * kStrip + at);
              zero[i][0] = zero_pair(two & 0xffu);
              zero[i][1] = zero_pair(two >> 8);
            }
          }
          float part[kTiles][kTokenTiles][kChains][4];
#pragma unroll
          for (int q = 0; q < kSteps; ++q) {
            const int j = r * kSteps + q;
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
              uint32_t a[4];
              code[j / 4][i].step(j % 4, zero[i][0], zero[i][1], a);
#pragma unroll
              for (int n = 0; n < kTokenTiles; ++n) {
                float(&d)[4] = part[i][n][q % kChains];
                if (q < kChains) d[0] = d[1] = d[2] = d[3] = 0;
                mma(d, a, b[n][j / 2][j % 2 * 2], b[n][j / 2][j % 2 * 2 + 1]);
              }
            }
          }
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
#pragma unroll
            for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
              for (int c = 0; c < 4; ++c) {
                float all = part[i][n][0][c];
                if constexpr (kChains == 2) all += part[i][n][1][c];
                sum[i][n][c] = fmaf(c < 2 ? scale[i].x : scale[i].y, all, sum[i][n][c]);
              }
            }
          }
        }
      } else {
        barrier_wait(full, parity);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(bars.empty + 8 * slot);
      if (++slot == w.stages) slot = 0, parity ^= 1;
    }
    barrier_wait(bars.sums_read, (strip - place.first) % 2 ^ 1);
    float* to = sums + mine * S::kTokens * S::kSumRow;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          to[(n * 8 + 2 * t + c % 2) * S::kSumRow + (tile + i) * 16 + c / 2 * 8 + g] = sum[i][n][c];
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
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (row + j >= to.n) return;
    if (w.y_is_bf16) {
      static_cast<__nv_bfloat16*>(to.y)[token * to.ldy + row + j] = __float2bfloat16_rn(v[j]);
    } else {
      static_cast<float*>(to.y)[token * to.ldy + row + j] = v[j];
    }
  }
}

// Each rank finishes 64 / ranks rows of every strip: it gets the others' sums of these by
// asynchronous stores and adds them a strip later, when they have surely come. No rank can be so
// far ahead that it overwrites what another has not read: to send strip s + 4 it has finished s +
// 2, for which the other had sent s + 2, after it had finished s. So kExchanges is 4.
template <class S>
__device__ void reduce(const Work& w, const Place& place, const Barriers& bars, const float* sums,
                       float* exchange) {
  const int thread = static_cast<int>(threadIdx.x) - S::kConsumers - 32;
  const int rows_mine = kStrip / w.ranks;
  const auto part_of = [&](int n, int source, int token) {
    return exchange + ((n % kExchanges * w.ranks + source) * w.m + token) * rows_mine;
  };
  const auto finish = [&](int n) {
    barrier_wait(bars.received + 8 * (n % kExchanges), n / kExchanges % 2);
    const int quads = rows_mine / 4;
    for (int i = thread; i < quads * w.m; i += kReducers) {
      const int token = i / quads;
      const int row = i % quads * 4;
      float v[4] = {};
      for (int source = 0; source < w.ranks; ++source) {
        const float4 part = *reinterpret_cast<const float4*>(part_of(n, source, token) + row);
        v[0] += part.x, v[1] += part.y, v[2] += part.z, v[3] += part.w;
      }
      write(w, place.first + n, place.rank * rows_mine + row, token, v);
    }
  };
  const int count = place.last - place.first;
  for (int n = 0; n < count; ++n) {
    if (w.ranks > 1 && thread == 0) {
      barrier_expect(bars.received + 8 * (n % kExchanges), (w.ranks - 1) * w.m * rows_mine * 4);
    }
    barrier_wait(bars.summed, n % 2);
    for (int i = thread; i < kStrip / 4 * w.m; i += kReducers) {
      const int token = i / (kStrip / 4);
      const int row = i % (kStrip / 4) * 4;
      float v[4] = {};
#pragma unroll
      for (int s = 0; s < S::kSplit; ++s) {
        const float4 part =
            *reinterpret_cast<const float4*>(sums + (s * S::kTokens + token) * S::kSumRow + row);
        v[0] += part.x, v[1] += part.y, v[2] += part.z, v[3] += part.w;
      }
      if (w.ranks == 1) {
        write(w, place.first + n, row, token, v);
        continue;
      }
      const int owner = row / rows_mine;
      float* to = part_of(n, place.rank, token) + row % rows_mine;
      if (owner == place.rank) {
        *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
      } else {
        send(at_rank(shared_address(to), owner),
             at_rank(bars.received + 8 * (n % kExchanges), owner), v);
      }
    }
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(bars.sums_read);
    if (w.ranks > 1) {
      sync_some(1, kReducers);
      if (n > 0) finish(n - 1);
    }
  }
  if (w.ranks > 1 && count > 0) finish(count - 1);
}

#endif

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) few_tokens(const __grid_constant__ Work w) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Memory at = memory_of<S>(w.m, w.slice, w.ranks, w.stages);
  const Place place(w);
  const Barriers bars(shared_address(shared + at.barriers), w.stages);
  auto* x = reinterpret_cast<__nv_bfloat16*>(shared + at.x);
  if (threadIdx.x == 0) {
    for (int i = 0; i < w.stages; ++i) {
      barrier_init(bars.full + 8 * i, 1);
      barrier_init(bars.empty + 8 * i, S::kWarps);
    }
    barrier_init(bars.summed, S::kWarps);
    barrier_init(bars.sums_read, kReducers / 32);
    for (int i = 0; i < kExchanges; ++i) barrier_init(bars.received + 8 * i, 1);
    for (int i = 0; i < kSegments; ++i) barrier_init(bars.x + 8 * i, 1);
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
    if (lane == 0) produce<S>(w, place, bars, shared_address(shared));
    __syncwarp();
    others_began();
    return;
  }
  wait_for_earlier_grid();
  if (warp > S::kWarps) {
    if constexpr (!S::kXIsF32) {
      if (warp == S::kWarps + 1) copy_x<S>(w, place, bars, shared_address(x), at.x_stride);
    }
    others_began();
    reduce<S>(w, place, bars, reinterpret_cast<const float*>(shared + at.sums),
              reinterpret_cast<float*>(shared + at.exchange));
    return;
  }
  others_began();
  if constexpr (S::kXIsF32) load_x<S>(w, place, x, at.x_stride);
  consume<S>(w, place, bars, shared, reinterpret_cast<float*>(shared + at.sums), shared_address(x),
             at.x_stride);
#endif
}

int round_up(int value, int to) { return (value + to - 1) / to * to; }

int units_of(const W4Args& w) { return round_up(w.k, kUnit) / kUnit; }

// Tiles of rows a warp and warps that share a row: measured (docs/cuda-notebook.md).
template <int kBits, int kTokenTiles, int kScaleRows, bool kZeros, class X>
using ShapeFor = Shape<kBits, kTokenTiles, kBits == 4 && kTokenTiles == 1 ? 4 : 2,
                       kBits == 4 && kTokenTiles == 1 ? 8 : 4, kScaleRows, kZeros, X>;

// call.operator()<Shape>() for what the weights are and the tokens need.
template <class Call>
auto with_shape(const W4Few& args, const Call& call) {
  const W4Args& w = args.weights[0];
  const auto with_rest = [&]<int kBits, int kScaleRows, bool kZeros>() {
    if (args.m > 8) {
      return call.template operator()<ShapeFor<kBits, 2, kScaleRows, kZeros, __nv_bfloat16>>();
    }
    if (!args.x_is_f32) {
      return call.template operator()<ShapeFor<kBits, 1, kScaleRows, kZeros, __nv_bfloat16>>();
    }
    return call.template operator()<ShapeFor<kBits, 1, kScaleRows, kZeros, float>>();
  };
  const auto with_scales = [&]<int kBits, bool kZeros>() {
    if (w.group == 32) return with_rest.template operator()<kBits, 4, kZeros>();
    if (w.group % kUnit == 0 || w.group >= w.k) {
      return with_rest.template operator()<kBits, 1, kZeros>();
    }
    return with_rest.template operator()<kBits, 2, kZeros>();
  };
  if (w.bits == 8) return with_scales.template operator()<8, false>();
  return w.zeros != nullptr ? with_scales.template operator()<4, true>()
                            : with_scales.template operator()<4, false>();
}

int strips_of(const W4Few& args) {
  int out = 0;
  for (int i = 0; i < args.count; ++i) out += round_up(args.weights[i].n, kStrip) / kStrip;
  return out;
}

template <class S>
cudaError_t launch(const W4Few& args, const W4FewPlan& plan, int multiprocessors) {
  const W4Args& first = args.weights[0];
  Work w = {};
  for (int i = 0; i < kMostWeights; ++i) {
    w.first_strip[i + 1] = w.first_strip[i];
    if (i >= args.count) continue;
    const W4Args& from = args.weights[i];
    w.weight[i] = {static_cast<const uint8_t*>(from.codes),
                   static_cast<const uint8_t*>(from.scales),
                   static_cast<const uint8_t*>(from.zeros),
                   from.y,
                   from.ldy,
                   from.n};
    w.first_strip[i + 1] += round_up(from.n, kStrip) / kStrip;
  }
  w.x = args.x;
  w.ldx = args.ldx;
  w.m = args.m;
  w.k = args.k;
  w.units = units_of(first);
  w.slice = (w.units + plan.ranks - 1) / plan.ranks;
  w.group = std::min(first.group, w.units * kUnit);
  w.groups = round_up(w.units * kUnit, w.group) / w.group;
  w.ranks = plan.ranks;
  w.stages = plan.stages;
  w.scales_are_bf16 = first.scales_are_bf16;
  w.y_is_bf16 = first.y_is_bf16;
  const int bytes = memory_of<S>(w.m, w.slice, w.ranks, w.stages).bytes;
  const auto kernel = few_tokens<S>;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedMost);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = static_cast<unsigned>(plan.ranks);
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(multiprocessors / plan.ranks * plan.ranks);
  config.blockDim = S::kThreads;
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = args.stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  // Clusters cannot use all multiprocessors of every card.
  int most = 0;
  error = cudaOccupancyMaxActiveClusters(&most, kernel, &config);
  if (error != cudaSuccess) return error;
  if (most < 1) return cudaErrorLaunchOutOfResources;
  w.clusters = std::min(most, w.strips());
  config.gridDim = static_cast<unsigned>(w.clusters * plan.ranks);
  return cudaLaunchKernelEx(&config, kernel, w);
}

}  // namespace

W4FewPlan plan_w4_few(const W4Few& args, int multiprocessors) {
  // Microseconds, measured on an H200: a unit of 128 inputs and 64 rows on one multiprocessor, its
  // share of reading x, and an exchange of sums between 2, 4 and 8 ranks.
  const bool many = args.m > 8;
  const double of_unit = args.weights[0].bits == 4 ? (many ? 0.18 : 0.09) : (many ? 0.3 : 0.2);
  constexpr double kXBytes = 60e3;
  constexpr double kReadBytes = 4.2e6;
  constexpr double kExchange[] = {0, 1.2, 1.9, 2.6};
  constexpr int kFewestStages = 3;
  const int units = units_of(args.weights[0]);
  const int strips = strips_of(args);
  const double read = strips * 64.0 * units * 128 * (args.weights[0].bits + 0.2) / 8 / kReadBytes;
  W4FewPlan best;
  double best_time = 0;
  for (int least = kFewestStages; least >= 2 && best.ranks == 0; --least) {
    for (int log = 0; log < 4; ++log) {
      const int ranks = 1 << log;
      const int slice = (units + ranks - 1) / ranks;
      if (slice * (ranks - 1) >= units) break;
      const int stages = with_shape(args, [&]<class S>() {
        const int left = kSharedMost - memory_of<S>(args.m, slice, ranks, 0).bytes - 128;
        const int fit = left / (S::kStageBytes + 16);
        const int steps = (slice + S::kSplit - 1) / S::kSplit * strips;
        return std::min({fit, 5, std::max(steps, 2)});
      });
      if (stages < least) continue;
      const int clusters = std::min(multiprocessors / ranks, strips);
      const int rounds = (strips + clusters - 1) / clusters;
      const double time = std::max(read, rounds * slice * of_unit) +
                          args.m * slice * kUnit * 2 / kXBytes + kExchange[log];
      if (best.ranks == 0 || time < best_time) best = {ranks, stages}, best_time = time;
    }
  }
  return best;
}

cudaError_t launch_w4_few(const W4Few& args, const W4FewPlan& plan, int multiprocessors) {
  return with_shape(args, [&]<class S>() { return launch<S>(args, plan, multiprocessors); });
}

}  // namespace nibble::kernels::cuda
