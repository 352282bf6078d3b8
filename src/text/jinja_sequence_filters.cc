// Filters that walk or make lists, and the table that filters are found in.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace nibble::text::jinja {
namespace {

// What Jinja has beyond the tables: asking for it is not a mistake of the template.
constexpr std::string_view kOtherFilters[] = {"filesizeformat", "pprint",   "random", "striptags",
                                              "urlize",         "wordwrap", "xmlattr"};

Value generator(Interpreter& in, std::vector<Value> items) {
  return make_sequence(in.budget(), Sequence::Kind::kGenerator, std::move(items));
}

// The attribute argument of map, sort, selectattr ...: "a.b.0" are three steps, an integer is one.
class Path {
 public:
  Path(Interpreter& in, const Value* attribute) {
    if (attribute == nullptr || attribute->is_none()) return;
    if (!attribute->is_string()) {
      steps_.push_back(*attribute);
      return;
    }
    std::string_view rest = attribute->bytes();
    while (true) {
      const std::string_view one = rest.substr(0, rest.find('.'));
      steps_.push_back(step_of(in, one));
      if (one.size() == rest.size()) break;
      rest.remove_prefix(one.size() + 1);
    }
  }
  Value of(Interpreter& in, Value item, const Value* fallback = nullptr) const {
    for (const Value& step : steps_) {
      item = item_of(in, item, step);
      if (fallback != nullptr && item.is_undefined()) item = *fallback;
    }
    return item;
  }

 private:
  static Value step_of(Interpreter& in, std::string_view name) {
    const bool number =
        !name.empty() && name.size() < 10 &&
        std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    return number ? Value(static_cast<int64_t>(std::stol(std::string(name))))
                  : in.string(std::string(name));
  }
  std::vector<Value> steps_;
};

Value without_case(Interpreter& in, const Value& v) {
  return v.is_string() ? in.string(to_lower(v.bytes())) : v;
}

// `items` in the order of `keys`, equal ones as they were; reversed only where the keys differ.
std::vector<Value> sorted(Interpreter& in, std::vector<Value> items, const std::vector<Value>& keys,
                          bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? less(in.budget(), keys[b], keys[a]) : less(in.budget(), keys[a], keys[b]);
  });
  std::vector<Value> out;
  out.reserve(items.size());
  for (size_t i : order) out.push_back(std::move(items[i]));
  return out;
}

Value length(Interpreter& in, const Value& value, const Arguments&) {
  return Value(value.is_loop() ? in.length_of_loop(value.loop()) : length_of(value));
}

Value list_filter(Interpreter& in, const Value& value, const Arguments&) {
  return make_list(in.budget(), in.items_of(value));
}

Value first(Interpreter& in, const Value& value, const Arguments&) {
  Iterator iterator(in.budget(), value);
  Value item;
  if (iterator.next(in.budget(), item)) return item;
  return make_undefined("No first item, sequence was empty.");
}

Value last(Interpreter& in, const Value& value, const Arguments&) {
  if (value.is_sequence(Sequence::Kind::kGenerator)) raise("'generator' object is not reversible");
  std::vector<Value> items = in.items_of(value);
  if (items.empty()) return make_undefined("No last item, sequence was empty.");
  return items.back();
}

Value join(Interpreter& in, const Value& value, const Arguments& args) {
  Budget& budget = in.budget();
  const std::string glue = args.get(0) != nullptr ? to_text(budget, args.at(0)) : "";
  const Path path(in, args.get(1));
  std::string out;
  bool is_first = true;
  Iterator iterator(budget, value);
  for (Value item; iterator.next(budget, item);) {
    if (!is_first) out += glue;
    is_first = false;
    out += to_text(budget, path.of(in, item));
    if (out.size() > budget.limits().one_value) budget.make(out.size());
  }
  return in.string(std::move(out));
}

Value items(Interpreter& in, const Value& value, const Arguments&) {
  if (value.is_undefined()) return generator(in, {});
  if (!value.is_dict()) raise("Can only get item pairs from a mapping.");
  std::vector<Value> pairs;
  for (const auto& [key, v] : value.dict().members) {
    pairs.push_back(make_tuple(in.budget(), {key, v}));
  }
  return generator(in, std::move(pairs));
}

