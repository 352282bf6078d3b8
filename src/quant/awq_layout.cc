#include "quant/awq_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "quant/packed_words.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::TensorView;

uint8_t code_of(uint32_t word, int output) { return word >> kAwqShift[output] & 15; }

// qweight (K, N/8) -> codes (N, K). Tiles of 8 outputs by 64 inputs, because the rows of the result
// lie K apart.
void unpack(const std::byte* qweight, int64_t n, int64_t k, uint8_t* code) {
  constexpr int64_t kColumns = 64;
  uint8_t tile[8][kColumns];
  for (int64_t c = 0; c < n / 8; ++c) {
    for (int64_t first = 0; first < k; first += kColumns) {
      const int64_t columns = std::min(kColumns, k - first);
      for (int64_t i = 0; i < columns; ++i) {
        const uint32_t word = read_word(qweight, (first + i) * (n / 8) + c);
        for (int j = 0; j < 8; ++j) tile[j][i] = code_of(word, j);
      }
      for (int64_t j = 0; j < 8; ++j) {
        std::memcpy(code + (8 * c + j) * k + first, tile[j], static_cast<size_t>(columns));
      }
    }
  }
}

tensor::WeightFormat format_of(int64_t group, DType scale_type) {
  tensor::WeightFormat format;
  format.element = tensor::Element::kU4;
  format.scaled = true;
  format.group_k = group;
  format.scale_type = scale_type;
  format.zero = tensor::ZeroKind::kInteger;
  return format;
}

class AwqMethod : public LinearMethod {
 public:
  AwqMethod(std::string_view scheme, const LinearLayer& layer, const TensorLookup& tensors,
            int64_t group)
      : scheme_(scheme),
        group_(group >= layer.k ? 0 : group),
        scale_type_(scale_type(find_tensor(tensors, layer.module, "scales"))) {
    const int64_t n = layer.n, k = layer.k, g = groups(k);
    const ShardAxis by_group = group_ == 0 ? ShardAxis{} : ShardAxis{0, group_};
    specs_ = {
        wanted(Slot::kWeight, "qweight", {DType::kS32}, {k, n / 8}, {1, 8}, {0}),
        wanted(Slot::kZero, "qzeros", {DType::kS32}, {g, n / 8}, {1, 8}, by_group),
        wanted(Slot::kScale, "scales", kFloats, {g, n}, {1}, by_group),
    };
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return scheme_; }

  tensor::WeightFormat weight_format() const override { return format_of(group_, scale_type_); }

  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    const int64_t g = groups(k), words = n / 8;
    NIBBLE_ASSIGN(const TensorView* qweight, need(raw, Slot::kWeight, "qweight", {k, words}));
    NIBBLE_ASSIGN(const TensorView* qzeros, need(raw, Slot::kZero, "qzeros", {g, words}));
    NIBBLE_ASSIGN(const TensorView* scales, need(raw, Slot::kScale, "scales", {g, n}));
    tensor::QuantizedWeight out = empty_weight(n, k);
    NIBBLE_ASSIGN(const std::vector<float> scale, read_floats(*scales, "scales"));
    out.scale = transposed(scale, g, n);
    out.zero.resize(out.scale.size());
    for (int64_t row = 0; row < g; ++row) {
      for (int64_t c = 0; c < words; ++c) {
        const uint32_t word = read_word(qzeros->data, row * words + c);
        for (int i = 0; i < 8; ++i) {
          out.zero[static_cast<size_t>((8 * c + i) * g + row)] = code_of(word, i);
        }
      }
    }
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(static_cast<size_t>(n * k)));
    unpack(qweight->data, n, k, reinterpret_cast<uint8_t*>(out.code_owner.data()));
    out.code = {DType::kU8, {n, k}, out.code_owner.data(), out.code_owner.size()};
    return out;
  }

 private:
  int64_t groups(int64_t k) const { return group_ == 0 ? 1 : (k + group_ - 1) / group_; }

  std::string_view scheme_;
  int64_t group_;  // 0: all inputs
  DType scale_type_;
  std::vector<WeightSpec> specs_;
};

