// The work of a product of 17 tokens and more as the blocks of cuda_w4_wgmma_device.cuh get it, and
// the tiles that there are.
#pragma once

#include <cstdint>

#include "kernels/matmul/cuda_w4_fragment.cuh"
#include "kernels/matmul/cuda_w4_runs.cuh"

namespace nibble::kernels::cuda::w4 {

inline constexpr int kStepBlocks = 2;
inline constexpr int kMostStages = 32;

struct Work {
  const uint8_t* codes;
  const uint8_t* scales;
  const uint8_t* zeros;
  int n, m;
  int blocks;  // of 64 inputs
  int strips;  // of 64 rows
  int groups;
  int group;
  int scale_rows;  // scales of a row and 128 inputs: 1, 2 (groups of 64 or 192, ...) or 4 (of 32)
  int has_zeros;
  int scale_at_end;  // one group: the sums are multiplied
  int scales_are_bf16;
  int y_is_bf16;
  int y_in_octets;  // eight bf16 rows are 16 aligned bytes, and all or none exist
  Runs runs;        // of steps: a stage's inputs, 128 for each slice
  Divisor by_group;
  int stages;
  int tile_tokens;  // of a tile, but for the last, which may have fewer: tokens are cut evenly
  float4* partial;  // zeros where nothing waits to be added
  void* y;
  int64_t ldy;
};

// What a block computes at a time: kStrips x 64 rows, up to kTokens tokens. A warpgroup has kWide
// strips; kSlices warpgroups share them, each with 128 of a stage's inputs. kOnSums: scales
// multiply f32 sums, of weights that are codes.
template <int kTokens_, int kStrips_, int kWide_, int kSlices_, Weights kWeights_, int kBits_>
struct Tile {
  static constexpr int kTokens = kTokens_;
  static constexpr int kStrips = kStrips_;
  static constexpr int kSlices = kSlices_;
  static constexpr int kWide = kWide_;
  static constexpr Weights kWeights = kWeights_;
  static constexpr bool kOnSums = kWeights == Weights::kCodes;
  static constexpr int kBits = kBits_;

  static constexpr int kRows = kStrip * kStrips;
  static constexpr int kOwners = 128 * kStrips / kWide;  // threads that end with a tile's sums
  static constexpr int kConsumers = kOwners * kSlices;
  static constexpr int kThreads = kConsumers + 128;
  // Registers of a thread; a warpgroup gives others what it does not need.
  static constexpr bool kMany = kConsumers > 256;
  static constexpr int kConsumerRegisters = !kMany ? 224 : kTokens > 32 ? 112 : 104;
  static constexpr int kProducerRegisters = !kMany ? 56 : kTokens > 32 ? 32 : 64;

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