Value dictsort(Interpreter& in, const Value& value, const Arguments& args) {
  require_defined(value);
  if (!value.is_dict())
    raise(fmt::format("'{}' object has no attribute 'items'", type_name(value)));
  const bool case_sensitive = args.truth(in.budget(), 0, false);
  const std::string by = args.get(1) != nullptr ? args.string(1) : "key";
  if (by != "key" && by != "value") raise("dictsort sorts by either \"key\" or \"value\"");
  std::vector<Value> pairs;
  std::vector<Value> keys;
  for (const auto& [key, v] : value.dict().members) {
    pairs.push_back(make_tuple(in.budget(), {key, v}));
    const Value& sort_key = by == "key" ? key : v;
    keys.push_back(case_sensitive ? sort_key : without_case(in, sort_key));
  }
  const bool reverse = args.truth(in.budget(), 2, false);
  return make_list(in.budget(), sorted(in, std::move(pairs), keys, reverse));
}

Value sort(Interpreter& in, const Value& value, const Arguments& args) {
  const bool reverse = args.truth(in.budget(), 0, false);
  const bool case_sensitive = args.truth(in.budget(), 1, false);
  std::vector<Path> paths;  // attribute="a,b" sorts by a, then by b
  if (const Value* attribute = args.get(2); attribute != nullptr && attribute->is_string()) {
    std::string_view rest = attribute->bytes();
    while (true) {
      const std::string_view one = rest.substr(0, rest.find(','));
      const Value name = in.string(std::string(one));
      paths.emplace_back(in, &name);
      if (one.size() == rest.size()) break;
      rest.remove_prefix(one.size() + 1);
    }
  } else {
    paths.emplace_back(in, attribute);
  }
  std::vector<Value> all = in.items_of(value);
  std::vector<Value> keys;
  for (const Value& item : all) {
    std::vector<Value> key;
    for (const Path& path : paths) {
      const Value part = path.of(in, item);
      key.push_back(case_sensitive ? part : without_case(in, part));
    }
    keys.push_back(make_list(in.budget(), std::move(key)));
  }
  return make_list(in.budget(), sorted(in, std::move(all), keys, reverse));
}

Value unique(Interpreter& in, const Value& value, const Arguments& args) {
  const bool case_sensitive = args.truth(in.budget(), 0, false);
  const Path path(in, args.get(1));
  Dict seen;
  std::vector<Value> out;
  for (Value& item : in.items_of(value)) {
    Value key = path.of(in, item);
    if (!case_sensitive) key = without_case(in, key);
    if (seen.find(key) != nullptr) continue;
    seen.set(std::move(key), Value());
    out.push_back(std::move(item));
  }
  return generator(in, std::move(out));
}

Value extreme(Interpreter& in, const Value& value, const Arguments& args, bool largest) {
  const bool case_sensitive = args.truth(in.budget(), 0, false);
  const Path path(in, args.get(1));
  std::optional<Value> best;
  Value best_key;
  for (Value& item : in.items_of(value)) {
    Value key = path.of(in, item);
    if (!case_sensitive) key = without_case(in, key);
    const bool better = !best || (largest ? less(in.budget(), best_key, key, ">")
                                          : less(in.budget(), key, best_key));
    if (!better) continue;
    best = std::move(item);
    best_key = std::move(key);
  }
  return best ? *best : make_undefined("No aggregated item, sequence was empty.");
}
Value min_filter(Interpreter& in, const Value& value, const Arguments& args) {
  return extreme(in, value, args, false);
}
Value max_filter(Interpreter& in, const Value& value, const Arguments& args) {
  return extreme(in, value, args, true);
}

Value sum(Interpreter& in, const Value& value, const Arguments& args) {
  const Path path(in, args.get(0));
  Value total = args.get(1) != nullptr ? args.at(1) : Value(0);
  if (total.is_string()) raise("sum() can't sum strings");
  for (const Value& item : in.items_of(value)) total = binary(in, "+", total, path.of(in, item));
  return total;
}

