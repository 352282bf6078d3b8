// GPTQ (Frantar et al. 2022) as AutoGPTQ and GPTQModel store it.
//
//   <module>.qweight  (K b/32, N) s32   b-bit codes along K, lowest bits first; for b = 3, 32 codes
//                                       are one 96-bit number in 3 words
//   <module>.qzeros   (g, N b/32) s32   zero points, packed likewise along N
//   <module>.scales   (g, N)            f16 | bf16 | f32
//   <module>.g_idx    (K)               the group of each input; k / G without act-order
//
//   w[n, k] = (q[k, n] - z[g, n]) * s[g, n]      g = g_idx[k]
//
// Zero points come in two versions (`checkpoint_format`): gptq_v2 stores z; gptq, the first one,
// stores z - 1, subtracted from whole words, so that a z of 0 borrows from its neighbour; adding it
// back to whole words undoes that. With 3 bits each field wraps by itself (GPTQModel,
// utils/model_dequant.py). Symmetric weights have z = 2^(b-1) everywhere, which is checked.
#include <fmt/format.h>

#include "quant/act_order.h"
#include "quant/packed_words.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::Element;
using tensor::TensorView;

struct Params {
  int64_t bits = 4;
  int64_t group = 0;  // 0: all inputs
  bool desc_act = false;
  bool sym = true;
  bool v2 = false;
};

Element element_of(const Params& p) {
  switch (p.bits) {
    case 2:
      return p.sym ? Element::kS2 : Element::kU2;
    case 3:
      return p.sym ? Element::kS3 : Element::kU3;
    case 4:
      return p.sym ? Element::kS4 : Element::kU4;
    default:
      return p.sym ? Element::kS8 : Element::kU8;
  }
}

class GptqMethod : public LinearMethod {
 public:
  GptqMethod(const LinearLayer& layer, const TensorLookup& tensors, Params params)
      : p_(params), k_(layer.k) {
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

  std::string_view scheme() const override { return "gptq"; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = element_of(p_);
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
    tensor::QuantizedWeight out;
    out.format = weight_format();
    out.n = n;
    out.k = k;
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
    const bool by_word = !p_.v2 && p_.bits != 3;
    const uint32_t one_each = 0xffffffffu / mask;  // a one in every field of a word
    std::vector<float> out(static_cast<size_t>(groups * n));
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t i = 0; i < n; ++i) {
        uint32_t z = read_code(qzeros->data, g * words, 1, i, p_.bits, by_word ? one_each : 0);
        if (!p_.v2 && p_.bits == 3) z = (z + 1) & mask;
        if (p_.sym && z != half) return asymmetric_zero(g, i, z, half);
        out[static_cast<size_t>(g * n + i)] = static_cast<float>(z);
      }
    }
    return out;
  }

  Failure asymmetric_zero(int64_t g, int64_t n, uint32_t z, uint32_t half) const {
    std::string advice = "set sym to false if the weights are asymmetric";
    if (z == half + 1 && !p_.v2) advice = "a file of gptq_v2 labelled gptq looks like this";
    if (z == half - 1 && p_.v2) advice = "a file of gptq labelled gptq_v2 looks like this";
    return fail(
        ErrorCode::kCorrupt,
        fmt::format("qzeros: the zero point of group {}, output {} is {}, but sym is true and "
                    "checkpoint_format is {}, which means {}; {}",
                    g, n, z, p_.v2 ? "gptq_v2" : "gptq", half, advice));
  }

  Result<void> read_group_index(int64_t groups, const RawWeights& raw,
                                tensor::QuantizedWeight& out) const {
    if (raw.get(Slot::kGroupIndex) == nullptr && !p_.desc_act) return {};
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kGroupIndex, "g_idx", {out.k}));
    NIBBLE_ASSIGN(const std::vector<int32_t> g_idx, read_ints(*view, "g_idx"));
    return p_.desc_act ? sort_by_group(g_idx, groups, out.k != k_, out)
                       : check_group_order(g_idx, p_.group);
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

  Params p_;
  int64_t k_;
  int64_t groups_ = 1;
  DType scale_type_;
  std::vector<WeightSpec> specs_;
};

