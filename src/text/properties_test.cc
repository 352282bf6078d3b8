// Laws of tokenizers: any text comes back from its ids.
#include "base/properties_test.h"

#include <fstream>
#include <iterator>
#include <string>

#include "text/tokenizer.h"
#include "text/unicode.h"

namespace nibble::text {
namespace {

Tokenizer golden(const std::string& name) {
  std::ifstream in(std::string(NIBBLE_SOURCE_DIR) + "/tests/golden/tokenizers/" + name,
                   std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(in), {});
  auto made = Tokenizer::from_json(bytes, name, nullptr, nullptr, nullptr);
  RC_ASSERT(static_cast<bool>(made));
  return *made;
}

// Texts of characters from all planes, with the runs of blanks and digits that pre-tokenizers cut.
rc::Gen<std::string> text() {
  const auto character = rc::gen::oneOf(
      rc::gen::inRange<uint32_t>(0x20, 0x7f), rc::gen::element<uint32_t>(' ', '\n', '\t', '0', '9'),
      rc::gen::inRange<uint32_t>(0xa0, 0x800), rc::gen::inRange<uint32_t>(0x4e00, 0x5000),
      rc::gen::inRange<uint32_t>(0x1f300, 0x1f700));
  return rc::gen::map(rc::gen::container<std::vector<uint32_t>>(character), [](const auto& list) {
    std::string out;
    for (const uint32_t c : list) append_utf8(out, static_cast<char32_t>(c));
    return out;
  });
}

RC_GTEST_PROP(tokenizer_law, byte_level_ids_give_the_text_back, ()) {
  static const Tokenizer tokenizers[] = {golden("bpe_gpt2.json"), golden("bpe_llama3.json"),
                                         golden("bpe_deepseek.json")};
  const std::string input = *text();
  for (const Tokenizer& tokenizer : tokenizers) {
    auto ids = tokenizer.encode(input, {.add_special_tokens = false, .parse_special = false});
    RC_ASSERT(static_cast<bool>(ids));
    RC_ASSERT(tokenizer.decode(*ids, false) == input);
    // Piece by piece, nothing is lost or made twice.
    Detokenizer pieces(tokenizer);
    std::string streamed;
    for (const int32_t id : *ids) {
      const std::string piece = pieces.push(id);
      RC_ASSERT(!find_invalid_utf8(piece));
      streamed += piece;
    }
    RC_ASSERT(streamed + pieces.finish() == input);
  }
}

}  // namespace
}  // namespace nibble::text
