// Laws of the packings and of the matcher.
#include "base/properties_test.h"

#include <algorithm>
#include <string>
#include <vector>

#include "quant/matcher.h"
#include "quant/packed_words.h"

namespace nibble::quant {
namespace {

// Codes of `bits` bits as one stream of bits in 32-bit words, lowest first: what the formats say,
// without units, words or shifts of the library.
std::vector<uint8_t> packed(const std::vector<uint8_t>& codes, int64_t bits) {
  std::vector<uint8_t> bytes((codes.size() * static_cast<size_t>(bits) + 31) / 32 * 4);
  for (size_t i = 0; i < codes.size(); ++i) {
    for (size_t b = 0; b < static_cast<size_t>(bits); ++b) {
      const size_t at = i * static_cast<size_t>(bits) + b;
      bytes[at / 8] = static_cast<uint8_t>(bytes[at / 8] | (codes[i] >> b & 1) << at % 8);
    }
  }
  return bytes;
}

RC_GTEST_PROP(packed_words_law, a_code_comes_back_from_the_stream_of_bits, ()) {
  const int64_t bits = *rc::gen::element<int64_t>(2, 3, 4, 8);
  const auto units = *rc::gen::inRange<int64_t>(1, 5);
  const auto count = static_cast<size_t>(units * codes_per_unit(bits));
  const auto codes = *rc::gen::container<std::vector<uint8_t>>(
      count, rc::gen::inRange<uint8_t>(0, static_cast<uint8_t>((1 << bits) - 1)));
  const std::vector<uint8_t> bytes = packed(codes, bits);
  const auto* words = reinterpret_cast<const std::byte*>(bytes.data());
  for (size_t i = 0; i < count; ++i) {
    RC_ASSERT(read_code(words, 0, 1, static_cast<int64_t>(i), bits) == codes[i]);
  }
}

RC_GTEST_PROP(packed_words_law, unpacking_along_k_undoes_packing_and_sorting, ()) {
  const int64_t bits = *rc::gen::element<int64_t>(2, 3, 4, 8);
  const int64_t n = *rc::gen::inRange<int64_t>(1, 9);
  const int64_t k = *rc::gen::inRange<int64_t>(1, 4) * codes_per_unit(bits);
  const auto codes = *rc::gen::container<std::vector<uint8_t>>(
      static_cast<size_t>(n * k),
      rc::gen::inRange<uint8_t>(0, static_cast<uint8_t>((1 << bits) - 1)));
  // Words (K bits / 32, N): each output's stream goes down a column.
  const int64_t rows = k * bits / 32;
  std::vector<uint8_t> words(static_cast<size_t>(rows * n * 4));
  for (int64_t out = 0; out < n; ++out) {
    const std::vector<uint8_t> row(codes.begin() + out * k, codes.begin() + (out + 1) * k);
    const std::vector<uint8_t> stream = packed(row, bits);
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(stream.begin() + r * 4, 4, words.begin() + (r * n + out) * 4);
    }
  }
  std::vector<int32_t> column(static_cast<size_t>(k));
  for (size_t i = 0; i < column.size(); ++i) column[i] = static_cast<int32_t>(i);
  const auto turn = *rc::gen::inRange<int64_t>(0, k);
  std::rotate(column.begin(), column.begin() + turn, column.end());
  std::vector<uint8_t> out(static_cast<size_t>(n * k));
  unpack_along_k(reinterpret_cast<const std::byte*>(words.data()), n, k, bits, 0, column,
                 out.data());
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t i = 0; i < k; ++i) {
      RC_ASSERT(out[static_cast<size_t>(row * k + column[static_cast<size_t>(i)])] ==
                codes[static_cast<size_t>(row * k + i)]);
    }
  }
}

// A segment of a module's name, and a name.
rc::Gen<std::string> segment() {
  return rc::gen::nonEmpty(
      rc::gen::container<std::string>(rc::gen::elementOf(std::string("abgqx019_"))));
}
std::string name_of(const std::vector<std::string>& segments) {
  std::string out;
  for (const std::string& each : segments) out += (out.empty() ? "" : ".") + each;
  return out;
}
bool hits(const std::string& rule, const std::string& module) {
  auto matcher = NameMatcher::compile({rule}, "list");
  RC_ASSERT(static_cast<bool>(matcher));
  auto hit = matcher->match(module);
  RC_ASSERT(static_cast<bool>(hit));
  return hit->has_value();
}

RC_GTEST_PROP(matcher_law, a_rule_covers_itself_what_is_below_it_and_wrapped_forms, ()) {
  const std::string name = name_of(*rc::gen::resize(
      4, rc::gen::nonEmpty(rc::gen::container<std::vector<std::string>>(segment()))));
  RC_ASSERT(hits(name, name));
  RC_ASSERT(hits(name, name + "." + *segment()));
  RC_ASSERT(hits(name, "model." + name));
  RC_ASSERT(hits("model." + name, name));
  RC_ASSERT(hits("*" + name, name));
}

// "q" and what begins with it are never parts of each other: `gate` does not catch `gate_proj`.
RC_GTEST_PROP(matcher_law, a_piece_of_a_segment_matches_nothing, ()) {
  const std::string part = "zz" + *segment();  // no fused name begins so
  const std::string more = *segment();
  RC_ASSERT(!hits(part, "a." + part + more));
  RC_ASSERT(!hits(part, "a." + more + part + ".b"));
  RC_ASSERT(!hits("a." + part, "a." + part + more + ".b"));
}

}  // namespace
}  // namespace nibble::quant
