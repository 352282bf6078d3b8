#include "kernels/attention/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/number.h"
#include "device/cuda.h"
#include "kernels/attention/attention_ops.h"
#include "kernels/cuda/abi.h"

namespace nibble::kernels {
namespace {

int64_t page_bytes(const KvShape& s) {
  const int64_t elements = (s.key_dim + padded_dim(s.value_dim)) * element_bytes(s.type);
  const int64_t scales = s.token_scales ? 2 * static_cast<int64_t>(sizeof(float)) : 0;
  return s.heads * KvCache::kPageTokens * (elements + scales);
}

int64_t pages_for(int64_t tokens) {
  return (tokens + KvCache::kPageTokens - 1) / KvCache::kPageTokens;
}

float read_float(const std::byte* from) {
  float v;
  std::memcpy(&v, from, 4);
  return v;
}

float read_element(const KvCode& how, const std::byte* from) {
  const auto code = static_cast<uint8_t>(*from);
  switch (how.type) {
    case KvType::kF32:
      return read_float(from);
    case KvType::kE4M3:
      return base::f32_from_e4m3(code) * how.scale;
    case KvType::kE5M2:
      return base::f32_from_e5m2(code) * how.scale;
    case KvType::kS8:
      return (static_cast<float>(static_cast<int8_t>(code)) - how.zero) * how.scale;
    default:
      break;
  }
  uint16_t wide;
  std::memcpy(&wide, from, 2);
  return how.type == KvType::kF16 ? base::f32_from_f16(wide) : base::f32_from_bf16(wide);
}

// The largest magnitude a scale of 1 can hold.
float largest_code(KvType type) {
  return type == KvType::kE4M3 ? 448.0f : type == KvType::kE5M2 ? 57344.0f : 127.0f;
}

// The largest magnitude; inf if any number is inf or nan.
float largest_magnitude(const float* x, int64_t n) {
  uint32_t most = 0;  // without their sign floats are ordered as integers, nan above inf
  for (int64_t i = 0; i < n; ++i) most = std::max(most, base::bits_from_f32(x[i]) & 0x7fffffffu);
  return most >= 0x7f800000u ? std::numeric_limits<float>::infinity() : base::f32_from_bits(most);
}

// A card's driver takes long to find memory: there as many pages as possible are one piece, as long
// as it is not larger than the plan counted for them.
size_t pages_together(size_t wanted, size_t page_bytes) {
  const auto taken = [&](size_t pages) {
    return device::card_bytes(static_cast<int64_t>(pages * page_bytes));
  };
  size_t pages = wanted;
  while (pages > 1 && taken(pages) > static_cast<int64_t>(pages) * taken(1)) --pages;
  return pages;
}

}  // namespace

int64_t element_bytes(KvType type) {
  switch (type) {
    case KvType::kF32:
      return 4;
    case KvType::kBf16:
    case KvType::kF16:
      return 2;
    case KvType::kE4M3:
    case KvType::kE5M2:
    case KvType::kS8:
      return 1;
  }
  return 0;
}

const char* name(KvType type) {
  switch (type) {
    case KvType::kF32:
      return "f32";
    case KvType::kBf16:
      return "bf16";
    case KvType::kF16:
      return "f16";
    case KvType::kE4M3:
      return "fp8_e4m3";
    case KvType::kE5M2:
      return "fp8_e5m2";
    case KvType::kS8:
      return "int8";
  }
  return "?";
}

Result<KvCache> KvCache::create(const KvShape& shape, KvScales scales) {
  constexpr int64_t kMost = 1 << 16;  // keeps every product below in range
  for (int64_t v : {shape.heads, shape.key_dim, shape.value_dim}) {
    if (v < 1 || v > kMost) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("a KV cache of {} heads with keys of {} and values of {} numbers",
                              shape.heads, shape.key_dim, shape.value_dim));
    }
  }
  for (const std::vector<float>* list : {&scales.k, &scales.v, &scales.k_zero, &scales.v_zero}) {
    NIBBLE_CHECK(list->size() <= 1 || static_cast<int64_t>(list->size()) == shape.heads);
  }
  NIBBLE_CHECK(!shape.token_scales || is_quantized(shape.type));
  KvCache cache;
  cache.shape_ = shape;
  if (is_quantized(shape.type) && !shape.token_scales) cache.scales_ = std::move(scales);
  cache.element_bytes_ = element_bytes(shape.type);
  cache.key_bytes_ = kPageTokens * shape.key_dim * cache.element_bytes_;
  if (shape.token_scales)
    cache.scale_bytes_ = 2 * kPageTokens * static_cast<int64_t>(sizeof(float));
  cache.head_bytes_ = cache.key_bytes_ +
                      kPageTokens * padded_dim(shape.value_dim) * cache.element_bytes_ +
                      cache.scale_bytes_;
  return cache;
}

