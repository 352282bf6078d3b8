#include "text/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "text/jinja_interpreter.h"
#include "text/jinja_unicode.h"

namespace nibble::text::jinja {
namespace {

constexpr size_t kObjectBytes = 48;  // of a shared pointer and the allocator, for each object
constexpr size_t kIndexedFrom = 8;   // below, walking the members is faster than hashing

bool is_text(const Value& v, std::string_view s) { return v.is_string() && v.bytes() == s; }

// Whether two keys are one. Keys are scalars and tuples of them, so no budget is needed.
bool same_key(const Value& a, const Value& b) {
  if (a.is_string() || b.is_string()) {
    return a.is_string() && b.is_string() && a.bytes() == b.bytes();
  }
  Budget unmetered{Limits{}};
  return equal(unmetered, a, b);
}

bool equal_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.integer() == b.integer();
  // x86-64's long double holds every int64 exactly, as Python's comparison does.
  const auto wide = [](const Value& v) {
    return v.is_float() ? static_cast<long double>(v.real())
                        : static_cast<long double>(v.integer());
  };
  return wide(a) == wide(b);
}

bool equal_items(Budget& budget, const std::vector<Value>& a, const std::vector<Value>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const Value& x, const Value& y) { return equal(budget, x, y); });
}

bool equal_dicts(Budget& budget, const Dict& a, const Dict& b) {
  if (a.members.size() != b.members.size()) return false;
  return std::all_of(a.members.begin(), a.members.end(), [&](const auto& member) {
    const Value* other = b.find(member.first);
    return other != nullptr && equal(budget, member.second, *other);
  });
}

// Writes repr() of values into one string; nothing is copied on the way up.
class ReprWriter {
 public:
  explicit ReprWriter(Budget& budget) : budget_(budget) {}

  void write(const Value& v) {
    const Level level(budget_);  // a namespace may hold itself
    budget_.step();
    switch (v.kind()) {
      case Value::Kind::kUndefined:
        return add("Undefined");
      case Value::Kind::kNone:
        return add("None");
      case Value::Kind::kBool:
        return add(v.boolean() ? "True" : "False");
      case Value::Kind::kInt:
        return add(std::to_string(v.integer()));
      case Value::Kind::kFloat:
        return add(float_repr(v.real()));
      case Value::Kind::kString:
        return string(v.string());
      case Value::Kind::kSequence:
        return sequence(v.sequence());
      case Value::Kind::kDict:
        return dict(v.dict());
      case Value::Kind::kRange:
        return range(v.range());
      case Value::Kind::kNamespace:
        add("<Namespace ");
        dict(v.ns().attributes);
        return add(">");
      case Value::Kind::kMacro:
        return add("<Macro " + quoted(v.macro().statement->text) + ">");
      case Value::Kind::kLoop:
        raise_unsupported("printing a loop object");
      case Value::Kind::kFunction:
        break;
    }
    raise_unsupported(
        fmt::format("printing the function '{}' (was it meant to be called?)", v.function().name));
  }

  std::string take() { return std::move(out_); }

 private:
  void add(std::string_view text) {
    out_ += text;
    if (out_.size() > budget_.limits().one_value) budget_.make(out_.size());
  }

  void string(const String& s) {
    budget_.make(s.bytes.size());
    add(s.markup ? "Markup(" + quoted(s.bytes) + ")" : quoted(s.bytes));
  }

  void items(const std::vector<Value>& values, std::string_view open, std::string_view close) {
    add(open);
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) add(", ");
      write(values[i]);
    }
    if (open == "(" && values.size() == 1) add(",");
    add(close);
  }

  void sequence(const Sequence& s) {
    switch (s.kind) {
      case Sequence::Kind::kList:
        return items(s.items, "[", "]");
      case Sequence::Kind::kTuple:
      case Sequence::Kind::kGroup:
        return items(s.items, "(", ")");
      case Sequence::Kind::kKeys:
        return items(s.items, "dict_keys([", "])");
      case Sequence::Kind::kValues:
        return items(s.items, "dict_values([", "])");
      case Sequence::Kind::kItems:
        return items(s.items, "dict_items([", "])");
      case Sequence::Kind::kGenerator:
        break;
    }
    raise_unsupported(
        "printing a generator (it has no fixed text; use the list filter on it first)");
  }

  void dict(const Dict& dict) {
    add("{");
    bool first = true;
    for (const auto& [key, value] : dict.members) {
      if (!std::exchange(first, false)) add(", ");
      write(key);
      add(": ");
      write(value);
    }
    add("}");
  }

  void range(const Range& r) {
    if (r.step == 1) return add(fmt::format("range({}, {})", r.start, r.stop));
    add(fmt::format("range({}, {}, {})", r.start, r.stop, r.step));
  }

  Budget& budget_;
  std::string out_;
};

}  // namespace

