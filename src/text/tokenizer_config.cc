// tokenizer_config.json and its older companions, on top of a tokenizer.json: what transformers'
// generic tokenizer (TokenizersBackend, 5.24) takes from them. It ignores add_bos_token and
// add_eos_token where there is a tokenizer.json: its post-processor alone decides.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <map>

#include "text/tokenizer_json.h"

namespace nibble::text {
namespace {

using base::Json;

constexpr std::array kNamedTokens = {"bos_token", "eos_token", "unk_token", "sep_token",
                                     "pad_token", "cls_token", "mask_token"};

Result<AddedToken> read_token(const Json& v, const std::string& where) {
  AddedToken token;
  if (v.is_string()) {
    token.content = v.as_string();
    token.special = true;
    token.normalized = false;
    return token;
  }
  if (!v.is_object()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: expected a string or an object, found {}", where, v.describe()));
  }
  NIBBLE_ASSIGN(token.content, v.get_string("content"));
  NIBBLE_ASSIGN(token.special, v.get_bool_or("special", false));
  NIBBLE_ASSIGN(token.single_word, v.get_bool_or("single_word", false));
  NIBBLE_ASSIGN(token.lstrip, v.get_bool_or("lstrip", false));
  NIBBLE_ASSIGN(token.rstrip, v.get_bool_or("rstrip", false));
  NIBBLE_ASSIGN(token.normalized, v.get_bool_or("normalized", !token.special));
  return token;
}

// {"32000": {"content": ...}, ...}, in the order of ids.
Result<std::map<int64_t, AddedToken>> read_decoder_table(const Json& table,
                                                         const std::string& where) {
  std::map<int64_t, AddedToken> out;
  if (!table.is_object()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: expected an object, found {}", where, table.describe()));
  }
  for (const auto& [key, value] : table.as_object()) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: expected token ids as keys, found \"{}\"", where, key));
    }
    NIBBLE_ASSIGN(AddedToken token, read_token(value, fmt::format("{}: {}", where, key)));
    if (!token.content.empty()) out.emplace(id, std::move(token));
  }
  return out;
}

class Overlay {
 public:
  Overlay(const ConfigFiles& files, TokenizerParts& parts) : files_(files), parts_(parts) {}

  Result<void> run() {
    const Json* config = files_.tokenizer_config;
    const Json* table = config == nullptr ? nullptr : config->find_set("added_tokens_decoder");
    if (table != nullptr) {
      NIBBLE_ASSIGN(auto tokens,
                    read_decoder_table(*table, "tokenizer_config.json: added_tokens_decoder"));
      for (auto& [id, token] : tokens) {
        NIBBLE_TRY(add_listed_token(std::move(token), id,
                                    "tokenizer_config.json: added_tokens_decoder", parts_));
      }
    } else {
      NIBBLE_TRY(read_added_tokens_json());
    }
    return named_tokens();
  }

 private:
  // The value of a key: tokenizer_config.json first, special_tokens_map.json where that is old.
  const Json* value(const char* key) const {
    const Json* config = files_.tokenizer_config;
    const bool old = config == nullptr || config->find_set("added_tokens_decoder") == nullptr;
    if (old && files_.special_tokens_map != nullptr) {
      if (const Json* v = files_.special_tokens_map->find_set(key)) return v;
    }
    return config == nullptr ? nullptr : config->find_set(key);
  }

  // {"<extra>": 32000, ...}
  Result<void> read_added_tokens_json() {
    const Json* table = files_.added_tokens;
    if (table == nullptr) return {};
    if (!table->is_object()) {
      return fail(
          ErrorCode::kCorrupt,
          fmt::format("added_tokens.json: expected an object, found {}", table->describe()));
    }
    std::map<int64_t, std::string> by_id;
    for (const auto& [content, id] : table->as_object()) {
      if (!id.is_int()) {
        return fail(ErrorCode::kCorrupt, fmt::format("added_tokens.json: \"{}\": expected an id, "
                                                     "found {}",
                                                     content.substr(0, 40), id.describe()));
      }
      by_id.emplace(id.as_int(), content);
    }
    for (const auto& [id, content] : by_id) {
      if (content.empty() || parts_.added.find(std::string_view(content)) != nullptr) continue;
      AddedToken token;
      token.content = content;
      NIBBLE_TRY(add_listed_token(std::move(token), id, "added_tokens.json", parts_));
    }
    return {};
  }

  // Tokens with a role are special, and known even where tokenizer.json does not list them.
  Result<void> add_special(const Json& v, const std::string& where) {
    NIBBLE_ASSIGN(AddedToken token, read_token(v, where));
    if (token.content.empty() || parts_.added.find(std::string_view(token.content)) != nullptr) {
      return {};
    }
    token.special = true;
    return add_listed_token(std::move(token), std::nullopt, where, parts_);
  }

  Result<void> named_tokens() {
    for (const char* key : kNamedTokens) {
      if (const Json* v = value(key))
        NIBBLE_TRY(add_special(*v, fmt::format("tokenizer_config.json: {}", key)));
    }
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
      const Json* list = value(key);
      if (list == nullptr) continue;
      const std::string where = fmt::format("tokenizer_config.json: {}", key);
      if (list->is_array()) {
        for (const Json& v : list->as_array()) NIBBLE_TRY(add_special(v, where));
      } else if (list->is_object()) {
        for (const auto& [name, v] : list->as_object()) NIBBLE_TRY(add_special(v, where));
      } else {
        return fail(ErrorCode::kCorrupt,
                    fmt::format("{}: expected a list, found {}", where, list->describe()));
      }
    }
    SpecialIds& special = parts_.special;
    for (const auto& [key, id] : {std::pair{"bos_token", &special.bos},
                                  {"eos_token", &special.eos},
                                  {"unk_token", &special.unk},
                                  {"pad_token", &special.pad}}) {
      if (value(key) != nullptr) *id = id_of(key);
    }
    return {};
  }

  std::optional<int32_t> id_of(const char* key) const {
    const Json* v = value(key);
    if (v == nullptr) return std::nullopt;
    const Json* content = v->is_string() ? v : v->find_set("content");
    if (content == nullptr || !content->is_string()) return std::nullopt;
    if (const AddedToken* token = parts_.added.find(std::string_view(content->as_string()))) {
      return token->id;
    }
    return parts_.vocab.find(content->as_string());
  }

  const ConfigFiles& files_;
  TokenizerParts& parts_;
};

}  // namespace

Result<void> apply_config(const ConfigFiles& files, TokenizerParts& parts) {
  return Overlay(files, parts).run();
}

}  // namespace nibble::text
