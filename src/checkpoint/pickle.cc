#include "checkpoint/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "checkpoint/file.h"

namespace nibble::checkpoint {
namespace {

using tensor::DType;
using Kind = PickleValue::Kind;
using Name = PickleValue::Name;

constexpr size_t kMaxValues = size_t{1} << 21;
constexpr size_t kMaxName = 200;  // bytes of a global's module and name

struct KnownName {
  std::string_view text;  // module, newline, name
  Name name;
  DType dtype = DType::kU8;
};

constexpr KnownName kNames[] = {
    {"collections\nOrderedDict", Name::kOrderedDict},
    {"torch\nSize", Name::kSize},
    {"torch\ndevice", Name::kDevice},
    {"torch._utils\n_rebuild_parameter", Name::kParameter},
    {"torch._utils\n_rebuild_parameter_with_state", Name::kParameterWithState},
    {"torch._utils\n_rebuild_tensor_v2", Name::kTensorV2},
    {"torch._utils\n_rebuild_tensor_v3", Name::kTensorV3},
    {"torch.storage\nUntypedStorage", Name::kUntyped},
    {"torch\nUntypedStorage", Name::kUntyped},
    {"torch\nBoolStorage", Name::kStorageType, DType::kBool},
    {"torch\nByteStorage", Name::kStorageType, DType::kU8},
    {"torch\nCharStorage", Name::kStorageType, DType::kS8},
    {"torch\nShortStorage", Name::kStorageType, DType::kS16},
    {"torch\nIntStorage", Name::kStorageType, DType::kS32},
    {"torch\nLongStorage", Name::kStorageType, DType::kS64},
    {"torch\nHalfStorage", Name::kStorageType, DType::kF16},
    {"torch\nBFloat16Storage", Name::kStorageType, DType::kBF16},
    {"torch\nFloatStorage", Name::kStorageType, DType::kF32},
    {"torch\nDoubleStorage", Name::kStorageType, DType::kF64},
    {"torch\nComplexFloatStorage", Name::kStorageType, DType::kC64},
    {"torch\nbool", Name::kDType, DType::kBool},
    {"torch\nuint8", Name::kDType, DType::kU8},
    {"torch\nint8", Name::kDType, DType::kS8},
    {"torch\nuint16", Name::kDType, DType::kU16},
    {"torch\nint16", Name::kDType, DType::kS16},
    {"torch\nuint32", Name::kDType, DType::kU32},
    {"torch\nint32", Name::kDType, DType::kS32},
    {"torch\nuint64", Name::kDType, DType::kU64},
    {"torch\nint64", Name::kDType, DType::kS64},
    {"torch\nfloat16", Name::kDType, DType::kF16},
    {"torch\nbfloat16", Name::kDType, DType::kBF16},
    {"torch\nfloat32", Name::kDType, DType::kF32},
    {"torch\nfloat64", Name::kDType, DType::kF64},
    {"torch\ncomplex64", Name::kDType, DType::kC64},
    {"torch\nfloat8_e4m3fn", Name::kDType, DType::kE4M3},
    {"torch\nfloat8_e4m3fnuz", Name::kDType, DType::kE4M3FNUZ},
    {"torch\nfloat8_e5m2", Name::kDType, DType::kE5M2},
    {"torch\nfloat8_e5m2fnuz", Name::kDType, DType::kE5M2FNUZ},
    {"torch\nfloat8_e8m0fnu", Name::kDType, DType::kE8M0},
    {"torch\ncomplex32", Name::kOtherDType},
    {"torch\ncomplex128", Name::kOtherDType},
    {"torch\nfloat4_e2m1fn_x2", Name::kOtherDType},
    {"torch\nint1", Name::kOtherDType},
    {"torch\nint2", Name::kOtherDType},
    {"torch\nint3", Name::kOtherDType},
    {"torch\nint4", Name::kOtherDType},
    {"torch\nint5", Name::kOtherDType},
    {"torch\nint6", Name::kOtherDType},
    {"torch\nint7", Name::kOtherDType},
    {"torch\nuint1", Name::kOtherDType},
    {"torch\nuint2", Name::kOtherDType},
    {"torch\nuint3", Name::kOtherDType},
    {"torch\nuint4", Name::kOtherDType},
    {"torch\nuint5", Name::kOtherDType},
    {"torch\nuint6", Name::kOtherDType},
    {"torch\nuint7", Name::kOtherDType},
    {"torch._tensor\n_rebuild_from_type_v2", Name::kRebuildFromType},
    {"torch._utils\n_rebuild_wrapper_subclass", Name::kRebuildWrapper},
    {"torch.serialization\n_get_layout", Name::kGetLayout},
    {"__builtin__\ngetattr", Name::kGetattr},
    {"builtins\ngetattr", Name::kGetattr},
};

bool is_identifier(std::string_view name) {
  return !name.empty() && name.size() <= kMaxName &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '.';
         });
}