void Budget::too_many_steps() const {
  throw Trouble{
      ErrorCode::kUnsupported,
      fmt::format("takes more than {} steps, so it is taken to never end", limits_.steps)};
}
void Budget::too_large(size_t n) const {
  throw Trouble{ErrorCode::kUnsupported,
                fmt::format("makes a value of {} bytes; the limit is {}", n, limits_.one_value)};
}
void Budget::too_much() const {
  throw Trouble{ErrorCode::kUnsupported,
                fmt::format("makes more than {} bytes of values", limits_.bytes)};
}
void Budget::too_deep() const {
  throw Trouble{ErrorCode::kUnsupported,
                fmt::format("nests or calls itself more than {} levels deep", limits_.depth)};
}

int64_t Range::size() const {
  if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
  return start > stop ? (start - stop - 1) / -step + 1 : 0;
}

bool Value::same_as(const Value& other) const {
  if (kind() != other.kind()) return false;
  switch (kind()) {
    case Kind::kNone:
      return true;
    case Kind::kBool:
      return boolean() == other.boolean();
    case Kind::kInt:
      return integer() == other.integer();
    case Kind::kFloat:
      return real() == other.real();
    case Kind::kString:
      return &string() == &other.string();
    case Kind::kUndefined:
      return &undefined() == &other.undefined();
    case Kind::kSequence:
      return &sequence() == &other.sequence();
    case Kind::kDict:
      return &dict() == &other.dict();
    case Kind::kRange:
      return &range() == &other.range();
    case Kind::kNamespace:
      return &ns() == &other.ns();
    case Kind::kMacro:
      return &macro() == &other.macro();
    case Kind::kLoop:
      return &loop() == &other.loop();
    case Kind::kFunction:
      return &function() == &other.function();
  }
  return false;
}

const Value* Dict::find(const Value& key) const {
  if (members.size() > kIndexedFrom || !key.is_string()) return find_hashed(key, hash_of(key));
  return find(std::string_view(key.bytes()));
}

const Value* Dict::find(std::string_view key) const {
  if (members.size() <= kIndexedFrom) {
    for (const auto& [name, value] : members) {
      if (is_text(name, key)) return &value;
    }
    return nullptr;
  }
  const auto [begin, end] = index_.equal_range(std::hash<std::string_view>{}(key));
  for (auto at = begin; at != end; ++at) {
    if (is_text(members[at->second].first, key)) return &members[at->second].second;
  }
  return nullptr;
}

const Value* Dict::find_hashed(const Value& key, size_t hash) const {
  if (members.size() <= kIndexedFrom) {
    for (const auto& [name, value] : members) {
      if (same_key(name, key)) return &value;
    }
    return nullptr;
  }
  const auto [begin, end] = index_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    if (same_key(members[at->second].first, key)) return &members[at->second].second;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  const size_t hash = hash_of(key);
  nesting = std::max(nesting, 1 + std::max(nesting_of(key), nesting_of(value)));
  if (const Value* found = find_hashed(key, hash)) {
    const_cast<Value&>(*found) = std::move(value);
    return;
  }
  members.emplace_back(std::move(key), std::move(value));
  if (members.size() == kIndexedFrom + 1) {
    for (size_t i = 0; i < members.size(); ++i) index_.emplace(hash_of(members[i].first), i);
  } else if (members.size() > kIndexedFrom) {
    index_.emplace(hash, members.size() - 1);
  }
}

