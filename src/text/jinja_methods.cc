// Attributes by type: methods bound to their object, the attributes of a loop, and what the sandbox
// hides.
#include "text/jinja_methods.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_operators.h"

namespace nibble::text::jinja {
namespace {

using In = Interpreter;
using Args = Arguments;

// Attributes that Python has and this interpreter does not: asking for one is an error, because
// calling it undefined would silently render something else.
constexpr std::string_view kOtherOfString[] = {"casefold",   "encode",       "expandtabs",
                                               "format_map", "isidentifier", "istitle",
                                               "maketrans",  "translate"};
constexpr std::string_view kOtherOfNumber[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
    "numerator",        "real",      "to_bytes"};
constexpr std::string_view kOtherOfMacro[] = {"arguments", "caller", "catch_kwargs",
                                              "catch_varargs", "explicit_caller"};
// What would change the object: the sandbox says it is not there.
constexpr std::string_view kChangesList[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kChangesDict[] = {"clear", "pop", "popitem", "setdefault", "update"};

template <class List>
bool has(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

Value bound(const Value& self, const FilterRow& row) {
  Function function;
  function.name = row.name;
  function.self = self;
  function.run = row.run;
  function.parameters = row.parameters;
  return Value(std::shared_ptr<const Function>(std::make_shared<Function>(std::move(function))));
}

std::optional<Value> find_in(const FilterRow* table, const Value& self, std::string_view name) {
  for (const FilterRow* row = table; !row->name.empty(); ++row) {
    if (row->name == name) return bound(self, *row);
  }
  return std::nullopt;
}

[[noreturn]] void raise_other(const Value& object, std::string_view name) {
  raise_unsupported(fmt::format("the attribute '{}' of '{}'", name, type_name(object)));
}

// -- dict --

Value dict_get(In&, const Value& self, const Args& args) {
  const Value* value = self.dict().find(args.at(0));
  if (value != nullptr) return *value;
  return args.get(1) != nullptr ? args.at(1) : Value();
}
Value dict_items(In& in, const Value& self, const Args&) {
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict().members) {
    items.push_back(make_tuple(in.budget(), {key, value}));
  }
  return make_sequence(in.budget(), Sequence::Kind::kItems, std::move(items));
}
Value dict_keys(In& in, const Value& self, const Args&) {
  return make_sequence(in.budget(), Sequence::Kind::kKeys, in.items_of(self));
}
Value dict_values(In& in, const Value& self, const Args&) {
  std::vector<Value> values;
  for (const auto& member : self.dict().members) values.push_back(member.second);
  return make_sequence(in.budget(), Sequence::Kind::kValues, std::move(values));
}
Value copy(In&, const Value& self, const Args&) { return self; }

const FilterRow kDictMethods[] = {
    {"copy", copy, ""},      {"get", dict_get, "key! default"}, {"items", dict_items, ""},
    {"keys", dict_keys, ""}, {"values", dict_values, ""},       {},
};

// -- list and tuple --

Value sequence_count(In& in, const Value& self, const Args& args) {
  int64_t n = 0;
  for (const Value& item : self.items()) n += equal(in.budget(), item, args.at(0)) ? 1 : 0;
  return Value(n);
}
Value sequence_index(In& in, const Value& self, const Args& args) {
  const auto size = static_cast<int64_t>(self.items().size());
  const auto placed = [&](size_t i, int64_t fallback) {
    const int64_t v = args.integer(i, fallback);
    return v < 0 ? std::max<int64_t>(v + size, 0) : std::min(v, size);
  };
  for (int64_t i = placed(1, 0); i < placed(2, size); ++i) {
    if (equal(in.budget(), self.items()[static_cast<size_t>(i)], args.at(0))) return Value(i);
  }
  raise("the item is not in the sequence");
}

const FilterRow kListMethods[] = {
    {"copy", copy, ""},
    {"count", sequence_count, "value!"},
    {"index", sequence_index, "value! start stop"},
    {},
};
const FilterRow kTupleMethods[] = {
    {"count", sequence_count, "value!"},
    {"index", sequence_index, "value! start stop"},
    {},
};

// -- loop --

Value loop_cycle(In&, const Value& self, const Args& args) {
  if (args.positional.empty()) raise("no items for cycling given");
  const auto at = static_cast<size_t>(std::max<int64_t>(self.loop().index0, 0));
  return args.positional[at % args.positional.size()];
}
Value loop_changed(In& in, const Value& self, const Args& args) {
  Loop& loop = self.loop();
  const bool same =
      loop.last_changed && loop.last_changed->size() == args.positional.size() &&
      std::equal(args.positional.begin(), args.positional.end(), loop.last_changed->begin(),
                 [&](const Value& a, const Value& b) { return equal(in.budget(), a, b); });
  if (same) return Value(false);
  for (const Value& v : args.positional) {
    loop.nesting = checked_nesting(std::max(loop.nesting, 1 + nesting_of(v)));
  }
  loop.last_changed = args.positional;
  return Value(true);
}
const FilterRow kLoopMethods[] = {{"cycle", loop_cycle, "*"}, {"changed", loop_changed, "*"}, {}};

std::optional<Value> loop_attribute(In& in, const Value& self, std::string_view name) {
  Loop& loop = self.loop();
  if (name == "index") return Value(loop.index0 + 1);
  if (name == "index0") return Value(loop.index0);
  if (name == "first") return Value(loop.index0 == 0);
  if (name == "last") return Value(in.peek(loop) == nullptr);
  if (name == "length") return Value(in.length_of_loop(loop));
  if (name == "revindex") return Value(in.length_of_loop(loop) - loop.index0);
  if (name == "revindex0") return Value(in.length_of_loop(loop) - loop.index0 - 1);
  if (name == "depth") return Value(loop.depth0 + 1);
  if (name == "depth0") return Value(loop.depth0);
  if (name == "previtem") {
    return loop.index0 == 0 ? make_undefined("there is no previous item") : loop.before;
  }
  if (name == "nextitem") {
    const Value* next = in.peek(loop);
    return next != nullptr ? *next : make_undefined("there is no next item");
  }
  return find_in(kLoopMethods, self, name);
}

// -- the rest --

Value cycler_next(In&, const Value& self, const Args&) {
  Sequence& items = self.sequence();
  const size_t at = items.next;
  items.next = (at + 1) % items.items.size();
  return items.items[at];
}
Value cycler_reset(In&, const Value& self, const Args&) {
  self.sequence().next = 0;
  return Value();
}
const FilterRow kCyclerMethods[] = {{"next", cycler_next, ""}, {"reset", cycler_reset, ""}, {}};

std::optional<Value> range_attribute(const Range& range, std::string_view name) {
  if (name == "start") return Value(range.start);
  if (name == "stop") return Value(range.stop);
  if (name == "step") return Value(range.step);
  if (name == "count" || name == "index") {
    raise_unsupported(fmt::format("the method '{}' of 'range'", name));
  }
  return std::nullopt;
}

std::optional<Value> sequence_attribute(const Value& object, std::string_view name) {
  const bool grouped = object.is_sequence(Sequence::Kind::kGroup);
  if (grouped && name == "grouper") return object.items()[0];
  if (grouped && name == "list") return object.items()[1];
  if (object.is_tuple()) return find_in(kTupleMethods, object, name);
  if (!object.is_list()) return std::nullopt;
  if (has(kChangesList, name)) {
    return make_undefined(
        fmt::format("access to attribute '{}' of 'list' object is unsafe (chat templates may not "
                    "change a list; a namespace can be changed)",
                    name));
  }
  return find_in(kListMethods, object, name);
}

}  // namespace

std::optional<Value> method_of(Interpreter& in, const Value& object, std::string_view name) {
  switch (object.kind()) {
    case Value::Kind::kString: {
      std::optional<Value> method = find_in(kStringMethods, object, name);
      if (!method && has(kOtherOfString, name)) raise_other(object, name);
      return method;
    }
    case Value::Kind::kDict:
      if (has(kChangesDict, name)) {
        return make_undefined(
            fmt::format("access to attribute '{}' of 'dict' object is unsafe (chat templates may "
                        "not change a dict; a namespace can be changed)",
                        name));
      }
      if (name == "fromkeys") raise_other(object, name);
      return find_in(kDictMethods, object, name);
    case Value::Kind::kSequence:
      return sequence_attribute(object, name);
    case Value::Kind::kLoop:
      return loop_attribute(in, object, name);
    case Value::Kind::kRange:
      return range_attribute(object.range(), name);
    case Value::Kind::kMacro:
      if (name == "name") return in.string(object.macro().statement->text);
      if (has(kOtherOfMacro, name)) raise_other(object, name);
      return std::nullopt;
    case Value::Kind::kFunction:
      if (object.function().name != "cycler") return std::nullopt;
      if (name == "current") {
        const Sequence& items = object.function().self.sequence();
        return items.items[items.next];
      }
      return find_in(kCyclerMethods, object.function().self, name);
    case Value::Kind::kBool:
    case Value::Kind::kInt:
    case Value::Kind::kFloat:
      if (has(kOtherOfNumber, name)) raise_other(object, name);
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

}  // namespace nibble::text::jinja
