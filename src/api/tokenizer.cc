// nibble::Tokenizer: tokenizer and chat template, read from wherever a checkpoint keeps them.
#include "api/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "api/options.h"

namespace nibble {
namespace {

using checkpoint::Checkpoint;
using checkpoint::GgufMetadata;

constexpr uint64_t kTemplateLimit = uint64_t{1} << 20;

// An optional scalar of GGUF metadata.
template <class T, class Get>
Result<std::optional<T>> optional_of(const GgufMetadata& meta, std::string_view key, Get get) {
  if (!meta.has(key)) return std::optional<T>();
  NIBBLE_ASSIGN(auto v, (meta.*get)(key));
  return std::optional<T>(static_cast<T>(v));
}

Result<text::GgufVocab> vocab_of(const GgufMetadata& meta) {
  constexpr std::string_view kPrefix = "tokenizer.ggml.";
  const auto key = [&](std::string_view rest) { return fmt::format("{}{}", kPrefix, rest); };
  text::GgufVocab out;
  NIBBLE_ASSIGN(out.model, meta.get_string(key("model")));
  NIBBLE_ASSIGN(out.pre, meta.get_string_or(key("pre"), ""));
  NIBBLE_ASSIGN(const std::vector<std::string_view> tokens, meta.get_strings(key("tokens")));
  out.tokens.assign(tokens.begin(), tokens.end());
  if (meta.has(key("scores"))) {
    NIBBLE_ASSIGN(out.scores, meta.get_floats(key("scores")));
  }
  if (meta.has(key("token_type"))) {
    NIBBLE_ASSIGN(const std::vector<int64_t> types, meta.get_ints(key("token_type")));
    out.types.assign(types.begin(), types.end());
  }
  if (meta.has(key("merges"))) {
    NIBBLE_ASSIGN(const std::vector<std::string_view> merges, meta.get_strings(key("merges")));
    out.merges.assign(merges.begin(), merges.end());
  }
  const auto id = [&](std::string_view name) {
    return optional_of<int32_t>(meta, key(name), &GgufMetadata::get_int);
  };
  NIBBLE_ASSIGN(out.bos, id("bos_token_id"));
  NIBBLE_ASSIGN(out.eos, id("eos_token_id"));
  NIBBLE_ASSIGN(out.unk, id("unknown_token_id"));
  NIBBLE_ASSIGN(out.pad, id("padding_token_id"));
  NIBBLE_ASSIGN(out.eot, id("eot_token_id"));
  NIBBLE_ASSIGN(out.sep, id("seperator_token_id"));  // the format's own spelling
  NIBBLE_ASSIGN(out.cls, id("cls_token_id"));
  const auto flag = [&](std::string_view name) {
    return optional_of<bool>(meta, key(name), &GgufMetadata::get_bool);
  };
  NIBBLE_ASSIGN(out.add_bos, flag("add_bos_token"));
  NIBBLE_ASSIGN(out.add_eos, flag("add_eos_token"));
  NIBBLE_ASSIGN(out.add_space_prefix, flag("add_space_prefix"));
  NIBBLE_ASSIGN(out.remove_extra_whitespaces, flag("remove_extra_whitespaces"));
  if (meta.has(key("precompiled_charsmap"))) {
    NIBBLE_ASSIGN(const std::vector<int64_t> bytes, meta.get_ints(key("precompiled_charsmap")));
    out.precompiled_charsmap.assign(bytes.begin(), bytes.end());
  }
  return out;
}

Result<text::Tokenizer> tokenizer_of(const Checkpoint& ckpt) {
  if (const GgufMetadata* meta = ckpt.gguf(); meta != nullptr) {
    if (!meta->has("tokenizer.ggml.model") && !meta->has("tokenizer.ggml.tokens")) {
      return fail(
          ErrorCode::kNotFound,
          fmt::format("{}: there is no tokenizer in this file; text needs one", ckpt.path()));
    }
    NIBBLE_ASSIGN(text::GgufVocab vocab, vocab_of(*meta));
    return text::Tokenizer::from_gguf(std::move(vocab), meta->where());
  }
  base::Json added;
  const base::Json* added_tokens = nullptr;
  if (ckpt.has_file("added_tokens.json")) {
    NIBBLE_ASSIGN(const std::string text, ckpt.read_small_file("added_tokens.json"));
    NIBBLE_ASSIGN(added, base::parse_json(text, "added_tokens.json"));
    added_tokens = &added;
  }
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (!ckpt.has_file(name)) continue;
    NIBBLE_ASSIGN(const std::string bytes, ckpt.read_small_file(name));
    const auto make = std::string_view(name) == "tokenizer.json"
                          ? &text::Tokenizer::from_json
                          : &text::Tokenizer::from_sentencepiece;
    return make(bytes, name, ckpt.tokenizer_config(), ckpt.special_tokens_map(), added_tokens);
  }
  if (ckpt.has_file("vocab.json") && ckpt.has_file("merges.txt")) {
    NIBBLE_ASSIGN(const std::string vocab, ckpt.read_small_file("vocab.json"));
    NIBBLE_ASSIGN(const std::string merges, ckpt.read_small_file("merges.txt"));
    return text::Tokenizer::from_vocab_and_merges(vocab, merges, ckpt.tokenizer_config(),
                                                  ckpt.special_tokens_map(), added_tokens);
  }
  return fail(ErrorCode::kNotFound,
              fmt::format("{}: there is no tokenizer.json, tokenizer.model, or vocab.json with "
                          "merges.txt; text needs one",
                          ckpt.path()));
}

// The text of a special token: a string, or an object with its content.
std::string token_text(const base::Json* json) {
  if (json == nullptr) return {};
  if (json->is_string()) return json->as_string();
  const base::Json* content = json->find_set("content");
  return content != nullptr && content->is_string() ? content->as_string() : std::string();
}

std::string special_text(const Checkpoint& ckpt, std::string_view key, std::optional<int32_t> id,
                         const text::Tokenizer& tokenizer) {
  for (const base::Json* json : {ckpt.tokenizer_config(), ckpt.special_tokens_map()}) {
    if (json == nullptr) continue;
    if (std::string text = token_text(json->find_set(key)); !text.empty()) return text;
  }
  return id ? tokenizer.token_text(*id).value_or("") : std::string();
}

Result<text::ChatTemplate> template_of(const Checkpoint& ckpt, bool has_tools) {
  text::ChatTemplateSources sources;
  sources.tokenizer_config = ckpt.tokenizer_config();
  base::Json processor;  // outlives the choice
  if (ckpt.has_file("chat_template.jinja")) {
    NIBBLE_ASSIGN(sources.chat_template_jinja,
                  ckpt.read_small_file("chat_template.jinja", kTemplateLimit));
  }
  if (ckpt.has_file("chat_template.json")) {
    NIBBLE_ASSIGN(const std::string text,
                  ckpt.read_small_file("chat_template.json", kTemplateLimit));
    NIBBLE_ASSIGN(processor, base::parse_json(text, "chat_template.json"));
    sources.chat_template_json = &processor;
  }
  if (const GgufMetadata* meta = ckpt.gguf(); meta != nullptr) {
    constexpr std::string_view kKey = "tokenizer.chat_template";
    if (meta->has(kKey)) {
      NIBBLE_ASSIGN(const std::string_view text, meta->get_string(kKey));
      sources.gguf = std::string(text);
    }
    const std::string prefix = fmt::format("{}.", kKey);
    for (const checkpoint::GgufEntry& entry : meta->entries()) {
      if (!entry.key.starts_with(prefix)) continue;
      NIBBLE_ASSIGN(const std::string_view text, meta->get_string(entry.key));
      sources.gguf_named.emplace_back(entry.key.substr(prefix.size()), text);
    }
  }
  NIBBLE_ASSIGN(const text::ChosenTemplate chosen, text::choose_chat_template(sources, has_tools));
  return text::ChatTemplate::parse(chosen.text, chosen.where);
}

// An id, or a list of ids. One that no vocabulary has (-1) never comes up.
Result<void> add_ids(const base::Json* json, std::string_view key, std::vector<int32_t>& ids) {
  const base::Json* v = json == nullptr ? nullptr : json->find_set(key);
  if (v == nullptr) return {};
  const base::JsonArray all = v->is_array() ? v->as_array() : base::JsonArray{*v};
  for (const base::Json& item : all) {
    const double id = item.is_number() ? item.as_double() : NAN;
    if (!(std::fabs(id) <= INT32_MAX) || id != std::trunc(id)) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: {}: expected a token id or a list of them, found {}",
                              json->where(), key, item.describe()));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return {};
}

}  // namespace

