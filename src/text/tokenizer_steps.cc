// Normalizers, pre-tokenizers, decoders and post-processors of a tokenizer.json.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "text/tokenizer_json.h"

namespace nibble::text {
namespace {

using base::Json;
constexpr int kMaxNesting = 16;  // of Sequence in Sequence

Failure not_read(const std::string& where, std::string_view kind, const std::string& type) {
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: {} of type \"{}\" is not supported", where, kind, type));
}

template <class Pipeline, class Kind>
Result<void> add(Pipeline& out, Kind step) {
  out.add(std::move(step));
  return {};
}

// The steps of `value`: itself, or those of a Sequence in order.
using Step = std::function<Result<void>(const Json&, const std::string& type, const std::string&)>;
Result<void> each_step(const Json& value, const std::string& where, const char* list_key, int depth,
                       const Step& step) {
  if (value.is_null()) return {};
  if (!value.is_object()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: expected an object or null, found {}", where, value.describe()));
  }
  NIBBLE_ASSIGN(std::string type, value.get_string("type"));
  if (type != "Sequence") return step(value, type, where);
  const Json* list = value.find_set(list_key);
  if (list == nullptr || !list->is_array() || depth >= kMaxNesting) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: Sequence: {}: expected a list, at most {} deep", where, list_key,
                            kMaxNesting));
  }
  for (size_t i = 0; i < list->as_array().size(); ++i) {
    Json item = list->as_array()[i];
    const std::string place = fmt::format("{}: {}[{}]", where, list_key, i);
    item.set_where(place);
    NIBBLE_TRY(each_step(item, place, list_key, depth + 1, step));
  }
  return {};
}

// {"String": "x"} or {"Regex": "x"}
Result<std::variant<std::string, Regex>> read_pattern(const Json& value, const std::string& where) {
  using Pattern = std::variant<std::string, Regex>;
  const Json* pattern = value.find_set("pattern");
  if (pattern != nullptr && pattern->is_object()) {
    if (const Json* s = pattern->find("String"); s != nullptr && s->is_string()) {
      return Pattern(s->as_string());
    }
    if (const Json* r = pattern->find("Regex"); r != nullptr && r->is_string()) {
      NIBBLE_ASSIGN(Regex regex, Regex::compile(r->as_string(), where));
      return Pattern(std::move(regex));
    }
  }
  return fail(
      ErrorCode::kCorrupt,
      fmt::format("{}: pattern: expected {{\"String\": ...}} or {{\"Regex\": ...}}", where));
}

Result<SplitBehavior> read_behavior(const Json& value, const std::string& where,
                                    const std::string& fallback) {
  NIBBLE_ASSIGN(std::string name, value.get_string_or("behavior", fallback));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return fail(ErrorCode::kCorrupt, fmt::format("{}: behavior \"{}\" is not known", where, name));
}

// A key that holds exactly one character.
Result<std::string> read_char(const Json& value, const char* key, std::string fallback,
                              const std::string& where) {
  NIBBLE_ASSIGN(std::string c, value.get_string_or(key, std::move(fallback)));
  if (c.empty() || utf8_length(static_cast<unsigned char>(c[0])) != c.size()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: {}: expected one character, found \"{}\"", where, key, c));
  }
  return c;
}

Result<size_t> read_count(const Json& value, const char* key, int64_t fallback,
                          const std::string& where) {
  NIBBLE_ASSIGN(int64_t n, value.get_int_or(key, fallback));
  if (n < 0) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: {}: expected a number of at least 0, found {}", where, key, n));
  }
  return static_cast<size_t>(n);
}

Result<PreMetaspace> read_metaspace(const Json& value, const std::string& where) {
  PreMetaspace out;
  NIBBLE_ASSIGN(out.replacement, read_char(value, "replacement", out.replacement, where));
  NIBBLE_ASSIGN(bool add_prefix, value.get_bool_or("add_prefix_space", true));
  NIBBLE_ASSIGN(std::string scheme,
                value.get_string_or("prepend_scheme", add_prefix ? "always" : "never"));
  if (scheme == "always") {
    out.prepend = PreMetaspace::Prepend::kAlways;
  } else if (scheme == "first") {
    out.prepend = PreMetaspace::Prepend::kFirst;
  } else if (scheme == "never") {
    out.prepend = PreMetaspace::Prepend::kNever;
  } else {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: prepend_scheme \"{}\" is not known", where, scheme));
  }
  if (!add_prefix && out.prepend != PreMetaspace::Prepend::kNever) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format("{}: add_prefix_space is false but prepend_scheme is \"{}\"", where, scheme));
  }
  NIBBLE_ASSIGN(out.split, value.get_bool_or("split", true));
  return out;
}

