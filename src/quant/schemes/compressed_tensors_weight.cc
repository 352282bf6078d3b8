#include "quant/schemes/compressed_tensors_weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "quant/act_order.h"
#include "quant/float6.h"
#include "quant/packed_words.h"
#include "quant/scaled_codes.h"
#include "quant/scheme.h"
#include "quant/schemes/compressed_tensors_24.h"
#include "quant/stored.h"

namespace nibble::quant::compressed {
namespace {

using tensor::DType;
using tensor::Element;
using tensor::TensorInfo;
using tensor::TensorView;

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

Element integer_element(int64_t bits, bool is_signed) {
  constexpr std::array<Element, 9> kSigned = {Element::kS2, Element::kS2, Element::kS2,
                                              Element::kS3, Element::kS4, Element::kS5,
                                              Element::kS6, Element::kS7, Element::kS8};
  constexpr std::array<Element, 9> kUnsigned = {Element::kU2, Element::kU2, Element::kU2,
                                                Element::kU3, Element::kU4, Element::kU5,
                                                Element::kU6, Element::kU7, Element::kU8};
  return (is_signed ? kSigned : kUnsigned)[static_cast<size_t>(bits)];
}

Element element_of(const Form& f) {
  if (!f.is_float) return integer_element(f.bits, !f.asymmetric);
  if (f.bits == 4) return Element::kE2M1;
  if (f.bits < 16) return Element::kE4M3;  // e2m3 is a part of e4m3
  return f.stored == DType::kBF16  ? Element::kBF16
         : f.stored == DType::kF16 ? Element::kF16
                                   : Element::kF32;
}

// Bytes that hold exponents of two are e8m0, whatever their type is called.
TensorView as_scale(TensorView view) {
  if (view.dtype == DType::kU8) view.dtype = DType::kE8M0;
  return view;
}

const std::vector<DType> kFloatScales = {DType::kF16,  DType::kBF16, DType::kF32,
                                         DType::kE4M3, DType::kE8M0, DType::kU8};
const std::vector<DType> kZeros = {DType::kS8,  DType::kS32,  DType::kS64, DType::kE4M3,
                                   DType::kF16, DType::kBF16, DType::kF32};

Result<std::vector<float>> read_zero_points(const TensorView& view, std::string_view suffix) {
  if (view.dtype == DType::kS32 || view.dtype == DType::kS64) {
    NIBBLE_ASSIGN(const std::vector<int32_t> values, read_ints(view, suffix));
    return std::vector<float>(values.begin(), values.end());
  }
  if (view.dtype != DType::kS8) return read_floats(view, suffix);
  const auto* values = reinterpret_cast<const int8_t*>(view.data);
  return std::vector<float>(values, values + view.bytes);
}

Result<void> check_zeros(const std::vector<float>& zeros, const tensor::Shape& shape,
                         std::string_view suffix) {
  for (size_t i = 0; i < zeros.size(); ++i) {
    if (zeros[i] == 0) continue;
    return fail(ErrorCode::kCorrupt, fmt::format("{} is {}, but symmetric is true",
                                                 element_name(suffix, shape, i), zeros[i]));
  }
  return {};
}

// A stored scale of the inputs, or one that divides: a positive number.
Result<float> positive(const RawWeights& raw, Slot slot, std::string_view suffix) {
  NIBBLE_ASSIGN(const TensorView* view, need(raw, slot, suffix, {}));
  NIBBLE_ASSIGN(const std::vector<float> value, read_floats(*view, suffix));
  if (value[0] > 0) return value[0];
  return fail(ErrorCode::kCorrupt, fmt::format("{} is {}; a scale is positive", suffix, value[0]));
}

class CompressedMethod : public LinearMethod {
 public:
  CompressedMethod(const LinearLayer& layer, const TensorLookup& tensors, Form form)
      : f_(std::move(form)), n_(layer.n), k_(layer.k) {
    add_codes();
    if (f_.scaled) add_scales(layer, tensors);
    add_inputs(layer, tensors);
    add_bias(layer, tensors, specs_);
  }

  std::string_view scheme() const override { return "compressed-tensors"; }

