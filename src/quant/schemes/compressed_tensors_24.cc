#include "quant/schemes/compressed_tensors_24.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "quant/packed_words.h"

namespace nibble::quant::compressed {
namespace {

constexpr int64_t kChunk = 1024;  // codes: 64 outputs by 16 kept inputs

// permutation[i] is the place in a chunk, in order of (n / 16, c % 16, n % 16), of the code that is
// stored at i. Derived from the fragments of m16n8k16 tensor core instructions and from the order
// in which a word's fields are expanded (compressed-tensors 0.12, permutations_24).
std::array<int16_t, kChunk> chunk_permutation(int64_t bits) {
  constexpr std::array<int, 8> kFields4 = {0, 2, 4, 6, 1, 3, 5, 7};
  constexpr std::array<int, 4> kFields8 = {0, 2, 1, 3};
  std::array<int16_t, kChunk> plain{}, out{};
  size_t at = 0;
  for (int lane = 0; lane < 32; ++lane) {
    const int column = lane / 4;
    for (int j = 0; j < 4; ++j) {
      for (int block = 0; block < 2; ++block) {
        for (int row :
             {2 * (lane % 4), 2 * (lane % 4) + 1, 2 * (lane % 4 + 4), 2 * (lane % 4 + 4) + 1}) {
          plain[at++] =
              static_cast<int16_t>(16 * row + column / 2 * 256 + 8 * (column % 2) + 4 * block + j);
        }
      }
    }
  }
  const size_t fields = bits == 4 ? kFields4.size() : kFields8.size();
  for (size_t i = 0; i < out.size(); ++i) {
    const int field = bits == 4 ? kFields4[i % fields] : kFields8[i % fields];
    out[i] = plain[i / fields * fields + static_cast<size_t>(field)];
  }
  return out;
}

// Where `meta` has the places of 16 inputs of output n, as an index of 16-bit elements (CUTLASS's
// reordering for interleaved columns).
int64_t meta_index(int64_t n, int64_t column, int64_t outputs) {
  int64_t row = n / 64 * 64 + n % 2 * 2 + n % 8 / 4 + n % 4 / 2 * 32 + n % 64 / 8 * 4;
  if (row % 2 == 0 && column % 2 == 1) {
    ++row, --column;
  } else if (row % 2 == 1 && column % 2 == 0) {
    --row, ++column;
  }
  return column / 2 * outputs * 2 + row * 2 + column % 2;
}

// The inputs that one row of a mask keeps; -1 when a bit beyond the last input is set.
int64_t kept_in(const uint8_t* bit, int64_t k) {
  const int64_t bytes = (k + 7) / 8;
  int64_t count = 0;
  for (int64_t i = 0; i < bytes; ++i) count += std::popcount(bit[i]);
  return k % 8 != 0 && bit[bytes - 1] >> (k % 8) != 0 ? -1 : count;
}

Failure beyond_the_inputs(int64_t row, int64_t k) {
  return fail(ErrorCode::kCorrupt,
              fmt::format("bitmask: row {} has bits beyond its {} inputs", row, k));
}

void spread_row(const uint8_t* bit, const std::byte* from, int64_t k, int64_t unit, std::byte* to) {
  for (int64_t i = 0; i < k; ++i, to += unit) {
    if ((bit[i / 8] >> (i % 8) & 1) == 0) continue;
    std::memcpy(to, from, static_cast<size_t>(unit));
    from += unit;
  }
}

}  // namespace

Result<void> spread_mask24(const tensor::TensorView& kept, const tensor::TensorView& mask,
                           int64_t n, int64_t k, int64_t unit, std::byte* out) {
  const int64_t mask_bytes = (k + 7) / 8;
  for (int64_t row = 0; row < n; ++row) {
    const auto* bit = reinterpret_cast<const uint8_t*>(mask.data) + row * mask_bytes;
    const int64_t count = kept_in(bit, k);
    if (count < 0) return beyond_the_inputs(row, k);
    if (count != k / 2) {
      return fail(
          ErrorCode::kCorrupt,
          fmt::format("bitmask: row {} keeps {} of {} inputs, expected {}", row, count, k, k / 2));
    }
    spread_row(bit, kept.data + row * (k / 2) * unit, k, unit, out + row * k * unit);
  }
  return {};
}

Result<void> spread_mask(const tensor::TensorView& kept, const tensor::TensorView& mask,
                         std::span<const int32_t> offset, bool part, int64_t k, int64_t unit,
                         std::byte* out) {
  const auto values = static_cast<int64_t>(kept.bytes) / unit;
  for (size_t row = 0; row < offset.size(); ++row) {
    const auto at = static_cast<int64_t>(row);
    const auto* bit = reinterpret_cast<const uint8_t*>(mask.data) + at * ((k + 7) / 8);
    const int64_t begin = offset[row], count = kept_in(bit, k);
    const int64_t end = row + 1 < offset.size() ? offset[row + 1] : values;
    if (count < 0) return beyond_the_inputs(at, k);
    const bool open_end = part && row + 1 == offset.size();
    if (begin < 0 || end > values || (open_end ? count > end - begin : count != end - begin)) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("bitmask: row {} keeps {} inputs, and row_offsets leaves it the "
                              "values {} to {} of {}",
                              row, count, begin, end, values));
    }
    spread_row(bit, kept.data + begin * unit, k, unit, out + at * k * unit);
  }
  return {};
}

