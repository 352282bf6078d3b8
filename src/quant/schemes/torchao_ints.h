// TorchAO's integers: codes of 1 to 8 bits in the orders that its classes have, with scales and
// zero points of rows, groups of inputs, or the whole weight.
//
//   w[n, k] = (q[n, k] - zero[area of (n, k)]) * scale[area]     integer zero points
//   w[n, k] = q[n, k] * scale[area] + zero[area]                 float ones
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "quant/method.h"
#include "quant/scaled_codes.h"

namespace nibble::quant::torchao {

enum class Order : uint8_t {
  kBytes,    // (N, K)        one a byte
  kNibbles,  // (N, K/2)      two a byte, the even input in the low half; two's complement
  kWords,    // (N, K/8)      eight a word of 32 bits, lowest bits first; unsigned
  // (N/8, K/128, 32, 4) words; N and K are filled up to multiples of 8 and 1024. Unsigned, 8 is 0.
  // Word (i, j, t, w) is of output 8 i + t / 4 and of inputs 128 j + 32 w + 2 (t % 4) + ...
  //
  //   bits   0-3  4-7  8-11  12-15  16-19  20-23  24-27  28-31
  //   ...      0    8    16     24      1      9     17     25
  kTiles,
};

struct Ints {
  Order order = Order::kBytes;
  int64_t tile_n = 8;  // kTiles: N is filled up to a multiple of it, 8 or 16
  std::vector<tensor::DType> code_types = {tensor::DType::kS8};
  int64_t bits = 8;
  bool is_signed = true;
  Area area;                // of a scale
  bool transposed = false;  // scales and zero points stand as (K/g, N)
  std::string codes, scale;
  // "": none. With kTiles they are beside the scales: (K/g, N, 2).
  std::string zero;
  // What the zero points are. kNone: all are 0, and others are an error that `zeros_are_0`
  // explains.
  tensor::ZeroKind zero_kind = tensor::ZeroKind::kNone;
  std::string zeros_are_0;
  tensor::ActivationFormat activation;
  std::string input_scale, input_zero, input_factor;        // "": none
  std::vector<std::pair<std::string, std::string>> unused;  // suffix, reason
};

std::unique_ptr<LinearMethod> ints_method(const LinearLayer& layer, const TensorLookup& tensors,
                                          Ints ints);

}  // namespace nibble::quant::torchao
