#include "device/other_cards.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

namespace nibble::device {
namespace {

namespace fs = std::filesystem;

std::string word_of(const fs::path& file) {
  std::ifstream in(file);
  std::string word;
  in >> word;
  return word;
}

const char* maker(const std::string& vendor) {
  return vendor == "0x1002" ? "AMD" : vendor == "0x8086" ? "Intel" : nullptr;
}

}  // namespace

std::string other_cards_clause(const std::string& root) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator at(fs::path(root) / "sys/bus/pci/devices", error), end;
       !error && at != end; at.increment(error)) {
    // Displays are of class 03, accelerators of class 12.
    const std::string kind = word_of(at->path() / "class");
    const char* name = maker(word_of(at->path() / "vendor"));
    if (name == nullptr || !(kind.starts_with("0x03") || kind.starts_with("0x12"))) continue;
    std::string device = word_of(at->path() / "device");
    if (device.starts_with("0x")) device.erase(0, 2);
    found.push_back(fmt::format("the card of {} in it (device {})", name, device.substr(0, 8)));
  }
  if (found.empty()) return {};
  std::sort(found.begin(), found.end());
  return fmt::format("; {} {} none that nibble runs on", fmt::join(found, " and "),
                     found.size() == 1 ? "is" : "are");
}

}  // namespace nibble::device