Result<std::string> read_base64(std::string_view in, const std::string& where) {
  std::string out;
  out.reserve(in.size() / 4 * 3);
  uint32_t bits = 0;
  int count = 0;
  while (in.ends_with('=')) in.remove_suffix(1);
  for (const char c : in) {
    const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (value < 0) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: precompiled_charsmap is not base64", where));
    }
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 0xff);
  }
  return out;
}

Result<void> read_bert_normalizer(const Json& v, Normalizer& out) {
  NormalizeBert step;
  NIBBLE_ASSIGN(step.clean_text, v.get_bool_or("clean_text", true));
  NIBBLE_ASSIGN(step.handle_chinese_chars, v.get_bool_or("handle_chinese_chars", true));
  NIBBLE_ASSIGN(step.lowercase, v.get_bool_or("lowercase", true));
  NIBBLE_ASSIGN(step.strip_accents, v.get_bool_or("strip_accents", step.lowercase));
  return add(out, step);
}

Result<void> normalize_step(const Json& v, const std::string& type, const std::string& where,
                            Normalizer& out) {
  if (type == "NFC") return add(out, NormalizeForm{NormalForm::kNfc});
  if (type == "NFD") return add(out, NormalizeForm{NormalForm::kNfd});
  if (type == "NFKC") return add(out, NormalizeForm{NormalForm::kNfkc});
  if (type == "NFKD") return add(out, NormalizeForm{NormalForm::kNfkd});
  if (type == "Lowercase") return add(out, NormalizeLowercase{});
  if (type == "StripAccents") return add(out, NormalizeStripAccents{});
  if (type == "Nmt") return add(out, NormalizeNmt{});
  if (type == "ByteLevel") return add(out, NormalizeByteLevel{});
  if (type == "BertNormalizer") return read_bert_normalizer(v, out);
  if (type == "Strip") {
    NormalizeStrip step;
    NIBBLE_ASSIGN(step.left, v.get_bool_or("strip_left", true));
    NIBBLE_ASSIGN(step.right, v.get_bool_or("strip_right", true));
    return add(out, step);
  }
  if (type == "Prepend") {
    NIBBLE_ASSIGN(std::string prefix, v.get_string("prepend"));
    return add(out, NormalizePrepend{std::move(prefix)});
  }
  if (type == "Replace") {
    NIBBLE_ASSIGN(auto pattern, read_pattern(v, where));
    NIBBLE_ASSIGN(std::string content, v.get_string("content"));
    return add(out, NormalizeReplace{std::move(pattern), std::move(content)});
  }
  if (type == "Precompiled") {
    NIBBLE_ASSIGN(std::string encoded, v.get_string("precompiled_charsmap"));
    NIBBLE_ASSIGN(std::string bytes, read_base64(encoded, where));
    NIBBLE_ASSIGN(CharsMap map, CharsMap::read(bytes, where));
    return add(out, NormalizePrecompiled{std::move(map), true});
  }
  return not_read(where, "a normalizer", type);
}

Result<void> byte_level_step(const Json& v, const std::string& where, PreTokenizer& out) {
  PreByteLevel step;
  NIBBLE_ASSIGN(step.add_prefix_space, v.get_bool_or("add_prefix_space", true));
  NIBBLE_ASSIGN(bool use_regex, v.get_bool_or("use_regex", true));
  if (use_regex) {
    NIBBLE_ASSIGN(Regex regex, Regex::compile(kGpt2Pattern, where));
    step.regex.push_back(std::move(regex));
  }
  return add(out, std::move(step));
}

Result<void> split_step(const Json& v, const std::string& where, PreTokenizer& out) {
  SplitByPattern step;
  NIBBLE_ASSIGN(step.pattern, read_pattern(v, where));
  NIBBLE_ASSIGN(step.behavior, read_behavior(v, where, ""));
  NIBBLE_ASSIGN(step.invert, v.get_bool_or("invert", false));
  return add(out, std::move(step));
}

