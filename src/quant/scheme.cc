#include "quant/scheme.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "quant/keys.h"
#include "quant/names.h"
#include "quant/rotations.h"
#include "quant/stored.h"
#include "quant/unread_schemes.h"

namespace nibble::quant {

#define NIBBLE_SCHEME(name) extern const Scheme name##_scheme;
#include "quant/schemes.inc"
#undef NIBBLE_SCHEME

namespace {

using tensor::DType;

constexpr const Scheme* kSchemes[] = {
#define NIBBLE_SCHEME(name) &name##_scheme,
#include "quant/schemes.inc"
#undef NIBBLE_SCHEME
};

std::string known_schemes() {
  std::vector<std::string_view> names;
  for (const Scheme* scheme : kSchemes) names.push_back(scheme->name);
  return fmt::format("{}", fmt::join(names, ", "));
}

bool is_dictionary(const base::Json* json) { return json != nullptr && json->is_object(); }

// Whether two values say the same: the order of keys, null against absent and the spelling of
// numbers and flags do not count.
bool says_the_same(const base::Json& a, const base::Json& b) {
  if (a.is_array() && b.is_array()) {
    return std::equal(a.as_array().begin(), a.as_array().end(), b.as_array().begin(),
                      b.as_array().end(), says_the_same);
  }
  if (!a.is_object() || !b.is_object()) return same_value(a, b);
  const auto covers = [](const base::Json& one, const base::Json& other) {
    return std::all_of(one.as_object().begin(), one.as_object().end(), [&](const auto& member) {
      const base::Json* value = other.find_set(member.first);
      return value == nullptr ? member.second.is_null() : says_the_same(member.second, *value);
    });
  };
  return covers(a, b) && covers(b, a);
}

struct Dictionary {
  const base::Json* json = nullptr;
  std::string where;
};

// Adds the quantization dictionaries of one level of config.json.
void add_dictionaries(const base::Json& config, std::string_view prefix,
                      std::vector<Dictionary>& out) {
  for (std::string_view key : {"quantization_config", "compression_config"}) {
    const base::Json* found = config.find_set(key);
    if (found == nullptr) continue;
    std::string where = fmt::format("{}{}", prefix, key);
    // transformers 4.45 saved the tool's own dictionary inside one more, beside sparsity_config.
    const base::Json* inner =
        is_dictionary(found) ? found->find_set("quantization_config") : nullptr;
    if (is_dictionary(inner)) {
      found = inner;
      where += ": quantization_config";
    }
    out.push_back({found, std::move(where)});
  }
}

// What the sidecar of an old tool says otherwise than the dictionary that outranks it.
std::vector<std::string> contradictions(const QuantizationSource& source, const base::Json& sidecar,
                                        std::string_view sidecar_name) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"bits", "w_bit"},
      {"group_size", "q_group_size"},
      {"desc_act", ""},
      {"sym", ""},
      {"zero_point", ""}};
  const auto find = [](const base::Json& in, const auto& names) {
    const base::Json* found = in.find_set(names.first);
    return found != nullptr || names.second.empty() ? found : in.find_set(names.second);
  };
  std::vector<std::string> out;
  for (const auto& names : kNames) {
    const base::Json* here = find(*source.dictionary, names);
    const base::Json* there = find(sidecar, names);
    if (here == nullptr || there == nullptr || says_the_same(*here, *there)) continue;
    out.push_back(fmt::format("{}: {} is {}, but {} says {}; the latter counts", sidecar_name,
                              names.first, there->dump(), source.where, here->dump()));
  }
  return out;
}

// The method that a dictionary without quant_method shows by its keys: the tools that wrote the
// sidecar files had one method each.
std::string method_by_keys(const base::Json& dictionary) {
  for (const char* key : {"quant_algo", "quantization"}) {
    if (dictionary.find(key) != nullptr) return "modelopt";
  }
  for (const char* key : {"w_bit", "q_group_size", "zero_point"}) {
    if (dictionary.find(key) != nullptr) return "awq";
  }
  for (const char* key : {"config_groups", "sparsity_config"}) {
    if (dictionary.find(key) != nullptr) return "compressed-tensors";
  }
  for (const char* key : {"desc_act", "damp_percent", "static_groups"}) {
    if (dictionary.find(key) != nullptr) return "gptq";
  }
  // transformers named no method before its version 4.32, when there was one.
  for (const char* key : {"load_in_4bit", "load_in_8bit"}) {
    const Result<bool> asked = bool_key_or(dictionary, key, false);
    if (asked && *asked) return "bitsandbytes";
  }
  return {};
}

