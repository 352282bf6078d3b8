#include "quant/stored.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
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

tensor::Element integer_element(int64_t bits, bool is_signed) {
  using tensor::Element;
  constexpr std::array<Element, 7> kSigned = {Element::kS2, Element::kS3, Element::kS4,
                                              Element::kS5, Element::kS6, Element::kS7,
                                              Element::kS8};
  constexpr std::array<Element, 7> kUnsigned = {Element::kU2, Element::kU3, Element::kU4,
                                                Element::kU5, Element::kU6, Element::kU7,
                                                Element::kU8};
  NIBBLE_CHECK(bits >= 2 && bits <= 8);
  return (is_signed ? kSigned : kUnsigned)[static_cast<size_t>(bits - 2)];
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

Result<std::vector<float>> read_zero_points(const TensorView& view, std::string_view suffix) {
  if (view.dtype == DType::kS32 || view.dtype == DType::kS64) {
    NIBBLE_ASSIGN(const std::vector<int32_t> values, read_ints(view, suffix));
    return std::vector<float>(values.begin(), values.end());
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(view.data);
  const auto* signed_bytes = reinterpret_cast<const int8_t*>(view.data);
  if (view.dtype == DType::kU8) return std::vector<float>(bytes, bytes + view.bytes);
  if (view.dtype == DType::kS8) return std::vector<float>(signed_bytes, signed_bytes + view.bytes);
  return read_floats(view, suffix);
}

Result<void> check_no_zero_points(std::span<const float> zeros, const tensor::Shape& shape,
                                  std::string_view suffix, std::string_view symmetric) {
  for (size_t i = 0; i < zeros.size(); ++i) {
    if (zeros[i] == 0) continue;
    return fail(ErrorCode::kCorrupt, fmt::format("{} is {}, but {}", element_name(suffix, shape, i),
                                                 zeros[i], symmetric));
  }
  return {};
}

Result<void> check_zero_points(std::span<const float> zeros, const tensor::Shape& shape,
                               std::string_view suffix, int least, int most,
                               std::string_view what) {
  for (size_t i = 0; i < zeros.size(); ++i) {
    const auto low = static_cast<float>(least), high = static_cast<float>(most);
    if (zeros[i] >= low && zeros[i] <= high && zeros[i] == std::trunc(zeros[i])) continue;
    return fail(ErrorCode::kCorrupt,
                fmt::format("{} is {}; a zero point of {} is a whole number from {} to {}",
                            element_name(suffix, shape, i), zeros[i], what, least, most));
  }
  return {};
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
