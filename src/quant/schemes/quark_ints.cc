#include "quant/schemes/quark_ints.h"

#include <fmt/format.h>

#include "quant/awq_layout.h"
#include "quant/packed_words.h"
#include "quant/scaled_codes.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::Element;
using tensor::TensorInfo;
using tensor::TensorView;

struct Layout {
  QuarkInts ints;
  bool packed = true;  // eight codes to a word
  bool per_tensor = false;
  int64_t group = 0;  // > 0: groups along K, stored transposed
  bool two_levels = false;
};

class QuarkIntsMethod : public LinearMethod {
 public:
  QuarkIntsMethod(const LinearLayer& layer, const TensorLookup& tensors, const Layout& layout,
                  const tensor::ActivationFormat& activation)
      : l_(layout), activation_(activation) {
    const int64_t n = layer.n, k = layer.k, unit = l_.packed ? 8 : 1;
    const DType type = l_.packed ? DType::kS32 : DType::kS8;
    const std::string weight(l_.ints.weight), zero(l_.ints.zero);
    const std::string scale = l_.two_levels ? "weight_scale_2" : std::string(l_.ints.scale);
    scale_type_ =
        l_.two_levels ? DType::kF32 : scale_type(find_tensor(tensors, layer.module, scale));
    if (l_.group > 0) {
      const int64_t g = k / l_.group;
      specs_ = {wanted(Slot::kWeight, weight, {type}, {k, n / unit}, {1, unit}, {0}),
                wanted(Slot::kScale, scale, kFloats, {g, n}, {1}, {0, l_.group}),
                wanted(Slot::kZero, zero, {type}, {g, n / unit}, {1, unit}, {0, l_.group})};
    } else {
      const tensor::Shape of_scale = l_.per_tensor ? tensor::Shape{} : tensor::Shape{n};
      const tensor::Shape of_zero = l_.per_tensor ? tensor::Shape{} : tensor::Shape{n / unit};
      const ShardAxis one = l_.per_tensor ? ShardAxis{} : ShardAxis{0};
      const ShardAxis units = l_.per_tensor ? ShardAxis{} : ShardAxis{0, unit};
      specs_ = {wanted(Slot::kWeight, weight, {type}, {n, k / unit}, {0}, {1, unit}),
                wanted(Slot::kScale, scale, kFloats, of_scale, one, {}),
                wanted(Slot::kZero, zero, {DType::kS32, DType::kS8}, of_zero, units, {})};
    }
    if (l_.ints.symmetric) {
      specs_[2] = optional_tensor(specs_[2], "no zero points: symmetric");
    }
    if (l_.two_levels) {
      specs_.push_back(wanted(Slot::kScale2, "weight_scale", kFloats, {}, {}, {}));
    }
    add_activation(layer, tensors);
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return l_.ints.scheme; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = l_.packed ? (l_.ints.symmetric ? Element::kS4 : Element::kU4)
                               : (l_.ints.symmetric ? Element::kS8 : Element::kU8);
    format.scaled = true;
    format.group_n = l_.per_tensor && l_.ints.symmetric ? 0 : 1;
    format.group_k = l_.group;
    format.scale_type = scale_type_;
    format.zero = l_.ints.symmetric ? tensor::ZeroKind::kNone : tensor::ZeroKind::kInteger;
    return format;
  }
  tensor::ActivationFormat activation_format() const override { return activation_; }
  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    tensor::QuantizedWeight out = empty_weight(n, k);
    const int64_t g = l_.group > 0 ? k / l_.group : 1;
    NIBBLE_TRY(read_scales_of(n, g, raw, out));
    NIBBLE_TRY(read_zeros(n, g, raw, out));
    NIBBLE_TRY(read_codes(raw, out));
    if (!activation_.is_static) return out;
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kInputScale, "input_scale", {}));
    NIBBLE_ASSIGN(const std::vector<float> scale, read_scales(*view, "input_scale"));
    out.input_scale = scale[0];
    const TensorView* zero = raw.get(Slot::kInputZero);
    if (zero != nullptr) out.input_zero = static_cast<float>(code_in(*zero, 0, false));
    NIBBLE_TRY(
        check_zero_points({&out.input_zero, 1}, {}, "input_zero_point", -128, 127, "int8 inputs"));
    if (activation_.asymmetric || out.input_zero == 0) return out;
    return fail(ErrorCode::kCorrupt,
                fmt::format("input_zero_point is {}, but input_tensors are symmetric, which means "
                            "0",
                            out.input_zero));
  }

 private:
  void add_activation(const LinearLayer& layer, const TensorLookup& tensors) {
    const bool is_static = activation_.is_static;
    for (const auto& [slot, suffix] :
         {std::pair{Slot::kInputScale, "input_scale"}, {Slot::kInputZero, "input_zero_point"}}) {
      const TensorInfo* stored = find_tensor(tensors, layer.module, suffix);
      const bool required = is_static && (slot == Slot::kInputScale || activation_.asymmetric);
      if (stored == nullptr && !required) continue;
      const std::vector<DType> types =
          slot == Slot::kInputScale ? kFloats : std::vector{DType::kS8, DType::kS32, DType::kU8};
      WeightSpec spec = wanted(is_static ? slot : Slot::kUnused, suffix, types, {}, {}, {});
      spec.required = required;
      if (!is_static) spec.unused = "the activations are dynamic";
      if (is_static && !required) spec.absent = "symmetric: 0";
      specs_.push_back(std::move(spec));
    }
  }

  // Code `index` of a row of codes that begins at the tensor's start, as a number.
  int code_in(const TensorView& view, int64_t index, bool packed) const {
    if (view.dtype != DType::kS32) return static_cast<int8_t>(view.data[index]);
    if (!packed) return static_cast<int>(read_word(view.data, index));
    const auto place = static_cast<size_t>(index % 8);
    const int shift = l_.ints.reordered ? kAwqShift[place] : static_cast<int>(4 * place);
    const int code = static_cast<int>(read_word(view.data, index / 8) >> shift & 15);
    return l_.ints.is_signed && code >= 8 ? code - 16 : code;
  }
  // Signed codes with zero points become unsigned: both move up.
  int up() const { return l_.ints.symmetric || !l_.ints.is_signed ? 0 : (l_.packed ? 8 : 128); }

  Result<void> read_scales_of(int64_t n, int64_t g, const RawWeights& raw,
                              tensor::QuantizedWeight& out) const {
    const std::string& suffix = specs_[1].suffix;
    const tensor::Shape shape = l_.per_tensor  ? tensor::Shape{}
                                : l_.group > 0 ? tensor::Shape{g, n}
                                               : tensor::Shape{n};
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kScale, suffix, shape));
    NIBBLE_ASSIGN(out.scale, read_floats(*view, suffix));
    if (l_.group > 0) out.scale = transposed(out.scale, g, n);
    if (l_.per_tensor && out.format.group_n == 1) {
      out.scale.assign(static_cast<size_t>(n), out.scale[0]);
    }
    if (!l_.two_levels) return {};
    NIBBLE_ASSIGN(const TensorView* outer, need(raw, Slot::kScale2, "weight_scale", {}));
    NIBBLE_ASSIGN(const std::vector<float> factor, read_scales(*outer, "weight_scale"));
    for (float& scale : out.scale) scale *= factor[0];
    return {};
  }

  Result<void> read_zeros(int64_t n, int64_t g, const RawWeights& raw,
                          tensor::QuantizedWeight& out) const {
    if (raw.get(Slot::kZero) == nullptr && l_.ints.symmetric) return {};
    const int64_t unit = l_.packed ? 8 : 1, count = l_.per_tensor ? 1 : g * n;
    NIBBLE_ASSIGN(const TensorView* view,
                  need_count(raw, Slot::kZero, l_.ints.zero, l_.per_tensor ? 1 : g * n / unit));
    std::vector<float> zero(static_cast<size_t>(g * n));
    for (size_t i = 0; i < zero.size(); ++i) {
      const int z =
          code_in(*view, count == 1 ? 0 : static_cast<int64_t>(i), l_.packed && !l_.per_tensor);
      if (l_.ints.symmetric && z != 0) {
        return fail(ErrorCode::kCorrupt,
                    fmt::format("{}: number {} is {}, but symmetric is true, which means 0",
                                l_.ints.zero, i, z));
      }
      zero[i] = static_cast<float>(z);
    }
    if (l_.ints.symmetric) return {};
    const int codes = l_.packed ? 16 : 256, least = l_.ints.is_signed ? -codes / 2 : 0;
    NIBBLE_TRY(check_zero_points(zero, {g, n}, l_.ints.zero, least, least + codes - 1,
                                 l_.packed ? "4 bits" : "8 bits"));
    for (float& z : zero) z += static_cast<float>(up());
    out.zero = transposed(zero, g, n);
    return {};
  }

  Result<void> read_codes(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    const bool turned = l_.group > 0;
    const int64_t rows = turned ? out.k : out.n, columns = turned ? out.n : out.k;
    const int64_t unit = l_.packed ? 8 : 1;
    NIBBLE_ASSIGN(const TensorView* view,
                  need(raw, Slot::kWeight, l_.ints.weight, {rows, columns / unit}));
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(static_cast<size_t>(out.n * out.k)));
    const auto code = out.code_owner.as<uint8_t>();
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t to = turned ? column * out.k + row : row * out.k + column;
        code[static_cast<size_t>(to)] =
            static_cast<uint8_t>(code_in(*view, row * columns + column, l_.packed) + up());
      }
    }
    out.code = {DType::kU8, {out.n, out.k}, out.code_owner.data(), out.code_owner.size()};
    return {};
  }

  Layout l_;
  tensor::ActivationFormat activation_;
  DType scale_type_;
  std::vector<WeightSpec> specs_;
};

}  // namespace