Value reverse(Interpreter& in, const Value& value, const Arguments&) {
  if (value.is_string()) {
    Slice backwards;
    backwards.step = -1;
    return slice_of(in, value, backwards);
  }
  std::vector<Value> all = in.items_of(value);
  std::reverse(all.begin(), all.end());
  if (value.is_sequence(Sequence::Kind::kGenerator)) return make_list(in.budget(), std::move(all));
  return generator(in, std::move(all));
}

Value batch(Interpreter& in, const Value& value, const Arguments& args) {
  const int64_t linecount = args.integer(0, 0);
  const auto count = static_cast<size_t>(linecount);  // a negative one is never reached
  const bool fills = args.get(1) != nullptr && !args.at(1).is_none();
  std::vector<Value> rows;
  std::vector<Value> row;
  for (Value& item : in.items_of(value)) {
    if (row.size() == count) rows.push_back(make_list(in.budget(), std::exchange(row, {})));
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (fills && linecount > 0) {
      in.budget().make(std::min(count, SIZE_MAX / sizeof(Value)) * sizeof(Value));
      row.resize(std::max(row.size(), count), args.at(1));
    }
    rows.push_back(make_list(in.budget(), std::move(row)));
  }
  return generator(in, std::move(rows));
}

Value slice(Interpreter& in, const Value& value, const Arguments& args) {
  const int64_t slices = args.integer(0, 0);
  if (slices == 0) raise("the filter slice cannot make 0 slices");
  const size_t count = slices > 0 ? static_cast<size_t>(slices) : 1;
  const std::vector<Value> all = in.items_of(value);
  const size_t each = all.size() / count;
  const size_t longer = all.size() % count;  // the first ones take one more
  std::vector<Value> columns;
  size_t at = 0;
  for (size_t i = 0; slices > 0 && i < count; ++i) {
    const size_t size = each + (i < longer ? 1 : 0);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(at);
    std::vector<Value> column(begin, begin + static_cast<std::ptrdiff_t>(size));
    if (args.get(1) != nullptr && !args.at(1).is_none() && i >= longer)
      column.push_back(args.at(1));
    columns.push_back(make_list(in.budget(), std::move(column)));
    at += size;
  }
  return generator(in, std::move(columns));
}

Value groupby(Interpreter& in, const Value& value, const Arguments& args) {
  const Path path(in, args.get(0));
  const Value* fallback = args.get(1) != nullptr && !args.at(1).is_none() ? args.get(1) : nullptr;
  const bool case_sensitive = args.truth(in.budget(), 2, false);
  const auto key_of = [&](const Value& item) {
    const Value key = path.of(in, item, fallback);
    return case_sensitive ? key : without_case(in, key);
  };
  std::vector<Value> all = in.items_of(value);
  std::vector<Value> keys;
  for (const Value& item : all) keys.push_back(key_of(item));
  all = sorted(in, std::move(all), keys, false);
  std::vector<Value> groups;
  for (size_t begin = 0; begin < all.size();) {
    const Value key = key_of(all[begin]);
    size_t end = begin + 1;
    while (end < all.size() && equal(in.budget(), key_of(all[end]), key)) ++end;
    std::vector<Value> members(all.begin() + static_cast<std::ptrdiff_t>(begin),
                               all.begin() + static_cast<std::ptrdiff_t>(end));
    const Value shown = path.of(in, members[0], fallback);
    groups.push_back(make_sequence(in.budget(), Sequence::Kind::kGroup,
                                   {shown, make_list(in.budget(), std::move(members))}));
    begin = end;
  }
  return make_list(in.budget(), std::move(groups));
}

Value map(Interpreter& in, const Value& value, const Arguments& args) {
  std::vector<Value> out;
  if (!truth(in.budget(), value)) return generator(in, {});
  if (args.positional.empty()) {
    const Value* attribute = nullptr;
    const Value* fallback = nullptr;
    for (const auto& [name, v] : args.named) {
      if (name == "attribute") {
        attribute = &v;
      } else if (name == "default") {
        fallback = v.is_none() ? nullptr : &v;
      } else {
        raise(fmt::format("map() has no argument '{}'", name));
      }
    }
    if (attribute == nullptr) raise("map requires a filter argument");
    const Path path(in, attribute);
    for (const Value& item : in.items_of(value)) out.push_back(path.of(in, item, fallback));
    return generator(in, std::move(out));
  }
  const std::string& name = args.string(0);
  Arguments rest;
  rest.positional.assign(args.positional.begin() + 1, args.positional.end());
  rest.named = args.named;
  for (const Value& item : in.items_of(value)) out.push_back(in.call_filter(name, item, rest));
  return generator(in, std::move(out));
}

