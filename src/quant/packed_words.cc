#include "quant/packed_words.h"

#include <algorithm>

namespace nibble::quant {

void unpack_along_k(const std::byte* words, int64_t n, int64_t k, int64_t bits, uint32_t minus,
                    std::span<const int32_t> column, uint8_t* code) {
  const int64_t unit = codes_per_unit(bits), span = words_per_unit(bits);
  // Blocks of outputs whose rows of codes stay in the cache while a row of words is read.
  constexpr int64_t kBlock = 64;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    for (int64_t u = 0; u < k / unit; ++u) {
      const int32_t* at = column.data() + u * unit;
      for (int64_t j = begin; j < std::min(n, begin + kBlock); ++j) {
        for (int64_t c = 0; c < unit; ++c) {
          const uint32_t q = read_code(words, u * span * n + j, n, c, bits);
          code[j * k + at[c]] = static_cast<uint8_t>(q - minus);
        }
      }
    }
  }
}

}  // namespace nibble::quant