namespace api {

Result<std::shared_ptr<const Tokenizer::Impl>> load_tokenizer(const Checkpoint& ckpt) {
  NIBBLE_ASSIGN(text::Tokenizer tokenizer, tokenizer_of(ckpt));
  Tokenizer::Impl impl{.tokenizer = tokenizer};
  const text::SpecialIds& ids = tokenizer.special_ids();
  impl.bos_text = special_text(ckpt, "bos_token", ids.bos, tokenizer);
  impl.eos_text = special_text(ckpt, "eos_token", ids.eos, tokenizer);
  if (auto chat = template_of(ckpt, false); chat) {
    impl.chat.emplace(std::move(*chat));
  } else {
    impl.chat_error = chat.error().message;
    impl.chat_missing = chat.error().code == ErrorCode::kNotFound;
  }
  if (auto chat = template_of(ckpt, true); chat) impl.chat_tools.emplace(std::move(*chat));
  return std::make_shared<const Tokenizer::Impl>(std::move(impl));
}

Result<std::vector<int32_t>> eos_ids(const Checkpoint& ckpt, const base::Json& config,
                                     const Tokenizer::Impl* tokenizer) {
  std::vector<int32_t> ids;
  NIBBLE_TRY(add_ids(ckpt.generation_config(), "eos_token_id", ids));
  NIBBLE_TRY(add_ids(&config, "eos_token_id", ids));
  if (tokenizer != nullptr) {
    const text::SpecialIds& special = tokenizer->tokenizer.special_ids();
    for (const std::optional<int32_t>& id : {special.eos, special.eot}) {
      if (id) ids.push_back(*id);
    }
    if (!tokenizer->eos_text.empty()) {
      if (auto id = tokenizer->tokenizer.token_to_id(tokenizer->eos_text); id) ids.push_back(*id);
    }
    // The tokens that end a turn in the common templates; where the vocabulary has one as a control
    // token, a model that emits it is done, whatever the configs forgot.
    for (const char* end : {"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>",
                            "<|end_of_text|>", "<|eom_id|>"}) {
      const auto id = tokenizer->tokenizer.token_to_id(end);
      if (id && tokenizer->tokenizer.is_special(*id)) ids.push_back(*id);
    }
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace api

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::string& path, const Options& options) {
  NIBBLE_ASSIGN(const Checkpoint ckpt, Checkpoint::open(path, {.mmap = options.mmap}));
  NIBBLE_ASSIGN(std::shared_ptr<const Impl> impl, api::load_tokenizer(ckpt));
  return Tokenizer(std::move(impl));
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, bool add_special) const {
  return impl_->tokenizer.encode(text, {.add_special_tokens = add_special});
}

Result<std::vector<int32_t>> Tokenizer::encode_rendered(std::string_view text) const {
  return impl_->tokenizer.encode(text, {.add_special_tokens = false, .parse_special = true});
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  return impl_->tokenizer.decode(ids, skip_special);
}

std::string Tokenizer::piece(int32_t id) const {
  return impl_->tokenizer.token_text(id).value_or("");
}

int64_t Tokenizer::vocab_size() const { return impl_->tokenizer.vocab_size(); }

Result<std::string> Tokenizer::render_chat(std::string_view messages_json,
                                           std::string_view tools_json,
                                           bool add_generation_prompt) const {
  NIBBLE_ASSIGN(const base::Json messages, base::parse_json(messages_json, "messages"));
  base::Json tools;
  if (!tools_json.empty()) {
    NIBBLE_ASSIGN(tools, base::parse_json(tools_json, "tools"));
  }
  const std::optional<text::ChatTemplate>& chat =
      tools_json.empty() ? impl_->chat : impl_->chat_tools;
  if (!chat) return fail(ErrorCode::kNotFound, impl_->chat_error);
  text::ChatVariables variables;
  if (!impl_->bos_text.empty()) variables.bos_token = impl_->bos_text;
  if (!impl_->eos_text.empty()) variables.eos_token = impl_->eos_text;
  variables.add_generation_prompt = add_generation_prompt;
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  if (localtime_r(&now, &local) != nullptr) variables.now = local;
  auto text = chat->render(messages, tools_json.empty() ? nullptr : &tools, variables);
  // Messages that the template refuses are data: to a program that reads them from a file it is no
  // wrong use.
  if (!text && text.error().code == ErrorCode::kUsage) {
    return fail(ErrorCode::kCorrupt, text.error().message);
  }
  return text;
}

}  // namespace nibble
