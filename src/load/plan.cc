#include "load/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "kernels/cuda/plan.h"
#include "load/gguf_config.h"
#include "load/gguf_names.h"
#include "load/override.h"
#include "load/plan_module.h"
#include "load/plan_notes.h"
#include "models/architecture.h"

namespace nibble::load {
namespace {

using checkpoint::Checkpoint;
using layers::DecoderSpec;
using layers::Part;
using tensor::TensorInfo;

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
    NIBBLE_TRY(check_overrides());
    NIBBLE_TRY(check_width());
    plan_modules();
    note_weight_only();
    tell_failed();
    append(plan_.notes, list_notes_.sentences());
    append(plan_.notes, notes_on_calls(plan_.modules));
    append(plan_.notes, notes_on_products(plan_.modules, options_.hardware));
    check_requested();
    plan_vectors();
    plan_cache();
    account();
    note_undeclared_biases();
    if (checkpoint_.gguf() != nullptr) {
      for (std::string& problem : plan_.problems) problem = in_gguf_words(checkpoint_, problem);
    }
    return std::move(plan_);
  }

 private:
  Result<void> read_config() {
    kernels::PairOrder order = kernels::PairOrder::kHalves;
    const bool gguf = checkpoint_.gguf() != nullptr;
    if (gguf) {
      NIBBLE_ASSIGN(GgufConfig found, config_from_gguf(checkpoint_));
      plan_.config = std::move(found.config);
      order = found.order;
      append(plan_.warnings, found.warnings);
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
      NIBBLE_ASSIGN(const std::string place, place_of(plan_.config, key));
      override_places_.push_back(place);
      stored_.push_back(find_path(plan_.config, place) != nullptr);
      NIBBLE_TRY(apply_override(plan_.config, place, value));
      plan_.notes.push_back(fmt::format("config key {} overridden with {}", key, value));
    }
    plan_.config.set_where(where);
    if (!options_.overrides.empty()) asked_ = plan_.config.remember_asked();
    auto spec = models::declare_model(plan_.config);
    if (!spec && gguf) {
      return fail(spec.error().code, in_gguf_words(checkpoint_, spec.error().message));
    }
    if (!spec) return fail(std::move(spec).error());
    plan_.spec = std::move(*spec);
    append(plan_.notes, plan_.spec.notes);
    if (gguf) {
      use_gguf_names(checkpoint_, plan_.spec);
      plan_.spec.rope.order = order;
      if (plan_.spec.window_rope) plan_.spec.window_rope->order = order;
    } else {
      follow_stored_names();
    }
    return {};
  }

  // An override that changes nothing is said: of a key that is in the file but not read here as a
  // warning, of one that is neither as an error, for it is most likely misspelt.
  Result<void> check_overrides() {
    const std::string root = plan_.config.where();
    for (size_t i = 0; i < options_.overrides.size(); ++i) {
      const std::string& key = options_.overrides[i].first;
      // Dialects warn of the keys they do not know (quant::check_keys).
      const bool of_dialect = key.find("quantization_config.") != key.npos ||
                              key.find("compression_config.") != key.npos;
      const bool asked = was_asked(*asked_, root, override_places_[i]);
      if (of_dialect || key == "eos_token_id" || asked) continue;
      if (!stored_[i]) {
        return fail(ErrorCode::kUsage,
                    fmt::format("--override {}: {} has no such key and nothing would read it{}",
                                key, root, nearest_key(*asked_, root, key)));
      }
      plan_.warnings.push_back(
          fmt::format("--override {}: nothing reads this key of {}; it has no effect", key, root));
    }
    plan_.config.set_where(root);  // no more remembering
    return {};
  }

  // The one stored module whose name ends with the segment `last`; "" when there is none, or more.
  std::string module_ending_with(std::string_view last) const {
    std::string found;
    for (const TensorInfo& info : lookup_.all) {
      const std::string_view module = std::string_view(info.name).substr(0, info.name.rfind('.'));
      if (!module.ends_with(last)) continue;
      const size_t before = module.size() - last.size();
      if ((before != 0 && module[before - 1] != '.') || module == found) continue;
      if (!found.empty()) return {};
      found = module;
    }
    return found;
  }

