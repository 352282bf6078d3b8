#include "load/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "load/gguf_config.h"
#include "models/architecture.h"

namespace nibble::load {
namespace {

using checkpoint::Checkpoint;
using layers::DecoderSpec;
using layers::Part;
using tensor::TensorInfo;

// Dimensions of 1 may be missing or extra in a file: (N), (N, 1) and (1, N) hold the same vector.
tensor::Shape without_ones(const tensor::Shape& shape) {
  tensor::Shape out;
  for (int64_t dim : shape) {
    if (dim != 1) out.push_back(dim);
  }
  return out;
}

std::string dtype_names(const std::vector<tensor::DType>& dtypes) {
  std::vector<std::string_view> names;
  for (tensor::DType d : dtypes) names.push_back(tensor::name(d));
  return fmt::format("{}", fmt::join(names, " or "));
}

Result<void> check_tensor(const quant::WeightSpec& spec, const TensorInfo& info) {
  if (!spec.dtypes.empty() &&
      std::find(spec.dtypes.begin(), spec.dtypes.end(), info.dtype) == spec.dtypes.end()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: expected dtype {}, found {}", info.name, dtype_names(spec.dtypes),
                            tensor::name(info.dtype)));
  }
  if (without_ones(spec.shape) != without_ones(info.shape)) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: expected shape {} from config.json, found {}", info.name,
                            tensor::to_string(spec.shape), tensor::to_string(info.shape)));
  }
  return {};
}

