#include "quant/gptq_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "quant/act_order.h"
#include "quant/packed_words.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::TensorView;

class GptqMethod : public LinearMethod {
 public:
  GptqMethod(std::string_view scheme, const LinearLayer& layer, const TensorLookup& tensors,
             GptqLayout layout)
      : scheme_(scheme), p_(std::move(layout)), k_(layer.k) {
    if (p_.group >= k_) p_.group = 0;
    if (p_.group == 0) p_.desc_act = false;  // one group: the order of the inputs does not matter
    groups_ = p_.group == 0 ? 1 : (k_ + p_.group - 1) / p_.group;
    scale_type_ = scale_type(find_tensor(tensors, layer.module, "scales"));
    const int64_t unit = codes_per_unit(p_.bits), words = words_per_unit(p_.bits);
    // A rank's inputs belong to groups anywhere when they are scattered: it keeps all groups.
    const ShardAxis by_group = p_.group == 0 || p_.desc_act ? ShardAxis{} : ShardAxis{0, p_.group};
    const int64_t n = layer.n;
    specs_ = {
        wanted(Slot::kWeight, "qweight", {DType::kS32}, {k_ / unit * words, n}, {1},
               {0, unit, words}),
        wanted(Slot::kScale, "scales", kFloats, {groups_, n}, {1}, by_group),
        wanted(Slot::kZero, "qzeros", {DType::kS32}, {groups_, n / unit * words}, {1, unit, words},
               by_group),
        wanted(Slot::kGroupIndex, "g_idx", {DType::kS32, DType::kS64}, {k_}, {}, {0}),
    };
    if (p_.sym) specs_[2] = optional_tensor(specs_[2], "no zero points: symmetric");
    if (!p_.desc_act) specs_[3] = optional_tensor(specs_[3], "no g_idx: groups are neighbours");
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return scheme_; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = integer_element(p_.bits, p_.sym);
    format.scaled = true;
    format.group_k = p_.group;
    format.scale_type = scale_type_;
    format.zero = p_.sym ? tensor::ZeroKind::kNone : tensor::ZeroKind::kInteger;
    format.act_order = p_.desc_act;
    return format;
  }

  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    const int64_t groups = p_.desc_act     ? groups_
                           : p_.group == 0 ? 1
                                           : (k + p_.group - 1) / p_.group;
    tensor::QuantizedWeight out = empty_weight(n, k);
    NIBBLE_ASSIGN(const TensorView* scales, need(raw, Slot::kScale, "scales", {groups, n}));
    NIBBLE_ASSIGN(std::vector<float> scale, read_floats(*scales, "scales"));
    NIBBLE_ASSIGN(const std::vector<float> zero, read_zeros(n, groups, raw));
    out.scale = transposed(scale, groups, n);
    if (!p_.sym) out.zero = transposed(zero, groups, n);
    NIBBLE_TRY(read_group_index(groups, raw, out));
    NIBBLE_TRY(unpack(raw, out));
    return out;
  }

 private:
  // (groups, N), as numbers; empty when the file has none. Symmetric ones must say so.
  Result<std::vector<float>> read_zeros(int64_t n, int64_t groups, const RawWeights& raw) const {
    if (p_.sym && raw.get(Slot::kZero) == nullptr) return std::vector<float>();
    const int64_t words = n * p_.bits / 32;
    NIBBLE_ASSIGN(const TensorView* qzeros, need(raw, Slot::kZero, "qzeros", {groups, words}));
    const uint32_t mask = (1u << p_.bits) - 1, half = 1u << (p_.bits - 1);
    const bool by_word = !p_.v2 && 32 % p_.bits == 0;
    const uint32_t one_each = 0xffffffffu / mask;  // a one in every field of a word
    std::vector<float> out(static_cast<size_t>(groups * n));
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t i = 0; i < n; ++i) {
        uint32_t z = read_code(qzeros->data, g * words, 1, i, p_.bits, by_word ? one_each : 0);
        if (!p_.v2 && !by_word) z = (z + 1) & mask;
        if (p_.sym && p_.any_version && z == (p_.v2 ? half - 1 : half + 1)) z = half;
        if (p_.sym && z != half) return asymmetric_zero(g, i, z, half);
        out[static_cast<size_t>(g * n + i)] = static_cast<float>(z);
      }
    }
    const auto one_above = static_cast<float>(half + 1);
    if (p_.unlabelled && !p_.v2 && std::count(out.begin(), out.end(), one_above) == groups * n) {
      std::fill(out.begin(), out.end(), static_cast<float>(half));
    }
    return out;
  }

  Failure asymmetric_zero(int64_t g, int64_t n, uint32_t z, uint32_t half) const {
    std::string advice = "set sym to false if the weights are asymmetric";
    if (z == half + 1 && !p_.v2) advice = "a file of gptq_v2 labelled gptq looks like this";
    if (z == half - 1 && p_.v2) advice = "a file of gptq labelled gptq_v2 looks like this";
    return fail(
        ErrorCode::kCorrupt,
        fmt::format("qzeros: the zero point of group {}, output {} is {}, but sym is true and {}, "
                    "which means {}; {}",
                    g, n, z, p_.version, half, advice));
  }

  Result<void> read_group_index(int64_t groups, const RawWeights& raw,
                                tensor::QuantizedWeight& out) const {
    if (raw.get(Slot::kGroupIndex) == nullptr && !p_.desc_act) return {};
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kGroupIndex, "g_idx", {out.k}));
    NIBBLE_ASSIGN(const std::vector<int32_t> g_idx, read_ints(*view, "g_idx"));
    return p_.desc_act ? sort_by_group(g_idx, groups, out.k != k_, out)
                       : check_group_order(g_idx, p_.group, out.k != k_);
  }

  // qweight -> (N, K) codes, columns in the order of the groups.
  Result<void> unpack(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    NIBBLE_ASSIGN(const TensorView* qweight,
                  need(raw, Slot::kWeight, "qweight", {out.k * p_.bits / 32, out.n}));
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(static_cast<size_t>(out.n * out.k)));
    std::vector<int32_t> column(out.order.size());
    for (size_t i = 0; i < out.order.size(); ++i) {
      column[static_cast<size_t>(out.order[i])] = static_cast<int32_t>(i);
    }
    unpack_along_k(qweight->data, out.n, out.k, p_.bits, p_.sym ? 1u << (p_.bits - 1) : 0, column,
                   reinterpret_cast<uint8_t*>(out.code_owner.data()));
    out.code = {DType::kU8, {out.n, out.k}, out.code_owner.data(), out.code_owner.size()};
    return {};
  }

  std::string_view scheme_;
  GptqLayout p_;
  int64_t k_;
  int64_t groups_ = 1;
  DType scale_type_;
  std::vector<WeightSpec> specs_;
};

