// Canonical -> the card's.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/matmul/cuda_tiles.h"
#include "kernels/matmul/cuda_w8a8.h"
#include "kernels/matmul/cuda_weight.h"

namespace nibble::kernels {
namespace {

using tensor::QuantizedWeight;
using tensor::WeightFormat;
using tensor::ZeroKind;

void put_values(tensor::Element element, const CudaLayout& l, std::byte* image) {
  if (l.values < 0) return;
  auto* values = reinterpret_cast<float*>(image + l.values);
  for (uint32_t code = 0; code < 1u << l.code_bits; ++code) {
    // Signed codes are sign-extended to their byte in the canonical form; here the high bits are
    // cut off and put back.
    uint32_t canonical = code;
    const int bits = tensor::bits(element);
    if (l.code_bits == 4 && tensor::is_signed(element) && (code >> (bits - 1) & 1) != 0) {
      canonical = (code | ~((1u << bits) - 1)) & 0xffu;
    }
    values[code] = tensor::value_of(element, canonical);
  }
}

void put_row(const QuantizedWeight& w, const CudaLayout& l, int64_t n, std::byte* to) {
  const int unit = tensor::code_bytes(w.format.element);
  const std::byte* from = w.code.data + n * w.k * unit;
  std::memset(to, 0, static_cast<size_t>(l.row_bytes));
  if (l.code_bits != 4) {
    std::memcpy(to, from, static_cast<size_t>(w.k * unit));
    return;
  }
  for (int64_t i = 0; i < w.k / 2; ++i) {
    to[i] = (from[2 * i] & std::byte{15}) | from[2 * i + 1] << 4;
  }
  if (w.k % 2 != 0) to[w.k / 2] = from[w.k - 1] & std::byte{15};
}

template <class T>
const T* at(const device::Memory& image, int64_t offset) {
  return offset < 0 ? nullptr : reinterpret_cast<const T*>(image.data() + offset);
}

template <class T>
Result<device::Memory> copy_of(device::Stream& stream, const std::vector<T>& values) {
  if (values.empty()) return device::Memory();
  return device::Memory::copy_of(stream, values.data(), values.size() * sizeof(T));
}

}  // namespace

CudaLayout cuda_layout(int64_t n, int64_t k, const WeightFormat& f) {
  CudaLayout l;
  const int bits = tensor::bits(f.element);
  l.code_bits = bits <= 4 ? 4 : bits <= 8 ? 8 : bits;
  l.row_bytes = round_up(k, 32) * l.code_bits / 8;
  const int64_t groups = f.group_k == 0 ? 1 : (k + f.group_k - 1) / f.group_k;
  const int64_t scale_rows = f.group_n == 0 ? 1 : (n + f.group_n - 1) / f.group_n;
  constexpr int64_t kFloat = sizeof(float);
  const auto take = [&l](int64_t bytes) {
    const int64_t begin = round_up(l.bytes, 256);
    l.bytes = begin + bytes;
    return begin;
  };
  if (l.code_bits <= 8) l.values = take(kFloat << l.code_bits);
  if (f.scaled) l.scale = take(scale_rows * groups * kFloat);
  if (f.zero == ZeroKind::kInteger) l.zero = take(n * groups * kFloat);
  if (f.zero == ZeroKind::kOffset) l.offset = take(n * groups * kFloat);
  l.codes = take(n * l.row_bytes);
  return l;
}

Result<tensor::Buffer> cuda_image(const QuantizedWeight& w, const CudaLayout& l,
                                  device::Stream& stream) {
  NIBBLE_ASSIGN(tensor::Buffer image, tensor::Buffer::allocate(static_cast<size_t>(l.bytes)));
  const auto put = [&image](int64_t offset, const std::vector<float>& from) {
    if (offset >= 0) std::memcpy(image.data() + offset, from.data(), from.size() * sizeof(float));
  };
  put_values(w.format.element, l, image.data());
  put(l.scale, w.scale);
  put(l.zero, w.zero);
  put(l.offset, w.offset);
  const int64_t together = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, w.k));
  stream.pool().parallel_for(w.n, together, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      put_row(w, l, n, image.data() + l.codes + n * l.row_bytes);
    }
  });
  return image;
}

