// A plan as a person reads it.
#pragma once

#include <string>
#include <vector>

#include "nibble/nibble.h"

namespace nibble::cli {

// Layers that differ in nothing but the numbers of their names, as one row.
struct LayerGroup {
  std::string name;        // "model.layers.{0-29}.self_attn.q_proj"
  const LayerPlan* layer;  // the first of them
  int64_t count = 0;
  uint64_t bytes_disk = 0;  // of all
  uint64_t bytes_memory = 0;
};
std::vector<LayerGroup> group_layers(const std::vector<LayerPlan>& layers);

// "0-3,5": the numbers, sorted and without doubles, as ranges.
std::string number_ranges(std::vector<int64_t> numbers);

// `verbose` lists each layer and each refusal on its own.
std::string plan_text(const Plan& plan, bool verbose);

}  // namespace nibble::cli
