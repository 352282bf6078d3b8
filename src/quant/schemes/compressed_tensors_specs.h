// The tensors that one layer of a compressed-tensors checkpoint wants.
#pragma once

#include <vector>

#include "quant/method.h"
#include "quant/schemes/compressed_tensors_form.h"

namespace nibble::quant::compressed {

// `form` is what form_of gave for this layer.
std::vector<WeightSpec> specs_of(const Form& form, const LinearLayer& layer,
                                 const TensorLookup& tensors);

}  // namespace nibble::quant::compressed