Result<std::string> method_of(const base::Json& dictionary, std::string_view where) {
  const base::Json* method = dictionary.find_set("quant_method");
  if (method == nullptr) {
    const base::Json* producer = dictionary.find("producer");
    const base::Json* name = producer == nullptr ? nullptr : producer->find("name");
    if (name != nullptr && name->is_string() && name->as_string() == "modelopt")
      return name->as_string();
    return method_by_keys(dictionary);
  }
  if (!method->is_string()) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: quant_method: expected a string, found {}",
                                                 where, method->describe()));
  }
  const Scheme* scheme = find_scheme(method->as_string());
  return scheme != nullptr ? std::string(scheme->name) : normalized(method->as_string());
}

Result<QuantizationSource> source(const base::Json* dictionary, std::string where) {
  if (!dictionary->is_object()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: expected an object, found {}", where, dictionary->describe()));
  }
  NIBBLE_ASSIGN(std::string method, method_of(*dictionary, where));
  return QuantizationSource{dictionary, std::move(where), std::move(method)};
}

// hf_quant_config.json beside a dictionary in config.json must be of the same method; petit_nvfp4
// is another engine's name for one of ModelOpt's.
Result<void> check_sidecar(const QuantizationSource& chosen, const base::Json* hf_quant_config) {
  if (!is_dictionary(hf_quant_config)) return {};
  NIBBLE_ASSIGN(const std::string method, method_of(*hf_quant_config, "hf_quant_config.json"));
  if (method.empty() || method == chosen.method) return {};
  if (method == "modelopt" && chosen.method == "petit_nvfp4") return {};
  return fail(ErrorCode::kCorrupt,
              fmt::format("{} says \"{}\", but hf_quant_config.json says \"{}\"; keep the one that "
                          "is true",
                          chosen.where, chosen.method, method));
}

// "12 tensors are stored quantized, the first is model.layers.0.mlp.up_proj.weight (e4m3)".
std::string quantized_tensors(const TensorLookup& tensors) {
  int64_t count = 0;
  const tensor::TensorInfo* first = nullptr;
  for (const tensor::TensorInfo& info : tensors.all) {
    if (!is_quantized_tensor(info)) continue;
    if (count++ == 0) first = &info;
  }
  if (count == 0) return "no tensor is stored quantized";
  return fmt::format("{} {} stored quantized, the first is {} ({})", count,
                     count == 1 ? "tensor is" : "tensors are", first->name,
                     tensor::name(first->dtype));
}

bool has_word(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const std::string_view first = words.substr(0, words.find(' '));
    if (first == word) return true;
    words.remove_prefix(std::min(words.size(), first.size() + 1));
  }
  return false;
}

// The schemes that a value of --quantization may mean, the likeliest first.
std::vector<const Scheme*> meant_by(std::string_view requested) {
  std::vector<const Scheme*> out;
  for (std::string_view words = schemes_for(requested); !words.empty();) {
    const std::string_view word = words.substr(0, words.find(' '));
    out.push_back(find_scheme(word));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
  }
  const Scheme* scheme = out.empty() ? find_scheme(requested) : nullptr;
  if (scheme != nullptr) out.push_back(scheme);
  return out;
}

Result<const Scheme*> detect_requested(const CheckpointFacts& facts, std::string_view requested) {
  if (std::optional<std::string> why = why_not_made(requested)) {
    return fail(ErrorCode::kUnsupported, std::move(*why));
  }
  const std::vector<const Scheme*> meant = meant_by(requested);
  if (meant.empty()) {
    const std::optional<std::string> why = why_unread(normalized(requested), {});
    return fail(
        ErrorCode::kUsage,
        why ? fmt::format("the scheme \"{}\" was asked for: {}", requested, *why)
            : fmt::format("the scheme \"{}\" was asked for, but is not known; known are: {}",
                          requested, known_schemes()));
  }
  if (const std::optional<std::string> other = contradicted(facts, requested)) {
    return fail(ErrorCode::kUsage,
                fmt::format("the scheme \"{}\" was asked for, which {}", requested, *other));
  }
  for (const Scheme* scheme : meant) {
    if (scheme->claims(facts)) return scheme;
  }
  if (facts.gguf || !facts.method.empty()) {
    return fail(ErrorCode::kUsage,
                fmt::format("the scheme \"{}\" was asked for, but {} says \"{}\"", requested,
                            facts.gguf ? "the file" : facts.quantization_where,
                            facts.gguf ? "gguf" : facts.method));
  }
  return meant.front();
}

// The checkpoint's quant_method as it is written; "" without one.
std::string_view written_method(const CheckpointFacts& facts) {
  const base::Json* method =
      facts.quantization == nullptr ? nullptr : facts.quantization->find_set("quant_method");
  return method == nullptr || !method->is_string() ? std::string_view() : method->as_string();
}

}  // namespace

