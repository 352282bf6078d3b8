#include "kernels/matmul/cuda_tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/number.h"
#include "kernels/matmul/layout.h"

namespace nibble::kernels {
namespace {

using tensor::DType;
using tensor::QuantizedWeight;
using tensor::WeightFormat;
using tensor::ZeroKind;

constexpr int64_t kStrip = 64;
constexpr int64_t kUnit = 128;
constexpr int64_t kBlock = 64;
constexpr int kNoZero = 8;  // what 4-bit codes are less without a stored zero

// Where the scale of a row is among a strip's 64: a lane's, for its rows g and g + 8 of each of the
// four row tiles, are neighbours.
int64_t scale_index(int64_t row) { return row % 8 * 8 + row / 16 * 2 + row / 8 % 2; }

// The canonical zero as it is stored: of unsigned 4-bit codes.
float stored_zero(const QuantizedWeight& w, int64_t n, int64_t g) {
  const float zero = w.zero.empty() ? 0 : w.zero[static_cast<size_t>(n * w.groups() + g)];
  return tensor::is_signed(w.format.element) ? zero + kNoZero : zero;
}

// A code as tiles hold it.
uint32_t tile_code(const QuantizedWeight& w, int bits, int64_t n, int64_t k) {
  if (n >= w.n || k >= w.k) return bits == 4 ? kNoZero : 0;
  const auto code = static_cast<uint32_t>(w.code.data[n * w.k + k]);
  if (bits == 8) return code;
  return (tensor::is_signed(w.format.element) ? code + kNoZero : code) & 15u;
}

// One block of 64 rows and 64 inputs: [4 row tiles][32 lanes][words].
void put_block(const QuantizedWeight& w, int bits, int64_t strip, int64_t block, uint32_t* to) {
  const int words = bits == 4 ? 4 : 8;
  for (int tile = 0; tile < 4; ++tile) {
    for (int lane = 0; lane < 32; ++lane) {
      const int64_t row = strip * kStrip + tile * 16 + lane / 4;
      const int64_t first = block * kBlock + lane % 4 * 2;
      for (int j = 0; j < 4; ++j) {
        uint32_t out[2] = {};
        for (int reg = 0; reg < 4; ++reg) {
          for (int half = 0; half < 2; ++half) {
            const uint32_t code =
                tile_code(w, bits, row + reg % 2 * 8, first + j * 16 + reg / 2 * 8 + half);
            if (bits == 4) {
              out[0] |= code << (4 * reg + 16 * half);
            } else {
              out[reg / 2] |= code << (8 * (reg % 2) + 16 * half);
            }
          }
        }
        uint32_t* word = to + (tile * 32 + lane) * words + j * words / 4;
        word[0] = out[0];
        if (bits == 8) word[1] = out[1];
      }
    }
  }
}

struct Trouble {
  std::atomic<bool> found = false;
  int64_t row = 0;
  int64_t group = 0;
  void note(int64_t n, int64_t g) {
    if (!found.exchange(true)) row = n, group = g;
  }
};

void put_scales(const QuantizedWeight& w, const TileLayout& l, int64_t strip, std::byte* image,
                Trouble& trouble) {
  const int64_t groups = w.groups();
  auto* scales = reinterpret_cast<uint16_t*>(image + l.scales_at) + strip * l.groups * kStrip;
  auto* zeros = l.zeros ? reinterpret_cast<uint8_t*>(image + l.zeros_at) + strip * l.groups * kStrip
                        : nullptr;
  for (int64_t r = 0; r < kStrip; ++r) {
    const int64_t n = strip * kStrip + r;
    for (int64_t g = 0; g < l.groups; ++g) {
      const int64_t at = g * kStrip + scale_index(r);
      scales[at] = 0;
      if (zeros != nullptr) zeros[at] = kNoZero;
      if (n >= w.n || g >= groups) continue;
      const int64_t scale_row = w.format.group_n == 0 ? 0 : n / w.format.group_n;
      const float scale = w.scale[static_cast<size_t>(scale_row * groups + g)];
      scales[at] = l.scales_are_bf16 ? base::bf16_from_f32(scale) : base::f16_from_f32(scale);
      const float back =
          l.scales_are_bf16 ? base::f32_from_bf16(scales[at]) : base::f32_from_f16(scales[at]);
      if (back != scale) trouble.note(n, g);
      if (zeros == nullptr) continue;
      const float zero = stored_zero(w, n, g);
      if (!(zero >= 0 && zero <= 127 && zero == static_cast<float>(static_cast<int>(zero)))) {
        trouble.note(n, g);
        continue;
      }
      zeros[at] = static_cast<uint8_t>(zero);
    }
  }
}

}  // namespace

std::string tiles_refusal(const WeightFormat& f) {
  const bool four = tensor::is_integer(f.element) && tensor::bits(f.element) <= 4;
  const bool eight = tensor::is_signed(f.element) && tensor::bits(f.element) <= 8;
  if (!four && !eight) {
    return fmt::format("reads s2 to s8 and u2 to u4; the weight is {}", tensor::name(f.element));
  }
  if (!f.scaled || f.zero == ZeroKind::kOffset) {
    return fmt::format("reads codes with scales and integer zero points; the weight is {}",
                       tensor::to_string(f));
  }
  if (!four && f.zero != ZeroKind::kNone) {
    return fmt::format("reads 8-bit codes without zero points; the weight is {}",
                       tensor::to_string(f));
  }
  if (f.group_k != 0 && f.group_k != 32 && f.group_k % 64 != 0) {
    return fmt::format("needs scales for 32 or a multiple of 64 inputs; they are for {}",
                       f.group_k);
  }
  switch (f.scale_type) {
    case DType::kF16:
    case DType::kBF16:
    case DType::kE4M3:
    case DType::kE8M0:
      return "";
    default:
      return fmt::format("needs scales that 16 bits hold; they are {}", tensor::name(f.scale_type));
  }
}

TileLayout tile_layout(int64_t n, int64_t k, const WeightFormat& f, bool zeros) {
  TileLayout l;
  l.bits = tensor::bits(f.element) <= 4 ? 4 : 8;
  l.strips = round_up(n, kStrip) / kStrip;
  l.units = round_up(k, kUnit) / kUnit;
  l.group = f.group_k == 0 ? l.k_pad() : std::min(f.group_k, l.k_pad());
  l.groups = round_up(l.k_pad(), l.group) / l.group;
  // Unsigned codes without zeros are less 0, not 8.
  l.zeros = l.bits == 4 && zeros && (f.zero == ZeroKind::kInteger || !tensor::is_signed(f.element));
  l.scales_are_bf16 = f.scale_type == DType::kBF16 || f.scale_type == DType::kE8M0;
  const auto take = [&l](int64_t bytes) {
    const int64_t begin = round_up(l.bytes, 256);
    l.bytes = begin + bytes;
    return begin;
  };
  l.scales_at = take(l.strips * l.groups * kStrip * 2);
  if (l.zeros) l.zeros_at = take(l.strips * l.groups * kStrip);
  l.codes_at = take(l.strips * l.units * kStrip * kUnit * l.bits / 8);
  return l;
}

bool needs_zeros(const QuantizedWeight& w) {
  if (tensor::bits(w.format.element) > 4) return false;
  if (w.zero.empty()) return !tensor::is_signed(w.format.element);
  const float none = tensor::is_signed(w.format.element) ? 0 : kNoZero;
  return std::any_of(w.zero.begin(), w.zero.end(), [&](float zero) { return zero != none; });
}

bool scales_fold(const QuantizedWeight& w) {
  return std::all_of(w.scale.begin(), w.scale.end(), [](float scale) {
    const float size = std::fabs(scale);
    return size == 0 || (size >= 0x1p-60f && size < 0x1p19f);
  });
}

Result<tensor::Buffer> tile_image(const QuantizedWeight& w, const TileLayout& l,
                                  device::Stream& stream) {
  NIBBLE_ASSIGN(tensor::Buffer image, tensor::Buffer::allocate(static_cast<size_t>(l.bytes)));
  const int64_t block_words = kStrip * kBlock * l.bits / 32;
  Trouble trouble;
  stream.pool().parallel_for(l.strips, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t strip = begin; strip < end; ++strip) {
      put_scales(w, l, strip, image.data(), trouble);
      auto* codes = reinterpret_cast<uint32_t*>(image.data() + l.codes_at) +
                    strip * l.units * 2 * block_words;
      for (int64_t b = 0; b < 2 * l.units; ++b) {
        put_block(w, l.bits, strip, b, codes + b * block_words);
      }
    }
  });
  if (trouble.found) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("row {}, group {} of a {} weight has a scale or zero point that cannot "
                            "be held as {} and u8",
                            trouble.row, trouble.group, tensor::to_string(w.format),
                            l.scales_are_bf16 ? "bf16" : "f16"));
  }
  return image;
}

CudaTiles tiles_at(const TileLayout& l, const std::byte* image, bool scales_fold) {
  return {l.bits,
          static_cast<int32_t>(l.group),
          l.k_pad(),
          l.groups,
          l.scales_are_bf16 ? 1 : 0,
          scales_fold ? 1 : 0,
          image + l.codes_at,
          image + l.scales_at,
          l.zeros ? image + l.zeros_at : nullptr};
}

}  // namespace nibble::kernels
