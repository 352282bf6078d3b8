// HQQ (Badri and Shaji 2023), as its HQQLinear saves itself to safetensors, and as hqq saves a
// model (qmodel.pt, without a quantization_config; before 0.2 all but W_q and the bias are in a
// dict more).
//
//   <module>.W_q           u8, or s32 for 3 bits: the packed codes of a matrix (R, C)
//   <module>.[meta.]scale  (R, 1) or (1, C)   f16 | bf16 | f32
//   <module>.[meta.]zero   likewise; no integers
//   <module>.nbits, .shape, .axis, .packing ...   what the shapes say already
//
// hqq_levels.h has what scales and zero points may be besides.
//
// The weight (N, K), in one row, is cut into groups of G. With axis 1 they are the rows of (R, C) =
// (NK / G, G); with axis 0 its columns, (R, C) = (G, NK / G), so that neighbouring inputs belong to
// different groups. Packing cuts the rows R into p = 8 / bits parts, the first in the highest bits
// (3 bits: ten parts in 30 bits of an s32; R is padded to a multiple of ten):
//
//   W_q[r, c] = codes of rows r, r + R/p, r + 2 R/p ...     (view_as_float: the same bytes, a
//   float)
//
//   w[i] = (code[i] - zero[g]) * scale[g]      g = i / G or i % C
//
// The canonical form has integer zero points or offsets; here offset = -zero * scale. That is the
// same number bit for bit as long as zero * scale and code - zero are exact in f32, which they are
// for f16 and bf16 (unless a zero is nearly 0). With axis 0 a scale would belong to every weight:
// such weights are held as f32.
#include <fmt/format.h>

#include <cstring>
#include <numeric>

#include "quant/scheme.h"
#include "quant/schemes/hqq_levels.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using hqq::Level;
using tensor::DType;
using tensor::Element;
using tensor::TensorInfo;
using tensor::TensorView;

const std::vector<DType> kPacked = {DType::kU8, DType::kS32, DType::kF16, DType::kBF16,
                                    DType::kF32};
constexpr std::string_view kMeta[] = {"nbits",
                                      "group_size",
                                      "shape",
                                      "axis",
                                      "packing",
                                      "view_as_float",
                                      "quant_scale",
                                      "quant_zero",
                                      "compute_dtype",
                                      "offload_meta",
                                      "channel_wise",
                                      "optimize",
                                      "round_zero",
                                      "unpack_view_dtype",
                                      "encoded_state_dict",
                                      "stores_quant_config"};

struct Layout {
  int64_t bits = 4;
  int64_t parts = 2;  // in one element of W_q
  int64_t group = 64;
  int64_t rows = 0, columns = 0;  // R and C
  bool by_row = true;             // axis 1

  int64_t step() const { return (rows + parts - 1) / parts; }  // rows of W_q
  int64_t bytes() const { return step() * columns * (bits == 3 ? 4 : 1); }
};

Element element_of(int64_t bits) {
  return bits == 8   ? Element::kU8
         : bits == 4 ? Element::kU4
         : bits == 3 ? Element::kU3
                     : Element::kU2;
}

