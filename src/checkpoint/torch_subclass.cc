#include "checkpoint/torch_subclass.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "checkpoint/file.h"
#include "checkpoint/name_map.h"

namespace nibble::checkpoint {
namespace {

using base::Json;
using Kind = PickleValue::Kind;
using Name = PickleValue::Name;

constexpr size_t kMaxRank = 16;
constexpr size_t kMaxJsonBytes = size_t{16} << 10;     // of one parameter; most take 1 KiB
constexpr size_t kMaxAllJsonBytes = size_t{64} << 20;  // of a file

// Enums of torchao whose values are numbers, from 1 on. Those of the others are their members'
// names in lower case.
struct CountedEnum {
  std::string_view type;
  std::string_view members[7];  // "" behind the last one
};
constexpr CountedEnum kCountedEnums[] = {
    {"MappingType", {"SYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR", "ASYMMETRIC"}},
    {"ZeroPointDomain", {"INT", "FLOAT", "NONE"}},
    {"TorchAODType", {"INT1", "INT2", "INT3", "INT4", "INT5", "INT6", "INT7"}},
};

// Named tuples of torchao: made of their fields, which only the class knows by name.
struct NamedTuple {
  std::string_view type;
  std::string_view fields[4];  // "" behind the last one
};
constexpr NamedTuple kNamedTuples[] = {
    {"Float8MMConfig", {"emulate", "use_fast_accum", "pad_inner_dim"}},
    {"ScaledMMConfig", {"emulate", "use_fast_accum", "fp8_output", "pad_inner_dim"}},
};

bool is_dtype(const PickleValue& v) {
  return v.kind == Kind::kName && (v.name == Name::kDType || v.name == Name::kOtherDType);
}
std::string_view without_module(const PickleValue& name) {
  return name.text.substr(name.text.find('\n') + 1);
}

class SubclassReader {
 public:
  SubclassReader(SubclassSource& from, std::string& name) : from_(from), name_(name) {}

  Result<std::string> run(const PickleValue& subclass, int depth) {
    NIBBLE_TRY(write_subclass(subclass, depth));
    from_.json_bytes += json_.size();
    if (from_.json_bytes <= kMaxAllJsonBytes) return std::move(json_);
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: the attributes of its tensors take more than the {} bytes that "
                            "nibble reads",
                            from_.where, kMaxAllJsonBytes));
  }

 private:
  Failure refused(ErrorCode code, std::string_view what) const {
    return fail(code, fmt::format("{}: {}: {}", from_.where, shown(name_), what));
  }
  Failure corrupt(std::string_view what) const { return refused(ErrorCode::kCorrupt, what); }
  Failure unsupported(std::string_view what) const {
    return refused(ErrorCode::kUnsupported, what);
  }
  const PickleValue& value(PickleId id) const { return from_.pickle.values[id]; }

  // --- a subclass

  Result<void> write_subclass(const PickleValue& v, int depth) {
    const std::vector<PickleId>& parts = value(v.items[0]).items;
    if (parts.size() != 4 || value(parts[0]).name != Name::kRebuildWrapper ||
        value(parts[1]).name != Name::kTorchao) {
      return unsupported("a tensor subclass that is not put together as those of torchao are");
    }
    const std::string_view type = value(parts[1]).text;
    const std::vector<PickleId>& arguments = value(parts[2]).items;
    if (value(parts[2]).kind != Kind::kTuple || arguments.size() < 3 ||
        value(arguments[0]).name != Name::kTorchao || value(arguments[0]).text != type ||
        !is_dtype(value(arguments[1]))) {
      return corrupt("the arguments of this tensor subclass are not its class, a dtype and a size");
    }
    NIBBLE_TRY(check_size(value(arguments[2])));
    const PickleValue& state = dict_of_state(value(parts[3]));
    if (state.kind != Kind::kDict) return corrupt("the state of this tensor subclass is no dict");

    begin_typed(type);
    json_ += '{';
    std::vector<std::string_view> tensors;
    NIBBLE_TRY(write_attributes(state, arguments, depth, tensors));
    json_ += R"(},"_tensor_data_names":[)";
    for (const std::string_view tensor : tensors) NIBBLE_TRY(write_text(tensor));
    return write_raw("]}");
  }

  Result<void> check_size(const PickleValue& v) const {
    const bool is_size = v.kind == Kind::kTuple && v.items.size() <= kMaxRank &&
                         std::all_of(v.items.begin(), v.items.end(), [&](PickleId item) {
                           return value(item).kind == Kind::kInt && value(item).number >= 0;
                         });
    if (is_size) return {};
    return corrupt(fmt::format("its shape is no tuple of at most {} integers from 0 on", kMaxRank));
  }