Value make_string(Budget& budget, std::string bytes, bool markup) {
  budget.make(bytes.size() + sizeof(String) + kObjectBytes);
  auto string = std::make_shared<String>();
  string->length = count_code_points(bytes);
  string->bytes = std::move(bytes);
  string->markup = markup;
  return Value(std::shared_ptr<const String>(std::move(string)));
}

Value make_sequence(Budget& budget, Sequence::Kind kind, std::vector<Value> items) {
  budget.make(items.size() * sizeof(Value) + sizeof(Sequence) + kObjectBytes);
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = kind;
  int nesting = 0;
  for (const Value& v : items) nesting = std::max(nesting, nesting_of(v));
  sequence->nesting = checked_nesting(nesting + 1);
  sequence->items = std::move(items);
  return Value(std::move(sequence));
}

Value make_dict(Budget& budget, Dict dict) {
  budget.make(dict.members.size() * (2 * sizeof(Value) + 48) + sizeof(Dict) + kObjectBytes);
  checked_nesting(dict.nesting);
  return Value(std::shared_ptr<const Dict>(std::make_shared<Dict>(std::move(dict))));
}

Value make_undefined(std::string message) {
  return Value(
      std::shared_ptr<const Undefined>(std::make_shared<Undefined>(Undefined{std::move(message)})));
}

int checked_nesting(int nesting) {
  if (nesting > kMaxNesting) {
    throw Trouble{ErrorCode::kUnsupported,
                  fmt::format("makes values nested more than {} deep", kMaxNesting)};
  }
  return nesting;
}

int nesting_of(const Value& v) {
  switch (v.kind()) {
    case Value::Kind::kSequence:
      return v.sequence().nesting;
    case Value::Kind::kDict:
      return v.dict().nesting;
    case Value::Kind::kNamespace:
      return v.ns().nesting;
    case Value::Kind::kLoop:
      return v.loop().nesting;
    case Value::Kind::kFunction:
      return 1 + nesting_of(v.function().self);
    default:
      return 0;
  }
}

std::string_view type_name(const Value& v) {
  switch (v.kind()) {
    case Value::Kind::kUndefined:
      return "Undefined";
    case Value::Kind::kNone:
      return "NoneType";
    case Value::Kind::kBool:
      return "bool";
    case Value::Kind::kInt:
      return "int";
    case Value::Kind::kFloat:
      return "float";
    case Value::Kind::kString:
      return v.string().markup ? "Markup" : "str";
    case Value::Kind::kDict:
      return "dict";
    case Value::Kind::kRange:
      return "range";
    case Value::Kind::kNamespace:
      return "Namespace";
    case Value::Kind::kMacro:
      return "Macro";
    case Value::Kind::kLoop:
      return "LoopContext";
    case Value::Kind::kFunction:
      return "function";
    case Value::Kind::kSequence:
      break;
  }
  switch (v.sequence().kind) {
    case Sequence::Kind::kList:
      return "list";
    case Sequence::Kind::kTuple:
    case Sequence::Kind::kGroup:
      return "tuple";
    case Sequence::Kind::kGenerator:
      return "generator";
    case Sequence::Kind::kKeys:
      return "dict_keys";
    case Sequence::Kind::kValues:
      return "dict_values";
    case Sequence::Kind::kItems:
      return "dict_items";
  }
  return "object";
}

bool truth(Budget& budget, const Value& v) {
  budget.step();
  switch (v.kind()) {
    case Value::Kind::kUndefined:
    case Value::Kind::kNone:
      return false;
    case Value::Kind::kBool:
    case Value::Kind::kInt:
      return v.integer() != 0;
    case Value::Kind::kFloat:
      return v.real() != 0;
    case Value::Kind::kString:
      return !v.bytes().empty();
    case Value::Kind::kSequence:
      return v.is_sequence(Sequence::Kind::kGenerator) || !v.items().empty();
    case Value::Kind::kDict:
      return !v.dict().members.empty();
    case Value::Kind::kRange:
      return v.range().size() > 0;
    default:
      return true;
  }
}

