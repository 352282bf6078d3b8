#include "quant/schemes/compressed_tensors_weight.h"

#include <fmt/format.h>

#include <algorithm>

#include "quant/act_order.h"
#include "quant/packed_words.h"
#include "quant/scheme.h"
#include "quant/schemes/compressed_tensors_24.h"
#include "quant/schemes/compressed_tensors_codes.h"
#include "quant/schemes/compressed_tensors_specs.h"
#include "quant/stored.h"

namespace nibble::quant::compressed {
namespace {

using tensor::DType;
using tensor::Element;
using tensor::TensorView;

Element element_of(const Form& f) {
  if (!f.is_float) return integer_element(f.bits, !f.asymmetric);
  if (f.bits == 4) return Element::kE2M1;
  if (f.bits < 16) return Element::kE4M3;  // e2m3 is a part of e4m3
  return f.stored == DType::kBF16  ? Element::kBF16
         : f.stored == DType::kF16 ? Element::kF16
                                   : Element::kF32;
}

// Bytes that hold exponents of two are e8m0, whatever their type is called.
TensorView as_scale(TensorView view) {
  if (view.dtype == DType::kU8) view.dtype = DType::kE8M0;
  return view;
}

// A stored scale of the inputs, or one that divides: a positive number.
Result<float> positive(const RawWeights& raw, Slot slot, std::string_view suffix) {
  NIBBLE_ASSIGN(const TensorView* view, need(raw, slot, suffix, {}));
  NIBBLE_ASSIGN(const std::vector<float> value, read_floats(*view, suffix));
  if (value[0] > 0) return value[0];
  return fail(ErrorCode::kCorrupt, fmt::format("{} is {}; a scale is positive", suffix, value[0]));
}

class CompressedMethod : public LinearMethod {
 public:
  CompressedMethod(const LinearLayer& layer, const TensorLookup& tensors, Form form)
      : f_(std::move(form)), n_(layer.n), k_(layer.k), specs_(specs_of(f_, layer, tensors)) {}

  std::string_view scheme() const override { return "compressed-tensors"; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = element_of(f_);
    format.scaled = f_.scaled;
    format.group_n = f_.group_n;
    format.group_k = f_.group_k;
    format.scale_type = f_.scale_type;
    format.second_scale = f_.second_scale;
    if (f_.asymmetric) format.zero = tensor::ZeroKind::kInteger;
    format.act_order = f_.act_order;
    if (f_.storage == Storage::kFloat6 && f_.group_k == 32) format.stored_as = "e2m3g32";
    return format;
  }