std::span<const Scheme* const> schemes() { return kSchemes; }

const Scheme* find_scheme(std::string_view name) {
  // "auto-round:auto_gptq": behind the colon stands the layout, which the tensors show.
  const std::string wanted = normalized(name.substr(0, name.find(':')));
  for (const Scheme* scheme : kSchemes) {
    if (normalized(scheme->name) == wanted) return scheme;
    for (std::string_view alias : scheme->aliases) {
      if (normalized(alias) == wanted) return scheme;
    }
  }
  return nullptr;
}

Result<const Scheme*> detect_scheme(const CheckpointFacts& facts, std::string_view requested) {
  if (!requested.empty()) return detect_requested(facts, requested);
  if (!facts.gguf && find_scheme(facts.method) == nullptr) {
    if (std::optional<std::string> why = why_unread(facts.method, facts.tensors)) {
      return fail(ErrorCode::kUnsupported,
                  facts.method.empty() ? *why
                                       : fmt::format("{}: quant_method is \"{}\": {}",
                                                     facts.quantization_where, facts.method, *why));
    }
  }
  const Scheme* found = nullptr;
  for (const Scheme* scheme : kSchemes) {
    if (!scheme->claims(facts)) continue;
    if (found != nullptr) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: both \"{}\" and \"{}\" claim this checkpoint",
                              facts.quantization_where, found->name, scheme->name));
    }
    found = scheme;
  }
  const std::string_view written = written_method(facts);
  if (found != nullptr && !written.empty() && normalized(written) != normalized(found->name)) {
    if (const std::optional<std::string> other = contradicted(facts, written)) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{}: quant_method is \"{}\", which {}; correct it to what is stored, "
                              "or to \"{}\"",
                              facts.quantization_where, written, *other, found->name));
    }
  }
  if (found != nullptr) return found;
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: quant_method is \"{}\", which is not known ({}); known are: {}",
                          facts.quantization_where, facts.method, quantized_tensors(facts.tensors),
                          known_schemes()));
}

Result<std::unique_ptr<QuantizationConfig>> parse_scheme(const Scheme& scheme,
                                                         const CheckpointFacts& facts) {
  if (facts.quantization != nullptr) NIBBLE_TRY(check_rotations(*facts.quantization));
  return scheme.parse(facts);
}

std::string taken_for(const CheckpointFacts& facts, std::string_view requested,
                      const Scheme& scheme) {
  const std::string_view name = requested.empty() ? written_method(facts) : requested;
  const std::string who =
      requested.empty() ? facts.quantization_where + ": quant_method" : "--quantization";
  if (name.empty() || normalized(name) == normalized(scheme.name)) return {};
  return fmt::format("{} {} was taken for {}", who, name, scheme.name);
}

Result<QuantizationSource> find_quantization(const base::Json* config,
                                             const base::Json* hf_quant_config,
                                             const base::Json* sidecar,
                                             std::string_view sidecar_name) {
  std::vector<Dictionary> inside;
  if (is_dictionary(config)) {
    add_dictionaries(*config, "config.json: ", inside);
    for (std::string_view key : {"text_config", "language_config", "llm_config"}) {
      const base::Json* nested = config->find_set(key);
      if (!is_dictionary(nested)) continue;
      add_dictionaries(*nested, fmt::format("config.json: {}: ", key), inside);
    }
  }
  for (const Dictionary& other : inside) {
    if (says_the_same(*inside[0].json, *other.json)) continue;
    return fail(ErrorCode::kCorrupt, fmt::format("{} and {} differ; keep the one that is true",
                                                 inside[0].where, other.where));
  }
  if (!inside.empty()) {
    NIBBLE_ASSIGN(QuantizationSource out, source(inside[0].json, inside[0].where));
    NIBBLE_TRY(check_sidecar(out, hf_quant_config));
    if (is_dictionary(sidecar)) out.warnings = contradictions(out, *sidecar, sidecar_name);
    return out;
  }
  if (is_dictionary(hf_quant_config)) return source(hf_quant_config, "hf_quant_config.json");
  if (is_dictionary(sidecar)) return source(sidecar, std::string(sidecar_name));
  return QuantizationSource{};
}

Result<Listed> QuantizationConfig::listed(const LinearLayer& layer) const {
  Listed out;
  for (const NameMatcher* list : matchers()) {
    NIBBLE_ASSIGN(Listed one, listed_by(*list, layer));
    if (one.says == Says::kNothing || out.says == Says::kLeftAlone) continue;
    if (out.says == Says::kNothing || one.says == Says::kLeftAlone) out = std::move(one);
  }
  return out;
}

