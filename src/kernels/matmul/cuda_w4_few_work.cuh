// How a product of 1 to 16 tokens is cut for the blocks of cuda_w4_few_device.cuh: the work of a
// launch, the variants that are compiled, what lies where in shared memory, and a block's part.
#pragma once

#include <cstdint>

#include "kernels/matmul/cuda_w4_few.cuh"

namespace nibble::kernels::cuda {
namespace {

constexpr int kStrip = 64;  // rows
constexpr int kUnit = 128;  // inputs
constexpr int kMostWeights = 4;
constexpr int kExchanges = 2;  // of sums between ranks that are under way: see Reduction
constexpr int kSharedMost = 227 * 1024;

struct Weight {
  const uint8_t* codes;
  const uint8_t* scales;
  const uint8_t* zeros;
  void* y;
  int64_t ldy;
  int n;
};

// What a block wants first comes first: constants come 64 bytes at a time.
struct Work {
  int strips_each;  // of a cluster, and one more of the first so many
  int strips_more;
  int ranks;
  int log_ranks;
  int slice;  // units of a rank, but for the last
  int units;  // of 128 inputs
  int stages;
  int m;
  int groups;  // rows of scales of a strip
  int group;
  int early;  // stages that are copied before the kernel before this one has ended
  int ahead;  // bytes of codes beyond these that are put into the card's cache then
  int gated;  // 1: two weights whose strips take turns; the counts of a cluster are of pairs
  int first_strip[kMostWeights + 1];  // of all strips; those beyond `count` are at the end
  Weight weight[kMostWeights];
  const void* x;
  int64_t ldx;
  int k;                 // that x has; zeros follow
  const float* squares;  // (m, k / 8) of what x was made of, where its norm's factor is yet to come
  float norm_eps;
  NextNorm next;
  Activation function;  // where gated
  bool scales_are_bf16;
  bool y_is_bf16;
  bool add;

  __host__ __device__ int strips() const { return first_strip[kMostWeights]; }
};

// What is compiled for: codes' bits, tokens' tiles of 8, scales of a row and unit, row tiles of 16
// a warp (4: half the warps, each with more to do at once).
template <int kBits_, int kTokenTiles_, int kScaleRows_, bool kZeros_, class X_, int kTiles_>
struct Shape {
  static constexpr int kBits = kBits_;
  static constexpr int kTokenTiles = kTokenTiles_;
  static constexpr int kScaleRows = kScaleRows_;
  static constexpr bool kZeros = kZeros_;
  using X = X_;
  static constexpr bool kXIsF32 = sizeof(X) == 4;

  static constexpr int kTiles = kTiles_;

  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kSplit = 32 / kBits;     // units at a time
  static constexpr int kRowWarps = 4 / kTiles;  // that share a unit
  static constexpr int kWarps = kRowWarps * kSplit;
  static constexpr int kConsumers = kWarps * 32;
  // With 20 warps a thread has 96 registers, with 21 it has 80; with 13 it has 128.
  static constexpr int kReducers = kWarps == 16 ? 96 : 128;
  static constexpr int kThreads = kConsumers + 32 + kReducers;

  // A stage: kSplit units of codes, then of scales, then of zeros.
  static constexpr int kUnitCodes = kStrip * kUnit * kBits / 8;
  static constexpr int kCodeBytes = kSplit * kUnitCodes;
  static constexpr int kScaleBytes = kSplit * kScaleRows * kStrip * 2;
  static constexpr int kZeroBytes = kZeros ? kSplit * kScaleRows * kStrip : 0;
  static constexpr int kStageBytes = kCodeBytes + kScaleBytes + kZeroBytes;

  static constexpr int kSumRow = kStrip + 4 * kTokenTiles;  // floats; a warp's stores hit all banks
};

// Shared memory: the ring, barriers, factors [kTokens], sums [kSplit][token][kSumRow], exchange
// [kExchanges][source rank][token][rows of a rank], sums of x
// [kRowWarps][unit][kScaleRows][kTokens], x [token][x_stride].
struct Memory {
  int barriers, factors, sums, exchange, x_sums, x, bytes;
  int x_stride;  // bf16 numbers; tokens are 16 bytes apart in banks
};
template <class S>
__host__ __device__ Memory memory_of(int m, int slice, int ranks, int stages) {
  Memory out;
  out.barriers = stages * S::kStageBytes;
  out.factors = out.barriers + (2 * stages + 1 + kExchanges) * 8;
  out.sums = out.barriers + (out.factors - out.barriers + S::kTokens * 4 + 127) / 128 * 128;
  out.exchange = out.sums + S::kSplit * m * S::kSumRow * 4;
  out.x_sums = out.exchange + (ranks == 1 ? 0 : kExchanges * kStrip * m * 4);
  out.x = out.x_sums + S::kRowWarps * slice * S::kScaleRows * S::kTokens * 4;
  out.x_stride = slice * kUnit + 8;
  out.bytes = out.x + m * out.x_stride * 2;
  return out;
}

// Where this block stands.
struct Place {
  int rank, first, last;  // strips [first, last)
  int first_unit, units;  // of this rank
  __device__ explicit Place(const Work& w) {
    rank = static_cast<int>(blockIdx.x) & (w.ranks - 1);
    const unsigned cluster = blockIdx.x >> w.log_ranks;
    first =
        static_cast<int>(cluster) * w.strips_each + min(static_cast<int>(cluster), w.strips_more);
    last = first + w.strips_each + (static_cast<int>(cluster) < w.strips_more ? 1 : 0);
    first <<= w.gated;
    last <<= w.gated;
    first_unit = rank * w.slice;
    units = min(w.slice, w.units - first_unit);
  }
};

// Which of the weights a strip is of, and which of its strips.
struct Strip {
  int weight, at;
};
__device__ inline Strip strip_of(const Work& w, int strip) {
  if (w.gated != 0) return {strip & 1, strip >> 1};
  int i = 0;
  while (strip >= w.first_strip[i + 1]) ++i;
  return {i, strip - w.first_strip[i]};
}

}  // namespace
}  // namespace nibble::kernels::cuda
