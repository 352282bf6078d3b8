#include "quant/schemes/compressed_tensors_form.h"

#include <fmt/format.h>

#include <utility>

#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant::compressed {
namespace {

using tensor::DType;
using tensor::TensorInfo;

std::string describe(const Arguments& a) {
  return fmt::format("{}: num_bits is {}, type is \"{}\"", a.where, a.bits,
                     a.is_float ? "float" : "int");
}

// The stored type against the number type of the group.
Result<void> check_numbers(const TensorInfo& codes, const Arguments& weights, Form& f) {
  f.stored = codes.dtype;
  f.bits = weights.bits;
  f.is_float = weights.is_float;
  const bool sparse = f.storage == Storage::kMask24 || f.storage == Storage::kMask;
  bool fits = !weights.is_float;  // kWords, kBytes, kMarlin24
  if (f.storage == Storage::kFloat8 || (sparse && codes.dtype == DType::kE4M3)) {
    fits = weights.is_float && weights.bits == 8;
  } else if (f.storage == Storage::kFloat4) {
    fits = weights.is_float && weights.bits != 8;
    if (fits && weights.bits == 6) f.storage = Storage::kFloat6;
  } else if (sparse) {
    fits = !weights.is_float && codes.dtype == DType::kS8;
  }
  if (fits) return {};
  return fail(ErrorCode::kCorrupt, fmt::format("{} is stored as {}, but {}", codes.name,
                                               tensor::name(codes.dtype), describe(weights)));
}

Result<RowPacking> packing_of(const TensorInfo& info, int64_t words, int64_t count, int64_t bits,
                              const Arguments& weights, std::optional<bool> dense_words) {
  const int64_t dense = row_words(count, bits, RowPacking::kDense);
  const int64_t whole = row_words(count, bits, RowPacking::kWholeWords);
  if (words == dense && (words != whole || 32 % bits == 0 || words <= 1)) return RowPacking::kDense;
  if (words == whole && words != dense) return RowPacking::kWholeWords;
  if (words == dense && dense_words) {
    return *dense_words ? RowPacking::kDense : RowPacking::kWholeWords;
  }
  if (words == dense) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} {}: {} codes of {} bits take as many words as one stream and with "
                            "whole codes in each word, and the dictionary has no version that "
                            "tells which",
                            info.name, tensor::to_string(info.shape), count, bits));
  }
  return fail(ErrorCode::kCorrupt,
              fmt::format("{} {}: {}, and {} codes of {} bits take {} words", info.name,
                          tensor::to_string(info.shape), describe(weights), count, bits, dense));
}

Result<void> find_packing(const LinearLayer& layer, const TensorLookup& tensors,
                          const TensorInfo& codes, const Arguments& weights,
                          std::optional<bool> dense_words, Form& f) {
  if (f.storage == Storage::kWords && codes.shape.size() == 2 && codes.shape[0] == layer.n) {
    NIBBLE_ASSIGN(f.packing,
                  packing_of(codes, codes.shape[1], layer.k, f.bits, weights, dense_words));
  }
  const TensorInfo* zero = find_tensor(tensors, layer.module, "weight_zero_point");
  f.packed_zeros = f.storage == Storage::kWords && f.group_n == 1 &&
                   (zero == nullptr || zero->dtype == DType::kS32);
  if (f.packed_zeros && zero != nullptr && !zero->shape.empty()) {
    NIBBLE_ASSIGN(f.zero_packing,
                  packing_of(*zero, zero->shape[0], layer.n, f.bits, weights, dense_words));
  }
  return {};
}

