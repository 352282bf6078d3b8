// Activations held as a checkpoint wants them: rounded to the grid of its number type, and given
// back as the float32 numbers of that grid.
//
//   s8    q = clamp(round(x / scale) + zero, -128, 127)      x' = (q - zero) * scale
//   e4m3  q = e4m3(clamp(x / scale, -448, 448))              x' = q * scale
//   e2m1  q = e2m1(clamp(x / scale, -6, 6))                  x' = q * scale
//   e2m3, e3m2: the same within 7.5 and 28
//
// Rounding is to nearest even. Dynamic scales are absmax / 127 (or / 127.5), / 448 or / 6 of the
// token or group, rounded as the format's ScaleRule says; asymmetric ones (max - min) / 255 over a
// range that includes 0. Integers may have fewer bits. A group of zeros stays zeros. Outliers
// (LLM.int8) are given back as they are and count for no scale.
//
// Two things are found over all tokens of a call, so that a prompt in one call and the same prompt
// in two may differ: the dynamic scale of a whole tensor, and which columns hold an outlier.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/weight_format.h"

namespace nibble::kernels {

// One token of k inputs; `out` may be `x`. input_scale and input_zero are read for static formats,
// input_scale also where scales are e4m3. `kept`: 1 for the columns (K) that stay as they are, of
// formats with outliers; null for none.
void quantize_activation(const tensor::ActivationFormat& format, float input_scale,
                         float input_zero, const float* x, int64_t k, float* out,
                         const uint8_t* kept = nullptr);

// Finds what a format needs of all tokens of a call (spans_call in round.h): add every token, join
// what several threads have seen, in any order; then ask.
class CallRange {
 public:
  CallRange(const tensor::ActivationFormat& format, int64_t k);
  void add(const float* x);
  void join(const CallRange& other);

  // The format to round by, a dynamic scale of the tensor being static now; its scale and zero
  // point (`scale` and `zero` are left alone where it has none), its columns of outliers.
  tensor::ActivationFormat found(float& scale, float& zero) const;
  const std::vector<uint8_t>& kept() const { return kept_; }

 private:
  tensor::ActivationFormat format_;
  int64_t k_;
  float low_ = 0, high_ = 0, most_ = 0;
  std::vector<uint8_t> kept_;  // (K), or empty
};

// The same for s8, as integers: q - zero of every input (-255..255) and the scale of every group
// (one when the format has no groups), nan where something is not finite (its q are 0).
void quantize_activation_s8(const tensor::ActivationFormat& format, float input_scale,
                            float input_zero, const float* x, int64_t k, int16_t* q, float* scale);

}  // namespace nibble::kernels
