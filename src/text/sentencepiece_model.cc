// tokenizer.model: a SentencePiece model, a protobuf message (sentencepiece_model.proto). Read are
//
//   ModelProto      1 pieces (repeated)   2 trainer_spec   3 normalizer_spec
//   SentencePiece   1 piece (string)      2 score (float)  3 type (1 normal 2 unknown 3 control
//                                                            4 user defined 5 unused 6 byte)
//   TrainerSpec     3 model_type (1 unigram 2 bpe 3 word 4 char)   40 unk_id  41 bos_id  42 eos_id
//                   43 pad_id   24 treat_whitespace_as_suffix
//   NormalizerSpec  2 precompiled_charsmap   3 add_dummy_prefix   4 remove_extra_whitespaces
//                   5 escape_whitespaces
//
// The types of pieces are those that GGUF took over, so the lists become a GgufVocab.
#include <fmt/format.h>

#include <cstring>

#include "base/json.h"
#include "text/gguf_vocab.h"
#include "text/tokenizer_json.h"

namespace nibble::text {
namespace {

// One field of a message: its number, and its value as the wire type holds it.
struct Field {
  uint64_t number = 0;
  uint64_t value = 0;      // varint, fixed32, fixed64
  std::string_view bytes;  // length-delimited
};

class WireReader {
 public:
  explicit WireReader(std::string_view message) : rest_(message) {}
  bool done() const { return rest_.empty(); }

  // Nothing where the bytes are no field.
  std::optional<Field> next() {
    const auto key = varint();
    if (!key) return std::nullopt;
    Field field{*key >> 3, 0, {}};
    switch (*key & 7) {
      case 0:
        if (const auto v = varint()) {
          field.value = *v;
          return field;
        }
        return std::nullopt;
      case 1:
        return fixed(field, 8);
      case 5:
        return fixed(field, 4);
      case 2:
        break;
      default:
        return std::nullopt;
    }
    const auto size = varint();
    if (!size || *size > rest_.size()) return std::nullopt;
    field.bytes = rest_.substr(0, *size);
    rest_.remove_prefix(*size);
    return field;
  }

 private:
  std::optional<uint64_t> varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }
  std::optional<Field> fixed(Field field, size_t size) {
    if (rest_.size() < size) return std::nullopt;
    for (size_t i = size; i-- > 0;) {
      field.value = field.value << 8 | static_cast<unsigned char>(rest_[i]);
    }
    rest_.remove_prefix(size);
    return field;
  }

  std::string_view rest_;
};

class ModelReader {
 public:
  explicit ModelReader(std::string_view where) : where_(where) {}

  Result<GgufVocab> run(std::string_view model) {
    ids_ = {0, 1, 2, -1};
    NIBBLE_TRY(each(model, [&](const Field& f) -> Result<void> {
      if (f.number == 1) return piece(f.bytes);
      if (f.number == 2) return each(f.bytes, [&](const Field& g) { return trainer(g); });
      if (f.number == 3) return each(f.bytes, [&](const Field& g) { return normalizer(g); });
      return {};
    }));
    if (out_.tokens.empty()) return wrong("it holds no pieces");
    out_.bos = id(ids_.bos);
    out_.eos = id(ids_.eos);
    out_.unk = id(ids_.unk);
    out_.pad = id(ids_.pad);
    if (out_.model.empty()) out_.model = "t5";  // the format's default is unigram
    return std::move(out_);
  }

 private:
  struct Ids {
    int32_t unk, bos, eos, pad;
  };

  Failure wrong(std::string_view what) const {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: not a SentencePiece model that nibble can "
                                                 "read: {}",
                                                 where_, what));
  }
  std::optional<int32_t> id(int32_t value) const {
    if (value < 0 || static_cast<size_t>(value) >= out_.tokens.size()) return std::nullopt;
    return value;
  }

  template <class Use>
  Result<void> each(std::string_view message, const Use& use) {
    for (WireReader wire(message); !wire.done();) {
      const auto field = wire.next();
      if (!field) return wrong("a protobuf field is cut off or of an unknown kind");
      NIBBLE_TRY(use(*field));
    }
    return {};
  }

  Result<void> piece(std::string_view message) {
    std::string text;
    float score = 0;
    int32_t type = 1;
    NIBBLE_TRY(each(message, [&](const Field& f) -> Result<void> {
      if (f.number == 1) text = f.bytes;
      if (f.number == 2) {
        const auto bits = static_cast<uint32_t>(f.value);
        std::memcpy(&score, &bits, sizeof score);
      }
      if (f.number == 3) type = static_cast<int32_t>(f.value);
      return {};
    }));
    out_.tokens.push_back(std::move(text));
    out_.scores.push_back(score);
    out_.types.push_back(type);
    return {};
  }

  Result<void> trainer(const Field& f) {
    const auto value = static_cast<int32_t>(f.value);
    if (f.number == 40) ids_.unk = value;
    if (f.number == 41) ids_.bos = value;
    if (f.number == 42) ids_.eos = value;
    if (f.number == 43) ids_.pad = value;
    if (f.number == 24 && f.value != 0) return wrong("it puts spaces behind words");
    if (f.number != 3) return {};
    if (value != 1 && value != 2) {
      return wrong(fmt::format("its model_type is {}; read are 1 (unigram) and 2 (bpe)", value));
    }
    out_.model = value == 1 ? "t5" : "llama";
    return {};
  }

  Result<void> normalizer(const Field& f) {
    if (f.number == 2) out_.precompiled_charsmap = f.bytes;
    if (f.number == 3) out_.add_space_prefix = f.value != 0;
    if (f.number == 4) out_.remove_extra_whitespaces = f.value != 0;
    if (f.number == 5 && f.value == 0) return wrong("it does not escape spaces");
    return {};
  }

  std::string where_;
  GgufVocab out_;
  Ids ids_{};
};

}  // namespace

Result<Tokenizer> Tokenizer::from_sentencepiece(std::string_view model, std::string_view where,
                                                const base::Json* tokenizer_config,
                                                const base::Json* special_tokens_map,
                                                const base::Json* added_tokens) {
  NIBBLE_ASSIGN(GgufVocab vocab, ModelReader(where).run(model));
  vocab.remove_extra_whitespaces = vocab.remove_extra_whitespaces.value_or(true);
  if (tokenizer_config != nullptr) {
    for (const auto& [key, flag] :
         {std::pair{"add_bos_token", &vocab.add_bos}, {"add_eos_token", &vocab.add_eos}}) {
      if (tokenizer_config->find_set(key) == nullptr) continue;
      NIBBLE_ASSIGN(*flag, tokenizer_config->get_bool_or(key, false));
    }
  }
  NIBBLE_ASSIGN(TokenizerParts parts, parts_of_vocab(std::move(vocab), where));
  NIBBLE_TRY(apply_config({tokenizer_config, special_tokens_map, added_tokens}, parts));
  NIBBLE_TRY(finish_added_tokens(parts));
  return Tokenizer(std::make_shared<const TokenizerParts>(std::move(parts)));
}

}  // namespace nibble::text