int64_t KvCache::bytes_for(const KvShape& shape, int64_t tokens) {
  return pages_for(tokens) * page_bytes(shape);
}

Result<void> KvCache::reserve(device::Stream& stream, int64_t tokens) {
  const size_t wanted = static_cast<size_t>(pages_for(tokens));
  const bool on_host = stream.cuda() == nullptr;
  if (const int64_t cut = std::exchange(cut_at_, INT64_MAX); !on_host && cut != INT64_MAX) {
    auto* first_bad = reinterpret_cast<long long*>(placed_first_bad_.data());
    stream.cuda()->kernels().forget_bad(stream.cuda()->context(), first_bad, cut);
  }
  // A card's table may be behind: memory ran out after some of the pages had been taken.
  const size_t told = on_host ? buffers_.size() : placed_pages_.size() / sizeof(std::byte*);
  if (std::min(buffers_.size(), told) >= wanted) return {};
  if (!on_host && (shape_.key_dim > kMostCudaDim || shape_.value_dim > kMostCudaDim)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("heads with keys of {} and values of {} numbers: on a card attention "
                            "has no kernel for more than {}",
                            shape_.key_dim, shape_.value_dim, kMostCudaDim));
  }
  const auto bytes = static_cast<size_t>(page_bytes(shape_));
  while (buffers_.size() < wanted) {
    const size_t together = on_host ? 1 : pages_together(wanted - buffers_.size(), bytes);
    NIBBLE_ASSIGN(auto made, device::Memory::allocate(stream, together * bytes));
    const auto piece = std::make_shared<device::Memory>(std::move(made));
    for (size_t i = 0; i < together; ++i) {
      std::byte* page = piece->data() + i * bytes;
      // A block's keys are read whole before the missing tokens are masked: they must be numbers. A
      // card's kernels read no other tokens.
      for (int64_t h = 0; on_host && h < shape_.heads; ++h) {
        std::memset(page + key_offset(h), 0, static_cast<size_t>(key_bytes_));
      }
      page_data_.push_back(page);
      buffers_.push_back(piece);
    }
  }
  return on_host ? Result<void>() : place(stream);
}

// What a card's kernels need to know of the cache, in its memory. The table of pages comes last:
// where it is, the rest is too, whenever memory runs out.
Result<void> KvCache::place(device::Stream& stream) {
  if (is_quantized(shape_.type) && placed_first_bad_.size() == 0) {
    if (!shape_.token_scales) {
      std::vector<float> scales;
      for (const auto of :
           {&KvCache::key_scale, &KvCache::value_scale, &KvCache::key_zero, &KvCache::value_zero}) {
        for (int64_t h = 0; h < shape_.heads; ++h) scales.push_back((this->*of)(h));
      }
      NIBBLE_ASSIGN(placed_scales_,
                    device::Memory::copy_of(stream, scales.data(), scales.size() * sizeof(float)));
    }
    const long long none = INT64_MAX;
    NIBBLE_ASSIGN(placed_first_bad_, device::Memory::copy_of(stream, &none, sizeof none));
  }
  NIBBLE_ASSIGN(placed_pages_, device::Memory::copy_of(stream, page_data_.data(),
                                                       page_data_.size() * sizeof(std::byte*)));
  return {};
}

bool KvCache::store_token(const Ops& ops, int64_t token, const float* k, const float* v) {
  std::byte* page = page_data_[static_cast<size_t>(token / kPageTokens)];
  NIBBLE_CHECK(page != nullptr);
  const int64_t at = token % kPageTokens;
  const int64_t first = (at / kBlockTokens * shape_.key_dim * kBlockTokens + at % kBlockTokens);
  bool finite = true;
  for (int64_t h = 0; h < shape_.heads; ++h) {
    const float* key = k + h * shape_.key_dim;
    const float* value = v + h * shape_.value_dim;
    KvCode of_key{shape_.type, key_scale(h), key_zero(h)};
    KvCode of_value{shape_.type, value_scale(h), value_zero(h)};
    if (is_quantized(shape_.type)) {
      const float most_key = largest_magnitude(key, shape_.key_dim);
      const float most_value = largest_magnitude(value, shape_.value_dim);
      finite = finite && std::isfinite(most_key) && std::isfinite(most_value);
      if (shape_.token_scales) {
        // A token of zeros, and one so small that its scale would be 0, is held with a scale of 1.
        const float range = largest_code(shape_.type);
        of_key.scale = most_key / range > 0 ? most_key / range : 1;
        of_value.scale = most_value / range > 0 ? most_value / range : 1;
        std::byte* scale = page + scale_offset(h) + at * static_cast<int64_t>(sizeof(float));
        std::memcpy(scale, &of_key.scale, sizeof(float));
        std::memcpy(scale + kPageTokens * static_cast<int64_t>(sizeof(float)), &of_value.scale,
                    sizeof(float));
      }
    }
    ops.attention->store_key(of_key, key, shape_.key_dim,
                             page + key_offset(h) + first * element_bytes_);
    ops.attention->store_value(
        of_value, value, shape_.value_dim,
        page + value_offset(h) + at * padded_dim(shape_.value_dim) * element_bytes_);
  }
  return finite;
}

