#include "quant/schemes/torchao_ints.h"

#include <fmt/format.h>

#include <algorithm>

#include "quant/packed_words.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant::torchao {
namespace {

using tensor::DType;
using tensor::TensorView;
using tensor::ZeroKind;

constexpr int64_t kTileN = 8;
constexpr int64_t kTileK = 128;
constexpr int64_t kFilledK = 1024;

int64_t filled(int64_t size, int64_t to) { return ceil_div(size, to) * to; }

const std::vector<DType> kZeroTypes = {DType::kS8,  DType::kU8,   DType::kS32, DType::kS64,
                                       DType::kF32, DType::kBF16, DType::kF16};

// Code (n, k) of words in tiles; `columns`: tiles side by side.
uint8_t code_in_tiles(const std::byte* words, int64_t columns, int64_t n, int64_t k) {
  const int64_t thread = n % kTileN * 4 + k % 8 / 2;
  const int64_t word = ((n / kTileN * columns + k / kTileK) * 32 + thread) * 4 + k % kTileK / 32;
  const int64_t at = k % 16 / 8 + 2 * (k % 32 / 16) + 4 * (k % 2);
  return static_cast<uint8_t>(read_word(words, word) >> (4 * at) & 15);
}

class IntsMethod : public LinearMethod {
 public:
  IntsMethod(const LinearLayer& layer, const TensorLookup& tensors, Ints ints)
      : f_(std::move(ints)), scale_type_(scale_type(find_tensor(tensors, layer.module, f_.scale))) {
    add_weights(layer);
    if (f_.activation.is_static) {
      specs_.push_back(wanted(Slot::kInputScale, f_.input_scale, kFloats, {}, {}, {}));
      if (f_.activation.asymmetric) {
        specs_.push_back(wanted(Slot::kInputZero, f_.input_zero, kZeroTypes, {}, {}, {}));
      }
    }
    if (!f_.input_factor.empty()) {
      specs_.push_back(wanted(Slot::kInputFactor, f_.input_factor, kFloats, {layer.k}, {}, {0}));
    }
    for (const auto& [suffix, reason] : f_.unused) {
      if (find_tensor(tensors, layer.module, suffix) == nullptr) continue;
      specs_.push_back(wanted(Slot::kUnused, suffix, {}, {}, {}, {}));
      specs_.back().required = false;
      specs_.back().unused = reason;
    }
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return "torchao"; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    // Codes and integer zero points are held unsigned.
    const bool is_signed = f_.zero_kind != ZeroKind::kInteger && (f_.is_signed || is_tiles());
    format.element = integer_element(std::max<int64_t>(f_.bits, 2), is_signed);
    format.scaled = true;
    format.group_n = f_.area.n;
    format.group_k = f_.area.k;
    format.scale_type = scale_type_;
    format.zero = f_.zero_kind;
    return format;
  }

  tensor::ActivationFormat activation_format() const override { return f_.activation; }
  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    tensor::QuantizedWeight out = empty_weight(n, k);
    NIBBLE_TRY(read_codes(raw, out));
    NIBBLE_TRY(is_tiles() ? read_pairs(raw, out) : read_scales_and_zeros(raw, out));
    if (f_.activation.is_static) NIBBLE_TRY(read_input_grid(raw, out));
    if (!f_.input_factor.empty()) {
      NIBBLE_ASSIGN(const TensorView* factor, need(raw, Slot::kInputFactor, f_.input_factor, {k}));
      NIBBLE_ASSIGN(out.input_factor, read_floats(*factor, f_.input_factor));
    }
    return out;
  }

 private:
  bool is_tiles() const { return f_.order == Order::kTiles; }
  int64_t half() const { return int64_t{1} << (f_.bits - 1); }
  int64_t rows_of(int64_t n) const { return f_.area.n == 0 ? 1 : ceil_div(n, f_.area.n); }
  int64_t tiles_of(int64_t n) const { return filled(n, f_.tile_n) / kTileN; }
  int64_t groups_of(int64_t k) const { return f_.area.k == 0 ? 1 : ceil_div(k, f_.area.k); }

