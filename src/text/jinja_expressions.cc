// The interpreter's half that evaluates expressions.
#include <fmt/format.h>

#include "text/jinja_filters.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_operators.h"

namespace nibble::text::jinja {

Value Interpreter::eval(const Expr& e, const ScopePtr& scope) {
  const Level level(budget_);
  budget_.step();
  line_ = e.line;
  switch (e.kind) {
    case Expr::Kind::kLiteral:
      return e.literal;
    case Expr::Kind::kName:
      return eval_name(e, scope);
    case Expr::Kind::kList:
      return make_list(budget_, eval_all(e.children, scope));
    case Expr::Kind::kTuple:
      return make_tuple(budget_, eval_all(e.children, scope));
    case Expr::Kind::kDict:
      return eval_dict(e, scope);
    case Expr::Kind::kAttribute:
      return eval_attribute(e, scope);
    case Expr::Kind::kItem:
      return eval_item(e, scope);
    case Expr::Kind::kCall:
      return eval_call(e, scope);
    case Expr::Kind::kFilter:
      return eval_filter(e, scope);
    case Expr::Kind::kTest: {
      const Value value = eval(*e.children[0], scope);
      Arguments arguments = eval_arguments(e.call, scope);
      line_ = e.line;
      return Value(call_test(e.name, value, std::move(arguments)));
    }
    case Expr::Kind::kNot:
      return Value(!truth(budget_, eval(*e.children[0], scope)));
    case Expr::Kind::kNegative:
      return negative(eval(*e.children[0], scope));
    case Expr::Kind::kPositive: {
      const Value value = eval(*e.children[0], scope);
      return binary(*this, "+", Value(0), value);
    }
    case Expr::Kind::kBinary:
      return eval_binary(e, scope);
    case Expr::Kind::kConcat:
      return eval_concat(e, scope);
    case Expr::Kind::kCompare:
      return eval_compare(e, scope);
    case Expr::Kind::kAnd: {
      Value a = eval(*e.children[0], scope);
      return truth(budget_, a) ? eval(*e.children[1], scope) : a;
    }
    case Expr::Kind::kOr: {
      Value a = eval(*e.children[0], scope);
      return truth(budget_, a) ? a : eval(*e.children[1], scope);
    }
    case Expr::Kind::kConditional:
      return eval_conditional(e, scope);
    case Expr::Kind::kSlice:
      raise("a slice stands inside a tuple of subscripts");
    case Expr::Kind::kNamespaceRef:
      break;  // a target, never evaluated
  }
  raise("this expression has no value");
}

Value Interpreter::eval_attribute(const Expr& e, const ScopePtr& scope) {
  const Value object = eval(*e.children[0], scope);
  line_ = e.line;
  return attribute_of(*this, object, e.name);
}

Value Interpreter::eval_name(const Expr& e, const ScopePtr& scope) {
  for (const Scope* at = scope.get(); at != nullptr; at = at->parent.get()) {
    for (const auto& [name, value] : at->names) {
      if (name == e.name) return value;
    }
    budget_.step();
  }
  if (const Value* value = context_.find(std::string_view(e.name))) return *value;
  if (std::optional<Value> value = global_of(e.name)) return *value;
  return make_undefined(fmt::format("'{}' is undefined", e.name));
}

Value Interpreter::eval_dict(const Expr& e, const ScopePtr& scope) {
  Dict dict;
  for (size_t i = 0; i < e.children.size(); i += 2) {
    Value key = eval(*e.children[i], scope);
    dict.set(std::move(key), eval(*e.children[i + 1], scope));
  }
  return make_dict(budget_, std::move(dict));
}

Value Interpreter::eval_item(const Expr& e, const ScopePtr& scope) {
  const Value object = eval(*e.children[0], scope);
  const Expr& key_expr = *e.children[1];
  if (key_expr.kind == Expr::Kind::kSlice) return eval_slice(object, key_expr, scope);
  const Value key = eval(key_expr, scope);
  line_ = e.line;
  return item_of(*this, object, key);
}

Value Interpreter::eval_slice(const Value& object, const Expr& slice, const ScopePtr& scope) {
  const auto bound = [&](size_t i) -> std::optional<int64_t> {
    if (slice.children[i] == nullptr) return std::nullopt;
    const Value v = eval(*slice.children[i], scope);
    if (v.is_none()) return std::nullopt;
    if (!v.is_integral()) raise("slice indices must be integers or None");
    return v.integer();
  };
  Slice bounds;
  bounds.start = bound(0);
  bounds.stop = bound(1);
  bounds.step = bound(2);
  line_ = slice.line;
  return slice_of(*this, object, bounds);
}

Value Interpreter::eval_call(const Expr& e, const ScopePtr& scope) {
  const Value callee = eval(*e.children[0], scope);
  Arguments arguments = eval_arguments(e.call, scope);
  line_ = e.line;
  Value result = call(callee, std::move(arguments));
  line_ = e.line;
  return result;
}

Value Interpreter::eval_filter(const Expr& e, const ScopePtr& scope) {
  return filtered(e, eval(*e.children[0], scope), scope);
}

// The last filter of `e` on a value that has passed the ones before.
Value Interpreter::filtered(const Expr& e, const Value& value, const ScopePtr& scope) {
  Arguments arguments = eval_arguments(e.call, scope);
  line_ = e.line;
  return call_filter(e.name, value, std::move(arguments));
}

// Text of a block through a chain of filters, the innermost of which has no operand.
Value Interpreter::filter_block(const Expr& e, Value text, const ScopePtr& scope) {
  if (e.children[0] != nullptr) text = filter_block(*e.children[0], std::move(text), scope);
  return filtered(e, text, scope);
}

Value Interpreter::eval_binary(const Expr& e, const ScopePtr& scope) {
  const Value a = eval(*e.children[0], scope);
  const Value b = eval(*e.children[1], scope);
  line_ = e.line;
  return binary(*this, e.name, a, b);
}

Value Interpreter::eval_concat(const Expr& e, const ScopePtr& scope) {
  std::string out;
  for (const ExprPtr& child : e.children) {
    const Value value = eval(*child, scope);
    value.is_string() ? write(out, value.bytes()) : write(out, to_text(budget_, value));
  }
  line_ = e.line;
  return string(std::move(out));
}

Value Interpreter::eval_compare(const Expr& e, const ScopePtr& scope) {
  Value left = eval(*e.children[0], scope);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    Value right = eval(*e.children[i + 1], scope);
    line_ = e.line;
    if (!compare(*this, e.operators[i], left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Interpreter::eval_conditional(const Expr& e, const ScopePtr& scope) {
  if (truth(budget_, eval(*e.children[0], scope))) return eval(*e.children[1], scope);
  if (e.children[2] != nullptr) return eval(*e.children[2], scope);
  return make_undefined("the inline if-expression was false and has no else");
}

std::vector<Value> Interpreter::eval_all(const std::vector<ExprPtr>& exprs, const ScopePtr& scope) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (const ExprPtr& e : exprs) values.push_back(eval(*e, scope));
  return values;
}

Arguments Interpreter::eval_arguments(const CallArguments& call, const ScopePtr& scope) {
  Arguments arguments;
  arguments.positional = eval_all(call.positional, scope);
  for (const auto& [name, e] : call.named) arguments.named.emplace_back(name, eval(*e, scope));
  if (call.star != nullptr) {
    for (Value& v : items_of(eval(*call.star, scope))) arguments.positional.push_back(std::move(v));
  }
  if (call.double_star != nullptr) {
    const Value rest = eval(*call.double_star, scope);
    require_defined(rest);
    if (!rest.is_dict()) raise("argument after ** must be a mapping");
    for (const auto& [key, value] : rest.dict().members) {
      if (!key.is_string()) raise("keywords must be strings");
      arguments.named.emplace_back(key.bytes(), value);
    }
  }
  return arguments;
}

Value Interpreter::call_filter(std::string_view name, const Value& value, Arguments arguments) {
  const FilterRow* row = find_filter(name);
  if (row == nullptr) check_filter_exists(name, line_);
  arguments.bind(name, row->parameters);
  return row->run(*this, value, arguments);
}

bool Interpreter::call_test(std::string_view name, const Value& value, Arguments arguments) {
  const TestRow* row = find_test(name);
  if (row == nullptr) check_test_exists(name, line_);
  arguments.bind(name, row->parameters);
  return row->run(*this, value, arguments);
}

}  // namespace nibble::text::jinja