// Applies --override KEY=VALUE; the value is JSON, or else a string. "a.b" reaches into objects.
Result<void> apply_override(base::Json& config, std::string_view key, const std::string& text) {
  auto parsed = base::parse_json(text, "--override");
  base::Json value = parsed ? std::move(*parsed) : base::Json(text);
  const size_t dot = key.find('.');
  if (dot == std::string_view::npos) {
    config.set(std::string(key), std::move(value));
    return {};
  }
  const std::string head(key.substr(0, dot));
  const base::Json* inner = config.find(head);
  base::Json child = inner != nullptr ? *inner : base::Json::object();
  if (!child.is_object()) {
    return fail(ErrorCode::kUsage,
                fmt::format("--override {}: {} is {}, not an object", key, head, child.describe()));
  }
  NIBBLE_TRY(apply_override(child, key.substr(dot + 1), text));
  config.set(head, std::move(child));
  return {};
}

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, const PlanOptions& options)
      : checkpoint_(checkpoint), options_(options) {
    lookup_.all = checkpoint.tensors();
    lookup_.find = [&checkpoint](std::string_view name) { return checkpoint.find(name); };
  }

  Result<LoadPlan> run() {
    NIBBLE_TRY(read_config());
    NIBBLE_TRY(find_scheme());
    plan_modules();
    check_requested();
    plan_vectors();
    account();
    return std::move(plan_);
  }

 private:
  Result<void> read_config() {
    if (checkpoint_.gguf() != nullptr) {
      NIBBLE_ASSIGN(plan_.config, config_from_gguf(checkpoint_));
    } else if (checkpoint_.config() != nullptr) {
      plan_.config = *checkpoint_.config();
    } else {
      return fail(ErrorCode::kNotFound,
                  fmt::format("{}: there is no config.json, so the model's shape is not known; "
                              "download the whole folder",
                              checkpoint_.path()));
    }
    const std::string where = plan_.config.where();
    for (const auto& [key, value] : options_.overrides) {
      NIBBLE_TRY(apply_override(plan_.config, key, value));
      plan_.notes.push_back(fmt::format("config key {} overridden with {}", key, value));
    }
    plan_.config.set_where(where);
    NIBBLE_ASSIGN(plan_.spec, models::declare_model(plan_.config));
    if (checkpoint_.gguf() != nullptr) {
      plan_.spec.names = gguf_part_names();
      // llama.cpp stores the rows of q and k so that neighbours turn together.
      plan_.spec.rope.order = kernels::PairOrder::kNeighbours;
    }
    return {};
  }

  Result<void> find_scheme() {
    NIBBLE_ASSIGN(source_,
                  quant::find_quantization(
                      &plan_.config, checkpoint_.hf_quant_config(), checkpoint_.quantize_config(),
                      checkpoint_.quantize_config() == nullptr
                          ? std::string_view()
                          : std::string_view(checkpoint_.quantize_config()->where())));
    quant::CheckpointFacts facts;
    facts.gguf = checkpoint_.gguf() != nullptr;
    facts.config = &plan_.config;
    facts.quantization = source_.dictionary;
    facts.quantization_where = source_.where;
    facts.method = source_.method;
    facts.hf_quant_config = checkpoint_.hf_quant_config();
    facts.tensors = lookup_;
    NIBBLE_ASSIGN(const quant::Scheme* scheme, quant::detect_scheme(facts, options_.quantization));
    NIBBLE_ASSIGN(quantization_, scheme->parse(facts));
    plan_.scheme = scheme->name;
    check_requirements();
    plan_.claims = source_.dictionary == nullptr
                       ? (facts.gguf ? "a GGUF file" : "no quantization")
                       : fmt::format("{} ({})", source_.method, source_.where);
    if (const quant::Scheme* asked = quant::find_scheme(options_.quantization);
        asked != nullptr && asked != scheme) {
      plan_.notes.push_back(fmt::format("--quantization {}: the checkpoint is {}, and is read so",
                                        options_.quantization, scheme->name));
    }
    append(plan_.notes, quantization_->notes);
    append(plan_.warnings, quantization_->warnings);
    return {};
  }

  // On a CPU activations between layers are f32, which every dialect accepts so far; one that did
  // not would say so here.
  void check_requirements() {
    const std::vector<std::string> accepted = quantization_->requirements().activation_dtypes;
    if (std::find(accepted.begin(), accepted.end(), "f32") != accepted.end()) return;
    plan_.problems.push_back(
        fmt::format("{} checkpoints take activations as {}, and on a CPU they are "
                    "f32",
                    plan_.scheme, fmt::join(accepted, " or ")));
  }

  void plan_modules() {
    const DecoderSpec& spec = plan_.spec;
    const bool separate_head = has_separate_head();
    add_module(Part::kEmbedding, 0,
               {spec.module(Part::kEmbedding), spec.vocab, spec.hidden, false, {}, true});
    for (const layers::DeclaredLinear& linear : layers::declared_linears(spec)) {
      add_module(linear.part, linear.layer,
                 {spec.module(linear.part, linear.layer), linear.n, linear.k, linear.bias});
    }
    if (separate_head) {
      add_module(Part::kLmHead, 0,
                 {spec.module(Part::kLmHead), spec.vocab, spec.hidden, false, {}, true});
    }
  }

  // A head that is stored is used, also beside `tie_word_embeddings: true`: evidence beats claim,
  // and where the two are equal it makes no difference.
  bool has_separate_head() {
    DecoderSpec& spec = plan_.spec;
    const std::string head = spec.module(Part::kLmHead);
    bool stored = false;
    for (const char* suffix : {".weight", ".qweight", ".weight_packed", ".weight_blocks"}) {
      stored = stored || checkpoint_.find(head + suffix) != nullptr;
    }
    if (!stored && checkpoint_.gguf() != nullptr) spec.tied_embeddings = true;  // it says so thus
    if (stored && spec.tied_embeddings) {
      plan_.notes.push_back(fmt::format(
          "{} is stored although config.json says tie_word_embeddings: the stored one is used",
          head));
      spec.tied_embeddings = false;
    }
    return !spec.tied_embeddings;
  }

  void add_module(Part part, int64_t layer, quant::LinearLayer declared) {
    auto module = plan_module(declared, *quantization_, lookup_, options_);
    if (!module) {
      plan_.problems.push_back(
          fmt::format("layer {}: {}", declared.module, module.error().message));
      // Its tensors are not "unused": what is wrong with them has just been said.
      blamed_.push_back(declared.module + ".");
      return;
    }
    module->part = part;
    module->layer = layer;
    for (const PlannedTensor& t : module->tensors) {
      used_.insert(t.info);
      if (t.spec.slot == quant::Slot::kUnused) {
        plan_.unused.push_back({t.info->name, t.spec.unused});
      }
    }
    plan_.modules.push_back(std::move(*module));
  }

  // --quantization names what is stored; it cannot make it so (but for fp8).
  void check_requested() {
    if (options_.quantization.empty() || plan_.scheme == "unquantized") return;
    const bool any = std::any_of(plan_.modules.begin(), plan_.modules.end(),
                                 [](const auto& m) { return m.method->scheme() != "unquantized"; });
    if (any || !plan_.problems.empty()) return;
    plan_.problems.push_back(
        fmt::format("--quantization {}: no layer of this checkpoint is stored so, and only fp8 is "
                    "made while loading",
                    options_.quantization));
  }

  void plan_vectors() {
    const DecoderSpec& spec = plan_.spec;
    for (int64_t layer = 0; layer < spec.layers; ++layer) {
      add_vector(Part::kAttentionNorm, layer, spec.hidden);
      add_vector(Part::kFfnNorm, layer, spec.hidden);
    }
    add_vector(Part::kFinalNorm, 0, spec.hidden);
    if (checkpoint_.gguf() != nullptr) {
      plan_.rope_factors = checkpoint_.find("rope_freqs.weight");
      if (plan_.rope_factors != nullptr) {
        used_.insert(plan_.rope_factors);
        const quant::WeightSpec expected{.suffix = "rope_freqs.weight",
                                         .dtypes = {tensor::DType::kF32},
                                         .shape = {spec.rope.rotary_dim / 2}};
        if (auto ok = check_tensor(expected, *plan_.rope_factors); !ok) {
          plan_.problems.push_back(ok.error().message);
        }
      }
    }
  }

  void add_vector(Part part, int64_t layer, int64_t size) {
    const std::string name = plan_.spec.module(part, layer) + ".weight";
    const TensorInfo* info = checkpoint_.find(name);
    if (info == nullptr) {
      plan_.problems.push_back(
          fmt::format("{}: the checkpoint has no tensor of this name; is a shard missing?", name));
      return;
    }
    used_.insert(info);
    const quant::WeightSpec expected{
        .suffix = name,
        .dtypes = {tensor::DType::kF32, tensor::DType::kF16, tensor::DType::kBF16},
        .shape = {size}};
    if (auto ok = check_tensor(expected, *info); !ok) {
      plan_.problems.push_back(ok.error().message);
      return;
    }
    plan_.vectors.push_back({part, layer, info});
  }

  // Every stored tensor is used, known-unused with a reason, or a problem.
  void account() {
    plan_.tensors_total = static_cast<int64_t>(lookup_.all.size());
    constexpr size_t kShown = 20;
    size_t unexplained = 0;
    for (const TensorInfo& info : lookup_.all) {
      if (used_.contains(&info)) continue;
      if (std::string reason = unused_reason(info); !reason.empty()) {
        plan_.unused.push_back({info.name, std::move(reason)});
        continue;
      }
      const bool blamed = std::any_of(blamed_.begin(), blamed_.end(), [&](const std::string& b) {
        return info.name.starts_with(b);
      });
      if (blamed) continue;
      if (++unexplained <= kShown) {
        plan_.problems.push_back(fmt::format(
            "{}: no layer of {} uses this {} {} tensor, and nothing says it may be left out",
            info.name, plan_.spec.architecture, tensor::name(info.dtype),
            tensor::to_string(info.shape)));
      }
    }
    if (unexplained > kShown) {
      plan_.problems.push_back(
          fmt::format("{} more tensors that no layer uses", unexplained - kShown));
    }
    plan_.tensors_used = plan_.tensors_total - static_cast<int64_t>(plan_.unused.size());
    for (const quant::NameMatcher* matcher : quantization_->matchers()) {
      for (const std::string& rule : matcher->rules_that_matched_nothing()) {
        plan_.notes.push_back(fmt::format("{}: \"{}\" matched no layer", matcher->where(), rule));
      }
    }
  }

  std::string unused_reason(const TensorInfo& info) const {
    const std::string_view name = info.name;
    for (const char* buffer : {"rotary_emb.inv_freq", "rotary_emb.cos_cached",
                               "rotary_emb.sin_cached", "rotary_pos_emb.inv_freq"}) {
      if (name.ends_with(buffer)) return "a buffer that is computed from config.json";
    }
    for (const char* buffer : {".attn.bias", ".self_attn.bias", ".masked_bias"}) {
      if (name.ends_with(buffer)) return "a causal mask that older tools saved";
    }
    return quantization_->unused_reason(info);
  }

  static void append(std::vector<std::string>& to, const std::vector<std::string>& from) {
    to.insert(to.end(), from.begin(), from.end());
  }

  const Checkpoint& checkpoint_;
  const PlanOptions& options_;
  quant::TensorLookup lookup_;
  quant::QuantizationSource source_;
  std::unique_ptr<quant::QuantizationConfig> quantization_;
  LoadPlan plan_;
  std::unordered_set<const TensorInfo*> used_;
  std::vector<std::string> blamed_;
};

}  // namespace