  // Some checkpoints leave out the prefix of all names (they were saved without the head), others
  // have one more (the model is a part of a larger one). Where the embedding lies says which.
  void follow_stored_names() {
    DecoderSpec& spec = plan_.spec;
    const auto split = [](const std::string& name) { return name.rfind('.') + 1; };
    const std::string usual = spec.names[Part::kEmbedding];
    const std::string last = usual.substr(split(usual));
    const std::string stored = module_ending_with(last);
    if (!stored.empty() && stored != usual) {
      const std::string from = usual.substr(0, split(usual));
      const std::string to = stored.substr(0, split(stored));
      for (size_t i = 0; i < static_cast<size_t>(Part::kCount); ++i) {
        std::string& name = spec.names[static_cast<Part>(i)];
        if (name.starts_with(from)) name = to + name.substr(from.size());
      }
      plan_.notes.push_back(fmt::format(
          "the tensors' names begin with \"{}\" here, where \"{}\" is usual", to, from));
    }
    std::string& head = spec.names[Part::kLmHead];
    for (const std::string& other : {std::string(head), spec.other_head_name}) {
      if (other.empty()) continue;
      const std::string found = module_ending_with(other);
      if (!found.empty()) head = found;
    }
  }

  // Every layer's shape follows from hidden_size. Where that is wrong, each scheme would say it of
  // each layer in its own words; the norms, which nobody packs, say it in one.
  Result<void> check_width() const {
    const TensorInfo* first = nullptr;
    int64_t more = -1;
    for (const layers::DeclaredNorm& norm : layers::declared_norms(plan_.spec)) {
      if (norm.size != plan_.spec.hidden) continue;
      const std::string name = plan_.spec.module(norm.part, norm.layer) + ".weight";
      const TensorInfo* info = checkpoint_.find(name);
      if (info == nullptr) continue;
      if (info->shape.size() != 1 || info->shape[0] == norm.size) return {};
      if (first == nullptr) first = info;
      if (info->shape != first->shape) return {};
      ++more;
    }
    if (first == nullptr) return {};
    std::string message = fmt::format(
        "{}: hidden_size is {}, but {} and {} more norms have {} values; take the config and the "
        "weights of one model",
        plan_.config.where(), plan_.spec.hidden, first->name, more, first->shape[0]);
    if (checkpoint_.gguf() != nullptr) message = in_gguf_words(checkpoint_, std::move(message));
    return fail(ErrorCode::kCorrupt, std::move(message));
  }

  // A dictionary from the command line stands where config.json's would, and never beside another.
  Result<void> take_quantization_config() {
    if (!options_.quantization_config) return {};
    if (checkpoint_.gguf() != nullptr) {
      return fail(ErrorCode::kUsage,
                  "--quantization-config: a GGUF file says itself how it is quantized");
    }
    NIBBLE_ASSIGN(const quant::QuantizationSource own,
                  quant::find_quantization(&plan_.config, checkpoint_.hf_quant_config(), nullptr,
                                           std::string_view()));
    if (own.dictionary != nullptr) {
      return fail(ErrorCode::kUsage,
                  fmt::format("--quantization-config: the checkpoint has its own ({}); leave the "
                              "option out, or change single keys with --override",
                              own.where));
    }
    const std::string where = plan_.config.where();
    plan_.config.set("quantization_config", *options_.quantization_config);
    plan_.config.set_where(where);
    plan_.notes.push_back("the quantization_config is that of --quantization-config");
    return {};
  }

  Result<void> find_scheme() {
    NIBBLE_TRY(take_quantization_config());
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
    facts.metadata = &checkpoint_.metadata();
    for (uint32_t i = 0; i < checkpoint_.file_count(); ++i) {
      facts.files.push_back(checkpoint_.file_name(i));
    }
    NIBBLE_ASSIGN(const quant::Scheme* scheme, quant::detect_scheme(facts, options_.quantization));
    NIBBLE_ASSIGN(quantization_, quant::parse_scheme(*scheme, facts));
    NIBBLE_ASSIGN(kv_cache_, quant::find_kv_cache(facts.quantization, facts.hf_quant_config));
    plan_.scheme = scheme->name;
    const std::string taken = quant::taken_for(facts, options_.quantization, *scheme);
    if (!taken.empty()) plan_.notes.push_back(taken);
    check_requirements();
    plan_.claims = source_.dictionary == nullptr
                       ? (facts.gguf ? "a GGUF file" : "no quantization")
                       : fmt::format("{} ({})", source_.method, source_.where);
    append(plan_.notes, quantization_->notes);
    append(plan_.warnings, source_.warnings);
    append(plan_.warnings, quantization_->warnings);
    return {};
  }

