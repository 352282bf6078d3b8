// The byte alphabet of GPT-2: every byte has one printable character, so that a vocabulary of
// strings can hold any bytes. Printable Latin-1 characters stand for themselves; the other 68
// bytes are U+0100, U+0101, ... in order (space is U+0120, "Ġ").
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nibble::text {

char32_t byte_to_char(unsigned char byte);
std::optional<unsigned char> char_to_byte(char32_t c);

// Appends the characters of all bytes of `bytes`: at most two bytes each.
void append_byte_level(std::string& out, std::string_view bytes);

// The bytes that `token` stands for; if one of its characters is outside the alphabet, the token
// stands for itself (as added tokens do).
void append_bytes_of(std::string& out, std::string_view token);

}  // namespace nibble::text
