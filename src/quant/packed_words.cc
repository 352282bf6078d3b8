#include "quant/packed_words.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace nibble::quant {
namespace {

// kBits is known to the compiler: shifts and units then cost nothing.
template <int64_t kBits>
void unpack(const std::byte* words, int64_t n, int64_t k, uint32_t minus,
            std::span<const int32_t> column, uint8_t* code) {
  constexpr int64_t kUnit = codes_per_unit(kBits), kSpan = words_per_unit(kBits);
  // A tile of codes is collected beside the cache-unfriendly output, whose rows lie K apart.
  constexpr int64_t kRows = 64, kColumns = 32;  // kColumns: a multiple of every unit
  uint8_t tile[kRows][kColumns];
  for (int64_t begin = 0; begin < n; begin += kRows) {
    const int64_t rows = std::min(kRows, n - begin);
    for (int64_t first = 0; first < k; first += kColumns) {
      const int64_t columns = std::min(kColumns, k - first);
      for (int64_t u = 0; u < columns / kUnit; ++u) {
        const int64_t word = (first / kUnit + u) * kSpan * n + begin;
        for (int64_t j = 0; j < rows; ++j) {
          for (int64_t c = 0; c < kUnit; ++c) {
            const uint32_t q = read_code(words, word + j, n, c, kBits);
            tile[j][u * kUnit + c] = static_cast<uint8_t>(q - minus);
          }
        }
      }
      for (int64_t j = 0; j < rows; ++j) {
        uint8_t* row = code + (begin + j) * k;
        if (column.empty()) {
          std::memcpy(row + first, tile[j], static_cast<size_t>(columns));
          continue;
        }
        for (int64_t c = 0; c < columns; ++c) {
          row[column[static_cast<size_t>(first + c)]] = tile[j][c];
        }
      }
    }
  }
}

}  // namespace

void unpack_along_k(const std::byte* words, int64_t n, int64_t k, int64_t bits, uint32_t minus,
                    std::span<const int32_t> column, uint8_t* code) {
  switch (bits) {
    case 2:
      return unpack<2>(words, n, k, minus, column, code);
    case 3:
      return unpack<3>(words, n, k, minus, column, code);
    case 4:
      return unpack<4>(words, n, k, minus, column, code);
    case 5:
      return unpack<5>(words, n, k, minus, column, code);
    case 6:
      return unpack<6>(words, n, k, minus, column, code);
    case 7:
      return unpack<7>(words, n, k, minus, column, code);
    case 8:
      return unpack<8>(words, n, k, minus, column, code);
    default:
      NIBBLE_CHECK(false && "codes of 2 to 8 bits");
  }
}

void unpack_row(const std::byte* row, int64_t bytes, int64_t count, int64_t bits,
                RowPacking packing, uint8_t minus, uint8_t* code) {
  if (bits == 4 && count <= 2 * bytes) {  // of either packing; in a form that compilers vectorize
    for (int64_t i = 0; i < count / 2; ++i) {
      const auto two = static_cast<uint8_t>(row[i]);
      code[2 * i] = static_cast<uint8_t>((two & 15) - minus);
      code[2 * i + 1] = static_cast<uint8_t>((two >> 4) - minus);
    }
    if (count % 2 != 0) {
      code[count - 1] = static_cast<uint8_t>((static_cast<uint8_t>(row[count / 2]) & 15) - minus);
    }
    return;
  }
  const uint64_t mask = (1u << bits) - 1;
  // Eight codes are `bits` bytes of the stream; a word is a short stream of its own.
  const int64_t codes = packing == RowPacking::kDense ? 8 : 32 / bits;
  const int64_t step = packing == RowPacking::kDense ? bits : 4;
  for (int64_t first = 0, at = 0; first < count; first += codes, at += step) {
    uint64_t window = 0;
    std::memcpy(&window, row + at, static_cast<size_t>(std::min(step, bytes - at)));
    const int64_t here = std::min(codes, count - first);
    for (int64_t i = 0; i < here; ++i) {
      code[first + i] = static_cast<uint8_t>((window >> (i * bits) & mask) - minus);
    }
  }
}

}  // namespace nibble::quant
