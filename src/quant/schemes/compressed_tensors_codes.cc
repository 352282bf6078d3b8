#include "quant/schemes/compressed_tensors_codes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "quant/float6.h"
#include "quant/packed_words.h"
#include "quant/scaled_codes.h"
#include "quant/schemes/compressed_tensors_24.h"
#include "quant/stored.h"

namespace nibble::quant::compressed {
namespace {

using tensor::DType;
using tensor::TensorView;

struct CodeReader {
  const Form& f;
  int64_t whole_n;  // outputs of the whole layer
  const RawWeights& raw;
  tensor::QuantizedWeight& out;

  uint8_t half() const { return static_cast<uint8_t>(1 << (f.bits - 1)); }

  Result<void> read() const {
    switch (f.storage) {
      case Storage::kWords:
      case Storage::kFloat4:
      case Storage::kFloat6:
        return read_rows();
      case Storage::kMask:
      case Storage::kMask24:
        return read_mask();
      case Storage::kMarlin24:
        return read_marlin24();
      default:
        break;
    }
    NIBBLE_ASSIGN(const TensorView* weight, need(raw, Slot::kWeight, "weight", {out.n, out.k}));
    return take_bytes(*weight);
  }

  Result<uint8_t*> own_codes(int64_t unit = 1) const {
    const auto bytes = static_cast<size_t>(out.n * out.k * unit);
    NIBBLE_ASSIGN(out.code_owner, tensor::Buffer::allocate(bytes));
    out.code = {unit == 1 ? DType::kU8 : f.stored, {out.n, out.k}, out.code_owner.data(), bytes};
    return reinterpret_cast<uint8_t*>(out.code_owner.data());
  }

  // Rows of packed codes, columns in the order of the groups.
  Result<void> read_rows() const {
    const bool words = f.storage == Storage::kWords;
    const int64_t size = words ? row_words(out.k, f.bits, f.packing) : out.k * f.bits / 8;
    const int64_t bytes = words ? 4 * size : size;
    NIBBLE_ASSIGN(const TensorView* packed,
                  need(raw, Slot::kWeight, "weight_packed", {out.n, size}));
    NIBBLE_ASSIGN(uint8_t * code, own_codes());
    const uint8_t minus = f.is_float || f.asymmetric ? 0 : half();
    std::vector<uint8_t> row(static_cast<size_t>(out.k));
    for (int64_t n = 0; n < out.n; ++n, code += out.k) {
      const bool direct = out.order.empty();
      unpack_row(packed->data + n * bytes, bytes, out.k, f.bits, f.packing, minus,
                 direct ? code : row.data());
      for (size_t i = 0; i < out.order.size(); ++i) {
        code[i] = row[static_cast<size_t>(out.order[i])];
      }
      if (f.storage != Storage::kFloat6) continue;
      for (int64_t i = 0; i < out.k; ++i) code[i] = e4m3_of_e2m3_codes()[code[i]];
    }
    return {};
  }

  Result<void> read_mask() const {
    const bool half_kept = f.storage == Storage::kMask24;
    const tensor::Shape shape = half_kept ? tensor::Shape{out.n, out.k / 2} : tensor::Shape{f.kept};
    NIBBLE_ASSIGN(const TensorView* kept, need(raw, Slot::kWeight, "compressed", shape));
    NIBBLE_ASSIGN(const TensorView* mask,
                  need(raw, Slot::kExtra, "bitmask", {out.n, ceil_div(out.k, 8)}));
    const int64_t unit = tensor::info(f.stored).block_bytes;
    NIBBLE_ASSIGN(uint8_t * code, own_codes(unit));
    std::memset(code, 0, static_cast<size_t>(out.n * out.k * unit));
    if (half_kept) {
      NIBBLE_TRY(spread_mask24(*kept, *mask, out.n, out.k, unit, out.code_owner.data()));
    } else {
      NIBBLE_ASSIGN(const TensorView* view, need(raw, Slot::kGroupIndex, "row_offsets", {out.n}));
      NIBBLE_ASSIGN(const std::vector<int32_t> offsets, read_ints(*view, "row_offsets"));
      NIBBLE_TRY(
          spread_mask(*kept, *mask, offsets, out.n < whole_n, out.k, unit, out.code_owner.data()));
    }
    if (!f.scaled) return {};
    const TensorView dense = {f.stored, {out.n, out.k}, out.code_owner.data(), out.code.bytes};
    if (f.is_float) return check_fp8_codes(dense, "compressed", out.k);
    NIBBLE_TRY(check_range(dense, f.mask_prefix + "compressed"));
    if (f.asymmetric) shift(dense, code);
    return {};
  }

  Result<void> read_marlin24() const {
    const int64_t words = 16 * out.n * f.bits / 32;
    NIBBLE_ASSIGN(const TensorView* packed,
                  need(raw, Slot::kWeight, "weight_packed", {out.k / 32, words}));
    NIBBLE_ASSIGN(const TensorView* meta, need(raw, Slot::kExtra, "meta", {out.k / 32, 2 * out.n}));
    NIBBLE_ASSIGN(uint8_t * code, own_codes());
    std::memset(code, 0, static_cast<size_t>(out.n * out.k));
    return unpack_marlin24(packed->data, *meta, out.n, out.k, f.bits, half(), code);
  }

  // Codes that are stored one in a byte are used where they lie, unless they must be moved.
  Result<void> take_bytes(const TensorView& weight) const {
    out.code = weight;
    if (f.is_float) return check_fp8_codes(weight, "weight", out.k);
    NIBBLE_TRY(check_range(weight, "weight"));
    if (!f.asymmetric && out.order.empty()) return {};
    NIBBLE_ASSIGN(uint8_t * code, own_codes());
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
    const uint8_t plus = f.asymmetric ? half() : 0;
    for (uint64_t i = 0; i < from.bytes; ++i) to[i] = static_cast<uint8_t>(bytes[i] + plus);
  }

  Result<void> check_range(const TensorView& weight, std::string_view suffix) const {
    if (f.bits == 8) return {};
    const auto* code = reinterpret_cast<const int8_t*>(weight.data);
    const int limit = half();
    const int8_t* end = code + weight.bytes;
    const int8_t* at =
        std::find_if(code, end, [limit](int8_t c) { return c < -limit || c >= limit; });
    if (at == end) return {};
    return fail(
        ErrorCode::kCorrupt,
        fmt::format("{}: element ({}, {}) is {}, but num_bits is {}, which means {} to {}", suffix,
                    (at - code) / out.k, (at - code) % out.k, int{*at}, f.bits, -limit, limit - 1));
  }
};

}  // namespace

Result<void> read_codes(const Form& form, int64_t n, const RawWeights& raw,
                        tensor::QuantizedWeight& out) {
  return CodeReader{form, n, raw, out}.read();
}

}  // namespace nibble::quant::compressed
