#include "text/jinja_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "text/jinja_filters.h"
#include "text/jinja_lexer.h"

namespace nibble::text::jinja {
namespace {

// Bounds on recursion, here and in whoever walks the tree. Python's own limits stop jinja2 earlier.
constexpr int kMaxExpressionLevels = 300;  // about three for each pair of parentheses
constexpr int kMaxHeight = 300;            // of a tree: a + b + c ... leans to the left
constexpr int kMaxBlockLevels = 60;

constexpr std::string_view kTemplateTags[] = {"extends", "include", "import", "from", "block"};
constexpr std::string_view kOtherTags[] = {"autoescape", "do", "trans", "debug"};

template <class List>
bool contains(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

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

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Body run() {
    Body body = body_until({});
    if (!unknown_.empty()) {
      const Unknown& first = unknown_.front();
      first.is_test ? check_test_exists(first.name, first.line)
                    : check_filter_exists(first.name, first.line);
    }
    return body;
  }

 private:
  using Names = std::initializer_list<std::string_view>;

  // -- tokens --

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

  // -- nodes --

  Node make(Expr::Kind kind, int line) const {
    auto node = std::make_unique<Expr>();
    node->kind = kind;
    node->line = line;
    return node;
  }
  void measure(Expr& parent, const ExprPtr& child) const {
    if (child == nullptr) return;
    parent.height = std::max(parent.height, child->height + 1);
    if (parent.height > kMaxHeight) {
      fail_unsupported(fmt::format("an expression nested more than {} deep", kMaxHeight),
                       parent.line);
    }
  }
  void add(Expr& parent, ExprPtr child) const {
    measure(parent, child);
    parent.children.push_back(std::move(child));
  }
  Node make_with(Expr::Kind kind, int line, Node a) const {
    Node node = make(kind, line);
    add(*node, std::move(a));
    return node;
  }
  Node make_with(Expr::Kind kind, int line, Node a, Node b) const {
    Node node = make_with(kind, line, std::move(a));
    add(*node, std::move(b));
    return node;
  }
  void check_levels() const {
    if (expression_level_ > kMaxExpressionLevels) {
      fail_unsupported("an expression nested too deeply", current().line);
    }
  }

  // -- statements --

  Body body_until(Names ends) {
    const Nested nested(block_level_);
    if (block_level_ > kMaxBlockLevels) {
      fail_unsupported(fmt::format("blocks nested more than {} deep", kMaxBlockLevels),
                       current().line);
    }
    Body body;
    while (!current().is(Token::Kind::kEnd)) {
      if (current().is(Token::Kind::kData)) {
        body.push_back(text());
      } else if (current().is(Token::Kind::kVariableBegin)) {
        body.push_back(print());
      } else {
        expect(Token::Kind::kBlockBegin, "text or a tag");
        if (current().is(Token::Kind::kName) && contains(ends, current().text)) return body;
        body.push_back(statement());
        expect(Token::Kind::kBlockEnd, "'%}'");
      }
    }
    if (ends.size() > 0) {
      fail(
          fmt::format("the template ends inside the block '{}' that line {} begins; "
                      "it needs {{% {} %}}",
                      open_tags_.back()->text, open_tags_.back()->line, *(ends.end() - 1)));
    }
    return body;
  }

  // The body of a tag, after its head; stops after the name in `ends` that closes it.
  Body block(Names ends) {
    skip_op(":");
    expect(Token::Kind::kBlockEnd, "'%}'");
    return body_until(ends);
  }
  Body block_to(std::string_view end) {
    Body body = block({end});
    next();
    return body;
  }
  // The same where an unknown filter is an error even inside an if, and break does not reach out.
  Body function_block_to(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    const bool soft = std::exchange(soft_, false);
    Body body = block_to(end);
    loops_ = loops;
    soft_ = soft;
    return body;
  }

  std::unique_ptr<Statement> make_statement(Statement::Kind kind, int line) const {
    auto node = std::make_unique<Statement>();
    node->kind = kind;
    node->line = line;
    return node;
  }

  std::unique_ptr<const Statement> text() {
    auto node = make_statement(Statement::Kind::kText, current().line);
    node->text = next().text;
    return node;
  }

  std::unique_ptr<const Statement> print() {
    auto node = make_statement(Statement::Kind::kPrint, next().line);
    node->exprs.push_back(tuple());
    expect(Token::Kind::kVariableEnd, "'}}'");
    return node;
  }

  std::unique_ptr<const Statement> statement() {
    if (!current().is(Token::Kind::kName)) fail_expected("the name of a tag");
    const Token& tag = next();
    open_tags_.push_back(&tag);
    auto node = statement_of(tag);
    open_tags_.pop_back();
    return node;
  }

  std::unique_ptr<const Statement> statement_of(const Token& tag) {
    if (tag.text == "if") return if_statement(tag.line);
    if (tag.text == "for") return for_statement(tag.line);
    if (tag.text == "set") return set_statement(tag.line);
    if (tag.text == "macro") return macro_statement(tag.line);
    if (tag.text == "call") return call_statement(tag.line);
    if (tag.text == "filter") return filter_statement(tag.line);
    if (tag.text == "with") return with_statement(tag.line);
    if (tag.text == "print") return print_statement(tag.line);
    if (tag.text == "generation") {
      auto node = make_statement(Statement::Kind::kGeneration, tag.line);
      node->body = function_block_to("endgeneration");
      return node;
    }
    if (tag.text == "break" || tag.text == "continue") {
      if (loops_ == 0) fail(fmt::format("'{}' stands outside a loop", tag.text), tag.line);
      return make_statement(
          tag.text == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue, tag.line);
    }
    if (contains(kTemplateTags, tag.text)) {
      fail_unsupported(fmt::format("the tag '{}' (a chat template is one file)", tag.text),
                       tag.line);
    }
    if (contains(kOtherTags, tag.text)) {
      fail_unsupported(fmt::format("the tag '{}'", tag.text), tag.line);
    }
    if (open_tags_.size() > 1) {
      const Token& open = *open_tags_[open_tags_.size() - 2];
      fail(fmt::format("unknown tag '{}', inside the block '{}' that line {} begins", tag.text,
                       open.text, open.line),
           tag.line);
    }
    fail(fmt::format("unknown tag '{}'", tag.text), tag.line);
  }

  std::unique_ptr<const Statement> if_statement(int line) {
    auto node = make_statement(Statement::Kind::kIf, line);
    const bool soft = std::exchange(soft_, true);
    while (true) {
      Branch branch;
      branch.test = tuple(false);
      branch.body = block({"elif", "else", "endif"});
      node->branches.push_back(std::move(branch));
      const std::string& tag = next().text;
      if (tag == "elif") continue;
      if (tag == "else") node->otherwise = block_to("endif");
      break;
    }
    soft_ = soft;
    return node;
  }

  std::unique_ptr<const Statement> for_statement(int line) {
    auto node = make_statement(Statement::Kind::kFor, line);
    ++fors_;
    node->target = target(false, {"in"});
    expect_name("in");
    node->exprs.push_back(tuple(false, {"recursive"}));
    node->exprs.push_back(skip_name("if") ? expression() : nullptr);
    node->recursive = skip_name("recursive");
    const bool soft = std::exchange(soft_, false);
    ++loops_;
    node->body = block({"else", "endfor"});
    --loops_;
    if (next().text == "else") node->otherwise = block_to("endfor");
    soft_ = soft;
    --fors_;
    return node;
  }

  std::unique_ptr<const Statement> set_statement(int line) {
    auto node = make_statement(Statement::Kind::kSet, line);
    node->target = target(true, {});
    if (skip_op("=")) {
      node->exprs.push_back(tuple());
      return node;
    }
    node->kind = Statement::Kind::kSetBlock;
    node->exprs.push_back(is_op("|") ? filters(nullptr) : nullptr);
    const bool soft = std::exchange(soft_, false);
    node->body = block_to("endset");
    soft_ = soft;
    return node;
  }

  std::unique_ptr<const Statement> macro_statement(int line) {
    auto node = make_statement(Statement::Kind::kMacro, line);
    node->text = expect_identifier();
    signature(*node);
    macro_body(*node, "endmacro");
    return node;
  }

  std::unique_ptr<const Statement> call_statement(int line) {
    auto node = make_statement(Statement::Kind::kCall, line);
    node->text = "caller";
    if (is_op("(")) signature(*node);
    Node call = expression();
    if (call->kind != Expr::Kind::kCall) fail("a call block needs a call", line);
    node->exprs.push_back(std::move(call));
    macro_body(*node, "endcall");
    return node;
  }

  void macro_body(Statement& node, std::string_view end) {
    macros_.push_back(&node);
    node.body = function_block_to(end);
    macros_.pop_back();
    const auto declares = [&](std::string_view name) {
      return std::any_of(node.parameters.begin(), node.parameters.end(),
                         [&](const Parameter& p) { return p.name == name; });
    };
    if (declares("kwargs")) node.uses_kwargs = false;
    if (declares("varargs")) node.uses_varargs = false;
    for (const Parameter& p : node.parameters) {
      if (p.name == "caller" && node.uses_caller && p.fallback == nullptr) {
        fail("the argument 'caller' of a macro needs a default, or must be left out", node.line);
      }
    }
  }

  void signature(Statement& node) {
    expect_op("(");
    while (!is_op(")")) {
      if (!node.parameters.empty()) expect_op(",");
      Parameter parameter;
      parameter.name = expect_identifier();
      if (skip_op("=")) {
        parameter.fallback = expression();
      } else if (!node.parameters.empty() && node.parameters.back().fallback != nullptr) {
        fail("an argument without a default follows one that has a default");
      }
      node.parameters.push_back(std::move(parameter));
    }
    expect_op(")");
  }

  std::unique_ptr<const Statement> filter_statement(int line) {
    auto node = make_statement(Statement::Kind::kFilter, line);
    node->exprs.push_back(filters(one_filter(nullptr)));
    const bool soft = std::exchange(soft_, false);
    node->body = block_to("endfilter");
    soft_ = soft;
    return node;
  }

  std::unique_ptr<const Statement> with_statement(int line) {
    auto node = make_statement(Statement::Kind::kWith, line);
    while (!current().is(Token::Kind::kBlockEnd)) {
      if (!node->parameters.empty()) expect_op(",");
      node->parameters.push_back(Parameter{expect_identifier(), nullptr});
      expect_op("=");
      node->exprs.push_back(expression());
    }
    const bool soft = std::exchange(soft_, false);
    node->body = block_to("endwith");
    soft_ = soft;
    return node;
  }

  std::unique_ptr<const Statement> print_statement(int line) {
    auto node = make_statement(Statement::Kind::kPrint, line);
    while (!current().is(Token::Kind::kBlockEnd)) {
      if (!node->exprs.empty()) expect_op(",");
      node->exprs.push_back(expression());
    }
    return node;
  }

  // -- targets of set and for --

  Node target(bool with_namespace, Names ends) {
    const int line = current().line;
    Node first = primary(with_namespace);
    if (is_op(",")) {
      Node list = make_with(Expr::Kind::kTuple, line, std::move(first));
      while (skip_op(",") && !tuple_ends(ends)) {
        add(*list, primary(with_namespace));
      }
      first = std::move(list);
    }
    check_target(*first);
    return first;
  }

  void check_target(const Expr& node) const {
    if (node.kind == Expr::Kind::kTuple) {
      for (const ExprPtr& child : node.children) check_target(*child);
    } else if (node.kind == Expr::Kind::kName) {
      if (node.name == "loop" && fors_ > 0) {
        fail("the name 'loop' cannot be assigned to inside a for loop", node.line);
      }
    } else if (node.kind != Expr::Kind::kNamespaceRef) {
      fail("this cannot be assigned to (a name, a tuple of names or namespace.name can)",
           node.line);
    }
  }

  // -- expressions, loosest first --

  bool tuple_ends(Names ends) const {
    return current().is(Token::Kind::kVariableEnd) || current().is(Token::Kind::kBlockEnd) ||
           is_op(")") || (current().is(Token::Kind::kName) && contains(ends, current().text));
  }

  // An expression, or a tuple if commas follow.
  Node tuple(bool with_conditional = true, Names ends = {}, bool in_parentheses = false) {
    const int line = current().line;
    if (tuple_ends(ends)) {
      if (!in_parentheses) fail_expected("an expression");
      return make(Expr::Kind::kTuple, line);
    }
    Node first = with_conditional ? expression() : or_expression();
    if (!is_op(",")) return first;
    Node list = make_with(Expr::Kind::kTuple, line, std::move(first));
    while (skip_op(",") && !tuple_ends(ends)) {
      add(*list, with_conditional ? expression() : or_expression());
    }
    return list;
  }

  Node expression() {
    const Nested nested(expression_level_);
    check_levels();
    const int line = current().line;
    const size_t unknown_before = unknown_.size();
    Node node = or_expression();
    while (skip_name("if")) {
      unknown_.resize(unknown_before);  // what stands before the if is inside it
      const bool soft = std::exchange(soft_, true);
      Node test = or_expression();
      node = make_with(Expr::Kind::kConditional, line, std::move(test), std::move(node));
      add(*node, skip_name("else") ? expression() : nullptr);
      soft_ = soft;
    }
    return node;
  }

  Node or_expression() {
    const int line = current().line;
    Node left = and_expression();
    while (skip_name("or")) {
      left = make_with(Expr::Kind::kOr, line, std::move(left), and_expression());
    }
    return left;
  }

  Node and_expression() {
    const int line = current().line;
    Node left = not_expression();
    while (skip_name("and")) {
      left = make_with(Expr::Kind::kAnd, line, std::move(left), not_expression());
    }
    return left;
  }

  Node not_expression() {
    const Nested nested(expression_level_);
    check_levels();
    const int line = current().line;
    if (skip_name("not")) return make_with(Expr::Kind::kNot, line, not_expression());
    return comparison();
  }

  // The comparison at hand, moved past; empty if there is none.
  std::string_view comparison_operator() {
    for (std::string_view op : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (skip_op(op)) return op;
    }
    if (skip_name("in")) return "in";
    if (is_name("not") && following().is_name("in")) {
      next();
      next();
      return "not in";
    }
    return {};
  }

  Node comparison() {
    const int line = current().line;
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

  Node binary(int line, std::string op, Node left, Node right) const {
    Node node = make_with(Expr::Kind::kBinary, line, std::move(left), std::move(right));
    node->name = std::move(op);
    return node;
  }

  Node sum() {
    Node left = concat();
    while (is_op("+") || is_op("-")) {
      const Token& op = next();
      left = binary(op.line, op.text, std::move(left), concat());
    }
    return left;
  }

  Node concat() {
    const int line = current().line;
    Node left = product();
    if (!is_op("~")) return left;
    Node node = make_with(Expr::Kind::kConcat, line, std::move(left));
    while (skip_op("~")) add(*node, product());
    return node;
  }

  Node product() {
    Node left = power();
    while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
      const Token& op = next();
      left = binary(op.line, op.text, std::move(left), power());
    }
    return left;
  }

  Node power() {
    Node left = unary(true);
    while (is_op("**")) {
      const Token& op = next();
      left = binary(op.line, op.text, std::move(left), unary(true));
    }
    return left;
  }

  Node unary(bool with_filters) {
    const Nested nested(expression_level_);
    check_levels();
    const int line = current().line;
    Node node;
    if (skip_op("-")) {
      node = make_with(Expr::Kind::kNegative, line, unary(false));
    } else if (skip_op("+")) {
      node = make_with(Expr::Kind::kPositive, line, unary(false));
    } else {
      node = primary(false);
    }
    node = postfix(std::move(node));
    return with_filters ? filters_and_tests(std::move(node)) : std::move(node);
  }

  Node literal(Value value, int line) const {
    Node node = make(Expr::Kind::kLiteral, line);
    node->literal = std::move(value);
    return node;
  }

  Node primary(bool with_namespace) {
    const Token& token = current();
    switch (token.kind) {
      case Token::Kind::kName:
        next();
        return name(token, with_namespace);
      case Token::Kind::kString: {
        std::string text;
        while (current().is(Token::Kind::kString)) text += next().text;
        return literal(make_string(unmetered_, std::move(text)), token.line);
      }
      case Token::Kind::kInteger:
        next();
        return literal(Value(token.integer), token.line);
      case Token::Kind::kFloat:
        next();
        return literal(Value(token.real), token.line);
      default:
        break;
    }
    if (skip_op("(")) {
      Node node = tuple(true, {}, true);
      expect_op(")");
      return node;
    }
    if (is_op("[")) return list();
    if (is_op("{")) return dict();
    fail_expected("an expression");
  }

  Node name(const Token& token, bool with_namespace) {
    const std::string& text = token.text;
    if (text == "true" || text == "True") return literal(Value(true), token.line);
    if (text == "false" || text == "False") return literal(Value(false), token.line);
    if (text == "none" || text == "None") return literal(Value(), token.line);
    Node node = make(Expr::Kind::kName, token.line);
    node->name = text;
    if (with_namespace && skip_op(".")) {
      node->kind = Expr::Kind::kNamespaceRef;
      node->attribute = expect_identifier();
      return node;
    }
    for (Statement* macro : macros_) {
      if (text == "caller") macro->uses_caller = true;
      if (text == "kwargs") macro->uses_kwargs = true;
      if (text == "varargs") macro->uses_varargs = true;
    }
    return node;
  }

  Node list() {
    Node node = make(Expr::Kind::kList, next().line);
    while (!is_op("]")) {
      if (!node->children.empty()) expect_op(",");
      if (is_op("]")) break;
      add(*node, expression());
    }
    expect_op("]");
    return node;
  }

  Node dict() {
    Node node = make(Expr::Kind::kDict, next().line);
    while (!is_op("}")) {
      if (!node->children.empty()) expect_op(",");
      if (is_op("}")) break;
      add(*node, expression());
      expect_op(":");
      add(*node, expression());
    }
    expect_op("}");
    return node;
  }

  Node postfix(Node node) {
    while (true) {
      const int line = current().line;
      if (skip_op(".")) {
        node = attribute(std::move(node), line);
      } else if (skip_op("[")) {
        node = subscript(std::move(node), line);
      } else if (is_op("(")) {
        node = call(std::move(node));
      } else {
        return node;
      }
    }
  }

  Node attribute(Node object, int line) {
    if (current().is(Token::Kind::kInteger)) {
      return make_with(Expr::Kind::kItem, line, std::move(object),
                       literal(Value(next().integer), line));
    }
    Node node = make_with(Expr::Kind::kAttribute, line, std::move(object));
    node->name = expect(Token::Kind::kName, "a name or a number").text;
    return node;
  }

  Node subscript(Node object, int line) {
    Node key;
    size_t count = 0;
    while (!is_op("]")) {
      if (count > 0) expect_op(",");
      Node one = subscript_key();
      if (count == 0) {
        key = std::move(one);
      } else {
        if (count == 1) key = make_with(Expr::Kind::kTuple, line, std::move(key));
        add(*key, std::move(one));
      }
      ++count;
    }
    expect_op("]");
    if (count == 0) key = make(Expr::Kind::kTuple, line);
    return make_with(Expr::Kind::kItem, line, std::move(object), std::move(key));
  }

  // An expression, or a slice start:stop:step with any of them left out.
  Node subscript_key() {
    const int line = current().line;
    Node start = is_op(":") ? nullptr : expression();
    if (!is_op(":")) return start;
    Node slice = make(Expr::Kind::kSlice, line);
    add(*slice, std::move(start));
    for (int part = 0; part < 2; ++part) {
      const bool has_colon = skip_op(":");
      const bool absent = !has_colon || is_op(":") || is_op("]") || is_op(",");
      add(*slice, absent ? nullptr : expression());
    }
    return slice;
  }

  void call_arguments(Expr& node) {
    CallArguments& call = node.call;
    const int line = current().line;
    const auto require = [&](bool ok) {
      if (!ok) fail("the arguments of a call are in an order that Jinja does not allow", line);
    };
    expect_op("(");
    bool first = true;
    while (!is_op(")")) {
      if (!first) {
        expect_op(",");
        if (is_op(")")) break;
      }
      first = false;
      if (skip_op("*")) {
        require(call.star == nullptr && call.double_star == nullptr);
        measure(node, call.star = expression());
      } else if (skip_op("**")) {
        require(call.double_star == nullptr);
        measure(node, call.double_star = expression());
      } else if (current().is(Token::Kind::kName) && following().is_operator("=")) {
        require(call.double_star == nullptr);
        std::string name = next().text;
        next();
        call.named.emplace_back(std::move(name), expression());
        measure(node, call.named.back().second);
      } else {
        require(call.star == nullptr && call.double_star == nullptr && call.named.empty());
        call.positional.push_back(expression());
        measure(node, call.positional.back());
      }
    }
    expect_op(")");
  }

  Node call(Node callee) {
    Node node = make_with(Expr::Kind::kCall, current().line, std::move(callee));
    call_arguments(*node);
    return node;
  }

  Node filters_and_tests(Node node) {
    while (true) {
      if (is_op("|")) {
        node = filters(std::move(node));
      } else if (is_name("is")) {
        node = test(std::move(node));
      } else if (is_op("(")) {
        node = call(std::move(node));
      } else {
        return node;
      }
    }
  }

  Node filters(Node node) {
    while (skip_op("|")) node = one_filter(std::move(node));
    return node;
  }

  std::string dotted_name() {
    std::string name = expect_identifier();
    while (skip_op(".")) {
      name += '.';
      name += expect_identifier();
    }
    return name;
  }

  Node one_filter(Node value) {
    Node node = make_with(Expr::Kind::kFilter, current().line, std::move(value));
    node->name = dotted_name();
    if (is_op("(")) call_arguments(*node);
    if (!soft_ && find_filter(node->name) == nullptr) {
      unknown_.push_back({node->name, node->line, false});
    }
    return node;
  }

  Node test(Node value) {
    const int line = next().line;
    const bool negated = skip_name("not");
    Node node = make_with(Expr::Kind::kTest, line, std::move(value));
    node->name = dotted_name();
    const Token& token = current();
    if (is_op("(")) {
      call_arguments(*node);
    } else if ((token.is(Token::Kind::kName) && !is_name("else") && !is_name("or") &&
                !is_name("and")) ||
               token.is(Token::Kind::kString) || token.is(Token::Kind::kInteger) ||
               token.is(Token::Kind::kFloat) || is_op("[") || is_op("{")) {
      if (is_name("is")) fail("tests cannot be chained with 'is'");
      node->call.positional.push_back(postfix(primary(false)));
      measure(*node, node->call.positional.back());
    }
    if (!soft_ && find_test(node->name) == nullptr) {
      unknown_.push_back({node->name, node->line, true});
    }
    return negated ? make_with(Expr::Kind::kNot, line, std::move(node)) : std::move(node);
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  std::vector<const Token*> open_tags_;
  std::vector<Statement*> macros_;  // that enclose what is parsed
  int loops_ = 0;                   // that a break would leave
  int fors_ = 0;                    // that enclose what is parsed
  // Inside an if: an unknown filter is an error only when it is reached (a template may ask whether
  // the filter exists).
  bool soft_ = false;
  struct Unknown {
    std::string name;
    int line;
    bool is_test;
  };
  std::vector<Unknown> unknown_;  // filters and tests to complain about in the end
  int expression_level_ = 0;
  int block_level_ = 0;
  Budget unmetered_{Limits{}};  // literals are bounded by the source
};

}  // namespace

Body parse(std::string_view source) { return Parser(source).run(); }

}  // namespace nibble::text::jinja
