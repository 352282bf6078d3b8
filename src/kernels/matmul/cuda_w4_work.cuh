// How a product of 17 tokens and more is cut for the blocks of cuda_w4_wgmma_device.cuh: the work
// of a launch, which parts of it a block has, and the tiles that there are.
//
//   split 2, 4, 8: the blocks of a cluster share the inputs of a tile and add their sums through
//   its memory. split 0: tiles x steps are one line, cut into equal runs ("stream-K"). A run may
//   begin within a tile: its block leaves these sums in the workspace, and the block with the
//   tile's first step adds them, in order. What is more than two tiles a block is left whole.
//   pair: two blocks of a cluster have neighbouring row tiles and the same steps of them; each
//   copies half of x, to both.
#pragma once

#include <cstddef>
#include <cstdint>

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
  int tiles;         // pairs of them where blocks are paired
  int split;
  int pair;  // 1: two blocks of a cluster have neighbouring row tiles and share x
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
      : w_(w),
        count_(static_cast<int>(gridDim.x) >> w.pair),
        me_(count_ - 1 - (static_cast<int>(blockIdx.x) >> w.pair)),
        at_(begin_of(me_)) {}

  __device__ bool next(Segment& s) {
    if (!find(s)) return false;
    s.row_tile = w_.token_tiles == 1 ? s.tile : w_.by_token_tiles.divide(s.tile);
    s.token_tile = s.tile - s.row_tile * w_.token_tiles;
    if (w_.pair != 0) s.row_tile = 2 * s.row_tile + rank();
    return true;
  }

  __device__ int me() const { return me_; }
  // Of the memory of the parts that a run's block leaves.
  __device__ int slot(int run) const { return w_.pair != 0 ? 2 * run + rank() : run; }
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
    s.tile = w_.shared_tiles + me_ + whole_ * count_;
    s.begin = 0;
    s.end = w_.steps;
    ++whole_;
    return s.tile < w_.tiles;
  }

  __device__ static int rank() { return static_cast<int>(blockIdx.x % 2); }

  const Work& w_;
  int count_;
  int me_;
  int at_;
  int whole_ = 0;
};

// What a block computes at a time: kStrips x 64 rows, kTokens tokens. A warpgroup has kWide strips;
// kSlices warpgroups share them, each with 128 of a stage's inputs. kOnSums: scales multiply f32
// sums, else bf16 weights. kPair: two blocks share x.
template <int kTokens_, int kStrips_, int kWide_, int kSlices_, bool kOnSums_, int kBits_,
          int kPerProcessor_, bool kPair_>
struct Tile {
  static constexpr int kTokens = kTokens_;
  static constexpr int kStrips = kStrips_;
  static constexpr int kSlices = kSlices_;
  static constexpr int kWide = kWide_;
  static constexpr bool kOnSums = kOnSums_;
  static constexpr int kBits = kBits_;
  static constexpr int kPerProcessor = kPerProcessor_;
  static constexpr bool kPair = kPair_;

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

}  // namespace nibble::kernels::cuda::w4
