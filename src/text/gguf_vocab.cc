// A tokenizer out of the tokenizer.ggml.* keys of a GGUF file. The keys say less than a
// tokenizer.json: the rest follows from the model ("gpt2", "llama", "bert", "t5", "gemma4") and
// the name of the pre-tokenizer.
#include "text/gguf_vocab.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/gguf_pre.h"

namespace nibble::text {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581

// tokenizer.ggml.token_type
enum TokenType : int32_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

class Builder {
 public:
  Builder(GgufVocab vocab, std::string_view where) : in_(std::move(vocab)), where_(where) {
    parts_.where = where;
  }

  Result<TokenizerParts> run() {
    NIBBLE_TRY(check());
    if (in_.model == "gpt2" || in_.model == "gemma4") {
      NIBBLE_TRY(byte_pairs());
    } else if (in_.model == "llama") {
      NIBBLE_TRY(sentencepiece());
    } else if (in_.model == "bert") {
      NIBBLE_TRY(bert());
    } else if (in_.model == "t5") {
      NIBBLE_TRY(unigram());
    } else {
      return wrong(ErrorCode::kUnsupported,
                   "tokenizer.ggml.model is \"{}\"; nibble reads gpt2, llama, bert, t5 and gemma4",
                   in_.model);
    }
    parts_.next_added_id = count();
    return std::move(parts_);
  }

 private:
  template <class... Args>
  Failure wrong(ErrorCode code, const char* form, const Args&... args) const {
    return fail(code,
                fmt::format("{}: {}", where_, fmt::vformat(form, fmt::make_format_args(args...))));
  }
  template <class... Args>
  Failure corrupt(const char* form, const Args&... args) const {
    return wrong(ErrorCode::kCorrupt, form, args...);
  }

  int32_t count() const { return static_cast<int32_t>(in_.tokens.size()); }
  int32_t type(int32_t id) const {
    return in_.types.empty() ? kNormal : in_.types[static_cast<size_t>(id)];
  }

  Result<void> check() {
    const size_t n = in_.tokens.size();
    if (n == 0) return corrupt("tokenizer.ggml.tokens is empty");
    if (n > static_cast<size_t>(Vocab::kMaxId)) return corrupt("{} tokens are too many", n);
    if (!in_.types.empty() && in_.types.size() != n) {
      return corrupt("tokenizer.ggml.token_type has {} entries for {} tokens", in_.types.size(), n);
    }
    if (!in_.scores.empty() && in_.scores.size() != n) {
      return corrupt("tokenizer.ggml.scores has {} entries for {} tokens", in_.scores.size(), n);
    }
    for (const auto& [key, id] : {std::pair{"bos", in_.bos},
                                  {"eos", in_.eos},
                                  {"unknown", in_.unk},
                                  {"padding", in_.pad},
                                  {"eot", in_.eot},
                                  {"seperator", in_.sep},
                                  {"cls", in_.cls}}) {
      if (id && (*id < 0 || *id >= count())) {
        return corrupt("tokenizer.ggml.{}_token_id is {}; ids go from 0 to {}", key, *id,
                       count() - 1);
      }
    }
    for (int32_t id = 0; id < count(); ++id) {
      if (const auto bad = find_invalid_utf8(in_.tokens[static_cast<size_t>(id)])) {
        return corrupt("token {} of tokenizer.ggml.tokens is not UTF-8 at byte {}", id, *bad);
      }
    }
    parts_.special = {in_.bos, in_.eos, in_.unk, in_.pad, in_.eot};
    return {};
  }

  Result<void> read_tokens() {
    size_t bytes = 0;
    for (const std::string& token : in_.tokens) bytes += token.size();
    parts_.vocab.reserve(in_.tokens.size(), bytes);
    for (int32_t id = 0; id < count(); ++id) {
      // A text that stands twice (fillers do) is found by its last id; both ids decode.
      const std::string& text = in_.tokens[static_cast<size_t>(id)];
      if (parts_.vocab.add_or_replace(text, id) != Vocab::Add::kOk) {
        return corrupt("the tokens hold more than 1 GiB of text");
      }
      const int32_t kind = type(id);
      if (text.empty() || (kind != kControl && kind != kUserDefined && kind != kUnknown)) continue;
      parts_.added.add(
          {.content = text, .id = id, .special = kind != kUserDefined, .normalized = false});
    }
    return {};
  }

