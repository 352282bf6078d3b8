// What the weights of one layer of a compressed-tensors checkpoint are, from the names, types and
// shapes of its tensors and from its group; compressed_tensors.cc has the layouts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "nibble/result.h"
#include "quant/method.h"
#include "quant/packed_words.h"
#include "quant/schemes/compressed_tensors_config.h"

namespace nibble::quant::compressed {

enum class Storage : uint8_t {
  kPlain,   // weight: floats, not quantized
  kWords,   // weight_packed s32: integers, offset by half their range
  kBytes,   // weight s8: integers, also of fewer bits
  kFloat8,  // weight e4m3
  kFloat4,  // weight_packed u8, two e2m1 a byte
  kFloat6,  // weight_packed u8, four e2m3 in three bytes
  kMask,  // compressed, bitmask and row_offsets: those inputs of floats, s8 or e4m3 that are not 0
  kMask24,    // compressed and bitmask: half of the inputs of floats, s8 or e4m3
  kMarlin24,  // weight_packed s32, meta, scale_packed
};
// The tensor that has the codes of a layer, whatever the storage; null: none.
const tensor::TensorInfo* codes_of(const LinearLayer& layer, const TensorLookup& tensors);

// kFloat6 is told from kFloat4 by the group.
Result<Storage> storage_of(const LinearLayer& layer, const TensorLookup& tensors);

struct Form {
  Storage storage = Storage::kPlain;
  tensor::DType stored = tensor::DType::kBF16;  // of the codes
  int64_t kept = 0;                             // values that kMask stores
  std::string mask_prefix;  // of the names of kMask and kMask24: "" or "weight."
  int64_t bits = 16;
  bool is_float = true;
  bool scaled = false;
  bool asymmetric = false;
  bool act_order = false;
  bool global_scale = false;  // the scale is divided by one of the whole weight
  int64_t group_n = 1, group_k = 0;
  RowPacking packing = RowPacking::kDense;       // of codes along K
  RowPacking zero_packing = RowPacking::kDense;  // of zero points along N
  bool packed_zeros = false;
  tensor::DType scale_type = tensor::DType::kF32;
  tensor::ActivationFormat activation;
  int64_t input_hadamard = 0;
  std::string input_scale;   // the suffix of its stored scale, "" without
  std::string unused_input;  // why others that are stored are not read
};

// The form of a layer that is stored quantized, as `group` says, or only sparse (`group` is null).
// Errors: the group and the stored tensors contradict each other; sizes that a layout cannot have.
Result<Form> form_of(const LinearLayer& layer, const TensorLookup& tensors, Storage storage,
                     const Group* group, std::optional<bool> dense_words);

}  // namespace nibble::quant::compressed
