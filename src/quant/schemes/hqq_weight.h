// The weights of an HQQ layer; hqq.cc draws what is stored.
#pragma once

#include <cstdint>
#include <memory>

#include "quant/method.h"

namespace nibble::quant::hqq {

// How the codes of a layer lie in W_q.
struct Layout {
  int64_t bits = 4;
  int64_t parts = 2;  // in one element of W_q
  int64_t group = 64;
  int64_t rows = 0, columns = 0;  // R and C
  bool by_row = true;             // axis 1
  bool perhaps_3 = false;         // 4 bits, or 3 in as many bytes: the bytes tell

  int64_t step() const { return (rows + parts - 1) / parts; }  // rows of W_q
  int64_t bytes() const { return step() * columns * (bits == 3 ? 4 : 1); }
};

// Precondition: the layer has a W_q of as many bytes as `layout`, and both levels.
std::unique_ptr<LinearMethod> hqq_method(const LinearLayer& layer, const TensorLookup& tensors,
                                         const Layout& layout);

}  // namespace nibble::quant::hqq
