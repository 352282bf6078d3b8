// The methods of Python's str.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_methods.h"
#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace nibble::text::jinja {
namespace {

using In = Interpreter;
using Args = Arguments;

// A result of a method of `self`: marked safe if that is.
Value like(In& in, const Value& self, std::string_view text) {
  return in.string(std::string(text), self.string().markup);
}
Value list_like(In& in, const Value& self, const std::vector<std::string_view>& parts) {
  std::vector<Value> out;
  out.reserve(parts.size());
  for (std::string_view part : parts) out.push_back(like(in, self, part));
  return make_list(in.budget(), std::move(out));
}
bool given(const Args& args, size_t i) { return args.get(i) != nullptr && !args.at(i).is_none(); }

Value strip_sides(In& in, const Value& self, const Args& args, bool left, bool right) {
  std::optional<std::string_view> chars;
  if (given(args, 0)) {
    chars = args.string(0);
    in.budget().walk(self.bytes().size() + chars->size());
  }
  return like(in, self, strip(self.bytes(), chars, left, right));
}
Value strip_both(In& in, const Value& self, const Args& a) {
  return strip_sides(in, self, a, true, true);
}
Value strip_left(In& in, const Value& self, const Args& a) {
  return strip_sides(in, self, a, true, false);
}
Value strip_right(In& in, const Value& self, const Args& a) {
  return strip_sides(in, self, a, false, true);
}

// Splitting at white space: runs of it count as one, and none stands at the ends.
std::vector<std::string_view> split_at_space(std::string_view text, int64_t limit) {
  std::vector<std::string_view> parts;
  text = strip(text, std::nullopt, true, false);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) >= limit) {
      parts.push_back(text);
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      size_t next = end;
      if (is_space(next_code_point(text, next))) break;
      end = next;
    }
    parts.push_back(text.substr(0, end));
    text = strip(text.substr(end), std::nullopt, true, false);
  }
  return parts;
}

std::vector<std::string_view> rsplit_at_space(std::string_view text, int64_t limit) {
  std::vector<std::string_view> parts;
  text = strip(text, std::nullopt, false, true);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) >= limit) {
      parts.push_back(text);
      break;
    }
    size_t begin = text.size();
    while (begin > 0) {
      size_t previous = begin - 1;
      while (previous > 0 && (static_cast<unsigned char>(text[previous]) & 0xC0) == 0x80)
        --previous;
      size_t at = previous;
      if (is_space(next_code_point(text, at))) break;
      begin = previous;
    }
    parts.push_back(text.substr(begin));
    text = strip(text.substr(0, begin), std::nullopt, false, true);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::string separator_of(const Args& args, size_t i) {
  if (args.string(i).empty()) raise("empty separator");
  return args.string(i);
}

Value split(In& in, const Value& self, const Args& args) {
  const int64_t limit = args.integer(1, -1);
  const std::string& text = self.bytes();
  in.budget().walk(text.size());
  if (!given(args, 0)) return list_like(in, self, split_at_space(text, limit));
  const std::string separator = separator_of(args, 0);
  std::vector<std::string_view> parts;
  std::string_view rest = text;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = find_bytes(rest, separator);
    if (at == rest.npos) break;
    parts.push_back(rest.substr(0, at));
    rest.remove_prefix(at + separator.size());
  }
  parts.push_back(rest);
  return list_like(in, self, parts);
}

Value rsplit(In& in, const Value& self, const Args& args) {
  const int64_t limit = args.integer(1, -1);
  const std::string& text = self.bytes();
  in.budget().walk(text.size());
  if (!given(args, 0)) return list_like(in, self, rsplit_at_space(text, limit));
  const std::string separator = separator_of(args, 0);
  // Split forwards what is turned around: searching backwards would not be linear.
  const std::string backwards(text.rbegin(), text.rend());
  const std::string sought(separator.rbegin(), separator.rend());
  std::vector<std::string_view> parts;
  size_t end = text.size();
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = find_bytes(backwards, sought, text.size() - end);
    if (at == std::string::npos) break;
    const size_t begin = text.size() - at;
    parts.push_back(std::string_view(text).substr(begin, end - begin));
    end = begin - separator.size();
  }
  parts.push_back(std::string_view(text).substr(0, end));
  std::reverse(parts.begin(), parts.end());
  return list_like(in, self, parts);
}

