// matmul() of rows that the operation before it holds as the products read them.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/matmul/matmul.h"
#include "kernels/rows.h"

namespace nibble::kernels {

// How m rows are best held that these weights, and nobody else, are multiplied with: not f32 where
// all of the products begin with rounding them. Always f32 on a CPU.
Held held_for(const device::Stream& stream, std::span<const PackedWeight* const> weights,
              int64_t m);

// matmul.h's; x is held as held_for says for all of the weights, or f32.
void matmul(device::Stream& stream, std::span<const MatmulTarget> targets, ConstRows x, int64_t ldx,
            int64_t m);

}  // namespace nibble::kernels
