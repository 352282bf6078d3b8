// Canonical -> packed, and back one row at a time.
#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/number.h"
#include "kernels/matmul/cuda_tiles.h"
#include "kernels/matmul/cuda_weight.h"
#include "kernels/matmul/kernel.h"

namespace nibble::kernels {
namespace {

using tensor::QuantizedWeight;
using tensor::WeightFormat;
using tensor::ZeroKind;

// The arrays of a canonical weight, addressed by row and group.
struct Source {
  explicit Source(const QuantizedWeight& weight)
      : w(weight), unit(tensor::code_bytes(weight.format.element)), groups(weight.groups()) {}

  const QuantizedWeight& w;
  int unit;
  int64_t groups;

  float scale(int64_t n, int64_t g) const {
    const WeightFormat& f = w.format;
    if (!f.scaled) return 1.0f;
    const int64_t row = f.group_n == 0 ? 0 : n / f.group_n;
    return w.scale[static_cast<size_t>(row * groups + g)];
  }
  // As it is stored: e2m1 has its values doubled and its scales halved.
  float stored_scale(int64_t n, int64_t g) const {
    return w.format.element == tensor::Element::kE2M1 ? scale(n, g) / 2 : scale(n, g);
  }
  float zero(int64_t n, int64_t g) const { return w.zero[static_cast<size_t>(n * groups + g)]; }
  float offset(int64_t n, int64_t g) const { return w.offset[static_cast<size_t>(n * groups + g)]; }
  const uint8_t* codes(int64_t n) const {
    return reinterpret_cast<const uint8_t*>(w.code.data) + n * w.k * unit;
  }
};

// A number that its packed form cannot hold: its row and group, 0 when there is none.
struct Trouble {
  std::atomic<bool> found{false};
  std::atomic<int64_t> row{0};
  std::atomic<int64_t> group{0};

