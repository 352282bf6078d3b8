// y = x W^T with 4- or 8-bit codes and 1 to 16 tokens on Hopper (compute capability 9.0): the time
// to read the codes, nearly.
//
// A strip of 64 rows at a time. The blocks of a cluster share its inputs. In a block
//
//   1 producer warp    copies stages of codes, scales and inputs into a ring (bulk copies, a
//   barrier
//                      each); codes do not change, so it begins before the kernel before this ends
//   consumer warps     two share a unit of 128 inputs, two row tiles of 16 each; kSplit units at a
//                      time: codes become bf16 in registers (mma.m16n8k16), sums are f32 and are
//                      scaled once a unit, or once 32 or 64 inputs
//   4 reducer warps    add what the consumers of a strip leave in shared memory, send other ranks
//                      their rows, add what these sent and write y, while the consumers are at the
//                      next strip
//
// Where a block has several strips and its part of x fits, x comes with the first and is held;
// else it comes with each.
//
// Sums are added in a fixed order: results do not change between calls.
//
// The kernel; cuda_w4_few.cu, which alone includes this, launches it.
#pragma once

#include "kernels/matmul/cuda_sm90.cuh"
#include "kernels/matmul/cuda_w4_few.cuh"

namespace nibble::kernels::cuda {
namespace {

constexpr int kStrip = 64;  // rows
constexpr int kUnit = 128;  // inputs
constexpr int kMostWeights = 4;
constexpr int kExchanges = 2;  // of sums between ranks that are under way: see reduce
constexpr int kSharedMost = 227 * 1024;
constexpr int kTiles = 2;     // of 16 rows, a warp
constexpr int kRowWarps = 2;  // that share a unit

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
  int k;       // inputs that x has; zeros follow
  int units;   // of 128 inputs
  int slice;   // units of a rank, but for the last
  int groups;  // rows of scales of a strip
  int group;
  unsigned clusters;  // times strips: under 2^32
  int ranks;
  int log_ranks;
  int stages;
  bool holds_x;
  bool scales_are_bf16;
  bool y_is_bf16;

  __host__ __device__ int strips() const { return first_strip[kMostWeights]; }
};

// What is compiled for: codes' bits, tokens' tiles of 8, scales of a row and unit.
template <int kBits_, int kTokenTiles_, int kScaleRows_, bool kZeros_, class X_>
struct Shape {
  static constexpr int kBits = kBits_;
  static constexpr int kTokenTiles = kTokenTiles_;
  static constexpr int kScaleRows = kScaleRows_;
  static constexpr bool kZeros = kZeros_;
  using X = X_;
  static constexpr bool kXIsF32 = sizeof(X) == 4;

  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kSplit = 32 / kBits;  // units at a time
  static constexpr int kWarps = kRowWarps * kSplit;
  static constexpr int kConsumers = kWarps * 32;
  // With 20 warps a thread has 96 registers, with 21 it has 80.
  static constexpr int kReducers = kBits == 4 && kScaleRows > 1 ? 96 : 128;
  static constexpr int kThreads = kConsumers + 32 + kReducers;

  // A stage: kSplit units of codes, then of scales, then of zeros.
  static constexpr int kUnitCodes = kStrip * kUnit * kBits / 8;
  static constexpr int kCodeBytes = kSplit * kUnitCodes;
  static constexpr int kScaleBytes = kSplit * kScaleRows * kStrip * 2;
  static constexpr int kZeroBytes = kZeros ? kSplit * kScaleRows * kStrip : 0;
  static constexpr int kStageBytes = kCodeBytes + kScaleBytes + kZeroBytes;

  // Its inputs: a row for each token, a pitch for each unit. Rows are 16 bytes apart in banks. The
  // bf16 numbers that f32 ones become are at a pitch's beginning.
  static constexpr int kXPitch = kUnit * static_cast<int>(sizeof(X));
  static constexpr int kXRow = kSplit * kXPitch + 16;
  // Sums of x, as consume adds them: four for each t, or for each g and half of a row tile.
  static constexpr int kXSums = kTokenTiles == 1 ? 16 : 64;
  static constexpr int kXSumBytes = kSplit * kScaleRows * kXSums * 4;