  // What the dialect needs from the machine. Activations between layers are f32, which every
  // dialect accepts so far; one that did not would say so here. A CPU has a path for every dialect.
  void check_requirements() {
    const quant::Requirements needs = quantization_->requirements();
    const std::vector<std::string>& accepted = needs.activation_dtypes;
    if (std::find(accepted.begin(), accepted.end(), "f32") == accepted.end()) {
      plan_.problems.push_back(
          fmt::format("{} checkpoints take activations as {}, and between layers they are f32",
                      plan_.scheme, fmt::join(accepted, " or ")));
    }
    const std::optional<device::Gpu>& gpu = options_.hardware.gpu;
    const int major = needs.min_cuda_capability / 10, minor = needs.min_cuda_capability % 10;
    if (!gpu || gpu->at_least(major, minor)) return;
    plan_.problems.push_back(fmt::format(
        "{} checkpoints need a card of compute capability {}.{} or newer; {} has {}.{}; "
        "--device cpu runs them",
        plan_.scheme, major, minor, gpu->name, gpu->major, gpu->minor));
  }

  void plan_modules() {
    const DecoderSpec& spec = plan_.spec;
    const bool separate_head = has_separate_head();
    const auto add = [&](Part part, int64_t layer, int64_t n, int64_t k, bool bias,
                         std::vector<int64_t> parts = {}) {
      const bool vocabulary =
          part == Part::kEmbedding || part == Part::kPositions || part == Part::kLmHead;
      add_module(part, layer, {spec.module(part, layer), n, k, bias, std::move(parts), vocabulary});
    };
    add(Part::kEmbedding, 0, spec.vocab, spec.width(), false);
    if (spec.has(Part::kProjectIn)) add(Part::kProjectIn, 0, spec.hidden, spec.width(), false);
    if (spec.has(Part::kPositions)) {
      add(Part::kPositions, 0, spec.max_positions + spec.first_position, spec.hidden, false);
    }
    for (const layers::DeclaredLinear& l : layers::declared_linears(spec)) {
      add(l.part, l.layer, l.n, l.k, l.bias, l.parts);
    }
    if (spec.has(Part::kProjectOut)) add(Part::kProjectOut, 0, spec.width(), spec.hidden, false);
    if (separate_head) add(Part::kLmHead, 0, spec.vocab, spec.width(), spec.head_bias);
  }

