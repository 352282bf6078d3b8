#include "quant/schemes/compressed_tensors_specs.h"

#include <string>

#include "quant/packed_words.h"
#include "quant/scheme.h"
#include "quant/stored.h"

namespace nibble::quant::compressed {
namespace {

using tensor::DType;

const std::vector<DType> kFloatScales = {DType::kF16,  DType::kBF16, DType::kF32,
                                         DType::kE4M3, DType::kE8M0, DType::kU8};
const std::vector<DType> kZeros = {DType::kS8,  DType::kS32,  DType::kS64, DType::kE4M3,
                                   DType::kF16, DType::kBF16, DType::kF32};

struct Specs {
  const Form& f;
  const LinearLayer& layer;
  const TensorLookup& tensors;
  int64_t n, k;
  std::vector<WeightSpec> specs;

  void add_codes() {
    const bool words = f.storage == Storage::kWords;
    switch (f.storage) {
      case Storage::kWords:
      case Storage::kFloat4:
      case Storage::kFloat6: {
        const int64_t unit = words ? 32 : 8;  // bits of an element of the tensor
        const int64_t size = words ? row_words(k, f.bits, f.packing) : k * f.bits / 8;
        specs = {wanted(Slot::kWeight, "weight_packed", {words ? DType::kS32 : DType::kU8},
                        {n, size}, {0}, packed_axis(1, unit, f.packing))};
        break;
      }
      case Storage::kMask24:
        specs = {
            wanted(Slot::kWeight, mask_name("compressed"), {f.stored}, {n, k / 2}, {0}, {1, 8, 4}),
            wanted(Slot::kExtra, mask_name("bitmask"), {DType::kU8}, {n, ceil_div(k, 8)}, {0},
                   {1, 8})};
        break;
      case Storage::kMask:
        // Rows are found by their offsets; no part of the inputs has a place of its own.
        specs = {wanted(Slot::kWeight, mask_name("compressed"), {f.stored}, {f.kept}, {},
                        {0, k, f.kept}),
                 wanted(Slot::kExtra, mask_name("bitmask"), {DType::kU8}, {n, ceil_div(k, 8)}, {0},
                        {1, k, ceil_div(k, 8)}),
                 wanted(Slot::kGroupIndex, mask_name("row_offsets"), {DType::kS64, DType::kS32},
                        {n}, {0}, {})};
        break;
      case Storage::kMarlin24: {
        const int64_t words_a_row = 16 * n * f.bits / 32;
        specs = {
            wanted(Slot::kWeight, "weight_packed", {DType::kS32}, {k / 32, words_a_row},
                   {1, 64, 32 * f.bits}, {0, 32}),
            wanted(Slot::kExtra, "meta", {DType::kS16}, {k / 32, 2 * n}, {1, 64, 128}, {0, 32})};
        break;
      }
      default:
        specs = {wanted(Slot::kWeight, "weight", {f.stored}, {n, k}, {0}, {1})};
    }
    if (words || f.storage == Storage::kMask24 || f.storage == Storage::kMask) {
      specs.push_back(
          optional_tensor(wanted(Slot::kShape, words ? "weight_shape" : mask_name("shape"),
                                 {DType::kS64, DType::kS32}, {2}, {}, {}),
                          "the shape is the model's"));
    }
  }

  std::string mask_name(std::string_view suffix) const {
    return f.mask_prefix + std::string(suffix);
  }

  // Codes of f.bits bits in elements of `unit` bits: the smallest number of both that is whole.
  ShardAxis packed_axis(int dim, int64_t unit, RowPacking packing) const {
    if (packing == RowPacking::kWholeWords) return {dim, unit / f.bits};
    int64_t codes = 1;
    while (codes * f.bits % unit != 0) ++codes;
    return {dim, codes, codes * f.bits / unit};
  }

  void add_scales() {
    const bool marlin = f.storage == Storage::kMarlin24;
    const int64_t rows = f.scale_rows(n), groups = f.groups_of(k);
    const ShardAxis along_n = f.group_n == 0 ? ShardAxis{} : ShardAxis{0, f.group_n};
    // Of scattered groups a rank keeps all.
    const ShardAxis along_k = f.group_k == 0 || f.act_order ? ShardAxis{} : ShardAxis{1, f.group_k};
    WeightSpec scale = wanted(Slot::kScale, "weight_scale", f.is_float ? kFloatScales : kFloats,
                              {rows, groups}, along_n, along_k);
    if (marlin) {
      scale = wanted(Slot::kScale, "scale_packed", kFloats, {groups, n}, {1, 64, 64},
                     f.group_k == 0 ? ShardAxis{} : ShardAxis{0, f.group_k});
    }
    specs.push_back(std::move(scale));
    if (f.global_scale) {
      specs.push_back(wanted(Slot::kScale2, "weight_global_scale", kFloats, {}, {}, {}));
    }
    add_zeros(along_n, along_k);
    if (f.is_float || marlin || f.storage == Storage::kMask) return;
    WeightSpec order =
        wanted(Slot::kGroupIndex, "weight_g_idx", {DType::kS32, DType::kS64}, {k}, {}, {0});
    if (!f.act_order) order = optional_tensor(order, "groups are neighbours");
    specs.push_back(std::move(order));
  }

  void add_zeros(ShardAxis along_n, ShardAxis along_k) {
    if (!f.asymmetric && find_tensor(tensors, layer.module, "weight_zero_point") == nullptr) {
      return;
    }
    WeightSpec zero = wanted(Slot::kZero, "weight_zero_point", kZeros,
                             {f.scale_rows(n), f.groups_of(k)}, along_n, along_k);
    if (f.packed_zeros) {
      zero = wanted(Slot::kZero, "weight_zero_point", {DType::kS32},
                    {row_words(n, f.bits, f.zero_packing), f.groups_of(k)},
                    packed_axis(0, 32, f.zero_packing), along_k);
    }
    if (!f.asymmetric) zero = optional_tensor(zero, "symmetric");
    specs.push_back(std::move(zero));
  }

  void add_inputs() {
    if (!f.input_scale.empty()) {
      specs.push_back(wanted(Slot::kInputScale, f.input_scale, kFloats, {}, {}, {}));
    }
    for (const char* suffix : {"input_scale", "input_global_scale", "input_zero_point"}) {
      if (suffix == f.input_scale) continue;
      const bool zero = std::string_view(suffix) == "input_zero_point";
      const bool is_stored = find_tensor(tensors, layer.module, suffix) != nullptr;
      if (zero && f.activation.is_static && (f.activation.asymmetric || is_stored)) {
        specs.push_back(wanted(Slot::kInputZero, suffix, kZeros, {}, {}, {}));
      } else if (is_stored) {
        WeightSpec spec = wanted(Slot::kUnused, suffix, {}, {}, {}, {});
        spec.required = false;
        spec.unused = f.unused_input;
        specs.push_back(std::move(spec));
      }
    }
  }
};

}  // namespace

std::vector<WeightSpec> specs_of(const Form& form, const LinearLayer& layer,
                                 const TensorLookup& tensors) {
  Specs out{form, layer, tensors, layer.n, layer.k, {}};
  out.add_codes();
  if (form.scaled) out.add_scales();
  out.add_inputs();
  add_bias(layer, tensors, out.specs);
  return std::move(out.specs);
}

}  // namespace nibble::quant::compressed
