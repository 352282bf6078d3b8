// What products of few tokens do beside multiplying, where there is a Hopper: they add to what
// there is, normalize what they read, and end with the activation of an MLP. Against float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/number.h"
#include "kernels/matmul/cuda_test_card.h"
#include "kernels/matmul/rows.h"

namespace nibble::kernels {
namespace {

using tensor::DType;
using tensor::Element;
using tensor::QuantizedWeight;
using tensor::WeightFormat;
using tensor::ZeroKind;

// Every kind that is compiled by itself: bits, scales of 32, 64, more inputs and all, zeros or
// none.
std::vector<WeightFormat> kinds() {
  std::vector<WeightFormat> out;
  for (const Element element : {Element::kS4, Element::kS8}) {
    for (const int64_t group : {int64_t{32}, int64_t{64}, int64_t{128}, int64_t{256}, int64_t{0}}) {
      WeightFormat f = {.element = element, .scaled = true, .group_k = group};
      f.scale_type = group % 128 == 0 ? DType::kBF16 : DType::kF16;
      out.push_back(f);
      if (element == Element::kS8) continue;
      f.element = Element::kU4;
      f.zero = ZeroKind::kInteger;
      out.push_back(f);
    }
  }
  return out;
}

// Of sums of K terms in f32: in parts of the sum of magnitudes.
double part(int64_t k) { return static_cast<double>(k + 8) * 0x1p-23; }

float bf16(float v) { return base::f32_from_bf16(base::bf16_from_f32(v)); }
std::vector<float> rounded(std::vector<float> x) {
  std::transform(x.begin(), x.end(), x.begin(), bf16);
  return x;
}

// x W^T, and the sums of the magnitudes of what is added, (m, n).
struct Product {
  std::vector<double> sum, all;
};
Product product_of(const QuantizedWeight& w, const std::vector<float>& x, int64_t m) {
  Product out;
  out.sum.resize(static_cast<size_t>(m * w.n));
  out.all.resize(out.sum.size());
  for_outputs(w, x, m, [&](int64_t i, int64_t n, double sum, double all) {
    const auto at = static_cast<size_t>(i * w.n + n);
    out.sum[at] = sum;
    out.all[at] = all;
  });
  return out;
}

constexpr float kEps = 1e-5f;
// Rounded as the card does it: before the factor.
std::vector<float> normalized(const std::vector<float>& x, const std::vector<float>& weight) {
  std::vector<float> out(x.size());
  const size_t k = weight.size();
  for (size_t i = 0; i < x.size(); i += k) {
    double squares = 0;
    for (size_t j = 0; j < k; ++j) squares += double{x[i + j]} * double{x[i + j]};
    const double factor = 1 / std::sqrt(squares / static_cast<double>(k) + double{kEps});
    for (size_t j = 0; j < k; ++j) {
      out[i + j] = static_cast<float>(double{bf16(x[i + j] * weight[j])} * factor);
    }
  }
  return out;
}

// The rows of a residual stream: tokens of different sizes, some inputs much larger than the rest.
std::vector<float> stream_rows(int64_t m, int64_t k, uint32_t seed) {
  std::vector<float> out = normal_floats(m * k, seed);
  for (int64_t i = 0; i < m; ++i) {
    const auto size = std::pow(10.0f, static_cast<float>(i % 4) - 2);
    for (int64_t j = 0; j < k; ++j) {
      out[static_cast<size_t>(i * k + j)] *= j % 97 == 5 ? 50 * size : size;
    }
  }
  return out;
}

// What the product before leaves of these rows: two bf16 in each float, times the norm's weights.
std::vector<float> half_normed_rows(const std::vector<float>& x, const std::vector<float>& weight) {
  std::vector<uint16_t> halves(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    halves[i] = base::bf16_from_f32(x[i] * weight[i % weight.size()]);
  }
  std::vector<float> out((halves.size() + 1) / 2);
  std::memcpy(out.data(), halves.data(), halves.size() * sizeof(uint16_t));
  return out;
}
std::vector<float> squares_of(const std::vector<float>& x) {
  std::vector<float> out(x.size() / 8);
  for (size_t i = 0; i < out.size() * 8; ++i) out[i / 8] += x[i] * x[i];
  return out;
}

class HopperFew : public Hopper {
 protected:
  device::Memory on_card(const std::vector<float>& values) {
    auto out = device::Memory::copy_of(*stream_, values.data(), values.size() * sizeof(float));
    EXPECT_TRUE(out) << out.error().message;
    return std::move(*out);
  }
  static float* floats(device::Memory& memory) { return reinterpret_cast<float*>(memory.data()); }
  std::vector<float> back(device::Memory& memory, int64_t count) {
    std::vector<float> out(static_cast<size_t>(count));
    const auto ok =
        device::copy_to_host(*stream_, out.data(), memory.data(), out.size() * sizeof(float));
    EXPECT_TRUE(ok) << ok.error().message;
    return out;
  }

