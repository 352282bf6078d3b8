// Integer codes in 32-bit words, lowest bits first, as GPTQ, AWQ and their relatives store them.
//
// Codes fill whole words in units: 2-, 4- and 8-bit codes fill one word with 16, 8 and 4; 32 codes
// of b = 3, 5, 6 or 7 bits are one number of 32 b bits in b words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/tensor.h"

namespace nibble::quant {

constexpr int64_t codes_per_unit(int64_t bits) { return 32 % bits == 0 ? 32 / bits : 32; }
constexpr int64_t words_per_unit(int64_t bits) { return 32 % bits == 0 ? 1 : bits; }

// Word `index` of little-endian words that may be unaligned.
inline uint32_t read_word(const std::byte* words, int64_t index) {
  const auto* p = reinterpret_cast<const uint8_t*>(words) + 4 * index;
  return p[0] | static_cast<uint32_t>(p[1]) << 8 | static_cast<uint32_t>(p[2]) << 16 |
         static_cast<uint32_t>(p[3]) << 24;
}

// Code `index` of the stream whose words are words[first], words[first + stride], ... `add` is
// added to each word first, without carry into the next.
inline uint32_t read_code(const std::byte* words, int64_t first, int64_t stride, int64_t index,
                          int64_t bits, uint32_t add = 0) {
  const int64_t at = index * bits;
  const auto shift = static_cast<uint32_t>(at % 32);
  uint64_t word = read_word(words, first + at / 32 * stride) + add;
  if (shift + static_cast<uint32_t>(bits) > 32) {
    word |= uint64_t{read_word(words, first + (at / 32 + 1) * stride) + add} << 32;
  }
  return static_cast<uint32_t>(word >> shift) & ((1u << bits) - 1);
}

// Words (K bits / 32, N), packed along K -> codes (N, K), one byte each, less `minus`. Code k of a
// row goes to column column[k].
void unpack_along_k(const std::byte* words, int64_t n, int64_t k, int64_t bits, uint32_t minus,
                    std::span<const int32_t> column, uint8_t* code);

// How the codes of a row lie in its bytes, lowest bits first.
enum class RowPacking : uint8_t {
  kDense,       // one stream: a code may lie across two bytes or words
  kWholeWords,  // 32 / bits codes in each 32-bit word, the rest of it empty
};
// 32-bit words that `count` codes of `bits` bits take.
constexpr int64_t row_words(int64_t count, int64_t bits, RowPacking packing) {
  const int64_t in_word = 32 / bits;
  return packing == RowPacking::kDense ? (count * bits + 31) / 32 : (count + in_word - 1) / in_word;
}
// `count` codes from a row of `bytes` bytes, each less `minus`. 1 <= bits <= 8.
void unpack_row(const std::byte* row, int64_t bytes, int64_t count, int64_t bits,
                RowPacking packing, uint8_t minus, uint8_t* code);

}  // namespace nibble::quant