Result<Listed> listed_by(const NameMatcher& list, const LinearLayer& layer) {
  if (list.empty()) return Listed{};
  NIBBLE_ASSIGN(const std::optional<size_t> rule, list.match(layer.module));
  Says says = list.only_these() && !layer.vocabulary ? Says::kLeftAlone : Says::kNothing;
  if (rule) says = list.says(*rule);
  if (says == Says::kNothing) return Listed{};
  return Listed{says == Says::kLeftAlone ? says : Says::kQuantized,
                rule ? fmt::format("{}: \"{}\"", list.where(), list.rules()[*rule])
                     : fmt::format("{} (by not naming it)", list.where())};
}

Result<NameMatcher> names_list(const base::Json& dictionary,
                               std::initializer_list<std::string_view> keys, Says says) {
  std::vector<std::string> names;
  std::string given;  // the keys that name something
  for (std::string_view key : keys) {
    NIBBLE_ASSIGN(const std::vector<std::string> more, names_key(dictionary, key));
    names.insert(names.end(), more.begin(), more.end());
    if (!more.empty()) given += fmt::format("{}{}", given.empty() ? "" : " and ", key);
  }
  return NameMatcher::compile(std::move(names), fmt::format("{}: {}", dictionary.where(), given),
                              says);
}

const tensor::TensorInfo* find_tensor(const TensorLookup& tensors, std::string_view module,
                                      std::string_view suffix) {
  const tensor::TensorInfo* found = tensors.find(fmt::format("{}.{}", module, suffix));
  return found == nullptr || holds_nothing(*found) ? nullptr : found;
}

bool is_left_plain(const LinearLayer& layer, const TensorLookup& tensors, bool listed_so) {
  if (find_tensor(tensors, layer.module, "qweight") != nullptr) return false;
  return listed_so || layer.vocabulary || find_tensor(tensors, layer.module, "weight") != nullptr;
}

bool holds_nothing(const tensor::TensorInfo& info) {
  return std::find(info.shape.begin(), info.shape.end(), 0) != info.shape.end();
}

bool stores_suffix(const TensorLookup& tensors, std::string_view suffix) {
  return std::any_of(tensors.all.begin(), tensors.all.end(), [&](const tensor::TensorInfo& info) {
    return info.name.size() > suffix.size() && info.name.ends_with(suffix);
  });
}

std::string_view method_by_tensors(const TensorLookup& tensors) {
  if (stores_suffix(tensors, ".W_q")) return "hqq";
  for (const char* codes : {"._weight_qdata", ".weight:qdata"}) {
    if (stores_suffix(tensors, codes)) return "torchao";
  }
  return stores_suffix(tensors, ".s1_scales") ? "qoq" : "";
}

std::string_view method_of(const CheckpointFacts& facts) {
  return facts.method.empty() ? method_by_tensors(facts.tensors) : std::string_view(facts.method);
}

bool is_quantized_tensor(const tensor::TensorInfo& info) {
  if (holds_nothing(info)) return false;
  const DType type = info.dtype;
  if (tensor::is_gguf_block(type) || (type >= DType::kE4M3 && type <= DType::kE3M2)) return true;
  const size_t dot = info.name.rfind('.');
  const std::string_view last = std::string_view(info.name).substr(dot + 1);
  if (last == "weight") return !tensor::is_plain_float(type);
  static constexpr std::array<std::string_view, 9> kNames = {
      "qweight",          "qzeros", "weight_packed", "weight_scale", "W_q",
      "weight_scale_inv", "SCB",    "absmax",        "g_idx"};
  return std::find(kNames.begin(), kNames.end(), last) != kNames.end();
}

void check_keys(const base::Json& dictionary, std::string_view known, std::string_view harmless,
                std::vector<std::string>& warnings) {
  if (!dictionary.is_object()) return;
  for (const auto& [key, value] : dictionary.as_object()) {
    if (value.is_null() || key.empty() || key[0] == '_') continue;
    if (has_word(known, key) || has_word(harmless, key)) continue;
    warnings.push_back(fmt::format("{}: the key \"{}\" ({}) is not known and has no effect",
                                   dictionary.where(), key, value.describe()));
  }
}

WeightSpec bias_spec(const LinearLayer& layer) {
  WeightSpec spec;
  spec.slot = Slot::kBias;
  spec.suffix = "bias";
  spec.dtypes = {DType::kF16, DType::kBF16, DType::kF32};
  spec.shape = {layer.n};
  spec.along_n = {0, 1};
  return spec;
}

void add_bias(const LinearLayer& layer, const TensorLookup& tensors,
              std::vector<WeightSpec>& specs) {
  if (!layer.bias && find_tensor(tensors, layer.module, "bias") == nullptr) return;
  specs.push_back(bias_spec(layer));
  specs.back().required = layer.bias;
  specs.back().absent = "no bias";
}

}  // namespace nibble::quant