// The shape of the scale decides what it scales; the group tells groups from blocks.
Result<void> find_granularity(const LinearLayer& layer, const TensorLookup& tensors,
                              const Arguments& weights, Form& f) {
  f.scaled = true;
  f.act_order = weights.act_order && weights.group < layer.k;
  const bool marlin = f.storage == Storage::kMarlin24;
  tensor::Shape expected = {layer.n};
  std::string what = "one per output is";
  if (weights.strategy == Strategy::kTensor) expected = {}, what = "one for the tensor is";
  if (weights.group > 0) {
    expected = {layer.n, ceil_div(layer.k, weights.group)};
    if (marlin) std::swap(expected[0], expected[1]);
    what = fmt::format("one per {} inputs is", weights.group);
  } else if (weights.block_n > 0) {
    expected = {ceil_div(layer.n, weights.block_n), ceil_div(layer.k, weights.block_k)};
    what = fmt::format("one per block of {} x {} is", weights.block_n, weights.block_k);
  }
  const TensorInfo* scale =
      find_tensor(tensors, layer.module, marlin ? "scale_packed" : "weight_scale");
  const tensor::Shape shape = squeezed(scale == nullptr ? expected : scale->shape);
  if (scale != nullptr) {
    f.scale_type = scale->dtype == DType::kU8 ? DType::kE8M0 : scale->dtype;
  }
  if (shape == squeezed(expected) && weights.block_n > 0) {
    f.group_n = weights.block_n;
    f.group_k = weights.block_k;
  } else if (shape == squeezed(expected) && weights.group > 0) {
    f.group_k = weights.group >= layer.k ? 0 : weights.group;
  } else if (shape.empty()) {
    f.group_n = layer.n == 1 ? 1 : 0;
  } else if (shape != tensor::Shape{layer.n}) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{} {}: {} {}, as {} says, and it is neither one for the tensor nor "
                            "one per output",
                            scale->name, tensor::to_string(scale->shape), what,
                            tensor::to_string(expected), weights.where));
  }
  f.global_scale = find_tensor(tensors, layer.module, "weight_global_scale") != nullptr ||
                   (weights.strategy == Strategy::kTensorGroup && weights.is_float);
  if (!f.global_scale) return {};
  if (f.scale_type == DType::kE4M3) f.second_scale = tensor::SecondScale::kDivides;
  f.scale_type = DType::kF32;
  return {};
}

// Whole pieces: what the layouts need of the sizes.
Result<void> check_sizes(const LinearLayer& layer, const Form& f) {
  const auto refuse = [&layer](std::string what) -> Result<void> {
    return fail(ErrorCode::kUnsupported, fmt::format("{}: {} outputs and {} inputs {}",
                                                     layer.module, layer.n, layer.k, what));
  };
  if (f.storage == Storage::kFloat4 && layer.k % 2 != 0) return refuse("do not fill whole bytes");
  if (f.storage == Storage::kFloat6 && layer.k % 4 != 0) return refuse("do not fill whole bytes");
  if (f.storage == Storage::kMask24 && layer.k % 4 != 0) {
    return refuse("do not have whole fours of inputs, of which 2:4 keeps two");
  }
  if (f.storage != Storage::kMarlin24) return {};
  if (f.bits != 4 && f.bits != 8)
    return refuse("cannot be marlin-24: it has codes of 4 and 8 bits");
  if (layer.n % 64 != 0 || layer.k % 32 != 0) {
    return refuse("do not fill whole tiles of 64 by 32, of which marlin-24 is made");
  }
  return {};
}

// The grid of compressed-tensors' own fake quantization.
void find_activation(const Arguments& in, bool mx_weights, Form& f) {
  using Activation = tensor::ActivationFormat;
  Activation& a = f.activation;
  a.type = !in.is_float   ? Activation::Type::kS8
           : in.bits == 4 ? Activation::Type::kE2M1
                          : Activation::Type::kE4M3;
  if (!in.is_float) {
    a.bits = static_cast<int>(in.bits);
    a.half_range = in.symmetric && in.dynamic;
  }
  a.is_static = !in.dynamic;
  a.asymmetric = !in.symmetric;
  const bool tensor = a.is_static || in.strategy == Strategy::kTensor;
  a.granularity = tensor         ? Activation::Granularity::kTensor
                  : in.group > 0 ? Activation::Granularity::kGroup
                                 : Activation::Granularity::kToken;
  a.group = in.group;
  if (in.strategy == Strategy::kTensorGroup) a.scale_rule = Activation::ScaleRule::kE4M3;
  // Version 0.12 named no scale_dtype: fp4 in groups of 32 was MX, as the scales of the weights
  // show.
  const bool unnamed_mx =
      mx_weights && !in.names_scale && in.is_float && in.bits == 4 && in.group == 32;
  if (in.power_of_two || unnamed_mx) a.scale_rule = Activation::ScaleRule::kE8M0Even;
  if (a.is_static) f.input_scale = "input_scale";
  if (in.local) f.input_scale = "input_global_scale";
}

}  // namespace

