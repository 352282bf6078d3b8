#include "quant/scaled_codes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "quant/activations.h"
#include "quant/float6.h"
#include "quant/keys.h"
#include "quant/packed_words.h"
#include "quant/stored.h"

namespace nibble::quant {

using tensor::DType;
using tensor::Element;
using tensor::TensorInfo;
using tensor::TensorView;

namespace {

// The codes that are no numbers, nan and the infinities of e5m2: those that, masked, lie in a
// range.
struct Specials {
  uint8_t mask, first, last;
};

Specials specials_of(DType dtype) {
  if (dtype == DType::kE4M3) return {0x7f, 0x7f, 0x7f};
  if (dtype == DType::kE5M2) return {0x7f, 0x7c, 0x7f};
  return {0xff, 0x80, 0x80};
}

// Shape and axes of one tensor.
struct Layout {
  tensor::Shape shape;
  ShardAxis along_n, along_k;
};

Layout code_layout(Codes codes, int64_t n, int64_t k) {
  switch (codes) {
    case Codes::kBytes:
      return {{n, k}, {0}, {1}};
    case Codes::kNibblesK:
      return {{n, k / 2}, {0}, {1, 2}};
    case Codes::kNibblesN:
      return {{n / 2, k}, {0, 2}, {1}};
    case Codes::kE2M3:
    case Codes::kE3M2:
    case Codes::kSplitE2M3:
    case Codes::kSplitE3M2:
      return {{n, k / 4 * 3}, {0}, {1, 4, 3}};
    case Codes::kBlocks:
      break;
  }
  return {{n, k / 32, 16}, {0}, {1, 32}};
}

Layout scale_layout(const Area& area, int64_t parts, int64_t n, int64_t k) {
  if (area.per_part) return {{parts}, {}, {}};
  Layout out;
  if (area.n != 0) {
    out.along_n = {0, area.n};
    out.shape.push_back(ceil_div(n, area.n));
  }
  if (area.k != 0) {
    out.along_k = {static_cast<int>(out.shape.size()), area.k};
    out.shape.push_back(ceil_div(k, area.k));
  }
  return out;
}

constexpr int64_t kSwizzledRows = 128, kSwizzledColumns = 4;
constexpr int64_t kSwizzledBytes = kSwizzledRows * kSwizzledColumns;

Layout swizzled_layout(int64_t group, int64_t n, int64_t k) {
  const int64_t columns = ceil_div(k, group);
  return {{ceil_div(n, kSwizzledRows), ceil_div(columns, kSwizzledColumns), kSwizzledBytes},
          {0, kSwizzledRows},
          {1, kSwizzledColumns * group}};
}

// Row after row, without what fills up.
tensor::Buffer unswizzled(const std::byte* from, int64_t rows, int64_t columns, tensor::Buffer to) {
  const int64_t across = ceil_div(columns, kSwizzledColumns);
  for (int64_t i = 0; i < rows * columns; ++i) {
    const int64_t r = i / columns, c = i % columns;
    const int64_t block = r / kSwizzledRows * across + c / kSwizzledColumns;
    const int64_t in_block = r % 32 * 16 + r % kSwizzledRows / 32 * 4 + c % kSwizzledColumns;
    to.data()[i] = from[block * kSwizzledBytes + in_block];
  }
  return to;
}

uint8_t nibble_of(uint8_t byte, int64_t index) { return index % 2 == 0 ? byte & 15 : byte >> 4; }

// Packed nibbles -> codes (N, K), one a byte; those of a signed type sign-extended.
void unpack_nibbles(const TensorView& packed, Codes codes, bool is_signed, int64_t n, int64_t k,
                    uint8_t* code) {
  const auto* from = reinterpret_cast<const uint8_t*>(packed.data);
  const bool along_n = codes == Codes::kNibblesN;
  for (int64_t row = 0; row < n; ++row) {
    const uint8_t* bytes = from + (along_n ? row / 2 * k : row * (k / 2));
    uint8_t* to = code + row * k;
    for (int64_t i = 0; i < k; ++i) {
      const uint8_t value = along_n ? nibble_of(bytes[i], row) : nibble_of(bytes[i / 2], i);
      to[i] = is_signed ? static_cast<uint8_t>((value ^ 8) - 8) : value;
    }
  }
}

bool is_split(Codes codes) { return codes == Codes::kSplitE2M3 || codes == Codes::kSplitE3M2; }
bool is_e2m3(Codes codes) { return codes == Codes::kE2M3 || codes == Codes::kSplitE2M3; }
bool is_float6(Codes codes) { return is_e2m3(codes) || is_split(codes) || codes == Codes::kE3M2; }

// Four codes of 6 bits from three bytes as Codes::kSplitE2M3 draws them.
void unpack_split(const std::byte* row, int64_t k, uint8_t* code) {
  const auto* from = reinterpret_cast<const uint8_t*>(row);
  for (int64_t i = 0; i < k; i += 4, from += 3) {
    for (int64_t j = 0; j < 4; ++j) {
      const int upper = from[0] >> (6 - 2 * j) & 3;
      const int lower = from[1 + j / 2] >> (j % 2 == 0 ? 4 : 0) & 15;
      code[i + j] = static_cast<uint8_t>(upper << 4 | lower);
    }
  }
}

void unpack_float6(const TensorView& packed, Codes codes, int64_t n, int64_t k, uint8_t* code) {
  const std::array<uint8_t, 64>& held =
      is_e2m3(codes) ? e4m3_of_e2m3_codes() : e5m2_of_e3m2_codes();
  const int64_t bytes = k / 4 * 3;
  for (int64_t row = 0; row < n; ++row, code += k) {
    if (is_split(codes)) {
      unpack_split(packed.data + row * bytes, k, code);
    } else {
      unpack_row(packed.data + row * bytes, bytes, k, 6, RowPacking::kDense, 0, code);
    }
    for (int64_t i = 0; i < k; ++i) code[i] = held[code[i]];
  }
}

class ScaledCodesMethod : public LinearMethod {
 public:
  ScaledCodesMethod(const LinearLayer& layer, const TensorLookup& tensors, ScaledCodes codes)
      : codes_(std::move(codes)), n_(layer.n), parts_(layer.parts) {
    scale_type_ = stored_scale_type(find_tensor(tensors, layer.module, codes_.scale));
    const Layout code = code_layout(codes_.codes, layer.n, layer.k);
    const Layout scale = codes_.swizzled
                             ? swizzled_layout(codes_.area.k, layer.n, layer.k)
                             : scale_layout(codes_.area, part_count(), layer.n, layer.k);
    specs_ = {
        wanted(Slot::kWeight, codes_.weight, codes_.code_types, code.shape, code.along_n,
               code.along_k),
        wanted(Slot::kScale, codes_.scale, codes_.scale_types, scale.shape, scale.along_n,
               scale.along_k),
    };
    specs_.back().flattened = codes_.swizzled;
    for (const DType type : codes_.scale_types) {
      NIBBLE_CHECK(!codes_.swizzled || tensor::byte_count(type, {1}) == 1u);
    }
    if (!codes_.scale2.empty()) {
      specs_.push_back(wanted(Slot::kScale2, codes_.scale2, kFloats, {}, {}, {}));
    }
    if (!codes_.input_factor.empty()) {
      specs_.push_back(
          wanted(Slot::kInputFactor, codes_.input_factor, kFloats, {layer.k}, {}, {0}));
    }
    add_input_scale(layer, tensors);
    for (const auto& [suffix, reason] : codes_.unused) {
      specs_.push_back(wanted(Slot::kUnused, suffix, {}, {}, {}, {}));
      specs_.back().required = false;
      specs_.back().unused = reason;
    }
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return codes_.scheme; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = codes_.element;
    format.scaled = true;
    format.scale_type = codes_.scale2.empty() ? scale_type_ : DType::kF32;
    if (has_bytes_on_two_levels()) {
      format.second_scale =
          codes_.scale2_divides ? tensor::SecondScale::kDivides : tensor::SecondScale::kMultiplies;
    }
    if (!codes_.area.per_part) {
      format.group_n = codes_.area.n;
      format.group_k = codes_.area.k;
    }
    if (is_float6(codes_.codes) && codes_.area.n == 1 && codes_.area.k == 32) {
      format.stored_as = is_e2m3(codes_.codes) ? "e2m3g32" : "e3m2g32";
    }
    return format;
  }