  // Everything of the state but its tensors; those are handed over, and their names put in
  // `tensors`.
  Result<void> write_attributes(const PickleValue& state, const std::vector<PickleId>& arguments,
                                int depth, std::vector<std::string_view>& tensors) {
    bool has_dtype = false, has_shape = false;
    const auto write_item = [&](std::string_view key, const PickleValue& v) {
      has_dtype |= key == "dtype";
      has_shape |= key == "shape";
      return write_attribute(key, v, depth, tensors);
    };
    NIBBLE_TRY(each_item(state, depth, write_item));
    if (!has_dtype) {
      NIBBLE_TRY(write_key("dtype"));
      NIBBLE_TRY(write_name(value(arguments[1])));
    }
    if (has_shape) return {};
    NIBBLE_TRY(write_key("shape"));
    return write_list(value(arguments[2]), depth);
  }

  Result<void> write_attribute(std::string_view key, const PickleValue& v, int depth,
                               std::vector<std::string_view>& tensors) {
    if (key == "_is_param") return {};
    if (v.kind == Kind::kTensor) {
      tensors.push_back(key);
      return from_.add(v, name_);
    }
    NIBBLE_TRY(write_key(key));
    return v.kind == Kind::kSubclass ? write_subclass(v, depth + 1) : write(v, depth + 1);
  }

  // --- values

  Result<void> write(const PickleValue& v, int depth) {
    NIBBLE_TRY(count_visit());
    switch (v.kind) {
      case Kind::kNone:
        return write_raw("null");
      case Kind::kBool:
        return write_raw(v.number != 0 ? "true" : "false");
      case Kind::kInt:
        return write_raw(std::to_string(v.number));
      case Kind::kFloat:
        if (!std::isfinite(v.real)) return unsupported("an attribute that is no finite number");
        return write_raw(Json(v.real).dump());
      case Kind::kText:
        return write_text(v.text);
      case Kind::kTuple:
      case Kind::kList:
        return write_list(v, depth);
      case Kind::kDict:
        return write_dict(v, depth);
      case Kind::kName:
        return write_name(v);
      case Kind::kEnum:
        return write_enum(v);
      case Kind::kObject:
        return write_object(v, depth);
      case Kind::kStorage:
      case Kind::kTensor:
      case Kind::kSubclass:
        break;
    }
    return unsupported("a tensor inside of an attribute; nibble reads those that are attributes");
  }

  Result<void> write_list(const PickleValue& v, int depth) {
    NIBBLE_TRY(check_depth(depth));
    separate();
    json_ += '[';
    for (const PickleId item : v.items) NIBBLE_TRY(write(value(item), depth + 1));
    return write_raw("]");
  }
  Result<void> write_dict(const PickleValue& v, int depth) {
    separate();
    json_ += '{';
    const auto write_item = [&](std::string_view key, const PickleValue& item) -> Result<void> {
      NIBBLE_TRY(write_key(key));
      return write(item, depth + 1);
    };
    NIBBLE_TRY(each_item(v, depth, write_item));
    return write_raw("}");
  }

  // A dtype, or a function or class of torchao.
  Result<void> write_name(const PickleValue& v) {
    if (!is_dtype(v) && v.name != Name::kTorchao) {
      return unsupported(fmt::format("{} as an attribute", without_module(v)));
    }
    begin_typed(is_dtype(v) ? "torch.dtype" : "function");
    NIBBLE_TRY(write_text(without_module(v)));
    return write_raw("}");
  }

  Result<void> write_enum(const PickleValue& v) {
    const std::string_view type = value(v.items[0]).text;
    const PickleValue& of = value(v.items[1]);
    begin_typed(type);
    if (of.kind == Kind::kText) {
      std::string member(of.text.substr(0, kMaxJsonBytes));
      if (v.name != Name::kGetattr) {
        for (char& c : member) {
          if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
        }
      }
      NIBBLE_TRY(write_text(member));
    } else {
      NIBBLE_TRY(write_counted(type, of.number));
    }
    return write_raw("}");
  }
  Result<void> write_counted(std::string_view type, int64_t number) {
    for (const CountedEnum& known : kCountedEnums) {
      if (known.type != type || number < 1 || number > std::ssize(known.members)) continue;
      const std::string_view member = known.members[number - 1];
      if (!member.empty()) return write_text(member);
    }
    return unsupported(
        fmt::format("torchao's {} has no member {} that nibble knows", type, number));
  }

