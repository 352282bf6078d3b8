#include "text/added_tokens.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/unicode.h"

namespace nibble::text {
namespace {

// The character that ends at `end`. Precondition: valid UTF-8, end > 0.
char32_t char_before(std::string_view s, size_t end) {
  size_t i = end - 1;
  while (i > 0 && (static_cast<unsigned char>(s[i]) & 0xc0) == 0x80) --i;
  return next_char(s, i);
}

bool touches_word(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && is_word(char_before(text, begin))) return true;
  return end < text.size() && is_word(next_char(text, end));
}

size_t space_before(std::string_view text, size_t begin, size_t limit) {
  while (begin > limit) {
    const char32_t c = char_before(text, begin);
    if (!is_whitespace(c)) break;
    begin -= c < 0x80 ? 1 : c < 0x800 ? 2 : 3;  // no white space lies above U+FFFF
  }
  return begin;
}

size_t space_after(std::string_view text, size_t end) {
  while (end < text.size()) {
    size_t next = end;
    if (!is_whitespace(next_char(text, next))) break;
    end = next;
  }
  return end;
}

}  // namespace

void TokenTrie::add(std::string_view content, uint32_t value) {
  uint32_t at = 0;
  for (size_t i = 0; i < content.size(); ++i) {
    const auto c = static_cast<unsigned char>(content[i]);
    const auto fresh = static_cast<uint32_t>(nodes_.size());
    if (i == 0) {
      if (first_[c] == 0) {
        nodes_.emplace_back();
        first_[c] = fresh + 1;
      }
      at = first_[c] - 1;
      continue;
    }
    auto& next = nodes_[at].next;
    auto place =
        std::lower_bound(next.begin(), next.end(), std::pair<unsigned char, uint32_t>{c, 0});
    if (place != next.end() && place->first == c) {
      at = place->second;
    } else {
      next.insert(place, {c, fresh});
      nodes_.emplace_back();
      at = fresh;
    }
  }
  if (!content.empty()) nodes_[at].value = value;
}

std::optional<TokenTrie::Hit> TokenTrie::longest_at(std::string_view text, size_t begin) const {
  std::optional<Hit> best;
  const uint32_t first = first_[static_cast<unsigned char>(text[begin])];
  if (first == 0) return best;
  const Node* node = &nodes_[first - 1];
  for (size_t i = begin + 1;; ++i) {
    if (node->value != kNone) best = Hit{i, node->value};
    if (i >= text.size() || node->next.empty()) return best;
    const std::pair<unsigned char, uint32_t> key{static_cast<unsigned char>(text[i]), 0};
    const auto place = std::lower_bound(node->next.begin(), node->next.end(), key);
    if (place == node->next.end() || place->first != key.first) return best;
    node = &nodes_[place->second];
  }
}

void AddedTokens::add(AddedToken token) {
  if (const auto old = by_content_.find(token.content); old != by_content_.end()) {
    token.id = tokens_[old->second].id;
    tokens_[old->second] = std::move(token);
    return;
  }
  by_content_.emplace(token.content, tokens_.size());
  by_id_.emplace(token.id, tokens_.size());
  tokens_.push_back(std::move(token));
}

Result<void> AddedTokens::finish(
    const std::function<Result<std::string>(std::string_view)>& normalize, std::string_view where) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    AddedToken& token = tokens_[i];
    token.text = token.content;
    if (token.normalized) {
      NIBBLE_ASSIGN(token.text, normalize(token.content));
    }
    // Every place of a text may begin a token, so its length times that of the text is work.
    if (token.text.size() > TokenTrie::kMaxContent) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: added token {} is {} bytes long; nibble reads up to {}", where,
                              token.id, token.text.size(), TokenTrie::kMaxContent));
    }
    (token.normalized ? normalized_ : raw_).add(token.text, static_cast<uint32_t>(i));
  }
  return {};
}

void AddedTokens::cut(std::string_view text, bool after_normalization, bool parse_special,
                      std::vector<Fragment>& out) const {
  const TokenTrie& trie = after_normalization ? normalized_ : raw_;
  size_t done = 0, run_end = 0;
  for (size_t i = 0; !trie.empty() && i < text.size();) {
    if (!trie.starts_with(static_cast<unsigned char>(text[i]))) {
      ++i;
      continue;
    }
    const auto hit = trie.longest_at(text, i);
    if (!hit) {
      ++i;
      continue;
    }
    const AddedToken& token = tokens_[hit->value];
    size_t begin = i, end = hit->end;
    i = end;  // also where the token is passed over: the search goes on behind it
    if (token.special && !parse_special) continue;
    if (token.single_word && touches_word(text, begin, end)) continue;
    // White space that the token before took is not taken twice.
    if (token.lstrip) begin = std::max(space_before(text, begin, done), done);
    if (token.rstrip) {
      // Tokens that are white space may lie in one long run: it is measured once.
      if (end >= run_end) run_end = space_after(text, end);
      end = run_end;
    }
    if (done < begin) out.push_back({-1, done, begin});
    // A token that is white space may lie wholly in what the token before took.
    if (begin < end) out.push_back({token.id, begin, end});
    done = end;
  }
  if (done < text.size()) out.push_back({-1, done, text.size()});
}

const AddedToken* AddedTokens::find(int32_t id) const {
  const auto place = by_id_.find(id);
  return place == by_id_.end() ? nullptr : &tokens_[place->second];
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto place = by_content_.find(std::string(content));
  return place == by_content_.end() ? nullptr : &tokens_[place->second];
}

bool AddedTokens::is_special(int32_t id) const {
  const AddedToken* token = find(id);
  return token != nullptr && token->special;
}

}  // namespace nibble::text
