// EETQ (`quant_method: eetq`, as transformers saves it): int8 with a scale per output, in the order
// of FasterTransformer's kernels for the tensor cores of GPUs.
//
//   <module>.weight         (K, N)  s8    the shape of the transposed weight, but tiles (below)
//   <module>.weight_scales  (N)     f16
//
//   w[n, k] = (byte - 128) * weight_scales[n]      the byte taken as u8
//
// N and K are multiples of 64. Two outputs stand together, 64 inputs of the one, then 64 of the
// other; among 16 inputs the two halves take turns:
//
//   outputs 0 and 1                                                    outputs 2 and 3
//   +-----------------+-----------------+-----------------+-----------+--------------
//   | n 0, k 0 to 63  | n 1, k 0 to 63  | n 0, k 64 to 127| n 1, ...  | n 2, k 0 ...
//   +-----------------+-----------------+-----------------+-----------+--------------
//     k 0 8 1 9 2 10 3 11 4 12 5 13 6 14 7 15 | 16 24 17 25 ...
//
// (The tool permutes rows, transposes, interleaves and swaps bytes one after the other; this is
// what comes out.) So it is for compute capability 7.5 to 8.9. On 7.0 (V100) the same tool leaves
// the inputs in rows, with the bytes 1 and 2 of each four swapped, and nothing in the file says so.
// But the scale is the largest magnitude over 128, so that each output has a code of 127 or -128:
// where only the rows give that to every output, the file is refused.
#include <fmt/format.h>

#include <algorithm>

#include "quant/keys.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::TensorInfo;
using tensor::TensorView;

constexpr int64_t kTile = 64;

void unpack(const uint8_t* bytes, int64_t n, int64_t k, int8_t* code) {
  for (int64_t row = 0; row < n; ++row) {
    const uint8_t* pair = bytes + row / 2 * 2 * k + row % 2 * kTile;
    for (int64_t i = 0; i < k; ++i) {
      const int64_t at = i / kTile * 2 * kTile + i % kTile / 16 * 16 + i % 8 * 2 + i % 16 / 8;
      code[row * k + i] = static_cast<int8_t>(pair[at] - 128);
    }
  }
}

bool is_extreme(int code) { return code == 127 || code == -128; }

// Outputs without a code of 127 or -128, in the order of the tensor cores and in rows.
int64_t plain_outputs(const int8_t* code, int64_t n, int64_t k) {
  int64_t count = 0;
  for (int64_t row = 0; row < n; ++row) {
    if (std::none_of(code + row * k, code + (row + 1) * k, is_extreme)) ++count;
  }
  return count;
}

int64_t plain_outputs_in_rows(const uint8_t* bytes, int64_t n, int64_t k) {
  std::vector<bool> extreme(static_cast<size_t>(n));
  for (int64_t i = 0; i < n * k; ++i) {
    if (is_extreme(bytes[i] - 128)) extreme[static_cast<size_t>(i % n)] = true;
  }
  return std::count(extreme.begin(), extreme.end(), false);
}

class EetqMethod : public LinearMethod {
 public:
  EetqMethod(const LinearLayer& layer, const TensorLookup& tensors)
      : scale_type_(quant::scale_type(find_tensor(tensors, layer.module, "weight_scales"))) {
    WeightSpec weight = wanted(Slot::kWeight, "weight", {DType::kS8}, {layer.n / 2, 2 * layer.k},
                               {0, 2}, {1, kTile, 2 * kTile});
    weight.flattened = true;
    specs_ = {std::move(weight),
              wanted(Slot::kScale, "weight_scales", kFloats, {layer.n}, {0}, {})};
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return "eetq"; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = tensor::Element::kS8;
    format.scaled = true;
    format.scale_type = scale_type_;
    return format;
  }

  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    NIBBLE_ASSIGN(const TensorView* weight, need_count(raw, Slot::kWeight, "weight", n * k));
    NIBBLE_ASSIGN(const TensorView* scales, need(raw, Slot::kScale, "weight_scales", {n}));
    tensor::QuantizedWeight out = empty_weight(n, k);
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(static_cast<size_t>(n * k)));
    const auto* bytes = reinterpret_cast<const uint8_t*>(weight->data);
    auto* code = reinterpret_cast<int8_t*>(out.code_owner.data());
    unpack(bytes, n, k, code);
    // Codes of other origin may have no extreme ones; some outputs would lack them by chance.
    const int64_t plain = plain_outputs(code, n, k);
    if (plain > n / 16 && plain_outputs_in_rows(bytes, n, k) == 0) {
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("weight: {} of {} outputs have no code of 127 or -128, but all have one when "
                      "the bytes are taken in rows, as EETQ writes them on a V100; only the order "
                      "of newer GPUs (compute capability 7.5 to 8.9) is read: quantize again there",
                      plain, n));
    }
    out.code = {DType::kS8, {n, k}, out.code_owner.data(), out.code_owner.size()};
    NIBBLE_ASSIGN(out.scale, read_floats(*scales, "weight_scales"));
    // An output of zeros: the tool divides 0 by 0, and its clamping makes 127 of that.
    for (int64_t row = 0; row < n; ++row) {
      int8_t* codes = code + row * k;
      if (out.scale[static_cast<size_t>(row)] == 0 && std::count(codes, codes + k, 127) == k) {
        std::fill(codes, codes + k, int8_t{0});
      }
    }
    return out;
  }

 private:
  DType scale_type_;
  std::vector<WeightSpec> specs_;
};

class EetqConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "eetq"; }
  std::vector<const NameMatcher*> matchers() const override { return {&not_converted_}; }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    if (const TensorInfo* own = find_tensor(tensors, layer.module, "qweight"); own != nullptr) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{} is as EETQ's own exporter writes it: the layers that it joins "
                              "are cut apart after their bytes were reordered, which is not read; "
                              "quantize with transformers (EetqConfig)",
                              own->name));
    }
    const TensorInfo* weight = find_tensor(tensors, layer.module, "weight");
    // What is stored outranks the list. (The shared method also reports a missing weight.)
    if (weight == nullptr || tensor::is_plain_float(weight->dtype)) {
      return unquantized_method(layer, tensors);
    }
    if (layer.n % kTile != 0 || layer.k % kTile != 0) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: {} outputs and {} inputs do not fill tiles of {} x {}",
                              layer.module, layer.n, layer.k, kTile, kTile));
    }
    if (weight->dtype != DType::kS8 || squeezed(weight->shape) != tensor::Shape{layer.k, layer.n}) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: EETQ stores s8 ({}, {}), inputs first; found {} {}",
                              weight->name, layer.k, layer.n, tensor::name(weight->dtype),
                              tensor::to_string(weight->shape)));
    }
    return std::unique_ptr<LinearMethod>(std::make_unique<EetqMethod>(layer, tensors));
  }

  Result<void> read(const base::Json& dictionary) {
    check_keys(dictionary, "quant_method weights modules_to_not_convert", "", warnings);
    NIBBLE_TRY(choice_key(dictionary, "weights", {"int8"}));
    NIBBLE_ASSIGN(not_converted_,
                  names_list(dictionary, {"modules_to_not_convert"}, Says::kLeftAlone));
    return {};
  }

 private:
  NameMatcher not_converted_;
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "eetq"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  return parse_dictionary<EetqConfig>(facts);
}

}  // namespace

extern const Scheme eetq_scheme;
const Scheme eetq_scheme = {"eetq", {}, claims, parse};

}  // namespace nibble::quant
