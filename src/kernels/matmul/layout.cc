#include "kernels/matmul/layout.h"

#include <fmt/format.h>

#include "base/check.h"

namespace nibble::kernels {
namespace {

using tensor::Element;
using tensor::SecondScale;
using tensor::WeightFormat;
using tensor::ZeroKind;

struct PackingInfo {
  const char* name;
  int least_bits;
  int most_bits;
  int64_t block_bytes;
};
constexpr PackingInfo kPackings[] = {
    {"n2", 1, 2, 256},     {"n4", 3, 4, 512},     {"n6", 5, 6, 768},  {"n8", 7, 8, 1024},
    {"n16", 16, 16, 2048}, {"n32", 32, 32, 4096}, {"plain", 1, 32, 0}};
const PackingInfo& info(Packing packing) { return kPackings[static_cast<int>(packing)]; }

ScaleStore store_of(const WeightFormat& f) {
  if (f.super_k > 0 && f.element != Element::kE2M1) return ScaleStore::kSuper;
  if (f.second_scale != SecondScale::kNone && f.zero != ZeroKind::kOffset) {
    return f.second_scale == SecondScale::kMultiplies ? ScaleStore::kE4M3 : ScaleStore::kE4M3Over;
  }
  switch (f.scale_type) {
    case tensor::DType::kE4M3:  // a subset of f16, also halved
      return ScaleStore::kF16;
    case tensor::DType::kF16:  // half of one may be no f16
      return f.element == Element::kE2M1 ? ScaleStore::kF32 : ScaleStore::kF16;
    case tensor::DType::kBF16:
    case tensor::DType::kE8M0:  // a subset of bf16, also halved
      return f.element == Element::kE2M1 && f.scale_type == tensor::DType::kBF16
                 ? ScaleStore::kF32
                 : ScaleStore::kBF16;
    default:
      return ScaleStore::kF32;
  }
}

// The inputs that share an activation scale: as many as possible up to 128, but never across a
// border between weight groups, or between groups of activations that the checkpoint quantizes.
int64_t unit_of(int64_t group_k, const tensor::ActivationFormat& activation) {
  if (group_k == 16) return 16;
  const bool grouped = activation.type == tensor::ActivationFormat::Type::kS8 &&
                       activation.granularity == tensor::ActivationFormat::Granularity::kGroup;
  const int64_t group_x = grouped ? activation.group : 0;
  for (int64_t unit : {int64_t{128}, int64_t{64}}) {
    if (group_k % unit == 0 && group_x % unit == 0) return unit;  // 0, no groups, too
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

void add_tiles(const WeightFormat& f, const tensor::ActivationFormat& activation, Layout& l) {
  l.tiles = round_up(l.n, kTileRows) / kTileRows;
  l.k_pad = round_up(l.k, kBlockK);
  l.sets = f.group_k == 16 ? 2 : 1;
  l.group = f.group_k == 0 ? l.k_pad : f.group_k * l.sets;
  l.groups = (l.k_pad + l.group - 1) / l.group;
  l.unit = unit_of(f.group_k, activation);
  l.header_bytes = kTileRows * l.sets * (l.scale_bytes * (l.has_offset ? 2 : 1) + l.zero_bytes);
  l.block_bytes = info(l.packing).block_bytes;
  int64_t supers = 0;
  if (l.scale_store == ScaleStore::kSuper) {
    l.super_groups = f.super_k / l.group;
    l.super_bytes = kTileRows * 2 * (l.has_offset ? 2 : 1);
    supers = (l.groups + l.super_groups - 1) / l.super_groups;
  } else if (l.scale_store >= ScaleStore::kE4M3) {
    l.super_groups = l.groups;
    l.super_scale_bytes = 4;
    l.super_bytes = kTileRows * l.super_scale_bytes;
    supers = 1;
  }
  l.tile_bytes =
      supers * l.super_bytes + l.groups * l.header_bytes + l.k_pad / kBlockK * l.block_bytes;
  l.bytes = l.tiles * l.tile_bytes;
}

// The values of an element's codes as stored, 16 or 256 of them.
const float* stored_values(Element element) {
  struct alignas(64) Tables {
    float value[24][256];
    Tables() {
      for (int e = 0; e < 24; ++e) {
        const auto type = static_cast<Element>(e);
        const int bits = tensor::bits(type);
        const uint32_t codes = bits > 8 ? 0 : bits > 4 ? 256 : 16;
        for (uint32_t c = 0; c < codes; ++c) {
          value[e][c] = (type == Element::kE2M1 ? 2.0f : 1.0f) * tensor::value_of(type, c);
        }
      }
    }
  };
  static const Tables tables;
  return tables.value[static_cast<int>(element)];
}

std::string group_refusal(const MatmulProblem& problem) {
  const WeightFormat& f = problem.weight;
  const bool fits = f.group_k == 0 || f.group_k == 16 || f.group_k % 32 == 0;
  if (!fits && f.group_k < problem.k) {
    return fmt::format("needs groups of 16 or of a multiple of 32 along K; the group is {}",
                       f.group_k);
  }
  const int64_t header = f.group_k == 16 ? 32 : f.group_k;
  if (f.super_k > 0 && (header == 0 || f.super_k % header != 0)) {
    return fmt::format("needs super groups of whole groups; {} is not a multiple of {}", f.super_k,
                       header);
  }
  return "";
}

}  // namespace

const char* name(Packing packing) { return info(packing).name; }

Packing packing_named(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(Packing::kPlain); ++i) {
    if (name == kPackings[i].name) return static_cast<Packing>(i);
  }
  NIBBLE_CHECK(false && "unknown packing");
}

int32_t code_bias(Element element) {
  if (!tensor::is_signed(element)) return 0;
  return 1 << (tensor::bits(element) - 1);
}

std::string packing_refusal(const MatmulProblem& problem, Packing packing) {
  const WeightFormat& f = problem.weight;
  if (packing == Packing::kPlain) return "";
  const int bits = tensor::bits(f.element);
  const PackingInfo& p = info(packing);
  if (bits < p.least_bits || bits > p.most_bits) {
    return fmt::format("holds codes of {} to {} bits; {} has {}", p.least_bits, p.most_bits,
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
  return group_refusal(problem);
}

Layout make_layout(const MatmulProblem& problem, Packing packing) {
  WeightFormat f = problem.weight;
  Layout l;
  l.packing = packing;
  l.n = problem.n;
  l.k = problem.k;
  if (packing == Packing::kPlain) {
    add_plain(f, l);
    return l;
  }
  if (f.group_k >= problem.k && f.super_k == 0) f.group_k = 0;  // one group along K
  if (packing <= Packing::kN8) {  // a weight without scales is stored with scales of 1
    l.scale_store = store_of(f);
    constexpr int64_t kBytes[] = {2, 2, 4, 1, 1, 1};
    l.scale_bytes = kBytes[static_cast<int>(l.scale_store)];
    l.values = stored_values(f.element);
  }
  l.has_offset = f.zero == ZeroKind::kOffset;
  if (tensor::is_integer(f.element)) l.zero_const = code_bias(f.element);
  if (f.element == Element::kE2M1) l.zero_const = kE2M1Zero;
  if (f.zero == ZeroKind::kInteger) l.zero_bytes = packing <= Packing::kN4 ? 1 : 2;
  add_tiles(f, problem.activation, l);
  return l;
}

}  // namespace nibble::kernels
