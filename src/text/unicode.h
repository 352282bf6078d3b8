// UTF-8 and the character classes that tokenizers ask about. The tables are those of utf8proc.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace nibble::text {

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

// The offset of the first byte that is not part of well-formed UTF-8 (no surrogates, no overlong
// forms, nothing above U+10FFFF); nothing if all of it is well formed.
std::optional<size_t> find_invalid_utf8(std::string_view s);

// Well-formed UTF-8 out of any bytes: each maximal ill-formed part becomes one U+FFFD.
std::string lossy_utf8(std::string_view bytes);

// The length of the tail of `bytes` that is the beginning of a character which more bytes may
// complete; 0..3.
size_t incomplete_tail(std::string_view bytes);

// The bytes of a character that begins with `lead`. Precondition: a lead byte of valid UTF-8.
inline size_t utf8_length(unsigned char lead) {
  return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

// The character at `s[i]`; moves `i` behind it. Precondition: s is valid UTF-8, i < s.size().
char32_t next_char(std::string_view s, size_t& i);
void append_utf8(std::string& out, char32_t c);

// Character classes as the Rust standard library and `tokenizers` define them.
bool is_whitespace(char32_t c);       // White_Space
bool is_numeric(char32_t c);          // Nd, Nl, No
bool is_punctuation(char32_t c);      // P*, and all ASCII punctuation (which holds some S*)
bool is_word(char32_t c);             // \w: Alphabetic, M*, Nd, Pc, Join_Control
bool is_other(char32_t c);            // Cc, Cf, Co
bool is_mark(char32_t c);             // M*
bool is_nonspacing_mark(char32_t c);  // Mn
bool is_cjk_ideograph(char32_t c);    // the blocks that BERT puts spaces around
void append_lowercase(std::string& out, char32_t c);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// `s` in a Unicode normal form. Precondition: valid UTF-8. Throws std::bad_alloc only.
std::string normalize(std::string_view s, NormalForm form);

// The length of the first extended grapheme cluster of `s`. Precondition: valid UTF-8, not empty.
size_t first_grapheme(std::string_view s);

}  // namespace nibble::text
