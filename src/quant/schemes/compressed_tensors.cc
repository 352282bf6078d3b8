// compressed-tensors (`quant_method: "compressed-tensors"`), what llm-compressor writes: one
// dictionary for many kinds of weights. The tensors of a layer show its kind:
//
//   <module>.weight_packed  (N, words)  s32  integers of 2 to 8 bits, q + 2^(b-1), along K
//                           (N, K/2)    u8   e2m1, even inputs in the low four bits
//                           (N, 3 K/4)  u8   e2m3
//   <module>.weight         (N, K)      s8 | e4m3 (integers of fewer than 8 bits lie in s8 too)
//   <module>.weight_scale   () | (N, 1) | (N, g) | (ceil(N/bn), ceil(K/bk))
//                           f16 | bf16 | f32, for floats also e4m3, and u8 or e8m0: exponents
//   <module>.weight_global_scale  (1)   f32; it divides
//   <module>.weight_zero_point    s32, packed along N and offset like the codes; else s8
//   <module>.weight_g_idx   (K)         the group of each input, with actorder "group"
//   <module>.weight_shape   (2)         N, K
//   <module>.input_scale, input_zero_point, input_global_scale (it divides)   (1)
//
//   w[n, k] = (q[n, k] - z[n, g]) * s[n, g]       q and z signed
//   w[n, k] = value(code[n, k]) * (s[n, g] / global)
//
// Packed codes are one stream of bits since version 0.18, which for 3, 5, 6 and 7 bits differs from
// what was before: 32 / b codes in each word. The number of words tells. Layouts with 2:4 zeros are
// in compressed_tensors_24.h.
#include <fmt/format.h>

#include <algorithm>

#include "quant/scaled_codes.h"
#include "quant/scheme.h"
#include "quant/schemes/compressed_tensors_config.h"
#include "quant/schemes/compressed_tensors_weight.h"
#include "quant/stored.h"

namespace nibble::quant {
namespace {

using compressed::Group;
using compressed::Storage;
using tensor::TensorInfo;

std::string_view last_part(std::string_view module) {
  const size_t dot = module.rfind('.');
  return dot == module.npos ? module : module.substr(dot + 1);
}

// Targets may name a class of PyTorch or of an engine: what is neither the embedding nor the head
// is a Linear of some kind; the head is one too.
bool is_of_class(std::string_view module, std::string_view name) {
  const std::string_view last = last_part(module);
  const bool embedding = last.find("embed") != last.npos || last == "wte";
  if (name.find("Embedding") != name.npos) return embedding;
  if (name.find("LMHead") != name.npos) return last.find("head") != last.npos;
  return name.find("Linear") != name.npos && !embedding;
}

class CompressedConfig : public QuantizationConfig {
 public:
  Result<void> read(const base::Json& dictionary) {
    NIBBLE_ASSIGN(config_, compressed::read_config(dictionary));
    notes = config_.notes;
    warnings = config_.warnings;
    return {};
  }

  std::string_view scheme() const override { return "compressed-tensors"; }
  std::vector<const NameMatcher*> matchers() const override {
    return {&config_.targets, &config_.ignored};
  }

  Result<Listed> listed(const LinearLayer& layer) const override {
    NIBBLE_ASSIGN(Listed out, QuantizationConfig::listed(layer));
    for (const auto& [name, group] : config_.classes) {
      if (out.says != Says::kNothing || !is_of_class(layer.module, name)) continue;
      out = {Says::kQuantized, fmt::format("{}: \"{}\"", config_.targets.where(), name)};
    }
    if (out.says != Says::kNothing || !quantizes_weights()) return out;
    NIBBLE_ASSIGN(const Group* named, named_group(layer.module));
    if (named != nullptr) return Listed{Says::kQuantized, config_.targets.where()};
    return Listed{Says::kLeftAlone, fmt::format("{} (by not naming it)", config_.targets.where())};
  }

