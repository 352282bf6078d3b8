// vocab.json and merges.txt: a byte-level BPE as it was saved before there was tokenizer.json.
//
//   vocab.json   {"token": id, ...}
//   merges.txt   #version: 0.2
//                left right           one merge a line, by rank
//
// How words are cut stands in neither: the class that tokenizer_config.json names knows it. Source:
// transformers 5.24, what its class of that name builds from the two files.
#include <fmt/format.h>

#include <algorithm>

#include "text/gguf_pre.h"
#include "text/tokenizer_json.h"
#include "text/vocab_json.h"

namespace nibble::text {
namespace {

using base::Json;

constexpr std::string_view kEndOfText = "<|endoftext|>";

struct TokenizerClass {
  std::string_view name;
  std::string_view pre;  // how words are cut, by the name that GGUF files have for it
  bool after_prefix;     // add_prefix_space is for the text, else for every word
  bool nfc;
  bool begins;  // with the end of text, where the config names no other token
};

constexpr TokenizerClass kClasses[] = {{"GPT2Tokenizer", "gpt-2", true, false, true},
                                       {"CodeGenTokenizer", "gpt-2", true, false, true},
                                       {"Qwen2Tokenizer", "qwen2", false, true, false}};

Result<const TokenizerClass*> class_of(const Json* config) {
  std::string name;
  if (config != nullptr) {
    NIBBLE_ASSIGN(name, config->get_string_or("tokenizer_class", ""));
  }
  constexpr std::string_view kFast = "Fast";
  const std::string_view bare =
      std::string_view(name).substr(0, name.size() - (name.ends_with(kFast) ? kFast.size() : 0));
  for (const TokenizerClass& c : kClasses) {
    if (bare == c.name) return &c;
  }
  std::string known;
  for (const TokenizerClass& c : kClasses) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", c.name);
  }
  return fail(ErrorCode::kUnsupported,
              fmt::format("tokenizer_config.json: tokenizer_class {}, so that it is not known how "
                          "words are cut before vocab.json and merges.txt apply (known are {}); a "
                          "tokenizer.json says it",
                          name.empty() ? "is missing" : fmt::format("is \"{}\"", name), known));
}

Result<void> read_merges(std::string_view lines, std::string_view where, const Vocab& vocab,
                         MergeTable& merges) {
  MergeBuilder builder(vocab, "", merges);
  std::optional<MergeBuilder::Bad> bad;
  for (size_t number = 1; !lines.empty() && !bad; ++number) {
    std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    const size_t space = line.find(' ');
    if (space == line.npos || line.find(' ', space + 1) != line.npos) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: line {}: expected two parts with a space between, found \"{}\"",
                              where, number, line.substr(0, 40)));
    }
    bad = builder.add(line.substr(0, space), line.substr(space + 1));
  }
  if (!bad) bad = builder.finish();
  if (!bad) return {};
  return fail(ErrorCode::kCorrupt,
              fmt::format("{}: merge {} (\"{}\" and \"{}\"): \"{}\" is no token of the vocabulary",
                          where, bad->rank, bad->left.substr(0, 40), bad->right.substr(0, 40),
                          bad->missing.substr(0, 80)));
}

Result<void> read_steps(const TokenizerClass& its, const Json* config, TokenizerParts& parts) {
  PreByteLevel bytes{.add_prefix_space = false};
  if (config != nullptr) {
    NIBBLE_ASSIGN(bytes.add_prefix_space, config->get_bool_or("add_prefix_space", false));
  }
  if (its.nfc) parts.normalizer.add(NormalizeForm{NormalForm::kNfc});
  for (const std::string_view pattern : find_gguf_pre(its.pre)->patterns) {
    NIBBLE_ASSIGN(Regex regex, Regex::compile(pattern, its.name));
    if (its.after_prefix) {
      bytes.regex.push_back(std::move(regex));
    } else {
      parts.pre_tokenizer.add(SplitByPattern{std::move(regex), SplitBehavior::kIsolated, false});
    }
  }
  parts.pre_tokenizer.add(std::move(bytes));
  parts.decoder.add(DecodeByteLevel{});
  return {};
}

// The end of text is every role's token that the config leaves out.
void add_end_of_text(const TokenizerClass& its, TokenizerParts& parts) {
  const auto id = parts.vocab.find(kEndOfText);
  if (!id) return;
  AddedToken token;
  token.content = kEndOfText;
  token.id = *id;
  token.special = true;
  token.normalized = false;
  parts.added.add(std::move(token));
  parts.special.eos = parts.special.unk = *id;
  if (its.begins) parts.special.bos = *id;
}

Result<void> read_ends(const Json* config, TokenizerParts& parts) {
  if (config == nullptr) return {};
  for (const auto& [key, id, list] :
       {std::tuple{"add_bos_token", parts.special.bos, &parts.prefix},
        std::tuple{"add_eos_token", parts.special.eos, &parts.suffix}}) {
    NIBBLE_ASSIGN(const bool asked, config->get_bool_or(key, false));
    if (asked && id) list->push_back(*id);
  }
  return {};
}

}  // namespace

Result<Tokenizer> Tokenizer::from_vocab_and_merges(std::string_view vocab, std::string_view merges,
                                                   const Json* tokenizer_config,
                                                   const Json* special_tokens_map,
                                                   const Json* added_tokens) {
  NIBBLE_ASSIGN(const TokenizerClass* its, class_of(tokenizer_config));
  TokenizerParts parts;
  parts.where = "vocab.json";
  NIBBLE_TRY(base::parse_json(vocab, parts.where));  // one whole document
  NIBBLE_TRY(read_vocab_object({vocab, 0}, parts.where, parts.vocab));
  parts.next_added_id = static_cast<int32_t>(parts.vocab.count());
  Bpe bpe;
  NIBBLE_TRY(read_merges(merges, "merges.txt", parts.vocab, bpe.merges));
  parts.model = std::move(bpe);
  NIBBLE_TRY(read_steps(*its, tokenizer_config, parts));
  add_end_of_text(*its, parts);
  NIBBLE_TRY(apply_config({tokenizer_config, special_tokens_map, added_tokens}, parts));
  NIBBLE_TRY(read_ends(tokenizer_config, parts));
  NIBBLE_TRY(finish_added_tokens(parts));
  return Tokenizer(std::make_shared<const TokenizerParts>(std::move(parts)));
}

}  // namespace nibble::text
