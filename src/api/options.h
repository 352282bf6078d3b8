// The words of nibble::Options as values, with their checks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention/attention.h"
#include "load/plan.h"
#include "nibble/nibble.h"

namespace nibble::api {

struct ParsedOptions {
  load::PlanOptions plan;
  int threads = 1;
  bool dummy = false;
  bool prefetch = false;
  bool eager = false;
  bool enforce_eager = false;
  int card = 0;  // of plan.hardware.gpu, the one to run on
  // What a user would not expect of these options here: one without effect, cards not looked at.
  std::vector<std::string> warnings;
};

// `for_run`: the machine must be this one. Otherwise (inspect, fit) an explicit --isa is answered
// for a machine that has it, and --device cuda, where there is no card, for an H200.
Result<ParsedOptions> parse_options(const Options& options, bool for_run);

}  // namespace nibble::api
