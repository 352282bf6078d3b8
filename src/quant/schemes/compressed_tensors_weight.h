// The method of one layer of a compressed-tensors checkpoint; compressed_tensors.cc has the
// layouts.
#pragma once

#include <memory>
#include <string>

#include "nibble/result.h"
#include "quant/method.h"
#include "quant/schemes/compressed_tensors_config.h"

namespace nibble::quant::compressed {

// How the weights of a layer are stored, which the names and types of its tensors show.
enum class Storage : uint8_t {
  kPlain,     // weight: floats, not quantized
  kWords,     // weight_packed s32: integers, offset by half their range
  kBytes,     // weight s8: integers, also of fewer bits
  kFloat8,    // weight e4m3
  kFloat4,    // weight_packed u8, two e2m1 a byte
  kFloat6,    // weight_packed u8, four e2m3 in three bytes
  kMask24,    // compressed and bitmask: half of the inputs of any of the above that are whole bytes
  kMarlin24,  // weight_packed s32, meta, scale_packed
};
Result<Storage> storage_of(const LinearLayer& layer, const TensorLookup& tensors);

// The method of a layer that is stored quantized (or sparse), as `group` says; null for a layer
// that is only sparse. `input_hadamard`: see QuantizedWeight. Errors: the group and the stored
// tensors contradict each other.
Result<std::unique_ptr<LinearMethod>> compressed_method(const LinearLayer& layer,
                                                        const TensorLookup& tensors,
                                                        Storage storage, const Group* group,
                                                        std::optional<bool> dense_words,
                                                        int64_t input_hadamard);

}  // namespace nibble::quant::compressed