  Result<void> byte_pairs() {
    const std::string name = in_.model == "gemma4" ? "gemma4" : in_.pre;
    if (name.empty()) {
      return corrupt(
          "tokenizer.ggml.pre is missing: how words are cut is not known (write the key with the "
          "name of the family, such as llama-bpe, or \"default\")");
    }
    const GgufPre* pre = find_gguf_pre(name);
    if (pre == nullptr) {
      return wrong(ErrorCode::kUnsupported,
                   "tokenizer.ggml.pre is \"{}\", a way of cutting words that nibble does not know",
                   name);
    }
    NIBBLE_TRY(read_tokens());
    Bpe bpe;
    bpe.ignore_merges = pre->ignore_merges;
    NIBBLE_TRY(read_merges(bpe));
    if (pre->escape_whitespace) {
      parts_.normalizer.add(NormalizeReplace{std::string(" "), std::string(kSpaceMark)});
    }
    for (const std::string_view pattern : pre->patterns) {
      NIBBLE_ASSIGN(Regex regex,
                    Regex::compile(pattern, fmt::format("tokenizer.ggml.pre \"{}\"", name)));
      parts_.pre_tokenizer.add(SplitByPattern{std::move(regex), SplitBehavior::kIsolated, false});
    }
    if (pre->byte_level) {
      // add_space_prefix is there for SentencePiece alone; llama.cpp does not read it here, though
      // its converter writes it whenever tokenizer_config.json has add_prefix_space.
      parts_.pre_tokenizer.add(PreByteLevel{.add_prefix_space = false});
      parts_.decoder.add(DecodeByteLevel{});
    } else {
      bpe.byte_fallback = true;
      bpe.find_byte_tokens(parts_.vocab);
      add_sentencepiece_decoder(false);
    }
    parts_.model = std::move(bpe);
    return ends(pre->add_bos, false);
  }

  Result<void> read_merges(Bpe& bpe) {
    bpe.merges.reserve(in_.merges.size());
    MergeBuilder builder(parts_.vocab, "", bpe.merges);
    std::optional<MergeBuilder::Bad> bad;
    for (size_t rank = 0; rank < in_.merges.size() && !bad; ++rank) {
      const std::string_view merge = in_.merges[rank];
      const size_t space = merge.find(' ', 1);
      if (space == merge.npos) {
        return corrupt(
            "merge {} of tokenizer.ggml.merges is \"{}\"; expected two parts with a space between",
            rank, merge.substr(0, 40));
      }
      bad = builder.add(merge.substr(0, space), merge.substr(space + 1));
    }
    if (!bad) bad = builder.finish();
    if (!bad) return {};
    return corrupt("merge {} of tokenizer.ggml.merges is \"{} {}\", but \"{}\" is no token",
                   bad->rank, bad->left.substr(0, 40), bad->right.substr(0, 40),
                   bad->missing.substr(0, 80));
  }

  // What a text begins and ends with.
  Result<void> ends(bool add_bos, bool add_eos) {
    if (in_.add_bos.value_or(add_bos)) {
      if (!in_.bos)
        return corrupt(
            "the text is to begin with a token, but tokenizer.ggml.bos_token_id is missing");
      parts_.prefix.push_back(*in_.bos);
    }
    if (in_.add_eos.value_or(add_eos)) {
      if (!in_.eos)
        return corrupt(
            "the text is to end with a token, but tokenizer.ggml.eos_token_id is missing");
      parts_.suffix.push_back(*in_.eos);
    }
    return {};
  }

  void add_sentencepiece_decoder(bool space_in_front) {
    parts_.decoder.add(DecodeReplace{std::string(kSpaceMark), " "});
    parts_.decoder.add(DecodeByteFallback{});
    parts_.decoder.add(DecodeFuse{});
    if (space_in_front) parts_.decoder.add(DecodeStrip{" ", 1, 0});
  }

  Result<void> need_scores() const {
    if (in_.scores.empty()) return corrupt("tokenizer.ggml.scores is missing");
    for (size_t id = 0; id < in_.scores.size(); ++id) {
      if (!std::isfinite(in_.scores[id])) {
        return corrupt("the score of token {} in tokenizer.ggml.scores is not a number", id);
      }
    }
    return {};
  }