Result<std::unique_ptr<LinearMethod>> quark_ints_method(
    const LinearLayer& layer, const TensorLookup& tensors, QuarkInts ints,
    const tensor::ActivationFormat& activation) {
  const TensorInfo* weight = find_tensor(tensors, layer.module, ints.weight);
  const TensorInfo* outer = find_tensor(tensors, layer.module, ints.scale);
  const TensorInfo* inner = find_tensor(tensors, layer.module, "weight_scale_2");
  const TensorInfo& scale = inner != nullptr ? *inner : *outer;
  Layout l;
  l.ints = ints;
  l.packed = weight->dtype == DType::kS32;
  l.two_levels = inner != nullptr;
  const tensor::Shape shape = squeezed(scale.shape);
  l.per_tensor = shape.empty() && layer.n != 1;
  const bool groups = scale.shape.size() == 2 && scale.shape[1] == layer.n && scale.shape[0] > 0 &&
                      layer.k % scale.shape[0] == 0 && layer.n > 1;
  if (groups) l.group = layer.k / scale.shape[0];
  if (!groups && !l.per_tensor && shape != squeezed({layer.n})) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: {} is neither one scale nor one per output ({}) nor one per group "
                            "and output",
                            scale.name, tensor::to_string(scale.shape), layer.n));
  }
  if (l.packed && (groups ? layer.n : layer.k) % 8 != 0) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: {} {} do not fill whole words of eight 4-bit codes", layer.module,
                            groups ? layer.n : layer.k, groups ? "outputs" : "inputs"));
  }
  if (!l.packed) l.ints.is_signed = true;
  return std::unique_ptr<LinearMethod>(
      std::make_unique<QuarkIntsMethod>(layer, tensors, l, activation));
}

}  // namespace nibble::quant