Value splitlines(In& in, const Value& self, const Args& args) {
  return list_like(in, self, split_lines(self.bytes(), args.truth(in.budget(), 0, false)));
}

Value three(In& in, const Value& self, std::string_view a, std::string_view b, std::string_view c) {
  return make_tuple(in.budget(), {like(in, self, a), like(in, self, b), like(in, self, c)});
}
Value partition(In& in, const Value& self, const Args& args) {
  const std::string separator = separator_of(args, 0);
  const std::string_view text = self.bytes();
  const size_t at = find_bytes(text, separator);
  if (at == text.npos) return three(in, self, text, "", "");
  return three(in, self, text.substr(0, at), separator, text.substr(at + separator.size()));
}
Value rpartition(In& in, const Value& self, const Args& args) {
  const std::string separator = separator_of(args, 0);
  const std::string_view text = self.bytes();
  const size_t at = rfind_bytes(text, separator);
  if (at == text.npos) return three(in, self, "", "", text);
  return three(in, self, text.substr(0, at), separator, text.substr(at + separator.size()));
}

// The part of self that the optional arguments (start, end) at places i, i + 1 name, and the code
// point it begins at.
struct Window {
  std::string_view text;
  int64_t start = 0;
  bool valid = true;  // false if start lies beyond the end, where not even "" is found
};
Window window_of(In& in, const Value& self, const Args& args, size_t i) {
  const auto size = static_cast<int64_t>(self.string().length);
  const auto placed = [&](size_t k, int64_t fallback) {
    if (!given(args, k)) return fallback;
    const int64_t v = args.integer(k, fallback);
    return v < 0 ? std::max<int64_t>(v + size, 0) : v;
  };
  in.budget().walk(self.bytes().size());
  const int64_t start = placed(i, 0);
  const int64_t end = std::min(placed(i + 1, size), size);
  if (start > size || start > end) return {{}, start, start <= size && start <= end};
  const size_t begin = byte_of(self.bytes(), static_cast<size_t>(start));
  const size_t stop = byte_of(self.bytes(), static_cast<size_t>(end));
  return {std::string_view(self.bytes()).substr(begin, stop - begin), start, true};
}

Value position(In& in, const Value& self, const Args& args, bool from_right, bool must) {
  const Window window = window_of(in, self, args, 1);
  const std::string& needle = args.string(0);
  size_t at = std::string::npos;
  if (window.valid) {
    at = from_right ? rfind_bytes(window.text, needle) : find_bytes(window.text, needle);
  }
  if (at == std::string::npos) {
    if (must) raise("substring not found");
    return Value(-1);
  }
  return Value(window.start + static_cast<int64_t>(count_code_points(window.text.substr(0, at))));
}
Value find(In& in, const Value& self, const Args& a) { return position(in, self, a, false, false); }
Value rfind(In& in, const Value& self, const Args& a) { return position(in, self, a, true, false); }
Value index(In& in, const Value& self, const Args& a) { return position(in, self, a, false, true); }
Value rindex(In& in, const Value& self, const Args& a) { return position(in, self, a, true, true); }

Value count(In& in, const Value& self, const Args& args) {
  const Window window = window_of(in, self, args, 1);
  const std::string& needle = args.string(0);
  if (!window.valid) return Value(0);
  if (needle.empty()) return Value(count_code_points(window.text) + 1);
  int64_t n = 0;
  for (size_t at = find_bytes(window.text, needle); at != std::string::npos;
       at = find_bytes(window.text, needle, at + needle.size())) {
    ++n;
  }
  return Value(n);
}

bool affixed(std::string_view text, const Value& affix, bool at_start) {
  require_defined(affix);
  if (affix.is_tuple()) {
    return std::any_of(affix.items().begin(), affix.items().end(),
                       [&](const Value& one) { return affixed(text, one, at_start); });
  }
  if (!affix.is_string()) {
    raise(fmt::format("{} first arg must be str or a tuple of str, not {}",
                      at_start ? "startswith" : "endswith", type_name(affix)));
  }
  const std::string& part = affix.bytes();
  if (part.size() > text.size()) return false;
  return at_start ? text.substr(0, part.size()) == part
                  : text.substr(text.size() - part.size()) == part;
}
Value startswith(In& in, const Value& self, const Args& args) {
  const Window window = window_of(in, self, args, 1);
  return Value(affixed(window.text, args.at(0), true) && window.valid);
}
Value endswith(In& in, const Value& self, const Args& args) {
  const Window window = window_of(in, self, args, 1);
  return Value(affixed(window.text, args.at(0), false) && window.valid);
}

