#include "quant/schemes/hqq_weight.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>

#include "quant/scheme.h"
#include "quant/schemes/hqq_levels.h"
#include "quant/stored.h"

namespace nibble::quant::hqq {
namespace {

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

class HqqMethod : public LinearMethod {
 public:
  HqqMethod(const LinearLayer& layer, const TensorLookup& tensors, const Layout& layout)
      : l_(layout),
        n_(layer.n),
        k_(layer.k),
        width_(std::gcd(layer.k, layout.group)),
        scale_(find_level(layer, tensors, true)),
        zero_(find_level(layer, tensors, false)) {
    const TensorInfo* codes = find_tensor(tensors, layer.module, "W_q");
    // A part of the outputs or inputs lies scattered over the bits of W_q, except in one case.
    const bool plain = scale_.parts == 1 && !scale_.coded() && !zero_.coded();
    const bool whole_rows =
        plain && l_.bits == 8 && l_.by_row && k_ % l_.group == 0 && codes->dtype == DType::kU8;
    const ShardAxis n_codes = whole_rows ? ShardAxis{0} : ShardAxis{0, n_};
    const ShardAxis k_codes = whole_rows ? ShardAxis{1} : ShardAxis{0, k_};
    const ShardAxis k_scale = whole_rows ? ShardAxis{1, l_.group} : ShardAxis{0, k_};
    const tensor::Shape shape = whole_rows ? tensor::Shape{n_, k_} : codes->shape;
    const tensor::Shape groups =
        whole_rows ? tensor::Shape{n_, k_ / l_.group} : tensor::Shape{n_ * k_ / l_.group};
    specs_ = {wanted(Slot::kWeight, "W_q", kPacked, shape, n_codes, k_codes)};
    for (const Level* level : {&scale_, &zero_}) {
      add_level(layer, tensors, *level, groups, n_codes, k_scale, specs_);
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
    format.element = l_.bits == 1 ? Element::kU2 : integer_element(l_.bits, false);
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
    if (l.perhaps_3 && are_words_of_3(*codes)) {
      l.bits = 3;
      l.parts = 10;
    }
    const int64_t groups = l.by_row ? l.rows : l.columns;
    NIBBLE_ASSIGN(const std::vector<float> scale, read_level(raw, scale_, groups));
    NIBBLE_ASSIGN(const std::vector<float> zero, read_level(raw, zero_, groups));
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

  // Ten codes of 3 bits leave the two highest bits of their s32 empty. Where codes of 4 bits do so
  // in every word, they are all 0 (one code everywhere) or a layer that no quantizer makes.
  static bool are_words_of_3(const TensorView& codes) {
    for (uint64_t at = 3; at < codes.bytes; at += 4) {
      if ((static_cast<uint8_t>(codes.data[at]) & 0xc0) != 0) return false;
    }
    return true;
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

}  // namespace

std::unique_ptr<LinearMethod> hqq_method(const LinearLayer& layer, const TensorLookup& tensors,
                                         const Layout& layout) {
  return std::make_unique<HqqMethod>(layer, tensors, layout);
}

}  // namespace nibble::quant::hqq