  void report(int64_t n, int64_t g) {
    if (!found.exchange(true)) {
      row = n;
      group = g;
    }
  }
};

bool same_number(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Writes `value` as `store`; false when that changes it. `super` is the f16 of a super header.
bool put_scale(ScaleStore store, float value, const std::byte* super, std::byte* to);
float get_scale(ScaleStore store, const std::byte* super, const std::byte* from);

float get_f16(const std::byte* from) {
  uint16_t code;
  std::memcpy(&code, from, 2);
  return base::f32_from_f16(code);
}

bool put_scale(ScaleStore store, float value, const std::byte* super, std::byte* to) {
  if (store == ScaleStore::kF32) {
    std::memcpy(to, &value, 4);
    return true;
  }
  if (store == ScaleStore::kSuper) {
    const float unit = get_f16(super);
    const float times = unit == 0 ? 0 : value / unit;
    if (!(times >= -128 && times <= 127)) return false;
    *to = static_cast<std::byte>(static_cast<int8_t>(std::nearbyint(times)));
  } else {
    const uint16_t code =
        store == ScaleStore::kF16 ? base::f16_from_f32(value) : base::bf16_from_f32(value);
    std::memcpy(to, &code, 2);
  }
  return same_number(get_scale(store, super, to), value);
}

float get_scale(ScaleStore store, const std::byte* super, const std::byte* from) {
  if (store == ScaleStore::kF32) {
    float value;
    std::memcpy(&value, from, 4);
    return value;
  }
  if (store == ScaleStore::kSuper) {
    return static_cast<float>(static_cast<int8_t>(*from)) * get_f16(super);
  }
  if (store == ScaleStore::kF16) return get_f16(from);
  uint16_t code;
  std::memcpy(&code, from, 2);
  return base::f32_from_bf16(code);
}

// The f16 of which all `count` numbers are multiples by -128..127, found again from their products:
// every finite float is an integer times a power of two, and the f16 divides all of them. 0 when
// there is none (or all are 0).
float common_f16(const std::vector<float>& numbers) {
  int lowest = 1000;
  for (const float v : numbers) {
    int exponent;
    if (v == 0 || !std::isfinite(v)) continue;
    std::frexp(v, &exponent);
    lowest = std::min(lowest, exponent - 24);
  }
  uint64_t divisor = 0;
  uint64_t most = 0;
  float largest = 0;
  for (const float v : numbers) {
    const double units = std::ldexp(std::fabs(double{v}), -lowest);
    if (!(units < 0x1p62)) return 0;
    divisor = std::gcd(divisor, static_cast<uint64_t>(units));
    if (static_cast<uint64_t>(units) <= most) continue;
    most = static_cast<uint64_t>(units);
    largest = v;
  }
  if (divisor == 0) return 0;
  // The products may have a factor in common; the f16 is then the divisor over that. Its sign is
  // such that a product by 128, which s8 has not, becomes one by -128.
  for (uint64_t factor = 1; most / divisor * factor <= 128; ++factor) {
    const double unit =
        std::ldexp(static_cast<double>(divisor) / static_cast<double>(factor), lowest);
    const auto narrow = static_cast<float>(unit);
    if (narrow != unit || base::f32_from_f16(base::f16_from_f32(narrow)) != narrow) continue;
    return largest > 0 && most / divisor * factor == 128 ? -narrow : narrow;
  }
  return 0;
}

bool put_zero(int64_t bytes, float value, std::byte* to) {
  const float most = bytes == 1 ? 127.0f : 32767.0f;
  if (!(value >= -most && value <= most) || value != std::floor(value)) return false;
  const auto zero = static_cast<int16_t>(value);
  std::memcpy(to, &zero, static_cast<size_t>(bytes));  // little endian: the low byte first
  return true;
}

int32_t get_zero(int64_t bytes, const std::byte* from) {
  if (bytes == 1) return static_cast<int8_t>(*from);
  int16_t zero;
  std::memcpy(&zero, from, 2);
  return zero;
}

// The numbers of row r in scale group g of a tile.
template <class Byte>
Header<Byte> header_at(const Layout& l, Byte* tile, int64_t g, int64_t r) {
  const Group<Byte> group = group_in(l, tile, g / l.sets);
  Header<Byte> h = header_parts(l, group.header, group.super, g % l.sets);
  return {h.scale + r * l.scale_bytes, h.zero + r * l.zero_bytes, h.offset + r * l.scale_bytes,
          h.super_scale + r * 2, h.super_offset + r * 2};
}

// Offset of block b (of 32 inputs) in a tile.
int64_t block_at(const Layout& l, int64_t b) {
  const int64_t group_blocks = l.group / kBlockK;
  const int64_t g = b / group_blocks;
  const int64_t super = g % l.super_groups == 0 ? l.super_bytes : 0;
  return group_at(l, g) + super + l.header_bytes + b % group_blocks * l.block_bytes;
}

void pack_supers(const Layout& l, const Source& src, int64_t n, std::byte* tile) {
  const int64_t scale_groups = l.super_groups * l.sets;
  std::vector<float> numbers;
  for (int64_t first = 0; first < src.groups; first += scale_groups) {
    const int64_t count = std::min(scale_groups, src.groups - first);
    const auto at = header_at(l, tile, first, n % kTileRows);
    numbers.clear();
    for (int64_t g = first; g < first + count; ++g) numbers.push_back(src.stored_scale(n, g));
    uint16_t code = base::f16_from_f32(common_f16(numbers));
    std::memcpy(at.super_scale, &code, 2);
    if (!l.has_offset) continue;
    numbers.clear();
    for (int64_t g = first; g < first + count; ++g) numbers.push_back(src.offset(n, g));
    code = base::f16_from_f32(common_f16(numbers));
    std::memcpy(at.super_offset, &code, 2);
  }
}

void pack_headers(const Layout& l, const Source& src, int64_t n, std::byte* tile,
                  Trouble& trouble) {
  if (l.header_bytes == 0) return;
  if (l.super_bytes != 0) pack_supers(l, src, n, tile);
  const float bias = static_cast<float>(code_bias(src.w.format.element));
  for (int64_t g = 0; g < src.groups; ++g) {
    const auto at = header_at(l, tile, g, n % kTileRows);
    const float scale = src.stored_scale(n, g);
    bool exact = put_scale(l.scale_store, scale, at.super_scale, at.scale);
    // What half of a scale loses at the end of float's range would be lost.
    if (scale != src.scale(n, g)) exact &= same_number(2 * scale, src.scale(n, g));
    if (l.zero_bytes != 0) exact &= put_zero(l.zero_bytes, src.zero(n, g) + bias, at.zero);
    if (l.has_offset) {
      exact &= put_scale(l.scale_store, src.offset(n, g), at.super_offset, at.offset);
    }
    if (!exact) trouble.report(n, g);
  }
}

// Line j (0..3) of a nibble plane, or line 0 or 1 of a plane of 2 bits, for one row: see layout.h.
uint32_t nibble_lane(const uint8_t* codes, int j) {
  uint32_t lane = 0;
  for (int b = 0; b < 4; ++b) {
    const uint32_t byte = (codes[4 * j + b] & 15u) | (codes[16 + 4 * j + b] & 15u) << 4;
    lane |= byte << (8 * b);
  }
  return lane;
}
uint32_t pair_lane(const uint8_t* codes, int line, int shift) {
  uint32_t lane = 0;
  for (int j = 0; j < 4; ++j) {
    for (int b = 0; b < 4; ++b) {
      const uint32_t two = codes[16 * line + 4 * j + b] >> shift & 3u;
      lane |= two << (8 * b + 2 * j);
    }
  }
  return lane;
}

// 32 codes of one row, unsigned, into a block; `to` is the row's place in its first line.
void pack_block(Packing packing, const uint8_t* codes, std::byte* to) {
  if (packing == Packing::kN4 || packing == Packing::kN6) {
    for (int j = 0; j < 4; ++j) {
      const uint32_t lane = nibble_lane(codes, j);
      std::memcpy(to + j * 128, &lane, 4);
    }
  }
  if (packing == Packing::kN2 || packing == Packing::kN6) {
    const bool high = packing == Packing::kN6;
    for (int line = 0; line < 2; ++line) {
      const uint32_t lane = pair_lane(codes, line, high ? 4 : 0);
      std::memcpy(to + (high ? 512 : 0) + line * 128, &lane, 4);
    }
  }
  if (packing == Packing::kN8) {
    for (int i = 0; i < 8; ++i) std::memcpy(to + i * 128, codes + 4 * i, 4);
  }
}

// n2 to n8.
void pack_row_codes(const Layout& l, const uint8_t* codes, uint8_t bias, int64_t r,
                    std::byte* tile) {
  for (int64_t b = 0; b < l.k_pad / kBlockK; ++b) {
    uint8_t block[kBlockK] = {};
    const int64_t count = std::min(kBlockK, l.k - b * kBlockK);
    for (int64_t i = 0; i < count; ++i) {
      block[i] = static_cast<uint8_t>(codes[b * kBlockK + i] + bias);
    }
    pack_block(l.packing, block, tile + block_at(l, b) + r * 4);
  }
}

// n16 and n32: `unit` bytes a code.
void pack_row_floats(const Layout& l, const uint8_t* codes, int unit, int64_t r, std::byte* tile) {
  for (int64_t b = 0; b < l.k_pad / kBlockK; ++b) {
    uint8_t block[kBlockK * 4] = {};
    const int64_t count = std::min(kBlockK, l.k - b * kBlockK);
    std::memcpy(block, codes + b * kBlockK * unit, static_cast<size_t>(count * unit));
    std::byte* to = tile + block_at(l, b) + r * 4;
    for (int64_t i = 0; i < kBlockK * unit / 4; ++i) std::memcpy(to + i * 128, block + 4 * i, 4);
  }
}

void pack_tile(const Layout& l, const Source& src, int64_t t, std::byte* tile, Trouble& trouble) {
  std::memset(tile, 0, static_cast<size_t>(l.tile_bytes));
  const auto bias = static_cast<uint8_t>(code_bias(src.w.format.element));
  for (int64_t n = t * kTileRows; n < std::min(l.n, (t + 1) * kTileRows); ++n) {
    pack_headers(l, src, n, tile, trouble);
    if (l.packing <= Packing::kN8) {
      pack_row_codes(l, src.codes(n), bias, n % kTileRows, tile);
    } else {
      pack_row_floats(l, src.codes(n), src.unit, n % kTileRows, tile);
    }
  }
}

void pack_plain(const Layout& l, const QuantizedWeight& w, std::byte* to) {
  const auto copy = [&](int64_t at, const std::vector<float>& from) {
    if (!from.empty()) std::memcpy(to + at, from.data(), from.size() * sizeof(float));
  };
  if (w.format.scaled) copy(0, w.scale);
  if (w.format.zero == ZeroKind::kInteger) copy(l.zero_at, w.zero);
  if (w.format.zero == ZeroKind::kOffset) copy(l.offset_at, w.offset);
  std::memcpy(to + l.code_at, w.code.data, static_cast<size_t>(l.bytes - l.code_at));
}

// A plain weight as the canonical one it was, so that one function defines its numbers.
void unpack_plain_row(const PackedWeight& weight, const Layout& l, int64_t n, float* out) {
  const WeightFormat& f = weight.problem.weight;
  const int unit = tensor::code_bytes(f.element);
  const std::byte* data = weight.bytes.data();
  const auto number = [&](int64_t at, int64_t i) {
    float v;
    std::memcpy(&v, data + at + 4 * i, 4);
    return v;
  };
  const int64_t group_k = f.group_k == 0 ? l.k : f.group_k;
  const int64_t scale_row = (f.group_n == 0 ? 0 : n / f.group_n) * l.groups;
  const std::byte* codes = data + l.code_at + n * l.k * unit;
  for (int64_t k = 0; k < l.k; ++k) {
    uint32_t code = 0;
    std::memcpy(&code, codes + k * unit, static_cast<size_t>(unit));
    const int64_t g = k / group_k;
    float v = tensor::value_of(f.element, code);
    if (f.zero == ZeroKind::kInteger) v -= number(l.zero_at, n * l.groups + g);
    if (f.scaled) v *= number(0, scale_row + g);
    if (f.zero == ZeroKind::kOffset) v += number(l.offset_at, n * l.groups + g);
    out[k] = v;
  }
}

// The 32 codes of row r in a block.
void unpack_block(Packing packing, const std::byte* block, int64_t r, uint32_t (&codes)[kBlockK]) {
  const auto byte = [&](int64_t line, int64_t b) {
    return static_cast<uint32_t>(block[line * 128 + r * 4 + b]);
  };
  for (int64_t i = 0; i < kBlockK; ++i) {
    const int64_t b = i % 4;
    const int64_t j = i % 16 / 4;
    const auto nibble = [&] { return i < 16 ? byte(j, b) & 15 : byte(j, b) >> 4; };
    switch (packing) {
      case Packing::kN2:
        codes[i] = byte(i / 16, b) >> 2 * j & 3;
        break;
      case Packing::kN4:
        codes[i] = nibble();
        break;
      case Packing::kN6:
        codes[i] = nibble() | (byte(4 + i / 16, b) >> 2 * j & 3) << 4;
        break;
      case Packing::kN8:
        codes[i] = byte(i / 4, b);
        break;
      case Packing::kN16:
        codes[i] = byte(i / 2, i % 2 * 2) | byte(i / 2, i % 2 * 2 + 1) << 8;
        break;
      default:
        std::memcpy(&codes[i], block + i * 128 + r * 4, 4);
    }
  }
}

void unpack_tile_row(const PackedWeight& weight, const Layout& l, int64_t n, float* out) {
  const tensor::Element element = weight.problem.weight.element;
  const std::byte* tile = weight.bytes.data() + n / kTileRows * l.tile_bytes;
  const int64_t r = n % kTileRows;
  const int64_t scale_group = l.group / l.sets;
  uint32_t codes[kBlockK];
  for (int64_t first = 0; first < l.k; first += kBlockK) {
    unpack_block(l.packing, tile + block_at(l, first / kBlockK), r, codes);
    for (int64_t i = 0; i < std::min(kBlockK, l.k - first); ++i) {
      const int64_t k = first + i;
      if (l.header_bytes == 0) {
        out[k] = tensor::value_of(element, codes[i]);
        continue;
      }
      const auto at = header_at(l, tile, k / scale_group, r);
      float v = l.values[codes[i]];
      if (tensor::is_integer(element)) {
        const int32_t zero = l.zero_bytes != 0 ? get_zero(l.zero_bytes, at.zero) : l.zero_const;
        v = static_cast<float>(static_cast<int32_t>(codes[i]) - zero);
      }
      v *= get_scale(l.scale_store, at.super_scale, at.scale);
      if (l.has_offset) v += get_scale(l.scale_store, at.super_offset, at.offset);
      out[k] = v;
    }
  }
}

}  // namespace

int64_t packed_bytes(const MatmulProblem& problem, const Choice& choice) {
  if (choice.packing == kTilePacking) {
    return tile_layout(problem.n, problem.k, problem.weight).bytes;
  }
  if (choice.packing == kCudaPacking) {
    return cuda_layout(problem.n, problem.k, problem.weight).bytes;
  }
  MatmulProblem held = problem;
  held.activation = choice.activation;
  return make_layout(held, packing_named(choice.packing)).bytes;
}

Result<PackedWeight> pack(const QuantizedWeight& weight, Choice choice, device::Stream& stream) {
  PackedWeight out;
  out.problem = {weight.n, weight.k, weight.format, choice.activation};
  if (stream.cuda() != nullptr) {
    NIBBLE_ASSIGN(out.cuda, pack_for_cuda(weight, choice, stream));
    out.choice = std::move(choice);
    return out;
  }
  out.layout = std::make_shared<Layout>(make_layout(out.problem, packing_named(choice.packing)));
  const Layout& l = *out.layout;
  out.choice = std::move(choice);
  NIBBLE_ASSIGN(out.bytes, tensor::Buffer::allocate(static_cast<size_t>(l.bytes)));
  if (weight.format.act_order) out.order = weight.order;
  out.input_factor = weight.input_factor;
  out.input_hadamard = weight.input_hadamard;
  out.input_scale = weight.input_scale;
  out.input_zero = weight.input_zero;
  if (l.packing == Packing::kPlain) {
    pack_plain(l, weight, out.bytes.data());
    return out;
  }
  const Source src(weight);
  Trouble trouble;
  stream.pool().parallel_for(l.tiles, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      pack_tile(l, src, t, out.bytes.data() + t * l.tile_bytes, trouble);
    }
  });
  if (trouble.found) {
    const int64_t n = trouble.row;
    const int64_t g = trouble.group;
    return fail(ErrorCode::kCorrupt,
                fmt::format("row {}, group {} of a {} weight: scale {}{} cannot be held as {}", n,
                            g, tensor::to_string(weight.format), src.scale(n, g),
                            l.zero_bytes != 0 ? fmt::format(" or zero point {}", src.zero(n, g))
                            : l.has_offset    ? fmt::format(" or offset {}", src.offset(n, g))
                                              : "",
                            weight.format.super_k > 0 ? "s8 multiples of an f16"
                                                      : tensor::name(weight.format.scale_type)));
  }
  return out;
}