// Rows of codes, zero points and scales; the inputs are not cut, because a row of zero points is
// padded.
class AwqGemvMethod : public LinearMethod {
 public:
  AwqGemvMethod(std::string_view scheme, const LinearLayer& layer, const TensorLookup& tensors,
                int64_t group, int64_t width)
      : scheme_(scheme),
        group_(group >= layer.k ? 0 : group),
        width_(width),
        scale_type_(scale_type(find_tensor(tensors, layer.module, "scales"))) {
    const int64_t n = layer.n, k = layer.k;
    specs_ = {
        wanted(Slot::kWeight, "qweight", {DType::kS32}, {n, k / 8}, {0}, {1, k, k / 8}),
        wanted(Slot::kZero, "qzeros", {DType::kS32}, {n, width}, {0}, {1, k, width}),
        wanted(Slot::kScale, "scales", kFloats, {n, 8 * width}, {0}, {1, k, 8 * width}),
    };
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return scheme_; }
  tensor::WeightFormat weight_format() const override { return format_of(group_, scale_type_); }
  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    const int64_t g = group_ == 0 ? 1 : (k + group_ - 1) / group_;
    NIBBLE_ASSIGN(const TensorView* qweight, need(raw, Slot::kWeight, "qweight", {n, k / 8}));
    NIBBLE_ASSIGN(const TensorView* qzeros, need(raw, Slot::kZero, "qzeros", {n, width_}));
    NIBBLE_ASSIGN(const TensorView* scales, need(raw, Slot::kScale, "scales", {n, 8 * width_}));
    tensor::QuantizedWeight out = empty_weight(n, k);
    NIBBLE_ASSIGN(const std::vector<float> scale, read_floats(*scales, "scales"));
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(static_cast<size_t>(n * k)));
    auto* code = reinterpret_cast<uint8_t*>(out.code_owner.data());
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t i = 0; i < g; ++i) {
        out.scale.push_back(scale[static_cast<size_t>(row * 8 * width_ + i)]);
        out.zero.push_back(static_cast<float>(read_code(qzeros->data, row * width_, 1, i, 4)));
      }
      unpack_row(qweight->data + row * k / 2, k / 2, k, 4, RowPacking::kDense, 0, code + row * k);
    }
    out.code = {DType::kU8, {n, k}, out.code_owner.data(), out.code_owner.size()};
    return out;
  }

 private:
  std::string_view scheme_;
  int64_t group_;  // 0: all inputs
  int64_t width_;  // words of a row of zero points
  DType scale_type_;
  std::vector<WeightSpec> specs_;
};

}  // namespace

bool is_awq_gemv(const LinearLayer& layer, const TensorLookup& tensors) {
  const tensor::TensorInfo* qweight = find_tensor(tensors, layer.module, "qweight");
  const tensor::TensorInfo* scales = find_tensor(tensors, layer.module, "scales");
  return qweight != nullptr && squeezed(qweight->shape) == squeezed({layer.n, layer.k / 8}) &&
         scales != nullptr && scales->shape.size() == 2 && scales->shape[0] == layer.n;
}

Result<std::unique_ptr<LinearMethod>> awq_method(std::string_view scheme, const LinearLayer& layer,
                                                 const TensorLookup& tensors, int64_t group) {
  if (layer.n % 8 != 0) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: {} outputs do not fill whole words of eight 4-bit codes",
                            layer.module, layer.n));
  }
  const tensor::TensorInfo* scales = find_tensor(tensors, layer.module, "scales");
  if (scales == nullptr && find_tensor(tensors, layer.module, "qweight") != nullptr) {
    return fail(ErrorCode::kNotFound, fmt::format("{}.qweight is stored, but {}.scales is missing",
                                                  layer.module, layer.module));
  }
  const int64_t groups = group == 0 ? 1 : (layer.k + group - 1) / group;
  if (!is_awq_gemv(layer, tensors) || scales->shape[1] % 8 != 0 || scales->shape[1] < groups) {
    return std::unique_ptr<LinearMethod>(
        std::make_unique<AwqMethod>(scheme, layer, tensors, group));
  }
  if (layer.k % 8 != 0) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: {} inputs do not fill whole words of eight 4-bit codes",
                            layer.module, layer.k));
  }
  return std::unique_ptr<LinearMethod>(
      std::make_unique<AwqGemvMethod>(scheme, layer, tensors, group, scales->shape[1] / 8));
}

}  // namespace nibble::quant
