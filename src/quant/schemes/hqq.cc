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

#include "quant/keys.h"
#include "quant/scheme.h"
#include "quant/schemes/hqq_levels.h"
#include "quant/schemes/hqq_weight.h"

namespace nibble::quant {
namespace {

using hqq::Layout;
using hqq::Level;
using tensor::DType;
using tensor::TensorInfo;

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
    return hqq::hqq_method(layer, tensors, layout);
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
      // 3 bits are s32, the others u8, unless the bytes are viewed as floats; then up to 32 rows
      // may have as many bytes with 3 bits as with 4, and 4 bits hold either's codes.
      if (bits == 3 ? codes.dtype == DType::kU8 : codes.dtype == DType::kS32) continue;
      const bool viewed = codes.dtype != DType::kU8 && codes.dtype != DType::kS32;
      if (viewed && bits == 4 && stated_bits_ == 3) continue;
      if (static_cast<int64_t>(codes.bytes) == l.bytes() && (bits == 3 || l.rows % parts == 0)) {
        const int64_t words = (l.rows + 9) / 10 * l.columns;
        l.perhaps_3 = viewed && bits == 4 && static_cast<int64_t>(codes.bytes) == 4 * words;
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
bool claims(const CheckpointFacts& facts) { return !facts.gguf && method_of(facts) == "hqq"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  return parse_dictionary<HqqConfig>(facts);
}

}  // namespace

extern const Scheme hqq_scheme;
const Scheme hqq_scheme = {"hqq", {}, claims, parse};

}  // namespace nibble::quant