  tensor::ActivationFormat activation_format() const override { return codes_.activation; }
  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    tensor::QuantizedWeight out = empty_weight(n, k);
    NIBBLE_TRY(read_codes(raw, out));
    NIBBLE_TRY(scale_weight(raw, out));
    if (!codes_.input_factor.empty()) {
      NIBBLE_ASSIGN(const TensorView* factor,
                    need(raw, Slot::kInputFactor, codes_.input_factor, {k}));
      NIBBLE_ASSIGN(out.input_factor, read_scales(*factor, codes_.input_factor));
    }
    if (reads_input_scale()) {
      NIBBLE_ASSIGN(out.input_scale, read_input_scale(raw));
      if (codes_.input_scale_divides) out.input_scale = 1 / out.input_scale;
    }
    return out;
  }

 private:
  static DType stored_scale_type(const TensorInfo* scale) {
    const DType type = scale_type(scale);
    return type == DType::kU8 ? DType::kE8M0 : type;
  }

  bool has_bytes_on_two_levels() const {
    return !codes_.scale2.empty() && scale_type_ == DType::kE4M3;
  }
  int64_t part_count() const { return static_cast<int64_t>(parts_.size()); }
  bool reads_input_scale() const {
    return !codes_.input_scale.empty() &&
           (codes_.activation.is_static ||
            codes_.activation.scale_rule == tensor::ActivationFormat::ScaleRule::kE4M3);
  }

