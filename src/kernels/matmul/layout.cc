#include "kernels/matmul/layout.h"

#include <fmt/format.h>

#include "base/check.h"

namespace nibble::kernels {
namespace {

using tensor::Element;
using tensor::WeightFormat;
using tensor::ZeroKind;

constexpr const char* kNames[] = {"n4", "n8", "n16", "n32", "plain"};

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

ScaleStore store_of(tensor::DType type) {
  switch (type) {
    case tensor::DType::kF16:
    case tensor::DType::kE4M3:  // a subset of f16
      return ScaleStore::kF16;
    case tensor::DType::kBF16:
    case tensor::DType::kE8M0:  // a subset of bf16
      return ScaleStore::kBF16;
    default:
      return ScaleStore::kF32;
  }
}

// The inputs that share an activation scale: as many as possible up to 128, but never across a
// border between weight groups.
int64_t unit_of(int64_t group_k) {
  if (group_k == 16) return 16;
  for (int64_t unit : {int64_t{128}, int64_t{64}}) {
    if (group_k % unit == 0) return unit;  // 0, no groups, too
  }
  return 32;
}

void add_plain(const WeightFormat& f, Layout& l) {
  const int64_t groups = f.group_k == 0 ? 1 : (l.k + f.group_k - 1) / f.group_k;
  const int64_t scale_rows = f.group_n == 0 ? 1 : (l.n + f.group_n - 1) / f.group_n;
  const int64_t scales = f.scaled ? scale_rows * groups : 0;
  l.groups = groups;
  l.zero_at = 4 * scales;
  l.offset_at = l.zero_at + (f.zero == ZeroKind::kInteger ? 4 * l.n * groups : 0);
  l.code_at = l.offset_at + (f.zero == ZeroKind::kOffset ? 4 * l.n * groups : 0);
  l.bytes = l.code_at + l.n * l.k * tensor::code_bytes(f.element);
}

void add_tiles(const WeightFormat& f, Layout& l) {
  l.tiles = round_up(l.n, kTileRows) / kTileRows;
  l.k_pad = round_up(l.k, kBlockK);
  l.sets = f.group_k == 16 ? 2 : 1;
  l.group = f.group_k == 0 ? l.k_pad : f.group_k * l.sets;
  l.groups = (l.k_pad + l.group - 1) / l.group;
  l.unit = unit_of(f.group_k);
  l.header_bytes = kTileRows * l.sets * (l.scale_bytes * (l.has_offset ? 2 : 1) + l.zero_bytes);
  l.block_bytes = 512 << static_cast<int>(l.packing);
  l.tile_bytes = l.groups * l.header_bytes + l.k_pad / kBlockK * l.block_bytes;
  l.bytes = l.tiles * l.tile_bytes;
}

}  // namespace

const char* name(Packing packing) { return kNames[static_cast<int>(packing)]; }

Packing packing_named(const std::string& name) {
  for (int i = 0; i < 5; ++i) {
    if (name == kNames[i]) return static_cast<Packing>(i);
  }
  NIBBLE_CHECK(false && "unknown packing");
}

const float* code_values(Element element) {
  struct alignas(64) Tables {
    float value[22][256];
    Tables() {
      for (uint32_t e = 0; e < 22; ++e) {
        const int bits = tensor::bits(static_cast<Element>(e));
        const uint32_t codes = bits > 8 ? 0 : bits > 4 ? 256 : 16;
        for (uint32_t c = 0; c < codes; ++c) {
          value[e][c] = tensor::value_of(static_cast<Element>(e), c);
        }
      }
    }
  };
  static const Tables tables;
  return tables.value[static_cast<int>(element)];
}

int32_t code_bias(Element element) {
  if (element < Element::kS8 || element > Element::kS2) return 0;
  return 1 << (tensor::bits(element) - 1);
}

std::string packing_refusal(const MatmulProblem& problem, Packing packing) {
  const WeightFormat& f = problem.weight;
  if (packing == Packing::kPlain) return "";
  const int bits = tensor::bits(f.element);
  const int most = 4 << static_cast<int>(packing);
  const int least = packing == Packing::kN4 ? 1 : most / 2 + 1;
  if (bits < least || bits > most) {
    return fmt::format("holds codes of {} to {} bits; {} has {}", least, most,
                       tensor::name(f.element), bits);
  }
  if (f.element == Element::kE5M2FNUZ) {
    return "e5m2fnuz has no fast kernel: its largest exponent is one too many for f16";
  }
  if (packing >= Packing::kN16) {
    if (f.scaled || f.zero != ZeroKind::kNone) {
      return fmt::format("holds floats without scales; the weight is {}", tensor::to_string(f));
    }
    return "";
  }
  if (f.zero != ZeroKind::kNone && !tensor::is_integer(f.element)) {
    return fmt::format("holds zero points of integer codes; the weight is {}",
                       tensor::to_string(f));
  }
  const bool groups_fit = f.group_k == 0 || f.group_k == 16 || f.group_k % 32 == 0;
  if (!groups_fit && f.group_k < problem.k) {
    return fmt::format("needs groups of 16 or of a multiple of 32 along K; the group is {}",
                       f.group_k);
  }
  return "";
}

Layout make_layout(const MatmulProblem& problem, Packing packing) {
  WeightFormat f = problem.weight;
  if (f.group_k >= problem.k) f.group_k = 0;  // one group along K
  Layout l;
  l.packing = packing;
  l.n = problem.n;
  l.k = problem.k;
  if (packing == Packing::kPlain) {
    add_plain(problem.weight, l);
    return l;
  }
  if (packing <= Packing::kN8) {  // a weight without scales is stored with scales of 1
    l.scale_store = store_of(f.scale_type);
    l.scale_bytes = l.scale_store == ScaleStore::kF32 ? 4 : 2;
  }
  if (packing <= Packing::kN8) l.values = code_values(f.element);
  l.has_offset = f.zero == ZeroKind::kOffset;
  if (tensor::is_integer(f.element)) l.zero_const = code_bias(f.element);
  if (f.zero == ZeroKind::kInteger) l.zero_bytes = packing == Packing::kN4 ? 1 : 2;
  add_tiles(f, l);
  return l;
}

}  // namespace nibble::kernels
