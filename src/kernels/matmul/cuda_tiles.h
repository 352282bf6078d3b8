// Integer weights in tiles for Hopper's kernels of few and of many tokens (cuda_w4.cuh draws them):
// which weights can be held so, and packing them. One allocation:
//
//   scales   [strips of 64 rows][groups][64] f16 or bf16
//   zeros    [strips][groups][64] u8; absent when all are 8
//   codes    [strips][units of 128 inputs] tiles
//
// each beginning at a multiple of 256 bytes. Private to matmul/.
#pragma once

#include <cstdint>
#include <string>

#include "device/stream.h"
#include "kernels/cuda/abi.h"
#include "kernels/matmul/matmul.h"

namespace nibble::kernels {

// Why a weight cannot be held in tiles, or "".
std::string tiles_refusal(const tensor::WeightFormat& format);

struct TileLayout {
  int bits = 4;  // 4, for elements of up to 4; or 8
  int64_t strips = 0;
  int64_t units = 0;   // of 128 inputs
  int64_t group = 0;   // inputs; units * 128 when all share a scale
  int64_t groups = 0;  // with those of the padding
  bool zeros = false;
  bool scales_are_bf16 = false;
  int64_t scales_at = 0;
  int64_t zeros_at = -1;
  int64_t codes_at = 0;
  int64_t bytes = 0;

  int64_t k_pad() const { return units * 128; }
};
// `zeros`: whether they are stored, where the format has any.
TileLayout tile_layout(int64_t n, int64_t k, const tensor::WeightFormat& format, bool zeros = true);

// Whether some zero is not what an absent one would be.
bool needs_zeros(const tensor::QuantizedWeight& weight);

// Whether every scale is 0, or so large and small that products may fold it into bf16 weights
// (CudaTiles).
bool scales_fold(const tensor::QuantizedWeight& weight);

// The error is a scale or zero that the tiles cannot hold, although the format says so.
Result<tensor::Buffer> tile_image(const tensor::QuantizedWeight& weight, const TileLayout& layout,
                                  device::Stream& stream);

// Where the parts are in an image on the card.
CudaTiles tiles_at(const TileLayout& layout, const std::byte* image, bool scales_fold);

}  // namespace nibble::kernels
