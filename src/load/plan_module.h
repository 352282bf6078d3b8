// What is expected of a stored tensor, for plan_module (plan.h) and for vectors.
#pragma once

#include "nibble/result.h"
#include "quant/method.h"
#include "tensor/tensor.h"

namespace nibble::load {

// Error: a stored tensor that is not of the dtype or shape that is expected of it.
Result<void> check_tensor(const quant::WeightSpec& spec, const tensor::TensorInfo& info);

}  // namespace nibble::load
