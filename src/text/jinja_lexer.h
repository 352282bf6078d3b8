// Template source -> tokens, with the white space control of the environment that chat templates
// are written for: trim_blocks and lstrip_blocks on, one trailing newline dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::text::jinja {

struct Token {
  enum class Kind {
    kData,           // text between tags
    kBlockBegin,     // {%
    kBlockEnd,       // %}
    kVariableBegin,  // {{
    kVariableEnd,    // }}
    kName,
    kString,  // text holds the value, escapes resolved
    kInteger,
    kFloat,
    kOperator,  // text holds it: "+", "//", "==" ...
    kEnd,       // of the template
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int64_t integer = 0;
  double real = 0;
  int line = 1;

  bool is(Kind k) const { return kind == k; }
  bool is_name(std::string_view name) const { return kind == Kind::kName && text == name; }
  bool is_operator(std::string_view op) const { return kind == Kind::kOperator && text == op; }
  // For messages: 'name', end of template ...
  std::string describe() const;
};

// The tokens of `source`, closed by a kEnd. Throws Trouble.
std::vector<Token> tokenize(std::string_view source);

}  // namespace nibble::text::jinja
