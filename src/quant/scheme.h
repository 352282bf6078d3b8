// A scheme: a family of checkpoints. Two files, schemes/<name>.cc and its test, and one line in
// schemes.inc.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "nibble/result.h"
#include "quant/kv_cache.h"
#include "quant/matcher.h"
#include "quant/method.h"

namespace nibble::quant {

// Everything a scheme may look at to decide whether a checkpoint is its own. Nothing here is bytes
// of weights.
struct CheckpointFacts {
  bool gguf = false;
  const base::Json* config = nullptr;  // config.json (or what stands for it in a GGUF file)
  // The quantization dictionary and where it was found ("config.json: quantization_config"). Null
  // for a checkpoint that does not claim to be quantized.
  const base::Json* quantization = nullptr;
  std::string quantization_where;
  std::string method;  // its quant_method, lower case, '_' and aliases resolved; "" without one
  const base::Json* hf_quant_config = nullptr;  // the file of this name, also beside a dictionary
  std::vector<std::string> files;               // the names of those that hold the weights
  TensorLookup tensors;
  // __metadata__ of the files' headers; null when there is none.
  const std::map<std::string, std::string, std::less<>>* metadata = nullptr;
};

// What the dialect needs from a machine: asked on one that lacks it, the sentence says what helps.
struct Requirements {
  int min_cuda_capability = 75;  // sm_75: the reference path runs every format from there on
  std::vector<std::string> activation_dtypes = {"f32", "bf16", "f16"};  // accepted, --dtype
};

// What the lists of a config say of a layer, which may be wrong: the plan tells where what is
// stored says otherwise.
struct Listed {
  Says says = Says::kNothing;  // or kLeftAlone, kQuantized
  std::string by;              // "config.json: quantization_config: ignore: \"lm_head\""
};

class QuantizationConfig {
 public:
  virtual ~QuantizationConfig() = default;
  virtual std::string_view scheme() const = 0;
  virtual Requirements requirements() const { return {}; }

  // The method for one layer. A layer the config leaves alone gets the unquantized method. Errors:
  // the config and the stored tensors contradict each other.
  virtual Result<std::unique_ptr<LinearMethod>> linear_method(
      const LinearLayer& layer, const TensorLookup& tensors) const = 0;

  // Why a tensor that no layer asked for is expected here ("" when it is not): known leftovers.
  virtual std::string unused_reason(const tensor::TensorInfo&) const { return {}; }

  // The name lists of the config, to report rules that matched nothing.
  virtual std::vector<const NameMatcher*> matchers() const { return {}; }

  // Asked for every layer before linear_method, so that every list is held against every name. One
  // that leaves a layer alone outranks those that name it. Error: a rule that takes too many steps.
  virtual Result<Listed> listed(const LinearLayer& layer) const;

