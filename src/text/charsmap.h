// sentencepiece's precompiled rewriting rules (normalizer_spec.precompiled_charsmap): a trie of
// what to replace, and the replacements.
//
//   u32 LE    n, bytes of the trie
//   n bytes   u32 LE units of a double-array trie (Darts-clone): for the unit u of a node and a
//             byte c the child is at  node ^ offset(u) ^ c,  and is one if its label is c
//               bits 0-7 label (bit 31 set: no label, a value unit), bit 8 "has a value",
//               bit 9 "offset is shifted by 8 more", bits 10-31 offset
//             a node's value unit is at node ^ offset(u), its value in bits 0-30
//   the rest  replacements, each ended by a zero byte; a value is the offset of one
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/result.h"

namespace nibble::text {

class CharsMap {
 public:
  static Result<CharsMap> read(std::string_view bytes, std::string_view where);

  struct Rule {
    size_t length;  // bytes of the text that the rule replaces
    std::string_view replacement;
  };
  // The shortest or the longest rule for a beginning of `text`.
  std::optional<Rule> shortest(std::string_view text) const { return find(text, false); }
  std::optional<Rule> longest(std::string_view text) const { return find(text, true); }

 private:
  std::optional<Rule> find(std::string_view text, bool longest) const;
  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace nibble::text
