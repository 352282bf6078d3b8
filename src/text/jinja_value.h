// The values of a template while it is rendered: Python's, as far as chat templates can tell.
//
// Strings, lists and dicts are shared and never change after they are made (the sandbox that
// transformers renders in forbids it too), so copying a Value is cheap. Only three things have
// state: a namespace, a loop and the position of a generator. Namespaces and macros can refer to
// themselves; the interpreter owns them until the rendering ends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja_trouble.h"

namespace nibble::text::jinja {

class Value;
struct Macro;
struct Namespace;
struct Loop;
struct Function;

struct String {
  std::string bytes;    // UTF-8
  size_t length = 0;    // code points
  bool markup = false;  // markupsafe.Markup: what `safe` and `escape` give
};

// What a name or key that is not there evaluates to. It prints as nothing and is false; any other
// use raises `message`.
struct Undefined {
  std::string message;
};

struct Sequence {
  enum class Kind {
    kList,
    kTuple,
    kGroup,      // groupby's (grouper, list), a tuple with names
    kGenerator,  // map, select, batch ...: can be walked once
    kKeys,
    kValues,
    kItems,
  };
  Kind kind = Kind::kList;
  std::vector<Value> items;
  size_t next = 0;  // kGenerator: the first item not yet taken
  int nesting = 1;
};

// Bounds and steps of a range stay within this, so that walking it cannot overflow.
constexpr int64_t kMaxRangeBound = int64_t{1} << 53;

struct Range {
  int64_t start = 0, stop = 0, step = 1;
  int64_t size() const;  // at most the 100000 that the sandbox allows
  int64_t at(int64_t i) const { return start + i * step; }
};

struct Dict;

class Value {
 public:
  struct None {};
  enum class Kind {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kSequence,
    kDict,
    kRange,
    kNamespace,
    kMacro,
    kLoop,
    kFunction,
  };

  Value() : value_(None{}) {}
  Value(bool v) : value_(v) {}                          // NOLINT
  Value(int v) : value_(static_cast<int64_t>(v)) {}     // NOLINT
  Value(int64_t v) : value_(v) {}                       // NOLINT
  Value(size_t v) : value_(static_cast<int64_t>(v)) {}  // NOLINT
  Value(double v) : value_(v) {}                        // NOLINT
  Value(const void*) = delete;
  Value(std::shared_ptr<const Undefined> v) : value_(std::move(v)) {}  // NOLINT
  Value(std::shared_ptr<const String> v) : value_(std::move(v)) {}     // NOLINT
  Value(std::shared_ptr<Sequence> v) : value_(std::move(v)) {}         // NOLINT
  Value(std::shared_ptr<const Dict> v) : value_(std::move(v)) {}       // NOLINT
  Value(std::shared_ptr<const Range> v) : value_(std::move(v)) {}      // NOLINT
  Value(std::shared_ptr<Loop> v) : value_(std::move(v)) {}             // NOLINT
  Value(std::shared_ptr<const Function> v) : value_(std::move(v)) {}   // NOLINT
  Value(Namespace* v) : value_(v) {}                                   // NOLINT
  Value(const Macro* v) : value_(v) {}                                 // NOLINT

  Kind kind() const { return static_cast<Kind>(value_.index()); }
  bool is_undefined() const { return kind() == Kind::kUndefined; }
  bool is_none() const { return kind() == Kind::kNone; }
  bool is_bool() const { return kind() == Kind::kBool; }
  bool is_int() const { return kind() == Kind::kInt; }
  bool is_float() const { return kind() == Kind::kFloat; }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_integral() const { return is_bool() || is_int(); }  // Python's bool is an int
  bool is_string() const { return kind() == Kind::kString; }
  bool is_sequence() const { return kind() == Kind::kSequence; }
  bool is_sequence(Sequence::Kind k) const { return is_sequence() && sequence().kind == k; }
  bool is_list() const { return is_sequence(Sequence::Kind::kList); }
  bool is_tuple() const {
    return is_sequence(Sequence::Kind::kTuple) || is_sequence(Sequence::Kind::kGroup);
  }
  bool is_dict() const { return kind() == Kind::kDict; }
  bool is_range() const { return kind() == Kind::kRange; }
  bool is_namespace() const { return kind() == Kind::kNamespace; }
  bool is_macro() const { return kind() == Kind::kMacro; }
  bool is_loop() const { return kind() == Kind::kLoop; }
  bool is_function() const { return kind() == Kind::kFunction; }