  // An instance of a dataclass, whose state are its fields, or of a named tuple.
  Result<void> write_object(const PickleValue& v, int depth) {
    const std::string_view type = value(v.items[0]).text;
    const std::vector<PickleId>& arguments = value(v.items[1]).items;
    begin_typed(type);
    if (!arguments.empty()) {
      NIBBLE_TRY(write_named_tuple(v, arguments, depth));
    } else if (v.items.size() == 2) {
      NIBBLE_TRY(write_raw("{}"));
    } else {
      const PickleValue& state = dict_of_state(value(v.items[2]));
      if (state.kind != Kind::kDict) {
        return corrupt(fmt::format("the state of torchao's {} is no dict", type));
      }
      NIBBLE_TRY(write_dict(state, depth));
    }
    return write_raw("}");
  }
  Result<void> write_named_tuple(const PickleValue& v, const std::vector<PickleId>& arguments,
                                 int depth) {
    const std::string_view type = value(v.items[0]).text;
    for (const NamedTuple& known : kNamedTuples) {
      const auto count = std::count_if(std::begin(known.fields), std::end(known.fields),
                                       [](std::string_view field) { return !field.empty(); });
      if (known.type != type || std::ssize(arguments) != count || v.items.size() != 2) continue;
      NIBBLE_TRY(check_depth(depth));
      json_ += '{';
      for (size_t i = 0; i < arguments.size(); ++i) {
        NIBBLE_TRY(write_key(known.fields[i]));
        NIBBLE_TRY(write(value(arguments[i]), depth + 1));
      }
      return write_raw("}");
    }
    return unsupported(
        fmt::format("torchao's {} made of {} arguments is not known", type, arguments.size()));
  }
  // A state may be a dict and what lies in slots, which nothing of torchao has.
  const PickleValue& dict_of_state(const PickleValue& state) const {
    return state.kind == Kind::kTuple && state.items.size() == 2 ? value(state.items[0]) : state;
  }

  // --- dicts

  // Calls f(key, value) for each item, while the name ends in the key.
  template <class F>
  Result<void> each_item(const PickleValue& dict, int depth, const F& f) {
    NIBBLE_TRY(check_depth(depth));
    NameMap<bool> seen;
    for (size_t i = 0; i + 2 <= dict.items.size(); i += 2) {
      const PickleValue& key = value(dict.items[i]);
      NIBBLE_TRY(count_visit());
      if (key.kind != Kind::kText || key.text.empty() || key.text.size() > kMaxPickleName) {
        return unsupported("a key of this dict is no short text");
      }
      const size_t length = name_.size();
      if (!name_.empty()) name_ += '.';
      name_ += key.text;
      if (name_.size() > kMaxPickleName) {
        return unsupported(fmt::format("a name of more than {} bytes", kMaxPickleName));
      }
      if (!seen.emplace(key.text, true).second) return corrupt("this attribute stands twice");
      NIBBLE_TRY(f(key.text, value(dict.items[i + 1])));
      name_.resize(length);
    }
    return {};
  }

  // --- text

  void separate() {
    if (!json_.empty() && std::string_view("{[:").find(json_.back()) == std::string_view::npos) {
      json_ += ',';
    }
  }
  Result<void> write_raw(std::string_view text) {
    if (text[0] != '}' && text[0] != ']') separate();
    json_ += text;
    return check_length();
  }
  Result<void> write_text(std::string_view text) {
    if (text.size() > kMaxJsonBytes) return too_long();
    if (shown(text, text.size()) != text) {
      return unsupported("an attribute with a text that has control characters or is not UTF-8");
    }
    separate();
    json_ += '"';
    for (const char c : text) {
      if (c == '"' || c == '\\') json_ += '\\';
      json_ += c;
    }
    json_ += '"';
    return check_length();
  }
  Result<void> write_key(std::string_view key) {
    NIBBLE_TRY(write_text(key));
    json_ += ':';
    return {};
  }
  // {"_type": "...", "_data":
  void begin_typed(std::string_view type) {
    separate();
    json_ += fmt::format(R"({{"_type":"{}","_data":)", type);
  }

  // --- limits

  Result<void> check_length() const {
    if (json_.size() <= kMaxJsonBytes) return {};
    return too_long();
  }
  Failure too_long() const {
    return unsupported(fmt::format("attributes of more than {} bytes", kMaxJsonBytes));
  }
  Result<void> check_depth(int depth) const {
    if (depth < kMaxPickleDepth) return {};
    return unsupported(fmt::format("dicts lie more than {} deep in each other", kMaxPickleDepth));
  }
  Result<void> count_visit() {
    if (++from_.visits <= kMaxPickleVisits) return {};
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: the dicts hold more than the {} values that nibble reads",
                            from_.where, kMaxPickleVisits));
  }

  SubclassSource& from_;
  std::string& name_;
  std::string json_;
};

}  // namespace

Result<std::string> read_subclass(SubclassSource& from, const PickleValue& subclass,
                                  std::string& name, int depth) {
  return SubclassReader(from, name).run(subclass, depth);
}

}  // namespace nibble::checkpoint
