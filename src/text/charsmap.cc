#include "text/charsmap.h"

#include <fmt/format.h>

#include <cstring>

#include "text/unicode.h"

namespace nibble::text {
namespace {

uint32_t read_u32(std::string_view bytes, size_t at) {
  uint32_t v = 0;
  for (size_t k = 4; k-- > 0;) v = v << 8 | static_cast<unsigned char>(bytes[at + k]);
  return v;
}

bool has_value(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t label(uint32_t unit) { return unit & (uint32_t{1} << 31 | 0xff); }
uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

}  // namespace

Result<CharsMap> CharsMap::read(std::string_view bytes, std::string_view where) {
  CharsMap map;
  if (bytes.empty()) return map;
  const uint32_t n = bytes.size() < 4 ? 0 : read_u32(bytes, 0);
  if (bytes.size() < 4 || n % 4 != 0 || n > bytes.size() - 4 || n == 0) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: precompiled_charsmap of {} bytes says that its trie has {} bytes; "
                            "expected a multiple of 4 that fits",
                            where, bytes.size(), n));
  }
  map.units_.resize(n / 4);
  for (size_t i = 0; i < map.units_.size(); ++i) map.units_[i] = read_u32(bytes, 4 + 4 * i);
  map.replacements_ = bytes.substr(4 + n);
  if (const auto bad = find_invalid_utf8(map.replacements_)) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: precompiled_charsmap: replacement text is not UTF-8 at byte {}",
                            where, *bad));
  }
  return map;
}

std::optional<CharsMap::Rule> CharsMap::find(std::string_view text, bool longest) const {
  std::optional<Rule> best;
  if (units_.empty()) return best;
  size_t node = offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == 0) break;
    node ^= c;
    if (node >= units_.size() || label(units_[node]) != c) break;
    const uint32_t unit = units_[node];
    node ^= offset(unit);
    if (!has_value(unit)) continue;
    if (node >= units_.size()) break;
    const size_t at = units_[node] & 0x7fffffff;
    if (at > replacements_.size()) break;
    const size_t end = std::min(replacements_.find('\0', at), replacements_.size());
    // A value that points into the middle of a character is no rule.
    const std::string_view words = std::string_view(replacements_).substr(at, end - at);
    if (find_invalid_utf8(words)) break;
    best = Rule{i + 1, words};
    if (!longest) break;
  }
  return best;
}

}  // namespace nibble::text
