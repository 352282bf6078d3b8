#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "api/version_info.h"
#include "base/log.h"
#include "device/cuda.h"
#include "device/hardware.h"
#include "nibble/nibble.h"

namespace nibble {

VersionInfo version() {
  VersionInfo out;
  out.version = NIBBLE_VERSION;
  out.commit = NIBBLE_COMMIT;
#if defined(__clang__)
  out.compiler = fmt::format("clang {}.{}", __clang_major__, __clang_minor__);
#else
  out.compiler = fmt::format("g++ {}.{}", __GNUC__, __GNUC_MINOR__);
#endif
  const device::Hardware hardware = device::detect_hardware();
  using device::Isa;
  for (Isa isa : {Isa::kReference, Isa::kAvx2, Isa::kAvx512}) {
    out.isas_compiled.push_back(device::name(isa));
    if (hardware.has(isa)) out.isas_found.push_back(device::name(isa));
  }
  out.devices_compiled = {"cpu"};
  out.devices_found = {"cpu"};
  if (const auto cards = device::cuda_cards(); cards) {
    out.devices_compiled.emplace_back("cuda");
    for (size_t i = 0; i < cards->size(); ++i) {
      if (!device::check_supported((*cards)[i])) continue;
      out.devices_found.push_back(fmt::format("cuda:{} ({})", i, (*cards)[i].name));
    }
  }
  return out;
}

std::optional<std::string> find_packaged_model(std::string_view name) {
  if (name.empty() || name.find('/') != name.npos || name.front() == '.') return std::nullopt;
  std::filesystem::path folder;
  if (const char* models = std::getenv("NIBBLE_MODELS"); models != nullptr && *models != '\0') {
    folder = models;
  } else if (const char* home = std::getenv("HOME"); home != nullptr) {
    folder = std::filesystem::path(home) / ".cache/nibble/models";
  } else {
    return std::nullopt;
  }
  std::error_code error;
  for (const std::filesystem::path& path :
       {folder / fmt::format("{}.gguf", name), folder / std::string(name)}) {
    if (std::filesystem::exists(path, error)) return path.string();
  }
  return std::nullopt;
}

void set_log(std::function<void(LogLevel, std::string_view)> sink) {
  if (!sink) {
    base::set_log_sink({});
    return;
  }
  base::set_log_sink([sink = std::move(sink)](base::LogLevel level, std::string_view message) {
    sink(static_cast<LogLevel>(level), message);
  });
}

}  // namespace nibble
