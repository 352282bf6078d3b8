// The unigram language model: of all ways to cut a word into tokens, the one with the highest sum
// of scores (Kudo 2018).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "nibble/result.h"
#include "text/vocab.h"

namespace nibble::text {

struct Unigram {
  std::vector<double> scores;  // by id
  std::vector<bool> usable;    // by id; empty: all. Control tokens do not occur in text.
  std::optional<int32_t> unk;
  std::vector<int32_t> byte_ids;  // <0x00>..<0xFF>; empty: no byte fallback
  bool single_precision = false;  // sums of scores are rounded to f32, as sentencepiece does
  bool fuse_unk = true;           // neighbouring unknown characters are one token

  // Builds the trie; to be called once after the scores are set.
  Result<void> finish(const Vocab& vocab, std::string_view where);
  Result<void> tokenize(const Vocab& vocab, std::string_view word, std::vector<int32_t>& out) const;

 private:
  // A trie in arrays: the children of a node are a range of `labels_`, sorted.
  struct Node {
    uint32_t first = 0;
    uint32_t count = 0;
    int32_t id = -1;
  };
  std::vector<Node> nodes_;
  std::vector<unsigned char> labels_;
  double min_score_ = 0;
};

}  // namespace nibble::text
