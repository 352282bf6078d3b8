// The words of nibble::Options as values, with their checks.
#pragma once

#include <string>
#include <string_view>

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
};

// `for_run`: the machine must be this one. Otherwise (inspect, fit) an explicit --isa is answered
// for a machine that has it.
Result<ParsedOptions> parse_options(const Options& options, bool for_run);

}  // namespace nibble::api