  void add_weights(const LinearLayer& layer) {
    const int64_t n = layer.n, k = layer.k;
    if (is_tiles()) {
      const int64_t wide = filled(k, kFilledK);
      specs_ = {wanted(Slot::kWeight, f_.codes, f_.code_types, {tiles_of(n), wide / kTileK, 32, 4},
                       {0, f_.tile_n, f_.tile_n / kTileN}, {1, kTileK}),
                wanted(Slot::kScale, f_.scale, kFloats, {wide / f_.area.k, filled(n, f_.tile_n), 2},
                       {1}, {0, f_.area.k})};
      return;
    }
    const int64_t in_one = f_.order == Order::kNibbles ? 2 : f_.order == Order::kWords ? 8 : 1;
    specs_ = {
        wanted(Slot::kWeight, f_.codes, f_.code_types, {n, k / in_one}, {0}, {1, in_one}),
        scales_spec(Slot::kScale, f_.scale, kFloats, n, k),
    };
    if (!f_.zero.empty()) specs_.push_back(scales_spec(Slot::kZero, f_.zero, kZeroTypes, n, k));
  }

  WeightSpec scales_spec(Slot slot, const std::string& suffix, std::vector<DType> types, int64_t n,
                         int64_t k) const {
    const ShardAxis along_n = {f_.area.n == 0  ? -1
                               : f_.transposed ? 1
                                               : 0,
                               std::max<int64_t>(f_.area.n, 1)};
    const ShardAxis along_k = {f_.area.k == 0  ? -1
                               : f_.transposed ? 0
                                               : 1,
                               std::max<int64_t>(f_.area.k, 1)};
    return wanted(slot, suffix, std::move(types), scales_shape(n, k), along_n, along_k);
  }
  tensor::Shape scales_shape(int64_t n, int64_t k) const {
    if (f_.transposed) return {groups_of(k), rows_of(n)};
    return {rows_of(n), groups_of(k)};
  }

