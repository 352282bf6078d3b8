// A parameter that is a tensor subclass of torchao, as torch.save writes it (torch/_tensor.py,
// torch/_utils.py, torchao/utils.py):
//
//   _rebuild_from_type_v2(_rebuild_wrapper_subclass, Class, (Class, dtype, size, ...), state)
//
// The state is a dict of what the object has: tensors, subclasses again, and plain values. Nothing
// of torchao runs: the tensors are handed over by name, the rest becomes a JSON text of the form
// that torchao writes into the headers of its safetensors files:
//
//   {"_type": "Int4Tensor",
//    "_data": {"block_size": [1, 32], "dtype": {"_type": "torch.dtype", "_data": "bfloat16"}, ...},
//    "_tensor_data_names": ["qdata", "scale", "zero_point"]}
//
// dtype and shape are those of the arguments, unless the state has its own. A subclass within is
// such an object in "_data".
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "checkpoint/pickle.h"
#include "nibble/result.h"

namespace nibble::checkpoint {

struct SubclassSource {
  const Pickle& pickle;
  std::string_view where;  // names the file in messages
  // Takes a tensor of a subclass: the parameter's name, a dot, the path of attributes to it.
  std::function<Result<void>(const PickleValue& tensor, const std::string& name)> add;
  size_t visits = 0, json_bytes = 0;  // over all subclasses of the file
};

// The JSON text of a kSubclass. `name` is the parameter's, and so again afterwards; `depth` is how
// deep in dicts it lies. Errors: what no subclass of torchao holds; more than the limits.
Result<std::string> read_subclass(SubclassSource& from, const PickleValue& subclass,
                                  std::string& name, int depth);

}  // namespace nibble::checkpoint
