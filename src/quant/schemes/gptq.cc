// GPTQ (Frantar et al. 2022) as AutoGPTQ and GPTQModel store it; gptq_layout.h draws the tensors.
//
// `checkpoint_format` says the version of the zero points: gptq_v2 or gptq, the first one.
#include <fmt/format.h>

#include "quant/gptq_layout.h"
#include "quant/keys.h"
#include "quant/layer_rules.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

// lm_head is known and not asked: the stored tensors say it.
constexpr std::string_view kKnown =
    "bits group_size desc_act sym dynamic modules_in_block_to_quantize checkpoint_format format "
    "method quant_method pack_dtype is_marlin_format lm_head activation";
// How the weights were found, or how another engine should run them.
constexpr std::string_view kHarmless =
    "meta damp_percent damp_auto_increment static_groups true_sequential mse act_group_aware "
    "model_name_or_path model_file_base_name model_seqlen dataset tokenizer block_name_to_quantize "
    "module_name_preceding_first_block batch_size pad_token_id use_cuda_fp16 use_exllama "
    "disable_exllama exllama_config max_input_length cache_block_outputs backend quantizer adapter "
    // auto-round, writing in this format
    "autoround_version data_type enable_quanted_input provider to_quant_block_names iters lr "
    "nsamples "
    "minmax_lr seqlen low_gpu_mem_usage enable_minmax_tuning scale_dtype gradient_accumulate_steps "
    "amp model_name rotation offload_to_disk pack_impl";

Result<GptqLayout> read_params(const base::Json& from, GptqLayout p) {
  NIBBLE_ASSIGN(p.bits, int_key_or(from, "bits", p.bits));
  if (p.bits < 2 || p.bits > 8) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("{}: bits is {}; GPTQ weights of 2 to 8 bits are read", from.where(), p.bits));
  }
  if (from.find_set("group_size") != nullptr) {
    NIBBLE_ASSIGN(p.group, group_size_key(from, "group_size"));
  }
  NIBBLE_ASSIGN(p.desc_act, bool_key_or(from, "desc_act", p.desc_act));
  NIBBLE_ASSIGN(p.sym, bool_key_or(from, "sym", p.sym));
  return p;
}

using Override = std::optional<GptqLayout>;  // nothing: not quantized

class GptqConfig : public QuantizationConfig {
 public:
  std::string_view scheme() const override { return "gptq"; }
  std::vector<const NameMatcher*> matchers() const override {
    return {&dynamic_.matcher(), &in_block_};
  }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    if (lost_) return by_shapes(layer, tensors);
    NIBBLE_ASSIGN(const Override* named, dynamic_.find(layer.module));
    NIBBLE_ASSIGN(const std::optional<size_t> listed, in_block_.match(layer.module));
    const bool left_alone =
        (named != nullptr && !*named) || (!in_block_.empty() && !listed.has_value());
    if (is_left_plain(layer, tensors, left_alone)) return unquantized_method(layer, tensors);
    return gptq_method("gptq", layer, tensors, named != nullptr && *named ? **named : general_);
  }

  // Without a dictionary the shapes say the rest.
  void use_shapes() {
    lost_ = true;
    notes.push_back(
        "no quantization_config: bits and groups are taken from the shapes of the tensors, zero "
        "points as stored less one (checkpoint_format gptq) but where all of a layer are "
        "2^(bits - 1), as symmetric weights of gptq_v2 have them; --quantization-config can say "
        "it");
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
    if (const base::Json* activation = dictionary.find_set("activation")) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: activation is {}: GPTQ layers are read with float activations "
                              "only",
                              dictionary.where(), activation->dump().substr(0, 60)));
    }
    NIBBLE_TRY(read_layout(dictionary));
    NIBBLE_TRY(read_dynamic(dictionary));
    NIBBLE_ASSIGN(in_block_,
                  names_list(dictionary, {"modules_in_block_to_quantize"}, Says::kOnlyThese));
    return {};
  }

 private:
  // Asymmetric weights hold symmetric ones too, and g_idx is taken as it is.
  static Result<std::unique_ptr<LinearMethod>> by_shapes(const LinearLayer& layer,
                                                         const TensorLookup& tensors) {
    const tensor::TensorInfo* qweight = find_tensor(tensors, layer.module, "qweight");
    const tensor::TensorInfo* scales = find_tensor(tensors, layer.module, "scales");
    if (qweight == nullptr) return unquantized_method(layer, tensors);
    GptqLayout layout;
    if (scales != nullptr && scales->shape.size() == 2 && qweight->shape.size() == 2) {
      layout.bits = qweight->shape[0] * 32 / layer.k;
      NIBBLE_ASSIGN(layout.group, group_of_count(layer, *scales, scales->shape[0]));
    }
    layout.sym = find_tensor(tensors, layer.module, "qzeros") == nullptr;
    layout.desc_act = find_tensor(tensors, layer.module, "g_idx") != nullptr;
    layout.unlabelled = true;
    layout.version = "no config says checkpoint_format";
    return gptq_method("gptq", layer, tensors, std::move(layout));
  }

  // checkpoint_format and format are two names of one key, from different versions of the tools.
  Result<void> read_layout(const base::Json& dictionary) {
    NIBBLE_ASSIGN(const bool marlin, bool_key_or(dictionary, "is_marlin_format", false));
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
    general_.version = "checkpoint_format is " + layout;
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
    for (const auto& [key, value] : dynamic->as_object()) {
      const bool skip = key.rfind("-:", 0) == 0, keep = key.rfind("+:", 0) == 0;
      if (!skip && !value.is_object()) {
        return fail(ErrorCode::kCorrupt, fmt::format("{}: {}: expected an object, found {}", where,
                                                     key, value.describe()));
      }
      Override layout;
      if (!skip) {
        NIBBLE_ASSIGN(layout, read_params(value, general_));
      }
      dynamic_.add("re:" + (skip || keep ? key.substr(2) : key), std::move(layout),
                   skip ? Says::kLeftAlone : Says::kQuantized);
    }
    return dynamic_.compile(where);
  }

  bool lost_ = false;  // there is no dictionary
  GptqLayout general_;
  LayerRules<Override> dynamic_;
  NameMatcher in_block_;
};

bool claims(const CheckpointFacts& facts) { return !facts.gguf && facts.method == "gptq"; }

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  if (facts.quantization != nullptr) return parse_dictionary<GptqConfig>(facts);
  auto config = std::make_unique<GptqConfig>();
  config->use_shapes();
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

constexpr std::string_view kAliases[] = {"gptq_marlin", "auto_gptq", "autogptq", "gptqmodel"};

}  // namespace

extern const Scheme gptq_scheme;
const Scheme gptq_scheme = {"gptq", kAliases, claims, parse};

}  // namespace nibble::quant