class HqqMethod : public LinearMethod {
 public:
  HqqMethod(const LinearLayer& layer, const TensorLookup& tensors, const Layout& layout)
      : l_(layout),
        n_(layer.n),
        k_(layer.k),
        width_(std::gcd(layer.k, layout.group)),
        scale_(hqq::find_level(layer, tensors, true)),
        zero_(hqq::find_level(layer, tensors, false)) {
    const TensorInfo* codes = find_tensor(tensors, layer.module, "W_q");
    // A part of the outputs or inputs lies scattered over the bits of W_q, except in one case.
    const bool plain = scale_.parts == 1 && !scale_.coded() && !zero_.coded();
    const bool whole_rows = plain && l_.bits == 8 && l_.by_row && k_ % l_.group == 0;
    const ShardAxis n_codes = whole_rows ? ShardAxis{0} : ShardAxis{0, n_};
    const ShardAxis k_codes = whole_rows ? ShardAxis{1} : ShardAxis{0, k_};
    const ShardAxis k_scale = whole_rows ? ShardAxis{1, l_.group} : ShardAxis{0, k_};
    const tensor::Shape shape = whole_rows ? tensor::Shape{n_, k_} : codes->shape;
    const tensor::Shape groups =
        whole_rows ? tensor::Shape{n_, k_ / l_.group} : tensor::Shape{n_ * k_ / l_.group};
    specs_ = {wanted(Slot::kWeight, "W_q", kPacked, shape, n_codes, k_codes)};
    for (const Level* level : {&scale_, &zero_}) {
      hqq::add_level(layer, tensors, *level, groups, n_codes, k_scale, specs_);
    }
    for (WeightSpec& spec : specs_) spec.flattened = true;
    for (std::string_view meta : kMeta) {
      const TensorInfo* stored = find_tensor(tensors, layer.module, meta);
      if (stored == nullptr) continue;
      WeightSpec spec = wanted(Slot::kUnused, std::string(meta), {}, stored->shape, {}, {});
      spec.required = false;
      spec.unused = "the shapes of W_q and scale say it";
      specs_.push_back(std::move(spec));
    }
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return "hqq"; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    if (!l_.by_row) {
      format.element = Element::kF32;
      format.stored_as = "hqq axis 0 as f32";
      return format;
    }
    format.element = element_of(l_.bits);
    format.scaled = true;
    format.group_k = width_ == k_ ? 0 : width_;
    format.zero = tensor::ZeroKind::kOffset;
    return format;
  }

  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    Layout l = l_;
    if (l.by_row) l.rows = n * k / l.group;
    NIBBLE_ASSIGN(const TensorView* codes, need_bytes(raw, l.bytes()));
    const int64_t groups = l.by_row ? l.rows : l.columns;
    NIBBLE_ASSIGN(const std::vector<float> scale, hqq::read_level(raw, scale_, groups));
    NIBBLE_ASSIGN(const std::vector<float> zero, hqq::read_level(raw, zero_, groups));
    tensor::QuantizedWeight out = empty_weight(n, k);
    return l.by_row ? grouped(l, *codes, scale, zero, std::move(out))
                    : expanded(l, *codes, scale, zero, std::move(out));
  }

 private:
  static Result<const TensorView*> need_bytes(const RawWeights& raw, int64_t bytes) {
    const TensorView* view = raw.get(Slot::kWeight);
    if (view == nullptr) return fail(ErrorCode::kNotFound, "W_q: the tensor is missing");
    if (static_cast<int64_t>(view->bytes) == bytes) return view;
    return fail(ErrorCode::kCorrupt, fmt::format("W_q: expected {} bytes, found {} {} of {} bytes",
                                                 bytes, tensor::name(view->dtype),
                                                 tensor::to_string(view->shape), view->bytes));
  }

  // The code of weight i, counted along the rows of (N, K).
  static uint8_t code_at(const Layout& l, const std::byte* codes, int64_t i) {
    const int64_t row = i / l.columns, step = l.step();
    const int64_t at = row % step * l.columns + i % l.columns;
    const int64_t shift = l.bits * (l.parts - 1 - row / step);
    if (l.bits == 3) {
      uint32_t word;
      std::memcpy(&word, codes + 4 * at, 4);
      return word >> shift & 7;
    }
    return static_cast<uint8_t>(codes[at]) >> shift & ((1u << l.bits) - 1);
  }

  Result<tensor::QuantizedWeight> grouped(const Layout& l, const TensorView& codes,
                                          const std::vector<float>& scale,
                                          const std::vector<float>& zero,
                                          tensor::QuantizedWeight out) const {
    const int64_t groups = out.groups(), width = width_ == k_ ? out.k : width_;
    for (int64_t n = 0; n < out.n; ++n) {
      for (int64_t g = 0; g < groups; ++g) {
        const auto at = static_cast<size_t>((n * out.k + g * width) / l.group);
        out.scale.push_back(scale[at]);
        out.offset.push_back(-(zero[at] * scale[at]));
      }
    }
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(static_cast<size_t>(out.n * out.k)));
    const auto code = out.code_owner.as<uint8_t>();
    for (size_t i = 0; i < code.size(); ++i) {
      code[i] = code_at(l, codes.data, static_cast<int64_t>(i));
    }
    out.code = {DType::kU8, {out.n, out.k}, out.code_owner.data(), out.code_owner.size()};
    return out;
  }

  static Result<tensor::QuantizedWeight> expanded(const Layout& l, const TensorView& codes,
                                                  const std::vector<float>& scale,
                                                  const std::vector<float>& zero,
                                                  tensor::QuantizedWeight out) {
    const auto count = static_cast<size_t>(out.n * out.k);
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(count * sizeof(float)));
    const auto value = out.code_owner.as<float>();
    for (size_t i = 0; i < count; ++i) {
      const size_t g = i % static_cast<size_t>(l.columns);
      const auto code = static_cast<float>(code_at(l, codes.data, static_cast<int64_t>(i)));
      value[i] = (code - zero[g]) * scale[g];
    }
    out.code = {DType::kF32, {out.n, out.k}, out.code_owner.data(), out.code_owner.size()};
    return out;
  }

  Layout l_;
  int64_t n_, k_;
  int64_t width_;  // inputs that surely share a group, wherever their row begins
  Level scale_, zero_;
  std::vector<WeightSpec> specs_;
};

