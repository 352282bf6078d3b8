#include "text/unigram.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "text/unicode.h"

namespace nibble::text {
namespace {

constexpr double kUnknownPenalty = 10.0;  // below the lowest score

struct Entry {
  std::string_view text;
  int32_t id;
};

}  // namespace

Result<void> Unigram::finish(const Vocab& vocab, std::string_view where) {
  // Breadth first over the sorted tokens: node n stands for the tokens [lo, hi) that share their
  // first `depth` bytes; its children lie side by side.
  std::vector<Entry> entries;
  min_score_ = std::numeric_limits<double>::infinity();
  for (int32_t id = 0; id < vocab.end_id(); ++id) {
    const auto text = vocab.text(id);
    if (!text) continue;
    min_score_ = std::min(min_score_, scores[static_cast<size_t>(id)]);
    if (text->empty() || (!usable.empty() && !usable[static_cast<size_t>(id)])) continue;
    // Of two tokens with one text the vocabulary knows one.
    if (vocab.find(*text) == id) entries.push_back({*text, id});
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.text < b.text; });
  struct Range {
    size_t lo, hi, depth;
  };
  std::vector<Range> ranges{{0, entries.size(), 0}};
  nodes_.assign(1, Node{});
  labels_.assign(1, 0);
  for (size_t n = 0; n < nodes_.size(); ++n) {
    auto [lo, hi, depth] = ranges[n];
    if (lo < hi && entries[lo].text.size() == depth) nodes_[n].id = entries[lo++].id;
    nodes_[n].first = static_cast<uint32_t>(nodes_.size());
    while (lo < hi) {
      const char c = entries[lo].text[depth];
      size_t end = lo;
      while (end < hi && entries[end].text[depth] == c) ++end;
      if (nodes_.size() >= size_t{1} << 26) {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("{}: the tokens of this Unigram model have more than 67108864 "
                                "different beginnings",
                                where));
      }
      nodes_.push_back({});
      labels_.push_back(static_cast<unsigned char>(c));
      ranges.push_back({lo, end, depth + 1});
      lo = end;
    }
    nodes_[n].count = static_cast<uint32_t>(nodes_.size()) - nodes_[n].first;
  }
  return {};
}

Result<void> Unigram::tokenize(const Vocab& vocab, std::string_view word,
                               std::vector<int32_t>& out) const {
  struct Best {  // the best way to a place in the word
    double score = 0;
    size_t from = SIZE_MAX;
    int32_t id = -1;
  };
  std::vector<Best> best(word.size() + 1);
  const double unk_score = min_score_ - kUnknownPenalty;
  for (size_t begin = 0; begin < word.size();) {
    const double here = best[begin].score;
    const size_t first = utf8_length(static_cast<unsigned char>(word[begin]));
    const auto offer = [&](size_t end, double score, int32_t id) {
      if (single_precision) score = static_cast<float>(score);
      Best& b = best[end];
      if (b.from == SIZE_MAX || score > b.score) b = {score, begin, id};
    };
    bool has_single = false;
    const Node* node = &nodes_[0];
    for (size_t i = begin; i < word.size(); ++i) {
      const auto labels = labels_.begin() + node->first;
      const auto c = static_cast<unsigned char>(word[i]);
      const auto place = std::lower_bound(labels, labels + node->count, c);
      if (place == labels + node->count || *place != c) break;
      node = &nodes_[node->first + static_cast<size_t>(place - labels)];
      if (node->id < 0) continue;
      offer(i + 1, here + scores[static_cast<size_t>(node->id)], node->id);
      has_single |= i + 1 - begin == first;
    }
    if (!has_single) {
      if (!unk) {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("no token for \"{}\", and the Unigram model has no unknown token",
                                word.substr(begin, first)));
      }
      offer(begin + first, here + unk_score, *unk);
    }
    begin += first;
  }
  // Back from the end; tokens come out in reverse.
  struct Chosen {
    size_t begin, end;
    int32_t id;
  };
  std::vector<Chosen> chosen;
  for (size_t end = word.size(); end > 0; end = best[end].from) {
    const Best& b = best[end];
    if (fuse_unk && unk && b.id == *unk && !chosen.empty() && chosen.back().id == *unk) {
      chosen.back().begin = b.from;
    } else {
      chosen.push_back({b.from, end, b.id});
    }
  }
  std::reverse(chosen.begin(), chosen.end());
  for (const Chosen& c : chosen) {
    if (!unk || c.id != *unk) {
      out.push_back(c.id);
      continue;
    }
    const std::string_view text = word.substr(c.begin, c.end - c.begin);
    if (const auto id = vocab.find(text); id && *id != *unk) {
      out.push_back(*id);
    } else if (!byte_ids.empty() && std::all_of(text.begin(), text.end(), [&](char b) {
                 return byte_ids[static_cast<unsigned char>(b)] >= 0;
               })) {
      for (const char b : text) out.push_back(byte_ids[static_cast<unsigned char>(b)]);
    } else {
      out.push_back(*unk);
    }
  }
  return {};
}

}  // namespace nibble::text
