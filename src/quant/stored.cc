#include "quant/stored.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/number.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::TensorView;

template <class T>
T element(const TensorView& view, size_t i) {
  T value;
  std::memcpy(&value, view.data + i * sizeof(T), sizeof(T));
  return value;
}

std::optional<int64_t> number_in(const base::Json& value) {
  if (value.is_int()) return value.as_int();
  if (!value.is_string()) return std::nullopt;
  const std::string& text = value.as_string();
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

std::string element_name(std::string_view suffix, const tensor::Shape& shape, size_t i) {
  if (squeezed(shape).empty()) return std::string(suffix);
  tensor::Shape at(shape.size());
  auto rest = static_cast<int64_t>(i);
  for (size_t d = shape.size(); d-- > 0;) {
    at[d] = rest % shape[d];
    rest /= shape[d];
  }
  return fmt::format("{}: element {}", suffix, tensor::to_string(at));
}

WeightSpec wanted(Slot slot, std::string suffix, std::vector<tensor::DType> dtypes,
                  tensor::Shape shape, ShardAxis along_n, ShardAxis along_k) {
  WeightSpec spec;
  spec.slot = slot;
  spec.suffix = std::move(suffix);
  spec.dtypes = std::move(dtypes);
  spec.shape = std::move(shape);
  spec.along_n = along_n;
  spec.along_k = along_k;
  return spec;
}

WeightSpec optional_tensor(WeightSpec spec, std::string absent) {
  spec.required = false;
  spec.absent = std::move(absent);
  return spec;
}

tensor::Shape squeezed(const tensor::Shape& shape) {
  tensor::Shape out;
  for (int64_t dim : shape) {
    if (dim != 1) out.push_back(dim);
  }
  return out;
}

Result<const TensorView*> need(const RawWeights& raw, Slot slot, std::string_view suffix,
                               const tensor::Shape& shape) {
  const TensorView* view = raw.get(slot);
  if (view == nullptr) {
    return fail(ErrorCode::kNotFound, fmt::format("{}: the tensor is missing", suffix));
  }
  if (squeezed(view->shape) != squeezed(shape) ||
      tensor::byte_count(view->dtype, view->shape) != view->bytes) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format("{}: expected {}, found {} {} of {} bytes", suffix, tensor::to_string(shape),
                    tensor::name(view->dtype), tensor::to_string(view->shape), view->bytes));
  }
  return view;
}

Result<const TensorView*> need_count(const RawWeights& raw, Slot slot, std::string_view suffix,
                                     int64_t count) {
  const TensorView* view = raw.get(slot);
  if (view == nullptr || tensor::element_count(view->shape) != count) {
    return need(raw, slot, suffix, {count});  // its error says what is wrong
  }
  return need(raw, slot, suffix, view->shape);
}

Result<std::vector<float>> read_floats(const TensorView& view, std::string_view suffix) {
  const auto count = static_cast<size_t>(tensor::element_count(view.shape).value_or(0));
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) {
    switch (view.dtype) {
      case DType::kF16:
        out[i] = base::f32_from_f16(element<uint16_t>(view, i));
        break;
      case DType::kBF16:
        out[i] = base::f32_from_bf16(element<uint16_t>(view, i));
        break;
      case DType::kF32:
        out[i] = element<float>(view, i);
        break;
      case DType::kE8M0:
        out[i] = base::f32_from_e8m0(element<uint8_t>(view, i));
        break;
      case DType::kE4M3:
        out[i] = base::f32_from_e4m3(element<uint8_t>(view, i));
        break;
      default:
        return fail(ErrorCode::kCorrupt,
                    fmt::format("{}: expected f16, bf16, f32, e8m0 or e4m3, found {}", suffix,
                                tensor::name(view.dtype)));
    }
    if (!std::isfinite(out[i])) {
      return fail(ErrorCode::kCorrupt, fmt::format("{} is {}; the file is damaged",
                                                   element_name(suffix, view.shape, i), out[i]));
    }
  }
  return out;
}

tensor::DType scale_type(const tensor::TensorInfo* stored) {
  return stored == nullptr ? DType::kF32 : stored->dtype;
}