Result<LoadPlan> make_plan(const Checkpoint& checkpoint, const PlanOptions& options) {
  return Planner(checkpoint, options).run();
}

Result<PlannedModule> plan_module(const quant::LinearLayer& layer,
                                  const quant::QuantizationConfig& config,
                                  const quant::TensorLookup& tensors, const PlanOptions& options) {
  PlannedModule out;
  out.declared = layer;
  NIBBLE_ASSIGN(out.method, config.linear_method(layer, tensors));
  for (quant::WeightSpec& spec : out.method->create_weights()) {
    const std::string name = layer.module + "." + spec.suffix;
    const TensorInfo* info = tensors.find(name);
    if (info == nullptr) {
      if (!spec.required) continue;
      return fail(ErrorCode::kCorrupt,
                  fmt::format("the checkpoint has no tensor {}, which a {} layer needs", name,
                              out.method->scheme()));
    }
    if (spec.slot != quant::Slot::kUnused) {
      NIBBLE_TRY(check_tensor(spec, *info));
      out.bytes_disk += info->bytes;
    }
    out.tensors.push_back({std::move(spec), info});
  }
  out.problem = {layer.n, layer.k, out.method->weight_format(), out.method->activation_format()};
  NIBBLE_ASSIGN(out.choice, kernels::choose(out.problem, options.hardware, options.policy));
  out.bytes_memory = static_cast<uint64_t>(kernels::packed_bytes(out.problem, out.choice)) +
                     (layer.bias ? static_cast<uint64_t>(layer.n) * sizeof(float) : 0);
  return out;
}

}  // namespace nibble::load