// The items for which the test named by the arguments says `wanted`.
Value chosen(Interpreter& in, const Value& value, const Arguments& args, bool by_attribute,
             bool wanted) {
  std::vector<Value> out;
  if (!truth(in.budget(), value)) return generator(in, {});
  const size_t first_of_test = by_attribute ? 1 : 0;
  if (args.positional.size() < first_of_test) raise("the name of an attribute is missing");
  const Path path(in, by_attribute ? &args.positional[0] : nullptr);
  const bool has_test = args.positional.size() > first_of_test;
  const std::string test = has_test ? args.string(first_of_test) : "";
  Arguments rest;
  if (has_test) {
    rest.positional.assign(args.positional.begin() + static_cast<std::ptrdiff_t>(first_of_test) + 1,
                           args.positional.end());
    rest.named = args.named;
  }
  for (Value& item : in.items_of(value)) {
    const Value tested = path.of(in, item);
    const bool says = has_test ? in.call_test(test, tested, rest) : truth(in.budget(), tested);
    if (says == wanted) out.push_back(std::move(item));
  }
  return generator(in, std::move(out));
}
Value select(Interpreter& in, const Value& value, const Arguments& args) {
  return chosen(in, value, args, false, true);
}
Value reject(Interpreter& in, const Value& value, const Arguments& args) {
  return chosen(in, value, args, false, false);
}
Value selectattr(Interpreter& in, const Value& value, const Arguments& args) {
  return chosen(in, value, args, true, true);
}
Value rejectattr(Interpreter& in, const Value& value, const Arguments& args) {
  return chosen(in, value, args, true, false);
}

Value attr(Interpreter& in, const Value& value, const Arguments& args) {
  require_defined(value);
  const std::string& name = args.string(0);
  // Unlike value.name, this never looks at the keys of a dict.
  if (value.is_namespace()) return attribute_of(in, value, name);
  if (std::optional<Value> method = method_of(in, value, name)) return *method;
  return make_undefined(fmt::format("'{} object' has no attribute '{}'", type_name(value), name));
}

}  // namespace

const FilterRow kSequenceFilters[] = {
    {"attr", attr, "name!"},
    {"batch", batch, "linecount! fill_with"},
    {"count", length, ""},
    {"dictsort", dictsort, "case_sensitive by reverse"},
    {"first", first, ""},
    {"groupby", groupby, "attribute! default case_sensitive"},
    {"items", items, ""},
    {"join", join, "d attribute"},
    {"last", last, ""},
    {"length", length, ""},
    {"list", list_filter, ""},
    {"map", map, "*"},
    {"max", max_filter, "case_sensitive attribute"},
    {"min", min_filter, "case_sensitive attribute"},
    {"reject", reject, "*"},
    {"rejectattr", rejectattr, "*"},
    {"reverse", reverse, ""},
    {"select", select, "*"},
    {"selectattr", selectattr, "*"},
    {"slice", slice, "slices! fill_with"},
    {"sort", sort, "reverse case_sensitive attribute"},
    {"sum", sum, "attribute start"},
    {"unique", unique, "case_sensitive attribute"},
    {},
};

const FilterRow* find_filter(std::string_view name) {
  for (const FilterRow* table : {kTextFilters, kSequenceFilters}) {
    for (const FilterRow* row = table; !row->name.empty(); ++row) {
      if (row->name == name) return row;
    }
  }
  return nullptr;
}

void check_filter_exists(std::string_view name, int line) {
  if (find_filter(name) != nullptr) return;
  const bool known = std::find(std::begin(kOtherFilters), std::end(kOtherFilters), name) !=
                     std::end(kOtherFilters);
  if (known) throw Trouble{ErrorCode::kUnsupported, fmt::format("the filter '{}'", name), line};
  throw Trouble{ErrorCode::kCorrupt, fmt::format("there is no filter named '{}'", name), line};
}

}  // namespace nibble::text::jinja