  tensor::WeightFormat weight_format() const override {
    tensor::WeightFormat format;
    format.element = element_of(f_);
    format.scaled = f_.scaled;
    format.group_n = f_.group_n;
    format.group_k = f_.group_k;
    format.scale_type = f_.scale_type;
    if (f_.asymmetric) format.zero = tensor::ZeroKind::kInteger;
    format.act_order = f_.act_order;
    if (f_.storage == Storage::kFloat6 && f_.group_k == 32) format.stored_as = "e2m3g32";
    return format;
  }

  tensor::ActivationFormat activation_format() const override { return f_.activation; }
  std::vector<WeightSpec> create_weights() const override { return specs_; }

  Result<tensor::QuantizedWeight> process_weights_after_loading(
      int64_t n, int64_t k, const RawWeights& raw) const override {
    tensor::QuantizedWeight out = empty_weight(n, k);
    out.input_hadamard = f_.input_hadamard;
    if (out.input_hadamard != 0 && k % out.input_hadamard != 0) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("a rotation of {} inputs cannot be cut to {}; use fewer ranks",
                              out.input_hadamard, k));
    }
    NIBBLE_TRY(check_shape(raw));
    if (f_.scaled) {
      NIBBLE_TRY(read_scale(raw, out));
      NIBBLE_TRY(read_zero(raw, out));
      NIBBLE_TRY(read_order(raw, out));
    }
    NIBBLE_TRY(read_codes(raw, out));
    NIBBLE_TRY(read_inputs(raw, out));
    return out;
  }

 private:
  // ---- declarations ----

  void add_codes() {
    const bool words = f_.storage == Storage::kWords;
    switch (f_.storage) {
      case Storage::kWords:
      case Storage::kFloat4:
      case Storage::kFloat6: {
        const int64_t unit = words ? 32 : 8;  // bits of an element of the tensor
        const int64_t size = words ? row_words(k_, f_.bits, f_.packing) : k_ * f_.bits / 8;
        specs_ = {wanted(Slot::kWeight, "weight_packed", {words ? DType::kS32 : DType::kU8},
                         {n_, size}, {0}, packed_axis(1, unit, f_.packing))};
        break;
      }
      case Storage::kMask24:
        specs_ = {wanted(Slot::kWeight, mask_name("compressed"), {f_.stored}, {n_, k_ / 2}, {0},
                         {1, 8, 4}),
                  wanted(Slot::kExtra, mask_name("bitmask"), {DType::kU8}, {n_, ceil_div(k_, 8)},
                         {0}, {1, 8})};
        break;
      case Storage::kMask:
        // Rows are found by their offsets; no part of the inputs has a place of its own.
        specs_ = {wanted(Slot::kWeight, mask_name("compressed"), {f_.stored}, {f_.kept}, {},
                         {0, k_, f_.kept}),
                  wanted(Slot::kExtra, mask_name("bitmask"), {DType::kU8}, {n_, ceil_div(k_, 8)},
                         {0}, {1, k_, ceil_div(k_, 8)}),
                  wanted(Slot::kGroupIndex, mask_name("row_offsets"), {DType::kS64, DType::kS32},
                         {n_}, {0}, {})};
        break;
      case Storage::kMarlin24: {
        const int64_t words_a_row = 16 * n_ * f_.bits / 32;
        specs_ = {
            wanted(Slot::kWeight, "weight_packed", {DType::kS32}, {k_ / 32, words_a_row},
                   {1, 64, 32 * f_.bits}, {0, 32}),
            wanted(Slot::kExtra, "meta", {DType::kS16}, {k_ / 32, 2 * n_}, {1, 64, 128}, {0, 32})};
        break;
      }
      default:
        specs_ = {wanted(Slot::kWeight, "weight", {f_.stored}, {n_, k_}, {0}, {1})};
    }
    if (words || f_.storage == Storage::kMask24 || f_.storage == Storage::kMask) {
      specs_.push_back(
          optional_tensor(wanted(Slot::kShape, words ? "weight_shape" : mask_name("shape"),
                                 {DType::kS64, DType::kS32}, {2}, {}, {}),
                          "the shape is the model's"));
    }
  }

  std::string mask_name(std::string_view suffix) const {
    return f_.mask_prefix + std::string(suffix);
  }

  // Codes of f_.bits bits in elements of `unit` bits: the smallest number of both that is whole.
  ShardAxis packed_axis(int dim, int64_t unit, RowPacking packing) const {
    if (packing == RowPacking::kWholeWords) return {dim, unit / f_.bits};
    int64_t codes = 1;
    while (codes * f_.bits % unit != 0) ++codes;
    return {dim, codes, codes * f_.bits / unit};
  }