// lm_head is known and not asked: the stored tensors say it.
constexpr std::string_view kKnown =
    "bits group_size desc_act sym dynamic modules_in_block_to_quantize checkpoint_format format "
    "method quant_method pack_dtype is_marlin_format lm_head";
// How the weights were found, or how another engine should run them.
constexpr std::string_view kHarmless =
    "meta damp_percent damp_auto_increment static_groups true_sequential mse act_group_aware "
    "model_name_or_path model_file_base_name model_seqlen dataset tokenizer block_name_to_quantize "
    "module_name_preceding_first_block batch_size pad_token_id use_cuda_fp16 use_exllama "
    "disable_exllama exllama_config max_input_length cache_block_outputs backend quantizer adapter";

Result<Params> read_params(const base::Json& from, Params p) {
  NIBBLE_ASSIGN(p.bits, int_key_or(from, "bits", p.bits));
  if (p.bits != 2 && p.bits != 3 && p.bits != 4 && p.bits != 8) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: bits is {}; GPTQ weights of 2, 3, 4 and 8 bits are read",
                            from.where(), p.bits));
  }
  if (from.find_set("group_size") != nullptr) {
    NIBBLE_ASSIGN(p.group, group_size_key(from, "group_size"));
  }
  NIBBLE_ASSIGN(p.desc_act, from.get_bool_or("desc_act", p.desc_act));
  NIBBLE_ASSIGN(p.sym, from.get_bool_or("sym", p.sym));
  return p;
}

class GptqConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "gptq"; }
  std::vector<const NameMatcher*> matchers() const override { return {&dynamic_, &in_block_}; }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    NIBBLE_ASSIGN(const std::optional<size_t> rule, dynamic_.match(layer.module));
    NIBBLE_ASSIGN(const std::optional<size_t> listed, in_block_.match(layer.module));
    const bool left_alone = (rule && !overrides_[*rule]) || (!in_block_.empty() && !listed);
    const tensor::TensorInfo* qweight = find_tensor(tensors, layer.module, "qweight");
    // What is stored outranks the lists.
    if (qweight == nullptr &&
        (left_alone || find_tensor(tensors, layer.module, "weight") != nullptr)) {
      return unquantized_method(layer, tensors);
    }
    const Params params = rule && overrides_[*rule] ? *overrides_[*rule] : general_;
    NIBBLE_TRY(check_sizes(layer, qweight, params));
    return std::unique_ptr<LinearMethod>(std::make_unique<GptqMethod>(layer, tensors, params));
  }

  Result<void> read(const base::Json& dictionary) {
    check_keys(dictionary, kKnown, kHarmless, warnings);
    NIBBLE_ASSIGN(general_.bits, int_key(dictionary, "bits"));
    NIBBLE_ASSIGN(general_.group, group_size_key(dictionary, "group_size"));
    NIBBLE_ASSIGN(general_, read_params(dictionary, general_));
    for (const char* key : {"desc_act", "sym"}) {
      if (dictionary.find_set(key) != nullptr) continue;
      notes.push_back(
          fmt::format("{}: {} is not given: taken as {}; the weights are checked for it",
                      dictionary.where(), key, key[0] == 's'));
    }
    NIBBLE_TRY(read_layout(dictionary));
    NIBBLE_TRY(read_dynamic(dictionary));
    const char* const key = "modules_in_block_to_quantize";
    NIBBLE_ASSIGN(std::vector<std::string> names, names_key(dictionary, key));
    NIBBLE_ASSIGN(in_block_,
                  NameMatcher::compile(std::move(names), dictionary.where() + ": " + key));
    return {};
  }

 private:
  // checkpoint_format and format are two names of one key, from different versions of the tools.
  Result<void> read_layout(const base::Json& dictionary) {
    NIBBLE_ASSIGN(const bool marlin, dictionary.get_bool_or("is_marlin_format", false));
    if (marlin) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: is_marlin_format is true; the layouts gptq and gptq_v2 are read",
                              dictionary.where()));
    }
    NIBBLE_TRY(choice_key(dictionary, "method", {"gptq"}));
    NIBBLE_TRY(choice_key(dictionary, "pack_dtype", {"int32"}));
    NIBBLE_ASSIGN(std::string layout,
                  choice_key(dictionary, "checkpoint_format", {"gptq", "gptq_v2"}));
    NIBBLE_ASSIGN(const std::string format, choice_key(dictionary, "format", {"gptq", "gptq_v2"}));
    if (dictionary.find_set("checkpoint_format") == nullptr) layout = format;
    if (dictionary.find_set("format") != nullptr && format != layout) {
      return fail(ErrorCode::kCorrupt, fmt::format("{}: checkpoint_format is \"{}\" but format is "
                                                   "\"{}\"; keep the one that is true",
                                                   dictionary.where(), layout, format));
    }
    general_.v2 = layout == "gptq_v2";
    return {};
  }

  // {"-:regex": anything, "+:regex": {...}, "regex": {...}}: the first that matches counts.
  Result<void> read_dynamic(const base::Json& dictionary) {
    const base::Json* dynamic = dictionary.find_set("dynamic");
    if (dynamic == nullptr || (dynamic->is_bool() && !dynamic->as_bool())) return {};
    const std::string where = fmt::format("{}: dynamic", dictionary.where());
    if (!dynamic->is_object()) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: expected an object, found {}", where, dynamic->describe()));
    }
    std::vector<std::string> rules;
    for (const auto& [key, value] : dynamic->as_object()) {
      const bool skip = key.rfind("-:", 0) == 0, keep = key.rfind("+:", 0) == 0;
      rules.push_back("re:" + (skip || keep ? key.substr(2) : key));
      if (!skip && !value.is_object()) {
        return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected an object, found {}", where,
                                                     key, value.describe()));
      }
      overrides_.emplace_back();
      if (skip) continue;
      NIBBLE_ASSIGN(overrides_.back(), read_params(value, general_));
    }
    NIBBLE_ASSIGN(dynamic_, NameMatcher::compile(std::move(rules), where));
    return {};
  }

  // What the shapes of a layer say about the config, in words that name the keys.
  Result<void> check_sizes(const LinearLayer& layer, const tensor::TensorInfo* qweight,
                           const Params& p) const {
    const int64_t unit = codes_per_unit(p.bits);
    if (layer.k % unit != 0 || layer.n % unit != 0) {
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("{}: {} outputs and {} inputs do not fill whole words of {}-bit codes",
                      layer.module, layer.n, layer.k, p.bits));
    }
    if (qweight == nullptr || qweight->shape.size() != 2 || qweight->shape[1] != layer.n) return {};
    const int64_t bits = qweight->shape[0] * 32 / layer.k;
    if (bits == p.bits || qweight->shape[0] * 32 % layer.k != 0) return {};
    return fail(ErrorCode::kCorrupt,
                fmt::format("{} {} holds {}-bit codes of {} inputs, but bits is {}", qweight->name,
                            tensor::to_string(qweight->shape), bits, layer.k, p.bits));
  }

  Params general_;
  NameMatcher dynamic_;
  std::vector<std::optional<Params>>
      overrides_;  // of each rule of dynamic_; nothing: not quantized
  NameMatcher in_block_;
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "gptq"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  if (facts.quantization == nullptr) {
    return fail(ErrorCode::kNotFound,
                "gptq needs a quantization_config (or quantize_config.json) that says bits and "
                "group_size");
  }
  auto config = std::make_unique<GptqConfig>();
  NIBBLE_TRY(config->read(*facts.quantization));
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

constexpr std::string_view kAliases[] = {"gptq_marlin", "auto_gptq", "gptqmodel"};

}  // namespace

extern const Scheme gptq_scheme;
const Scheme gptq_scheme = {"gptq", kAliases, claims, parse};

}  // namespace nibble::quant
