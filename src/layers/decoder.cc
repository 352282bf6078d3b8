#include "layers/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/number.h"
#include "kernels/norm/norm.h"

namespace nibble::layers {
namespace {

kernels::KvShape kv_shape(const DecoderSpec& spec, const CacheFormat& format) {
  return {spec.kv_heads, spec.head_dim, spec.head_dim, format.type, format.token_scales};
}

void tell(device::Stream& stream, const Listener& listener, const Linear& linear,
          kernels::ConstRows y, int64_t m) {
  if (!listener) return;
  std::vector<float> copy(static_cast<size_t>(m * linear.n()));
  if (y.held == kernels::Held::kF32) {
    if (!device::copy_to_host(stream, copy.data(), y.data, copy.size() * sizeof(float))) return;
  } else {
    std::vector<uint16_t> bf16(copy.size());
    if (!device::copy_to_host(stream, bf16.data(), y.data, bf16.size() * sizeof(uint16_t))) return;
    std::transform(bf16.begin(), bf16.end(), copy.begin(), base::f32_from_bf16);
  }
  listener(linear.name, copy.data(), m, linear.n());
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

Result<void> DecoderCache::reserve(device::Stream& stream, int64_t tokens) {
  for (kernels::KvCache& cache : layers_) NIBBLE_TRY(cache.reserve(stream, tokens));
  return {};
}

void DecoderCache::truncate(int64_t tokens) {
  for (kernels::KvCache& cache : layers_) cache.truncate(tokens);
}

void DecoderCache::set_length(int64_t tokens) {
  for (kernels::KvCache& cache : layers_) cache.set_size(tokens);
}

Result<Runner> Runner::create(const Decoder& decoder, kernels::Ops ops) {
  NIBBLE_ASSIGN(kernels::Rope rope, kernels::Rope::create(decoder.spec.rope));
  std::optional<kernels::Rope> window_rope;
  if (decoder.spec.window_rope) {
    NIBBLE_ASSIGN(window_rope, kernels::Rope::create(*decoder.spec.window_rope));
  }
  return Runner(decoder, ops, std::move(rope), std::move(window_rope));
}

Runner::Runner(const Decoder& decoder, kernels::Ops ops, kernels::Rope rope,
               std::optional<kernels::Rope> window_rope)
    : decoder_(&decoder), ops_(ops), rope_(std::move(rope)), window_rope_(std::move(window_rope)) {}

Result<void> Runner::reserve(device::Stream& stream, int64_t m) {
  if (m <= capacity_) return {};
  const DecoderSpec& s = decoder_->spec;
  const int64_t q_width = s.heads * s.head_dim;
  const int64_t kv_width = s.kv_heads * s.head_dim;
  has_inner_ = std::any_of(decoder_->layers.begin(), decoder_->layers.end(), [&](const auto& w) {
    return held_for(stream, {&w.down}, m) != kernels::Held::kF32;
  });
  const std::pair<float**, int64_t> buffers[] = {
      {&narrow_, s.width() != s.hidden ? s.width() : 0},
      {&x_, s.hidden},
      {&normed_, s.hidden},
      {&squares_, (s.hidden + 7) / 8},
      {&delta_, s.hidden},
      {&beside_, s.parallel ? s.hidden : 0},
      {&qkv_, s.has(Part::kQkv) ? q_width + 2 * kv_width : 0},
      {&q_, q_width},
      {&k_, kv_width},
      {&v_, kv_width},
      {&mixed_, q_width},
      {&gate_, s.has(Part::kGateUp) ? 2 * s.ffn
               : s.has(Part::kGate) ? s.ffn
                                    : 0},
      {&up_, s.has(Part::kUp) ? s.ffn : 0},
      {&inner_, has_inner_ ? (s.ffn + 1) / 2 : 0},
  };
  constexpr int64_t kAlign = 16;  // floats: every buffer starts on a cache line
  const auto rounded = [m](int64_t width) { return (m * width + kAlign - 1) / kAlign * kAlign; };
  int64_t total = 0;
  for (const auto& [pointer, width] : buffers) total += rounded(width);
  capacity_ = 0;
  memory_ = {};  // before the new one is taken: both at once would be the peak
  NIBBLE_ASSIGN(memory_,
                device::Memory::allocate(stream, static_cast<size_t>(total) * sizeof(float)));
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
  NIBBLE_TRY(prepare(stream, tokens, length, cache));
  const float* hidden = run(stream, cache, listener);
  sent(stream);
  return hidden;
}

Result<void> Runner::prepare(device::Stream& stream, std::span<const int32_t> tokens,
                             int64_t length, DecoderCache& cache) {
  const DecoderSpec& s = decoder_->spec;
  m_ = static_cast<int64_t>(tokens.size());
  position_ = cache.length();
  if (s.has(Part::kPositions)) {
    const int64_t rows = decoder_->positions.n() - s.first_position;
    if (position_ + m_ > rows) {
      return fail(ErrorCode::kUsage,
                  fmt::format("{} tokens are more than the {} that the model has learned positions "
                              "for; a shorter context (--ctx {}) is needed",
                              position_ + m_, rows, rows));
    }
  }
  NIBBLE_TRY(reserve(stream, m_));
  NIBBLE_TRY(cache.reserve(stream, position_ + m_));
  return stage(stream, tokens, length);
}

// What the kernels need of the host: the tokens, where they stand, cos and sin.
Result<void> Runner::stage(device::Stream& stream, std::span<const int32_t> tokens,
                           int64_t length) {
  const DecoderSpec& s = decoder_->spec;
  ids_.assign(tokens.begin(), tokens.end());
  position_ids_.resize(s.has(Part::kPositions) ? ids_.size() : 0);
  std::iota(position_ids_.begin(), position_ids_.end(),
            static_cast<int32_t>(s.first_position + position_));
  kernels::RopeRows* const rows[] = {s.rotary ? &rope_rows_ : nullptr,
                                     window_rope_ ? &window_rope_rows_ : nullptr};
  if (rows[0] != nullptr) rope_.fill(stream.pool(), position_, m_, length, rows[0]);
  if (rows[1] != nullptr) window_rope_->fill(stream.pool(), position_, m_, length, rows[1]);

  constexpr size_t kParts = 7;  // each rounded up
  size_t bytes = (2 * ids_.size() + 1) * sizeof(int32_t) + kParts * device::Staging::kAlign;
  for (const kernels::RopeRows* row : rows) {
    if (row != nullptr) bytes += 2 * row->cos.size() * sizeof(float);
  }
  NIBBLE_TRY(staging_.begin(stream, bytes));
  const auto position = static_cast<int32_t>(position_);
  const int32_t* placed = staging_.put(std::span<const int32_t>(&position, 1));
  placed_position_ = stream.cuda() != nullptr ? placed : nullptr;
  placed_ids_ = staging_.put(std::span<const int32_t>(ids_));
  placed_position_ids_ = staging_.put(std::span<const int32_t>(position_ids_));
  for (kernels::RopeRows* row : rows) {
    if (row == nullptr) continue;
    row->placed_cos = staging_.put(std::span<const float>(row->cos));
    row->placed_sin = staging_.put(std::span<const float>(row->sin));
  }
  return {};
}

const float* Runner::run(device::Stream& stream, DecoderCache& cache, const Listener& listener) {
  const DecoderSpec& s = decoder_->spec;
  staging_.send(stream);
  embed_tokens(stream, listener);
  pending_ = false;
  ahead_ = {};
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    const DecoderLayer& w = decoder_->layers[static_cast<size_t>(layer)];
    if (s.norms_after) {
      block_with_norms_after(stream, layer, cache.layer(layer), listener);
      continue;
    }
    const kernels::Held of_qkv = held_for(stream, w.attention_readers(), m_);
    const kernels::Held of_ffn = held_for(stream, w.ffn_readers(), m_);
    const bool shared = s.parallel && !s.has(Part::kFfnNorm);
    kernels::ConstRows x = block_input(stream, w.attention_norm,
                                       shared && of_qkv != of_ffn ? kernels::Held::kF32 : of_qkv);
    const BlockOutput attention_out = block_output(stream, w.o, Part::kPostAttentionNorm,
                                                   {&w.ffn_norm, w.ffn_readers()}, listener);
    attention_block(stream, layer, x, cache.layer(layer), listener, attention_out);
    if (s.parallel) {
      if (s.has(Part::kFfnNorm)) {
        const kernels::Rows normed(normed_, of_ffn);
        normalize(stream, w.ffn_norm, x_, normed, m_, s.hidden);
        x = normed;
      }
      ffn_block(stream, layer, x, listener, {beside_});
      kernels::add_to(stream, ops_, beside_, s.hidden, delta_, s.hidden, m_, s.hidden);
      pending_ = true;
    } else {
      left_by(attention_out);
      x = block_input(stream, w.ffn_norm, of_ffn);
      NextBlock next;
      if (layer + 1 < s.layers) {
        const DecoderLayer& after = decoder_->layers[static_cast<size_t>(layer + 1)];
        next = {&after.attention_norm, after.attention_readers()};
      }
      const BlockOutput ffn_out = block_output(stream, w.down, Part::kPostFfnNorm, next, listener);
      ffn_block(stream, layer, x, listener, ffn_out);
      left_by(ffn_out);
    }
  }
  const float* last = block_input(stream, decoder_->final_norm, kernels::Held::kF32).f32();
  if (!s.has(Part::kProjectOut)) return last;
  const LinearOutput out[] = {{&decoder_->project_out, narrow_, s.width()}};
  apply(stream, out, last, s.hidden, m_);
  tell(stream, listener, decoder_->project_out, narrow_, m_);
  return narrow_;
}

void Runner::block_with_norms_after(device::Stream& stream, int64_t layer, kernels::KvCache& cache,
                                    const Listener& listener) {
  const DecoderLayer& w = decoder_->layers[static_cast<size_t>(layer)];
  const int64_t hidden = decoder_->spec.hidden;
  attention_block(stream, layer, x_, cache, listener, {delta_});
  kernels::add_to(stream, ops_, delta_, hidden, x_, hidden, m_, hidden);
  normalize(stream, w.attention_norm, x_, x_, m_, hidden);
  ffn_block(stream, layer, x_, listener, {delta_});
  kernels::add_to(stream, ops_, delta_, hidden, x_, hidden, m_, hidden);
  normalize(stream, w.ffn_norm, x_, x_, m_, hidden);
}

// Where the last product of a block, o or down, goes: to delta_, which block_input adds to the
// residual stream later, or at once to that, if the product can add and nothing comes between; and
// then half normalized for the next block, too, if the products there can do the rest. A listener
// wants what the layer made, not the sum.
Runner::BlockOutput Runner::block_output(const device::Stream& stream, const Linear& last,
                                         Part norm_after, const NextBlock& next,
                                         const Listener& listener) const {
  const DecoderSpec& s = decoder_->spec;
  const bool as_it_is = !s.parallel && s.residual_scale == 1 && !s.has(norm_after) && !listener;
  if (!as_it_is || !can_add(stream, last, m_)) return {delta_};
  const bool normalized =
      s.norm == NormKind::kRms && next.norm != nullptr && !next.norm->weight.empty();
  if (!normalized || !can_split_norm(stream, last, next.readers, m_)) return {x_};
  return {x_, {next.norm->weight.data(), s.norm_eps, normed_, squares_}};
}

// What the next block's input is made of.
void Runner::left_by(const BlockOutput& out) {
  pending_ = out.to != x_;
  ahead_ = out.next;
}

// x_ = the tokens' embeddings.
void Runner::embed_tokens(device::Stream& stream, const Listener& listener) {
  const DecoderSpec& s = decoder_->spec;
  const bool narrow = s.has(Part::kProjectIn);
  kernels::look_up(stream, decoder_->embedding.weight, ids_, narrow ? narrow_ : x_, placed_ids_);
  if (narrow) {
    const LinearOutput in[] = {{&decoder_->project_in, x_, s.hidden}};
    apply(stream, in, narrow_, s.width(), m_);
    tell(stream, listener, decoder_->project_in, x_, m_);
  }
  if (s.embedding_scale != 1) kernels::scale_by(stream, ops_, s.embedding_scale, x_, m_ * s.hidden);
  if (!s.has(Part::kPositions)) return;
  kernels::look_up(stream, decoder_->positions.weight, position_ids_, normed_,
                   placed_position_ids_);
  kernels::add_to(stream, ops_, normed_, s.hidden, x_, s.hidden, m_, s.hidden);
}

// Adds what the block before left to the residual stream, and normalizes it for the next, whose
// products read it as `held`.
kernels::ConstRows Runner::block_input(device::Stream& stream, const Norm& norm,
                                       kernels::Held held) {
  const DecoderSpec& s = decoder_->spec;
  const kernels::Rows normed(normed_, held);
  const bool add = std::exchange(pending_, false);
  const kernels::HalfNormed ahead = std::exchange(ahead_, {});
  if (ahead.weight != nullptr) {
    NIBBLE_CHECK(ahead.weight == norm.weight.data() && held == kernels::Held::kBf16);
    return kernels::ConstRows(ahead);
  }
  if (add && s.residual_scale != 1) {
    kernels::scale_by(stream, ops_, s.residual_scale, delta_, m_ * s.hidden);
  }
  if (add && s.norm == NormKind::kRms && !norm.weight.empty()) {
    const kernels::RmsNorm rms{norm.weight.data(), s.hidden, s.norm_eps};
    kernels::add_rms_norm(stream, ops_, rms, delta_, s.hidden, x_, s.hidden, normed, s.hidden, m_);
    return normed;
  }
  if (add) kernels::add_to(stream, ops_, delta_, s.hidden, x_, s.hidden, m_, s.hidden);
  if (norm.weight.empty()) return x_;
  normalize(stream, norm, x_, normed, m_, s.hidden);
  return normed;
}

// x and y are (m, width), contiguous; y may be x.
void Runner::normalize(device::Stream& stream, const Norm& norm, const float* x, kernels::Rows y,
                       int64_t m, int64_t width) {
  const DecoderSpec& s = decoder_->spec;
  if (s.norm == NormKind::kRms) {
    const kernels::RmsNorm rms{norm.weight.data(), width, s.norm_eps};
    kernels::rms_norm(stream, ops_, rms, x, width, y, width, m);
  } else {
    const float* bias = norm.bias.data();  // null when there is none
    const kernels::LayerNorm layer{norm.weight.data(), bias, width, s.norm_eps};
    kernels::layer_norm(stream, ops_, layer, x, width, y, width, m);
  }
}

Runner::Qkv Runner::project_qkv(device::Stream& stream, const DecoderLayer& w, kernels::ConstRows x,
                                const Listener& listener) {
  const DecoderSpec& s = decoder_->spec;
  const int64_t q_width = s.heads * s.head_dim;
  const int64_t kv_width = s.kv_heads * s.head_dim;
  const Qkv apart = {q_, q_width, k_, kv_width, v_, kv_width};
  if (!s.has(Part::kQkv)) {
    const LinearOutput qkv[] = {{&w.q, q_, q_width}, {&w.k, k_, kv_width}, {&w.v, v_, kv_width}};
    apply(stream, qkv, x, s.hidden, m_);
    tell(stream, listener, w.q, q_, m_);
    tell(stream, listener, w.k, k_, m_);
    tell(stream, listener, w.v, v_, m_);
    return apart;
  }
  const int64_t width = q_width + 2 * kv_width;
  const LinearOutput qkv[] = {{&w.qkv, qkv_, width}};
  apply(stream, qkv, x, s.hidden, m_);
  tell(stream, listener, w.qkv, qkv_, m_);
  if (s.qkv_order == QkvOrder::kParts && !s.has(Part::kQNorm)) {
    return {qkv_, width, qkv_ + q_width, width, qkv_ + q_width + kv_width, width};
  }
  // Head by head (kHeads): a row is as many runs of one head each as there are heads.
  const int64_t runs = s.qkv_order == QkvOrder::kHeads ? s.heads : 1;
  const float* from = qkv_;
  for (const auto& [to, row] : {std::pair{q_, q_width}, {k_, kv_width}, {v_, kv_width}}) {
    const int64_t part = row / runs;
    kernels::copy_to(stream, from, width / runs, to, part, m_ * runs, part);
    from += part;
  }
  return apart;
}

void Runner::attention_block(device::Stream& stream, int64_t layer, kernels::ConstRows x,
                             kernels::KvCache& cache, const Listener& listener,
                             const BlockOutput& output) {
  const DecoderSpec& s = decoder_->spec;
  const DecoderLayer& w = decoder_->layers[static_cast<size_t>(layer)];
  const int64_t q_width = s.heads * s.head_dim;
  const int64_t kv_width = s.kv_heads * s.head_dim;
  const int64_t window = s.windows[static_cast<size_t>(layer)];
  const Qkv qkv = project_qkv(stream, w, x, listener);
  if (s.has(Part::kQNorm)) {  // then the three are apart
    // Heads lie one after another, so that (m, heads * head_dim) is also (m * heads, head_dim).
    const bool whole = s.qk_norm_whole_row;
    normalize(stream, w.q_norm, q_, q_, whole ? m_ : m_ * s.heads, whole ? q_width : s.head_dim);
    normalize(stream, w.k_norm, k_, k_, whole ? m_ : m_ * s.kv_heads,
              whole ? kv_width : s.head_dim);
  }
  const kernels::RopeRows& rows = window_rope_ && window > 0 ? window_rope_rows_ : rope_rows_;
  const kernels::AttentionConfig config{.heads = s.heads,
                                        .scale = s.attention_scale,
                                        .soft_cap = s.attention_soft_cap,
                                        .window = window,
                                        .exact = decoder_->exact};
  const kernels::Rows mixed(mixed_, held_for(stream, {&w.o}, m_));
  kernels::attend(stream, ops_, config, cache,
                  {.rope = s.rotary ? &rows : nullptr,
                   .q = qkv.q,
                   .ldq = qkv.ldq,
                   .k = qkv.k,
                   .ldk = qkv.ldk,
                   .v = qkv.v,
                   .ldv = qkv.ldv,
                   .position = position_,
                   .placed_position = placed_position_,
                   .m = m_,
                   .out = mixed,
                   .ldo = q_width});

  float* const out = output.to;
  const LinearOutput o[] = {{&w.o, out, s.hidden, out == x_, output.next}};
  apply(stream, o, mixed, q_width, m_);
  tell(stream, listener, w.o, out, m_);
  if (s.has(Part::kPostAttentionNorm)) {
    normalize(stream, w.post_attention_norm, out, out, m_, s.hidden);
  }
}

Runner::Inner Runner::run_gate_up(device::Stream& stream, const DecoderLayer& w,
                                  kernels::ConstRows x, const Listener& listener) {
  const DecoderSpec& s = decoder_->spec;
  const bool fused = s.has(Part::kGateUp);
  const bool gated = fused || s.has(Part::kGate);
  const int64_t stride = fused ? 2 * s.ffn : s.ffn;  // of gate, and of up
  const kernels::Held held = has_inner_ ? held_for(stream, {&w.down}, m_) : kernels::Held::kF32;
  const kernels::Held before = held == kernels::Held::kF32
                                   ? held  // what is not rounded after is not rounded before
                                   : held_by(stream, w.ffn_readers(), m_);
  const kernels::Rows gate(gate_, before);
  const kernels::Rows up = fused ? gate.from(s.ffn) : kernels::Rows(up_, before);
  // In place, unless `down` reads narrower numbers.
  Inner out{gated ? gate : up, stride};
  if (held != kernels::Held::kF32) out = {kernels::Rows(inner_, held), s.ffn};
  if (!fused && gated && !listener && can_gate(stream, w.gate, w.up, m_)) {
    const GatedOutput both{.gate_layer = &w.gate,
                           .up_layer = &w.up,
                           .function = s.activation,
                           .gate = gate.f32(),
                           .up = up.f32(),
                           .ld = stride,
                           .y = out.rows,
                           .ldy = out.stride};
    apply_gated(stream, both, x, s.hidden, m_);
    return out;
  }
  if (fused) {
    const LinearOutput gate_up[] = {{&w.gate_up, gate, stride}};
    apply(stream, gate_up, x, s.hidden, m_);
    tell(stream, listener, w.gate_up, gate, m_);
  } else if (gated) {
    const LinearOutput gate_up[] = {{&w.gate, gate, stride}, {&w.up, up, stride}};
    apply(stream, gate_up, x, s.hidden, m_);
    tell(stream, listener, w.gate, gate, m_);
    tell(stream, listener, w.up, up, m_);
  } else {
    const LinearOutput only_up[] = {{&w.up, up, stride}};
    apply(stream, only_up, x, s.hidden, m_);
    tell(stream, listener, w.up, up, m_);
  }
  if (gated) {
    kernels::activate_gated(stream, ops_, s.activation, gate, stride, up, stride, out.rows,
                            out.stride, m_, s.ffn);
  } else {
    kernels::activate(stream, ops_, s.activation, up, stride, out.rows, out.stride, m_, s.ffn);
  }
  return out;
}

void Runner::ffn_block(device::Stream& stream, int64_t layer, kernels::ConstRows x,
                       const Listener& listener, const BlockOutput& output) {
  const DecoderSpec& s = decoder_->spec;
  const DecoderLayer& w = decoder_->layers[static_cast<size_t>(layer)];
  const Inner inner = run_gate_up(stream, w, x, listener);
  float* const out = output.to;
  const LinearOutput down[] = {{&w.down, out, s.hidden, out == x_, output.next}};
  apply(stream, down, inner.rows, inner.stride, m_);
  tell(stream, listener, w.down, out, m_);
  if (s.has(Part::kPostFfnNorm)) normalize(stream, w.post_ffn_norm, out, out, m_, s.hidden);
}

void Runner::logits(device::Stream& stream, const float* hidden, int64_t m, float* out) {
  const DecoderSpec& s = decoder_->spec;
  const LinearOutput head[] = {{&decoder_->head(), out, s.vocab}};
  apply(stream, head, hidden, s.width(), m);
  if (s.logit_scale != 1) kernels::scale_by(stream, ops_, s.logit_scale, out, m * s.vocab);
  if (s.logit_soft_cap > 0) kernels::soft_cap(stream, ops_, s.logit_soft_cap, out, m * s.vocab);
}

}  // namespace nibble::layers