namespace {

Result<void> put_in_tiles(const QuantizedWeight& w, device::Stream& stream, CudaPacked& out) {
  const TileLayout l = tile_layout(w.n, w.k, w.format, needs_zeros(w));
  NIBBLE_ASSIGN(const tensor::Buffer image, tile_image(w, l, stream));
  NIBBLE_ASSIGN(out.image, device::Memory::copy_of(stream, image.data(), image.size()));
  out.weight.tiles = tiles_at(l, out.image.data(), scales_fold(w));
  return {};
}

Result<void> put_simply(const QuantizedWeight& w, device::Stream& stream, CudaPacked& out) {
  const CudaLayout l = cuda_layout(w.n, w.k, w.format);
  NIBBLE_ASSIGN(const tensor::Buffer image, cuda_image(w, l, stream));
  NIBBLE_ASSIGN(out.image, device::Memory::copy_of(stream, image.data(), image.size()));
  const WeightFormat& f = w.format;
  out.weight.row_bytes = l.row_bytes;
  out.weight.code_bits = l.code_bits;
  out.weight.is_bf16 = f.element == tensor::Element::kBF16;
  out.weight.group_n = f.group_n == 0 ? w.n : f.group_n;
  out.weight.group_k = f.group_k == 0 ? w.k : f.group_k;
  out.weight.groups = w.groups();
  out.weight.code = at<std::byte>(out.image, l.codes);
  out.weight.value = at<float>(out.image, l.values);
  out.weight.scale = at<float>(out.image, l.scale);
  out.weight.zero = at<float>(out.image, l.zero);
  out.weight.offset = at<float>(out.image, l.offset);
  return {};
}

}  // namespace

Result<std::shared_ptr<const CudaPacked>> pack_for_cuda(const QuantizedWeight& w,
                                                        const Choice& choice,
                                                        device::Stream& stream) {
  auto out = std::make_shared<CudaPacked>();
  out->cuda = stream.shared_cuda();
  out->weight.n = w.n;
  out->weight.k = w.k;
  NIBBLE_TRY(choice.packing == kTilePacking ? put_in_tiles(w, stream, *out)
                                            : put_simply(w, stream, *out));
  if (w.format.act_order) {
    NIBBLE_ASSIGN(out->order, copy_of(stream, w.order));
  }
  NIBBLE_ASSIGN(out->factor, copy_of(stream, w.input_factor));
  const auto* order = reinterpret_cast<const int32_t*>(out->order.data());
  out->weight.order = order;
  out->input = {reinterpret_cast<const float*>(out->factor.data()),
                w.input_hadamard,
                choice.activation,
                w.input_scale,
                w.input_zero,
                order};
  if (multiplies_codes(choice)) {
    NIBBLE_ASSIGN(out->row_scales, copy_of(stream, row_scales(w)));
    const auto* expanded = reinterpret_cast<const float*>(out->row_scales.data());
    out->row_scale = expanded != nullptr ? expanded : out->weight.scale;
  }
  return std::shared_ptr<const CudaPacked>(std::move(out));
}

void unpack_row_of_cuda(const CudaPacked& packed, int64_t n, float* out) {
  constexpr int kRowSlot = 9;
  device::Cuda& cuda = *packed.cuda;
  const size_t bytes = static_cast<size_t>(packed.weight.k) * sizeof(float);
  std::byte* scratch = cuda.scratch(kRowSlot, bytes + sizeof(int32_t));
  auto* row = reinterpret_cast<float*>(scratch);
  auto* id = reinterpret_cast<int32_t*>(scratch + bytes);
  const auto index = static_cast<int32_t>(n);
  cuda.to_device(id, &index, sizeof index);
  cuda.kernels().look_up(cuda.context(), &packed.weight, id, 1, row);
  if (!cuda.to_host(out, row, bytes)) std::fill_n(out, packed.weight.k, NAN);
}

}  // namespace nibble::kernels