  Result<void> read_codes(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    const tensor::Shape shape = code_layout(codes_.codes, out.n, out.k).shape;
    NIBBLE_ASSIGN(const TensorView* weight, need(raw, Slot::kWeight, codes_.weight, shape));
    if (codes_.codes == Codes::kBytes) {
      if (is_fp8(weight->dtype)) NIBBLE_TRY(check_fp8_codes(*weight, codes_.weight, out.k));
      out.code = *weight;
      return {};
    }
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(static_cast<size_t>(out.n * out.k)));
    auto* code = reinterpret_cast<uint8_t*>(out.code_owner.data());
    if (is_float6(codes_.codes)) {
      unpack_float6(*weight, codes_.codes, out.n, out.k, code);
    } else {
      unpack_nibbles(*weight, codes_.codes, codes_.element == Element::kS4, out.n, out.k, code);
    }
    out.code = {DType::kU8, {out.n, out.k}, out.code_owner.data(), out.code_owner.size()};
    return {};
  }

  Result<void> scale_weight(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    const tensor::Shape shape = scale_layout(codes_.area, part_count(), out.n, out.k).shape;
    TensorView ordered;
    tensor::Buffer owner;
    const TensorView* scales = nullptr;
    if (codes_.swizzled) {
      const Layout stored = swizzled_layout(codes_.area.k, out.n, out.k);
      NIBBLE_ASSIGN(scales, need_count(raw, Slot::kScale, codes_.scale,
                                       stored.shape[0] * stored.shape[1] * kSwizzledBytes));
      const int64_t columns = ceil_div(out.k, codes_.area.k);
      NIBBLE_ASSIGN(owner, tensor::Buffer::allocate(static_cast<size_t>(out.n * columns)));
      owner = unswizzled(scales->data, out.n, columns, std::move(owner));
      ordered = {scales->dtype, {out.n, columns}, owner.data(), owner.size()};
      scales = &ordered;
    } else {
      NIBBLE_ASSIGN(scales, need(raw, Slot::kScale, codes_.scale, shape));
    }
    if (codes_.signed_exponents) {
      NIBBLE_ASSIGN(out.scale, read_exponents(*scales));
    } else {
      NIBBLE_ASSIGN(out.scale, read_weight_scales(*scales, codes_.scale));
    }
    if (codes_.area.per_part) {
      NIBBLE_ASSIGN(out.scale, one_per_output(out.scale, out.n));
    }
    if (codes_.scale2.empty()) return {};
    NIBBLE_ASSIGN(const TensorView* second, need(raw, Slot::kScale2, codes_.scale2, {}));
    NIBBLE_ASSIGN(const std::vector<float> value, read_scales(*second, codes_.scale2));
    if (has_bytes_on_two_levels()) out.second_scale = value[0];
    for (float& scale : out.scale) {
      scale = codes_.scale2_divides ? scale / value[0] : scale * value[0];
    }
    return {};
  }

