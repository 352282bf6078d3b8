// The functions that every chat template can call.
#include <fmt/format.h>
#include <locale.h>

#include <algorithm>
#include <ctime>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"

namespace nibble::text::jinja {
namespace {

using In = Interpreter;
using Args = Arguments;

constexpr int64_t kMaxRange = 100000;  // the sandbox's own limit

Value range(In&, const Value&, const Args& args) {
  if (args.positional.empty() || args.positional.size() > 3 || !args.named.empty()) {
    raise("range() takes one to three integers");
  }
  const bool only_stop = args.positional.size() == 1;
  Range r;
  r.start = only_stop ? 0 : args.integer(0, 0);
  r.stop = args.integer(only_stop ? 0 : 1, 0);
  r.step = args.integer(2, 1);
  if (r.step == 0) raise("range() arg 3 must not be zero");
  for (int64_t v : {r.start, r.stop, r.step}) {
    if (v > kMaxRangeBound || v < -kMaxRangeBound) raise_unsupported("a range beyond 2**53");
  }
  if (r.size() > kMaxRange) {
    raise(fmt::format("Range too big. The sandbox blocks ranges larger than {} items.", kMaxRange));
  }
  return Value(std::shared_ptr<const Range>(std::make_shared<Range>(r)));
}

// dict(mapping or pairs, **named).
Dict dict_of(In& in, const Args& args) {
  if (args.positional.size() > 1) raise("dict expected at most 1 argument");
  Dict dict;
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (source.is_dict()) {
      dict = source.dict();
    } else {
      for (const Value& pair : in.items_of(source)) {
        std::vector<Value> both = in.items_of(pair);
        if (both.size() != 2) raise("dict() needs pairs of a key and a value");
        dict.set(std::move(both[0]), std::move(both[1]));
      }
    }
  }
  for (const auto& [name, value] : args.named) dict.set(in.string(name), value);
  return dict;
}

Value dict(In& in, const Value&, const Args& args) {
  return make_dict(in.budget(), dict_of(in, args));
}

Value make_namespace(In& in, const Value&, const Args& args) {
  Dict attributes = dict_of(in, args);
  for (const auto& [key, value] : attributes.members) {
    if (key.is_string() && !key.bytes().empty() && key.bytes()[0] == '_') {
      raise(
          fmt::format("the attribute '{}' of a namespace begins with an underscore, which chat "
                      "templates may not store",
                      key.bytes()));
    }
  }
  in.budget().make(attributes.members.size() * 2 * sizeof(Value));
  Namespace* ns = in.new_namespace();
  ns->nesting = checked_nesting(attributes.nesting);
  ns->attributes = std::move(attributes);
  return Value(ns);
}

Value stateful(std::string_view name, Value state, Value (*run)(In&, const Value&, const Args&)) {
  Function function;
  function.name = name;
  function.self = std::move(state);
  function.run = run;
  return Value(std::shared_ptr<const Function>(std::make_shared<Function>(std::move(function))));
}

// Nothing the first time, the separator after that.
Value call_joiner(In& in, const Value& self, const Args&) {
  Sequence& state = self.sequence();
  return state.next++ == 0 ? in.string("") : state.items[0];
}
Value joiner(In& in, const Value&, const Args& args) {
  const Value separator = args.get(0) != nullptr ? args.at(0) : in.string(", ");
  return stateful("joiner", make_sequence(in.budget(), Sequence::Kind::kGenerator, {separator}),
                  call_joiner);
}

Value call_cycler(In&, const Value&, const Args&) { raise("'Cycler' object is not callable"); }
Value cycler(In& in, const Value&, const Args& args) {
  if (args.positional.empty()) raise("at least one item has to be provided");
  return stateful("cycler", make_sequence(in.budget(), Sequence::Kind::kGenerator, args.positional),
                  call_cycler);
}

Value raise_exception(In& in, const Value&, const Args& args) {
  raise("the template says: " + to_text(in.budget(), args.at(0)));
}

// datetime.now().strftime(format): the C library's, in the C locale, without a time zone.
Value strftime_now(In& in, const Value&, const Args& args) {
  if (!in.now()) raise_unsupported("strftime_now, because the caller gave no time");
  std::string format;
  const std::string& asked = args.string(0);
  for (size_t i = 0; i < asked.size(); ++i) {
    if (asked[i] != '%' || i + 1 == asked.size()) {
      format += asked[i];
    } else if (const char c = asked[++i]; c == 'f') {
      format += "000000";
    } else if (c != 'z' && c != 'Z') {  // both are empty for a time without a zone
      format += '%';
      format += c;
    }
  }
  if (format.empty()) return in.string("");
  if (format.size() > 1000) raise_unsupported("a format of strftime_now above 1000 bytes");
  static const locale_t kPlain = newlocale(LC_ALL_MASK, "C", nullptr);
  format += '.';  // so that an empty result differs from a full buffer
  std::string text(64 * format.size(), '\0');
  const size_t size = strftime_l(text.data(), text.size(), format.c_str(), &*in.now(), kPlain);
  if (size == 0) raise("strftime_now got a format that it cannot write");
  text.resize(size - 1);
  return in.string(std::move(text));
}

const FilterRow kGlobals[] = {
    {"cycler", cycler, "*"},
    {"dict", dict, "*"},
    {"joiner", joiner, "sep"},
    {"namespace", make_namespace, "*"},
    {"raise_exception", raise_exception, "message!"},
    {"range", range, "*"},
    {"strftime_now", strftime_now, "format!"},
};

}  // namespace

std::optional<Value> global_of(std::string_view name) {
  if (name == "lipsum" || name == "self" || name == "super") {
    raise_unsupported(fmt::format("the global '{}'", name));
  }
  const auto* row = std::find_if(std::begin(kGlobals), std::end(kGlobals),
                                 [&](const FilterRow& r) { return r.name == name; });
  if (row == std::end(kGlobals)) return std::nullopt;
  Function function;
  function.name = row->name;
  function.run = row->run;
  function.parameters = row->parameters;
  return Value(std::shared_ptr<const Function>(std::make_shared<Function>(std::move(function))));
}

}  // namespace nibble::text::jinja
