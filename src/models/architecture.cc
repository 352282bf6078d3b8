#include "models/architecture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace nibble::models {

#define NIBBLE_ARCHITECTURE(name, model_type, function) \
  Result<layers::DecoderSpec> function(const base::Json& config);
#include "models/architectures.inc"
#undef NIBBLE_ARCHITECTURE

namespace {

constexpr Architecture kArchitectures[] = {
#define NIBBLE_ARCHITECTURE(name, model_type, function) {name, model_type, &function},
#include "models/architectures.inc"
#undef NIBBLE_ARCHITECTURE
};

// The first conversions of Llama say "LLaMAForCausalLM": letters count, their case does not.
bool same_name(std::string_view a, std::string_view b) {
  const auto lower = [](unsigned char c) { return std::tolower(c); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

// Parts of pipelines of the diffusers library are Hugging Face folders too.
Result<void> refuse_diffusers(const base::Json& config, bool nothing_claimed) {
  const bool version = config.find_set("_diffusers_version") != nullptr;
  NIBBLE_ASSIGN(const std::string name, config.get_string_or("_class_name", ""));
  if (!nothing_claimed || (!version && name.empty())) return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: {} is a part of a pipeline of the diffusers library, which makes "
                          "pictures, video or sound; nibble runs language models that write text: "
                          "give the folder of one",
                          config.where(),
                          name.empty() ? "what has a _diffusers_version"
                                       : fmt::format("_class_name \"{}\"", name)));
}

}  // namespace

std::vector<std::string_view> architecture_names() {
  std::vector<std::string_view> names;
  for (const Architecture& a : kArchitectures) names.push_back(a.name);
  return names;
}

Result<layers::DecoderSpec> declare_model(const base::Json& config) {
  NIBBLE_ASSIGN(const std::vector<std::string> claimed,
                config.get_strings_or_empty("architectures"));
  NIBBLE_ASSIGN(const std::string model_type, config.get_string_or("model_type", ""));
  for (const Architecture& a : kArchitectures) {
    const bool named = std::any_of(claimed.begin(), claimed.end(), [&](const std::string& name) {
      return same_name(name, a.name);
    });
    if (!named && !(claimed.empty() && a.model_type == model_type)) continue;
    NIBBLE_ASSIGN(layers::DecoderSpec spec, a.declare(config));
    spec.architecture = a.name;
    return spec;
  }
  NIBBLE_TRY(refuse_diffusers(config, claimed.empty()));
  if (claimed.empty() && model_type.empty()) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("{}: neither \"architectures\" nor \"model_type\" says what kind of model "
                    "this is; expected one of {}",
                    config.where(), fmt::join(architecture_names(), ", ")));
  }
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: {}: \"{}\" is not a model nibble can run yet; it knows {}",
                          config.where(), claimed.empty() ? "model_type" : "architectures",
                          claimed.empty() ? model_type : claimed.front(),
                          fmt::join(architecture_names(), ", ")));
}

}  // namespace nibble::models
