#include "text/wordpiece.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/unicode.h"

namespace nibble::text {
namespace {

Result<void> unknown(std::optional<int32_t> unk, std::string_view word, std::vector<int32_t>& out) {
  if (!unk) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("no token for \"{}\", and the vocabulary has no unknown token",
                            word.substr(0, 40)));
  }
  out.push_back(*unk);
  return {};
}

}  // namespace

Result<void> WordPiece::tokenize(const Vocab& vocab, std::string_view word,
                                 std::vector<int32_t>& out) const {
  const auto is_lead = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; };
  const auto chars = static_cast<size_t>(std::count_if(word.begin(), word.end(), is_lead));
  if (chars > max_input_chars_per_word) return unknown(unk, word, out);
  const size_t from = out.size();
  std::string candidate;
  for (size_t begin = 0; begin < word.size();) {
    const std::string_view prefix = begin == 0 ? "" : std::string_view(continuing_subword_prefix);
    size_t end = word.size();
    if (vocab.longest() < prefix.size()) {
      end = begin;
    } else {
      end = std::min(end, begin + vocab.longest() - prefix.size());
    }
    while (end > begin && end < word.size() && !is_lead(word[end])) --end;
    std::optional<int32_t> id;
    while (end > begin) {
      candidate = prefix;
      candidate += word.substr(begin, end - begin);
      if ((id = vocab.find(candidate))) break;
      do --end;
      while (end > begin && !is_lead(word[end]));
    }
    if (!id) {  // a word is known as a whole or not at all
      out.resize(from);
      return unknown(unk, word, out);
    }
    out.push_back(*id);
    begin = end;
  }
  return {};
}

Result<void> WordLevel::tokenize(const Vocab& vocab, std::string_view word,
                                 std::vector<int32_t>& out) const {
  const auto id = vocab.find(word);
  if (!id) return unknown(unk, word, out);
  out.push_back(*id);
  return {};
}

}  // namespace nibble::text
