// Notes of a plan that are about many layers: one sentence for those that have the same to say.
#pragma once

#include <string>
#include <vector>

#include "load/plan.h"
#include "quant/scheme.h"

namespace nibble::load {

// Where the name lists of a config say otherwise than what is stored.
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

// What is found over all tokens of a call depends on how a prompt is cut.
std::vector<std::string> notes_on_calls(const std::vector<PlannedModule>& modules);

// Which products a card has not, so that the layers that want them run another way.
std::vector<std::string> notes_on_products(const std::vector<PlannedModule>& modules,
                                           const device::Hardware& hardware);

}  // namespace nibble::load
