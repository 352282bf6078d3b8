// The input is a tokenizer.json, a zero byte, and text; or a vocab.json, and merges. What loads
// must encode any text and decode any ids without harm, a stream must say what the whole says, and
// decoded text must be UTF-8.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace {

using namespace nibble::text;

void use(const nibble::Result<Tokenizer>& tokenizer, const std::string& text) {
  if (!tokenizer) return;
  std::vector<int32_t> ids = {-1, 0, 1, 2, 1 << 30};
  for (const bool special : {false, true}) {
    if (auto encoded = tokenizer->encode(text, {special, special})) {
      ids.insert(ids.end(), encoded->begin(), encoded->end());
    }
  }
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  Detokenizer stream(*tokenizer, false);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string part = stream.push(id);
    if (find_invalid_utf8(part)) __builtin_trap();
    streamed += part;
    (void)tokenizer->token_piece(id);
  }
  streamed += stream.finish();
  if (streamed != tokenizer->decode(ids, false) || find_invalid_utf8(streamed)) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t zero = all.find('\0');
  const std::string_view json = all.substr(0, zero);
  const std::string_view rest = zero == all.npos ? std::string_view() : all.substr(zero + 1);
  const std::string text = lossy_utf8(rest).substr(0, 4096);
  use(Tokenizer::from_json(json, "fuzz.json", nullptr), text);
  static const nibble::base::Json config =
      *nibble::base::parse_json(R"({"tokenizer_class": "GPT2Tokenizer"})", "config");
  use(Tokenizer::from_vocab_and_merges(json, rest, &config), text);
  return 0;
}
