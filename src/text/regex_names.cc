#include "text/regex_names.h"

#include <fmt/format.h>

#include <array>

namespace nibble::text {
namespace {

struct Name {
  std::string_view name;  // lower case, without "_", "-" and spaces
  std::string_view set;   // what to write inside [...]
};

// Long names of general categories (Unicode, PropertyValueAliases.txt).
constexpr std::array kCategories = {
    Name{"letter", "\\p{L}"},
    Name{"casedletter", "\\p{Lu}\\p{Ll}\\p{Lt}"},
    Name{"uppercaseletter", "\\p{Lu}"},
    Name{"lowercaseletter", "\\p{Ll}"},
    Name{"titlecaseletter", "\\p{Lt}"},
    Name{"modifierletter", "\\p{Lm}"},
    Name{"otherletter", "\\p{Lo}"},
    Name{"mark", "\\p{M}"},
    Name{"combiningmark", "\\p{M}"},
    Name{"nonspacingmark", "\\p{Mn}"},
    Name{"spacingmark", "\\p{Mc}"},
    Name{"enclosingmark", "\\p{Me}"},
    Name{"number", "\\p{N}"},
    Name{"decimalnumber", "\\p{Nd}"},
    Name{"letternumber", "\\p{Nl}"},
    Name{"othernumber", "\\p{No}"},
    Name{"punctuation", "\\p{P}"},
    Name{"punct", "\\p{P}"},
    Name{"connectorpunctuation", "\\p{Pc}"},
    Name{"dashpunctuation", "\\p{Pd}"},
    Name{"openpunctuation", "\\p{Ps}"},
    Name{"closepunctuation", "\\p{Pe}"},
    Name{"initialpunctuation", "\\p{Pi}"},
    Name{"finalpunctuation", "\\p{Pf}"},
    Name{"otherpunctuation", "\\p{Po}"},
    Name{"symbol", "\\p{S}"},
    Name{"mathsymbol", "\\p{Sm}"},
    Name{"currencysymbol", "\\p{Sc}"},
    Name{"modifiersymbol", "\\p{Sk}"},
    Name{"othersymbol", "\\p{So}"},
    Name{"separator", "\\p{Z}"},
    Name{"spaceseparator", "\\p{Zs}"},
    Name{"lineseparator", "\\p{Zl}"},
    Name{"paragraphseparator", "\\p{Zp}"},
    Name{"other", "\\p{C}"},
    Name{"control", "\\p{Cc}"},
    Name{"format", "\\p{Cf}"},
    Name{"surrogate", "\\p{Cs}"},
    Name{"privateuse", "\\p{Co}"},
    Name{"unassigned", "\\p{Cn}"},
};

// POSIX brackets, in Unicode (Oniguruma, doc/RE).
constexpr std::array kPosix = {
    Name{"alnum", "\\p{Alphabetic}\\p{Nd}"},
    Name{"alpha", "\\p{Alphabetic}"},
    Name{"ascii", "\\x00-\\x7f"},
    Name{"blank", "\\p{Zs}\\x09"},
    Name{"cntrl", "\\p{Cc}"},
    Name{"digit", "\\p{Nd}"},
    Name{"graph", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}"},
    Name{"lower", "\\p{Lowercase}"},
    Name{"print", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Zs}\\p{Cf}\\p{Co}"},
    Name{"punct", "\\p{P}\\p{S}"},
    Name{"space", kSpaceSet},
    Name{"upper", "\\p{Uppercase}"},
    Name{"word", kWordSet},
    Name{"xdigit", kHexSet},
};

// Binary properties that both engines know by the same name.
constexpr std::array<std::string_view, 21> kBinary = {
    "alphabetic", "cased",         "caseignorable",     "dash",
    "emoji",      "emojimodifier", "emojipresentation", "extendedpictographic",
    "extender",   "graphemebase",  "graphemeextend",    "hexdigit",
    "idcontinue", "idstart",       "ideographic",       "joincontrol",
    "lowercase",  "math",          "uppercase",         "xidcontinue",
    "xidstart"};

template <size_t n>
std::optional<std::string_view> find_name(const std::array<Name, n>& names, std::string_view key) {
  for (const Name& entry : names) {
    if (entry.name == key) return entry.set;
  }
  return std::nullopt;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

}  // namespace

std::optional<std::string_view> bracket_set(std::string_view name) {
  return find_name(kPosix, name);
}

std::optional<std::string> property_set(std::string_view name) {
  std::string key;
  for (const char c : name) {
    if (c == '_' || c == '-' || c == ' ') continue;
    if (!is_letter(c) && !is_digit(c)) return std::nullopt;
    key += is_letter(c) ? static_cast<char>(c | 0x20) : c;
  }
  if (key.empty()) return std::nullopt;
  if (const auto set = find_name(kCategories, key)) return std::string(*set);
  if (const auto set = find_name(kPosix, key)) return std::string(*set);
  if (key == "any") return std::string("\\x{0}-\\x{10ffff}");
  if (key == "assigned") return std::string("\\P{Cn}");
  if (key == "whitespace") return std::string(kSpaceSet);
  if (key == "lc") return std::string("\\p{Lu}\\p{Ll}\\p{Lt}");
  for (const std::string_view binary : kBinary) {
    if (key == binary) return fmt::format("\\p{{{}}}", key);
  }
  if (key.size() > 2) return fmt::format("\\p{{sc:{}}}", key);
  constexpr std::string_view kShort =
      " l lu ll lt lm lo m mn mc me n nd nl no p pc pd ps pe pi pf po s sm sc sk so z zs zl zp "
      "c cc cf cs co cn ";
  if (kShort.find(fmt::format(" {} ", key)) == kShort.npos) return std::nullopt;
  key[0] = static_cast<char>(key[0] - 0x20);
  return fmt::format("\\p{{{}}}", key);
}

}  // namespace nibble::text