  void add_scales(const LinearLayer& layer, const TensorLookup& tensors) {
    const bool marlin = f_.storage == Storage::kMarlin24;
    const int64_t rows = scale_rows(n_), groups = groups_of(k_);
    const ShardAxis along_n = f_.group_n == 0 ? ShardAxis{} : ShardAxis{0, f_.group_n};
    // Of scattered groups a rank keeps all.
    const ShardAxis along_k =
        f_.group_k == 0 || f_.act_order ? ShardAxis{} : ShardAxis{1, f_.group_k};
    WeightSpec scale = wanted(Slot::kScale, "weight_scale", f_.is_float ? kFloatScales : kFloats,
                              {rows, groups}, along_n, along_k);
    if (marlin) {
      scale = wanted(Slot::kScale, "scale_packed", kFloats, {groups, n_}, {1, 64, 64},
                     f_.group_k == 0 ? ShardAxis{} : ShardAxis{0, f_.group_k});
    }
    specs_.push_back(std::move(scale));
    if (f_.global_scale) {
      specs_.push_back(wanted(Slot::kScale2, "weight_global_scale", kFloats, {}, {}, {}));
    }
    add_zeros(layer, tensors, along_n, along_k);
    if (f_.is_float || marlin || f_.storage == Storage::kMask) return;
    WeightSpec order =
        wanted(Slot::kGroupIndex, "weight_g_idx", {DType::kS32, DType::kS64}, {k_}, {}, {0});
    if (!f_.act_order) order = optional_tensor(order, "groups are neighbours");
    specs_.push_back(std::move(order));
  }

  void add_zeros(const LinearLayer& layer, const TensorLookup& tensors, ShardAxis along_n,
                 ShardAxis along_k) {
    if (!f_.asymmetric && find_tensor(tensors, layer.module, "weight_zero_point") == nullptr) {
      return;
    }
    WeightSpec zero = wanted(Slot::kZero, "weight_zero_point", kZeros,
                             {scale_rows(n_), groups_of(k_)}, along_n, along_k);
    if (f_.packed_zeros) {
      zero = wanted(Slot::kZero, "weight_zero_point", {DType::kS32},
                    {row_words(n_, f_.bits, f_.zero_packing), groups_of(k_)},
                    packed_axis(0, 32, f_.zero_packing), along_k);
    }
    if (!f_.asymmetric) zero = optional_tensor(zero, "symmetric");
    specs_.push_back(std::move(zero));
  }

  void add_inputs(const LinearLayer& layer, const TensorLookup& tensors) {
    if (!f_.input_scale.empty()) {
      specs_.push_back(wanted(Slot::kInputScale, f_.input_scale, kFloats, {}, {}, {}));
    }
    for (const char* suffix : {"input_scale", "input_global_scale", "input_zero_point"}) {
      if (suffix == f_.input_scale) continue;
      const bool zero = std::string_view(suffix) == "input_zero_point";
      const bool is_stored = find_tensor(tensors, layer.module, suffix) != nullptr;
      if (zero && f_.activation.is_static && (f_.activation.asymmetric || is_stored)) {
        specs_.push_back(wanted(Slot::kInputZero, suffix, kZeros, {}, {}, {}));
      } else if (is_stored) {
        WeightSpec spec = wanted(Slot::kUnused, suffix, {}, {}, {}, {});
        spec.required = false;
        spec.unused = f_.unused_input;
        specs_.push_back(std::move(spec));
      }
    }
  }

  // ---- loading ----

  int64_t groups_of(int64_t k) const {
    return f_.group_k == 0 ? 1 : ceil_div(f_.act_order ? k_ : k, f_.group_k);
  }
  int64_t scale_rows(int64_t n) const { return f_.group_n == 0 ? 1 : ceil_div(n, f_.group_n); }
  uint8_t half() const { return static_cast<uint8_t>(1 << (f_.bits - 1)); }

