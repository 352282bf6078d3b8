#include "layers/decoder.h"

#include <algorithm>
#include <utility>

#include "kernels/norm/norm.h"

namespace nibble::layers {
namespace {

kernels::KvShape kv_shape(const DecoderSpec& spec, const CacheFormat& format) {
  return {spec.kv_heads, spec.head_dim, spec.head_dim, format.type, format.token_scales};
}

void tell(const Listener& listener, const Linear& linear, const float* y, int64_t m) {
  if (listener) listener(linear.name, y, m, linear.n());
}

}  // namespace

Result<DecoderCache> DecoderCache::create(const DecoderSpec& spec, const CacheFormat& format,
                                          int64_t capacity) {
  DecoderCache out;
  out.capacity_ = capacity;
  for (int64_t i = 0; i < spec.layers; ++i) {
    const auto scales =
        format.scales.empty() ? kernels::KvScales{} : format.scales[static_cast<size_t>(i)];
    NIBBLE_ASSIGN(kernels::KvCache cache, kernels::KvCache::create(kv_shape(spec, format), scales));
    out.layers_.push_back(std::move(cache));
  }
  return out;
}

int64_t DecoderCache::bytes_for(const DecoderSpec& spec, const CacheFormat& format,
                                int64_t tokens) {
  return spec.layers * kernels::KvCache::bytes_for(kv_shape(spec, format), tokens);
}

Result<void> DecoderCache::reserve(int64_t tokens) {
  for (kernels::KvCache& cache : layers_) NIBBLE_TRY(cache.reserve(tokens));
  return {};
}

void DecoderCache::truncate(int64_t tokens) {
  for (kernels::KvCache& cache : layers_) cache.truncate(tokens);
}

Result<Runner> Runner::create(const Decoder& decoder, kernels::Ops ops) {
  NIBBLE_ASSIGN(kernels::Rope rope, kernels::Rope::create(decoder.spec.rope));
  return Runner(decoder, ops, std::move(rope));
}

Runner::Runner(const Decoder& decoder, kernels::Ops ops, kernels::Rope rope)
    : decoder_(&decoder), ops_(ops), rope_(std::move(rope)) {}

Result<void> Runner::reserve(int64_t m) {
  if (m <= capacity_) return {};
  const DecoderSpec& s = decoder_->spec;
  const std::pair<float**, int64_t> buffers[] = {
      {&x_, s.hidden},
      {&normed_, s.hidden},
      {&delta_, s.hidden},
      {&q_, s.heads * s.head_dim},
      {&k_, s.kv_heads * s.head_dim},
      {&v_, s.kv_heads * s.head_dim},
      {&mixed_, s.heads * s.head_dim},
      {&gate_, s.ffn},
      {&up_, s.ffn},
  };
  constexpr int64_t kAlign = 16;  // floats: every buffer starts on a cache line
  const auto rounded = [m](int64_t width) { return (m * width + kAlign - 1) / kAlign * kAlign; };
  int64_t total = 0;
  for (const auto& [pointer, width] : buffers) total += rounded(width);
  NIBBLE_ASSIGN(memory_, tensor::Buffer::allocate(static_cast<size_t>(total) * sizeof(float)));
  auto* next = reinterpret_cast<float*>(memory_.data());
  for (const auto& [pointer, width] : buffers) {
    *pointer = next;
    next += rounded(width);
  }
  capacity_ = m;
  return {};
}

Result<const float*> Runner::forward(device::Stream& stream, std::span<const int32_t> tokens,
                                     int64_t length, DecoderCache& cache,
                                     const Listener& listener) {
  const DecoderSpec& s = decoder_->spec;
  const auto m = static_cast<int64_t>(tokens.size());
  const int64_t position = cache.length();
  NIBBLE_TRY(reserve(m));
  NIBBLE_TRY(cache.reserve(position + m));
  rope_.fill(position, m, length, &rope_rows_);

  embed(decoder_->embedding.weight, tokens, x_);  // (m, hidden)
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    attention_block(stream, layer, position, m, cache.layer(layer), listener);
    ffn_block(stream, layer, m, listener);
  }
  const kernels::RmsNorm norm{decoder_->final_norm.data(), s.hidden, s.norm_eps};
  kernels::add_rms_norm(stream, ops_, norm, delta_, s.hidden, x_, s.hidden, normed_, s.hidden, m);
  return normed_;
}