// The opcodes that torch.save emits, by pickletools' names.
enum Op : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinUnicode = 'X',
  kEmptyList = ']',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kEmptyDict = '}',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

class Machine {
 public:
  Machine(std::string_view bytes, std::string_view where) : bytes_(bytes), where_(where) {}

  Result<Pickle> run() {
    if (bytes_.size() < 2 || static_cast<uint8_t>(bytes_[0]) != kProto || bytes_[1] < 2 ||
        bytes_[1] > 5) {
      return broken("it does not begin as protocol 2 to 5 does");
    }
    for (;;) {
      op_at_ = at_;
      if (at_ == bytes_.size()) return broken("it ends without its last opcode");
      const auto op = static_cast<uint8_t>(bytes_[at_++]);
      if (op == kStop) break;
      NIBBLE_TRY(step(op));
      if (out_.values.size() <= kMaxValues && stack_.size() <= kMaxValues &&
          marks_.size() <= kMaxValues && memo_.size() <= kMaxValues) {
        continue;
      }
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: the pickle has more than the {} values that nibble reads",
                              where_, kMaxValues));
    }
    NIBBLE_ASSIGN(out_.root, pop());
    if (!idle_getattr_.empty()) return refused(fmt::format("asks for {}", idle_getattr_));
    if (!stack_.empty() || !marks_.empty()) return broken("values are left when it ends");
    return std::move(out_);
  }

 private:
  Failure broken(std::string_view what) const {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: the pickle is damaged at its byte {}: {}", where_, op_at_, what));
  }
  Failure refused(std::string_view what) const {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: the pickle {}, which no plain state dict does; nibble reads "
                            "tensors and never runs what a file asks for: save the model as "
                            "safetensors (save_pretrained does)",
                            where_, what));
  }

  // --- the stack

  PickleValue& value(PickleId id) { return out_.values[id]; }
  Result<void> push(PickleValue v) {
    stack_.push_back(static_cast<PickleId>(out_.values.size()));
    out_.values.push_back(std::move(v));
    return {};
  }
  Result<PickleId> pop() {
    if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size())) {
      return broken("the stack is empty");
    }
    const PickleId top = stack_.back();
    stack_.pop_back();
    return top;
  }
  Result<std::vector<PickleId>> pop_to_mark() {
    if (marks_.empty()) return broken("there is no mark on the stack");
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<PickleId> items(from, stack_.end());
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return items;
  }
  Result<void> push_tuple(size_t count) {
    PickleValue out{.kind = Kind::kTuple};
    out.items.resize(count);
    for (size_t i = count; i-- > 0;) {
      NIBBLE_ASSIGN(out.items[i], pop());
    }
    return push(std::move(out));
  }

  // --- what follows an opcode

  Result<std::string_view> take(uint64_t count) {
    if (count > bytes_.size() - at_) return broken("it ends inside a value");
    const std::string_view out = bytes_.substr(at_, count);
    at_ += count;
    return out;
  }
  template <class T>
  Result<T> take_number() {
    NIBBLE_ASSIGN(const std::string_view raw, take(sizeof(T)));
    T out;
    std::memcpy(&out, raw.data(), sizeof(T));
    return out;
  }
  template <class T>
  Result<void> push_int() {
    NIBBLE_ASSIGN(const T number, take_number<T>());
    return push({.kind = Kind::kInt, .number = number});
  }
  Result<void> push_float() {
    NIBBLE_ASSIGN(const std::string_view raw, take(8));
    uint64_t bits = 0;
    for (const char byte : raw) bits = bits << 8 | static_cast<uint8_t>(byte);
    return push({.kind = Kind::kFloat, .real = std::bit_cast<double>(bits)});
  }
  template <class T>
  Result<void> push_text() {
    NIBBLE_ASSIGN(const T length, take_number<T>());
    NIBBLE_ASSIGN(const std::string_view text, take(length));
    return push({.kind = Kind::kText, .text = text});
  }
  Result<void> push_long() {
    NIBBLE_ASSIGN(const auto length, take_number<uint8_t>());
    NIBBLE_ASSIGN(const std::string_view raw, take(length));
    if (length > 8) return refused("holds an integer of more than 64 bits");
    uint64_t number = length != 0 && (raw.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
    for (size_t i = length; i-- > 0;) number = number << 8 | static_cast<uint8_t>(raw[i]);
    return push({.kind = Kind::kInt, .number = static_cast<int64_t>(number)});
  }

  // --- names and what is made with them

  Result<void> push_name(std::string_view module, std::string_view name) {
    if (module.starts_with("torchao.") && is_identifier(name)) {
      return push({.kind = Kind::kName, .name = Name::kTorchao, .text = name});
    }
    const std::string text =
        fmt::format("{}\n{}", module.substr(0, kMaxName), name.substr(0, kMaxName));
    for (const KnownName& known : kNames) {
      if (known.text != text) continue;
      if (known.name == Name::kGetattr) idle_getattr_ = dotted(text);
      return push(
          {.kind = Kind::kName, .name = known.name, .dtype = known.dtype, .text = known.text});
    }
    return refused(fmt::format("asks for {}", dotted(text)));
  }
  // A module and a name as a message has them.
  static std::string dotted(std::string_view text) {
    std::string out = shown(text, kMaxName);
    if (const size_t line = text.find('\n'); line < out.size()) out[line] = '.';
    return out;
  }
  Result<void> global() {
    const size_t module_end = bytes_.find('\n', at_);
    const size_t end = module_end == bytes_.npos ? module_end : bytes_.find('\n', module_end + 1);
    if (end == bytes_.npos) return broken("it ends inside a value");
    const std::string_view module = bytes_.substr(at_, module_end - at_);
    const std::string_view name = bytes_.substr(module_end + 1, end - module_end - 1);
    at_ = end + 1;
    return push_name(module, name);
  }
  Result<void> stack_global() {
    NIBBLE_ASSIGN(const PickleId name, pop());
    NIBBLE_ASSIGN(const PickleId module, pop());
    if (value(name).kind != Kind::kText || value(module).kind != Kind::kText) {
      return broken("a name is no text");
    }
    return push_name(value(module).text, value(name).text);
  }
  Result<void> reduce() {
    NIBBLE_ASSIGN(const PickleId arguments, pop());
    NIBBLE_ASSIGN(const PickleId function, pop());
    const PickleValue& args = value(arguments);
    const Name name = value(function).name;
    if (args.kind != Kind::kTuple) return broken("the arguments of a call are no tuple");
    switch (name) {
      case Name::kOrderedDict:
        if (!args.items.empty()) return refused("makes an OrderedDict out of something");
        return push({.kind = Kind::kDict});
      case Name::kSize:
        if (args.items.size() != 1 || value(args.items[0]).kind != Kind::kTuple) {
          return broken("torch.Size is not made of one tuple");
        }
        stack_.push_back(args.items[0]);
        return {};
      case Name::kDevice:
        return push({});
      case Name::kParameter:
      case Name::kParameterWithState:
        if (args.items.empty() || (value(args.items[0]).kind != Kind::kTensor &&
                                   value(args.items[0]).kind != Kind::kSubclass)) {
          return broken("a parameter is not made of a tensor");
        }
        stack_.push_back(args.items[0]);
        return {};
      case Name::kTensorV2:
      case Name::kTensorV3:
        return push({.kind = Kind::kTensor, .name = name, .items = {arguments}});
      case Name::kGetLayout:
        return push({});
      case Name::kRebuildFromType:
        return push({.kind = Kind::kSubclass, .items = {arguments}});
      case Name::kTorchao:
        return push_enum(function, args);
      case Name::kGetattr:
        return push_enum_member(function, args);
      default:
        return refused("calls what is no function");
    }
  }
  // MappingType(1), KernelPreference("auto")
  Result<void> push_enum(PickleId type, const PickleValue& args) {
    const Kind kind = args.items.size() == 1 ? value(args.items[0]).kind : Kind::kNone;
    if (kind != Kind::kInt && kind != Kind::kText) {
      return refused(
          fmt::format("calls {} of torchao with what is no value of an enum", value(type).text));
    }
    return push({.kind = Kind::kEnum, .items = {type, args.items[0]}});
  }
  // getattr(KernelPreference, "AUTO")
  Result<void> push_enum_member(PickleId function, const PickleValue& args) {
    if (args.items.size() != 2 || value(args.items[0]).name != Name::kTorchao ||
        value(args.items[1]).kind != Kind::kText) {
      return refused(fmt::format("asks for {}", dotted(value(function).text)));
    }
    idle_getattr_.clear();
    return push({.kind = Kind::kEnum, .name = Name::kGetattr, .items = args.items});
  }
  // An instance of a class of torchao, before its state is set.
  Result<void> new_object() {
    NIBBLE_ASSIGN(const PickleId arguments, pop());
    NIBBLE_ASSIGN(const PickleId type, pop());
    if (value(type).name != Name::kTorchao) return refused("has the opcode 0x81");
    if (value(arguments).kind != Kind::kTuple) {
      return broken("the arguments of a call are no tuple");
    }
    return push({.kind = Kind::kObject, .items = {type, arguments}});
  }
  // What a persistent id says is checked where a tensor asks for it.
  Result<void> persistent() {
    NIBBLE_ASSIGN(const PickleId id, pop());
    if (value(id).kind != Kind::kTuple) return broken("a persistent id is no tuple");
    return push({.kind = Kind::kStorage, .items = {id}});
  }
  // The attributes of an OrderedDict (torch's _metadata) or of a tensor are nothing that is stored.
  Result<void> build() {
    NIBBLE_ASSIGN(const PickleId state, pop());
    if (stack_.empty()) return broken("the stack is empty");
    PickleValue& v = value(stack_.back());
    if (v.kind == Kind::kDict || v.kind == Kind::kTensor) return {};
    if (v.kind != Kind::kObject || v.items.size() != 2) {
      return refused("sets the state of what has none");
    }
    v.items.push_back(state);
    return {};
  }

  // --- containers

  Result<void> extend(Kind kind, const std::vector<PickleId>& items) {
    if (stack_.empty() || value(stack_.back()).kind != kind) {
      return broken(kind == Kind::kDict ? "items are set in what is no dict"
                                        : "items are appended to what is no list");
    }
    if (kind == Kind::kDict && items.size() % 2 != 0) return broken("a key has no value");
    std::vector<PickleId>& into = value(stack_.back()).items;
    into.insert(into.end(), items.begin(), items.end());
    return {};
  }
  Result<void> extend_by(Kind kind, size_t count) {
    std::vector<PickleId> items(count);
    for (size_t i = count; i-- > 0;) {
      NIBBLE_ASSIGN(items[i], pop());
    }
    return extend(kind, items);
  }

  // --- the memo

  Result<void> put(uint32_t key) {
    if (stack_.empty()) return broken("the stack is empty");
    memo_[key] = stack_.back();
    return {};
  }
  Result<void> get(uint32_t key) {
    const auto at = memo_.find(key);
    if (at == memo_.end()) return broken(fmt::format("nothing was remembered as {}", key));
    stack_.push_back(at->second);
    return {};
  }
  template <class T>
  Result<void> memo(bool write) {
    NIBBLE_ASSIGN(const T key, take_number<T>());
    return write ? put(key) : get(key);
  }

  Result<void> step(uint8_t op) {
    switch (op) {
      case kProto:
        return skip(1);
      case kFrame:
        return skip(8);
      case kMark:
        marks_.push_back(stack_.size());
        return {};
      case kNone:
        return push({});
      case kNewTrue:
      case kNewFalse:
        return push({.kind = Kind::kBool, .number = op == kNewTrue});
      case kBinInt:
        return push_int<int32_t>();
      case kBinInt1:
        return push_int<uint8_t>();
      case kBinInt2:
        return push_int<uint16_t>();
      case kLong1:
        return push_long();
      case kBinFloat:
        return push_float();
      case kShortBinUnicode:
        return push_text<uint8_t>();
      case kBinUnicode:
        return push_text<uint32_t>();
      case kBinUnicode8:
        return push_text<uint64_t>();
      default:
        return step_compound(op);
    }
  }
  Result<void> step_compound(uint8_t op) {
    switch (op) {
      case kEmptyTuple:
        return push({.kind = Kind::kTuple});
      case kEmptyList:
        return push({.kind = Kind::kList});
      case kEmptyDict:
        return push({.kind = Kind::kDict});
      case kTuple1:
      case kTuple2:
      case kTuple3:
        return push_tuple(static_cast<size_t>(op - kTuple1) + 1);
      case kTuple: {
        NIBBLE_ASSIGN(std::vector<PickleId> items, pop_to_mark());
        return push({.kind = Kind::kTuple, .items = std::move(items)});
      }
      case kAppend:
        return extend_by(Kind::kList, 1);
      case kSetItem:
        return extend_by(Kind::kDict, 2);
      case kAppends:
      case kSetItems: {
        NIBBLE_ASSIGN(const std::vector<PickleId> items, pop_to_mark());
        return extend(op == kAppends ? Kind::kList : Kind::kDict, items);
      }
      default:
        return step_special(op);
    }
  }
  Result<void> step_special(uint8_t op) {
    switch (op) {
      case kPop:
        NIBBLE_TRY(pop());
        return {};
      case kPopMark:
        NIBBLE_TRY(pop_to_mark());
        return {};
      case kBinPut:
        return memo<uint8_t>(true);
      case kLongBinPut:
        return memo<uint32_t>(true);
      case kMemoize:
        return put(static_cast<uint32_t>(memo_.size()));
      case kBinGet:
        return memo<uint8_t>(false);
      case kLongBinGet:
        return memo<uint32_t>(false);
      case kGlobal:
        return global();
      case kStackGlobal:
        return stack_global();
      case kReduce:
        return reduce();
      case kNewObj:
        return new_object();
      case kBinPersId:
        return persistent();
      case kBuild:
        return build();
      default:
        return refused(fmt::format("has the opcode 0x{:02x}", op));
    }
  }
  Result<void> skip(uint64_t count) {
    NIBBLE_TRY(take(count));
    return {};
  }

  std::string_view bytes_, where_;
  size_t at_ = 0, op_at_ = 0;
  Pickle out_;
  std::vector<PickleId> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint32_t, PickleId> memo_;
  std::string idle_getattr_;  // getattr as it was asked for, before its first call
};

}  // namespace

Result<Pickle> parse_pickle(std::string_view bytes, std::string_view where) {
  return Machine(bytes, where).run();
}

}  // namespace nibble::checkpoint