Result<void> pre_tokenize_step(const Json& v, const std::string& type, const std::string& where,
                               PreTokenizer& out) {
  if (type == "ByteLevel") return byte_level_step(v, where, out);
  if (type == "Split") return split_step(v, where, out);
  if (type == "Whitespace") return add(out, SplitWordsAndSymbols{});
  if (type == "WhitespaceSplit") {
    return add(out, SplitByClass{CharClass::kWhitespace, SplitBehavior::kRemoved});
  }
  if (type == "Punctuation") {
    NIBBLE_ASSIGN(SplitBehavior behavior, read_behavior(v, where, "Isolated"));
    return add(out, SplitByClass{CharClass::kPunctuation, behavior});
  }
  if (type == "Digits") {
    NIBBLE_ASSIGN(bool one_by_one, v.get_bool_or("individual_digits", false));
    return add(out, SplitByClass{CharClass::kNumeric, one_by_one ? SplitBehavior::kIsolated
                                                                 : SplitBehavior::kContiguous});
  }
  if (type == "CharDelimiterSplit") {
    NIBBLE_ASSIGN(std::string delimiter, read_char(v, "delimiter", "", where));
    return add(out, SplitByPattern{std::move(delimiter), SplitBehavior::kRemoved, false});
  }
  if (type == "Metaspace") {
    NIBBLE_ASSIGN(PreMetaspace step, read_metaspace(v, where));
    return add(out, std::move(step));
  }
  if (type == "FixedLength") {
    NIBBLE_ASSIGN(size_t length, read_count(v, "length", 5, where));
    if (length == 0) {
      return fail(ErrorCode::kCorrupt, fmt::format("{}: length: expected at least 1", where));
    }
    return add(out, SplitEvery{length});
  }
  return not_read(where, "a pre-tokenizer", type);
}

Result<void> decode_step(const Json& v, const std::string& type, const std::string& where,
                         Decoder& out) {
  if (type == "ByteLevel") return add(out, DecodeByteLevel{});
  if (type == "ByteFallback") return add(out, DecodeByteFallback{});
  if (type == "Fuse") return add(out, DecodeFuse{});
  if (type == "Strip") {
    DecodeStrip step;
    NIBBLE_ASSIGN(step.content, read_char(v, "content", " ", where));
    NIBBLE_ASSIGN(step.start, read_count(v, "start", 0, where));
    NIBBLE_ASSIGN(step.stop, read_count(v, "stop", 0, where));
    return add(out, std::move(step));
  }
  if (type == "Replace") {
    NIBBLE_ASSIGN(auto pattern, read_pattern(v, where));
    NIBBLE_ASSIGN(std::string content, v.get_string("content"));
    return add(out, DecodeReplace{std::move(pattern), std::move(content)});
  }
  if (type == "Metaspace") {
    NIBBLE_ASSIGN(PreMetaspace m, read_metaspace(v, where));
    return add(
        out, DecodeMetaspace{std::move(m.replacement), m.prepend != PreMetaspace::Prepend::kNever});
  }
  if (type == "WordPiece") {
    DecodeWordPiece step;
    NIBBLE_ASSIGN(step.prefix, v.get_string_or("prefix", "##"));
    NIBBLE_ASSIGN(step.cleanup, v.get_bool_or("cleanup", true));
    return add(out, std::move(step));
  }
  if (type == "BPEDecoder") {
    NIBBLE_ASSIGN(std::string suffix, v.get_string_or("suffix", "</w>"));
    return add(out, DecodeBpe{std::move(suffix)});
  }
  if (type == "CTC") {
    DecodeCtc step;
    NIBBLE_ASSIGN(step.pad_token, v.get_string_or("pad_token", "<pad>"));
    NIBBLE_ASSIGN(step.word_delimiter_token, v.get_string_or("word_delimiter_token", "|"));
    NIBBLE_ASSIGN(step.cleanup, v.get_bool_or("cleanup", true));
    return add(out, std::move(step));
  }
  return not_read(where, "a decoder", type);
}

Result<int32_t> checked_id(const Json& v, const std::string& where) {
  if (!v.is_int() || v.as_int() < 0 || v.as_int() > Vocab::kMaxId) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: expected a token id between 0 and {}, found {}", where,
                            Vocab::kMaxId, v.describe()));
  }
  return static_cast<int32_t>(v.as_int());
}

