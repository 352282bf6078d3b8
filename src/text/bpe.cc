#include "text/bpe.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/unicode.h"

namespace nibble::text {
namespace {

constexpr size_t kShortWord = 24;       // symbols; below it a scan beats a heap
constexpr size_t kRememberedWord = 64;  // bytes of the longest word worth remembering
constexpr size_t kRememberedMax = size_t{1} << 16;

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// std::push_heap keeps the largest on top: "less" means "merged later".
bool later(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

void push(BpeScratch& scratch, BpeScratch::Candidate candidate) {
  scratch.heap.push_back(candidate);
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), later);
}

BpeScratch::Candidate pop(BpeScratch& scratch) {
  std::pop_heap(scratch.heap.begin(), scratch.heap.end(), later);
  const BpeScratch::Candidate top = scratch.heap.back();
  scratch.heap.pop_back();
  return top;
}

// Puts the symbol right of `left` into it.
void absorb_next(std::vector<BpeScratch::Symbol>& symbols, int32_t left, int32_t id) {
  BpeScratch::Symbol& a = symbols[static_cast<size_t>(left)];
  BpeScratch::Symbol& b = symbols[static_cast<size_t>(a.next)];
  a.id = id;
  a.end = b.end;
  a.next = b.next;
  b.end = b.begin;  // gone
  if (a.next >= 0) symbols[static_cast<size_t>(a.next)].prev = left;
}

// Runs the heap to its end. `pair_of(i)` gives the candidate of symbol i and its next one.
template <class PairOf>
void merge_by_heap(BpeScratch& scratch, const PairOf& pair_of) {
  auto& symbols = scratch.symbols;
  scratch.heap.clear();
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (auto c = pair_of(static_cast<int32_t>(i))) scratch.heap.push_back(*c);
  }
  std::make_heap(scratch.heap.begin(), scratch.heap.end(), later);
  while (!scratch.heap.empty()) {
    const BpeScratch::Candidate top = pop(scratch);
    const BpeScratch::Symbol& a = symbols[static_cast<size_t>(top.left)];
    if (a.end == a.begin || a.next < 0) continue;
    if (symbols[static_cast<size_t>(a.next)].end - a.begin != top.size) continue;
    absorb_next(symbols, top.left, top.id);
    if (auto c = pair_of(top.left)) push(scratch, *c);
    if (a.prev >= 0) {
      if (auto c = pair_of(a.prev)) push(scratch, *c);
    }
  }
}

}  // namespace

void MergeTable::reserve(size_t merges) {
  size_t slots = 16;
  while (slots * 2 < merges * 3) slots *= 2;
  if (slots > slots_.size()) grow(slots);
}

void MergeTable::grow(size_t slots) {
  std::vector<Slot> old = std::move(slots_);
  slots_.assign(slots, Slot{});
  for (const Slot& slot : old) {
    if (slot.key == kFree) continue;
    size_t i = hash_number(slot.key) & (slots - 1);
    while (slots_[i].key != kFree) i = (i + 1) & (slots - 1);
    slots_[i] = slot;
  }
}

bool MergeTable::add(int32_t left, int32_t right, Merge merge) {
  if ((count_ + 1) * 3 > slots_.size() * 2) grow(std::max<size_t>(16, slots_.size() * 2));
  const uint64_t key = pair_key(left, right);
  const size_t mask = slots_.size() - 1;
  size_t i = hash_number(key) & mask;
  for (; slots_[i].key != kFree; i = (i + 1) & mask) {
    if (slots_[i].key == key) return false;
  }
  slots_[i] = {key, merge};
  ++count_;
  return true;
}

const MergeTable::Merge* MergeTable::find(int32_t left, int32_t right) const {
  if (slots_.empty()) return nullptr;
  const uint64_t key = pair_key(left, right);
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash_number(key) & mask;; i = (i + 1) & mask) {
    if (slots_[i].key == key) return &slots_[i].merge;
    if (slots_[i].key == kFree) return nullptr;
  }
}

