// Elementwise operations on rows of f32 (activations on a card: of bf16 too, kernels/rows.h):
// activations, plain and gated, and the small sums and scalings between layers.
//
//   y = f(x)          y = f(gate) * up
//
//   silu        x / (1 + e^-x)
//   gelu        x Phi(x), Phi(x) = (1 + erf(x / sqrt 2)) / 2
//   gelu_tanh   x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
//   quick_gelu  x / (1 + e^(-1.702 x))
//   relu        max(x, 0)
//   relu2       max(x, 0)^2
//
// Errors against the exact f, for the vector files: 1e-6 |f(x)| + 3e-7 |x| (silu, the gelus), none
// for the relus. nan stays nan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/stream.h"
#include "kernels/ops.h"
#include "kernels/rows.h"

namespace nibble::kernels {

enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kQuickGelu, kRelu, kRelu2 };
const char* name(Activation f);  // "silu"

// x and y are (m, n) with row strides ldx and ldy in elements; y may be x, if both are held alike.
void activate(device::Stream& stream, const Ops& ops, Activation f, ConstRows x, int64_t ldx,
              Rows y, int64_t ldy, int64_t m, int64_t n);

// y = f(gate) * up; gate and up are held alike, and y may be one of them, if it is, too. gate and
// up may be the halves of one (m, 2 n) matrix.
void activate_gated(device::Stream& stream, const Ops& ops, Activation f, ConstRows gate,
                    int64_t ldg, ConstRows up, int64_t ldu, Rows y, int64_t ldy, int64_t m,
                    int64_t n);

// y += x over (m, n): the residual.
void add_to(device::Stream& stream, const Ops& ops, const float* x, int64_t ldx, float* y,
            int64_t ldy, int64_t m, int64_t n);

// y += row for each row of (m, n): the bias of a linear layer. At most kMostBiases at once.
struct Bias {
  const float* row;  // (n)
  float* y;
  int64_t ldy;
  int64_t n;
};
constexpr size_t kMostBiases = 4;
void add_biases(device::Stream& stream, std::span<const Bias> biases, int64_t m);

// y = x over (m, n), which do not overlap: the parts of a fused projection.
void copy_to(device::Stream& stream, const float* x, int64_t ldx, float* y, int64_t ldy, int64_t m,
             int64_t n);

// y *= factor over n elements: Gemma's embeddings, Granite's residuals and logits.
void scale_by(device::Stream& stream, const Ops& ops, float factor, float* y, int64_t n);

// y = cap tanh(y / cap) over n elements: Gemma 2's final logits. Absolute error 3e-7 cap.
void soft_cap(device::Stream& stream, const Ops& ops, float cap, float* y, int64_t n);

// The functions of one ISA, over one row.
struct ActivationOps {
  void (*activate)(Activation f, const float* x, int64_t n, float* y) noexcept;
  void (*activate_gated)(Activation f, const float* gate, const float* up, int64_t n,
                         float* y) noexcept;
  void (*add_to)(const float* x, int64_t n, float* y) noexcept;
  void (*scale_by)(float factor, int64_t n, float* y) noexcept;
  void (*soft_cap)(float cap, int64_t n, float* y) noexcept;
  int64_t (*first_not_finite)(const float* x, int64_t n) noexcept;  // n when all are finite
};
extern const ActivationOps kActivationReference;
extern const ActivationOps kActivationAvx2;
extern const ActivationOps kActivationAvx512;

}  // namespace nibble::kernels
