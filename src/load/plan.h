// The plan of a checkpoint on a machine: for every layer its scheme, format, packing and kernels,
// and for every stored tensor what becomes of it. Made from headers only; `inspect` shows it and
// `fill` carries it out, so what is printed is what runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "kernels/matmul/matmul.h"
#include "layers/decoder.h"
#include "load/cache_plan.h"
#include "nibble/result.h"
#include "quant/method.h"
#include "quant/scheme.h"

namespace nibble::load {

struct PlanOptions {
  device::Hardware hardware;
  kernels::MatmulPolicy policy;
  std::optional<kernels::KvType> kv_type;                 // --kv-cache-dtype; nothing: auto
  kernels::KvType kv_left_alone = kernels::KvType::kF16;  // where the checkpoint asks for none
  std::string quantization;                               // --quantization, "" when not given
  // --quantization-config: the dictionary of a checkpoint that has none.
  std::optional<base::Json> quantization_config;
  std::vector<std::pair<std::string, std::string>> overrides;
};

// One stored tensor that a module reads.
struct PlannedTensor {
  quant::WeightSpec spec;
  const tensor::TensorInfo* info;
};

// A module with a weight matrix: a linear layer, the embedding, the head.
struct PlannedModule {
  layers::Part part;
  int64_t layer = 0;
  quant::LinearLayer declared;
  std::unique_ptr<quant::LinearMethod> method;
  std::vector<PlannedTensor> tensors;
  kernels::MatmulProblem problem;
  kernels::Choice choice;  // no ranges: no kernel takes it, and LoadPlan::failed says why
  uint64_t bytes_disk = 0;
  uint64_t bytes_memory = 0;
};

// A vector of floats: a norm's weight or bias.
struct PlannedVector {
  layers::Part part;
  int64_t layer = 0;
  bool bias = false;
  const tensor::TensorInfo* info = nullptr;
};

struct UnusedTensor {
  std::string name;
  std::string reason;
};

struct LoadPlan {
  base::Json config;  // with overrides; of a GGUF file, made from its metadata
  layers::DecoderSpec spec;
  std::string scheme;                  // the checkpoint's
  std::string claims;                  // what it says of itself, in a line
  std::vector<PlannedModule> modules;  // in the order a token meets them
  // Modules left out of them or that no kernel takes, and why.
  std::vector<std::pair<std::string, std::string>> failed;
  std::vector<PlannedVector> vectors;
  const tensor::TensorInfo* rope_factors = nullptr;  // GGUF's rope_freqs.weight
  CachePlan cache;
  int64_t tensors_total = 0;
  int64_t tensors_used = 0;
  std::vector<UnusedTensor> unused;
  std::vector<std::string> notes;
  std::vector<std::string> warnings;
  std::vector<std::string> problems;
};

// An error when there is nothing to plan for: no config, an unknown architecture, a quantization
// that no scheme claims. What is wrong with single layers or tensors goes to LoadPlan::problems.
// The checkpoint must outlive the plan.
Result<LoadPlan> make_plan(const checkpoint::Checkpoint& checkpoint, const PlanOptions& options);

// The method and tensors of one module, outside of a plan: for `weights` and `verify`.
Result<PlannedModule> plan_module(const quant::LinearLayer& layer,
                                  const quant::QuantizationConfig& config,
                                  const quant::TensorLookup& tensors, const PlanOptions& options);

}  // namespace nibble::load
