#include "text/tokenizer.h"

#include <fmt/format.h>

#include "text/tokenizer_parts.h"

namespace nibble::text {
namespace {

// Cuts the text at added tokens, normalizes what lies between, cuts again; the pieces are in order.
Result<void> cut_and_normalize(const TokenizerParts& parts, std::string_view text,
                               bool parse_special, Pieces& pieces) {
  std::vector<Fragment> outer, inner;
  parts.added.cut(text, false, parse_special, outer);
  for (const Fragment& o : outer) {
    if (o.id >= 0) {
      pieces.list.push_back({{}, false, o.id});
      continue;
    }
    std::string_view between = text.substr(o.begin, o.end - o.begin);
    bool at_start = o.begin == 0;
    if (!parts.normalizer.empty()) {
      NIBBLE_ASSIGN(bool removes_front, parts.normalizer.removes_front(between));
      at_start &= !removes_front;
      NIBBLE_ASSIGN(std::string normal, parts.normalizer.run(between));
      between = pieces.storage.emplace_back(std::move(normal));
    }
    inner.clear();
    parts.added.cut(between, true, parse_special, inner);
    for (const Fragment& i : inner) {
      if (i.id >= 0) {
        pieces.list.push_back({{}, false, i.id});
      } else {
        pieces.list.push_back({between.substr(i.begin, i.end - i.begin), at_start && i.begin == 0});
      }
    }
  }
  return {};
}

struct Words {
  const TokenizerParts& parts;
  const Pieces& pieces;
  std::vector<int32_t>& out;

  template <class Tokenize>
  Result<void> each(const Tokenize& tokenize) const {
    for (const Piece& piece : pieces.list) {
      if (piece.id >= 0) {
        out.push_back(piece.id);
      } else {
        NIBBLE_TRY(tokenize(piece.text));
      }
    }
    return {};
  }
  Result<void> operator()(const Bpe& model) const {
    BpeScratch scratch;
    return each(
        [&](std::string_view word) { return model.tokenize(parts.vocab, word, scratch, out); });
  }
  Result<void> operator()(const ScoreBpe& model) const {
    BpeScratch scratch;
    return each([&](std::string_view word) -> Result<void> {
      model.tokenize(parts.vocab, word, scratch, out);
      return {};
    });
  }
  template <class Other>
  Result<void> operator()(const Other& model) const {
    return each([&](std::string_view word) { return model.tokenize(parts.vocab, word, out); });
  }
};

}  // namespace

std::optional<std::string_view> TokenizerParts::text_of(int32_t id) const {
  if (const AddedToken* token = added.find(id)) return token->text;
  return vocab.text(id);
}

Result<void> finish_added_tokens(TokenizerParts& parts) {
  return parts.added.finish([&](std::string_view content) { return parts.normalizer.run(content); },
                            parts.where);
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  const TokenizerParts& parts = *parts_;
  if (const auto bad = find_invalid_utf8(text)) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("the text to tokenize is not UTF-8 at byte {} (0x{:02x})", *bad,
                            static_cast<unsigned char>(text[*bad])));
  }
  if (text.size() > size_t{1} << 30) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the text to tokenize is {} bytes long; at most "
                            "1 GiB is taken at once",
                            text.size()));
  }
  Pieces pieces;
  NIBBLE_TRY(cut_and_normalize(parts, text, options.parse_special, pieces));
  NIBBLE_TRY(parts.pre_tokenizer.run(pieces));
  std::vector<int32_t> ids;
  if (options.add_special_tokens) ids = parts.prefix;
  auto done = std::visit(Words{parts, pieces, ids}, parts.model);
  if (!done) {
    return fail(done.error().code, fmt::format("{}: {}", parts.where, done.error().message));
  }
  if (options.add_special_tokens) {
    ids.insert(ids.end(), parts.suffix.begin(), parts.suffix.end());
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  Detokenizer stream(*this, skip_special);
  std::string out;
  for (const int32_t id : ids) out += stream.push(id);
  out += stream.finish();
  return out;
}

std::optional<std::string> Tokenizer::token_text(int32_t id) const {
  const auto text = parts_->text_of(id);
  return text ? std::optional(std::string(*text)) : std::nullopt;
}

std::optional<std::string> Tokenizer::token_piece(int32_t id) const {
  const auto text = parts_->text_of(id);
  return text ? std::optional(parts_->decoder.piece(*text)) : std::nullopt;
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token_text) const {
  if (const AddedToken* token = parts_->added.find(token_text)) return token->id;
  return parts_->vocab.find(token_text);
}

bool Tokenizer::is_special(int32_t id) const { return parts_->added.is_special(id); }

int32_t Tokenizer::vocab_size() const {
  int32_t end = parts_->vocab.end_id();
  for (const AddedToken& token : parts_->added.all()) end = std::max(end, token.id + 1);
  return end;
}

const SpecialIds& Tokenizer::special_ids() const { return parts_->special; }
std::span<const int32_t> Tokenizer::prefix_ids() const { return parts_->prefix; }
std::span<const int32_t> Tokenizer::suffix_ids() const { return parts_->suffix; }

struct Detokenizer::State {
  std::shared_ptr<const TokenizerParts> parts;
  bool skip_special;
  DecodeStream stream;
};

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special)
    : state_(std::make_unique<State>(
          State{tokenizer.parts_, skip_special, DecodeStream(tokenizer.parts_->decoder)})) {}
Detokenizer::~Detokenizer() = default;
Detokenizer::Detokenizer(Detokenizer&&) noexcept = default;
Detokenizer& Detokenizer::operator=(Detokenizer&&) noexcept = default;

std::string Detokenizer::push(int32_t id) {
  const auto text = state_->parts->text_of(id);
  if (!text || (state_->skip_special && state_->parts->added.is_special(id))) return {};
  return state_->stream.push(state_->parts->decoder, *text);
}

std::string Detokenizer::finish() {
  std::string rest = state_->stream.finish(state_->parts->decoder);
  state_->stream = DecodeStream(state_->parts->decoder);
  return rest;
}

}  // namespace nibble::text
