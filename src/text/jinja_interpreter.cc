#include "text/jinja_interpreter.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace nibble::text::jinja {
namespace {

// Scopes nest as blocks and macros do; only macros that define macros can chain them without end.
constexpr int kMaxScopes = 500;
constexpr size_t kScopeBytes = 160;

}  // namespace

Value* Scope::find(std::string_view name) {
  for (auto& [known, value] : names) {
    if (known == name) return &value;
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  if (Value* known = find(name)) {
    *known = std::move(value);
  } else {
    names.emplace_back(name, std::move(value));
  }
}

Iterator::Iterator(Budget& budget, Value source) : source_(std::move(source)) {
  budget.step();
  switch (source_.kind()) {
    case Value::Kind::kUndefined:
    case Value::Kind::kString:
    case Value::Kind::kSequence:
    case Value::Kind::kDict:
    case Value::Kind::kRange:
      return;
    default:
      raise(fmt::format("'{}' object is not iterable", type_name(source_)));
  }
}

bool Iterator::next(Budget& budget, Value& out) {
  budget.step();
  switch (source_.kind()) {
    case Value::Kind::kString: {
      const std::string& text = source_.bytes();
      if (at_ >= text.size()) return false;
      const size_t begin = at_;
      next_code_point(text, at_);
      out = make_string(budget, text.substr(begin, at_ - begin));
      return true;
    }
    case Value::Kind::kSequence: {
      Sequence& sequence = source_.sequence();
      size_t& at = sequence.kind == Sequence::Kind::kGenerator ? sequence.next : at_;
      if (at >= sequence.items.size()) return false;
      out = sequence.items[at++];
      return true;
    }
    case Value::Kind::kDict: {
      if (at_ >= source_.dict().members.size()) return false;
      out = source_.dict().members[at_++].first;
      return true;
    }
    case Value::Kind::kRange: {
      if (static_cast<int64_t>(at_) >= source_.range().size()) return false;
      out = Value(source_.range().at(static_cast<int64_t>(at_++)));
      return true;
    }
    default:
      return false;  // undefined is empty
  }
}

void Arguments::bind(std::string_view function, std::string_view parameters) {
  if (parameters == "*") {
    absent_.assign(positional.size(), false);
    return;
  }
  std::vector<std::pair<std::string_view, bool>> names;  // name, must be given
  while (!parameters.empty()) {
    std::string_view one = parameters.substr(0, parameters.find(' '));
    parameters.remove_prefix(std::min(parameters.size(), one.size() + 1));
    const bool required = one.back() == '!';
    if (required) one.remove_suffix(1);
    names.emplace_back(one, required);
  }
  if (positional.size() > names.size()) {
    raise(fmt::format("{}() takes at most {} arguments, {} were given", function, names.size(),
                      positional.size()));
  }
  absent_.assign(names.size(), true);
  std::fill_n(absent_.begin(), positional.size(), false);
  positional.resize(names.size());
  for (auto& argument : named) {
    const std::string& name = argument.first;
    const auto at = std::find_if(names.begin(), names.end(),
                                 [&](const auto& known) { return known.first == name; });
    if (at == names.end()) raise(fmt::format("{}() has no argument '{}'", function, name));
    const auto i = static_cast<size_t>(at - names.begin());
    if (!absent_[i]) raise(fmt::format("{}() got argument '{}' twice", function, name));
    positional[i] = argument.second;
    absent_[i] = false;
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].second && absent_[i]) {
      raise(fmt::format("{}() needs the argument '{}'", function, names[i].first));
    }
  }
}

int64_t Arguments::integer(size_t i, int64_t fallback) const {
  const Value* value = get(i);
  if (value == nullptr) return fallback;
  require_defined(*value);
  if (!value->is_integral()) {
    raise(fmt::format("'{}' object cannot be interpreted as an integer", type_name(*value)));
  }
  return value->integer();
}

bool Arguments::truth(Budget& budget, size_t i, bool fallback) const {
  const Value* value = get(i);
  return value == nullptr ? fallback : jinja::truth(budget, *value);
}

const std::string& Arguments::string(size_t i) const {
  require_defined(at(i));
  if (!at(i).is_string()) raise(fmt::format("must be str, not {}", type_name(at(i))));
  return at(i).bytes();
}

Interpreter::Interpreter(const Dict& context, const Limits& limits, std::optional<std::tm> now)
    : context_(context), now_(now), budget_(limits) {}

