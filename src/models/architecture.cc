#include "models/architecture.h"

#include <fmt/format.h>

namespace nibble::models {

#define NIBBLE_ARCHITECTURE(name, function) \
  Result<layers::DecoderSpec> function(const base::Json& config);
#include "models/architectures.inc"
#undef NIBBLE_ARCHITECTURE

namespace {

constexpr Architecture kArchitectures[] = {
#define NIBBLE_ARCHITECTURE(name, function) {name, &function},
#include "models/architectures.inc"
#undef NIBBLE_ARCHITECTURE
};

}  // namespace

std::vector<std::string_view> architecture_names() {
  std::vector<std::string_view> names;
  for (const Architecture& a : kArchitectures) names.push_back(a.name);
  return names;
}

Result<layers::DecoderSpec> declare_model(const base::Json& config) {
  NIBBLE_ASSIGN(std::vector<std::string> claimed, config.get_strings_or_empty("architectures"));
  for (const std::string& name : claimed) {
    for (const Architecture& a : kArchitectures) {
      if (a.name != name) continue;
      NIBBLE_ASSIGN(layers::DecoderSpec spec, a.declare(config));
      spec.architecture = name;
      return spec;
    }
  }
  if (claimed.empty()) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: key \"architectures\" is missing or empty, so the model's kind is "
                            "not known; expected one of {}",
                            config.where(), fmt::join(architecture_names(), ", ")));
  }
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: architectures: \"{}\" is not a model nibble can run yet; it knows {}",
                          config.where(), claimed.front(), fmt::join(architecture_names(), ", ")));
}

}  // namespace nibble::models