Result<void> unpack_marlin24(const std::byte* words, const tensor::TensorView& meta, int64_t n,
                             int64_t k, int64_t bits, uint8_t minus, uint8_t* code) {
  const std::array<int16_t, kChunk> permutation = chunk_permutation(bits);
  const int64_t in_word = 32 / bits, row_codes = 16 * n;
  std::vector<uint8_t> kept(static_cast<size_t>(n * (k / 2)));  // (N, K/2)
  for (int64_t tile = 0; tile < k / 32; ++tile) {
    for (int64_t o = 0; o < row_codes; ++o) {
      const uint32_t word = read_word(words, (tile * row_codes + o) / in_word);
      const int64_t j = o / kChunk * kChunk + permutation[static_cast<size_t>(o % kChunk)];
      const int64_t output = j / 256 * 16 + j % 16, c = tile * 16 + j % 256 / 16;
      kept[static_cast<size_t>(output * (k / 2) + c)] =
          static_cast<uint8_t>((word >> (o % in_word * bits) & ((1u << bits) - 1)) - minus);
    }
  }
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t column = 0; column < k / 16; ++column) {
      uint16_t places;
      std::memcpy(&places, meta.data + 2 * meta_index(row, column, n), sizeof places);
      for (int64_t quad = 0; quad < 4; ++quad) {
        const int64_t first = places >> (4 * quad) & 3, second = places >> (4 * quad + 2) & 3;
        const int64_t at = 16 * column + 4 * quad;
        if (first == second) {
          return fail(ErrorCode::kCorrupt,
                      fmt::format("meta: output {}, inputs {} to {}: both kept codes have place {}",
                                  row, at, at + 3, first));
        }
        const uint8_t* from = kept.data() + row * (k / 2) + at / 2;
        code[row * k + at + first] = from[0];
        code[row * k + at + second] = from[1];
      }
    }
  }
  return {};
}

std::vector<float> unpack_marlin24_scales(std::span<const float> stored, int64_t n, int64_t groups,
                                          bool permuted) {
  constexpr std::array<int, 8> kOrder = {0, 4, 1, 5, 2, 6, 3, 7};
  std::vector<float> out(stored.size());
  for (size_t i = 0; i < stored.size(); ++i) {
    const size_t at = permuted ? i / 8 * 8 + static_cast<size_t>(kOrder[i % 8]) : i;
    const auto group = static_cast<int64_t>(at) / n, output = static_cast<int64_t>(at) % n;
    out[static_cast<size_t>(output * groups + group)] = stored[i];
  }
  return out;
}

}  // namespace nibble::quant::compressed
