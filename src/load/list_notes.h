// Where the name lists of a config say otherwise than what is stored: one sentence for each rule.
#pragma once

#include <string>
#include <vector>

#include "quant/scheme.h"

namespace nibble::load {

class ListNotes {
 public:
  // `quantized`: as the module is stored.
  void compare(const quant::Listed& listed, const std::string& module, bool quantized);

  std::vector<std::string> sentences() const;

 private:
  struct Against {
    std::string by;  // the rule
    bool quantized;
    std::string first;  // module
    int more;
  };
  std::vector<Against> against_;
};

}  // namespace nibble::load
