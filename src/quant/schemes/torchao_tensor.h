// A quantized parameter as TorchAO stores it: the inner tensors of an instance of a Python class (a
// tensor subclass), and a description of it, which has the class and its other attributes.
//
//   <module>._weight_<inner>   torchao 0.15 and newer   the description is in the metadata of the
//   <module>.weight:<inner>    torchao 0.14             safetensors header, under <module>.weight
//   <module>.weight.<inner>    torch.save               checkpoint/ makes it from the pickle
//
// A description is {"_type": class, "_data": {attribute: value}, "_tensor_data_names": [inner
// ...]}. Values that are objects of Python have `_type` and `_data` too: {"_type": "torch.dtype",
// "_data": "bfloat16"}, an enum's `_data` is the member's name. Instances that wrap another have
// its description among their attributes, and <inner> is then a path of attributes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "nibble/result.h"
#include "quant/method.h"

namespace nibble::quant::torchao {

// By the parameter's name.
using Descriptions = std::map<std::string, base::Json, std::less<>>;

// Those of a checkpoint's metadata. Error: a text that is no description.
Result<Descriptions> read_descriptions(const std::map<std::string, std::string, std::less<>>& all);

// The class of an object of Python, "" when it is none; its attributes, null when it has none.
std::string class_of(const base::Json& object);
const base::Json* attributes_of(const base::Json& object);

struct Instance {
  std::string type;    // the class
  base::Json data;     // its attributes
  std::string prefix;  // `_weight_`: what the suffixes of its inner tensors begin with
  // Its inner tensors, those that it may lack left out; empty: torchao 0.14 did not say.
  std::vector<std::string> inner;

  std::string suffix(std::string_view name) const { return prefix + std::string(name); }
  // Whether the inner tensor belongs to it, by the description or else by what is stored.
  bool has(std::string_view name, const TensorLookup& tensors, std::string_view module) const;
  // The attribute, which some releases spell with a `_` before it; nullptr when absent or null.
  const base::Json* find(std::string_view attribute) const;
  // The name of a torch.dtype, "" when absent.
  std::string dtype(std::string_view attribute) const;
  // The instance that this one wraps as `attribute`; nullopt: none. Error: a broken description.
  Result<std::optional<Instance>> wrapped(std::string_view attribute) const;
};

// The instance that a layer's weight is; nullopt for a plain tensor. Error: inner tensors without a
// description.
Result<std::optional<Instance>> weight_of(const Descriptions& descriptions,
                                          const TensorLookup& tensors, const std::string& module);

}  // namespace nibble::quant::torchao
