#include "load/plan_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "kernels/cuda/products.h"
#include "kernels/quantize/round.h"

namespace nibble::load {

void ListNotes::compare(const quant::Listed& listed, const std::string& module, bool quantized) {
  if (listed.says == quant::Says::kNothing) return;
  if (quantized == (listed.says == quant::Says::kQuantized)) return;
  const auto it = std::find_if(against_.begin(), against_.end(), [&](const Against& a) {
    return a.by == listed.by && a.quantized == quantized;
  });
  if (it != against_.end()) {
    ++it->more;
  } else {
    against_.push_back({listed.by, quantized, module, 0});
  }
}

std::vector<std::string> ListNotes::sentences() const {
  std::vector<std::string> out;
  for (const Against& a : against_) {
    out.push_back(
        fmt::format("{} {} {}{}, but what is stored counts: {}", a.by,
                    a.quantized ? "leaves alone" : "quantizes", a.first,
                    a.more == 0 ? "" : fmt::format(" and {} more", a.more),
                    a.quantized ? "codes, which run quantized" : "plain floats, which stay so"));
  }
  return out;
}

std::vector<std::string> notes_on_calls(const std::vector<PlannedModule>& modules) {
  const auto spans = [](const PlannedModule& m) {
    return kernels::spans_call(m.choice.activation);
  };
  const auto first = std::find_if(modules.begin(), modules.end(), spans);
  if (first == modules.end()) return {};
  return {fmt::format(
      "the inputs of {} layers are {}, which is found over all tokens that are run together: the "
      "same text may give other numbers in other pieces",
      std::count_if(first, modules.end(), spans), tensor::to_string(first->choice.activation))};
}

std::vector<std::string> notes_on_products(const std::vector<PlannedModule>& modules,
                                           const device::Hardware& hardware) {
  if (!hardware.gpu) return {};
  const device::Gpu& gpu = *hardware.gpu;
  std::map<std::string_view, std::pair<kernels::NativeProduct, int>> lacking;
  for (const PlannedModule& module : modules) {
    const kernels::NativeProduct own = kernels::native_product(module.choice.activation);
    if (gpu.at_least(own.major, own.minor)) continue;
    ++lacking.try_emplace(own.name, own, 0).first->second.second;
  }
  std::vector<std::string> out;
  for (const auto& [name, found] : lacking) {
    const auto& [own, layers] = found;
    out.push_back(fmt::format(
        "{} products need compute capability {}.{}, and {} has {}.{}: {} layers are multiplied as "
        "{}{}",
        name, own.major, own.minor, gpu.name, gpu.major, gpu.minor, layers,
        kernels::widened_to(gpu),
        name == "bf16" ? "" : fmt::format(", their inputs rounded to {} before", name)));
  }
  return out;
}

}  // namespace nibble::load
