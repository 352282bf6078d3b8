// Sets of characters by name, as Oniguruma means them and as PCRE2 writes them: what may stand
// between "[" and "]".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nibble::text {

inline constexpr std::string_view kSpaceSet =
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"
    "\\x{3000}";
inline constexpr std::string_view kNotSpaceSet =
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x84\\x86-\\x9f\\xa1-\\x{167f}\\x{1681}-\\x{1fff}"
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"
    "\\x{3001}-\\x{10ffff}";
inline constexpr std::string_view kWordSet = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
// Outside of brackets Oniguruma's \w has six more (seen in its matches, not in its manual).
inline constexpr std::string_view kWordSetOutside =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\xb2\\xb3\\xb9\\xbc-\\xbe";
inline constexpr std::string_view kHexSet = "0-9A-Fa-f";

// \p{name}: a general category, a POSIX class, a binary property or else a script. Nothing for a
// name that cannot be one.
std::optional<std::string> property_set(std::string_view name);

// [:name:]
std::optional<std::string_view> bracket_set(std::string_view name);

}  // namespace nibble::text