const TensorInfo* codes_of(const LinearLayer& layer, const TensorLookup& tensors) {
  for (const char* suffix : {"weight_packed", "compressed", "weight.compressed", "weight"}) {
    if (const TensorInfo* info = find_tensor(tensors, layer.module, suffix)) return info;
  }
  return nullptr;
}

Result<Storage> storage_of(const LinearLayer& layer, const TensorLookup& tensors) {
  for (const std::string prefix : {"", "weight."}) {
    if (find_tensor(tensors, layer.module, prefix + "bitmask") == nullptr) continue;
    const bool any = find_tensor(tensors, layer.module, prefix + "row_offsets") != nullptr;
    return any ? Storage::kMask : Storage::kMask24;
  }
  const TensorInfo* codes = codes_of(layer, tensors);
  if (codes == nullptr) return Storage::kPlain;  // the unquantized method reports it
  const bool packed = codes->name.size() == layer.module.size() + sizeof("weight_packed");
  if (packed && codes->dtype == DType::kS32) {
    return find_tensor(tensors, layer.module, "meta") != nullptr ? Storage::kMarlin24
                                                                 : Storage::kWords;
  }
  if (packed && codes->dtype == DType::kU8) return Storage::kFloat4;
  if (!packed && codes->dtype == DType::kS8) return Storage::kBytes;
  if (!packed && codes->dtype == DType::kE4M3) return Storage::kFloat8;
  if (!packed && tensor::is_plain_float(codes->dtype)) {
    // A scale beside a float weight: it was saved between calibration and compression.
    const TensorInfo* scale = find_tensor(tensors, layer.module, "weight_scale");
    if (scale == nullptr) return Storage::kPlain;
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} is {}, but {} is stored beside it: the checkpoint was saved before "
                            "its weights were compressed; save it with save_compressed=True",
                            codes->name, tensor::name(codes->dtype), scale->name));
  }
  return fail(ErrorCode::kCorrupt,
              fmt::format("{} is {}; compressed-tensors stores s32 and u8 under weight_packed, s8, "
                          "e4m3 and floats under weight",
                          codes->name, tensor::name(codes->dtype)));
}

Result<Form> form_of(const LinearLayer& layer, const TensorLookup& tensors, Storage storage,
                     const Group* group, std::optional<bool> dense_words) {
  Form f;
  f.storage = storage;
  f.unused_input = "the config leaves the inputs of this layer alone";
  const TensorInfo* codes = codes_of(layer, tensors);
  const bool sparse = storage == Storage::kMask || storage == Storage::kMask24;
  if (sparse && find_tensor(tensors, layer.module, "bitmask") == nullptr) {
    f.mask_prefix = "weight.";
  }
  if (codes == nullptr) {
    return fail(ErrorCode::kNotFound, fmt::format("{}.bitmask is stored, but {}.compressed is not",
                                                  layer.module, layer.module));
  }
  if (storage == Storage::kMask24 && squeezed(codes->shape).size() == 1 && layer.n != 1) {
    return fail(ErrorCode::kNotFound,
                fmt::format("{} {} holds what a bit mask keeps, one row after the other, but "
                            "{}.row_offsets is missing",
                            codes->name, tensor::to_string(codes->shape), layer.module));
  }
  f.stored = codes->dtype;
  f.kept = storage == Storage::kMask ? tensor::element_count(codes->shape).value_or(0) : 0;
  if (group != nullptr) NIBBLE_TRY(check_numbers(*codes, *group->weights, f));
  NIBBLE_TRY(check_sizes(layer, f));
  if (group == nullptr) return f;
  f.asymmetric = !group->weights->symmetric;
  NIBBLE_TRY(find_granularity(layer, tensors, *group->weights, f));
  NIBBLE_TRY(find_packing(layer, tensors, *codes, *group->weights, dense_words, f));
  if (group->inputs) {
    const DType scale = scale_type(find_tensor(tensors, layer.module, "weight_scale"));
    find_activation(*group->inputs, scale == DType::kU8 || scale == DType::kE8M0, f);
    f.unused_input = fmt::format("{} does not ask for it", group->inputs->where);
  }
  return f;
}

}  // namespace nibble::quant::compressed