bool equal(Budget& budget, const Value& a, const Value& b) {
  budget.step();
  if (a.is_number() && b.is_number()) return equal_numbers(a, b);
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.kind() != b.kind()) return false;
  if (a.is_string()) {
    if (a.bytes().size() != b.bytes().size()) return false;
    budget.walk(a.bytes().size());
    return a.bytes() == b.bytes();
  }
  if (a.is_dict()) return &a.dict() == &b.dict() || equal_dicts(budget, a.dict(), b.dict());
  if (a.is_range()) {
    const Range &x = a.range(), &y = b.range();
    if (x.size() != y.size() || x.size() == 0) return x.size() == y.size();
    return x.start == y.start && (x.size() == 1 || x.step == y.step);
  }
  if (a.is_sequence()) {
    if (&a.sequence() == &b.sequence()) return true;
    const bool comparable = (a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple());
    return comparable && equal_items(budget, a.items(), b.items());
  }
  return a.same_as(b);
}

bool less(Budget& budget, const Value& a, const Value& b, std::string_view op) {
  budget.step();
  require_defined(a);
  require_defined(b);
  if (a.is_integral() && b.is_integral()) return a.integer() < b.integer();
  if (a.is_number() && b.is_number()) {
    const long double x = a.is_float() ? static_cast<long double>(a.real()) : a.integer();
    const long double y = b.is_float() ? static_cast<long double>(b.real()) : b.integer();
    return x < y;
  }
  if (a.is_string() && b.is_string()) {
    budget.walk(std::min(a.bytes().size(), b.bytes().size()));
    return a.bytes() < b.bytes();  // the order of UTF-8 bytes is that of code points
  }
  if ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple())) {
    const size_t common = std::min(a.items().size(), b.items().size());
    for (size_t i = 0; i < common; ++i) {
      if (!equal(budget, a.items()[i], b.items()[i])) {
        return less(budget, a.items()[i], b.items()[i], op);
      }
    }
    return a.items().size() < b.items().size();
  }
  raise(fmt::format("'{}' is not supported between instances of '{}' and '{}'", op, type_name(a),
                    type_name(b)));
}

size_t hash_of(const Value& v) {
  switch (v.kind()) {
    case Value::Kind::kString:
      return std::hash<std::string_view>{}(v.bytes());
    case Value::Kind::kBool:
    case Value::Kind::kInt:
      return std::hash<int64_t>{}(v.integer());
    case Value::Kind::kFloat: {
      const double real = v.real();
      const bool whole = std::nearbyint(real) == real && std::fabs(real) < 9e18;
      return whole ? std::hash<int64_t>{}(static_cast<int64_t>(real)) : std::hash<double>{}(real);
    }
    case Value::Kind::kDict:
      break;
    case Value::Kind::kSequence: {
      if (!v.is_tuple()) break;
      size_t hash = 17;
      for (const Value& item : v.items()) hash = hash * 31 + hash_of(item);
      return hash;
    }
    default:
      return static_cast<size_t>(v.kind());  // equal ones have equal kinds; these are rare
  }
  raise(fmt::format("unhashable type: '{}'", type_name(v)));
}

int64_t length_of(const Value& v) {
  switch (v.kind()) {
    case Value::Kind::kUndefined:
      return 0;
    case Value::Kind::kString:
      return static_cast<int64_t>(v.string().length);
    case Value::Kind::kDict:
      return static_cast<int64_t>(v.dict().members.size());
    case Value::Kind::kRange:
      return v.range().size();
    case Value::Kind::kSequence:
      if (v.is_sequence(Sequence::Kind::kGenerator)) break;
      return static_cast<int64_t>(v.items().size());
    default:
      break;
  }
  raise(fmt::format("object of type '{}' has no len()", type_name(v)));
}

std::string to_text(Budget& budget, const Value& v) {
  if (v.is_string()) {
    budget.walk(v.bytes().size());
    return v.bytes();
  }
  if (v.is_undefined()) return {};
  return repr(budget, v);
}

std::string repr(Budget& budget, const Value& v) {
  ReprWriter writer(budget);
  writer.write(v);
  return writer.take();
}

void require_defined(const Value& v) {
  if (v.is_undefined()) raise(v.undefined().message);
}

}  // namespace nibble::text::jinja