Interpreter::~Interpreter() {
  // Namespaces, scopes and macros may refer to each other in circles: let go of what they hold
  // while all of them are still there.
  for (auto& ns : namespaces_) ns->attributes = Dict{};
  for (auto& scope : captured_) scope->names.clear();
  for (auto& macro : macros_) macro->scope.reset();
}

std::string Interpreter::render(const Body& body) {
  std::string out;
  try {
    run(body, std::make_shared<Scope>(), out);
  } catch (Trouble& trouble) {
    if (trouble.line == 0) trouble.line = line_;
    throw;
  }
  return out;
}

Namespace* Interpreter::new_namespace() {
  budget_.make(sizeof(Namespace) + 64);
  return namespaces_.emplace_back(std::make_unique<Namespace>()).get();
}

std::vector<Value> Interpreter::items_of(const Value& v) {
  std::vector<Value> items;
  Iterator iterator(budget_, v);
  for (Value item; iterator.next(budget_, item);) items.push_back(std::move(item));
  return items;
}

ScopePtr Interpreter::inner(const ScopePtr& parent) {
  budget_.step(2);
  auto scope = std::make_shared<Scope>();
  scope->parent = parent;
  scope->depth = parent->depth + 1;
  if (scope->depth > kMaxScopes) {
    raise_unsupported(fmt::format("scopes nested more than {} deep", kMaxScopes));
  }
  return scope;
}

void Interpreter::write(std::string& out, std::string_view text) {
  budget_.make(text.size());
  if (out.size() + text.size() > budget_.limits().one_value) budget_.make(out.size() + text.size());
  out += text;
}

