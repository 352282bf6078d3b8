// tokenizer.json of Hugging Face `tokenizers`, and the files of a checkpoint that change it.
#include "text/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "text/vocab_json.h"

namespace nibble::text {
namespace {

using base::Json;

Failure corrupt(const std::string& where, std::string what) {
  return fail(ErrorCode::kCorrupt, fmt::format("{}: {}", where, what));
}

// Old files do not write the type of their model.
Result<std::string> model_type(const Json& model, const TokenizerJsonParts& files) {
  NIBBLE_ASSIGN(std::string type, model.get_string_or("type", ""));
  if (!type.empty()) return type;
  if (!files.merges.text.empty()) return std::string("BPE");
  if (files.vocab.text.starts_with('[')) return std::string("Unigram");
  const bool pieces = model.find("max_input_chars_per_word") != nullptr ||
                      model.find("continuing_subword_prefix") != nullptr;
  return std::string(pieces ? "WordPiece" : "WordLevel");
}

Result<Model> read_bpe(const Json& model, const TokenizerJsonParts& files, const std::string& where,
                       const Vocab& vocab) {
  Bpe bpe;
  NIBBLE_ASSIGN(bpe.fuse_unk, model.get_bool_or("fuse_unk", false));
  NIBBLE_ASSIGN(bpe.byte_fallback, model.get_bool_or("byte_fallback", false));
  NIBBLE_ASSIGN(bpe.ignore_merges, model.get_bool_or("ignore_merges", false));
  NIBBLE_ASSIGN(bpe.continuing_subword_prefix,
                model.get_string_or("continuing_subword_prefix", ""));
  NIBBLE_ASSIGN(bpe.end_of_word_suffix, model.get_string_or("end_of_word_suffix", ""));
  NIBBLE_ASSIGN(bpe.unk_token, model.get_string_or("unk_token", ""));
  bpe.unk = bpe.unk_token.empty() ? std::nullopt : vocab.find(bpe.unk_token);
  if (!files.merges.text.empty() && files.merges.text != "null") {
    NIBBLE_TRY(read_merges(files.merges, where, vocab, bpe.continuing_subword_prefix, bpe.merges));
  }
  bpe.find_byte_tokens(vocab);
  return Model(std::move(bpe));
}

Result<Model> read_unigram(const Json& model, std::vector<double> scores, const std::string& where,
                           const Vocab& vocab) {
  Unigram unigram;
  unigram.scores = std::move(scores);
  NIBBLE_ASSIGN(bool byte_fallback, model.get_bool_or("byte_fallback", false));
  if (byte_fallback) unigram.byte_ids = byte_token_ids(vocab);
  if (model.find_set("unk_id") != nullptr) {
    NIBBLE_ASSIGN(int64_t unk, model.get_int("unk_id"));
    if (unk < 0 || unk >= vocab.end_id()) {
      return corrupt(where, fmt::format("model.unk_id is {}; the vocabulary has {} tokens", unk,
                                        vocab.end_id()));
    }
    unigram.unk = static_cast<int32_t>(unk);
  }
  NIBBLE_TRY(unigram.finish(vocab, where));
  return Model(std::move(unigram));
}

Result<void> read_model(const Json& root, const TokenizerJsonParts& files, const std::string& where,
                        TokenizerParts& parts) {
  const Json* model = root.find_set("model");
  if (model == nullptr || !model->is_object()) return corrupt(where, "key \"model\" is missing");
  if (files.vocab.text.empty()) return corrupt(where, "model.vocab is missing");
  NIBBLE_ASSIGN(std::string type, model_type(*model, files));
  if (type == "Unigram") {
    std::vector<double> scores;
    NIBBLE_TRY(read_vocab_list(files.vocab, where, parts.vocab, scores));
    NIBBLE_ASSIGN(parts.model, read_unigram(*model, std::move(scores), where, parts.vocab));
    return {};
  }
  if (type != "BPE" && type != "WordPiece" && type != "WordLevel") {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: a model of type \"{}\" is not supported", where, type));
  }
  NIBBLE_TRY(read_vocab_object(files.vocab, where, parts.vocab));
  if (type == "BPE") {
    NIBBLE_ASSIGN(parts.model, read_bpe(*model, files, where, parts.vocab));
    return {};
  }
  NIBBLE_ASSIGN(std::string unk_token,
                model->get_string_or("unk_token", type == "WordPiece" ? "[UNK]" : "<unk>"));
  const auto unk = parts.vocab.find(unk_token);
  if (type == "WordLevel") {
    parts.model = WordLevel{unk};
    return {};
  }
  WordPiece pieces;
  pieces.unk = unk;
  NIBBLE_ASSIGN(pieces.continuing_subword_prefix,
                model->get_string_or("continuing_subword_prefix", "##"));
  NIBBLE_ASSIGN(int64_t max_chars, model->get_int_or("max_input_chars_per_word", 100));
  pieces.max_input_chars_per_word = static_cast<size_t>(std::max<int64_t>(max_chars, 0));
  parts.model = std::move(pieces);
  return {};
}