void KvCache::append(device::Stream& stream, const Ops& ops, const float* k, int64_t ldk,
                     const float* v, int64_t ldv, int64_t m) {
  NIBBLE_CHECK(pages_for(size_ + m) <= static_cast<int64_t>(buffers_.size()));
  NIBBLE_CHECK(stream.cuda() == nullptr);
  const int64_t per_token = shape_.heads * (shape_.key_dim + shape_.value_dim);
  const int64_t together = std::max<int64_t>(1, 16384 / per_token);
  const int64_t first = size_;
  std::atomic<int64_t> bad{INT64_MAX};
  stream.pool().parallel_for(m, together, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      if (store_token(ops, first + i, k + i * ldk, v + i * ldv)) continue;
      int64_t known = bad.load();
      while (first + i < known && !bad.compare_exchange_weak(known, first + i)) {
      }
    }
  });
  first_not_finite_ = std::min(first_not_finite_, bad.load());
  size_ += m;
}

CudaKv cuda_kv(const KvCache& cache) {
  const KvShape& shape = cache.shape();
  CudaKv out{};
  out.heads = shape.heads;
  out.key_dim = shape.key_dim;
  out.value_dim = shape.value_dim;
  out.value_pad = padded_dim(shape.value_dim);
  out.type = static_cast<int32_t>(shape.type);
  out.key_bytes = cache.value_offset(0);
  out.head_bytes = cache.key_offset(1);
  out.page_tokens = KvCache::kPageTokens;
  out.pages = reinterpret_cast<const void* const*>(cache.placed_pages_.data());
  out.scale_offset = cache.scale_offset(0);
  out.scales = reinterpret_cast<const float*>(cache.placed_scales_.data());
  out.first_bad =
      reinterpret_cast<long long*>(const_cast<std::byte*>(cache.placed_first_bad_.data()));
  return out;
}

void KvCache::set_size(int64_t tokens) {
  NIBBLE_CHECK(pages_for(tokens) <= static_cast<int64_t>(buffers_.size()));
  size_ = tokens;
}

void KvCache::truncate(int64_t tokens) {
  NIBBLE_CHECK(tokens >= 0 && tokens <= size_);
  size_ = tokens;
  if (placed_first_bad_.size() != 0) cut_at_ = std::min(cut_at_, tokens);
  if (first_not_finite_ >= tokens) first_not_finite_ = INT64_MAX;
}

void KvCache::drop_before(int64_t token) {
  const int64_t whole = std::min(token, size_) / kPageTokens;
  for (int64_t i = 0; i < whole; ++i) {
    buffers_[static_cast<size_t>(i)].reset();
    page_data_[static_cast<size_t>(i)] = nullptr;
  }
}

int64_t KvCache::bytes() const {
  int64_t total = 0;
  const device::Memory* last = nullptr;
  for (const auto& piece : buffers_) {
    if (piece != nullptr && piece.get() != last) total += static_cast<int64_t>(piece->size());
    last = piece.get();
  }
  return total;
}

void KvCache::key(int64_t head, int64_t token, float* out) const {
  const std::byte* page = page_data_[static_cast<size_t>(token / kPageTokens)];
  const int64_t at = token % kPageTokens;
  const int64_t first = at / kBlockTokens * shape_.key_dim * kBlockTokens + at % kBlockTokens;
  KvCode how{shape_.type, key_scale(head), key_zero(head)};
  if (shape_.token_scales) how.scale = read_float(page + scale_offset(head) + at * 4);
  for (int64_t d = 0; d < shape_.key_dim; ++d) {
    out[d] =
        read_element(how, page + key_offset(head) + (first + d * kBlockTokens) * element_bytes_);
  }
}

void KvCache::value(int64_t head, int64_t token, float* out) const {
  const std::byte* page = page_data_[static_cast<size_t>(token / kPageTokens)];
  const int64_t at = token % kPageTokens;
  const int64_t first = at * padded_dim(shape_.value_dim);
  KvCode how{shape_.type, value_scale(head), value_zero(head)};
  if (shape_.token_scales)
    how.scale = read_float(page + scale_offset(head) + (kPageTokens + at) * 4);
  for (int64_t d = 0; d < shape_.value_dim; ++d) {
    out[d] = read_element(how, page + value_offset(head) + (first + d) * element_bytes_);
  }
}

}  // namespace nibble::kernels
