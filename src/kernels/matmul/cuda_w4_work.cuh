// How a product of 17 tokens and more is cut for the blocks of cuda_w4_wgmma_device.cuh: the work
// of a launch, which parts of it a block has, and the tiles that there are.
//
//   tiles x steps are one line, cut into equal runs ("stream-K"): as many as blocks find room, or
//   `split` for each tile, which ends with it where its steps can be divided so. Blocks whose runs
//   meet in a tile share it: those for which it is their run's end finish it, each some of its
//   warps' sums, which the others leave for it in the workspace. What is more than two tiles a
//   block is left whole.
#pragma once

#include <cstdint>

#include "kernels/matmul/cuda_w4_fragment.cuh"

namespace nibble::kernels::cuda::w4 {

inline constexpr int kStepBlocks = 2;
inline constexpr int kMostStages = 32;

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
  int steps;   // of a stage's inputs: 128 for each slice
  int strips;  // of 64 rows
  int groups;
  int group;
  int scale_rows;  // scales of a row and 128 inputs: 1, 2 (groups of 64 or 192, ...) or 4 (of 32)
  int has_zeros;
  int scale_at_end;  // one group: the sums are multiplied
  int scales_are_bf16;
  int y_is_bf16;
  int y_in_octets;  // eight bf16 rows are 16 aligned bytes, and all or none exist
  int token_tiles;
  int shared_tiles;  // the tiles that are cut into equal runs; the rest are whole
  int tiles;
  // Of the steps of shared tiles: a block has `run`, the first `longer` blocks one more.
  int run;
  int longer;
  Divisor by_steps, by_token_tiles, by_group;
  int stages;
  float4* partial;  // zeros where nothing waits to be added
  void* y;
  int64_t ldy;
};

// Steps [begin, end) of a tile, and where it lies.
struct Segment {
  int tile, begin, end;
  int row_tile, token_tile;
};

// Blocks [first, last] share a tile; the first `finishers` of them finish it.
struct Sharers {
  int first, last, finishers;
};

// A block's segments, in order. Every role of a block counts them for itself, before its first copy
// or product: so there is no division.
class Segments {
 public:
  __device__ explicit Segments(const Work& w)
      : w_(w),
        count_(static_cast<int>(gridDim.x)),
        me_(count_ - 1 - static_cast<int>(blockIdx.x)),
        at_(begin_of(me_)) {}

  __device__ bool next(Segment& s) {
    if (!find(s)) return false;
    s.row_tile = w_.token_tiles == 1 ? s.tile : w_.by_token_tiles.divide(s.tile);
    s.token_tile = s.tile - s.row_tile * w_.token_tiles;
    return true;
  }

  __device__ int me() const { return me_; }
  // Of the memory for parts of the tile that a block's run ends in if that has its first step, else
  // of the one that it begins in: a run has one of each at most.
  static __device__ int slot(int block, bool has_first) { return 2 * block + (has_first ? 0 : 1); }
  // Those who finish a tile wait for each other: a grid has no more blocks than find room at once,
  // and where other streams have such grids it is launched as a cooperative one.
  __device__ Sharers sharers(int tile) const {
    const int begin = tile * w_.steps;
    const int end = begin + w_.steps;
    Sharers out = {me_, me_, 0};
    while (begin_of(out.first) > begin) --out.first;
    while (begin_of(out.last + 1) < end) ++out.last;
    out.finishers = out.last - out.first + (begin_of(out.last + 1) == end ? 1 : 0);
    return out;
  }

 private:
  __device__ bool find(Segment& s) {
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

  // Where a block's run begins on the line of shared tiles.
  __device__ int begin_of(int block) const { return block * w_.run + min(block, w_.longer); }

  const Work& w_;
  int count_;
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
  // What two slices trade.
  static constexpr int kTradedBytes = (kSlices - 1) * kOwners * kWide * kCount * 4;
  // Through which a warp turns its sums for y: two times 16 tokens of 16 rows of bf16.
  static constexpr int kTurnBytes = 2 * 16 * 16 * 2;
  static constexpr int kAfterRing = kTradedBytes + kConsumers / 32 * kTurnBytes;
};

// Shared memory: up to 1024 bytes to align it, barriers, the ring.
inline constexpr int kBarrierBytes = 1024;
constexpr int shared_bytes(int stages, int stage_bytes) {
  return 1024 + kBarrierBytes + stages * stage_bytes;
}

}  // namespace nibble::kernels::cuda::w4