  // What the reader should know: unknown keys, defaults taken. Filled by parse.
  std::vector<std::string> notes;
  std::vector<std::string> warnings;
};

struct Scheme {
  std::string_view name;                      // "gptq"
  std::span<const std::string_view> aliases;  // other names of quant_method and --quantization
  bool (*claims)(const CheckpointFacts&);
  Result<std::unique_ptr<QuantizationConfig>> (*parse)(const CheckpointFacts&);
};

// Every scheme, in the order of schemes.inc.
std::span<const Scheme* const> schemes();

// The scheme whose name or alias is `name`; nullptr when there is none.
const Scheme* find_scheme(std::string_view name);

// Exactly one scheme claims a checkpoint. Two claims: an error naming both. None: an error naming
// the value of quant_method and what is known. `requested` is --quantization ("" when not given);
// one that means other types of weights than are stored is an error that names both.
Result<const Scheme*> detect_scheme(const CheckpointFacts& facts, std::string_view requested);

// What a name that is not the scheme's own was taken for, as a sentence: `requested` or, without
// it, the checkpoint's quant_method. "" where there is nothing to say.
std::string taken_for(const CheckpointFacts& facts, std::string_view requested,
                      const Scheme& scheme);

// Where the quantization dictionary of a Hugging Face folder stands, first hit wins:
//   1 config.json: quantization_config      2 config.json: compression_config
//   3 the same two inside text_config (or language_config, llm_config)
//   4 hf_quant_config.json
//   5 quantize_config.json / quant_config.json (AutoGPTQ's and AutoAWQ's sidecars)
// Errors: two of 1 to 3 exist and differ; 4 stands beside another and is of another method.
// `method` is empty when the dictionary names none; the sidecars, which never do, are told apart by
// their keys. `warnings`: what a sidecar says otherwise than the dictionary that outranks it.
struct QuantizationSource {
  const base::Json* dictionary = nullptr;
  std::string where;
  std::string method;
  std::vector<std::string> warnings;
};
Result<QuantizationSource> find_quantization(const base::Json* config,
                                             const base::Json* hf_quant_config,
                                             const base::Json* sidecar,
                                             std::string_view sidecar_name);

// The scheme's config of the checkpoint. Errors: those of its parse; rotations that no scheme does
// (quant/rotations.h).
Result<std::unique_ptr<QuantizationConfig>> parse_scheme(const Scheme& scheme,
                                                         const CheckpointFacts& facts);

// The method for a layer that is stored as plain floats; shared by all schemes.
Result<std::unique_ptr<LinearMethod>> unquantized_method(const LinearLayer& layer,
                                                         const TensorLookup& tensors);

// A scheme's parse, where its config of type Config has read(dictionary). `needs`: the error where
// there is no dictionary; "" for a scheme that can do without.
template <class Config>
Result<std::unique_ptr<QuantizationConfig>> parse_dictionary(const CheckpointFacts& facts,
                                                             std::string_view needs = "") {
  auto config = std::make_unique<Config>();
  if (facts.quantization != nullptr) {
    NIBBLE_TRY(config->read(*facts.quantization));
  } else if (!needs.empty()) {
    return fail(ErrorCode::kNotFound, std::string(needs));
  }
  return std::unique_ptr<QuantizationConfig>(std::move(config));
}

// What one list says of a layer.
Result<Listed> listed_by(const NameMatcher& list, const LinearLayer& layer);

// The names under any of these keys, as one list that is named after the first.
Result<NameMatcher> names_list(const base::Json& dictionary,
                               std::initializer_list<std::string_view> keys, Says says);

// Warnings for keys of a quantization dictionary that are neither in `known` nor in `harmless`, two
// lists of words with spaces between. Null values and keys that begin with '_' are passed over.
void check_keys(const base::Json& dictionary, std::string_view known, std::string_view harmless,
                std::vector<std::string>& warnings);

// The bias spec every method adds when the layer has one.
WeightSpec bias_spec(const LinearLayer& layer);

// Adds the bias to `specs`: required when the model declares one, optional when only the checkpoint
// has one (GPTQ exporters write zero biases for models without), absent otherwise.
void add_bias(const LinearLayer& layer, const TensorLookup& tensors,
              std::vector<WeightSpec>& specs);

// What only a quantized checkpoint stores: fp8 or packed codes, scales beside weights.
bool is_quantized_tensor(const tensor::TensorInfo& info);

// Whether the name of any tensor ends so (".W_q").
bool stores_suffix(const TensorLookup& tensors, std::string_view suffix);

// Some writers store tensors of 0 elements for what a layer does not have: zero points, g_idx, a
// bias. They count as absent.
bool holds_nothing(const tensor::TensorInfo& info);

// The method of a checkpoint that names none, by what only one tool stores ("hqq", "qoq",
// "torchao": their tensors say the rest themselves); "" when it is of no such tool.
std::string_view method_by_tensors(const TensorLookup& tensors);

// facts.method, or without one what the tensors say.
std::string_view method_of(const CheckpointFacts& facts);

// `<module>.<suffix>` in the checkpoint, or nullptr when it is absent.
const tensor::TensorInfo* find_tensor(const TensorLookup& tensors, std::string_view module,
                                      std::string_view suffix);

// Whether a layer is one of plain floats where others are stored as `<module>.qweight`: what is
// stored outranks the lists. Of one that is not stored at all the lists say it; an embedding or
// head is plain then, so that its .weight is what is missed.
bool is_left_plain(const LinearLayer& layer, const TensorLookup& tensors, bool listed_so);

}  // namespace nibble::quant
