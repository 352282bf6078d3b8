// The walk that the matvec kernels of 8-bit floats share: tiles, groups, blocks of tokens. What one
// group of a tile adds to y is each instruction set's own. Private to matmul/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matmul/float8.h"
#include "kernels/matmul/kernel.h"

namespace nibble::kernels {

// Isa is a type of the including file's own (so that nothing here is shared between files of
// different instruction sets), with
//
//   multiply_group<Float8, tokens>(args, header, block, blocks, first, end, x, y)
//       y (tokens, 32) += lines [first, end) of each of `blocks` blocks; x are the inputs of the
//       first
//   store_y(dense, tokens, rows, y, ldy)
template <class Isa, Float8 kFloat, int kTokens>
void multiply(const KernelArgs& args, int64_t m) {
  const Layout& l = *args.layout;
  const auto* x = reinterpret_cast<const float*>(token_block(*args.x, m).data);
  for (int64_t tile = args.tile_begin; tile < args.tile_end; ++tile) {
    alignas(64) float y[kTokens][kTileRows] = {};
    const std::byte* bytes = args.weight->bytes.data() + tile * l.tile_bytes;
    for (int64_t g = 0; g < l.groups; ++g) {
      const auto group = group_in(l, bytes, g);
      const auto first = header_parts(l, group.header, group.super, 0);
      const int64_t left = l.k_pad - g * l.group;
      const int64_t blocks = (left < l.group ? left : l.group) / kBlockK;
      const float* xg = x + g * l.group;
      if (l.sets == 1) {
        Isa::template multiply_group<kFloat, kTokens>(args, first, group.blocks, blocks, 0, 8, xg,
                                                      y);
      } else {
        const auto second = header_parts(l, group.header, group.super, 1);
        Isa::template multiply_group<kFloat, kTokens>(args, first, group.blocks, 1, 0, 4, xg, y);
        Isa::template multiply_group<kFloat, kTokens>(args, second, group.blocks, 1, 4, 8, xg, y);
      }
    }
    Isa::store_y(y[0], kTokens, l.n - tile * kTileRows, args.y + m * args.ldy + tile * kTileRows,
                 args.ldy);
  }
}

template <class Isa, Float8 kFloat>
void few_tokens(const KernelArgs& args) {
  for (int64_t m = args.m_begin; m < args.m_end; m += args.x->rows) {
    switch (token_block(*args.x, m).rows) {
      case 1:
        multiply<Isa, kFloat, 1>(args, m);
        break;
      case 2:
        multiply<Isa, kFloat, 2>(args, m);
        break;
      default:
        multiply<Isa, kFloat, 3>(args, m);
    }
  }
}

template <class Isa>
void matvec_f8(const KernelArgs& args) {
  switch (args.weight->problem.weight.element) {
    case tensor::Element::kE4M3:
      return few_tokens<Isa, Float8::kE4M3>(args);
    case tensor::Element::kE4M3FNUZ:
      return few_tokens<Isa, Float8::kE4M3FNUZ>(args);
    default:
      return few_tokens<Isa, Float8::kE5M2>(args);
  }
}

}  // namespace nibble::kernels
