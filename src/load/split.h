// Which numbers of ranks a plan can be cut for. Nothing runs on several ranks yet; the axes that
// every method declares already answer.
#pragma once

#include "load/plan.h"
#include "nibble/result.h"

namespace nibble::load {

// q, k, v, gate, up (fused ones part by part), embedding and head are cut along N, o and down along
// K; heads stay whole. The error names the first layer that cannot be cut so, and why.
Result<void> check_split(const LoadPlan& plan, int ranks);

// Every number of ranks for which check_split finds nothing, 1 included.
std::vector<int> legal_splits(const LoadPlan& plan);

}  // namespace nibble::load
