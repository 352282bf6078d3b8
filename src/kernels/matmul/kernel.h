// What a line of kernels.inc becomes, and what its function is called with. Private to matmul/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/matmul/layout.h"
#include "kernels/matmul/matmul.h"

namespace nibble::kernels {

// How a kernel wants x. Every form is padded with zeros to the layout's k_pad.
enum class Form : uint8_t {
  kRows,      // per token: (k_pad) f32
  kEvenOdd,   // the same, but four neighbours stand as 0 2 1 3
  kF32Panel,  // per block of tokens: (k_pad, rows) f32
  kS16Panel,  // per block of tokens: (k_pad / 2, rows) pairs of s16
  kS8Digits,  // per token: s16 as two digits; per 32 inputs the 32 high ones, then the 32 low ones
};
NIBBLE_INLINE bool holds_integers(Form form) {
  return form == Form::kS16Panel || form == Form::kS8Digits;
}

// x in one form, cut into blocks of `rows` tokens (the last may be shorter).
//
// The integer forms hold x'[m, k] = scale[m, u] * q[m, k] with u = k / unit and |q| <= 32512. As
// digits q = 256 h + l with both in s8; as pairs four neighbours stand as (0, 2) (1, 3), the order
// in which even and odd bytes of a lane of packed weights come apart.
struct Activations {
  Form form = Form::kRows;
  int64_t m = 0;
  int64_t rows = 1;
  int64_t k_pad = 0;
  int64_t units = 0;  // ceil(k_pad / unit)
  const std::byte* data = nullptr;
  int64_t token_bytes = 0;  // block b begins at b * rows * token_bytes
  // Each per block (units, rows of the block); block b begins at b * rows * units.
  const float* scale = nullptr;
  const int32_t* sum = nullptr;       // of q over a unit
  const float* scaled_sum = nullptr;  // scale * sum
};

// One block of tokens.
struct TokenBlock {
  int64_t rows;
  const std::byte* data;
  const float* scale;
  const int32_t* sum;
  const float* scaled_sum;
};
NIBBLE_INLINE TokenBlock token_block(const Activations& x, int64_t m) {
  const int64_t at = m * x.units;
  const int64_t left = x.m - m;
  return {left < x.rows ? left : x.rows, x.data + m * x.token_bytes, x.scale + at, x.sum + at,
          x.scaled_sum + at};
}

// Which weights a kernel reads.
enum class Reads : uint8_t {
  kInteger,  // s*, u* codes: value - zero is an integer
  kE2M1,     // twice the value is an integer
  kFloat8,   // e4m3, e4m3fnuz, e5m2
  kAny,      // whatever the packing holds
};

struct KernelArgs {
  const PackedWeight* weight = nullptr;
  const Layout* layout = nullptr;
  const Activations* x = nullptr;
  float* y = nullptr;  // (m, n), row stride ldy
  int64_t ldy = 0;
  int64_t tile_begin = 0;  // tiles of 32 rows of the weight
  int64_t tile_end = 0;
  int64_t m_begin = 0;  // tokens; m_begin is a multiple of x->rows
  int64_t m_end = 0;
  std::byte* scratch = nullptr;  // kPanelBytes of this worker's own, 64-byte aligned
  int64_t ahead = 0;  // how far to ask for codes before they are needed, in bytes; for speed only
};

// Asks for the `bytes` that will be read `ahead` bytes after `p`. Beyond the end of the weight this
// does nothing.
NIBBLE_INLINE void prefetch_codes(const std::byte* p, int64_t bytes, int64_t ahead) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + ahead + i);
}

struct Kernel {
  const char* name;
  device::Isa isa;
  Packing packing;
  Reads reads;
  Form form;
  int rows;  // most tokens of a block of x
  int64_t m_min;
  int64_t m_max;
  void (*run)(const KernelArgs&) noexcept;
};

bool reads(const Kernel& kernel, tensor::Element element);

// The list, best first.
std::span<const Kernel> all_kernels();

// Row n as f32 in the order of the stored codes: unpack_row without the act-order.
void unpack_row_as_stored(const PackedWeight& weight, const Layout& layout, int64_t n, float* out);

constexpr int64_t kPanelBytes = 512 * 1024;  // scratch of a worker

#define KERNEL(function, ...) void function(const KernelArgs& args) noexcept;
#include "kernels/matmul/kernels.inc"
#undef KERNEL

}  // namespace nibble::kernels
