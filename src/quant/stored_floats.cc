#include "quant/stored_floats.h"

#include <fmt/format.h>

#include "quant/stored.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::Element;
using tensor::TensorInfo;

std::string describe(const TensorInfo& info) {
  return fmt::format("{} {} {}", info.name, tensor::name(info.dtype),
                     tensor::to_string(info.shape));
}

// Element, codes and code types.
Result<void> find_codes(const LinearLayer& layer, const TensorInfo& codes,
                        const FloatClaims& claims, ScaledCodes& out) {
  const tensor::Shape shape = squeezed(codes.shape);
  if (is_fp8(codes.dtype)) {
    out.element = element_of_fp8(codes.dtype);
    out.codes = Codes::kBytes;
    out.code_types = kFp8Types;
    return {};
  }
  out.code_types = {DType::kU8};
  const bool bytes = codes.dtype == DType::kU8;
  if (bytes && layer.k % 2 == 0 && shape == squeezed({layer.n, layer.k / 2})) {
    out.element = Element::kE2M1;
    out.codes = Codes::kNibblesK;
    return {};
  }
  if (!bytes || layer.k % 4 != 0 || shape != squeezed({layer.n, layer.k / 4 * 3})) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: of floats of a byte or less fp8 (N, K), and as u8 fp6 (N, 3K/4) "
                            "and fp4 (N, K/2) are read; N is {} and K {}",
                            describe(codes), layer.n, layer.k));
  }
  if (claims.six_bits != "e2m3" && claims.six_bits != "e3m2") {
    return fail(ErrorCode::kCorrupt, fmt::format("{} has 6 bits for each of {} inputs, but its "
                                                 "dtype is \"{}\", neither fp6_e2m3 nor fp6_e3m2",
                                                 describe(codes), layer.k, claims.six_bits));
  }
  const bool e2m3 = claims.six_bits == "e2m3";
  out.element = e2m3 ? Element::kE4M3 : Element::kE5M2;
  out.codes = e2m3 ? Codes::kE2M3 : Codes::kE3M2;
  return {};
}

}  // namespace

Result<FloatScales> read_stored_floats(const LinearLayer& layer, const TensorInfo& codes,
                                       const TensorInfo& scale, const FloatClaims& claims,
                                       ScaledCodes& out) {
  NIBBLE_TRY(find_codes(layer, codes, claims, out));
  if (scale.dtype == DType::kU8 || scale.dtype == DType::kE8M0) {
    NIBBLE_ASSIGN(out.area, area_of(layer, scale, {1, 32}, "a scale that is a power of two"));
    return FloatScales::kPowersOfTwo;
  }
  if (out.codes == Codes::kNibblesK && scale.dtype == DType::kE4M3) {
    NIBBLE_ASSIGN(out.area, area_of(layer, scale, {1, 16}, "a scale of e4m3"));
    return FloatScales::kE4M3;
  }
  // Packed codes have groups of inputs, and fp8 blocks.
  const int64_t groups = scale.shape.size() == 2 && scale.shape[0] == layer.n ? scale.shape[1] : 1;
  if (out.codes != Codes::kBytes && groups > 1) {
    NIBBLE_ASSIGN(const int64_t group, group_of_count(layer, scale, groups));
    out.area = {1, group};
    return FloatScales::kPlain;
  }
  NIBBLE_ASSIGN(out.area, area_of(layer, scale, claims.block, claims.block_key));
  return FloatScales::kPlain;
}

}  // namespace nibble::quant
