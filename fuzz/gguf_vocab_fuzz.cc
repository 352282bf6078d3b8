// The input is lines: model, pre, four digits of options, how many tokens, then tokens, merges.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble::text;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto line = [&] {
    const size_t end = rest.find('\n');
    const std::string_view out = rest.substr(0, end);
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    return std::string(out);
  };
  GgufVocab vocab;
  vocab.model = line();
  vocab.pre = line();
  const std::string options = line() + "0000";
  const std::string counts = line() + "\x04";
  const auto tokens = static_cast<unsigned char>(counts[0]);
  for (unsigned i = 0; i < tokens; ++i) {
    vocab.tokens.push_back(line());
    vocab.scores.push_back(static_cast<float>(i % 7) - 3.0f);
    vocab.types.push_back(1 + static_cast<int32_t>(i + static_cast<unsigned char>(options[0])) % 6);
  }
  if (options[1] & 1) vocab.types.clear();
  if (options[1] & 2) vocab.scores.clear();
  if (options[1] & 4) vocab.add_space_prefix = (options[1] & 8) != 0;
  vocab.bos = options[2] & 31;
  vocab.eos = options[3] & 31;
  if (options[1] & 16) vocab.unk = 0;
  vocab.remove_extra_whitespaces = (options[1] & 32) != 0;
  const std::string text = lossy_utf8(line());
  if (options[1] & 64) {
    vocab.precompiled_charsmap = rest;
  } else {
    while (!rest.empty()) vocab.merges.push_back(line());
  }
  auto tokenizer = Tokenizer::from_gguf(std::move(vocab), "fuzz.gguf");
  if (!tokenizer) return 0;
  auto ids = tokenizer->encode(text);
  if (!ids) return 0;
  Detokenizer stream(*tokenizer, true);
  std::string streamed;
  for (const int32_t id : *ids) streamed += stream.push(id);
  streamed += stream.finish();
  if (streamed != tokenizer->decode(*ids) || find_invalid_utf8(streamed)) __builtin_trap();
  return 0;
}