  // A head that is stored is used, also beside `tie_word_embeddings: true`: evidence beats claim,
  // and where the two are equal it makes no difference.
  bool has_separate_head() {
    DecoderSpec& spec = plan_.spec;
    const std::string head = spec.module(Part::kLmHead);
    bool stored = false;
    for (const char* suffix : {"weight", "qweight", "weight_packed", "weight_blocks", "W_q",
                               "compressed", "weight.compressed"}) {
      stored = stored || quant::find_tensor(lookup_, head, suffix) != nullptr;
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
    auto listed = quantization_->listed(declared);
    auto module = listed ? plan_module(declared, *quantization_, lookup_, options_)
                         : Result<PlannedModule>(fail(listed.error()));
    if (!module) {
      // The sentence about it begins with its name, as many a scheme's does.
      std::string message = module.error().message;
      const std::string name = declared.module + ": ";
      if (message.starts_with(name)) message.erase(0, name.size());
      plan_.failed.emplace_back(declared.module, std::move(message));
      // Its tensors are not "unused": what is wrong with them has just been said.
      blamed_.push_back(declared.module + ".");
      return;
    }
    if (module->choice.ranges.empty()) {
      plan_.failed.emplace_back(
          declared.module, kernels::none_takes(module->problem, options_.hardware, module->choice));
    }
    module->part = part;
    module->layer = layer;
    for (const PlannedTensor& t : module->tensors) {
      used_.insert(t.info);
      if (t.spec.slot == quant::Slot::kUnused) {
        ++known_unused_;
        plan_.unused.push_back({t.info->name, t.spec.unused});
      }
      if (t.spec.slot == quant::Slot::kBias && !module->declared.bias) {
        if (undeclared_biases_++ == 0) first_undeclared_bias_ = t.info->name;
      }
    }
    // (Floats of which only those that are not 0 are stored are no codes.)
    const tensor::WeightFormat& format = module->problem.weight;
    const bool plain = module->method->scheme() == "unquantized" ||
                       (tensor::is_unscaled_float(format.element) && format.stored_as.empty());
    list_notes_.compare(*listed, declared.module, !plain);
    plan_.modules.push_back(std::move(*module));
  }

  // Where the chooser leaves inputs alone that the checkpoint wants rounded, and nobody asked for
  // it.
  void note_weight_only() {
    using Type = tensor::ActivationFormat::Type;
    if (options_.policy.activation == kernels::ActivationChoice::kFloat) return;
    const auto count =
        std::count_if(plan_.modules.begin(), plan_.modules.end(), [](const PlannedModule& m) {
          return m.problem.activation.type != Type::kFloat &&
                 m.choice.activation.type == Type::kFloat;
        });
    if (count == 0) return;
    plan_.notes.push_back(fmt::format(
        "{} has no FP8 products (compute capability 8.9): the inputs of {} layers with FP8 weights "
        "stay floats; --precision exact rounds them as the checkpoint says",
        options_.hardware.gpu->name, count));
  }

  // A sentence for each module that cannot be planned; modules with the same trouble, but for their
  // names in it, share one.
  void tell_failed() {
    std::vector<std::pair<size_t, int>> told;  // the first module, and how many more
    std::unordered_map<std::string, size_t> places;
    for (size_t i = 0; i < plan_.failed.size(); ++i) {
      const auto& [module, message] = plan_.failed[i];
      std::string trouble = message;
      for (size_t at = trouble.find(module); at != trouble.npos; at = trouble.find(module, at)) {
        trouble.erase(at, module.size());
      }
      const auto [at, fresh] = places.emplace(std::move(trouble), told.size());
      if (fresh) {
        told.emplace_back(i, 0);
      } else {
        ++told[at->second].second;
      }
    }
    for (const auto& [first, more] : told) {
      const auto& [module, message] = plan_.failed[first];
      plan_.problems.push_back(fmt::format(
          "layer {}{}: {}", module, more == 0 ? "" : fmt::format(" and {} more", more), message));
    }
  }

  // --quantization names what is stored; it cannot make it so (but for fp8).
  // A config alone may have stayed where weights became floats again, as when adapters are merged.
  void check_requested() {
    if (plan_.scheme == "unquantized") return;
    const bool any = std::any_of(plan_.modules.begin(), plan_.modules.end(),
                                 [](const auto& m) { return m.method->scheme() != "unquantized"; });
    if (any || !plan_.problems.empty()) return;
    if (options_.quantization.empty()) {
      if (!list_notes_.sentences().empty()) return;  // they say it
      if (source_.where.empty()) return;             // no config claims another
      plan_.notes.push_back(fmt::format(
          "{} is of {}, but no layer is stored quantized: all are plain floats, and stay so",
          source_.where, plan_.scheme));
      return;
    }
    plan_.problems.push_back(
        fmt::format("--quantization {}: no layer of this checkpoint is stored so, and only fp8 is "
                    "made while loading",
                    options_.quantization));
  }

  void plan_vectors() {
    const DecoderSpec& spec = plan_.spec;
    for (const layers::DeclaredNorm& norm : layers::declared_norms(spec)) {
      add_vector(norm, false);
      if (spec.norm_bias) add_vector(norm, true);
    }
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
      // Read with the config: see gguf_config.cc.
      for (const char* name : {"rope_factors_short.weight", "rope_factors_long.weight"}) {
        if (const TensorInfo* info = checkpoint_.find(name); info != nullptr) used_.insert(info);
      }
    }
  }

  void add_vector(const layers::DeclaredNorm& norm, bool bias) {
    const std::string name =
        plan_.spec.module(norm.part, norm.layer) + (bias ? ".bias" : ".weight");
    const TensorInfo* info = checkpoint_.find(name);
    if (info == nullptr) {
      plan_.problems.push_back(
          fmt::format("{}: the checkpoint has no tensor of this name; is a shard missing?", name));
      return;
    }
    used_.insert(info);
    const quant::WeightSpec expected{.suffix = name,
                                     .dtypes = {tensor::DType::kF32, tensor::DType::kF16,
                                                tensor::DType::kBF16, tensor::DType::kF64},
                                     .shape = {norm.size}};
    if (auto ok = check_tensor(expected, *info); !ok) {
      plan_.problems.push_back(ok.error().message);
      return;
    }
    plan_.vectors.push_back({norm.part, norm.layer, bias, info});
  }

