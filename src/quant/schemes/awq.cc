// AWQ (Lin et al. 2023) as AutoAWQ stores it; awq_layout.h draws the tensors of its layouts. What
// `version` names is how the tool would run them, and mostly how they are stored:
//
//   gemm, exllama, exllamav2, ipex   layout gemm      (the latter arrange it anew once loaded)
//   gemv                             layout gemv
//   gemv_fast, llm-awq               16-bit words that hold four outputs: not read
//   marlin                           the order of one GPU kernel: not read
//
// The shapes tell the layouts apart, whatever `version` says.
//
// Quark writes such folders too and names its `pack_method`: "reorder" is AutoAWQ's order, "order"
// leaves eight outputs in their own. With zero_point false its codes are two's complement and the
// zero points all 0, where AutoAWQ's codes stay unsigned.
#include <fmt/format.h>

#include "quant/awq_layout.h"
#include "quant/keys.h"
#include "quant/scheme.h"
#include "quant/schemes/quark_ints.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

// lm_head is known and not asked: the stored tensors say it.
constexpr std::string_view kKnown =
    "bits w_bit group_size q_group_size zero_point version format checkpoint_format method "
    "quant_method pack_dtype modules_to_not_convert lm_head pack_method";
// How the weights were found, or how another engine should run them.
constexpr std::string_view kHarmless =
    "export backend do_fuse fuse_max_seq_len modules_to_fuse exllama_config meta desc_act sym "
    "damp_percent "
    "true_sequential model_name_or_path use_cuda_fp16 act_group_aware batch_size "
    "cache_block_outputs tokenizer dataset model_seqlen max_input_length pad_token_id "
    // auto-round, writing in this format
    "autoround_version data_type enable_quanted_input provider to_quant_block_names iters lr "
    "nsamples "
    "minmax_lr seqlen low_gpu_mem_usage enable_minmax_tuning scale_dtype gradient_accumulate_steps "
    "block_name_to_quantize";

class AwqConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "awq"; }
  std::vector<const NameMatcher*> matchers() const override { return {&not_converted_}; }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    NIBBLE_ASSIGN(const std::optional<size_t> left_alone, not_converted_.match(layer.module));
    if (is_left_plain(layer, tensors, left_alone.has_value())) {
      return unquantized_method(layer, tensors);
    }
    NIBBLE_TRY(check_layout(layer, tensors));
    if (as_quark_packs_ && find_tensor(tensors, layer.module, "scales") != nullptr) {
      return quark_ints_method(layer, tensors, *as_quark_packs_, {});
    }
    int64_t group = group_;
    const tensor::TensorInfo* scales = find_tensor(tensors, layer.module, "scales");
    if (lost_ && is_awq_gemv(layer, tensors)) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}.qweight is as AutoAWQ's version \"gemv\" stores it, whose padded "
                              "scales do not say the size of groups; give the lost config with "
                              "--quantization-config",
                              layer.module));
    }
    if (lost_ && scales != nullptr && scales->shape.size() == 2) {
      NIBBLE_ASSIGN(group, group_of_count(layer, *scales, scales->shape[0]));
    }
    return awq_method("awq", layer, tensors, group);
  }

  // Without a dictionary the shapes say the rest.
  void use_shapes() {
    lost_ = true;
    notes.push_back(
        "no quantization_config: the size of groups is taken from the shapes of the tensors");
  }

  Result<void> read(const base::Json& dictionary) {
    const std::string& where = dictionary.where();
    check_keys(dictionary, kKnown, kHarmless, warnings);
    const bool old_names = dictionary.find_set("bits") == nullptr;
    NIBBLE_ASSIGN(const int64_t bits, int_key(dictionary, old_names ? "w_bit" : "bits"));
    if (bits != 4) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: {} is {}; AWQ weights of 4 bits are read", where,
                              old_names ? "w_bit" : "bits", bits));
    }
    const bool old_group = dictionary.find_set("group_size") == nullptr;
    NIBBLE_ASSIGN(group_, group_size_key(dictionary, old_group ? "q_group_size" : "group_size"));
    NIBBLE_ASSIGN(const bool zero_point, bool_key_or(dictionary, "zero_point", true));
    NIBBLE_ASSIGN(const std::string pack_method,
                  choice_key(dictionary, "pack_method", {"reorder", "order"}));
    if (dictionary.find_set("pack_method") != nullptr && (pack_method == "order" || !zero_point)) {
      as_quark_packs_ = QuarkInts{.reordered = pack_method == "reorder",
                                  .symmetric = !zero_point,
                                  .is_signed = !zero_point,
                                  .scheme = "awq",
                                  .weight = "qweight",
                                  .scale = "scales",
                                  .zero = "qzeros"};
    } else if (!zero_point) {
      notes.push_back(
          fmt::format("{}: zero_point is false; the stored zero points are used", where));
    }
    for (const char* key : {"version", "format", "checkpoint_format"}) {
      NIBBLE_TRY(choice_key(
          dictionary, key,
          {"gemm", "gemv", "gemv_fast", "llm-awq", "marlin", "exllama", "exllamav2", "ipex"}));
    }
    NIBBLE_TRY(choice_key(dictionary, "method", {"awq"}));
    NIBBLE_TRY(choice_key(dictionary, "pack_dtype", {"int32"}));
    NIBBLE_ASSIGN(not_converted_,
                  names_list(dictionary, {"modules_to_not_convert"}, Says::kLeftAlone));
    return {};
  }

 private:
  // The layouts of AutoAWQ that are made for one GPU kernel each.
  static Result<void> check_layout(const LinearLayer& layer, const TensorLookup& tensors) {
    const tensor::TensorInfo* qweight = find_tensor(tensors, layer.module, "qweight");
    if (qweight == nullptr) return {};
    const bool fast = qweight->dtype == tensor::DType::kS16;
    const bool marlin = squeezed(qweight->shape) == squeezed({layer.k / 16, 2 * layer.n}) &&
                        find_tensor(tensors, layer.module, "qzeros") == nullptr;
    if (!fast && !marlin) return {};
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("{} {} {} is as AutoAWQ's version \"{}\" stores it, in the order of one "
                    "GPU kernel; quantize again with version \"gemm\", or use the GPTQ or "
                    "GGUF edition of this model",
                    qweight->name, tensor::name(qweight->dtype), tensor::to_string(qweight->shape),
                    fast ? "gemv_fast" : "marlin"));
  }

  bool lost_ = false;  // there is no dictionary
  std::optional<QuarkInts> as_quark_packs_;
  int64_t group_ = 0;
  NameMatcher not_converted_;
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "awq"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  if (facts.quantization != nullptr) return parse_dictionary<AwqConfig>(facts);
  auto config = std::make_unique<AwqConfig>();
  config->use_shapes();
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

constexpr std::string_view kAliases[] = {"awq_marlin", "auto_awq", "autoawq", "cpu_awq"};

}  // namespace

extern const Scheme awq_scheme;
const Scheme awq_scheme = {"awq", kAliases, claims, parse};

}  // namespace nibble::quant