  // 2^s8, of which 2^-128 is no scale of e8m0.
  Result<std::vector<float>> read_exponents(const TensorView& view) const {
    std::vector<float> out;
    for (uint64_t i = 0; i < view.bytes; ++i) {
      const int exponent = static_cast<int8_t>(view.data[i]);
      if (exponent == -128) {
        return fail(ErrorCode::kCorrupt,
                    fmt::format("{} is the exponent -128; those of scales begin at -127",
                                element_name(codes_.scale, view.shape, i)));
      }
      out.push_back(std::ldexp(1.0f, exponent));
    }
    return out;
  }

  void add_input_scale(const LinearLayer& layer, const TensorLookup& tensors) {
    if (codes_.input_scale.empty()) return;
    const TensorInfo* stored = find_tensor(tensors, layer.module, codes_.input_scale);
    if (!reads_input_scale() && stored == nullptr) return;
    WeightSpec spec = wanted(Slot::kInputScale, codes_.input_scale, kFloats, {}, {}, {});
    if (stored != nullptr && part_count() > 0 &&
        squeezed(stored->shape) == squeezed({part_count()})) {
      spec.shape = stored->shape;
    }
    if (!reads_input_scale()) {
      spec.slot = Slot::kUnused;
      spec.required = false;
      spec.unused = codes_.input_scale_unused;
    }
    input_scale_shape_ = spec.shape;
    specs_.push_back(std::move(spec));
  }

  // One scale for x, so that the parts of a fused layer must agree on theirs.
  Result<float> read_input_scale(const RawWeights& raw) const {
    const std::string& suffix = codes_.input_scale;
    if (raw.get(Slot::kInputScale) == nullptr) {
      return fail(ErrorCode::kNotFound,
                  fmt::format("{}: the tensor is missing, but the activations need it", suffix));
    }
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kInputScale, suffix, input_scale_shape_));
    NIBBLE_ASSIGN(const std::vector<float> scale, read_scales(*view, suffix));
    for (float s : scale) {
      if (s == scale[0]) continue;
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("{}: the parts of a fused layer have the input scales {}; one product "
                      "needs one",
                      suffix, fmt::join(scale, ", ")));
    }
    return scale[0];
  }

  // A rank has the same share of each part.
  Result<std::vector<float>> one_per_output(const std::vector<float>& of_part, int64_t n) const {
    std::vector<float> out;
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i] * n % n_ != 0) {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("a rank with {} of {} outputs would have a fraction of the {} of "
                                "part {}; use fewer ranks",
                                n, n_, parts_[i], i));
      }
      out.insert(out.end(), static_cast<size_t>(parts_[i] * n / n_), of_part[i]);
    }
    return out;
  }

  ScaledCodes codes_;
  int64_t n_;
  std::vector<int64_t> parts_;
  DType scale_type_;
  tensor::Shape input_scale_shape_;
  std::vector<WeightSpec> specs_;
};

Failure no_scale(const LinearLayer& layer, const TensorInfo& weight, const TensorLookup& tensors) {
  std::string found;
  for (const TensorInfo& info : tensors.all) {
    if (info.name.rfind(layer.module + ".", 0) != 0 ||
        info.name.find("scale") == std::string::npos ||
        info.name.find("input_scale") != std::string::npos) {
      continue;
    }
    found = fmt::format(" ({} is no name of this format)", info.name);
    break;
  }
  return fail(
      ErrorCode::kNotFound,
      fmt::format("{} is {}, but has no scale: neither weight_scale_inv nor weight_scale is "
                  "stored{}",
                  weight.name, tensor::name(weight.dtype), found));
}

}  // namespace

bool is_fp8(DType dtype) {
  return std::find(kFp8Types.begin(), kFp8Types.end(), dtype) != kFp8Types.end();
}

Element element_of_fp8(DType dtype) {
  return dtype == DType::kE4M3       ? Element::kE4M3
         : dtype == DType::kE4M3FNUZ ? Element::kE4M3FNUZ
         : dtype == DType::kE5M2     ? Element::kE5M2
                                     : Element::kE5M2FNUZ;
}