  void plan_cache() {
    plan_.cache = make_cache_plan(checkpoint_, plan_.spec, kv_cache_, options_.kv_type,
                                  options_.kv_left_alone, lookup_);
    append(plan_.notes, plan_.cache.notes);
    append(plan_.problems, plan_.cache.problems);
    for (const std::string& attention : plan_.cache.blamed) blamed_.push_back(attention + ".");
    for (const PlannedCache& layer : plan_.cache.layers) {
      for (const TensorInfo* info : layer.method.used()) used_.insert(info);
      for (const auto& [info, why] : layer.method.unused()) {
        if (!used_.insert(info).second) continue;
        ++known_unused_;
        plan_.unused.push_back({info->name, why});
      }
    }
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
    // `used_` also holds what a layer knows and leaves alone, which stands in `unused` too.
    plan_.tensors_used = static_cast<int64_t>(used_.size() - known_unused_);
    for (const quant::NameMatcher* matcher : quantization_->matchers()) {
      const std::vector<std::string> idle = idle_rules(*matcher);
      constexpr size_t kMostTold = 20;
      for (size_t i = 0; i < std::min(idle.size(), kMostTold); ++i) {
        plan_.notes.push_back(
            fmt::format("{}: \"{}\" matched no layer", matcher->where(), idle[i]));
      }
      if (idle.size() > kMostTold) {
        plan_.notes.push_back(fmt::format("{}: {} more rules matched no layer", matcher->where(),
                                          idle.size() - kMostTold));
      }
    }
  }

  // The rules of a list that name nothing in the checkpoint. What a rule names need be no linear
  // layer (writers list norms too), and an earlier rule may have said the same.
  std::vector<std::string> idle_rules(const quant::NameMatcher& matcher) const {
    if (matcher.rules_that_matched_nothing().empty()) return {};
    std::vector<std::string_view> modules;
    for (const TensorInfo& info : lookup_.all) {
      const std::string_view module = std::string_view(info.name).substr(0, info.name.rfind('.'));
      if (modules.empty() || module != modules.back()) modules.push_back(module);
    }
    modules.emplace_back("lm_head");  // which a tied head is called, though nothing is stored
    matcher.note_all(modules);
    return matcher.rules_that_matched_nothing();
  }

  // Evidence beats claim: a bias that is stored was part of the model that was saved.
  void note_undeclared_biases() {
    if (undeclared_biases_ == 0 || checkpoint_.gguf() != nullptr) return;
    plan_.notes.push_back(fmt::format(
        "{} layers store a bias that config.json does not declare (the first: {}): they are used",
        undeclared_biases_, first_undeclared_bias_));
  }

  std::string unused_reason(const TensorInfo& info) const {
    const std::string_view name = info.name;
    const std::string segments = fmt::format(".{}.", name);
    for (const auto& [segment, reason] : plan_.spec.unused) {
      if (segments.find(fmt::format(".{}.", segment)) != segments.npos) return reason;
    }
    if (name.ends_with("._extra_state")) return "the state of another engine's kernels";
    for (const char* buffer :
         {"embed_tokens.embed_scale", "rotary_emb.inv_freq", "rotary_emb.cos_cached",
          "rotary_emb.sin_cached", "rotary_pos_emb.inv_freq"}) {
      if (name.ends_with(buffer)) return "a buffer that is computed from config.json";
    }
    for (const char* buffer :
         {".attn.bias", ".attention.bias", ".self_attn.bias", ".masked_bias"}) {
      if (name.ends_with(buffer)) return "a causal mask that older tools saved";
    }
    if (quant::holds_nothing(info)) return "it has no elements: its layer has nothing of the kind";
    return quantization_->unused_reason(info);
  }

  static void append(std::vector<std::string>& to, const std::vector<std::string>& from) {
    to.insert(to.end(), from.begin(), from.end());
  }

  const Checkpoint& checkpoint_;
  const PlanOptions& options_;
  quant::TensorLookup lookup_;
  std::vector<std::string> override_places_;  // "a.b", of each --override
  std::vector<bool> stored_;                  // for each override: the file has the key
  std::shared_ptr<const base::Json::Asked> asked_;
  quant::QuantizationSource source_;
  std::unique_ptr<quant::QuantizationConfig> quantization_;
  quant::KvCacheConfig kv_cache_;
  LoadPlan plan_;
  std::unordered_set<const TensorInfo*> used_;
  size_t known_unused_ = 0;  // of used_
  std::vector<std::string> blamed_;
  ListNotes list_notes_;
  int64_t undeclared_biases_ = 0;
  std::string first_undeclared_bias_;
};

}  // namespace

Result<LoadPlan> make_plan(const Checkpoint& checkpoint, const PlanOptions& options) {
  return Planner(checkpoint, options).run();
}

}  // namespace nibble::load
