// Tokens -> expressions, by recursive descent: one method for each level of precedence.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_token_reader.h"

namespace nibble::text::jinja {

// Names of tags or keywords that end what is being read.
using Names = std::initializer_list<std::string_view>;
using Node = std::unique_ptr<Expr>;

// Counts a level of recursion while it lives.
class Nested {
 public:
  explicit Nested(int& level) : level_(level) { ++level_; }
  ~Nested() { --level_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;

 private:
  int& level_;
};

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenReader& in) : in_(in) {}

  // An expression, or a tuple if commas follow.
  Node tuple(bool with_conditional = true, Names ends = {}, bool in_parentheses = false);
  Node expression();
  // What a for or a set assigns to; with_namespace allows namespace.name.
  Node target(bool with_namespace, Names ends);
  // One filter, or all that follow, on `value`; null in a filter block.
  Node one_filter(Node value);
  Node filters(Node value);
  // Throws Trouble if a filter or test was used that does not exist.
  void check_all_exist() const;

  // Inside an if: an unknown filter is an error only when it is reached (a template may ask whether
  // the filter exists).
  bool soft = false;
  int fors = 0;                    // that enclose what is parsed
  std::vector<Statement*> macros;  // that enclose what is parsed; names they use are noted

 private:
  Node make(Expr::Kind kind, int line) const;
  void measure(Expr& parent, const ExprPtr& child) const;
  void add(Expr& parent, ExprPtr child) const;
  Node make_with(Expr::Kind kind, int line, Node a) const;
  Node make_with(Expr::Kind kind, int line, Node a, Node b) const;
  void check_levels() const;
  void check_target(const Expr& node) const;
  Node or_expression();
  Node and_expression();
  Node not_expression();
  std::string_view comparison_operator();
  Node comparison();
  Node binary(int line, std::string op, Node left, Node right) const;
  Node sum();
  Node concat();
  Node product();
  Node power();
  Node unary(bool with_filters);
  Node literal(Value value, int line) const;
  Node primary(bool with_namespace);
  Node name(const Token& token, bool with_namespace);
  Node list();
  Node dict();
  Node postfix(Node node);
  Node attribute(Node object, int line);
  Node subscript(Node object, int line);
  Node subscript_key();
  void call_arguments(Expr& node);
  Node call(Node callee);
  Node filters_and_tests(Node node);
  std::string dotted_name();
  Node test(Node value);
  bool tuple_ends(Names ends) const;

  TokenReader& in_;
  int expression_level_ = 0;
  struct Unknown {
    std::string name;
    int line;
    bool is_test;
  };
  std::vector<Unknown> unknown_;  // filters and tests to complain about in the end
  Budget unmetered_{Limits{}};    // literals are bounded by the source
};

}  // namespace nibble::text::jinja
