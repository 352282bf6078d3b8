// Tokens that are found in a text before anything else looks at it: special tokens and those added
// after training.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nibble/result.h"

namespace nibble::text {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;      // control tokens: not parsed where parse_special is off
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes white space left of it
  bool rstrip = false;       // takes white space right of it
  bool normalized = true;    // looked for after normalization (its own content normalized too)
  std::string text;          // what is looked for and decoded; set by AddedTokens::finish()
};

// Finds the leftmost, longest of a set of strings.
class TokenTrie {
 public:
  static constexpr size_t kMaxContent = 1024;
  void add(std::string_view content, uint32_t value);
  struct Hit {
    size_t end;
    uint32_t value;
  };
  std::optional<Hit> longest_at(std::string_view text, size_t begin) const;
  bool starts_with(unsigned char c) const { return first_[c] != 0; }
  bool empty() const { return nodes_.empty(); }

 private:
  struct Node {
    std::vector<std::pair<unsigned char, uint32_t>> next;  // sorted by byte
    uint32_t value = kNone;
  };
  static constexpr uint32_t kNone = UINT32_MAX;
  std::array<uint32_t, 256> first_{};  // 1 + node of the first byte; 0: none
  std::vector<Node> nodes_;
};

// A part of a text: an added token, or text between them.
struct Fragment {
  int32_t id = -1;  // -1: text
  size_t begin = 0;
  size_t end = 0;
};

class AddedTokens {
 public:
  // A later token with the same content replaces the flags of the earlier one.
  void add(AddedToken token);
  // Builds the tries; `normalize` is applied to the content of `normalized` tokens. To be called
  // once after the last add().
  Result<void> finish(const std::function<Result<std::string>(std::string_view)>& normalize,
                      std::string_view where);

  // Cuts `text` at the tokens that are looked for before normalization (or after it).
  void cut(std::string_view text, bool after_normalization, bool parse_special,
           std::vector<Fragment>& out) const;

  const AddedToken* find(int32_t id) const;
  const AddedToken* find(std::string_view content) const;
  bool is_special(int32_t id) const;
  const std::vector<AddedToken>& all() const { return tokens_; }

 private:
  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, size_t> by_content_;
  std::unordered_map<int32_t, size_t> by_id_;
  TokenTrie raw_;
  TokenTrie normalized_;
};

}  // namespace nibble::text