  // Rows of a residual stream, half normalized by a product that adds to them; and the rest by
  // those of `readers`, together.
  void expect_split_norm(const QuantizedWeight& adds, const std::vector<QuantizedWeight>& readers,
                         int64_t m, const std::string& what) {
    const int64_t k = adds.k;
    const int64_t n = adds.n;
    const std::vector<float> x = normal_floats(m * k, static_cast<uint32_t>(m + k));
    const std::vector<float> before = stream_rows(m, n, 5);
    const std::vector<float> norm = normal_floats(n, 7);
    device::Memory x_there = on_card(x);
    device::Memory stream_there = on_card(before);
    device::Memory norm_there = on_card(norm);
    device::Memory rows = on_card(std::vector<float>(static_cast<size_t>(m * n), NAN));
    device::Memory squares = on_card(std::vector<float>(static_cast<size_t>(m * n), NAN));
    const PackedWeight first = packed(adds, {});
    std::vector<PackedWeight> held;
    std::vector<device::Memory> y;
    for (const QuantizedWeight& w : readers) {
      held.push_back(packed(w, {}));
      y.push_back(on_card(std::vector<float>(static_cast<size_t>(m * w.n), NAN)));
    }
    std::vector<const PackedWeight*> all;
    std::vector<RowsTarget> targets;
    for (size_t i = 0; i < held.size(); ++i) {
      all.push_back(&held[i]);
      targets.push_back({&held[i], floats(y[i]), readers[i].n});
    }
    ASSERT_TRUE(can_split_norm(*stream_, first, all, m)) << what;
    const HalfNormed half = {floats(norm_there), kEps, rows.data(), floats(squares)};
    const RowsTarget target{&first, floats(stream_there), n, true, half};
    matmul(*stream_, {&target, 1}, floats(x_there), k, m);
    matmul(*stream_, targets, ConstRows(half), n, m);
    const std::vector<float> after = back(stream_there, m * n);
    std::vector<float> added(after.size());
    std::transform(after.begin(), after.end(), before.begin(), added.begin(), std::minus<>());
    expect_product(adds, rounded(x), m, added, part(k) + 0x1p-12, what + ", added");
    for (size_t i = 0; i < held.size(); ++i) {
      expect_product(readers[i], normalized(after, norm), m, back(y[i], m * readers[i].n), part(n),
                     what);
    }
  }