  Result<void> read_codes(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    const int64_t n = out.n, k = out.k;
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(static_cast<size_t>(n * k)));
    auto* code = reinterpret_cast<uint8_t*>(out.code_owner.data());
    out.code = {DType::kU8, {n, k}, out.code_owner.data(), out.code_owner.size()};
    const bool is_unsigned = f_.zero_kind == ZeroKind::kInteger;
    switch (f_.order) {
      case Order::kBytes: {
        NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kWeight, f_.codes, {n, k}));
        const auto add = static_cast<uint8_t>(is_unsigned && f_.is_signed ? half() : 0);
        const auto* bytes = reinterpret_cast<const uint8_t*>(view->data);
        for (int64_t i = 0; i < n * k; ++i) code[i] = static_cast<uint8_t>(bytes[i] + add);
        return check_bytes(*view, k);
      }
      case Order::kNibbles: {
        NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kWeight, f_.codes, {n, k / 2}));
        const auto* bytes = reinterpret_cast<const uint8_t*>(view->data);
        for (int64_t i = 0; i < n * k; ++i) {
          const int nibble = bytes[i / 2] >> (i % 2 * 4) & 15;
          code[i] = static_cast<uint8_t>((nibble ^ 8) - (is_unsigned ? 0 : 8));
        }
        return {};
      }
      case Order::kWords: {
        NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kWeight, f_.codes, {n, k / 8}));
        unpack_row(view->data, n * k / 2, n * k, 4, RowPacking::kDense, 0, code);
        return {};
      }
      case Order::kTiles:
        break;
    }
    // A rank's share of the inputs lacks the filling.
    const TensorView* view = raw.get(Slot::kWeight);
    const int64_t columns = view == nullptr || view->shape.size() != 4 ? 0 : view->shape[1];
    NIBBLE_ASSIGN(view, need(raw, Slot::kWeight, f_.codes,
                             {tiles_of(n), std::max(columns, ceil_div(k, kTileK)), 32, 4}));
    for (int64_t i = 0; i < n * k; ++i) {
      code[i] = static_cast<uint8_t>(code_in_tiles(view->data, columns, i / k, i % k) - 8);
    }
    return {};
  }

  // Codes of fewer bits than their byte stay in their range.
  Result<void> check_bytes(const TensorView& view, int64_t k) const {
    if (f_.bits == 8) return {};
    const int64_t least = f_.is_signed ? -half() : 0;
    const int64_t most = least + 2 * half() - 1;
    for (uint64_t i = 0; i < view.bytes; ++i) {
      const auto byte = static_cast<uint8_t>(view.data[i]);
      const int64_t value = f_.is_signed ? static_cast<int8_t>(byte) : byte;
      if (value >= least && value <= most) continue;
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: element ({}, {}) is {}; codes of {} bits are from {} to {}",
                              f_.codes, static_cast<int64_t>(i) / k, static_cast<int64_t>(i) % k,
                              value, f_.bits, least, most));
    }
    return {};
  }

  // One for each output and group, from what is stored for each area.
  std::vector<float> spread(const std::vector<float>& of_area, int64_t n, int64_t groups,
                            float add) const {
    std::vector<float> out(static_cast<size_t>(n * groups));
    for (int64_t i = 0; i < n * groups; ++i) {
      const int64_t row = f_.area.n == 0 ? 0 : i / groups / f_.area.n;
      out[static_cast<size_t>(i)] = of_area[static_cast<size_t>(row * groups + i % groups)] + add;
    }
    return out;
  }

  Result<void> read_scales_and_zeros(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    const tensor::Shape shape = scales_shape(out.n, out.k);
    const int64_t rows = rows_of(out.n), groups = groups_of(out.k);
    const auto in_rows = [&](std::vector<float> values) {
      return f_.transposed ? transposed(values, groups, rows) : values;
    };
    NIBBLE_ASSIGN(const TensorView* scales, need(raw, Slot::kScale, f_.scale, shape));
    NIBBLE_ASSIGN(std::vector<float> scale, read_floats(*scales, f_.scale));
    out.scale = in_rows(std::move(scale));
    if (f_.zero.empty()) return {};
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kZero, f_.zero, shape));
    NIBBLE_ASSIGN(std::vector<float> zero, read_zero_points(*view, f_.zero));
    if (f_.zero_kind == ZeroKind::kNone) {
      return check_no_zero_points(zero, view->shape, f_.zero, f_.zeros_are_0);
    }
    if (f_.zero_kind == ZeroKind::kOffset) {
      out.offset = spread(in_rows(std::move(zero)), out.n, groups, 0);
      return {};
    }
    const auto least = static_cast<int>(f_.is_signed ? -half() : 0);
    const auto most = static_cast<int>(least + 2 * half() - 1);
    NIBBLE_TRY(check_zero_points(zero, view->shape, f_.zero, least, most,
                                 fmt::format("{} bits", f_.bits)));
    out.zero = spread(in_rows(std::move(zero)), out.n, groups, static_cast<float>(-least));
    return {};
  }

  // (K/g, N, 2): scale and offset of each.
  Result<void> read_pairs(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    const TensorView* view = raw.get(Slot::kScale);
    const int64_t rows = view == nullptr || view->shape.size() != 3 ? 0 : view->shape[0];
    const int64_t groups = groups_of(out.k), columns = filled(out.n, f_.tile_n);
    NIBBLE_ASSIGN(view, need(raw, Slot::kScale, f_.scale, {std::max(rows, groups), columns, 2}));
    NIBBLE_ASSIGN(const std::vector<float> pairs, read_floats(*view, f_.scale));
    for (int64_t n = 0; n < out.n; ++n) {
      for (int64_t g = 0; g < groups; ++g) {
        const auto at = static_cast<size_t>(2 * (g * columns + n));
        out.scale.push_back(pairs[at]);
        out.offset.push_back(pairs[at + 1]);
      }
    }
    return {};
  }

  Result<void> read_input_grid(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    NIBBLE_ASSIGN(const TensorView* scale, need(raw, Slot::kInputScale, f_.input_scale, {}));
    NIBBLE_ASSIGN(const std::vector<float> value, read_scales(*scale, f_.input_scale));
    out.input_scale = value[0];
    if (!f_.activation.asymmetric) return {};
    NIBBLE_ASSIGN(const TensorView* zero, need(raw, Slot::kInputZero, f_.input_zero, {}));
    NIBBLE_ASSIGN(const std::vector<float> point, read_zero_points(*zero, f_.input_zero));
    NIBBLE_TRY(check_zero_points(point, zero->shape, f_.input_zero, -128, 127, "int8 inputs"));
    out.input_zero = point[0];
    return {};
  }

  Ints f_;
  DType scale_type_;
  std::vector<WeightSpec> specs_;
};

}  // namespace

std::unique_ptr<LinearMethod> ints_method(const LinearLayer& layer, const TensorLookup& tensors,
                                          Ints ints) {
  return std::make_unique<IntsMethod>(layer, tensors, std::move(ints));
}

}  // namespace nibble::quant::torchao