Result<AddedToken> read_added_token(const Json& v, bool normalized_default) {
  AddedToken token;
  NIBBLE_ASSIGN(token.content, v.get_string("content"));
  NIBBLE_ASSIGN(token.special, v.get_bool_or("special", false));
  NIBBLE_ASSIGN(token.single_word, v.get_bool_or("single_word", false));
  NIBBLE_ASSIGN(token.lstrip, v.get_bool_or("lstrip", false));
  NIBBLE_ASSIGN(token.rstrip, v.get_bool_or("rstrip", false));
  NIBBLE_ASSIGN(token.normalized, v.get_bool_or("normalized", normalized_default));
  return token;
}

Result<void> read_added_tokens(const Json& root, const std::string& where, TokenizerParts& parts) {
  const Json* list = root.find_set("added_tokens");
  if (list == nullptr) return {};
  if (!list->is_array()) return corrupt(where, "added_tokens: expected a list");
  for (size_t i = 0; i < list->as_array().size(); ++i) {
    Json item = list->as_array()[i];
    const std::string place = fmt::format("{}: added_tokens[{}]", where, i);
    item.set_where(place);
    if (!item.is_object()) return corrupt(place, "expected an object");
    NIBBLE_ASSIGN(AddedToken token, read_added_token(item, true));
    NIBBLE_ASSIGN(int64_t id, item.get_int("id"));
    if (token.content.empty()) continue;
    NIBBLE_TRY(add_listed_token(std::move(token), id, place, parts));
  }
  return {};
}

}  // namespace

Result<void> add_listed_token(AddedToken token, std::optional<int64_t> written_id,
                              const std::string& where, TokenizerParts& parts) {
  int32_t id = parts.next_added_id;
  const AddedToken* old = parts.added.find(std::string_view(token.content));
  const auto in_vocab = parts.vocab.find(token.content);
  if (old != nullptr) {
    id = old->id;
  } else if (in_vocab) {
    id = *in_vocab;
  } else if (id > Vocab::kMaxId) {
    return corrupt(where, "too many added tokens");
  }
  if (written_id && *written_id != id) {
    return corrupt(where, fmt::format("\"{}\" has the id {}, but {} {}; which one the model was "
                                      "trained with cannot be known",
                                      token.content.substr(0, 40), *written_id,
                                      old != nullptr || in_vocab ? "it also stands with id"
                                                                 : "the next free id is",
                                      id));
  }
  token.id = id;
  if (old == nullptr && !in_vocab) ++parts.next_added_id;
  parts.added.add(std::move(token));
  return {};
}

Result<Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json, std::string_view where,
                                       const Json* tokenizer_config, const Json* special_tokens_map,
                                       const Json* added_tokens) {
  const std::string place(where);
  const TokenizerJsonParts files = split_tokenizer_json(tokenizer_json);
  NIBBLE_ASSIGN(Json root, base::parse_json(files.rest, where));
  if (!root.is_object()) return corrupt(place, "expected an object, found " + root.describe());
  const auto at = [&](const char* key) {
    const Json* v = root.find_set(key);
    return v == nullptr ? Json() : *v;
  };
  TokenizerParts parts;
  parts.where = place;
  NIBBLE_TRY(read_model(root, files, place, parts));
  parts.next_added_id = static_cast<int32_t>(parts.vocab.count());
  NIBBLE_TRY(read_normalizer(at("normalizer"), place + ": normalizer", parts.normalizer));
  NIBBLE_TRY(
      read_pre_tokenizer(at("pre_tokenizer"), place + ": pre_tokenizer", parts.pre_tokenizer));
  NIBBLE_TRY(read_decoder(at("decoder"), place + ": decoder", parts.decoder));
  NIBBLE_TRY(read_post_processor(at("post_processor"), place + ": post_processor", parts));
  NIBBLE_TRY(read_added_tokens(root, place, parts));
  NIBBLE_TRY(apply_config({tokenizer_config, special_tokens_map, added_tokens}, parts));
  NIBBLE_TRY(finish_added_tokens(parts));
  return Tokenizer(std::make_shared<const TokenizerParts>(std::move(parts)));
}

}  // namespace nibble::text