  enum class Read { kFloats, kBf16, kHalfNormed };
  // f(gate) * up, as f32 in the place of gate or as bf16; of x, or of rows that are half
  // normalized.
  void expect_gated(const WeightFormat& format, int64_t n, int64_t k, int64_t m, Activation f,
                    bool bf16, Read as = Read::kFloats) {
    const std::string what = tensor::to_string(format) + ", " + std::to_string(n) + " x " +
                             std::to_string(k) + ", " + std::to_string(m) + " tokens, " + name(f);
    const QuantizedWeight of_gate = random_weight(format, n, k, 1);
    const QuantizedWeight of_up = random_weight(format, n, k, 2);
    const PackedWeight gate = packed(of_gate, {});
    const PackedWeight up = packed(of_up, {});
    ASSERT_TRUE(can_gate(*stream_, gate, up, m)) << what;
    const bool half_normed = as == Read::kHalfNormed;
    const std::vector<float> x = half_normed ? stream_rows(m, k, 3) : normal_floats(m * k, 3);
    const std::vector<float> norm = normal_floats(k, 4);
    device::Memory x_there = on_card(x);
    device::Memory norm_there = on_card(norm);
    device::Memory rows = on_card(half_normed_rows(x, norm));
    device::Memory squares = on_card(squares_of(x));
    const HalfNormed half = {floats(norm_there), kEps, rows.data(), floats(squares)};
    device::Memory bf16_there = on_card(half_normed_rows(x, {1.0f}));
    const ConstRows from = half_normed         ? ConstRows(half)
                           : as == Read::kBf16 ? ConstRows(Rows(bf16_there.data(), Held::kBf16))
                                               : ConstRows(floats(x_there));
    const std::vector<float> nothing(static_cast<size_t>(m * n), NAN);
    device::Memory gate_there = on_card(nothing);
    device::Memory up_there = on_card(nothing);
    device::Memory y_there = on_card(nothing);
    GatedTarget target{&gate, &up, f, floats(gate_there), floats(up_there), n, nullptr, n};
    target.y = bf16 ? Rows(y_there.data(), Held::kBf16) : Rows(floats(gate_there));
    matmul_gated(*stream_, target, from, k, m);
    const std::vector<float> y = bf16 ? from_bf16(y_there, m * n) : back(gate_there, m * n);

    const std::vector<float> read = half_normed ? normalized(x, norm) : rounded(x);
    const Product g = product_of(of_gate, read, m);
    const Product u = product_of(of_up, read, m);
    const ActivationOps& exact = kActivationReference;
    for (size_t i = 0; i < y.size(); ++i) {
      const auto at = static_cast<float>(g.sum[i]);
      float value = 0;
      exact.activate(f, &at, 1, &value);
      const double want = double{value} * u.sum[i];
      const double of_g = part(k) * g.all[i];
      const double of_u = part(k) * u.all[i];
      const double slope = f == Activation::kRelu2 ? 2 * std::fabs(g.sum[i]) + of_g : 1.2;
      const double error = std::fabs(u.sum[i]) * slope * of_g +
                           (std::fabs(double{value}) + slope * of_g) * of_u +
                           0x1p-8 * std::fabs(want) + 1e-6 * u.all[i];
      ASSERT_LE(std::fabs(double{y[i]} - want), error) << what << ", at " << i;
    }
  }

  std::vector<float> from_bf16(device::Memory& memory, int64_t count) {
    std::vector<uint16_t> halves(static_cast<size_t>(count));
    const auto ok = device::copy_to_host(*stream_, halves.data(), memory.data(),
                                         halves.size() * sizeof(uint16_t));
    EXPECT_TRUE(ok) << ok.error().message;
    std::vector<float> out(halves.size());
    std::transform(halves.begin(), halves.end(), out.begin(), base::f32_from_bf16);
    return out;
  }
};

TEST_F(HopperFew, products_add_to_what_there_is) {
  uint32_t seed = 1;
  for (const WeightFormat& format : kinds()) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{200, 264}, {130, 1104}}) {
      const QuantizedWeight w = random_weight(format, n, k, seed++);
      const PackedWeight weight = packed(w, {});
      EXPECT_FALSE(can_add(*stream_, weight, 5));
      for (const int64_t m : {1, 2, 3, 4}) {
        ASSERT_TRUE(can_add(*stream_, weight, m));
        const std::vector<float> x = normal_floats(m * k, seed++);
        // Rows of y that are not aligned to 16 bytes, too.
        const int64_t ldy = n + m % 2;
        const std::vector<float> before = normal_floats(m * ldy, seed++);
        device::Memory x_there = on_card(x);
        device::Memory y_there = on_card(before);
        const RowsTarget target{&weight, floats(y_there), ldy, true};
        matmul(*stream_, {&target, 1}, floats(x_there), k, m);
        const std::vector<float> after = back(y_there, m * ldy);
        std::vector<float> added;
        for (int64_t i = 0; i < m * ldy; ++i) {
          const auto at = static_cast<size_t>(i);
          if (i % ldy < n) {
            added.push_back(after[at] - before[at]);
          } else {
            ASSERT_EQ(after[at], before[at]) << "between two rows";
          }
        }
        expect_product(w, rounded(x), m, added, part(k) + 0x1p-20, tensor::to_string(format));
      }
    }
  }
}

