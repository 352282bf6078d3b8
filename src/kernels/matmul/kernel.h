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
  kRows,      // (m, k_pad) f32
  kF32Panel,  // per block of `rows` tokens: (k_pad, rows) f32
  kS16Panel,  // per block of `rows` tokens: (k_pad / 2, rows) pairs of s16, and unit scales
  kS8Digits,  // per token: units of s16 = 256 h + l, the h of 32 inputs and then the l of them
  kS16Pairs,  // per token: (k_pad) s16, in the order of kS16Panel's pairs
};

// Which weights a kernel reads.
enum class Reads : uint8_t {
  kInteger,  // s*, u* codes: value - zero is an integer
  kAny,      // whatever the packing holds
};

// x in one form. Rows are cut into blocks of `rows` tokens, the last may be shorter. For the s16
// forms, with q the integer held for an input:
//
//   x'[m, k] = scale[m, k / unit] * q[m, k]     sum[m, u] = sum of q over unit u
struct Activations {
  Form form = Form::kRows;
  int64_t m = 0;
  int64_t rows = 1;  // tokens a block
  int64_t k_pad = 0;
  int64_t unit = 0;
  int64_t units = 0;  // ceil(k_pad / unit)
  const std::byte* data = nullptr;
  int64_t token_bytes = 0;       // data of a token: block b begins at b * rows * token_bytes
  const float* scale = nullptr;  // per block (units, rows of the block)
  const int32_t* sum = nullptr;  // likewise
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
  std::byte* scratch = nullptr;  // Kernel::scratch_bytes of this worker's own, 64-byte aligned
};

struct Kernel {
  const char* name;
  device::Isa isa;
  Packing packing;
  Reads reads;
  Form form;
  int rows;  // of a block of x
  int64_t m_min;
  int64_t m_max;
  void (*run)(const KernelArgs&) noexcept;
};

// The list, best first.
std::span<const Kernel> all_kernels();

// Row n as f32 in the order of the stored codes: unpack_row without the act-order.
void unpack_row_as_stored(const PackedWeight& weight, const Layout& layout, int64_t n, float* out);

constexpr int64_t kPanelBytes = 512 * 1024;  // scratch of a worker

#define KERNEL(function, ...) void function(const KernelArgs& args) noexcept;
#include "kernels/matmul/kernels.inc"
#undef KERNEL

}  // namespace nibble::kernels