Interpreter::Flow Interpreter::run(const Body& body, const ScopePtr& scope, std::string& out) {
  for (const auto& statement : body) {
    const Flow flow = run(*statement, scope, out);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run(const Statement& s, const ScopePtr& scope, std::string& out) {
  const Level level(budget_);
  budget_.step();
  line_ = s.line;
  switch (s.kind) {
    case Statement::Kind::kText:
      write(out, s.text);
      return Flow::kNext;
    case Statement::Kind::kPrint:
      for (const ExprPtr& e : s.exprs) {
        const Value value = eval(*e, scope);
        value.is_string() ? write(out, value.bytes()) : write(out, to_text(budget_, value));
      }
      return Flow::kNext;
    case Statement::Kind::kIf:
      return run_if(s, scope, out);
    case Statement::Kind::kFor:
      return run_for(s, scope, out);
    case Statement::Kind::kSet:
      run_set(s, scope);
      return Flow::kNext;
    case Statement::Kind::kSetBlock:
      return run_set_block(s, scope);
    case Statement::Kind::kMacro:
      scope->set(s.text, Value(define_macro(s, scope)));
      return Flow::kNext;
    case Statement::Kind::kCall:
      run_call(s, scope, out);
      return Flow::kNext;
    case Statement::Kind::kFilter:
      return run_filter(s, scope, out);
    case Statement::Kind::kWith:
      return run_with(s, scope, out);
    case Statement::Kind::kGeneration:
      return run_inner(s.body, scope, out);
    case Statement::Kind::kBreak:
      return Flow::kBreak;
    case Statement::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_inner(const Body& body, const ScopePtr& scope,
                                         std::string& out) {
  return run(body, inner(scope), out);
}

Interpreter::Flow Interpreter::run_if(const Statement& s, const ScopePtr& scope, std::string& out) {
  for (const Branch& branch : s.branches) {
    if (truth(budget_, eval(*branch.test, scope))) return run(branch.body, scope, out);
  }
  return run(s.otherwise, scope, out);
}

Interpreter::Flow Interpreter::run_for(const Statement& s, const ScopePtr& scope,
                                       std::string& out) {
  auto loop = std::make_shared<Loop>();
  const Value source = eval(*s.exprs[0], scope);
  line_ = s.line;
  loop->nesting = checked_nesting(1 + nesting_of(source));
  loop->iterator = Iterator(budget_, source);
  loop->statement = &s;
  loop->scope = scope;
  return run_loop(loop, out);
}

// A loop's else runs if no pass of the body came to its end: jinja2 lets a break in the first pass
// count as an empty loop.
Interpreter::Flow Interpreter::run_loop(const std::shared_ptr<Loop>& loop, std::string& out) {
  const Statement& s = *loop->statement;
  bool completed_one = false;
  for (Value item; advance(*loop, item);) {
    ++loop->index0;
    loop->before = std::move(loop->current);
    loop->current = item;
    const ScopePtr scope = inner(loop->scope);
    scope->set("loop", Value(loop));
    assign(*s.target, item, scope);
    const Flow flow = run(s.body, scope, out);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNext) completed_one = true;
  }
  if (completed_one || s.otherwise.empty()) return Flow::kNext;
  return run_inner(s.otherwise, loop->scope, out);
}

bool Interpreter::advance(Loop& loop, Value& item) {
  if (loop.after) {
    item = std::move(*loop.after);
    loop.after.reset();
    return true;
  }
  const Expr* test = loop.tested ? nullptr : loop.statement->exprs[1].get();
  while (loop.iterator.next(budget_, item)) {
    if (test == nullptr) return true;
    const ScopePtr scope = inner(loop.scope);
    assign(*loop.statement->target, item, scope);
    if (truth(budget_, eval(*test, scope))) return true;
  }
  return false;
}

const Value* Interpreter::peek(Loop& loop) {
  if (!loop.after) {
    Value item;
    if (!advance(loop, item)) return nullptr;
    loop.after = std::move(item);
  }
  return &*loop.after;
}

int64_t Interpreter::length_of_loop(Loop& loop) {
  if (loop.length) return *loop.length;
  const Value& source = loop.iterator.source();
  if (loop.statement->exprs[1] == nullptr && !source.is_sequence(Sequence::Kind::kGenerator)) {
    loop.length = length_of(source);
    return *loop.length;
  }
  // What is left is taken now and walked from a list afterwards, the filter done.
  const int64_t seen = loop.index0 + 1 + (loop.after ? 1 : 0);
  std::optional<Value> after = std::exchange(loop.after, std::nullopt);
  std::vector<Value> rest;
  if (after) rest.push_back(std::move(*after));
  for (Value item; advance(loop, item);) rest.push_back(std::move(item));
  loop.length = seen + static_cast<int64_t>(rest.size()) - (after ? 1 : 0);
  loop.iterator = Iterator(budget_, make_list(budget_, std::move(rest)));
  loop.tested = true;
  return *loop.length;
}

void Interpreter::run_set(const Statement& s, const ScopePtr& scope) {
  const Value value = eval(*s.exprs[0], scope);
  line_ = s.line;
  assign(*s.target, value, scope);
}

Interpreter::Flow Interpreter::run_set_block(const Statement& s, const ScopePtr& scope) {
  std::string text;
  const ScopePtr block = inner(scope);
  const Flow flow = run(s.body, block, text);
  if (flow != Flow::kNext) return flow;
  Value value = string(std::move(text));
  if (s.exprs[0] != nullptr) value = filter_block(*s.exprs[0], std::move(value), block);
  assign(*s.target, value, scope);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_filter(const Statement& s, const ScopePtr& scope,
                                          std::string& out) {
  std::string text;
  const ScopePtr block = inner(scope);
  const Flow flow = run(s.body, block, text);
  if (flow != Flow::kNext) return flow;
  const Value value = filter_block(*s.exprs[0], string(std::move(text)), block);
  write(out, to_text(budget_, value));
  return Flow::kNext;
}

void Interpreter::run_call(const Statement& s, const ScopePtr& scope, std::string& out) {
  const Expr& call_expr = *s.exprs[0];
  const Value callee = eval(*call_expr.children[0], scope);
  Arguments arguments = eval_arguments(call_expr.call, scope);
  arguments.named.emplace_back("caller", Value(define_macro(s, scope)));
  line_ = s.line;
  write(out, to_text(budget_, call(callee, std::move(arguments))));
}

Interpreter::Flow Interpreter::run_with(const Statement& s, const ScopePtr& scope,
                                        std::string& out) {
  const std::vector<Value> values = eval_all(s.exprs, scope);
  const ScopePtr block = inner(scope);
  for (size_t i = 0; i < values.size(); ++i) block->set(s.parameters[i].name, values[i]);
  return run(s.body, block, out);
}

void Interpreter::assign(const Expr& target, const Value& value, const ScopePtr& scope) {
  if (target.kind == Expr::Kind::kName) return scope->set(target.name, value);
  if (target.kind == Expr::Kind::kTuple) return assign_tuple(target, value, scope);
  const Value owner = eval_name(target, scope);
  if (!owner.is_namespace()) {
    raise(fmt::format("cannot assign to the attribute '{}' of '{}', which is no namespace",
                      target.attribute, target.name));
  }
  if (target.attribute[0] == '_') {
    raise(
        fmt::format("the attribute '{}' of a namespace begins with an underscore, which chat "
                    "templates may not store",
                    target.attribute));
  }
  Namespace& ns = owner.ns();
  ns.nesting = checked_nesting(std::max(ns.nesting, 1 + nesting_of(value)));
  ns.attributes.set(string(target.attribute), value);
}

void Interpreter::assign_tuple(const Expr& target, const Value& value, const ScopePtr& scope) {
  const std::vector<Value> items = items_of(value);
  if (items.size() != target.children.size()) {
    raise(
        fmt::format("cannot unpack {} values into {} names", items.size(), target.children.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) assign(*target.children[i], items[i], scope);
}

const Macro* Interpreter::define_macro(const Statement& s, const ScopePtr& scope) {
  budget_.make(sizeof(Macro) + 64);
  for (ScopePtr at = scope; at != nullptr && !at->captured; at = at->parent) {
    budget_.make(kScopeBytes);  // from now on it lives as long as the rendering
    at->captured = true;
    captured_.push_back(at);
  }
  return macros_.emplace_back(std::make_unique<Macro>(Macro{&s, scope})).get();
}

Value Interpreter::call(const Value& callee, Arguments arguments) {
  budget_.step();
  require_defined(callee);
  if (callee.is_macro()) return call_macro(callee.macro(), std::move(arguments));
  if (callee.is_loop()) return call_recursively(callee.loop(), std::move(arguments));
  if (callee.is_function()) {
    const Function& function = callee.function();
    arguments.bind(function.name, function.parameters);
    return function.run(*this, function.self, arguments);
  }
  raise(fmt::format("'{}' object is not callable", type_name(callee)));
}

Value Interpreter::call_macro(const Macro& macro, Arguments arguments) {
  const Level level(budget_);
  const Statement& s = *macro.statement;
  const ScopePtr scope = inner(macro.scope);
  std::vector<Value>& positional = arguments.positional;
  auto& named = arguments.named;
  const auto take_named = [&](std::string_view name) -> std::optional<Value> {
    for (auto at = named.begin(); at != named.end(); ++at) {
      if (at->first != name) continue;
      Value value = std::move(at->second);
      named.erase(at);
      return value;
    }
    return std::nullopt;
  };
  bool has_caller = false;
  for (size_t i = 0; i < s.parameters.size(); ++i) {
    const Parameter& p = s.parameters[i];
    has_caller = has_caller || p.name == "caller";
    std::optional<Value> value;
    i < positional.size() ? value = positional[i] : value = take_named(p.name);
    if (!value && p.fallback != nullptr) value = eval(*p.fallback, scope);
    if (!value) value = make_undefined(fmt::format("parameter '{}' was not provided", p.name));
    scope->set(p.name, std::move(*value));
  }
  if (s.uses_caller && !has_caller) {
    scope->set("caller", take_named("caller").value_or(make_undefined("No caller defined")));
  }
  if (s.uses_kwargs) {
    Dict rest;
    for (auto& [name, value] : named) rest.set(string(name), value);
    scope->set("kwargs", make_dict(budget_, std::move(rest)));
  } else if (!named.empty()) {
    raise(fmt::format("macro '{}' takes no keyword argument '{}'", s.text, named[0].first));
  }
  const size_t taken = std::min(positional.size(), s.parameters.size());
  if (s.uses_varargs) {
    positional.erase(positional.begin(), positional.begin() + static_cast<std::ptrdiff_t>(taken));
    scope->set("varargs", make_tuple(budget_, std::move(positional)));
  } else if (positional.size() > taken) {
    raise(fmt::format("macro '{}' takes not more than {} argument(s)", s.text, taken));
  }
  std::string text;
  run(s.body, scope, text);
  return string(std::move(text));
}

// loop(items) in a loop marked recursive: the whole for statement again, on other items.
Value Interpreter::call_recursively(Loop& outer, Arguments arguments) {
  const Level level(budget_);
  if (!outer.statement->recursive) {
    raise("the loop is called, but not marked 'recursive'");
  }
  arguments.bind("loop", "iterable!");
  auto loop = std::make_shared<Loop>();
  loop->nesting = checked_nesting(1 + nesting_of(arguments.at(0)));
  loop->iterator = Iterator(budget_, arguments.at(0));
  loop->statement = outer.statement;
  loop->scope = outer.scope;
  loop->depth0 = outer.depth0 + 1;
  std::string text;
  run_loop(loop, text);
  return string(std::move(text));
}

}  // namespace nibble::text::jinja
