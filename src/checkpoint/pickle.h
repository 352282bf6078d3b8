// The part of Python's pickle format that state dicts of torch are written in (CPython,
// Lib/pickletools.py; protocols 2 to 5).
//
// A pickle is a program for a stack machine, and its opcodes can call anything that Python can
// import. Here nothing is ever called: the few names that torch.save uses for tensors are known and
// become values, and a file that asks for any other is refused by that name. All names of torchao
// are known too: what a file would make with one becomes a value that says so.
#pragma once

#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "nibble/result.h"
#include "tensor/dtype.h"

namespace nibble::checkpoint {

using PickleId = uint32_t;  // index in Pickle::values

struct PickleValue {
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kTuple,    // items
    kList,     // items
    kDict,     // items: key, value, key, value ...
    kName,     // a global that torch.save uses; `name`
    kStorage,  // items[0]: its id, a tuple: "storage", type, key, location, count
    kTensor,   // items[0]: the arguments of the function `name`, a tuple
    // Of torchao:
    kSubclass,  // a tensor subclass; items[0]: the arguments of kRebuildFromType, a tuple
    kEnum,    // items: its class, a kTorchao; its value, or with `name` kGetattr its member's name
    kObject,  // items: its class, a kTorchao; its arguments, a tuple; its state, if it has one
  };
  enum class Name : uint8_t {
    kNotOne,
    kOrderedDict,
    kSize,
    kDevice,
    kParameter,
    kParameterWithState,
    kTensorV2,     // (storage, offset, size, stride, requires_grad, hooks[, metadata])
    kTensorV3,     // the same with a dtype behind the hooks
    kStorageType,  // torch.HalfStorage, with `dtype`
    kUntyped,      // torch.storage.UntypedStorage
    kDType,        // torch.float16, with `dtype`
    kOtherDType,   // one whose tensors are not read
    kGetLayout,
    kGetattr,          // Python's own, called for members of torchao's enums alone
    kRebuildFromType,  // (function, class, its arguments, state)
    kRebuildWrapper,   // (class, dtype, size, ...)
    kTorchao,          // a class or function of torchao, with `text`
  };
  Kind kind = Kind::kNone;
  Name name = Name::kNotOne;
  tensor::DType dtype = tensor::DType::kF32;
  int64_t number = 0;     // kBool, kInt
  double real = 0;        // kFloat
  std::string_view text;  // kText, in the pickle's bytes; kName ("torch\nfloat16"; a kTorchao's is
                          // without its module)
  std::vector<PickleId> items;
};

struct Pickle {
  std::deque<PickleValue> values;  // a deque: it grows without a second copy
  PickleId root = 0;
};

constexpr uint64_t kMaxPickleBytes = uint64_t{32} << 20;  // some 300 bytes a tensor

// For who walks through the values: how deep they may lie in each other, how often values may be
// met (again and again, where they stand in several places), how many bytes a name has.
constexpr int kMaxPickleDepth = 16;
constexpr size_t kMaxPickleVisits = size_t{1} << 21;
constexpr size_t kMaxPickleName = 512;

// `bytes` must outlive the answer. Values may stand in several places, also inside themselves.
// `where` names the file in messages. Errors: a broken pickle, an opcode or a name that no state
// dict has, more values than 2^21.
Result<Pickle> parse_pickle(std::string_view bytes, std::string_view where);

}  // namespace nibble::checkpoint
