#include "load/list_notes.h"

#include <fmt/format.h>

#include <algorithm>

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

}  // namespace nibble::load