  // Precondition of each: the matching is_...().
  const Undefined& undefined() const { return *get<std::shared_ptr<const Undefined>>(); }
  bool boolean() const { return get<bool>(); }
  int64_t integer() const { return is_bool() ? int64_t{boolean()} : get<int64_t>(); }
  double real() const { return is_float() ? get<double>() : static_cast<double>(integer()); }
  const String& string() const { return *get<std::shared_ptr<const String>>(); }
  const std::string& bytes() const { return string().bytes; }
  Sequence& sequence() const { return *get<std::shared_ptr<Sequence>>(); }
  const std::vector<Value>& items() const { return sequence().items; }
  const Dict& dict() const { return *get<std::shared_ptr<const Dict>>(); }
  const Range& range() const { return *get<std::shared_ptr<const Range>>(); }
  Loop& loop() const { return *get<std::shared_ptr<Loop>>(); }
  const Function& function() const { return *get<std::shared_ptr<const Function>>(); }
  Namespace& ns() const { return *get<Namespace*>(); }
  const Macro& macro() const { return *get<const Macro*>(); }

  // Python's `is`: the same object, for the objects that a template can tell apart.
  bool same_as(const Value& other) const;

 private:
  template <class T>
  const T& get() const {
    return *std::get_if<T>(&value_);
  }

  std::variant<std::shared_ptr<const Undefined>, None, bool, int64_t, double,
               std::shared_ptr<const String>, std::shared_ptr<Sequence>,
               std::shared_ptr<const Dict>, std::shared_ptr<const Range>, Namespace*, const Macro*,
               std::shared_ptr<Loop>, std::shared_ptr<const Function>>
      value_;
};

// A dict in the order of insertion, with Python's equality of keys (1, 1.0 and True are one key).
struct Dict {
  std::vector<std::pair<Value, Value>> members;
  int nesting = 1;

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);  // raises if the key is of a type that cannot be one

 private:
  const Value* find_hashed(const Value& key, size_t hash) const;
  std::unordered_multimap<size_t, size_t> index_;  // hash of key -> position in members
};

// What namespace() makes: the one thing a template can change.
struct Namespace {
  Dict attributes;
  int nesting = 1;
};

class Interpreter;
struct Arguments;

// A global function, or a method bound to its object. A joiner and a cycler keep their state in
// `self`, a generator whose position moves.
struct Function {
  std::string_view name;
  Value self;
  Value (*run)(Interpreter&, const Value& self, const Arguments&) = nullptr;
  const char* parameters = "";  // see Arguments::bind
};

// Makes values, each charged to the budget.
Value make_string(Budget& budget, std::string bytes, bool markup = false);
Value make_sequence(Budget& budget, Sequence::Kind kind, std::vector<Value> items);
inline Value make_list(Budget& budget, std::vector<Value> items) {
  return make_sequence(budget, Sequence::Kind::kList, std::move(items));
}
inline Value make_tuple(Budget& budget, std::vector<Value> items) {
  return make_sequence(budget, Sequence::Kind::kTuple, std::move(items));
}
Value make_dict(Budget& budget, Dict dict);
Value make_undefined(std::string message);

// How deep a value is nested; raises beyond kMaxNesting.
int nesting_of(const Value& v);
int checked_nesting(int nesting);

// Python's names of types: "str", "NoneType", "list" ...
std::string_view type_name(const Value& v);
bool truth(Budget& budget, const Value& v);
bool equal(Budget& budget, const Value& a, const Value& b);
// a < b, for values that Python can order; raises otherwise, naming `op`.
bool less(Budget& budget, const Value& a, const Value& b, std::string_view op = "<");
size_t hash_of(const Value& v);  // raises for a list, dict ...
// len(v); raises if it has none.
int64_t length_of(const Value& v);
// str(v) and repr(v).
std::string to_text(Budget& budget, const Value& v);
std::string repr(Budget& budget, const Value& v);
// Raises the message of an undefined value; nothing for any other.
void require_defined(const Value& v);

}  // namespace nibble::text::jinja
