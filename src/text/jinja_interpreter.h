// Walks a parsed template and writes its output: scopes, loops, macros and calls.
//
//   Interpreter interpreter(context, limits, now);
//   std::string text = interpreter.render(body);      // throws Trouble
//
// Names are looked up from the innermost scope outwards, then in the context (the variables of the
// rendering), then among the globals. A for body, a macro, a with, a set block ... opens a scope;
// an if does not. That gives what jinja2's compiled scopes give.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_value.h"

namespace nibble::text::jinja {

struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string_view, Value>> names;  // views into the tree
  int depth = 0;                                          // of parents; bounded
  bool captured = false;                                  // a macro refers to it

  Value* find(std::string_view name);
  void set(std::string_view name, Value value);
};
using ScopePtr = std::shared_ptr<Scope>;

struct Macro {
  const Statement* statement;  // kMacro or kCall
  ScopePtr scope;              // where it was defined
};

// Walks anything that Python can iterate over.
class Iterator {
 public:
  Iterator() = default;
  Iterator(Budget& budget, Value source);  // raises if it cannot be iterated over
  bool next(Budget& budget, Value& out);
  const Value& source() const { return source_; }

 private:
  Value source_;
  size_t at_ = 0;
};

// The `loop` of a for statement.
struct Loop {
  Iterator iterator;
  const Statement* statement = nullptr;
  ScopePtr scope;  // that the for stands in
  int64_t index0 = -1;
  std::optional<int64_t> length;
  std::optional<Value> after;  // the next item, if it was looked at
  Value before, current;
  std::optional<std::vector<Value>> last_changed;
  int64_t depth0 = 0;
  bool tested = false;  // what the iterator gives has passed the loop's filter already
  int nesting = 1;
};

// The arguments of one call. bind() sorts them into the places of a signature.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // `parameters`: names in order, separated by spaces; "name!" must be given; "*" binds nothing and
  // leaves the arguments as they are. Raises on a missing, unknown or repeated argument.
  void bind(std::string_view function, std::string_view parameters);
  // After bind: the argument at place i; nullptr if it was not given.
  const Value* get(size_t i) const {
    return i < positional.size() && !absent_[i] ? &positional[i] : nullptr;
  }
  const Value& at(size_t i) const { return positional[i]; }
  int64_t integer(size_t i, int64_t fallback) const;  // raises if it is no integer
  bool truth(Budget& budget, size_t i, bool fallback) const;
  const std::string& string(size_t i) const;  // of a required argument; raises if it is no string

 private:
  std::vector<bool> absent_;
};

class Interpreter {
 public:
  Interpreter(const Dict& context, const Limits& limits, std::optional<std::tm> now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::string render(const Body& body);

  Budget& budget() { return budget_; }
  const std::optional<std::tm>& now() const { return now_; }
  Namespace* new_namespace();
  Value string(std::string bytes, bool markup = false) {
    return make_string(budget_, std::move(bytes), markup);
  }

  Value call(const Value& callee, Arguments arguments);
  Value call_filter(std::string_view name, const Value& value, Arguments arguments);
  bool call_test(std::string_view name, const Value& value, Arguments arguments);
  // All that is left in `v`.
  std::vector<Value> items_of(const Value& v);

  // For the attributes of a loop.
  bool advance(Loop& loop, Value& item);  // the next item that passes the loop's filter
  const Value* peek(Loop& loop);          // the same without taking it; nullptr at the end
  int64_t length_of_loop(Loop& loop);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Statements: jinja_interpreter.cc.
  Flow run(const Body& body, const ScopePtr& scope, std::string& out);
  Flow run(const Statement& s, const ScopePtr& scope, std::string& out);
  Flow run_if(const Statement& s, const ScopePtr& scope, std::string& out);
  Flow run_for(const Statement& s, const ScopePtr& scope, std::string& out);
  Flow run_loop(const std::shared_ptr<Loop>& loop, std::string& out);
  void run_set(const Statement& s, const ScopePtr& scope);
  Flow run_set_block(const Statement& s, const ScopePtr& scope);
  Flow run_filter(const Statement& s, const ScopePtr& scope, std::string& out);
  void run_call(const Statement& s, const ScopePtr& scope, std::string& out);
  Flow run_with(const Statement& s, const ScopePtr& scope, std::string& out);
  Flow run_inner(const Body& body, const ScopePtr& scope, std::string& out);
  void assign(const Expr& target, const Value& value, const ScopePtr& scope);
  void assign_tuple(const Expr& target, const Value& value, const ScopePtr& scope);
  void write(std::string& out, std::string_view text);
  ScopePtr inner(const ScopePtr& parent);
  const Macro* define_macro(const Statement& s, const ScopePtr& scope);
  Value call_macro(const Macro& macro, Arguments arguments);
  Value call_recursively(Loop& loop, Arguments arguments);

  // Expressions: jinja_expressions.cc.
  Value eval(const Expr& e, const ScopePtr& scope);
  Value eval_name(const Expr& e, const ScopePtr& scope);
  Value eval_attribute(const Expr& e, const ScopePtr& scope);
  Value eval_binary(const Expr& e, const ScopePtr& scope);
  Value eval_dict(const Expr& e, const ScopePtr& scope);
  Value eval_item(const Expr& e, const ScopePtr& scope);
  Value eval_slice(const Value& object, const Expr& slice, const ScopePtr& scope);
  Value eval_call(const Expr& e, const ScopePtr& scope);
  Value eval_filter(const Expr& e, const ScopePtr& scope);
  Value filtered(const Expr& e, const Value& value, const ScopePtr& scope);
  Value filter_block(const Expr& e, Value text, const ScopePtr& scope);
  Value eval_concat(const Expr& e, const ScopePtr& scope);
  Value eval_compare(const Expr& e, const ScopePtr& scope);
  Value eval_conditional(const Expr& e, const ScopePtr& scope);
  std::vector<Value> eval_all(const std::vector<ExprPtr>& exprs, const ScopePtr& scope);
  Arguments eval_arguments(const CallArguments& call, const ScopePtr& scope);

  const Dict& context_;
  std::optional<std::tm> now_;
  Budget budget_;
  int line_ = 0;  // of the node under way, for messages
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  std::vector<std::unique_ptr<Macro>> macros_;
  std::vector<ScopePtr> captured_;
};

}  // namespace nibble::text::jinja
