// What checkpoints do to the inputs of a layer, by name.
#pragma once

#include <cstdint>

#include "tensor/weight_format.h"

namespace nibble::quant {

using ActivationType = tensor::ActivationFormat::Type;
using ScaleRule = tensor::ActivationFormat::ScaleRule;

// A scale for each token, found at run time.
inline tensor::ActivationFormat per_token(ActivationType type) {
  tensor::ActivationFormat out;
  out.type = type;
  return out;
}

// A scale for each token and `group` inputs, found at run time; `rule` is what it is rounded to.
inline tensor::ActivationFormat per_group(ActivationType type, int64_t group,
                                          ScaleRule rule = ScaleRule::kFloat) {
  tensor::ActivationFormat out = per_token(type);
  out.granularity = tensor::ActivationFormat::Granularity::kGroup;
  out.group = group;
  out.scale_rule = rule;
  return out;
}

// One scale for all inputs, which the checkpoint stores.
inline tensor::ActivationFormat stored_scale(ActivationType type) {
  tensor::ActivationFormat out = per_token(type);
  out.granularity = tensor::ActivationFormat::Granularity::kTensor;
  out.is_static = true;
  return out;
}

}  // namespace nibble::quant
