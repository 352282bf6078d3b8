#include "kernels/rope/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace nibble::kernels {
namespace {

Failure bad(const std::string& what) { return fail(ErrorCode::kCorrupt, "rope_scaling: " + what); }

bool positive(double v) { return std::isfinite(v) && v > 0; }

Result<void> check_lists(const RopeConfig& c) {
  const size_t pairs = static_cast<size_t>(c.rotary_dim / 2);
  const auto check = [&](const char* key, const std::vector<double>& list) -> Result<void> {
    if (list.size() != pairs) {
      return bad(fmt::format("{} has {} numbers; {} rotating dimensions need {}", key, list.size(),
                             c.rotary_dim, pairs));
    }
    if (!std::all_of(list.begin(), list.end(), positive)) {
      return bad(fmt::format("{} holds a number that is not positive", key));
    }
    return {};
  };
  if (c.type == RopeType::kLongRope) {
    NIBBLE_TRY(check("short_factor", c.short_factor));
    NIBBLE_TRY(check("long_factor", c.long_factor));
  }
  if (!c.divisors.empty()) NIBBLE_TRY(check("rope_freqs.weight", c.divisors));
  return {};
}

Result<void> check_config(const RopeConfig& c) {
  if (c.head_dim < 2 || c.rotary_dim < 2 || c.rotary_dim > c.head_dim || c.rotary_dim % 2 != 0) {
    return bad(fmt::format("{} rotating dimensions of a head of {} make no pairs", c.rotary_dim,
                           c.head_dim));
  }
  if (!positive(c.theta)) return bad(fmt::format("rope_theta is {}", c.theta));
  if (!positive(c.factor)) return bad(fmt::format("factor is {}", c.factor));
  if (c.type == RopeType::kDynamic && (c.max_positions < 1 || c.rotary_dim < 4)) {
    return bad("dynamic scaling needs max_position_embeddings and more than one pair");
  }
  const bool needs_original =
      c.type == RopeType::kYarn || c.type == RopeType::kLlama3 || c.type == RopeType::kLongRope;
  if (needs_original && c.original_max_positions < 2) {
    return bad(fmt::format("original_max_position_embeddings is {}", c.original_max_positions));
  }
  if (c.type == RopeType::kLlama3 && !(c.low_freq_factor > 0 && c.high_freq_factor > 0 &&
                                       c.low_freq_factor != c.high_freq_factor)) {
    return bad(fmt::format("low_freq_factor {} and high_freq_factor {} leave no band between",
                           c.low_freq_factor, c.high_freq_factor));
  }
  if (c.type == RopeType::kYarn && (!positive(c.beta_fast) || !positive(c.beta_slow))) {
    return bad(fmt::format("beta_fast is {}, beta_slow {}", c.beta_fast, c.beta_slow));
  }
  if (c.type == RopeType::kYarn && c.theta <= 1) {
    return bad(fmt::format("yarn needs a rope_theta above 1; it is {}", c.theta));
  }
  if (!std::isfinite(c.attention_factor) || c.attention_factor < 0) {
    return bad(fmt::format("attention_factor is {}", c.attention_factor));
  }
  return check_lists(c);
}

// theta^(-2 i / dim) for `pairs` pairs.
std::vector<double> plain(double theta, int dim, int pairs) {
  std::vector<double> f(static_cast<size_t>(pairs));
  for (int i = 0; i < pairs; ++i) {
    f[static_cast<size_t>(i)] = std::pow(theta, -2.0 * i / dim);
  }
  return f;
}

// YaRN (arXiv 2309.00071, section 3.2), with the rounding of the ramp's ends that its code has.
std::vector<double> yarn(const RopeConfig& c) {
  const int dim = c.rotary_dim;
  // The pair that turns `rotations` times within the original context.
  const auto pair_of = [&](double rotations) {
    const double turns = static_cast<double>(c.original_max_positions) / (rotations * 2 * M_PI);
    return dim * std::log(turns) / (2 * std::log(c.theta));
  };
  double low = pair_of(c.beta_fast);
  double high = pair_of(c.beta_slow);
  if (c.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  std::vector<double> f = plain(c.theta, dim, dim / 2);
  for (size_t i = 0; i < f.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    f[i] = f[i] / c.factor * ramp + f[i] * (1 - ramp);
  }
  return f;
}

// Llama 3.1's reference code: frequencies are divided where the wave is long.
std::vector<double> llama3(const RopeConfig& c) {
  const double context = static_cast<double>(c.original_max_positions);
  std::vector<double> f = plain(c.theta, c.rotary_dim, c.rotary_dim / 2);
  for (double& one : f) {
    const double wave = 2 * M_PI / one;
    if (wave < context / c.high_freq_factor) continue;
    if (wave > context / c.low_freq_factor) {
      one /= c.factor;
    } else {
      const double smooth =
          (context / wave - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
      one = (1 - smooth) * one / c.factor + smooth * one;
    }
  }
  return f;
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1;
}

double attention_factor_of(const RopeConfig& c) {
  if (c.type != RopeType::kYarn && c.type != RopeType::kLongRope) return 1;
  if (c.attention_factor > 0) return c.attention_factor;
  if (c.type == RopeType::kYarn) {
    if (c.mscale != 0 && c.mscale_all_dim != 0) {
      return yarn_scale(c.factor, c.mscale) / yarn_scale(c.factor, c.mscale_all_dim);
    }
    return yarn_scale(c.factor, 1);
  }
  if (c.factor <= 1) return 1;
  const double original = static_cast<double>(c.original_max_positions);
  return std::sqrt(1 + std::log(c.factor) / std::log(original));
}

void divide(std::vector<double>& f, const std::vector<double>& by) {
  for (size_t i = 0; i < by.size(); ++i) f[i] /= by[i];
}

void put_defaults(RopeConfig& c) {
  if (c.rotary_dim == 0) c.rotary_dim = c.head_dim;
  if (c.beta_fast == 0) c.beta_fast = 32;
  if (c.beta_slow == 0) c.beta_slow = 1;
  const bool by_ratio = c.type == RopeType::kYarn || c.type == RopeType::kLongRope;
  if (by_ratio && c.factor == 0 && c.original_max_positions > 0) {
    c.factor = static_cast<double>(c.max_positions) / static_cast<double>(c.original_max_positions);
  }
}

}  // namespace

Result<Rope> Rope::create(RopeConfig config) {
  put_defaults(config);
  NIBBLE_TRY(check_config(config));
  Rope rope;
  rope.config_ = std::move(config);
  const RopeConfig& c = rope.config_;
  rope.attention_factor_ = attention_factor_of(c);
  if (!positive(rope.attention_factor_)) {
    return bad(
        fmt::format("factor {}, mscale {} and mscale_all_dim {} give an attention factor of {}",
                    c.factor, c.mscale, c.mscale_all_dim, rope.attention_factor_));
  }
  std::vector<double>& f = rope.short_frequencies_;
  f = plain(c.theta, c.rotary_dim, c.rotary_dim / 2);
  switch (c.type) {
    case RopeType::kDefault:
    case RopeType::kDynamic:
      break;
    case RopeType::kLinear:
      for (double& one : f) one /= c.factor;
      break;
    case RopeType::kYarn:
      f = yarn(c);
      break;
    case RopeType::kLlama3:
      f = llama3(c);
      break;
    case RopeType::kLongRope:
      rope.long_frequencies_ = f;
      divide(f, c.short_factor);
      divide(rope.long_frequencies_, c.long_factor);
      divide(rope.long_frequencies_, c.divisors);
      break;
    case RopeType::kProportional:
      // Exponents run over the whole head; the pairs that do not turn have frequency 0.
      f = plain(c.theta, c.head_dim, c.rotary_dim / 2);
      for (double& one : f) one /= c.factor;
      break;
  }
  divide(f, c.divisors);
  if (c.type == RopeType::kProportional) {
    f.resize(static_cast<size_t>(c.head_dim / 2), 0.0);
  }
  return rope;
}

std::vector<double> Rope::frequencies(int64_t length) const {
  const RopeConfig& c = config_;
  if (c.type == RopeType::kLongRope && length > c.original_max_positions) {
    return long_frequencies_;
  }
  if (c.type == RopeType::kDynamic && length > c.max_positions) {
    const double dim = c.rotary_dim;
    const double stretch =
        c.factor * static_cast<double>(length) / static_cast<double>(c.max_positions) -
        (c.factor - 1);
    std::vector<double> f =
        plain(c.theta * std::pow(stretch, dim / (dim - 2)), c.rotary_dim, c.rotary_dim / 2);
    divide(f, c.divisors);
    return f;
  }
  return short_frequencies_;
}

void Rope::fill(device::ThreadPool& pool, int64_t position, int64_t m, int64_t length,
                RopeRows* rows) const {
  NIBBLE_CHECK(position >= 0 && m >= 0);
  const std::vector<double> f = frequencies(length);
  const size_t pairs = f.size();
  const bool halves = config_.order == PairOrder::kHalves;
  rows->order = config_.order;
  rows->m = m;
  rows->rotary_dim = static_cast<int64_t>(2 * pairs);
  const size_t width = halves ? pairs : 2 * pairs;
  rows->cos.resize(static_cast<size_t>(m) * width);
  rows->sin.resize(static_cast<size_t>(m) * width);
  const auto fill_row = [&](int64_t t) {
    float* cos = rows->cos.data() + static_cast<size_t>(t) * width;
    float* sin = rows->sin.data() + static_cast<size_t>(t) * width;
    for (size_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(position + t) * f[i];
      const float c = static_cast<float>(std::cos(angle) * attention_factor_);
      const float s = static_cast<float>(std::sin(angle) * attention_factor_);
      if (halves) {
        cos[i] = c;
        sin[i] = s;
      } else {
        cos[2 * i] = cos[2 * i + 1] = c;
        sin[2 * i] = -s;
        sin[2 * i + 1] = s;
      }
    }
  };
  // 13 ns a pair: of 2048 positions one thread makes in 1.6 ms what a card waits for.
  constexpr int64_t kPairsTogether = 2048;
  const int64_t together = std::max<int64_t>(1, kPairsTogether / static_cast<int64_t>(pairs + 1));
  pool.parallel_for(m, together, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) fill_row(t);
  });
}

void rotate(device::Stream& stream, const Ops& ops, const RopeRows& rows, float* x, int64_t ldx,
            int64_t heads, int64_t head_dim) {
  if (rows.m == 0 || heads == 0) return;
  NIBBLE_CHECK(rows.rotary_dim <= head_dim);
  const bool halves = rows.order == PairOrder::kHalves;
  NIBBLE_CHECK(stream.cuda() == nullptr);
  const int64_t width = halves ? rows.rotary_dim / 2 : rows.rotary_dim;
  const auto turn = halves ? ops.rope->halves : ops.rope->neighbours;
  const int64_t together = std::max<int64_t>(1, 16384 / (heads * rows.rotary_dim));
  stream.pool().parallel_for(rows.m, together, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* cos = rows.cos.data() + t * width;
      const float* sin = rows.sin.data() + t * width;
      for (int64_t h = 0; h < heads; ++h) turn(cos, sin, width, x + t * ldx + h * head_dim);
    }
  });
}

}  // namespace nibble::kernels
