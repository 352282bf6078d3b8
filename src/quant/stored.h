// What schemes share when they read stored tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/result.h"
#include "quant/method.h"

namespace nibble::quant {

// The floats that scales are stored in.
inline const std::vector<tensor::DType> kFloats = {tensor::DType::kF16, tensor::DType::kBF16,
                                                   tensor::DType::kF32};

// A required tensor, and one that may be absent: `absent` is what that means.
WeightSpec wanted(Slot slot, std::string suffix, std::vector<tensor::DType> dtypes,
                  tensor::Shape shape, ShardAxis along_n, ShardAxis along_k);
WeightSpec optional_tensor(WeightSpec spec, std::string absent);

// How many pieces of `b` cover `a`, the last one perhaps short. a >= 0, b > 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// `shape` without its dimensions of 1: (N, 1) and (N) are one shape, () and (1) are one.
tensor::Shape squeezed(const tensor::Shape& shape);

// "weight_scale: element (2, 5)": element `i` in row-major order. A tensor of one is just its
// suffix.
std::string element_name(std::string_view suffix, const tensor::Shape& shape, size_t i);

// The tensor of a slot. Errors: it is missing; its shape (dimensions of 1 aside) is not `shape`;
// its bytes are not what type and shape make. `suffix` names it.
Result<const tensor::TensorView*> need(const RawWeights& raw, Slot slot, std::string_view suffix,
                                       const tensor::Shape& shape);

// The same for a tensor that may have any shape of `count` elements.
Result<const tensor::TensorView*> need_count(const RawWeights& raw, Slot slot,
                                             std::string_view suffix, int64_t count);

// All elements as f32, exactly. Errors: a type that holds no numbers of this kind (f16, bf16,
// f32, e8m0 and e4m3 are read); an element that is nan or infinite (the message has its place).
Result<std::vector<float>> read_floats(const tensor::TensorView& view, std::string_view suffix);

// The element of integers of 2 to 8 bits.
tensor::Element integer_element(int64_t bits, bool is_signed);

// The type that holds what read_floats gave exactly: the stored one.
tensor::DType scale_type(const tensor::TensorInfo* stored);

// Elements as int32, from s32 or s64. Error: another type, or a number that does not fit.
Result<std::vector<int32_t>> read_ints(const tensor::TensorView& view, std::string_view suffix);

// Zero points as floats, from s8, u8, s32, s64 or whatever read_floats reads.
Result<std::vector<float>> read_zero_points(const tensor::TensorView& view,
                                            std::string_view suffix);

// Error: a zero point that is no whole number from `least` to `most`, of `what`.
Result<void> check_zero_points(std::span<const float> zeros, const tensor::Shape& shape,
                               std::string_view suffix, int least, int most, std::string_view what);

// Error: a zero point that is not 0, although `symmetric` says that all are.
Result<void> check_no_zero_points(std::span<const float> zeros, const tensor::Shape& shape,
                                  std::string_view suffix, std::string_view symmetric);

// (rows, columns) -> (columns, rows).
std::vector<float> transposed(std::span<const float> values, int64_t rows, int64_t columns);

// The size of the groups along K when `scales` has `groups` of them, 0 for one: K / groups, or
// where that is not whole the power of two that makes as many. Error: there is none.
Result<int64_t> group_of_count(const LinearLayer& layer, const tensor::TensorInfo& scales,
                               int64_t groups);

}  // namespace nibble::quant
