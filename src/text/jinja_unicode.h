// Text as Python sees it: strings are UTF-8 here, but lengths, slices, case and white space are
// those of Unicode code points (Python's str). Every function expects valid UTF-8.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::text::jinja {

bool is_ascii(std::string_view s);
// The number of code points.
size_t count_code_points(std::string_view s);
// The code point at byte `at`, which is moved past it. Precondition: at < s.size().
char32_t next_code_point(std::string_view s, size_t& at);
void append_code_point(std::string& out, char32_t c);
std::vector<char32_t> code_points(std::string_view s);
// The byte where code point `index` begins; s.size() if there are no more than `index`.
size_t byte_of(std::string_view s, size_t index);
// The byte of the first bad sequence, if `s` is not UTF-8.
std::optional<size_t> first_bad_utf8(std::string_view s);

// str.isspace and friends, of one code point.
bool is_space(char32_t c);
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);  // str.isdecimal
bool is_digit(char32_t c);    // str.isdigit
bool is_numeric(char32_t c);  // str.isnumeric
bool is_printable(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_title(char32_t c);
inline bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || is_title(c); }
bool is_identifier_start(char32_t c);
bool is_identifier_part(char32_t c);

std::string to_upper(std::string_view s);
std::string to_lower(std::string_view s);
std::string to_title(std::string_view s);        // str.title
std::string to_capitalized(std::string_view s);  // str.capitalize
std::string swap_case(std::string_view s);

// str.strip, lstrip, rstrip: of white space, or of the code points in `chars`.
std::string_view strip(std::string_view s, std::optional<std::string_view> chars, bool left,
                       bool right);
// The position of `needle` in `s` at or after byte `from`; npos if absent. Linear time.
size_t find_bytes(std::string_view s, std::string_view needle, size_t from = 0);
size_t rfind_bytes(std::string_view s, std::string_view needle);
// str.splitlines(keepends).
std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends);

// repr(str): quotes and escapes as Python chooses them.
std::string quoted(std::string_view s);
// repr(float): the shortest digits that read back as the same number.
std::string float_repr(double v);
// The five characters &, <, >, ' and " as HTML entities, in markupsafe's spelling.
std::string html_escaped(std::string_view s);

}  // namespace nibble::text::jinja
