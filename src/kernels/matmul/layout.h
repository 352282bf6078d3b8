// How a packed weight lies in memory. One layout serves every instruction set: 32 rows side by
// side, each 32-bit lane one row, so that a 512-bit register holds 16 rows and a 256-bit
// register 8.
//
//   weight = tile 0, tile 1, ...                  a tile is 32 rows; N is padded with zeros
//   tile   = group 0, group 1, ...                a group shares scales; K is padded to 32
//   group  = [super header] header block block ...
//   header = scale[32], zero[32], offset[32]      absent parts take no bytes
//   block  = the codes of 32 inputs
//
// A group of 16 shares its header with its neighbour (scale[2][32], zero[2][32], offset[2][32], one
// block). A weight without groups along K has one header a tile. Where scales are s8 multiples of a
// f16 (WeightFormat::super_k), the first group of each super_k inputs begins with a super header:
// the f16 of the scales [32], then that of the offsets [32]. Where scales are e4m3 times or over
// one float (WeightFormat::second_scale), a tile begins with that float for each row [32]. All
// parts are multiples of 32 bytes, read from front to back.
//
// A block is lines of 128 bytes; byte (r, b) of a line stands at r * 4 + b, r the row, b in 0..3.
// Inputs are counted from the block's start, j from 0 to 3.
//
//   packing  bytes  byte (r, b)
//   n2        256   line 0: k = 4j + b in bits 2j, 2j + 1;  line 1: k = 16 + 4j + b likewise
//   n4        512   line j: k = 4j + b in the low nibble, k = 16 + 4j + b in the high one
//   n6        768   the low 4 bits as n4, then the high 2 bits as n2
//   n8       1024   line i of 8:  k = 4i + b
//   n16      2048   line i of 16: k = 2i + b / 2, two bytes each (f16, bf16)
//   n32      4096   line i of 32: k = i (f32)
//
// Integer codes are stored unsigned: s4 as code + 8 and so on; `zero_const` (or each stored zero)
// moves with them. e2m1 is stored as it is, its values are taken twice and its scales half, so that
// the values are integers. `plain` is one more packing: the canonical arrays, for the reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/matmul/matmul.h"
#include "kernels/matmul/unroll.h"

namespace nibble::kernels {

enum class Packing : uint8_t { kN2, kN4, kN6, kN8, kN16, kN32, kPlain };
const char* name(Packing packing);
Packing packing_named(const std::string& name);

// To a multiple of `to`.
NIBBLE_INLINE int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

constexpr int64_t kTileRows = 32;
constexpr int64_t kBlockK = 32;

// Integer kernels look e2m1 codes up as doubled value + 12, to have them unsigned.
constexpr int32_t kE2M1Zero = 12;

// kSuper: s8 times the f16 of the super header. kE4M3, kE4M3Over: a byte, times or over the f32 of
// the super header; the byte moved left by 7 is the f16 of its e4m3 / 256, and the f32 makes up for
// that.
enum class ScaleStore : uint8_t { kF16, kBF16, kF32, kSuper, kE4M3, kE4M3Over };

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
  ScaleStore scale_store = ScaleStore::kF32;  // of scales and offsets
  int64_t scale_bytes = 0;                    // a scale or offset: 0 (n16, n32), 1, 2 or 4
  int64_t zero_bytes = 0;                     // a zero: 0, 1 (s8) or 2 (s16)
  bool has_offset = false;
  int32_t zero_const = 0;         // what the zero is when none is stored
  const float* values = nullptr;  // of all codes as stored; nothing for n16 and n32
  int64_t header_bytes = 0;
  int64_t block_bytes = 0;
  int64_t super_groups = 1;  // headers between two super headers
  int64_t super_bytes = 0;
  int64_t super_scale_bytes = 2;  // of one number of a super header
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

// What is added to a code to make it unsigned: 8 for s4, 128 for s8, 0 for u4 and float codes.
int32_t code_bias(tensor::Element element);

// Where the numbers of the 32 rows of one scale group stand.
template <class Byte>
struct Header {
  Byte* scale;
  Byte* zero;
  Byte* offset;
  Byte* super_scale;
  Byte* super_offset;
};

// The set'th of a header at `at` whose super header is at `super`.
template <class Byte>
NIBBLE_INLINE Header<Byte> header_parts(const Layout& l, Byte* at, Byte* super, int64_t set) {
  Byte* zeros = at + l.sets * kTileRows * l.scale_bytes;
  return {at + set * kTileRows * l.scale_bytes, zeros + set * kTileRows * l.zero_bytes,
          zeros + l.sets * kTileRows * l.zero_bytes + set * kTileRows * l.scale_bytes, super,
          super + 2 * kTileRows};
}

// Offset of group g's super header (if it has one, else of its header) in a tile.
NIBBLE_INLINE int64_t group_at(const Layout& l, int64_t g) {
  const int64_t supers = (g + l.super_groups - 1) / l.super_groups;
  return g * (l.header_bytes + l.group / kBlockK * l.block_bytes) + supers * l.super_bytes;
}

// A group found in a tile.
template <class Byte>
struct Group {
  Byte* super;
  Byte* header;
  Byte* blocks;
};
template <class Byte>
NIBBLE_INLINE Group<Byte> group_in(const Layout& l, Byte* tile, int64_t g) {
  Byte* super = tile + group_at(l, g / l.super_groups * l.super_groups);
  Byte* header = tile + group_at(l, g) + (g % l.super_groups == 0 ? l.super_bytes : 0);
  return {super, header, header + l.header_bytes};
}

}  // namespace nibble::kernels