constexpr std::string_view kKnown = "quant_method quant_config skip_modules";

class HqqConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "hqq"; }
  std::vector<const NameMatcher*> matchers() const override { return {&skipped_}; }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    const TensorInfo* codes = find_tensor(tensors, layer.module, "W_q");
    // What is stored outranks the list.
    if (codes == nullptr) return unquantized_method(layer, tensors);
    NIBBLE_ASSIGN(const Layout layout, layout_of(layer, tensors, *codes));
    return std::unique_ptr<LinearMethod>(std::make_unique<HqqMethod>(layer, tensors, layout));
  }

  Result<void> read(const base::Json& dictionary) {
    check_keys(dictionary, kKnown, "", warnings);
    const base::Json* config = dictionary.find_set("quant_config");
    const base::Json* weight = config == nullptr ? nullptr : config->find("weight_quant_params");
    if (weight != nullptr) {
      NIBBLE_ASSIGN(stated_bits_, int_key_or(*weight, "nbits", 0));
    }
    NIBBLE_ASSIGN(skipped_, names_list(dictionary, {"skip_modules"}, Says::kLeftAlone));
    return {};
  }

 private:
  // Axis and group from the shape of the scales, bits from the bytes of the codes. (quant_config
  // has them too, under several spellings.)
  Result<Layout> layout_of(const LinearLayer& layer, const TensorLookup& tensors,
                           const TensorInfo& codes) const {
    const Level level = hqq::find_level(layer, tensors, true);
    const TensorInfo* scale = level.info;
    for (const Level& each : {level, hqq::find_level(layer, tensors, false)}) {
      if (each.info != nullptr) continue;
      const std::string_view name = each.part == 1 ? "scale" : "zero";
      return fail(ErrorCode::kNotFound, fmt::format("{} is stored, but {}.{} is missing",
                                                    codes.name, layer.module, name));
    }
    const int64_t size = layer.n * layer.k;
    const int64_t groups = tensor::element_count(scale->shape).value_or(0) / level.parts;
    if (groups == 0 || size % groups != 0) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{} {}: {} weights do not divide into {} groups", scale->name,
                              tensor::to_string(scale->shape), size, groups));
    }
    // Coded scales are cut into groups of their own; the axis shows in W_q (R / p, C) then.
    const size_t last = scale->shape.size();
    const bool column =
        groups > 1 && (level.coded() ? codes.shape.size() == 2 && codes.shape[1] == groups
                                     : last >= 2 && scale->shape[last - 2] == 1);
    Layout l;
    l.by_row = !column;
    l.group = size / groups;
    l.rows = l.by_row ? groups : l.group;
    l.columns = l.by_row ? l.group : groups;
    for (const auto& [bits, parts] :
         {std::pair<int64_t, int64_t>{8, 1}, {4, 2}, {2, 4}, {1, 8}, {3, 10}}) {
      l.bits = bits;
      l.parts = parts;
      // 3 bits are s32, the others u8, unless the bytes are viewed as floats; then few rows may
      // have as many bytes with 3 bits as with 4.
      if (bits == 3 ? codes.dtype == DType::kU8 : codes.dtype == DType::kS32) continue;
      const bool viewed = codes.dtype != DType::kU8 && codes.dtype != DType::kS32;
      if (viewed && bits == 4 && stated_bits_ == 3) continue;
      if (static_cast<int64_t>(codes.bytes) == l.bytes() && (bits == 3 || l.rows % parts == 0)) {
        return l;
      }
    }
    return fail(ErrorCode::kCorrupt,
                fmt::format("{} {} {}: its bytes are those of no width of 8, 4, 3, 2 or 1 bits for "
                            "{} weights in groups of {}",
                            codes.name, tensor::name(codes.dtype), tensor::to_string(codes.shape),
                            size, l.group));
  }

  int64_t stated_bits_ = 0;
  NameMatcher skipped_;
};

// What hqq itself saves names no method.
bool claims(const CheckpointFacts& facts) {
  return !facts.gguf &&
         (facts.method == "hqq" || (facts.method.empty() && stores_suffix(facts.tensors, ".W_q")));
}

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  return parse_dictionary<HqqConfig>(facts);
}

}  // namespace

extern const Scheme hqq_scheme;
const Scheme hqq_scheme = {"hqq", {}, claims, parse};

}  // namespace nibble::quant