Value join(In& in, const Value& self, const Args& args) {
  const bool markup = self.string().markup;
  std::string out;
  size_t n = 0;
  Iterator iterator(in.budget(), args.at(0));
  for (Value item; iterator.next(in.budget(), item); ++n) {
    if (!item.is_string()) {
      raise(fmt::format("sequence item {}: expected str instance, {} found", n, type_name(item)));
    }
    if (n > 0) out += self.bytes();
    out += markup && !item.string().markup ? html_escaped(item.bytes()) : item.bytes();
    if (out.size() > in.budget().limits().one_value) in.budget().make(out.size());
    in.budget().walk(item.bytes().size() + self.bytes().size());
  }
  return like(in, self, out);
}

Value replace(In& in, const Value& self, const Args& args) {
  // Of a string marked safe, only what is put in is escaped.
  const std::string& given_new = args.string(1);
  const bool escapes = self.string().markup && !args.at(1).string().markup;
  const std::string to = escapes ? html_escaped(given_new) : given_new;
  return like(in, self,
              replaced(in.budget(), self.bytes(), args.string(0), to, args.integer(2, -1)));
}

Value removeprefix(In& in, const Value& self, const Args& args) {
  const std::string_view text = self.bytes();
  const bool has = affixed(text, in.string(args.string(0)), true);
  return like(in, self, has ? text.substr(args.string(0).size()) : text);
}
Value removesuffix(In& in, const Value& self, const Args& args) {
  const std::string_view text = self.bytes();
  const bool has = affixed(text, in.string(args.string(0)), false);
  return like(in, self, has ? text.substr(0, text.size() - args.string(0).size()) : text);
}

Value upper(In& in, const Value& self, const Args&) {
  return like(in, self, to_upper(self.bytes()));
}
Value lower(In& in, const Value& self, const Args&) {
  return like(in, self, to_lower(self.bytes()));
}
Value title(In& in, const Value& self, const Args&) {
  return like(in, self, to_title(self.bytes()));
}
Value capitalize(In& in, const Value& self, const Args&) {
  return like(in, self, to_capitalized(self.bytes()));
}
Value swapcase(In& in, const Value& self, const Args&) {
  return like(in, self, swap_case(self.bytes()));
}

char32_t fill_of(const Args& args) {
  if (args.get(1) == nullptr) return U' ';
  const std::vector<char32_t> codes = code_points(args.string(1));
  if (codes.size() != 1) raise("the fill character must be exactly one character long");
  return codes[0];
}
Value center(In& in, const Value& self, const Args& args) {
  return like(in, self, centered(in.budget(), self.bytes(), args.integer(0, 0), fill_of(args)));
}
std::string padding(In& in, const Value& self, int64_t width, char32_t fill) {
  const int64_t missing = width - static_cast<int64_t>(self.string().length);
  std::string out;
  if (missing <= 0) return out;
  in.budget().make(static_cast<size_t>(missing) * 4);
  for (int64_t i = 0; i < missing; ++i) append_code_point(out, fill);
  return out;
}
Value ljust(In& in, const Value& self, const Args& args) {
  return like(in, self, self.bytes() + padding(in, self, args.integer(0, 0), fill_of(args)));
}
Value rjust(In& in, const Value& self, const Args& args) {
  return like(in, self, padding(in, self, args.integer(0, 0), fill_of(args)) + self.bytes());
}
Value zfill(In& in, const Value& self, const Args& args) {
  const std::string zeros = padding(in, self, args.integer(0, 0), U'0');
  const std::string& text = self.bytes();
  const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  return like(in, self, text.substr(0, sign) + zeros + text.substr(sign));
}

// All code points are of a kind, and there is at least one.
template <bool (*kIs)(char32_t)>
Value all_are(In& in, const Value& self, const Args&) {
  const std::string& text = self.bytes();
  in.budget().walk(text.size());
  for (size_t at = 0; at < text.size();) {
    if (!kIs(next_code_point(text, at))) return Value(false);
  }
  return Value(!text.empty());
}
bool is_alnum(char32_t c) { return is_alpha(c) || is_numeric(c); }

