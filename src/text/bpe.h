// Byte pair encoding: a word starts as its characters; the pair with the lowest rank, leftmost
// first, is merged until no pair of the word is in the table (Sennrich et al. 2016). Two tables:
//
//   Bpe       ranks are the order of a merge list (GPT-2, Llama 3, and SentencePiece files as
//             `tokenizers` writes them)
//   ScoreBpe  any two neighbours may merge whose text together is a token; the highest score wins
//             (SentencePiece BPE, as GGUF files of type "llama" and tokenizer.model hold it)
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/result.h"
#include "text/vocab.h"

namespace nibble::text {

// (left id, right id) -> rank and the id of both together.
class MergeTable {
 public:
  struct Merge {
    int32_t rank;
    int32_t id;
  };
  void reserve(size_t merges);
  // The first merge of a pair counts, as its rank is lower; false for a later one.
  bool add(int32_t left, int32_t right, Merge merge);
  const Merge* find(int32_t left, int32_t right) const;
  void prefetch(int32_t left, int32_t right) const;
  size_t count() const { return count_; }

 private:
  struct Slot {
    uint64_t key = kFree;
    Merge merge{};
  };
  static constexpr uint64_t kFree = UINT64_MAX;
  void grow(size_t slots);
  std::vector<Slot> slots_;
  size_t count_ = 0;
};

// Fills a MergeTable from pairs of texts. They are looked up in batches: one by one, a quarter of a
// million merges would wait for memory three times each.
class MergeBuilder {
 public:
  static constexpr size_t kBatch = 32;
  // A merge one of whose parts, or their sum, is no token.
  struct Bad {
    size_t rank;
    std::string left, right, missing;
  };
  // `prefix` is what continuing tokens begin with; the right part loses it in the sum.
  MergeBuilder(const Vocab& vocab, std::string_view prefix, MergeTable& merges)
      : vocab_(vocab), prefix_(prefix), merges_(merges) {}
  // The next merge; its rank is how many came before. The views must stay valid for kBatch calls,
  // and until finish().
  std::optional<Bad> add(std::string_view left, std::string_view right);
  std::optional<Bad> finish();

 private:
  struct Pair {
    std::string_view left, right;
    uint32_t left_hash = 0, right_hash = 0;
    int32_t left_id = 0, right_id = 0, id = 0;
  };
  std::optional<int32_t> sum_of(const Pair& pair);

  const Vocab& vocab_;
  std::string_view prefix_;
  MergeTable& merges_;
  std::vector<Pair> batch_;
  std::string both_;
  size_t rank_ = 0;      // of the first pair of the batch
  int32_t last_id_ = 0;  // ids of sums mostly rise by one
};

// Memory that words of one text share, and the results of words already seen in it.
class BpeScratch {
 public:
  struct Symbol {
    int32_t id;
    int32_t prev;
    int32_t next;
    int32_t begin;  // bytes of the word
    int32_t end;
  };
  struct Candidate {
    int64_t rank;  // lower first
    int32_t left;  // position in symbols, then lower first
    int32_t id;
    int32_t size;  // bytes of both, to see that a candidate is out of date
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;

  // The ids of a word seen before; empty for a new one. Valid until the next remember().
  std::span<const int32_t> lookup(std::string_view word) const;
  void remember(std::string_view word, std::span<const int32_t> ids);

 private:
  struct Seen {
    uint32_t hash = 0;
    uint32_t begin = 0;  // the word in words_
    uint32_t size = 0;
    uint32_t first = 0;  // its ids in ids_
    uint32_t count = 0;  // 0: the slot is free
  };
  std::vector<Seen> seen_;
  std::string words_;
  std::vector<int32_t> ids_;
  size_t used_ = 0;
};

struct Bpe {
  MergeTable merges;
  std::optional<int32_t> unk;
  std::string unk_token;  // for messages: a token that is named but not in the vocabulary
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;  // a word that is a token is that token, whatever merges say
  std::optional<std::vector<int32_t>> byte_ids;  // <0x00> ... <0xFF>, -1 where there is none

  // Reads the ids of <0x00>..<0xFF>; to be called once after byte_fallback is set.
  void find_byte_tokens(const Vocab& vocab);
  Result<void> tokenize(const Vocab& vocab, std::string_view word, BpeScratch& scratch,
                        std::vector<int32_t>& out) const;

 private:
  Result<void> start(const Vocab& vocab, std::string_view word, BpeScratch& scratch) const;
  void merge_short(BpeScratch& scratch) const;
  void merge_long(BpeScratch& scratch) const;
};

struct ScoreBpe {
  std::vector<float> scores;  // by id
  std::vector<int32_t> byte_ids;
  std::optional<int32_t> unk;

  void tokenize(const Vocab& vocab, std::string_view word, BpeScratch& scratch,
                std::vector<int32_t>& out) const;
};

// The ids of <0x00>..<0xFF> in `vocab`, -1 where a byte has no token.
std::vector<int32_t> byte_token_ids(const Vocab& vocab);

}  // namespace nibble::text