Result<std::vector<int32_t>> read_ints(const TensorView& view, std::string_view suffix) {
  if (view.dtype != DType::kS32 && view.dtype != DType::kS64) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: expected s32 or s64, found {}", suffix, tensor::name(view.dtype)));
  }
  std::vector<int32_t> out(static_cast<size_t>(tensor::element_count(view.shape).value_or(0)));
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t value =
        view.dtype == DType::kS32 ? element<int32_t>(view, i) : element<int64_t>(view, i);
    out[i] = static_cast<int32_t>(value);
    if (out[i] != value) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{} is {}, too large", element_name(suffix, view.shape, i), value));
    }
  }
  return out;
}

std::vector<float> transposed(std::span<const float> values, int64_t rows, int64_t columns) {
  std::vector<float> out(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      out[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
    }
  }
  return out;
}

Result<int64_t> int_key(const base::Json& dictionary, std::string_view key) {
  const base::Json* value = dictionary.find_set(key);
  if (value != nullptr) {
    if (const std::optional<int64_t> number = number_in(*value)) return *number;
  }
  return dictionary.get_int(key);  // its error says what is wrong
}

Result<int64_t> int_key_or(const base::Json& dictionary, std::string_view key, int64_t fallback) {
  if (dictionary.find_set(key) == nullptr) return fallback;
  return int_key(dictionary, key);
}

Result<double> double_key_or(const base::Json& dictionary, std::string_view key, double fallback) {
  const base::Json* value = dictionary.find_set(key);
  if (value != nullptr && value->is_string()) {
    const std::string& text = value->as_string();
    double number = 0;
    const char* end = text.data() + text.size();
    const auto [read, error] = std::from_chars(text.data(), end, number);
    if (error == std::errc() && read == end) return number;
  }
  return value == nullptr ? fallback : dictionary.get_double(key);
}

Result<std::string> choice_key(const base::Json& dictionary, std::string_view key,
                               std::initializer_list<std::string_view> values) {
  NIBBLE_ASSIGN(std::string value, dictionary.get_string_or(key, std::string(*values.begin())));
  for (char& c : value) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (std::find(values.begin(), values.end(), value) != values.end()) return value;
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: {} is \"{}\"; known are: {}", dictionary.where(), key, value,
                          fmt::join(values, ", ")));
}

Result<std::vector<std::string>> names_key(const base::Json& dictionary, std::string_view key) {
  std::vector<std::string> names;
  const base::Json* list = dictionary.find_set(key);
  std::vector<const base::Json*> todo;
  if (list != nullptr) todo.push_back(list);
  while (!todo.empty()) {
    const base::Json* item = todo.back();
    todo.pop_back();
    if (item->is_array()) {
      for (auto it = item->as_array().rbegin(); it != item->as_array().rend(); ++it) {
        todo.push_back(&*it);
      }
    } else if (item->is_string() && item != list) {
      names.push_back(item->as_string());
    } else {
      return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected a list of names, found {}",
                                                   dictionary.where(), key, item->describe()));
    }
  }
  return names;
}

Result<int64_t> group_size_key(const base::Json& dictionary, std::string_view key) {
  NIBBLE_ASSIGN(const int64_t group, int_key(dictionary, key));
  if (group == -1) return int64_t{0};
  if (group > 0) return group;
  return fail(ErrorCode::kCorrupt,
              fmt::format("{}: {}: expected -1 (all inputs) or a positive number, found {}",
                          dictionary.where(), key, group));
}

Result<int64_t> group_of_count(const LinearLayer& layer, const tensor::TensorInfo& scales,
                               int64_t groups) {
  if (groups == 1) return int64_t{0};
  if (groups > 1 && layer.k % groups == 0) return layer.k / groups;
  for (int64_t size = 1; groups > 1 && size < layer.k; size *= 2) {
    if ((layer.k + size - 1) / size == groups) return size;
  }
  return fail(ErrorCode::kCorrupt,
              fmt::format("{} {}: {} groups of one size do not cover {} inputs", scales.name,
                          tensor::to_string(scales.shape), groups, layer.k));
}

}  // namespace nibble::quant
