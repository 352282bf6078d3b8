// The method of one layer of a compressed-tensors checkpoint.
#pragma once

#include <memory>

#include "quant/method.h"
#include "quant/schemes/compressed_tensors_form.h"

namespace nibble::quant::compressed {

// `form` is what form_of gave for this layer.
std::unique_ptr<LinearMethod> compressed_method(const LinearLayer& layer,
                                                const TensorLookup& tensors, Form form);

}  // namespace nibble::quant::compressed
