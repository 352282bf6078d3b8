#include "text/jinja_parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_expression_parser.h"
#include "text/jinja_token_reader.h"

namespace nibble::text::jinja {
namespace {

constexpr int kMaxBlockLevels = 60;

constexpr std::string_view kTemplateTags[] = {"extends", "include", "import", "from", "block"};
constexpr std::string_view kOtherTags[] = {"autoescape", "do", "trans", "debug"};

template <class List>
bool contains(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

class Parser {
 public:
  explicit Parser(std::string_view source) : in_(source), expressions_(in_) {}

  Body run() {
    Body body = body_until({});
    expressions_.check_all_exist();
    return body;
  }

 private:
  Body body_until(Names ends) {
    const Nested nested(block_level_);
    if (block_level_ > kMaxBlockLevels) {
      in_.fail_unsupported(fmt::format("blocks nested more than {} deep", kMaxBlockLevels),
                           in_.current().line);
    }
    Body body;
    while (!in_.current().is(Token::Kind::kEnd)) {
      if (in_.current().is(Token::Kind::kData)) {
        body.push_back(text());
      } else if (in_.current().is(Token::Kind::kVariableBegin)) {
        body.push_back(print());
      } else {
        in_.expect(Token::Kind::kBlockBegin, "text or a tag");
        if (in_.current().is(Token::Kind::kName) && contains(ends, in_.current().text)) return body;
        body.push_back(statement());
        in_.expect(Token::Kind::kBlockEnd, "'%}'");
      }
    }
    if (ends.size() > 0) {
      in_.fail(
          fmt::format("the template ends inside the block '{}' that line {} begins; "
                      "it needs {{% {} %}}",
                      open_tags_.back()->text, open_tags_.back()->line, *(ends.end() - 1)));
    }
    return body;
  }

  // The body of a tag, after its head; stops after the name in `ends` that closes it.
  Body block(Names ends) {
    in_.skip_op(":");
    in_.expect(Token::Kind::kBlockEnd, "'%}'");
    return body_until(ends);
  }
  Body block_to(std::string_view end) {
    Body body = block({end});
    in_.next();
    return body;
  }
  // The same where an unknown filter is an error even inside an if, and break does not reach out.
  Body function_block_to(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    const bool soft = std::exchange(expressions_.soft, false);
    Body body = block_to(end);
    loops_ = loops;
    expressions_.soft = soft;
    return body;
  }

  std::unique_ptr<Statement> make_statement(Statement::Kind kind, int line) const {
    auto node = std::make_unique<Statement>();
    node->kind = kind;
    node->line = line;
    return node;
  }

  std::unique_ptr<const Statement> text() {
    auto node = make_statement(Statement::Kind::kText, in_.current().line);
    node->text = in_.next().text;
    return node;
  }

  std::unique_ptr<const Statement> print() {
    auto node = make_statement(Statement::Kind::kPrint, in_.next().line);
    node->exprs.push_back(expressions_.tuple());
    in_.expect(Token::Kind::kVariableEnd, "'}}'");
    return node;
  }

  std::unique_ptr<const Statement> statement() {
    if (!in_.current().is(Token::Kind::kName)) in_.fail_expected("the name of a tag");
    const Token& tag = in_.next();
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
      if (loops_ == 0) in_.fail(fmt::format("'{}' stands outside a loop", tag.text), tag.line);
      return make_statement(
          tag.text == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue, tag.line);
    }
    if (contains(kTemplateTags, tag.text)) {
      in_.fail_unsupported(fmt::format("the tag '{}' (a chat template is one file)", tag.text),
                           tag.line);
    }
    if (contains(kOtherTags, tag.text)) {
      in_.fail_unsupported(fmt::format("the tag '{}'", tag.text), tag.line);
    }
    if (open_tags_.size() > 1) {
      const Token& open = *open_tags_[open_tags_.size() - 2];
      in_.fail(fmt::format("unknown tag '{}', inside the block '{}' that line {} begins", tag.text,
                           open.text, open.line),
               tag.line);
    }
    in_.fail(fmt::format("unknown tag '{}'", tag.text), tag.line);
  }

  std::unique_ptr<const Statement> if_statement(int line) {
    auto node = make_statement(Statement::Kind::kIf, line);
    const bool soft = std::exchange(expressions_.soft, true);
    while (true) {
      Branch branch;
      branch.test = expressions_.tuple(false);
      branch.body = block({"elif", "else", "endif"});
      node->branches.push_back(std::move(branch));
      const std::string& tag = in_.next().text;
      if (tag == "elif") continue;
      if (tag == "else") node->otherwise = block_to("endif");
      break;
    }
    expressions_.soft = soft;
    return node;
  }

  std::unique_ptr<const Statement> for_statement(int line) {
    auto node = make_statement(Statement::Kind::kFor, line);
    ++expressions_.fors;
    node->target = expressions_.target(false, {"in"});
    in_.expect_name("in");
    node->exprs.push_back(expressions_.tuple(false, {"recursive"}));
    node->exprs.push_back(in_.skip_name("if") ? expressions_.expression() : nullptr);
    node->recursive = in_.skip_name("recursive");
    const bool soft = std::exchange(expressions_.soft, false);
    ++loops_;
    node->body = block({"else", "endfor"});
    --loops_;
    if (in_.next().text == "else") node->otherwise = block_to("endfor");
    expressions_.soft = soft;
    --expressions_.fors;
    return node;
  }

  std::unique_ptr<const Statement> set_statement(int line) {
    auto node = make_statement(Statement::Kind::kSet, line);
    node->target = expressions_.target(true, {});
    if (in_.skip_op("=")) {
      node->exprs.push_back(expressions_.tuple());
      return node;
    }
    node->kind = Statement::Kind::kSetBlock;
    node->exprs.push_back(in_.is_op("|") ? expressions_.filters(nullptr) : nullptr);
    const bool soft = std::exchange(expressions_.soft, false);
    node->body = block_to("endset");
    expressions_.soft = soft;
    return node;
  }

  std::unique_ptr<const Statement> macro_statement(int line) {
    auto node = make_statement(Statement::Kind::kMacro, line);
    node->text = in_.expect_identifier();
    signature(*node);
    macro_body(*node, "endmacro");
    return node;
  }

  std::unique_ptr<const Statement> call_statement(int line) {
    auto node = make_statement(Statement::Kind::kCall, line);
    node->text = "caller";
    if (in_.is_op("(")) signature(*node);
    Node call = expressions_.expression();
    if (call->kind != Expr::Kind::kCall) in_.fail("a call block needs a call", line);
    node->exprs.push_back(std::move(call));
    macro_body(*node, "endcall");
    return node;
  }

  void macro_body(Statement& node, std::string_view end) {
    expressions_.macros.push_back(&node);
    node.body = function_block_to(end);
    expressions_.macros.pop_back();
    const auto declares = [&](std::string_view name) {
      return std::any_of(node.parameters.begin(), node.parameters.end(),
                         [&](const Parameter& p) { return p.name == name; });
    };
    if (declares("kwargs")) node.uses_kwargs = false;
    if (declares("varargs")) node.uses_varargs = false;
    for (const Parameter& p : node.parameters) {
      if (p.name == "caller" && node.uses_caller && p.fallback == nullptr) {
        in_.fail("the argument 'caller' of a macro needs a default, or must be left out",
                 node.line);
      }
    }
  }

  void signature(Statement& node) {
    in_.expect_op("(");
    while (!in_.is_op(")")) {
      if (!node.parameters.empty()) in_.expect_op(",");
      Parameter parameter;
      parameter.name = in_.expect_identifier();
      if (in_.skip_op("=")) {
        parameter.fallback = expressions_.expression();
      } else if (!node.parameters.empty() && node.parameters.back().fallback != nullptr) {
        in_.fail("an argument without a default follows one that has a default");
      }
      node.parameters.push_back(std::move(parameter));
    }
    in_.expect_op(")");
  }

  std::unique_ptr<const Statement> filter_statement(int line) {
    auto node = make_statement(Statement::Kind::kFilter, line);
    node->exprs.push_back(expressions_.filters(expressions_.one_filter(nullptr)));
    const bool soft = std::exchange(expressions_.soft, false);
    node->body = block_to("endfilter");
    expressions_.soft = soft;
    return node;
  }

  std::unique_ptr<const Statement> with_statement(int line) {
    auto node = make_statement(Statement::Kind::kWith, line);
    while (!in_.current().is(Token::Kind::kBlockEnd)) {
      if (!node->parameters.empty()) in_.expect_op(",");
      node->parameters.push_back(Parameter{in_.expect_identifier(), nullptr});
      in_.expect_op("=");
      node->exprs.push_back(expressions_.expression());
    }
    const bool soft = std::exchange(expressions_.soft, false);
    node->body = block_to("endwith");
    expressions_.soft = soft;
    return node;
  }

  std::unique_ptr<const Statement> print_statement(int line) {
    auto node = make_statement(Statement::Kind::kPrint, line);
    while (!in_.current().is(Token::Kind::kBlockEnd)) {
      if (!node->exprs.empty()) in_.expect_op(",");
      node->exprs.push_back(expressions_.expression());
    }
    return node;
  }

  TokenReader in_;
  ExpressionParser expressions_;
  std::vector<const Token*> open_tags_;
  int loops_ = 0;  // that a break would leave
  int block_level_ = 0;
};

}  // namespace

Body parse(std::string_view source) { return Parser(source).run(); }

}  // namespace nibble::text::jinja
