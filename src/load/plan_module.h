// What the plan of one module is made of (plan_module itself is in plan.h).
#pragma once

#include "nibble/result.h"
#include "quant/method.h"
#include "tensor/tensor.h"

namespace nibble::load {

// Error: a stored tensor that is not of the dtype or shape that is expected of it.
Result<void> check_tensor(const quant::WeightSpec& spec, const tensor::TensorInfo& info);

}  // namespace nibble::load
