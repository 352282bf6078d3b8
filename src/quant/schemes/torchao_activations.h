// What TorchAO's classes say of a layer's inputs.
#pragma once

#include "nibble/result.h"
#include "quant/method.h"
#include "quant/schemes/torchao_tensor.h"
#include "tensor/weight_format.h"

namespace nibble::quant::torchao {

// act_quant_kwargs of a Float8Tensor; the activation_dtype of an Int4Tensor. Each of these is an
// error where it says what is not done, naming layer and attribute.
Result<tensor::ActivationFormat> float8_activation(const LinearLayer& layer, const Instance& of);
Result<tensor::ActivationFormat> int4_activation(const LinearLayer& layer, const Instance& of);

// act_quant_kwargs of an Int8Tensor; `is_static`: its scale is stored.
Result<tensor::ActivationFormat> int8_activation(const LinearLayer& layer, const Instance& of,
                                                 bool is_static);

// activation_quantization of an IntxUnpackedToInt8Tensor.
Result<tensor::ActivationFormat> intx_activation(const LinearLayer& layer, const Instance& of);

// act_quant_kwargs of an MXTensor and of an NVFP4Tensor.
Result<tensor::ActivationFormat> mx_activation(const LinearLayer& layer, const Instance& of);
Result<tensor::ActivationFormat> nvfp4_activation(const LinearLayer& layer, const Instance& of);

// The function that a LinearActivationQuantizedTensor calls on its input.
Result<tensor::ActivationFormat> activation_of_function(const Instance& of);

}  // namespace nibble::quant::torchao