  tensor::ActivationFormat activation_format() const override { return f_.activation; }
  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    tensor::QuantizedWeight out = empty_weight(n, k);
    out.input_hadamard = f_.input_hadamard;
    if (out.input_hadamard != 0 && k % out.input_hadamard != 0) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("a rotation of {} inputs cannot be cut to {}; use fewer ranks",
                              out.input_hadamard, k));
    }
    NIBBLE_TRY(check_shape(raw));
    if (f_.scaled) {
      NIBBLE_TRY(read_scale(raw, out));
      NIBBLE_TRY(read_zero(raw, out));
      NIBBLE_TRY(read_order(raw, out));
    }
    NIBBLE_TRY(read_codes(f_, n_, raw, out));
    NIBBLE_TRY(read_inputs(raw, out));
    return out;
  }

 private:
  int64_t groups_of(int64_t k) const { return f_.groups_of(f_.act_order ? k_ : k); }
  int64_t scale_rows(int64_t n) const { return f_.scale_rows(n); }
  uint8_t half() const { return static_cast<uint8_t>(1 << (f_.bits - 1)); }

  Result<void> check_shape(const RawWeights& raw) const {
    const TensorView* view = raw.get(Slot::kShape);
    if (view == nullptr) return {};
    const char* suffix = f_.storage == Storage::kWords ? "weight_shape" : "shape";
    NIBBLE_ASSIGN(const std::vector<int32_t> shape, read_ints(*view, suffix));
    if (shape == std::vector<int32_t>{static_cast<int32_t>(n_), static_cast<int32_t>(k_)}) {
      return {};
    }
    return fail(ErrorCode::kCorrupt,
                fmt::format("{} says ({}), but config.json makes the weight ({}, {})", suffix,
                            fmt::join(shape, ", "), n_, k_));
  }

  Result<void> read_scale(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    const int64_t rows = scale_rows(out.n), groups = groups_of(out.k);
    if (f_.storage == Storage::kMarlin24) {
      NIBBLE_ASSIGN(const TensorView* view,
                    need(raw, Slot::kScale, "scale_packed", {groups, out.n}));
      NIBBLE_ASSIGN(const std::vector<float> scale, read_floats(*view, "scale_packed"));
      const bool permuted = f_.group_k != 0 && f_.group_k < k_ / 2;
      out.scale = unpack_marlin24_scales(scale, out.n, groups, permuted);
      return {};
    }
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kScale, "weight_scale", {rows, groups}));
    NIBBLE_ASSIGN(out.scale, read_floats(as_scale(*view), "weight_scale"));
    if (!f_.global_scale) return {};
    NIBBLE_ASSIGN(const float global, positive(raw, Slot::kScale2, "weight_global_scale"));
    if (f_.second_scale != tensor::SecondScale::kNone) out.second_scale = global;
    for (float& scale : out.scale) scale /= global;
    return {};
  }

  // (N, groups), one for each output also where several share it.
  Result<void> read_zero(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    if (raw.get(Slot::kZero) == nullptr && !f_.asymmetric) return {};
    const int64_t groups = groups_of(out.k);
    const int64_t rows = f_.packed_zeros ? out.n : scale_rows(out.n);
    std::vector<float> zero;
    if (f_.packed_zeros) {
      NIBBLE_ASSIGN(zero, read_packed_zeros(out.n, groups, raw));
    } else {
      NIBBLE_ASSIGN(const TensorView* view,
                    need(raw, Slot::kZero, "weight_zero_point", {rows, groups}));
      NIBBLE_ASSIGN(zero, read_zero_points(*view, "weight_zero_point"));
    }
    if (!f_.asymmetric) {
      return check_no_zero_points(zero, {rows, groups}, "weight_zero_point", "symmetric is true");
    }
    NIBBLE_TRY(check_zero_points(zero, {rows, groups}, "weight_zero_point", -half(), half() - 1,
                                 fmt::format("{} bits", f_.bits)));
    const int64_t shared = f_.packed_zeros ? 1 : f_.group_n == 0 ? out.n : f_.group_n;
    out.zero.resize(static_cast<size_t>(out.n * groups));
    for (int64_t i = 0; i < out.n * groups; ++i) {
      const int64_t from = i / groups / shared * groups + i % groups;
      out.zero[static_cast<size_t>(i)] =
          zero[static_cast<size_t>(from)] + static_cast<float>(half());
    }
    return {};
  }

  // Packed along N -> (N, groups).
  Result<std::vector<float>> read_packed_zeros(int64_t n, int64_t groups,
                                               const RawWeights& raw) const {
    const int64_t words = row_words(n, f_.bits, f_.zero_packing);
    NIBBLE_ASSIGN(const TensorView* view,
                  need(raw, Slot::kZero, "weight_zero_point", {words, groups}));
    std::vector<uint32_t> column(static_cast<size_t>(words));
    std::vector<uint8_t> codes(static_cast<size_t>(n));
    std::vector<float> out(static_cast<size_t>(n * groups));
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t w = 0; w < words; ++w) {
        column[static_cast<size_t>(w)] = read_word(view->data, w * groups + g);
      }
      unpack_row(reinterpret_cast<const std::byte*>(column.data()), 4 * words, n, f_.bits,
                 f_.zero_packing, half(), codes.data());
      for (int64_t i = 0; i < n; ++i) {
        out[static_cast<size_t>(i * groups + g)] =
            static_cast<float>(static_cast<int8_t>(codes[static_cast<size_t>(i)]));
      }
    }
    return out;
  }

  // A -1 in weight_g_idx: it was never set, and groups are neighbours.
  Result<void> read_order(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    if (f_.storage == Storage::kMask) return {};  // the slot has row_offsets
    if (raw.get(Slot::kGroupIndex) == nullptr && !f_.act_order) return {};
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kGroupIndex, "weight_g_idx", {out.k}));
    NIBBLE_ASSIGN(std::vector<int32_t> g_idx, read_ints(*view, "weight_g_idx"));
    const bool unset = std::find(g_idx.begin(), g_idx.end(), -1) != g_idx.end();
    if (!f_.act_order) {
      if (unset) return {};
      auto ok = check_group_order(g_idx, f_.group_k, out.k != k_);
      if (ok) return {};
      return fail(ErrorCode::kCorrupt,
                  fmt::format("weight_{}; set actorder to \"group\" if the inputs are scattered",
                              ok.error().message));
    }
    if (unset && out.k != k_) {
      return fail(ErrorCode::kUnsupported,
                  "weight_g_idx was never set, so that a part of it does not say where it begins");
    }
    for (size_t i = 0; unset && i < g_idx.size(); ++i) {
      g_idx[i] = static_cast<int32_t>(static_cast<int64_t>(i) / f_.group_k);
    }
    auto sorted = sort_by_group(g_idx, groups_of(k_), out.k != k_, out);
    if (sorted) return {};
    return fail(ErrorCode::kCorrupt, "weight_" + sorted.error().message);
  }

  Result<void> read_inputs(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    if (!f_.input_scale.empty()) {
      NIBBLE_ASSIGN(out.input_scale, positive(raw, Slot::kInputScale, f_.input_scale));
      if (f_.input_scale == "input_global_scale") out.input_scale = 1 / out.input_scale;
    }
    if (raw.get(Slot::kInputZero) == nullptr) return {};
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kInputZero, "input_zero_point", {}));
    NIBBLE_ASSIGN(const std::vector<float> zero, read_zero_points(*view, "input_zero_point"));
    if (!f_.activation.asymmetric) {
      return check_no_zero_points(zero, {}, "input_zero_point", "symmetric is true");
    }
    out.input_zero = zero[0];
    return check_zero_points(zero, {}, "input_zero_point", -128, 127, "int8 inputs");
  }

  Form f_;
  int64_t n_, k_;
  std::vector<WeightSpec> specs_;
};

}  // namespace

std::unique_ptr<LinearMethod> compressed_method(const LinearLayer& layer,
                                                const TensorLookup& tensors, Form form) {
  return std::make_unique<CompressedMethod>(layer, tensors, std::move(form));
}

}  // namespace nibble::quant::compressed