void MergeTable::prefetch(int32_t left, int32_t right) const {
  if (slots_.empty()) return;
  __builtin_prefetch(&slots_[hash_number(pair_key(left, right)) & (slots_.size() - 1)]);
}

std::optional<int32_t> MergeBuilder::sum_of(const Pair& pair) {
  both_ = pair.left;
  both_ += pair.right.starts_with(prefix_) ? pair.right.substr(prefix_.size()) : pair.right;
  for (const int32_t guess : {last_id_, last_id_ + 1}) {
    if (vocab_.text(guess) == both_) return guess;
  }
  return vocab_.find(both_);
}

std::optional<MergeBuilder::Bad> MergeBuilder::add(std::string_view left, std::string_view right) {
  batch_.push_back({left, right, vocab_.start_find(left), vocab_.start_find(right)});
  if (batch_.size() < kBatch) return std::nullopt;
  return finish();
}

std::optional<MergeBuilder::Bad> MergeBuilder::finish() {
  for (size_t i = 0; i < batch_.size(); ++i) {
    Pair& pair = batch_[i];
    const auto left = vocab_.end_find(pair.left, pair.left_hash);
    const auto right = vocab_.end_find(pair.right, pair.right_hash);
    const auto sum = sum_of(pair);
    if (!left || !right || !sum) {
      const std::string_view missing = !left ? pair.left : !right ? pair.right : both_;
      return Bad{rank_ + i, std::string(pair.left), std::string(pair.right), std::string(missing)};
    }
    pair.left_id = *left;
    pair.right_id = *right;
    pair.id = last_id_ = *sum;
    merges_.prefetch(*left, *right);
  }
  for (const Pair& pair : batch_) {
    merges_.add(pair.left_id, pair.right_id, {static_cast<int32_t>(rank_++), pair.id});
  }
  batch_.clear();
  return std::nullopt;
}

std::span<const int32_t> BpeScratch::lookup(std::string_view word) const {
  if (seen_.empty() || word.size() > kRememberedWord) return {};
  const auto hash = static_cast<uint32_t>(hash_text(word));
  const size_t mask = seen_.size() - 1;
  for (size_t i = hash & mask; seen_[i].count != 0; i = (i + 1) & mask) {
    const Seen& s = seen_[i];
    if (s.hash == hash && std::string_view(words_).substr(s.begin, s.size) == word) {
      return {ids_.data() + s.first, s.count};
    }
  }
  return {};
}

void BpeScratch::remember(std::string_view word, std::span<const int32_t> ids) {
  if (word.size() > kRememberedWord || ids.empty() || used_ >= kRememberedMax) return;
  if ((used_ + 1) * 2 > seen_.size()) {
    std::vector<Seen> old = std::move(seen_);
    seen_.assign(std::max<size_t>(64, old.size() * 4), Seen{});
    for (const Seen& s : old) {
      if (s.count == 0) continue;
      size_t i = s.hash & (seen_.size() - 1);
      while (seen_[i].count != 0) i = (i + 1) & (seen_.size() - 1);
      seen_[i] = s;
    }
  }
  const auto hash = static_cast<uint32_t>(hash_text(word));
  size_t i = hash & (seen_.size() - 1);
  while (seen_[i].count != 0) i = (i + 1) & (seen_.size() - 1);
  seen_[i] = {hash, static_cast<uint32_t>(words_.size()), static_cast<uint32_t>(word.size()),
              static_cast<uint32_t>(ids_.size()), static_cast<uint32_t>(ids.size())};
  words_.append(word);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++used_;
}

std::vector<int32_t> byte_token_ids(const Vocab& vocab) {
  std::vector<int32_t> ids(256);
  for (int b = 0; b < 256; ++b) {
    ids[static_cast<size_t>(b)] = vocab.find(fmt::format("<0x{:02X}>", b)).value_or(-1);
  }
  return ids;
}

void Bpe::find_byte_tokens(const Vocab& vocab) {
  if (byte_fallback) byte_ids = byte_token_ids(vocab);
}

