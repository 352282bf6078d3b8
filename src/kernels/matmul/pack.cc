// Canonical -> packed, and back one row at a time.
#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/number.h"
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

// Writes `value` as `store`; false when that changes it.
bool put_scale(ScaleStore store, float value, std::byte* to) {
  if (store == ScaleStore::kF32) {
    std::memcpy(to, &value, 4);
    return true;
  }
  const bool half = store == ScaleStore::kF16;
  const uint16_t code = half ? base::f16_from_f32(value) : base::bf16_from_f32(value);
  std::memcpy(to, &code, 2);
  return same_number(half ? base::f32_from_f16(code) : base::f32_from_bf16(code), value);
}

float get_scale(ScaleStore store, const std::byte* from) {
  if (store == ScaleStore::kF32) {
    float value;
    std::memcpy(&value, from, 4);
    return value;
  }
  uint16_t code;
  std::memcpy(&code, from, 2);
  return store == ScaleStore::kF16 ? base::f32_from_f16(code) : base::f32_from_bf16(code);
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

// Where the numbers of group g of a tile's row stand. g counts scale groups, not headers.
template <class Byte>
struct HeaderAt {
  Byte* scale;
  Byte* zero;
  Byte* offset;
};

int64_t header_stride(const Layout& l) {
  return l.header_bytes + l.group / kBlockK * l.block_bytes;
}

template <class Byte>
HeaderAt<Byte> header_at(const Layout& l, Byte* tile, int64_t g, int64_t r) {
  Byte* header = tile + g / l.sets * header_stride(l);
  const int64_t row = g % l.sets * kTileRows + r;
  Byte* zero = header + kTileRows * l.sets * l.scale_bytes;
  return {header + row * l.scale_bytes, zero + row * l.zero_bytes,
          zero + kTileRows * l.sets * l.zero_bytes + row * l.scale_bytes};
}

// Offset of block b (of 32 inputs) in a tile.
int64_t block_at(const Layout& l, int64_t b) {
  const int64_t blocks_a_group = l.group / kBlockK;
  return (b / blocks_a_group + 1) * l.header_bytes + b * l.block_bytes;
}

void pack_headers(const Layout& l, const Source& src, int64_t n, std::byte* tile,
                  Trouble& trouble) {
  if (l.header_bytes == 0) return;
  const float bias = static_cast<float>(code_bias(src.w.format.element));
  for (int64_t g = 0; g < src.groups; ++g) {
    const auto at = header_at(l, tile, g, n % kTileRows);
    bool exact = put_scale(l.scale_store, src.scale(n, g), at.scale);
    if (l.zero_bytes != 0) exact &= put_zero(l.zero_bytes, src.zero(n, g) + bias, at.zero);
    if (l.has_offset) exact &= put_scale(l.scale_store, src.offset(n, g), at.offset);
    if (!exact) trouble.report(n, g);
  }
}

void pack_row_n4(const Layout& l, const uint8_t* codes, uint8_t bias, int64_t r, std::byte* tile) {
  for (int64_t b = 0; b < l.k_pad / kBlockK; ++b) {
    uint8_t block[kBlockK] = {};
    const int64_t count = std::min(kBlockK, l.k - b * kBlockK);
    for (int64_t i = 0; i < count; ++i) {
      block[i] = static_cast<uint8_t>(codes[b * kBlockK + i] + bias) & 15;
    }
    std::byte* to = tile + block_at(l, b) + r * 4;
    for (int j = 0; j < 4; ++j) {
      uint32_t lane = 0;
      for (int i = 0; i < 4; ++i) {
        const uint32_t byte = block[4 * j + i] | uint32_t{block[16 + 4 * j + i]} << 4;
        lane |= byte << (8 * i);
      }
      std::memcpy(to + j * 128, &lane, 4);
    }
  }
}

// n8, n16 and n32: `unit` bytes a code, 4 / unit codes a lane.
void pack_row_wide(const Layout& l, const uint8_t* codes, uint8_t bias, int unit, int64_t r,
                   std::byte* tile) {
  for (int64_t b = 0; b < l.k_pad / kBlockK; ++b) {
    uint8_t block[kBlockK * 4] = {};
    const int64_t count = std::min(kBlockK, l.k - b * kBlockK);
    std::memcpy(block, codes + b * kBlockK * unit, static_cast<size_t>(count * unit));
    if (bias != 0) {
      for (int64_t i = 0; i < count; ++i) block[i] = static_cast<uint8_t>(block[i] + bias);
    }
    std::byte* to = tile + block_at(l, b) + r * 4;
    for (int64_t j = 0; j < kBlockK * unit / 4; ++j) std::memcpy(to + j * 128, block + 4 * j, 4);
  }
}

void pack_tile(const Layout& l, const Source& src, int64_t t, std::byte* tile, Trouble& trouble) {
  std::memset(tile, 0, static_cast<size_t>(l.tile_bytes));
  const auto bias = static_cast<uint8_t>(code_bias(src.w.format.element));
  for (int64_t n = t * kTileRows; n < std::min(l.n, (t + 1) * kTileRows); ++n) {
    pack_headers(l, src, n, tile, trouble);
    if (l.packing == Packing::kN4) {
      pack_row_n4(l, src.codes(n), bias, n % kTileRows, tile);
    } else {
      pack_row_wide(l, src.codes(n), bias, src.unit, n % kTileRows, tile);
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

uint32_t code_at(const Layout& l, const std::byte* tile, int64_t r, int64_t k) {
  const std::byte* block = tile + block_at(l, k / kBlockK);
  const int64_t i = k % kBlockK;
  const int64_t unit = l.packing == Packing::kN4 ? 1 : l.block_bytes / 1024;
  uint32_t code = 0;
  if (l.packing == Packing::kN4) {
    const auto byte = static_cast<uint32_t>(block[i % 16 / 4 * 128 + r * 4 + i % 4]);
    return i < 16 ? byte & 15 : byte >> 4;
  }
  const int64_t byte = i * unit;
  std::memcpy(&code, block + byte / 4 * 128 + r * 4 + byte % 4, static_cast<size_t>(unit));
  return code;
}

void unpack_tile_row(const PackedWeight& weight, const Layout& l, int64_t n, float* out) {
  const tensor::Element element = weight.problem.weight.element;
  const bool integer = tensor::is_integer(element);
  const std::byte* tile = weight.bytes.data() + n / kTileRows * l.tile_bytes;
  const int64_t r = n % kTileRows;
  const int64_t group_k = l.group / l.sets;
  for (int64_t k = 0; k < l.k; ++k) {
    const uint32_t code = code_at(l, tile, r, k);
    if (l.header_bytes == 0) {
      out[k] = tensor::value_of(element, code);
      continue;
    }
    const auto at = header_at(l, tile, k / group_k, r);
    float v = l.values[code];
    if (integer) {
      const int32_t zero = l.zero_bytes != 0 ? get_zero(l.zero_bytes, at.zero) : l.zero_const;
      v = static_cast<float>(static_cast<int32_t>(code) - zero);
    }
    v *= get_scale(l.scale_store, at.scale);
    if (l.has_offset) v += get_scale(l.scale_store, at.offset);
    out[k] = v;
  }
}

}  // namespace

int64_t packed_bytes(const MatmulProblem& problem, const Choice& choice) {
  return make_layout(problem, packing_named(choice.packing)).bytes;
}

Result<PackedWeight> pack(const QuantizedWeight& weight, Choice choice, device::Stream& stream) {
  PackedWeight out;
  out.problem = {weight.n, weight.k, weight.format, weight.activation};
  const Layout l = make_layout(out.problem, packing_named(choice.packing));
  out.choice = std::move(choice);
  NIBBLE_ASSIGN(out.bytes, tensor::Buffer::allocate(static_cast<size_t>(l.bytes)));
  if (weight.format.act_order) out.order = weight.order;
  out.input_factor = weight.input_factor;
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
                            tensor::name(weight.format.scale_type)));
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

void unpack_row(const PackedWeight& weight, int64_t n, float* out) {
  const Layout l = make_layout(weight.problem, packing_named(weight.choice.packing));
  if (weight.order.empty()) return unpack_row_as_stored(weight, l, n, out);
  std::vector<float> row(static_cast<size_t>(l.k));
  unpack_row_as_stored(weight, l, n, row.data());
  for (size_t k = 0; k < row.size(); ++k) out[weight.order[k]] = row[k];
}

}  // namespace nibble::kernels