Result<Area> area_of(const LinearLayer& layer, const TensorInfo& scale, Area block,
                     std::string_view block_key, const BlockSizes* all) {
  const tensor::Shape shape = squeezed(scale.shape);
  const auto parts = static_cast<int64_t>(layer.parts.size());
  if (block.n != 0) {
    const tensor::Shape expected = {ceil_div(layer.n, block.n), ceil_div(layer.k, block.k)};
    if (shape == squeezed(expected)) return block;
    return fail(ErrorCode::kCorrupt,
                fmt::format("{} is {}, but {} says blocks of {} x {}, which makes {}", scale.name,
                            tensor::to_string(scale.shape), block_key, block.n, block.k,
                            tensor::to_string(expected)));
  }
  if (shape.empty()) return kPerTensor;
  if (shape == tensor::Shape{layer.n}) return kPerOutput;
  if (parts > 0 && shape == tensor::Shape{parts}) return Area{1, 0, true};
  BlockSizes own, sizes;
  if (scale.shape.size() == 2) {
    own.see({layer.n, layer.k}, scale.shape);
    // As the whole checkpoint has them, unless its layers differ.
    sizes = all == nullptr ? own : *all;
    sizes.see({layer.n, layer.k}, scale.shape);
    if (sizes.empty()) sizes = own;
  }
  const bool blocks = scale.shape.size() == 2 && !sizes.empty();
  const auto found = blocks ? sizes.find() : std::nullopt;
  if (found) return Area{found->first, found->second};
  return fail(ErrorCode::kCorrupt,
              fmt::format("{}: {} is neither one scale nor one per output ({}), and {} is not "
                          "given{}",
                          scale.name, tensor::to_string(scale.shape), layer.n, block_key,
                          blocks ? fmt::format(": blocks of {} x {} would have as many",
                                               sizes.n.range(), sizes.k.range())
                                 : ""));
}

Result<ScaleBeside> scale_beside(const LinearLayer& layer, const TensorLookup& tensors,
                                 const TensorInfo& codes) {
  for (const char* suffix : {"weight_scale_inv", "weight_scale"}) {
    const TensorInfo* scale = find_tensor(tensors, layer.module, suffix);
    if (scale != nullptr) return ScaleBeside{suffix, scale};
  }
  return no_scale(layer, codes, tensors);
}

std::unique_ptr<LinearMethod> scaled_codes_method(const LinearLayer& layer,
                                                  const TensorLookup& tensors, ScaledCodes codes) {
  return std::make_unique<ScaledCodesMethod>(layer, tensors, std::move(codes));
}

Result<void> check_fp8_codes(const TensorView& weight, std::string_view suffix, int64_t k) {
  const auto* code = reinterpret_cast<const uint8_t*>(weight.data);
  const Specials range = specials_of(weight.dtype);
  const auto is_special = [range](uint8_t c) {
    return static_cast<int>((c & range.mask) >= range.first) & ((c & range.mask) <= range.last);
  };
  int special = 0;  // without branches, so that the compiler makes a vector loop of it
  for (uint64_t i = 0; i < weight.bytes; ++i) special |= is_special(code[i]);
  if (special == 0) return {};
  const uint8_t* at = std::find_if(code, code + weight.bytes, is_special);
  return fail(ErrorCode::kCorrupt,
              fmt::format("{}: element ({}, {}) is {:#04x}, which is no number; the file is "
                          "damaged or was quantized with a scale of zero",
                          suffix, (at - code) / k, (at - code) % k, *at));
}

Result<std::vector<float>> read_weight_scales(const TensorView& view, std::string_view suffix) {
  TensorView typed = view;
  if (typed.dtype == DType::kU8) typed.dtype = DType::kE8M0;
  NIBBLE_ASSIGN(std::vector<float> scale, read_floats(typed, suffix));
  for (size_t i = 0; i < scale.size(); ++i) {
    if (scale[i] >= 0) continue;
    return fail(ErrorCode::kCorrupt, fmt::format("{} is {}; a scale is not negative",
                                                 element_name(suffix, view.shape, i), scale[i]));
  }
  return scale;
}

Result<std::vector<float>> read_scales(const TensorView& view, std::string_view suffix) {
  NIBBLE_ASSIGN(std::vector<float> scale, read_weight_scales(view, suffix));
  for (size_t i = 0; i < scale.size(); ++i) {
    if (scale[i] > 0) continue;
    return fail(ErrorCode::kCorrupt, fmt::format("{} is {}; a scale is positive",
                                                 element_name(suffix, view.shape, i), scale[i]));
  }
  return scale;
}