// What the shapes of a layer say about the config, in words that name the keys.
Result<void> check_sizes(const LinearLayer& layer, const tensor::TensorInfo* qweight,
                         const GptqLayout& p) {
  if (p.bits < 2 || p.bits > 8) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: bits is {}; packed weights of 2 to 8 bits are read", layer.module,
                            p.bits));
  }
  const int64_t unit = codes_per_unit(p.bits);
  if (layer.k % unit != 0 || layer.n % unit != 0) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: {} outputs and {} inputs do not fill whole words of {}-bit codes",
                            layer.module, layer.n, layer.k, p.bits));
  }
  if (qweight == nullptr || qweight->shape.size() != 2 || qweight->shape[1] != layer.n) return {};
  const int64_t stored = qweight->shape[0] * 32, bits = stored / layer.k;
  if (bits == p.bits || stored % layer.k != 0) return {};
  // Either key can be wrong, and the shape does not say which.
  return fail(
      ErrorCode::kCorrupt,
      fmt::format("{}: expected shape {} for {} inputs of {} bits, found {}: bits is {}, or "
                  "the layer has {} inputs; the config is wrong in one of them",
                  qweight->name, tensor::to_string({layer.k * p.bits / 32, layer.n}), layer.k,
                  p.bits, tensor::to_string(qweight->shape), bits, stored / p.bits));
}

}  // namespace

Result<std::unique_ptr<LinearMethod>> gptq_method(std::string_view scheme, const LinearLayer& layer,
                                                  const TensorLookup& tensors, GptqLayout layout) {
  NIBBLE_TRY(check_sizes(layer, find_tensor(tensors, layer.module, "qweight"), layout));
  return std::unique_ptr<LinearMethod>(
      std::make_unique<GptqMethod>(scheme, layer, tensors, std::move(layout)));
}

}  // namespace nibble::quant
