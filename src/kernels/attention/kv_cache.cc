#include "kernels/attention/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/number.h"
#include "device/cuda.h"
#include "kernels/attention/attention_ops.h"
#include "kernels/cuda/abi.h"

namespace nibble::kernels {
namespace {

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

int64_t page_bytes(const KvShape& s) {
  return s.heads * KvCache::kPageTokens * (s.key_dim + padded_dim(s.value_dim)) *
         element_bytes(s.type);
}

int64_t pages_for(int64_t tokens) {
  return (tokens + KvCache::kPageTokens - 1) / KvCache::kPageTokens;
}

float read_element(KvType type, const std::byte* from) {
  if (type == KvType::kF32) {
    float v;
    std::memcpy(&v, from, 4);
    return v;
  }
  uint16_t code;
  std::memcpy(&code, from, 2);
  return type == KvType::kF16 ? base::f32_from_f16(code) : base::f32_from_bf16(code);
}

}  // namespace

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

Result<KvCache> KvCache::create(const KvShape& shape) {
  if (shape.type != KvType::kF32 && shape.type != KvType::kBf16 && shape.type != KvType::kF16) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("a KV cache of {} is not supported on the CPU yet; use f16 or bf16",
                            name(shape.type)));
  }
  constexpr int64_t kMost = 1 << 16;  // keeps every product below in range
  for (int64_t v : {shape.heads, shape.key_dim, shape.value_dim}) {
    if (v < 1 || v > kMost) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("a KV cache of {} heads with keys of {} and values of {} numbers",
                              shape.heads, shape.key_dim, shape.value_dim));
    }
  }
  KvCache cache;
  cache.shape_ = shape;
  cache.element_bytes_ = element_bytes(shape.type);
  cache.key_bytes_ = kPageTokens * shape.key_dim * cache.element_bytes_;
  cache.head_bytes_ =
      cache.key_bytes_ + kPageTokens * padded_dim(shape.value_dim) * cache.element_bytes_;
  return cache;
}

int64_t KvCache::bytes_for(const KvShape& shape, int64_t tokens) {
  return pages_for(tokens) * page_bytes(shape);
}

Result<void> KvCache::reserve(device::Stream& stream, int64_t tokens) {
  const size_t wanted = static_cast<size_t>(pages_for(tokens));
  if (buffers_.size() >= wanted) return {};
  const bool on_host = stream.cuda() == nullptr;
  if (!on_host && (shape_.key_dim > kMostCudaDim || shape_.value_dim > kMostCudaDim)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("heads with keys of {} and values of {} numbers: on a card attention "
                            "has no kernel for more than {}",
                            shape_.key_dim, shape_.value_dim, kMostCudaDim));
  }
  while (buffers_.size() < wanted) {
    NIBBLE_ASSIGN(auto buffer,
                  device::Memory::allocate(stream, static_cast<size_t>(page_bytes(shape_))));
    // A block's keys are read whole before the missing tokens are masked: they must be numbers. A
    // card's kernels read single keys.
    for (int64_t h = 0; on_host && h < shape_.heads; ++h) {
      std::memset(buffer.data() + key_offset(h), 0, static_cast<size_t>(key_bytes_));
    }
    page_data_.push_back(buffer.data());
    buffers_.push_back(std::move(buffer));
  }
  if (!on_host) {
    NIBBLE_ASSIGN(placed_pages_, device::Memory::copy_of(stream, page_data_.data(),
                                                         page_data_.size() * sizeof(std::byte*)));
  }
  return {};
}

void KvCache::store_token(const Ops& ops, int64_t token, const float* k, const float* v) {
  std::byte* page = page_data_[static_cast<size_t>(token / kPageTokens)];
  NIBBLE_CHECK(page != nullptr);
  const int64_t at = token % kPageTokens;
  const int64_t first = (at / kBlockTokens * shape_.key_dim * kBlockTokens + at % kBlockTokens);
  for (int64_t h = 0; h < shape_.heads; ++h) {
    ops.attention->store_key(shape_.type, k + h * shape_.key_dim, shape_.key_dim,
                             page + key_offset(h) + first * element_bytes_);
    ops.attention->store_value(
        shape_.type, v + h * shape_.value_dim, shape_.value_dim,
        page + value_offset(h) + at * padded_dim(shape_.value_dim) * element_bytes_);
  }
}

void KvCache::append(device::Stream& stream, const Ops& ops, const float* k, int64_t ldk,
                     const float* v, int64_t ldv, int64_t m) {
  NIBBLE_CHECK(pages_for(size_ + m) <= static_cast<int64_t>(buffers_.size()));
  if (device::Cuda* cuda = stream.cuda(); cuda != nullptr) {
    const CudaKv kv = cuda_kv(*this);
    cuda->kernels().append(cuda->context(), &kv, k, ldk, v, ldv, size_, m);
    size_ += m;
    return;
  }
  const int64_t per_token = shape_.heads * (shape_.key_dim + shape_.value_dim);
  const int64_t together = std::max<int64_t>(1, 16384 / per_token);
  const int64_t first = size_;
  stream.pool().parallel_for(m, together, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) store_token(ops, first + i, k + i * ldk, v + i * ldv);
  });
  size_ += m;
}

CudaKv cuda_kv(const KvCache& cache) {
  const KvShape& shape = cache.shape();
  const int64_t key_bytes = cache.value_offset(0);
  return {shape.heads,
          shape.key_dim,
          shape.value_dim,
          padded_dim(shape.value_dim),
          static_cast<int32_t>(shape.type),
          key_bytes,
          cache.key_offset(1),
          KvCache::kPageTokens,
          cache.placed_pages()};
}

void KvCache::truncate(int64_t tokens) {
  NIBBLE_CHECK(tokens >= 0 && tokens <= size_);
  size_ = tokens;
}

void KvCache::drop_before(int64_t token) {
  const int64_t whole = std::min(token, size_) / kPageTokens;
  for (int64_t i = 0; i < whole; ++i) {
    buffers_[static_cast<size_t>(i)] = device::Memory();
    page_data_[static_cast<size_t>(i)] = nullptr;
  }
}

int64_t KvCache::bytes() const {
  int64_t total = 0;
  for (const auto& buffer : buffers_) total += static_cast<int64_t>(buffer.size());
  return total;
}

void KvCache::key(int64_t head, int64_t token, float* out) const {
  const std::byte* page = page_data_[static_cast<size_t>(token / kPageTokens)];
  const int64_t at = token % kPageTokens;
  const int64_t first = at / kBlockTokens * shape_.key_dim * kBlockTokens + at % kBlockTokens;
  for (int64_t d = 0; d < shape_.key_dim; ++d) {
    out[d] = read_element(shape_.type,
                          page + key_offset(head) + (first + d * kBlockTokens) * element_bytes_);
  }
}

void KvCache::value(int64_t head, int64_t token, float* out) const {
  const std::byte* page = page_data_[static_cast<size_t>(token / kPageTokens)];
  const int64_t first = token % kPageTokens * padded_dim(shape_.value_dim);
  for (int64_t d = 0; d < shape_.value_dim; ++d) {
    out[d] = read_element(shape_.type, page + value_offset(head) + (first + d) * element_bytes_);
  }
}

}  // namespace nibble::kernels