// Fills scratch.symbols with one symbol per character that the vocabulary has; the others become
// byte tokens, the unknown token, or nothing, in that order of preference.
Result<void> Bpe::start(const Vocab& vocab, std::string_view word, BpeScratch& scratch) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  const auto add = [&](int32_t id, size_t begin, size_t end) {
    const auto i = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, i - 1, i + 1, static_cast<int32_t>(begin), static_cast<int32_t>(end)});
  };
  std::string decorated;
  size_t unk_begin = 0, unk_end = 0;  // an unknown stretch not added yet
  for (size_t i = 0; i < word.size();) {
    const size_t begin = i;
    i = std::min(word.size(), i + utf8_length(static_cast<unsigned char>(word[i])));
    std::string_view c = word.substr(begin, i - begin);
    if (!continuing_subword_prefix.empty() || !end_of_word_suffix.empty()) {
      decorated = begin == 0 ? "" : continuing_subword_prefix;
      decorated += c;
      if (i == word.size()) decorated += end_of_word_suffix;
      c = decorated;
    }
    if (const auto id = vocab.find(c)) {
      if (unk_end > unk_begin) add(*unk, unk_begin, unk_end);
      unk_begin = unk_end = 0;
      add(*id, begin, i);
      continue;
    }
    if (byte_ids && std::all_of(c.begin(), c.end(), [&](char b) {
          return (*byte_ids)[static_cast<unsigned char>(b)] >= 0;
        })) {
      // Each byte takes part of the character's range; decoration shares the last part.
      for (size_t k = 0; k < c.size(); ++k) {
        const size_t from = std::min(begin + k, i - 1);
        add((*byte_ids)[static_cast<unsigned char>(c[k])], from, std::min(from + 1, i));
      }
      continue;
    }
    if (!unk) {
      if (unk_token.empty()) continue;  // no unknown token is named: the character is left out
      return fail(ErrorCode::kUnsupported,
                  fmt::format("no token for \"{}\", and the unknown token \"{}\" is not in the "
                              "vocabulary",
                              c, unk_token));
    }
    if (unk_end > unk_begin && !fuse_unk) {
      add(*unk, unk_begin, unk_end);
      unk_begin = begin;
    } else if (unk_end == unk_begin) {
      unk_begin = begin;
    }
    unk_end = i;
  }
  if (unk_end > unk_begin) add(*unk, unk_begin, unk_end);
  if (!symbols.empty()) symbols.back().next = -1;
  return {};
}

void Bpe::merge_short(BpeScratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& pairs = scratch.heap;  // here: the merge of symbol i with the next one, by position
  const auto look = [&](size_t i) {
    const MergeTable::Merge* m =
        i + 1 < symbols.size() ? merges.find(symbols[i].id, symbols[i + 1].id) : nullptr;
    return m ? BpeScratch::Candidate{m->rank, 0, m->id, 0}
             : BpeScratch::Candidate{INT64_MAX, 0, 0, 0};
  };
  pairs.clear();
  for (size_t i = 0; i < symbols.size(); ++i) pairs.push_back(look(i));
  while (symbols.size() > 1) {
    size_t best = 0;
    for (size_t i = 1; i < pairs.size(); ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == INT64_MAX) break;
    symbols[best].id = pairs[best].id;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    pairs.erase(pairs.begin() + static_cast<ptrdiff_t>(best) + 1);
    pairs[best] = look(best);
    if (best > 0) pairs[best - 1] = look(best - 1);
  }
}

