#include "quant/schemes/torchao_tensor.h"

#include <fmt/format.h>

#include <algorithm>

#include "quant/keys.h"
#include "quant/scheme.h"

namespace nibble::quant::torchao {

using base::Json;
using tensor::TensorInfo;

Result<Descriptions> read_descriptions(const std::map<std::string, std::string, std::less<>>& all) {
  Descriptions out;
  for (const auto& [name, text] : all) {
    // "format", "tensor_names" and what others write are none.
    if (!name.ends_with(".weight") && !name.ends_with(".bias")) continue;
    const std::string where = "metadata: " + name;
    NIBBLE_ASSIGN(Json description, base::parse_json(text, where));
    if (class_of(description).empty()) {
      return fail(
          ErrorCode::kCorrupt,
          fmt::format("{}: expected the description of a tensor ({{\"_type\": ...}}), found "
                      "{}",
                      where, description.describe()));
    }
    out.emplace(name, std::move(description));
  }
  return out;
}

std::string class_of(const Json& object) {
  const Json* type = object.find_set("_type");
  return type != nullptr && type->is_string() ? type->as_string() : "";
}

const Json* attributes_of(const Json& object) {
  const Json* data = object.find_set("_data");
  return data != nullptr && data->is_object() ? data : nullptr;
}

const Json* Instance::find(std::string_view attribute) const {
  const Json* found = data.find_set(attribute);
  return found != nullptr ? found : data.find_set("_" + std::string(attribute));
}

std::string Instance::dtype(std::string_view attribute) const {
  const Json* found = find(attribute);
  if (found == nullptr || class_of(*found) != "torch.dtype") return "";
  const Json* name = found->find_set("_data");
  return name != nullptr && name->is_string() ? name->as_string() : "";
}

bool Instance::has(std::string_view name, const TensorLookup& tensors,
                   std::string_view module) const {
  if (inner.empty()) return find_tensor(tensors, module, suffix(name)) != nullptr;
  return std::find(inner.begin(), inner.end(), name) != inner.end();
}

Result<std::optional<Instance>> Instance::wrapped(std::string_view attribute) const {
  const Json* found = data.find_set(attribute);
  if (found == nullptr || attributes_of(*found) == nullptr) return std::optional<Instance>();
  NIBBLE_ASSIGN(std::vector<std::string> names, names_key(*found, "_tensor_data_names"));
  return std::optional(Instance{class_of(*found), *attributes_of(*found),
                                fmt::format("{}{}.", prefix, attribute), std::move(names)});
}

Result<std::optional<Instance>> weight_of(const Descriptions& descriptions,
                                          const TensorLookup& tensors, const std::string& module) {
  constexpr std::string_view kSpelled[] = {"_weight_", "weight:", "weight."};
  const auto at = descriptions.find(module + ".weight");
  std::vector<std::string> inner;
  if (at != descriptions.end()) {
    if (attributes_of(at->second) == nullptr) {
      const std::string type = class_of(at->second);
      if (type == "Tensor" || type == "Parameter") return std::optional<Instance>();
      return fail(
          ErrorCode::kCorrupt,
          fmt::format("metadata: {}.weight: the description of its {} has no _data", module, type));
    }
    NIBBLE_ASSIGN(inner, names_key(at->second, "_tensor_data_names"));
  }
  const TensorInfo* found = nullptr;
  std::string_view prefix = kSpelled[2];  // nothing of its own: it wraps another
  for (const std::string_view spelled : kSpelled) {
    found = find_tensor(tensors, module, fmt::format("{}qdata", spelled));
    for (size_t i = 0; found == nullptr && i < inner.size(); ++i) {
      found = find_tensor(tensors, module, std::string(spelled) + inner[i]);
    }
    if (found == nullptr) continue;
    prefix = spelled;
    break;
  }
  if (at == descriptions.end()) {
    if (found == nullptr) return std::optional<Instance>();
    return fail(ErrorCode::kNotFound,
                fmt::format("{} is stored, but the metadata of the headers does not say what "
                            "{}.weight is; TorchAO writes it there, and tools that copy tensors "
                            "alone lose it",
                            found->name, module));
  }
  return std::optional(
      Instance{class_of(at->second), *attributes_of(at->second), std::string(prefix), inner});
}

}  // namespace nibble::quant::torchao
