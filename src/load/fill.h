// Carries a plan out: reads each module's tensors, makes them canonical, packs them, gives the
// source pages back.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "checkpoint/checkpoint.h"
#include "device/stream.h"
#include "layers/decoder.h"
#include "load/plan.h"
#include "nibble/result.h"

namespace nibble::load {

// Called with the module that was just finished and the file bytes done of all; false cancels.
using FillProgress = std::function<bool(std::string_view module, uint64_t done, uint64_t total)>;

struct FillOptions {
  bool dummy = false;     // random weights of the planned shapes; no byte of the files is read
  bool prefetch = false;  // ask the system to read ahead
};

// Precondition: plan.problems is empty. Errors name the layer.
Result<layers::Decoder> fill(checkpoint::Checkpoint& checkpoint, LoadPlan& plan,
                             const FillOptions& options, device::Stream& stream,
                             const FillProgress& progress = {});

// The canonical weight of one planned module; views into the checkpoint stay valid until it drops
// them.
Result<tensor::QuantizedWeight> canonical_weight(checkpoint::Checkpoint& checkpoint,
                                                 const PlannedModule& module);

// A vector of plain floats as f32.
Result<std::vector<float>> read_floats(checkpoint::Checkpoint& checkpoint,
                                       const tensor::TensorInfo& info);

// Gives the pages of a module's tensors back to the system.
void drop(checkpoint::Checkpoint& checkpoint, const PlannedModule& module);

}  // namespace nibble::load