void unpack_row_as_stored(const PackedWeight& weight, const Layout& l, int64_t n, float* out) {
  if (l.packing == Packing::kPlain) {
    unpack_plain_row(weight, l, n, out);
  } else {
    unpack_tile_row(weight, l, n, out);
  }
}

void look_up(device::Stream& stream, const PackedWeight& table, std::span<const int32_t> ids,
             float* out, const int32_t* placed) {
  if (device::Cuda* cuda = stream.cuda(); cuda != nullptr) {
    constexpr int kIdsSlot = 8;
    if (placed == nullptr) {
      std::byte* copy = cuda->scratch(kIdsSlot, ids.size_bytes());
      cuda->to_device(copy, ids.data(), ids.size_bytes());
      placed = reinterpret_cast<const int32_t*>(copy);
    }
    return cuda->kernels().look_up(cuda->context(), &table.cuda->weight, placed,
                                   static_cast<int64_t>(ids.size()), out);
  }
  for (const int32_t id : ids) {
    unpack_row(table, id, out);
    out += table.problem.k;
  }
}

void unpack_row(const PackedWeight& weight, int64_t n, float* out) {
  if (weight.cuda != nullptr) return unpack_row_of_cuda(*weight.cuda, n, out);
  const Layout& l = *weight.layout;
  if (weight.order.empty()) return unpack_row_as_stored(weight, l, n, out);
  std::vector<float> row(static_cast<size_t>(l.k));
  unpack_row_as_stored(weight, l, n, row.data());
  for (size_t k = 0; k < row.size(); ++k) out[weight.order[k]] = row[k];
}

}  // namespace nibble::kernels
