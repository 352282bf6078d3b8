// The tokens of a template, read one after the other, with the parser's complaints.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_lexer.h"
#include "text/jinja_trouble.h"

namespace nibble::text::jinja {

class TokenReader {
 public:
  explicit TokenReader(std::string_view source) : tokens_(tokenize(source)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& next() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool is_op(std::string_view op) const { return current().is_operator(op); }
  bool is_name(std::string_view name) const { return current().is_name(name); }
  bool skip_op(std::string_view op) {
    if (!is_op(op)) return false;
    next();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!is_name(name)) return false;
    next();
    return true;
  }
  const Token& expect(Token::Kind kind, std::string_view what) {
    if (!current().is(kind)) fail_expected(what);
    return next();
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) fail_expected(fmt::format("'{}'", op));
  }
  void expect_name(std::string_view name) {
    if (!skip_name(name)) fail_expected(fmt::format("'{}'", name));
  }
  std::string expect_identifier() { return expect(Token::Kind::kName, "a name").text; }

  [[noreturn]] void fail(std::string message, int line = 0) const {
    throw Trouble{ErrorCode::kCorrupt, std::move(message), line > 0 ? line : current().line};
  }
  [[noreturn]] void fail_unsupported(std::string message, int line) const {
    throw Trouble{ErrorCode::kUnsupported, std::move(message), line};
  }
  [[noreturn]] void fail_expected(std::string_view what) const {
    fail(fmt::format("expected {}, found {}", what, current().describe()));
  }

 private:
  std::vector<Token> tokens_;  // never empty: the last is kEnd
  size_t at_ = 0;
};

}  // namespace nibble::text::jinja