TEST_F(HopperFew, a_norm_between_two_products_is_done_by_both) {
  uint32_t seed = 100;
  for (const WeightFormat& format : kinds()) {
    const QuantizedWeight adds = random_weight(format, 256, 328, seed++);
    std::vector<QuantizedWeight> readers;
    for (const int64_t n : {500, 64, 130}) readers.push_back(random_weight(format, n, 256, seed++));
    for (const int64_t m : {1, 2, 3, 4}) {
      expect_split_norm(adds, readers, m, tensor::to_string(format));
    }
  }
  const WeightFormat usual = kinds().front();
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{256, 14336}, {20096, 512}, {1024, 8192}}) {
    const QuantizedWeight adds = random_weight(usual, n, k, seed++);
    std::vector<QuantizedWeight> readers;
    readers.push_back(random_weight(usual, 70, n, seed++));
    for (const int64_t m : {1, 3, 4}) {
      expect_split_norm(adds, readers, m, std::to_string(n) + " x " + std::to_string(k));
    }
  }
}

TEST_F(HopperFew, gate_and_up_become_what_down_reads) {
  for (const WeightFormat& format : kinds()) {
    for (const int64_t m : {1, 4, 5, 9}) {  // from 5 on by a kernel of its own
      expect_gated(format, 200, 264, m, Activation::kSilu, m % 2 == 0);
    }
  }
  const WeightFormat usual = kinds().front();
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{9000, 512}, {256, 14336}, {1024, 8192}}) {
    for (const int64_t m : {1, 2, 4}) {
      expect_gated(usual, n, k, m, Activation::kSilu, true);
    }
  }
  // As a model has it: rows of bf16 whose norm is not done yet.
  for (const WeightFormat& format : kinds()) {
    for (const int64_t m : {1, 3, 4}) {
      expect_gated(format, 9000, 512, m, Activation::kSilu, true, Read::kHalfNormed);
    }
  }
  // And with more tokens, of rows that a norm's kernel has written.
  for (const WeightFormat& format : kinds()) {
    for (const int64_t m : {2, 7, 16}) {
      expect_gated(format, 9000, 512, m, Activation::kSilu, true, Read::kBf16);
    }
  }
  for (const int64_t m : {1, 4}) {
    expect_gated(usual, 1024, 8192, m, Activation::kGeluTanh, true, Read::kHalfNormed);
    expect_gated(usual, 9000, 4096, m, Activation::kGelu, true, Read::kHalfNormed);
  }
  for (const Activation f : {Activation::kGelu, Activation::kGeluTanh, Activation::kQuickGelu,
                             Activation::kRelu, Activation::kRelu2}) {
    expect_gated(usual, 130, 1104, 2, f, true);
    expect_gated(usual, 130, 1104, 1, f, false);
  }
}

// Whichever of a cluster's blocks comes first: call() gives all that was written.
template <class Call>
void expect_the_same_each_time(const std::string& what, const Call& call) {
  std::vector<std::vector<float>> first;
  for (int i = 0; i < 50; ++i) {
    const std::vector<std::vector<float>> again = call();
    if (i == 0) first = again;
    ASSERT_EQ(again, first) << what << ", call " << i;
  }
}

TEST_F(HopperFew, results_do_not_change_between_calls) {
  const QuantizedWeight w = random_weight(kinds().front(), 256, 14336, 5);
  const PackedWeight weight = packed(w, {});
  device::Memory x = on_card(normal_floats(2 * w.k, 6));
  device::Memory norm = on_card(normal_floats(w.n, 7));
  expect_the_same_each_time("added, half normalized", [&] {
    device::Memory y = on_card(normal_floats(2 * w.n, 8));
    device::Memory rows = on_card(normal_floats(w.n, 9));
    device::Memory squares = on_card(normal_floats(w.n / 4, 10));
    const RowsTarget target{
        &weight, floats(y), w.n, true, {floats(norm), kEps, rows.data(), floats(squares)}};
    matmul(*stream_, {&target, 1}, floats(x), w.k, 2);
    return std::vector<std::vector<float>>{back(y, 2 * w.n), back(squares, w.n / 4),
                                           from_bf16(rows, 2 * w.n)};
  });
  for (const int64_t m : {2, 8, 16}) {
    device::Memory many = on_card(normal_floats(m * w.k, 6));
    expect_the_same_each_time("written, " + std::to_string(m) + " tokens", [&] {
      device::Memory y = on_card(std::vector<float>(static_cast<size_t>(m * w.n), NAN));
      const RowsTarget target{&weight, floats(y), w.n};
      matmul(*stream_, {&target, 1}, floats(many), w.k, m);
      return std::vector<std::vector<float>>{back(y, m * w.n)};
    });
  }
}

}  // namespace
}  // namespace nibble::kernels