  Result<void> check_shape(const RawWeights& raw) const {
    const TensorView* view = raw.get(Slot::kShape);
    if (view == nullptr) return {};
    const char* suffix = f_.storage == Storage::kWords ? "weight_shape" : "shape";
    NIBBLE_ASSIGN(const std::vector<int32_t> shape, read_ints(*view, suffix));
    if (shape == std::vector<int32_t>{static_cast<int32_t>(n_), static_cast<int32_t>(k_)}) {
      return {};
    }
    return fail(ErrorCode::kCorrupt,
                fmt::format("{} says ({}), but config.json makes the weight ({}, {})", suffix,
                            fmt::join(shape, ", "), n_, k_));
  }

  Result<void> read_scale(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    const int64_t rows = scale_rows(out.n), groups = groups_of(out.k);
    if (f_.storage == Storage::kMarlin24) {
      NIBBLE_ASSIGN(const TensorView* view,
                    need(raw, Slot::kScale, "scale_packed", {groups, out.n}));
      NIBBLE_ASSIGN(const std::vector<float> scale, read_floats(*view, "scale_packed"));
      const bool permuted = f_.group_k != 0 && f_.group_k < k_ / 2;
      out.scale = unpack_marlin24_scales(scale, out.n, groups, permuted);
      return {};
    }
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kScale, "weight_scale", {rows, groups}));
    NIBBLE_ASSIGN(out.scale, read_floats(as_scale(*view), "weight_scale"));
    if (!f_.global_scale) return {};
    NIBBLE_ASSIGN(const float global, positive(raw, Slot::kScale2, "weight_global_scale"));
    for (float& scale : out.scale) scale /= global;
    return {};
  }

  // (N, groups), one for each output also where several share it.
  Result<void> read_zero(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    if (raw.get(Slot::kZero) == nullptr && !f_.asymmetric) return {};
    const int64_t groups = groups_of(out.k);
    const int64_t rows = f_.packed_zeros ? out.n : scale_rows(out.n);
    std::vector<float> zero;
    if (f_.packed_zeros) {
      NIBBLE_ASSIGN(zero, read_packed_zeros(out.n, groups, raw));
    } else {
      NIBBLE_ASSIGN(const TensorView* view,
                    need(raw, Slot::kZero, "weight_zero_point", {rows, groups}));
      NIBBLE_ASSIGN(zero, read_zero_points(*view, "weight_zero_point"));
    }
    if (!f_.asymmetric) return check_zeros(zero, {rows, groups}, "weight_zero_point");
    const int64_t shared = f_.packed_zeros ? 1 : f_.group_n == 0 ? out.n : f_.group_n;
    out.zero.resize(static_cast<size_t>(out.n * groups));
    for (int64_t i = 0; i < out.n * groups; ++i) {
      const int64_t from = i / groups / shared * groups + i % groups;
      out.zero[static_cast<size_t>(i)] =
          zero[static_cast<size_t>(from)] + static_cast<float>(half());
    }
    return {};
  }

  // Packed along N -> (N, groups).
  Result<std::vector<float>> read_packed_zeros(int64_t n, int64_t groups,
                                               const RawWeights& raw) const {
    const int64_t words = row_words(n, f_.bits, f_.zero_packing);
    NIBBLE_ASSIGN(const TensorView* view,
                  need(raw, Slot::kZero, "weight_zero_point", {words, groups}));
    std::vector<uint32_t> column(static_cast<size_t>(words));
    std::vector<uint8_t> codes(static_cast<size_t>(n));
    std::vector<float> out(static_cast<size_t>(n * groups));
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t w = 0; w < words; ++w) {
        column[static_cast<size_t>(w)] = read_word(view->data, w * groups + g);
      }
      unpack_row(reinterpret_cast<const std::byte*>(column.data()), 4 * words, n, f_.bits,
                 f_.zero_packing, half(), codes.data());
      for (int64_t i = 0; i < n; ++i) {
        out[static_cast<size_t>(i * groups + g)] =
            static_cast<float>(static_cast<int8_t>(codes[static_cast<size_t>(i)]));
      }
    }
    return out;
  }

  // A -1 in weight_g_idx: it was never set, and groups are neighbours.
  Result<void> read_order(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    if (f_.storage == Storage::kMask) return {};  // the slot has row_offsets
    if (raw.get(Slot::kGroupIndex) == nullptr && !f_.act_order) return {};
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kGroupIndex, "weight_g_idx", {out.k}));
    NIBBLE_ASSIGN(std::vector<int32_t> g_idx, read_ints(*view, "weight_g_idx"));
    const bool unset = std::find(g_idx.begin(), g_idx.end(), -1) != g_idx.end();
    if (!f_.act_order) {
      if (unset) return {};
      auto ok = check_group_order(g_idx, f_.group_k);
      if (ok) return {};
      return fail(ErrorCode::kCorrupt,
                  fmt::format("weight_{}; set actorder to \"group\" if the inputs are scattered",
                              ok.error().message));
    }
    if (unset && out.k != k_) {
      return fail(ErrorCode::kUnsupported,
                  "weight_g_idx was never set, so that a part of it does not say where it begins");
    }
    for (size_t i = 0; unset && i < g_idx.size(); ++i) {
      g_idx[i] = static_cast<int32_t>(static_cast<int64_t>(i) / f_.group_k);
    }
    auto sorted = sort_by_group(g_idx, groups_of(k_), out.k != k_, out);
    if (sorted) return {};
    return fail(ErrorCode::kCorrupt, "weight_" + sorted.error().message);
  }

  Result<void> read_codes(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    switch (f_.storage) {
      case Storage::kWords:
      case Storage::kFloat4:
      case Storage::kFloat6:
        return read_rows(raw, out);
      case Storage::kMask:
      case Storage::kMask24:
        return read_mask(raw, out);
      case Storage::kMarlin24:
        return read_marlin24(raw, out);
      default:
        break;
    }
    NIBBLE_ASSIGN(const TensorView* weight, need(raw, Slot::kWeight, "weight", {out.n, out.k}));
    return take_bytes(*weight, out);
  }

  Result<uint8_t*> own_codes(tensor::QuantizedWeight& out, int64_t unit = 1) const {
    const auto bytes = static_cast<size_t>(out.n * out.k * unit);
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(bytes));
    out.code = {unit == 1 ? DType::kU8 : f_.stored, {out.n, out.k}, out.code_owner.data(), bytes};
    return reinterpret_cast<uint8_t*>(out.code_owner.data());
  }

  // Rows of packed codes, columns in the order of the groups.
  Result<void> read_rows(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    const bool words = f_.storage == Storage::kWords;
    const int64_t size = words ? row_words(out.k, f_.bits, f_.packing) : out.k * f_.bits / 8;
    const int64_t bytes = words ? 4 * size : size;
    NIBBLE_ASSIGN(const TensorView* packed,
                  need(raw, Slot::kWeight, "weight_packed", {out.n, size}));
    NIBBLE_ASSIGN(uint8_t * code, own_codes(out));
    const uint8_t minus = f_.is_float || f_.asymmetric ? 0 : half();
    std::vector<uint8_t> row(static_cast<size_t>(out.k));
    for (int64_t n = 0; n < out.n; ++n, code += out.k) {
      const bool direct = out.order.empty();
      unpack_row(packed->data + n * bytes, bytes, out.k, f_.bits, f_.packing, minus,
                 direct ? code : row.data());
      for (size_t i = 0; i < out.order.size(); ++i) {
        code[i] = row[static_cast<size_t>(out.order[i])];
      }
      if (f_.storage != Storage::kFloat6) continue;
      for (int64_t i = 0; i < out.k; ++i) code[i] = e4m3_of_e2m3_codes()[code[i]];
    }
    return {};
  }

  Result<void> read_mask(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    const bool half_kept = f_.storage == Storage::kMask24;
    const tensor::Shape shape =
        half_kept ? tensor::Shape{out.n, out.k / 2} : tensor::Shape{f_.kept};
    NIBBLE_ASSIGN(const TensorView* kept, need(raw, Slot::kWeight, "compressed", shape));
    NIBBLE_ASSIGN(const TensorView* mask,
                  need(raw, Slot::kExtra, "bitmask", {out.n, ceil_div(out.k, 8)}));
    const int64_t unit = tensor::info(f_.stored).block_bytes;
    NIBBLE_ASSIGN(uint8_t * code, own_codes(out, unit));
    std::memset(code, 0, static_cast<size_t>(out.n * out.k * unit));
    if (half_kept) {
      NIBBLE_TRY(spread_mask24(*kept, *mask, out.n, out.k, unit, out.code_owner.data()));
    } else {
      NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kGroupIndex, "row_offsets", {out.n}));
      NIBBLE_ASSIGN(const std::vector<int32_t> offsets, read_ints(*view, "row_offsets"));
      NIBBLE_TRY(
          spread_mask(*kept, *mask, offsets, out.n < n_, out.k, unit, out.code_owner.data()));
    }
    if (!f_.scaled) return {};
    const TensorView dense = {f_.stored, {out.n, out.k}, out.code_owner.data(), out.code.bytes};
    if (f_.is_float) return check_fp8_codes(dense, "compressed", out.k);
    NIBBLE_TRY(check_range(dense, out.k));
    if (f_.asymmetric) shift(dense, code);
    return {};
  }

  Result<void> read_marlin24(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    const int64_t words = 16 * out.n * f_.bits / 32;
    NIBBLE_ASSIGN(const TensorView* packed,
                  need(raw, Slot::kWeight, "weight_packed", {out.k / 32, words}));
    NIBBLE_ASSIGN(const TensorView* meta, need(raw, Slot::kExtra, "meta", {out.k / 32, 2 * out.n}));
    NIBBLE_ASSIGN(uint8_t * code, own_codes(out));
    std::memset(code, 0, static_cast<size_t>(out.n * out.k));
    return unpack_marlin24(packed->data, *meta, out.n, out.k, f_.bits, half(), code);
  }

  // Codes that are stored one in a byte are used where they lie, unless they must be moved.
  Result<void> take_bytes(const TensorView& weight, tensor::QuantizedWeight& out) const {
    out.code = weight;
    if (f_.is_float) return check_fp8_codes(weight, "weight", out.k);
    NIBBLE_TRY(check_range(weight, out.k));
    if (!f_.asymmetric && out.order.empty()) return {};
    NIBBLE_ASSIGN(uint8_t * code, own_codes(out));
    shift(weight, code);
    if (out.order.empty()) return {};
    std::vector<uint8_t> row(static_cast<size_t>(out.k));
    for (int64_t n = 0; n < out.n; ++n, code += out.k) {
      std::memcpy(row.data(), code, row.size());
      for (size_t i = 0; i < out.order.size(); ++i) {
        code[i] = row[static_cast<size_t>(out.order[i])];
      }
    }
    return {};
  }

  void shift(const TensorView& from, uint8_t* to) const {
    const auto* bytes = reinterpret_cast<const uint8_t*>(from.data);
    const uint8_t plus = f_.asymmetric ? half() : 0;
    for (uint64_t i = 0; i < from.bytes; ++i) to[i] = static_cast<uint8_t>(bytes[i] + plus);
  }

  Result<void> check_range(const TensorView& weight, int64_t k) const {
    if (f_.bits == 8) return {};
    const auto* code = reinterpret_cast<const int8_t*>(weight.data);
    const int limit = half();
    const int8_t* end = code + weight.bytes;
    const int8_t* at =
        std::find_if(code, end, [limit](int8_t c) { return c < -limit || c >= limit; });
    if (at == end) return {};
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: element ({}, {}) is {}, but num_bits is {}, which means {} to {}",
                            specs_[0].suffix, (at - code) / k, (at - code) % k, int{*at}, f_.bits,
                            -limit, limit - 1));
  }

  Result<void> read_inputs(const RawWeights& raw, tensor::QuantizedWeight& out) const {
    if (!f_.input_scale.empty()) {
      NIBBLE_ASSIGN(out.input_scale, positive(raw, Slot::kInputScale, f_.input_scale));
      if (f_.input_scale == "input_global_scale") out.input_scale = 1 / out.input_scale;
    }
    if (raw.get(Slot::kInputZero) == nullptr) return {};
    NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kInputZero, "input_zero_point", {}));
    NIBBLE_ASSIGN(const std::vector<float> zero, read_zero_points(*view, "input_zero_point"));
    if (!f_.activation.asymmetric) return check_zeros(zero, {}, "input_zero_point");
    out.input_zero = zero[0];
    return {};
  }

  Form f_;
  int64_t n_, k_;
  std::vector<WeightSpec> specs_;
};

}  // namespace

std::unique_ptr<LinearMethod> compressed_method(const LinearLayer& layer,
                                                const TensorLookup& tensors, Form form) {
  return std::make_unique<CompressedMethod>(layer, tensors, std::move(form));
}

}  // namespace nibble::quant::compressed
