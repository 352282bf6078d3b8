// The definition of right: a row as dequantize_row gives it, a product with every x in double.
// Reads every packing.
#include <vector>

#include "kernels/matmul/kernel.h"

namespace nibble::kernels {

void matmul_reference(const KernelArgs& args) noexcept {
  const Layout& l = *args.layout;
  std::vector<float> row(static_cast<size_t>(l.k));
  const int64_t n_end = std::min(l.n, args.tile_end * kTileRows);
  for (int64_t n = args.tile_begin * kTileRows; n < n_end; ++n) {
    unpack_row_as_stored(*args.weight, l, n, row.data());
    for (int64_t m = args.m_begin; m < args.m_end; ++m) {
      const auto* x = reinterpret_cast<const float*>(args.x->data + m * args.x->token_bytes);
      double sum = 0;
      for (int64_t k = 0; k < l.k; ++k) sum += double{x[k]} * double{row[static_cast<size_t>(k)]};
      args.y[m * args.ldy + n] = static_cast<float>(sum);
    }
  }
}

}  // namespace nibble::kernels