void Bpe::merge_long(BpeScratch& scratch) const {
  // Sizes must tell old candidates from new ones, so count symbols rather than bytes.
  auto& symbols = scratch.symbols;
  for (size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].begin = static_cast<int32_t>(i);
    symbols[i].end = static_cast<int32_t>(i) + 1;
  }
  merge_by_heap(scratch, [&](int32_t i) -> std::optional<BpeScratch::Candidate> {
    const BpeScratch::Symbol& a = symbols[static_cast<size_t>(i)];
    if (a.next < 0) return std::nullopt;
    const BpeScratch::Symbol& b = symbols[static_cast<size_t>(a.next)];
    const MergeTable::Merge* m = merges.find(a.id, b.id);
    if (m == nullptr) return std::nullopt;
    return BpeScratch::Candidate{m->rank, i, m->id, b.end - a.begin};
  });
}

Result<void> Bpe::tokenize(const Vocab& vocab, std::string_view word, BpeScratch& scratch,
                           std::vector<int32_t>& out) const {
  if (word.empty()) return {};
  if (ignore_merges) {
    if (const auto id = vocab.find(word)) {
      out.push_back(*id);
      return {};
    }
  }
  if (const auto ids = scratch.lookup(word); !ids.empty()) {
    out.insert(out.end(), ids.begin(), ids.end());
    return {};
  }
  const size_t from = out.size();
  NIBBLE_TRY(start(vocab, word, scratch));
  auto& symbols = scratch.symbols;
  if (symbols.empty()) return {};
  if (symbols.size() <= kShortWord) {
    merge_short(scratch);
    for (const auto& symbol : symbols) out.push_back(symbol.id);
  } else {
    merge_long(scratch);
    for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
      out.push_back(symbols[static_cast<size_t>(i)].id);
    }
  }
  scratch.remember(word, std::span(out).subspan(from));
  return {};
}

void ScoreBpe::tokenize(const Vocab& vocab, std::string_view word, BpeScratch& scratch,
                        std::vector<int32_t>& out) const {
  if (word.empty()) return;
  auto& symbols = scratch.symbols;
  symbols.clear();
  for (size_t i = 0; i < word.size();) {
    const size_t begin = i;
    i = std::min(word.size(), i + utf8_length(static_cast<unsigned char>(word[i])));
    const auto n = static_cast<int32_t>(symbols.size());
    symbols.push_back({vocab.find(word.substr(begin, i - begin)).value_or(-1), n - 1, n + 1,
                       static_cast<int32_t>(begin), static_cast<int32_t>(i)});
  }
  symbols.back().next = -1;
  const size_t longest = vocab.longest();
  merge_by_heap(scratch, [&](int32_t i) -> std::optional<BpeScratch::Candidate> {
    const BpeScratch::Symbol& a = symbols[static_cast<size_t>(i)];
    if (a.next < 0) return std::nullopt;
    const BpeScratch::Symbol& b = symbols[static_cast<size_t>(a.next)];
    const auto begin = static_cast<size_t>(a.begin), size = static_cast<size_t>(b.end) - begin;
    if (size > longest) return std::nullopt;
    const auto id = vocab.find(word.substr(begin, size));
    if (!id) return std::nullopt;
    // Scores order as ranks do once their sign is turned; the bits of a float keep its order.
    const float score = -scores[static_cast<size_t>(*id)];
    int32_t bits;
    static_assert(sizeof bits == sizeof score);
    __builtin_memcpy(&bits, &score, sizeof bits);
    const int64_t rank = bits < 0 ? int64_t{INT32_MIN} - bits : int64_t{bits};
    return BpeScratch::Candidate{rank, i, *id, static_cast<int32_t>(size)};
  });
  bool after_unknown = false;
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    const BpeScratch::Symbol& s = symbols[static_cast<size_t>(i)];
    if (s.id >= 0) {
      out.push_back(s.id);
      after_unknown = false;
      continue;
    }
    for (int32_t k = s.begin; k < s.end; ++k) {
      const int32_t byte = byte_ids[static_cast<unsigned char>(word[static_cast<size_t>(k)])];
      if (byte >= 0) {
        out.push_back(byte);
        after_unknown = false;
        continue;
      }
      // Neighbouring unknown characters are one unknown token.
      if (unk && !after_unknown) out.push_back(*unk);
      after_unknown = true;
      break;
    }
  }
}

}  // namespace nibble::text
