// From a load plan to the public one.
#pragma once

#include <string>

#include "api/options.h"
#include "checkpoint/checkpoint.h"
#include "load/plan.h"
#include "nibble/nibble.h"

namespace nibble::api {

// `ctx` is the context asked for, 0 for the longest that fits.
Plan to_plan(const std::string& path, checkpoint::Checkpoint& checkpoint,
             const load::LoadPlan& plan, const ParsedOptions& options, int64_t ctx);

Result<Plan> inspect(const std::string& path, const Options& options);

}  // namespace nibble::api
