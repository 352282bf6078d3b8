#include "text/jinja_expression_parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_filters.h"

namespace nibble::text::jinja {
namespace {

// Bounds on recursion, here and in whoever walks the tree. Python's own limits stop jinja2 earlier.
constexpr int kMaxExpressionLevels = 300;  // about three for each pair of parentheses
constexpr int kMaxHeight = 300;            // of a tree: a + b + c ... leans to the left

bool contains(Names names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

void ExpressionParser::check_all_exist() const {
  if (unknown_.empty()) return;
  const Unknown& first = unknown_.front();
  first.is_test ? check_test_exists(first.name, first.line)
                : check_filter_exists(first.name, first.line);
}

Node ExpressionParser::make(Expr::Kind kind, int line) const {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = line;
  return node;
}

void ExpressionParser::measure(Expr& parent, const ExprPtr& child) const {
  if (child == nullptr) return;
  parent.height = std::max(parent.height, child->height + 1);
  if (parent.height > kMaxHeight) {
    in_.fail_unsupported(fmt::format("an expression nested more than {} deep", kMaxHeight),
                         parent.line);
  }
}

void ExpressionParser::add(Expr& parent, ExprPtr child) const {
  measure(parent, child);
  parent.children.push_back(std::move(child));
}

Node ExpressionParser::make_with(Expr::Kind kind, int line, Node a) const {
  Node node = make(kind, line);
  add(*node, std::move(a));
  return node;
}

Node ExpressionParser::make_with(Expr::Kind kind, int line, Node a, Node b) const {
  Node node = make_with(kind, line, std::move(a));
  add(*node, std::move(b));
  return node;
}

void ExpressionParser::check_levels() const {
  if (expression_level_ > kMaxExpressionLevels) {
    in_.fail_unsupported("an expression nested too deeply", in_.current().line);
  }
}

Node ExpressionParser::target(bool with_namespace, Names ends) {
  const int line = in_.current().line;
  Node first = primary(with_namespace);
  if (in_.is_op(",")) {
    Node list = make_with(Expr::Kind::kTuple, line, std::move(first));
    while (in_.skip_op(",") && !tuple_ends(ends)) {
      add(*list, primary(with_namespace));
    }
    first = std::move(list);
  }
  check_target(*first);
  return first;
}

void ExpressionParser::check_target(const Expr& node) const {
  if (node.kind == Expr::Kind::kTuple) {
    for (const ExprPtr& child : node.children) check_target(*child);
  } else if (node.kind == Expr::Kind::kName) {
    if (node.name == "loop" && fors > 0) {
      in_.fail("the name 'loop' cannot be assigned to inside a for loop", node.line);
    }
  } else if (node.kind != Expr::Kind::kNamespaceRef) {
    in_.fail("this cannot be assigned to (a name, a tuple of names or namespace.name can)",
             node.line);
  }
}

bool ExpressionParser::tuple_ends(Names ends) const {
  return in_.current().is(Token::Kind::kVariableEnd) || in_.current().is(Token::Kind::kBlockEnd) ||
         in_.is_op(")") ||
         (in_.current().is(Token::Kind::kName) && contains(ends, in_.current().text));
}

// An expression, or a tuple if commas follow.
Node ExpressionParser::tuple(bool with_conditional, Names ends, bool in_parentheses) {
  const int line = in_.current().line;
  if (tuple_ends(ends)) {
    if (!in_parentheses) in_.fail_expected("an expression");
    return make(Expr::Kind::kTuple, line);
  }
  Node first = with_conditional ? expression() : or_expression();
  if (!in_.is_op(",")) return first;
  Node list = make_with(Expr::Kind::kTuple, line, std::move(first));
  while (in_.skip_op(",") && !tuple_ends(ends)) {
    add(*list, with_conditional ? expression() : or_expression());
  }
  return list;
}

Node ExpressionParser::expression() {
  const Nested nested(expression_level_);
  check_levels();
  const int line = in_.current().line;
  const size_t unknown_before = unknown_.size();
  Node node = or_expression();
  while (in_.skip_name("if")) {
    unknown_.resize(unknown_before);  // what stands before the if is inside it
    const bool was_soft = std::exchange(soft, true);
    Node test = or_expression();
    node = make_with(Expr::Kind::kConditional, line, std::move(test), std::move(node));
    add(*node, in_.skip_name("else") ? expression() : nullptr);
    soft = was_soft;
  }
  return node;
}

Node ExpressionParser::or_expression() {
  const int line = in_.current().line;
  Node left = and_expression();
  while (in_.skip_name("or")) {
    left = make_with(Expr::Kind::kOr, line, std::move(left), and_expression());
  }
  return left;
}

Node ExpressionParser::and_expression() {
  const int line = in_.current().line;
  Node left = not_expression();
  while (in_.skip_name("and")) {
    left = make_with(Expr::Kind::kAnd, line, std::move(left), not_expression());
  }
  return left;
}

Node ExpressionParser::not_expression() {
  const Nested nested(expression_level_);
  check_levels();
  const int line = in_.current().line;
  if (in_.skip_name("not")) return make_with(Expr::Kind::kNot, line, not_expression());
  return comparison();
}

// The comparison at hand, moved past; empty if there is none.
std::string_view ExpressionParser::comparison_operator() {
  for (std::string_view op : {"==", "!=", "<=", ">=", "<", ">"}) {
    if (in_.skip_op(op)) return op;
  }
  if (in_.skip_name("in")) return "in";
  if (in_.is_name("not") && in_.following().is_name("in")) {
    in_.next();
    in_.next();
    return "not in";
  }
  return {};
}

Node ExpressionParser::comparison() {
  const int line = in_.current().line;
  Node left = sum();
  std::string_view op = comparison_operator();
  if (op.empty()) return left;
  Node node = make_with(Expr::Kind::kCompare, line, std::move(left));
  for (; !op.empty(); op = comparison_operator()) {
    node->operators.push_back(op);
    add(*node, sum());
  }
  return node;
}

Node ExpressionParser::binary(int line, std::string op, Node left, Node right) const {
  Node node = make_with(Expr::Kind::kBinary, line, std::move(left), std::move(right));
  node->name = std::move(op);
  return node;
}

Node ExpressionParser::sum() {
  Node left = concat();
  while (in_.is_op("+") || in_.is_op("-")) {
    const Token& op = in_.next();
    left = binary(op.line, op.text, std::move(left), concat());
  }
  return left;
}

Node ExpressionParser::concat() {
  const int line = in_.current().line;
  Node left = product();
  if (!in_.is_op("~")) return left;
  Node node = make_with(Expr::Kind::kConcat, line, std::move(left));
  while (in_.skip_op("~")) add(*node, product());
  return node;
}

Node ExpressionParser::product() {
  Node left = power();
  while (in_.is_op("*") || in_.is_op("/") || in_.is_op("//") || in_.is_op("%")) {
    const Token& op = in_.next();
    left = binary(op.line, op.text, std::move(left), power());
  }
  return left;
}

Node ExpressionParser::power() {
  Node left = unary(true);
  while (in_.is_op("**")) {
    const Token& op = in_.next();
    left = binary(op.line, op.text, std::move(left), unary(true));
  }
  return left;
}

Node ExpressionParser::unary(bool with_filters) {
  const Nested nested(expression_level_);
  check_levels();
  const int line = in_.current().line;
  Node node;
  if (in_.skip_op("-")) {
    node = make_with(Expr::Kind::kNegative, line, unary(false));
  } else if (in_.skip_op("+")) {
    node = make_with(Expr::Kind::kPositive, line, unary(false));
  } else {
    node = primary(false);
  }
  node = postfix(std::move(node));
  return with_filters ? filters_and_tests(std::move(node)) : std::move(node);
}

Node ExpressionParser::literal(Value value, int line) const {
  Node node = make(Expr::Kind::kLiteral, line);
  node->literal = std::move(value);
  return node;
}

Node ExpressionParser::primary(bool with_namespace) {
  const Token& token = in_.current();
  switch (token.kind) {
    case Token::Kind::kName:
      in_.next();
      return name(token, with_namespace);
    case Token::Kind::kString: {
      std::string text;
      while (in_.current().is(Token::Kind::kString)) text += in_.next().text;
      return literal(make_string(unmetered_, std::move(text)), token.line);
    }
    case Token::Kind::kInteger:
      in_.next();
      return literal(Value(token.integer), token.line);
    case Token::Kind::kFloat:
      in_.next();
      return literal(Value(token.real), token.line);
    default:
      break;
  }
  if (in_.skip_op("(")) {
    Node node = tuple(true, {}, true);
    in_.expect_op(")");
    return node;
  }
  if (in_.is_op("[")) return list();
  if (in_.is_op("{")) return dict();
  in_.fail_expected("an expression");
}

Node ExpressionParser::name(const Token& token, bool with_namespace) {
  const std::string& text = token.text;
  if (text == "true" || text == "True") return literal(Value(true), token.line);
  if (text == "false" || text == "False") return literal(Value(false), token.line);
  if (text == "none" || text == "None") return literal(Value(), token.line);
  Node node = make(Expr::Kind::kName, token.line);
  node->name = text;
  if (with_namespace && in_.skip_op(".")) {
    node->kind = Expr::Kind::kNamespaceRef;
    node->attribute = in_.expect_identifier();
    return node;
  }
  for (Statement* macro : macros) {
    if (text == "caller") macro->uses_caller = true;
    if (text == "kwargs") macro->uses_kwargs = true;
    if (text == "varargs") macro->uses_varargs = true;
  }
  return node;
}

Node ExpressionParser::list() {
  Node node = make(Expr::Kind::kList, in_.next().line);
  while (!in_.is_op("]")) {
    if (!node->children.empty()) in_.expect_op(",");
    if (in_.is_op("]")) break;
    add(*node, expression());
  }
  in_.expect_op("]");
  return node;
}

Node ExpressionParser::dict() {
  Node node = make(Expr::Kind::kDict, in_.next().line);
  while (!in_.is_op("}")) {
    if (!node->children.empty()) in_.expect_op(",");
    if (in_.is_op("}")) break;
    add(*node, expression());
    in_.expect_op(":");
    add(*node, expression());
  }
  in_.expect_op("}");
  return node;
}

Node ExpressionParser::postfix(Node node) {
  while (true) {
    const int line = in_.current().line;
    if (in_.skip_op(".")) {
      node = attribute(std::move(node), line);
    } else if (in_.skip_op("[")) {
      node = subscript(std::move(node), line);
    } else if (in_.is_op("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

Node ExpressionParser::attribute(Node object, int line) {
  if (in_.current().is(Token::Kind::kInteger)) {
    return make_with(Expr::Kind::kItem, line, std::move(object),
                     literal(Value(in_.next().integer), line));
  }
  Node node = make_with(Expr::Kind::kAttribute, line, std::move(object));
  node->name = in_.expect(Token::Kind::kName, "a name or a number").text;
  return node;
}

Node ExpressionParser::subscript(Node object, int line) {
  Node key;
  size_t count = 0;
  while (!in_.is_op("]")) {
    if (count > 0) in_.expect_op(",");
    Node one = subscript_key();
    if (count == 0) {
      key = std::move(one);
    } else {
      if (count == 1) key = make_with(Expr::Kind::kTuple, line, std::move(key));
      add(*key, std::move(one));
    }
    ++count;
  }
  in_.expect_op("]");
  if (count == 0) key = make(Expr::Kind::kTuple, line);
  return make_with(Expr::Kind::kItem, line, std::move(object), std::move(key));
}

// An expression, or a slice start:stop:step with any of them left out.
Node ExpressionParser::subscript_key() {
  const int line = in_.current().line;
  Node start = in_.is_op(":") ? nullptr : expression();
  if (!in_.is_op(":")) return start;
  Node slice = make(Expr::Kind::kSlice, line);
  add(*slice, std::move(start));
  for (int part = 0; part < 2; ++part) {
    const bool has_colon = in_.skip_op(":");
    const bool absent = !has_colon || in_.is_op(":") || in_.is_op("]") || in_.is_op(",");
    add(*slice, absent ? nullptr : expression());
  }
  return slice;
}

void ExpressionParser::call_arguments(Expr& node) {
  CallArguments& call = node.call;
  const int line = in_.current().line;
  const auto require = [&](bool ok) {
    if (!ok) in_.fail("the arguments of a call are in an order that Jinja does not allow", line);
  };
  in_.expect_op("(");
  bool first = true;
  while (!in_.is_op(")")) {
    if (!first) {
      in_.expect_op(",");
      if (in_.is_op(")")) break;
    }
    first = false;
    if (in_.skip_op("*")) {
      require(call.star == nullptr && call.double_star == nullptr);
      measure(node, call.star = expression());
    } else if (in_.skip_op("**")) {
      require(call.double_star == nullptr);
      measure(node, call.double_star = expression());
    } else if (in_.current().is(Token::Kind::kName) && in_.following().is_operator("=")) {
      require(call.double_star == nullptr);
      std::string name = in_.next().text;
      in_.next();
      call.named.emplace_back(std::move(name), expression());
      measure(node, call.named.back().second);
    } else {
      require(call.star == nullptr && call.double_star == nullptr && call.named.empty());
      call.positional.push_back(expression());
      measure(node, call.positional.back());
    }
  }
  in_.expect_op(")");
}

Node ExpressionParser::call(Node callee) {
  Node node = make_with(Expr::Kind::kCall, in_.current().line, std::move(callee));
  call_arguments(*node);
  return node;
}

Node ExpressionParser::filters_and_tests(Node node) {
  while (true) {
    if (in_.is_op("|")) {
      node = filters(std::move(node));
    } else if (in_.is_name("is")) {
      node = test(std::move(node));
    } else if (in_.is_op("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

Node ExpressionParser::filters(Node node) {
  while (in_.skip_op("|")) node = one_filter(std::move(node));
  return node;
}

std::string ExpressionParser::dotted_name() {
  std::string name = in_.expect_identifier();
  while (in_.skip_op(".")) {
    name += '.';
    name += in_.expect_identifier();
  }
  return name;
}

Node ExpressionParser::one_filter(Node value) {
  Node node = make_with(Expr::Kind::kFilter, in_.current().line, std::move(value));
  node->name = dotted_name();
  if (in_.is_op("(")) call_arguments(*node);
  if (!soft && find_filter(node->name) == nullptr) {
    unknown_.push_back({node->name, node->line, false});
  }
  return node;
}

Node ExpressionParser::test(Node value) {
  const int line = in_.next().line;
  const bool negated = in_.skip_name("not");
  Node node = make_with(Expr::Kind::kTest, line, std::move(value));
  node->name = dotted_name();
  const Token& token = in_.current();
  if (in_.is_op("(")) {
    call_arguments(*node);
  } else if ((token.is(Token::Kind::kName) && !in_.is_name("else") && !in_.is_name("or") &&
              !in_.is_name("and")) ||
             token.is(Token::Kind::kString) || token.is(Token::Kind::kInteger) ||
             token.is(Token::Kind::kFloat) || in_.is_op("[") || in_.is_op("{")) {
    if (in_.is_name("is")) in_.fail("tests cannot be chained with 'is'");
    node->call.positional.push_back(postfix(primary(false)));
    measure(*node, node->call.positional.back());
  }
  if (!soft && find_test(node->name) == nullptr) {
    unknown_.push_back({node->name, node->line, true});
  }
  return negated ? make_with(Expr::Kind::kNot, line, std::move(node)) : std::move(node);
}

}  // namespace nibble::text::jinja