  std::string unused_reason(const TensorInfo& info) const override {
    const std::string_view name = info.name;
    for (const compressed::InputTransform& transform : config_.transforms) {
      const std::string suffix = fmt::format(".{}_input.weight", transform.name);
      if (name.size() > suffix.size() && name.substr(name.size() - suffix.size()) == suffix) {
        return fmt::format("the Hadamard matrix of the transform {}, which is known without it",
                           transform.name);
      }
    }
    return {};
  }

  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override {
    NIBBLE_ASSIGN(const auto ignored, config_.ignored.match(layer.module));
    NIBBLE_ASSIGN(const Group* group, group_of(layer.module));
    NIBBLE_ASSIGN(const Storage storage, compressed::storage_of(layer, tensors));
    // What is stored outranks the lists.
    NIBBLE_ASSIGN(const int64_t rotation, rotation_of(layer));
    if (storage == Storage::kPlain && rotation != 0) {
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("{}: a transform applies to its inputs, but it is not quantized; only "
                      "the inputs of quantized layers are rotated here",
                      layer.module));
    }
    if (storage == Storage::kPlain) return unquantized_method(layer, tensors);
    const bool sparse = storage == Storage::kMask24 || storage == Storage::kMask;
    if (sparse && is_only_sparse(layer, tensors)) {
      group = nullptr;
    } else if (group == nullptr) {
      return no_group(layer, ignored.has_value());
    } else if (group->quantizes_outputs) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: output_activations is given; what a layer gives out is not "
                              "quantized here",
                              group->where));
    }
    NIBBLE_ASSIGN(compressed::Form form,
                  compressed::form_of(layer, tensors, storage, group, config_.dense_words));
    form.input_hadamard = rotation;
    return compressed::compressed_method(layer, tensors, std::move(form));
  }

 private:
  bool quantizes_weights() const {
    return std::any_of(config_.groups.begin(), config_.groups.end(),
                       [](const Group& g) { return g.weights.has_value(); });
  }

  static bool is_only_sparse(const LinearLayer& layer, const TensorLookup& tensors) {
    const TensorInfo* kept = compressed::codes_of(layer, tensors);
    return kept == nullptr || tensor::is_plain_float(kept->dtype);
  }

  // The group whose targets have a layer's name, its class, or the name of the layer it is fused
  // into; null: none has.
  Result<const Group*> named_group(const std::string& module) const {
    NIBBLE_ASSIGN(auto rule, config_.targets.match(module));
    if (rule) return &config_.groups[config_.group_of_target[*rule]];
    for (const auto& [name, group] : config_.classes) {
      if (is_of_class(module, name)) return &config_.groups[group];
    }
    // The tool knows no fused layers, so a class outranks a pattern that fits only a fused name.
    if (const std::string fused = fused_name(module); !fused.empty()) {
      NIBBLE_ASSIGN(rule, config_.targets.match(fused));
      if (rule) return &config_.groups[config_.group_of_target[*rule]];
    }
    return static_cast<const Group*>(nullptr);
  }

  // The group that quantizes a layer's weights; the only one when no target speaks of the layer.
  // Null: several, and none speaks.
  Result<const Group*> group_of(const std::string& module) const {
    NIBBLE_ASSIGN(const Group* only, named_group(module));
    if (only != nullptr) return only;
    for (const Group& group : config_.groups) {
      if (!group.weights) continue;
      if (only != nullptr) return static_cast<const Group*>(nullptr);
      only = &group;
    }
    return only;
  }

  // The size of the Hadamard matrix that a transform applies to the inputs of a layer; 0: none.
  Result<int64_t> rotation_of(const LinearLayer& layer) const {
    int64_t size = 0;
    for (const compressed::InputTransform& transform : config_.transforms) {
      NIBBLE_ASSIGN(const auto named, transform.targets.match(layer.module));
      NIBBLE_ASSIGN(const auto ignored, transform.ignored.match(layer.module));
      const bool targeted =
          named || (transform.every_linear && is_of_class(layer.module, "Linear"));
      if (!targeted || ignored) continue;
      if (size != 0) {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("{}: two transforms apply to its inputs", layer.module));
      }
      size = transform.size == 0 ? layer.k : transform.size;
      if ((size & (size - 1)) != 0 || layer.k % size != 0) {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("{}: the transform {} has size {}, but it has {} inputs and "
                                "Hadamard matrices are made for powers of two",
                                layer.module, transform.name, size, layer.k));
      }
    }
    return size;
  }

  Failure no_group(const LinearLayer& layer, bool ignored) const {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{} is stored quantized, but {}{}", layer.module,
                            quantizes_weights() ? "no target of config_groups is its name or class"
                                                : "config_groups quantizes no weights",
                            ignored ? ", and it is in the ignore list" : ""));
  }

  compressed::Config config_;
};

bool claims(const CheckpointFacts& facts) {
  return !facts.gguf && facts.method == "compressed-tensors";
}

Result<std::unique_ptr<QuantizationConfig>> parse(const CheckpointFacts& facts) {
  return parse_dictionary<CompressedConfig>(
      facts, "compressed-tensors needs a quantization_config that has config_groups");
}

constexpr std::string_view kAliases[] = {"sparseml", "llm-compressor", "llmcompressor"};

}  // namespace

extern const Scheme compressed_tensors_scheme;
const Scheme compressed_tensors_scheme = {"compressed-tensors", kAliases, claims, parse};

}  // namespace nibble::quant