// The residual of the block before (delta_) is added on the way into each norm.
void Runner::attention_block(device::Stream& stream, int64_t layer, int64_t position, int64_t m,
                             kernels::KvCache& cache, const Listener& listener) {
  const DecoderSpec& s = decoder_->spec;
  const DecoderLayer& w = decoder_->layers[static_cast<size_t>(layer)];
  const int64_t q_width = s.heads * s.head_dim;
  const int64_t kv_width = s.kv_heads * s.head_dim;
  const kernels::RmsNorm norm{w.attention_norm.data(), s.hidden, s.norm_eps};
  if (layer == 0) {
    kernels::rms_norm(stream, ops_, norm, x_, s.hidden, normed_, s.hidden, m);
  } else {
    kernels::add_rms_norm(stream, ops_, norm, delta_, s.hidden, x_, s.hidden, normed_, s.hidden, m);
  }
  const LinearOutput qkv[] = {{&w.q, q_, q_width}, {&w.k, k_, kv_width}, {&w.v, v_, kv_width}};
  apply(stream, qkv, normed_, s.hidden, m);
  tell(listener, w.q, q_, m);
  tell(listener, w.k, k_, m);
  tell(listener, w.v, v_, m);

  kernels::rotate(stream, ops_, rope_rows_, q_, q_width, s.heads, s.head_dim);
  kernels::rotate(stream, ops_, rope_rows_, k_, kv_width, s.kv_heads, s.head_dim);
  cache.append(stream, ops_, k_, kv_width, v_, kv_width, m);
  const kernels::AttentionConfig config{.heads = s.heads,
                                        .scale = s.attention_scale,
                                        .window = s.windows[static_cast<size_t>(layer)]};
  kernels::attention(stream, ops_, config, cache, q_, q_width, position, m, mixed_, q_width);

  const LinearOutput o[] = {{&w.o, delta_, s.hidden}};
  apply(stream, o, mixed_, q_width, m);
  tell(listener, w.o, delta_, m);
}

void Runner::ffn_block(device::Stream& stream, int64_t layer, int64_t m, const Listener& listener) {
  const DecoderSpec& s = decoder_->spec;
  const DecoderLayer& w = decoder_->layers[static_cast<size_t>(layer)];
  const kernels::RmsNorm norm{w.ffn_norm.data(), s.hidden, s.norm_eps};
  kernels::add_rms_norm(stream, ops_, norm, delta_, s.hidden, x_, s.hidden, normed_, s.hidden, m);

  const LinearOutput gate_up[] = {{&w.gate, gate_, s.ffn}, {&w.up, up_, s.ffn}};
  apply(stream, gate_up, normed_, s.hidden, m);
  tell(listener, w.gate, gate_, m);
  tell(listener, w.up, up_, m);
  kernels::activate_gated(stream, ops_, s.activation, gate_, s.ffn, up_, s.ffn, gate_, s.ffn, m,
                          s.ffn);
  const LinearOutput down[] = {{&w.down, delta_, s.hidden}};
  apply(stream, down, gate_, s.ffn, m);
  tell(listener, w.down, delta_, m);
}

void Runner::logits(device::Stream& stream, const float* hidden, int64_t m, float* out) {
  const LinearOutput head[] = {{&decoder_->head(), out, decoder_->spec.vocab}};
  apply(stream, head, hidden, decoder_->spec.hidden, m);
}

}  // namespace nibble::layers
