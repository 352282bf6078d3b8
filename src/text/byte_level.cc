#include "text/byte_level.h"

#include <array>

#include "text/unicode.h"

namespace nibble::text {
namespace {

constexpr int kChars = 0x144;  // one above the last character of the alphabet

struct Alphabet {
  std::array<char32_t, 256> chars{};
  std::array<int16_t, kChars> bytes{};
  constexpr Alphabet() {
    for (auto& b : bytes) b = -1;
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      const char32_t c = printable ? static_cast<char32_t>(b) : next++;
      chars[static_cast<size_t>(b)] = c;
      bytes[c] = static_cast<int16_t>(b);
    }
  }
};
constexpr Alphabet kAlphabet;

}  // namespace

char32_t byte_to_char(unsigned char byte) { return kAlphabet.chars[byte]; }

std::optional<unsigned char> char_to_byte(char32_t c) {
  if (c >= kChars || kAlphabet.bytes[c] < 0) return std::nullopt;
  return static_cast<unsigned char>(kAlphabet.bytes[c]);
}

void append_byte_level(std::string& out, std::string_view bytes) {
  for (const char b : bytes) {
    const char32_t c = kAlphabet.chars[static_cast<unsigned char>(b)];
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else {
      out += static_cast<char>(0xc0 | c >> 6);
      out += static_cast<char>(0x80 | (c & 0x3f));
    }
  }
}

void append_bytes_of(std::string& out, std::string_view token) {
  const size_t start = out.size();
  for (size_t i = 0; i < token.size();) {
    const auto byte = char_to_byte(next_char(token, i));
    if (!byte) {
      out.resize(start);
      out.append(token);
      return;
    }
    out += static_cast<char>(*byte);
  }
}

}  // namespace nibble::text