  // Says whether a space is put in front of a text.
  Result<bool> add_sentencepiece_normalizer() {
    if (!in_.precompiled_charsmap.empty()) {
      NIBBLE_ASSIGN(CharsMap map, CharsMap::read(in_.precompiled_charsmap, where_));
      parts_.normalizer.add(NormalizePrecompiled{std::move(map), false});
    }
    if (in_.remove_extra_whitespaces.value_or(false)) {
      parts_.normalizer.add(NormalizeExtraSpaces{});
    }
    const bool space = in_.add_space_prefix.value_or(true);
    if (space) parts_.normalizer.add(NormalizePrepend{" "});
    parts_.normalizer.add(NormalizeReplace{std::string(" "), std::string(kSpaceMark)});
    return space;
  }

  Result<void> sentencepiece() {
    NIBBLE_TRY(need_scores());
    NIBBLE_TRY(read_tokens());
    NIBBLE_ASSIGN(const bool space, add_sentencepiece_normalizer());
    ScoreBpe bpe;
    bpe.scores = std::move(in_.scores);
    bpe.byte_ids = byte_token_ids(parts_.vocab);
    bpe.unk = in_.unk;
    parts_.model = std::move(bpe);
    add_sentencepiece_decoder(space);
    return ends(true, false);
  }

  // GGUF writes the beginning of a word as U+2581 and what continues one bare; WordPiece files do
  // it the other way round.
  Result<void> bert() {
    for (int32_t id = 0; id < count(); ++id) {
      std::string& text = in_.tokens[static_cast<size_t>(id)];
      if (type(id) != kNormal) continue;
      if (text.starts_with(kSpaceMark)) {
        text.erase(0, kSpaceMark.size());
      } else if (!(text.starts_with('[') && text.ends_with(']'))) {
        text.insert(0, "##");
      }
    }
    NIBBLE_TRY(read_tokens());
    parts_.normalizer.add(NormalizeBert{});
    parts_.pre_tokenizer.add(SplitByClass{CharClass::kWhitespace, SplitBehavior::kRemoved});
    parts_.pre_tokenizer.add(SplitByClass{CharClass::kPunctuation, SplitBehavior::kIsolated});
    WordPiece model;
    model.unk = in_.unk;
    parts_.model = std::move(model);
    parts_.decoder.add(DecodeWordPiece{});
    const auto cls = in_.cls ? in_.cls : in_.bos;
    const auto sep = in_.sep ? in_.sep : in_.eos;
    if (!cls || !sep) {
      return corrupt(
          "a bert tokenizer needs tokenizer.ggml.bos_token_id (or cls) and "
          "tokenizer.ggml.seperator_token_id (or eos)");
    }
    parts_.prefix.push_back(*cls);
    parts_.suffix.push_back(*sep);
    return {};
  }

  Result<void> unigram() {
    NIBBLE_TRY(need_scores());
    NIBBLE_TRY(read_tokens());
    NIBBLE_ASSIGN(const bool space, add_sentencepiece_normalizer());
    Unigram model;
    model.unk = in_.unk;
    model.single_precision = true;
    for (int32_t id = 0; id < count(); ++id) {
      const int32_t kind = type(id);
      model.scores.push_back(in_.scores[static_cast<size_t>(id)]);
      model.usable.push_back(kind == kNormal || kind == kUserDefined);
      if (kind == kByte && model.byte_ids.empty()) model.byte_ids = byte_token_ids(parts_.vocab);
    }
    NIBBLE_TRY(model.finish(parts_.vocab, where_));
    parts_.model = std::move(model);
    add_sentencepiece_decoder(space);
    return ends(false, true);
  }

  GgufVocab in_;
  std::string where_;
  TokenizerParts parts_;
};

}  // namespace

Result<TokenizerParts> parts_of_vocab(GgufVocab vocab, std::string_view where) {
  return Builder(std::move(vocab), where).run();
}

Result<Tokenizer> Tokenizer::from_gguf(GgufVocab vocab, std::string_view where) {
  NIBBLE_ASSIGN(TokenizerParts parts, parts_of_vocab(std::move(vocab), where));
  NIBBLE_TRY(finish_added_tokens(parts));
  return Tokenizer(std::make_shared<const TokenizerParts>(std::move(parts)));
}

}  // namespace nibble::text