  static constexpr int kSumRow = kStrip + 4 * kTokenTiles;  // floats; a warp's stores hit all banks
};

// Shared memory: the ring, barriers, sums [kSplit][token][kSumRow], exchange
// [kExchanges][source rank][token][rows of a rank], and for each stage of x sums
// [unit][kScaleRows][kXSums] and x [token][kXRow].
struct Memory {
  int barriers, sums, exchange, x_sums, x, bytes;
};
template <class S>
__host__ __device__ Memory memory_of(int m, int slice, int ranks, int stages, bool holds_x) {
  const int x_stages = holds_x ? (slice + S::kSplit - 1) / S::kSplit : stages;
  Memory out;
  out.barriers = stages * S::kStageBytes;
  out.sums = out.barriers + ((3 * stages + 2 + kExchanges) * 8 + 127) / 128 * 128;
  out.exchange = out.sums + S::kSplit * m * S::kSumRow * 4;
  out.x_sums = out.exchange + (ranks == 1 ? 0 : kExchanges * kStrip * m * 4);
  out.x = out.x_sums + x_stages * S::kXSumBytes;
  out.bytes = out.x + x_stages * m * S::kXRow;
  return out;
}

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

// Before asynchronous copies overwrite what was stored.
__device__ inline void fence_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Where this block stands.
struct Place {
  int rank, first, last;  // strips [first, last)
  int first_unit, units;  // of this rank
  __device__ explicit Place(const Work& w) {
    rank = static_cast<int>(blockIdx.x) & (w.ranks - 1);
    const unsigned cluster = blockIdx.x >> w.log_ranks;
    const unsigned strips = static_cast<unsigned>(w.strips());
    first = static_cast<int>(strips * cluster / w.clusters);
    last = static_cast<int>(strips * (cluster + 1) / w.clusters);
    first_unit = rank * w.slice;
    units = min(w.slice, w.units - first_unit);
  }
};

struct Barriers {
  uint32_t full, x_full, empty, summed, sums_read, received;  // addresses of the first of each
  __device__ Barriers(uint32_t at, int stages)
      : full(at),
        x_full(full + 8 * stages),
        empty(x_full + 8 * stages),
        summed(empty + 8 * stages),
        sums_read(summed + 8),
        received(sums_read + 8) {}
};

__device__ inline int weight_of(const Work& w, int strip) {
  int i = 0;
  while (strip >= w.first_strip[i + 1]) ++i;
  return i;
}

// Stages that a strip takes.
template <class S>
__device__ int stages_of(const Place& place) {
  return (place.units + S::kSplit - 1) / S::kSplit;
}

// A unit's rows of scales are neighbours when groups are not larger than what a row covers.
template <class S>
__device__ void produce(const Work& w, const Place& place, const Barriers& bars, uint32_t ring,
                        uint32_t x) {
  const uint64_t policy = evict_first();
  const uint64_t x_policy = evict_last();
  constexpr int kCovers = kUnit / S::kScaleRows;
  const bool neighbours = w.group <= kCovers;
  const auto x_bytes = [&](int u) {
    const int first = (place.first_unit + u) * kUnit;
    const int end = min((place.first_unit + min(u + S::kSplit, place.units)) * kUnit, w.k);
    return max(end - first, 0) * static_cast<int>(sizeof(typename S::X));
  };
  const auto copy_x = [&](int u, int slot, int x_stage) {
    const uint32_t bar = bars.x_full + 8 * slot;
    const int bytes = x_bytes(u);
    const auto* from = static_cast<const typename S::X*>(w.x) + (place.first_unit + u) * kUnit;
    barrier_expect(bar, w.m * bytes);
    for (int token = 0; token < w.m; ++token) {
      copy_bulk(x + (x_stage * w.m + token) * S::kXRow, from + token * w.ldx, bytes, bar, x_policy);
    }
  };
  const int ahead = min(w.stages, stages_of<S>(place));
  int slot = 0;
  uint32_t parity = 1;
  for (int strip = place.first; strip < place.last; ++strip) {
    const bool is_first = strip == place.first;
    const int i = weight_of(w, strip);
    const int64_t s = strip - w.first_strip[i];
    const uint8_t* codes = w.weight[i].codes + (s * w.units + place.first_unit) * S::kUnitCodes;
    const uint8_t* scales = w.weight[i].scales + s * w.groups * kStrip * 2;
    const uint8_t* zeros = S::kZeros ? w.weight[i].zeros + s * w.groups * kStrip : nullptr;
    int n = 0;
    for (int u = 0; u < place.units; u += S::kSplit, ++n) {
      const uint32_t bar = bars.full + 8 * slot;
      const uint32_t to = ring + slot * S::kStageBytes;
      barrier_wait(bars.empty + 8 * slot, parity);
      const int here = min(S::kSplit, place.units - u);
      const int rows = here * S::kScaleRows;
      // x is nearer than codes, and worked on while they are under way.
      if (!(is_first && n < ahead) && (is_first || !w.holds_x))
        copy_x(u, slot, w.holds_x ? n : slot);
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
      if (is_first && n == ahead - 1) {
        wait_for_earlier_grid();
        for (int j = 0; j < ahead; ++j) copy_x(j * S::kSplit, j, j);
      }
      if (++slot == w.stages) slot = 0, parity ^= 1;
    }
  }
}

// The codes of a lane for 64 inputs of a row tile; step(j) is the A operand of 16 of them.
//
// A code masked out where it lies, in the low byte of a bf16, is one: code 2^-133, or four bits
// higher code 2^-129, also where its top bit is the exponent's lowest. So products are exact with x
// times 2^64, and a mask is all that a pair costs. Bytes are made unsigned. What codes have too
// much, the zero, is taken off the sums: zero times the sum of x, with which they begin where all
// zeros are the same; kMinus is minus that zero, or -1, for these rows. The scales' sums have the
// powers undone.
constexpr float kXPower = 0x1p64f;
constexpr uint32_t kXPowerPair = 0x5f805f80u;
template <class S>
struct Codes {
  uint4 words[S::kBits / 4];