template <bool (*kIs)(char32_t)>
Value cased_are(In& in, const Value& self, const Args&) {
  bool any = false;
  const std::string& text = self.bytes();
  in.budget().walk(text.size());
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (!is_cased(c)) continue;
    if (!kIs(c)) return Value(false);
    any = true;
  }
  return Value(any);
}

Value isascii(In&, const Value& self, const Args&) { return Value(is_ascii(self.bytes())); }
Value isprintable(In& in, const Value& self, const Args& a) {
  return Value(self.bytes().empty() || truth(in.budget(), all_are<is_printable>(in, self, a)));
}

Value format(In& in, const Value& self, const Args& args) {
  if (self.string().markup) raise_unsupported("the method format of a string marked safe");
  return in.string(brace_format(in, self.bytes(), args));
}

}  // namespace

const FilterRow kStringMethods[] = {
    {"capitalize", capitalize, ""},
    {"center", center, "width! fillchar"},
    {"count", count, "sub! start end"},
    {"endswith", endswith, "suffix! start end"},
    {"find", find, "sub! start end"},
    {"format", format, "*"},
    {"index", index, "sub! start end"},
    {"isalnum", all_are<is_alnum>, ""},
    {"isalpha", all_are<is_alpha>, ""},
    {"isascii", isascii, ""},
    {"isdecimal", all_are<is_decimal>, ""},
    {"isdigit", all_are<is_digit>, ""},
    {"islower", cased_are<is_lower>, ""},
    {"isnumeric", all_are<is_numeric>, ""},
    {"isprintable", isprintable, ""},
    {"isspace", all_are<is_space>, ""},
    {"isupper", cased_are<is_upper>, ""},
    {"join", join, "iterable!"},
    {"ljust", ljust, "width! fillchar"},
    {"lower", lower, ""},
    {"lstrip", strip_left, "chars"},
    {"partition", partition, "sep!"},
    {"removeprefix", removeprefix, "prefix!"},
    {"removesuffix", removesuffix, "suffix!"},
    {"replace", replace, "old! new! count"},
    {"rfind", rfind, "sub! start end"},
    {"rindex", rindex, "sub! start end"},
    {"rjust", rjust, "width! fillchar"},
    {"rpartition", rpartition, "sep!"},
    {"rsplit", rsplit, "sep maxsplit"},
    {"rstrip", strip_right, "chars"},
    {"split", split, "sep maxsplit"},
    {"splitlines", splitlines, "keepends"},
    {"startswith", startswith, "prefix! start end"},
    {"strip", strip_both, "chars"},
    {"swapcase", swapcase, ""},
    {"title", title, ""},
    {"upper", upper, ""},
    {"zfill", zfill, "width!"},
    {},
};

std::string replaced(Budget& budget, std::string_view text, std::string_view from,
                     std::string_view to, int64_t times) {
  std::string out;
  const auto add = [&](std::string_view part) {
    if (out.size() + part.size() > budget.limits().one_value) budget.make(out.size() + part.size());
    out += part;
  };
  budget.walk(text.size());
  size_t at = 0;
  for (int64_t done = 0; times < 0 || done < times; ++done) {
    if (from.empty()) {  // before every code point, and at the end
      add(to);
      if (at == text.size()) return out;
      const size_t begin = at;
      next_code_point(text, at);
      add(text.substr(begin, at - begin));
      continue;
    }
    const size_t found = find_bytes(text, from, at);
    if (found == text.npos) break;
    add(text.substr(at, found - at));
    add(to);
    at = found + from.size();
  }
  add(text.substr(at));
  return out;
}

std::string centered(Budget& budget, std::string_view text, int64_t width, char32_t fill) {
  const int64_t missing = width - static_cast<int64_t>(count_code_points(text));
  if (missing <= 0) return std::string(text);
  budget.make(static_cast<size_t>(missing) * 4 + text.size());
  // An odd one goes to the left if the width is odd, as Python has it.
  const int64_t left = missing / 2 + (missing & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) append_code_point(out, fill);
  out += text;
  for (int64_t i = left; i < missing; ++i) append_code_point(out, fill);
  return out;
}

}  // namespace nibble::text::jinja
