// The 8-bit floats that go through f16. Private to matmul/.
#pragma once

namespace nibble::kernels {

enum class Float8 { kE4M3, kE4M3FNUZ, kE5M2 };

// What an f16 with the number's own sign, exponent and mantissa bits is to be multiplied by.
template <Float8 kFloat>
constexpr float kFix = kFloat == Float8::kE4M3       ? 256.0f
                       : kFloat == Float8::kE4M3FNUZ ? 128.0f
                                                     : 1.0f;

}  // namespace nibble::kernels