Result<std::unique_ptr<LinearMethod>> ScaledCodesConfig::linear_method(
    const LinearLayer& layer, const TensorLookup& tensors) const {
  const TensorInfo* weight = find_tensor(tensors, layer.module, "weight");
  // (The shared method also reports a missing weight.)
  if (weight == nullptr || tensor::is_plain_float(weight->dtype)) {
    return unquantized_method(layer, tensors);
  }
  const std::vector<DType>& types = linears.code_types;
  if (std::find(types.begin(), types.end(), weight->dtype) == types.end()) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format("{}: expected {} or a plain float, found {}", weight->name,
                    is_fp8(types[0]) ? "a type of fp8" : "s8", tensor::name(weight->dtype)));
  }
  NIBBLE_ASSIGN(ScaleBeside scale, scale_beside(layer, tensors, *weight));
  ScaledCodes codes{.scheme = linears.scheme,
                    .element = is_fp8(weight->dtype) ? element_of_fp8(weight->dtype) : Element::kS8,
                    .code_types = types,
                    .scale = std::move(scale.suffix),
                    .activation = linears.activation,
                    .input_scale_unused = linears.input_scale_unused};
  NIBBLE_ASSIGN(codes.area, area_of(layer, *scale.info, linears.block, linears.block_key, &sizes_));
  if (linears.block.n == 0 && codes.area.k != 0) {  // blocks that no key gives
    if (codes.activation.is_static) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{} {} has a scale per block, but the activations are static; "
                              "block weights have dynamic activations",
                              scale.info->name, tensor::to_string(scale.info->shape)));
    }
    codes.activation = per_group(codes.activation.type, codes.area.k);
  }
  if (find_tensor(tensors, layer.module, "input_scale") == nullptr &&
      find_tensor(tensors, layer.module, "activation_scale") != nullptr) {
    codes.input_scale = "activation_scale";  // transformers' name
  }
  return scaled_codes_method(layer, tensors, std::move(codes));
}

void ScaledCodesConfig::find_blocks(const TensorLookup& tensors) {
  sizes_ = block_sizes_of(tensors);
  const auto found = sizes_.find();
  if (!found || (sizes_.n.whole() && sizes_.k.whole())) return;
  notes.push_back(
      fmt::format("{} is not given: blocks of {} x {} are taken from the shapes of the scales",
                  linears.block_key, found->first, found->second));
}

Result<void> ScaledCodesConfig::read_ignored(const base::Json& dictionary,
                                             std::initializer_list<std::string_view> keys) {
  NIBBLE_ASSIGN(ignored_, names_list(dictionary, keys, Says::kLeftAlone));
  return {};
}

Result<void> ScaledCodesConfig::read_dynamic(const CheckpointFacts& facts, ActivationType type) {
  std::string said;
  if (facts.quantization != nullptr) {
    const base::Json& dictionary = *facts.quantization;
    check_keys(dictionary,
               "quant_method is_dynamic activation_scheme ignore ignored_layers "
               "modules_to_not_convert",
               "packed_modules_mapping", warnings);
    NIBBLE_ASSIGN(const bool dynamic, bool_key_or(dictionary, "is_dynamic", false));
    if (dictionary.find_set("activation_scheme") != nullptr) {
      NIBBLE_ASSIGN(said, choice_key(dictionary, "activation_scheme", {"dynamic", "static"}));
    } else if (dynamic) {  // false is only a default that nobody read
      said = "dynamic";
    }
    NIBBLE_TRY(read_ignored(dictionary, {"ignore", "ignored_layers", "modules_to_not_convert"}));
  }
  const bool stored =
      std::any_of(facts.tensors.all.begin(), facts.tensors.all.end(),
                  [](const TensorInfo& info) { return info.name.ends_with(".input_scale"); });
  const bool is_static = said == "static" || (said.empty() && stored);
  linears.activation = is_static ? stored_scale(type) : per_token(type);
  find_blocks(facts.tensors);
  return {};
}

Result<Area> block_key(const base::Json& dictionary, std::string_view key) {
  NIBBLE_ASSIGN(const auto size, pair_key(dictionary, key));
  return Area{size.first, size.second};
}

}  // namespace nibble::quant
