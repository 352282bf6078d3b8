// How a packed weight lies in memory. One layout serves every instruction set: 32 rows side by
// side, each 32-bit lane one row, so that a 512-bit register holds 16 rows and a 256-bit
// register 8.
//
//   weight = tile 0, tile 1, ...                  a tile is 32 rows; N is padded with zeros
//   tile   = group 0, group 1, ...                a group shares scales; K is padded to 32
//   group  = scale[32], zero[32], offset[32]      absent parts take no bytes
//            block 0, block 1, ...                a block is 32 inputs of 32 rows
//
// A group of 16 shares its header with its neighbour (scale[2][32], zero[2][32], offset[2][32], one
// block). A weight without groups along K has one header a tile. Headers and blocks are multiples
// of 32 bytes, read from front to back.
//
// Byte (j, r, b) of a block stands at j * 128 + r * 4 + b, with r the row and b in 0..3:
//
//   packing  bytes/block  j      byte (j, r, b)
//   n4        512         0..3   k = 4j + b in the low nibble, k = 16 + 4j + b in the high one
//   n8       1024         0..7   k = 4j + b
//   n16      2048         0..15  k = 2j + b/2, two bytes each (f16, bf16)
//   n32      4096         0..31  k = j (f32)
//
// Integer codes are stored unsigned: s4 as code + 8 and so on; `zero_const` (or each stored zero)
// moves with them. `plain` is the fifth packing: the canonical arrays, for the reference kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/matmul/matmul.h"

namespace nibble::kernels {

enum class Packing : uint8_t { kN4, kN8, kN16, kN32, kPlain };
const char* name(Packing packing);
Packing packing_named(const std::string& name);

constexpr int64_t kTileRows = 32;
constexpr int64_t kBlockK = 32;

enum class ScaleStore : uint8_t { kNone, kF16, kBF16, kF32 };

struct Layout {
  Packing packing = Packing::kPlain;
  int64_t n = 0;
  int64_t k = 0;
  int64_t tiles = 0;
  int64_t k_pad = 0;   // a multiple of 32
  int64_t group = 0;   // inputs a header serves: 32 when the scales' group is 16
  int64_t groups = 0;  // headers a tile
  int64_t sets = 1;    // scale sets a header: 2 when the scales' group is 16
  int64_t unit = 0;    // inputs that share a scale of quantized activations: 16, 32, 64 or 128
  ScaleStore scale_store = ScaleStore::kNone;  // of scales and offsets
  int64_t scale_bytes = 0;                     // a scale or offset: 0, 2 or 4
  int64_t zero_bytes = 0;                      // a zero: 0, 1 (s8) or 2 (s16)
  bool has_offset = false;
  int32_t zero_const = 0;         // what the zero is when none is stored
  const float* values = nullptr;  // of all stored codes; nothing for 16 and 32 bits
  int64_t header_bytes = 0;
  int64_t block_bytes = 0;
  int64_t tile_bytes = 0;
  int64_t bytes = 0;  // of the whole weight
  // plain only: where the arrays begin
  int64_t zero_at = 0;
  int64_t offset_at = 0;
  int64_t code_at = 0;
};

// Why this packing cannot hold the weight, or "".
std::string packing_refusal(const MatmulProblem& problem, Packing packing);

// Precondition: packing_refusal() is "".
Layout make_layout(const MatmulProblem& problem, Packing packing);

// The values of an element's codes as float32, 16 or 256 of them, aligned to 64 bytes. Lives
// forever.
const float* code_values(tensor::Element element);

// What is added to a code to make it unsigned: 8 for s4, 128 for s8, 0 for u4 and float codes.
int32_t code_bias(tensor::Element element);

}  // namespace nibble::kernels
