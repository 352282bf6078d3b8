// Normalisation of rows of float32.
//
//   RMSNorm    y = x / sqrt(mean(x^2) + eps) * w        (w + 1 for Gemma: add_one)
//   LayerNorm  y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w + b
//
// Sums are float32 in a fixed order; the relative error of a sum of n squares is below
// (n / 32 + 8) 2^-24 with AVX2 and half of n / 32 with AVX-512.
#pragma once

#include <cstdint>

#include "device/stream.h"
#include "kernels/ops.h"
#include "kernels/rows.h"

namespace nibble::kernels {

struct RmsNorm {
  const float* weight = nullptr;  // (n); null: ones
  int64_t n = 0;
  float eps = 1e-5f;
  bool add_one = false;  // the stored weight is w - 1
};

// x and y are (m, n) with row strides in elements; y may be x, if it is f32.
void rms_norm(device::Stream& stream, const Ops& ops, const RmsNorm& norm, const float* x,
              int64_t ldx, Rows y, int64_t ldy, int64_t m);

// residual += delta, then y = RMSNorm(residual), in one pass over the row. Also used on single
// heads (q_norm, k_norm): m is then tokens * heads.
void add_rms_norm(device::Stream& stream, const Ops& ops, const RmsNorm& norm, const float* delta,
                  int64_t ldd, float* residual, int64_t ldr, Rows y, int64_t ldy, int64_t m);

struct LayerNorm {
  const float* weight = nullptr;  // (n); null: ones
  const float* bias = nullptr;    // (n); null: zeros
  int64_t n = 0;
  float eps = 1e-5f;
};

void layer_norm(device::Stream& stream, const Ops& ops, const LayerNorm& norm, const float* x,
                int64_t ldx, Rows y, int64_t ldy, int64_t m);

// The functions of one ISA, over one row.
struct NormOps {
  void (*rms_norm)(const RmsNorm& norm, const float* x, float* y) noexcept;
  void (*add_rms_norm)(const RmsNorm& norm, const float* delta, float* residual, float* y) noexcept;
  void (*layer_norm)(const LayerNorm& norm, const float* x, float* y) noexcept;
};
extern const NormOps kNormReference;
extern const NormOps kNormAvx2;
extern const NormOps kNormAvx512;

}  // namespace nibble::kernels