// ["[SEP]", 102]
Result<int32_t> named_id(const Json& v, const char* key, const std::string& where) {
  const Json* pair = v.find(key);
  if (pair == nullptr || !pair->is_array() || pair->as_array().size() != 2) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected [\"token\", id]", where, key));
  }
  return checked_id(pair->as_array()[1], fmt::format("{}: {}", where, key));
}

Result<void> read_template(const Json& v, const std::string& where, std::vector<int32_t>& before,
                           std::vector<int32_t>& after) {
  const Json* single = v.find_set("single");
  const Json* table = v.find_set("special_tokens");
  if (single == nullptr || !single->is_array()) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: single: expected a list", where));
  }
  bool text_seen = false;
  for (const Json& part : single->as_array()) {
    if (part.find("Sequence") != nullptr) {
      if (std::exchange(text_seen, true)) {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("{}: single: the text stands more than once", where));
      }
      continue;
    }
    const Json* token = part.find("SpecialToken");
    const Json* name = token == nullptr ? nullptr : token->find("id");
    if (name == nullptr || !name->is_string()) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: single: expected Sequence or SpecialToken, found {}", where,
                              part.describe()));
    }
    const Json* entry = table == nullptr ? nullptr : table->find(name->as_string());
    const Json* ids = entry == nullptr ? nullptr : entry->find("ids");
    if (ids == nullptr || !ids->is_array()) {
      return fail(ErrorCode::kCorrupt, fmt::format("{}: special_tokens: \"{}\" has no list of ids",
                                                   where, name->as_string()));
    }
    for (const Json& id : ids->as_array()) {
      NIBBLE_ASSIGN(int32_t value, checked_id(id, where + ": special_tokens: ids"));
      (text_seen ? after : before).push_back(value);
    }
  }
  if (!text_seen) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: single: the text itself does not stand in the template", where));
  }
  return {};
}

}  // namespace

Result<void> read_normalizer(const Json& value, const std::string& where, Normalizer& out) {
  return each_step(
      value, where, "normalizers", 0,
      [&](const Json& v, const std::string& type, const std::string& place) -> Result<void> {
        return normalize_step(v, type, place, out);
      });
}

Result<void> read_pre_tokenizer(const Json& value, const std::string& where, PreTokenizer& out) {
  return each_step(
      value, where, "pretokenizers", 0,
      [&](const Json& v, const std::string& type, const std::string& place) -> Result<void> {
        if (type == "BertPreTokenizer") {
          out.add(SplitByClass{CharClass::kWhitespace, SplitBehavior::kRemoved});
          out.add(SplitByClass{CharClass::kPunctuation, SplitBehavior::kIsolated});
          return {};
        }
        return pre_tokenize_step(v, type, place, out);
      });
}

Result<void> read_decoder(const Json& value, const std::string& where, Decoder& out) {
  if (value.is_null()) {
    out.add(DecodeSpaced{});
    return {};
  }
  return each_step(
      value, where, "decoders", 0,
      [&](const Json& v, const std::string& type, const std::string& place) -> Result<void> {
        return decode_step(v, type, place, out);
      });
}

Result<void> read_post_processor(const Json& value, const std::string& where, TokenizerParts& out) {
  return each_step(
      value, where, "processors", 0,
      [&](const Json& v, const std::string& type, const std::string& place) -> Result<void> {
        std::vector<int32_t> before, after;
        if (type == "BertProcessing" || type == "RobertaProcessing") {
          NIBBLE_ASSIGN(int32_t cls, named_id(v, "cls", place));
          NIBBLE_ASSIGN(int32_t sep, named_id(v, "sep", place));
          before = {cls};
          after = {sep};
        } else if (type == "TemplateProcessing") {
          NIBBLE_TRY(read_template(v, place, before, after));
        } else if (type != "ByteLevel") {  // which only moves offsets
          return not_read(place, "a post-processor", type);
        }
        // A later one of a Sequence goes around what the ones before have made.
        out.prefix.insert(out.prefix.begin(), before.begin(), before.end());
        out.suffix.insert(out.suffix.end(), after.begin(), after.end());
        return {};
      });
}

}  // namespace nibble::text