  static constexpr float kUndo0 = 0x1p69f;
  static constexpr float kUndo1 = S::kBits == 4 ? 0x1p65f : 0x1p69f;
  static constexpr float kPower1 = S::kBits == 4 ? 16 : 1;  // of rows g + 8 against rows g
  static constexpr uint32_t kMinus0 = S::kBits == 8 ? 0x80808080u
                                      : S::kZeros   ? 0x80018001u
                                                    : 0x80088008u;
  static constexpr uint32_t kMinus1 = S::kBits == 8 ? 0x80808080u
                                      : S::kZeros   ? 0x80108010u
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

// The sums of a unit's x, from where ldmatrix takes it.
template <class S>
__device__ void sum_x(uint32_t from, float* sums) {
  constexpr int kSteps = 8 / S::kScaleRows;
  using C = Codes<S>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  auto* to = reinterpret_cast<float4*>(sums);
#pragma unroll
  for (int r = 0; r < S::kScaleRows; ++r) {
    float part[2][4] = {};  // two chains
    uint32_t x[4];
#pragma unroll
    for (int j = r * kSteps; j < (r + 1) * kSteps; ++j) {
      float(&d)[4] = part[j % 2];
      if constexpr (S::kTokenTiles == 1) {
        if (j % 2 == 0) load_matrices(x, from + j * 32);
        mma(d, {C::kMinus0, C::kMinus1, C::kMinus0, C::kMinus1}, x[j % 2 * 2], x[j % 2 * 2 + 1], d);
      } else {
        load_matrices(x, from + j * 32);
        mma(d, x, C::kMinus0, C::kMinus0, d);
      }
    }
    float4 v = {part[0][0] + part[1][0], part[0][1] + part[1][1], part[0][2] + part[1][2],
                part[0][3] + part[1][3]};
    if constexpr (S::kTokenTiles == 1) {
      if (lane < 4) to[r * S::kXSums / 4 + lane] = v;
    } else {
      const int half = lane % 4;
      if (half == 1) v = {v.x * C::kPower1, v.y * C::kPower1, v.z * C::kPower1, v.w * C::kPower1};
      if (half < 2) to[r * S::kXSums / 4 + half * 8 + lane / 4] = v;
    }
  }
}

// A token's unit of x as bf16 times 2^64, where it lies. By a half of a warp: 8 inputs a lane.
template <class S>
__device__ void power_x(uint8_t* row, bool is, int inputs_left) {
  const int in = static_cast<int>(threadIdx.x) % 16 * 8;
  uint4 v = make_uint4(0, 0, 0, 0);
  if constexpr (S::kXIsF32) {
    if (is && in < inputs_left) {
      const float4 a = *reinterpret_cast<const float4*>(row + in * 4);
      const float4 b = *reinterpret_cast<const float4*>(row + in * 4 + 16);
      const auto pair = [](float low, float high) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(low * kXPower, high * kXPower);
        return *reinterpret_cast<const uint32_t*>(&two);
      };
      v = {pair(a.x, a.y), pair(a.z, a.w), pair(b.x, b.y), pair(b.z, b.w)};
    }
    __syncwarp();
  } else if (is) {
    v = *reinterpret_cast<const uint4*>(row + in * 2);
    v = {mul_bf16x2(v.x, kXPowerPair), mul_bf16x2(v.y, kXPowerPair), mul_bf16x2(v.z, kXPowerPair),
         mul_bf16x2(v.w, kXPowerPair)};
  }
  if (is) *reinterpret_cast<uint4*>(row + in * 2) = v;
}

// What a stage's copies brought of a unit's x becomes what products take, with its sums. By the
// warps that share the unit.
template <class S>
__device__ void finish_x(const Work& w, uint8_t* x, uint32_t x_at, float* sums, int inputs_left,
                         int mine, int row_warp) {
  const int half = static_cast<int>(threadIdx.x) % 32 / 16;
#pragma unroll 4
  for (int first = row_warp * 2; first < w.m; first += 2 * kRowWarps) {
    const int token = first + half;
    power_x<S>(x + token * S::kXRow, token < w.m, inputs_left);
  }
  if (!w.holds_x) fence_copies();
  sync_some(2 + mine, kRowWarps * 32);
  if (row_warp == 0) sum_x<S>(x_at, sums);
  sync_some(2 + mine, kRowWarps * 32);
}

// Up to 8 tokens: codes are the first operand of products, sums [tile] of rows g and g + 8 (c / 2)
// and tokens 2t + c % 2. Up to 16: the second, with a product for rows 0 to 7 and one for 8 to 15
// of a tile; sums [tile][half] of tokens g and g + 8 (c / 2) and rows 2t + c % 2.
template <class S>
__device__ void consume(const Work& w, const Place& place, const Barriers& bars,
                        const uint8_t* ring, float* sums, uint8_t* x_memory, float* x_sums) {
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
  // A warp's part of x as ldmatrix takes it; beyond the last token another time the last.
  x_memory += mine * S::kXPitch;
  x_sums += mine * S::kScaleRows * S::kXSums;
  const uint32_t x_first = shared_address(x_memory) + min(lane % S::kTokens, w.m - 1) * S::kXRow +
                           lane / S::kTokens * 16;
  const int x_stages = w.holds_x ? stages_of<S>(place) : w.stages;
  int x_stage = 0;
  int slot = 0;
  uint32_t parity = 0;
  for (int strip = place.first; strip < place.last; ++strip) {
    float sum[kTiles][kHalves][4] = {};
    for (int u = mine; u < place.units + mine; u += S::kSplit) {
      const uint32_t x_at = x_first + x_stage * w.m * S::kXRow;
      float* x_sums_at = x_sums + x_stage * (S::kXSumBytes / 4);
      if (u < place.units && (strip == place.first || !w.holds_x)) {
        barrier_wait(bars.x_full + 8 * slot, parity);
        finish_x<S>(w, x_memory + x_stage * w.m * S::kXRow, x_at, x_sums_at,
                    w.k - (place.first_unit + u) * kUnit, mine, row_warp);
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
          float minus[kHalves][4];
#pragma unroll
          for (int n = 0; n < kHalves; ++n) {
            const float4 v = reinterpret_cast<const float4*>(
                x_sums_at)[r * S::kXSums / 4 + (kFew ? t : n * 8 + g)];
            minus[n][0] = v.x, minus[n][1] = v.y, minus[n][2] = v.z, minus[n][3] = v.w;
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
      if (++x_stage == x_stages) x_stage = 0;
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
  const Memory at = memory_of<S>(w.m, w.slice, w.ranks, w.stages, w.holds_x);
  const Place place(w);
  const Barriers bars(shared_address(shared + at.barriers), w.stages);
  if (threadIdx.x == 0) {
    for (int i = 0; i < w.stages; ++i) {
      barrier_init(bars.full + 8 * i, 1);
      barrier_init(bars.x_full + 8 * i, 1);
      barrier_init(bars.empty + 8 * i, S::kWarps);
    }
    barrier_init(bars.summed, S::kWarps);
    barrier_init(bars.sums_read, S::kReducers / 32);
    for (int i = 0; i < kExchanges; ++i) barrier_init(bars.received + 8 * i, 1);
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
    if (elect()) produce<S>(w, place, bars, shared_address(shared), shared_address(shared + at.x));
    __syncwarp();
    others_began();
    return;
  }
  others_began();
  auto* sums = reinterpret_cast<float*>(shared + at.sums);
  if (warp > S::kWarps) {
    wait_for_earlier_grid();
    reduce<S>(w, place, bars, sums, reinterpret_cast<float*>(shared + at.exchange));
  } else {
    consume<S>(w, place, bars, shared, sums, shared + at.x,
               reinterpret_cast<float*>(shared + at.x_sums));
  }
#endif
}

}  // namespace
}  // namespace nibble::kernels::cuda
