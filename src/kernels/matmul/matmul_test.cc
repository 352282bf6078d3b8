#include "kernels/matmul/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/matmul/kernel.h"
#include "kernels/matmul/random_weight.h"
#include "kernels/quantize/quantize.h"

namespace nibble::kernels {
namespace {

using tensor::DType;
using tensor::Element;
using tensor::QuantizedWeight;
using tensor::WeightFormat;
using tensor::ZeroKind;

// Every kind of weight there is; groups and types at their edges.
std::vector<WeightFormat> formats() {
  std::vector<WeightFormat> out;
  for (Element e : {Element::kF32, Element::kF16, Element::kBF16}) out.push_back({.element = e});
  for (int e = static_cast<int>(Element::kE4M3); e <= static_cast<int>(Element::kU2); ++e) {
    const auto element = static_cast<Element>(e);
    const bool integer = tensor::is_integer(element);
    for (int64_t group : {0, 16, 32, 64, 96, 128}) {
      for (DType type : {DType::kF16, DType::kF32, DType::kBF16}) {
        if (type == DType::kBF16 && group != 32) continue;
        WeightFormat f{.element = element, .scaled = true, .group_k = group, .scale_type = type};
        out.push_back(f);
        f.zero = ZeroKind::kInteger;
        if (integer) out.push_back(f);
        f.zero = ZeroKind::kOffset;
        if (integer && type != DType::kBF16) out.push_back(f);
      }
    }
    out.push_back({.element = element, .scaled = true, .group_n = 0});                  // tensor
    out.push_back({.element = element, .scaled = true, .group_n = 48, .group_k = 64});  // block
    out.push_back({.element = element, .scaled = true, .group_k = 5});                  // odd
    out.push_back({.element = element,
                   .scaled = true,
                   .group_k = 32,
                   .scale_type = element == Element::kE2M1 ? DType::kE8M0 : DType::kF16,
                   .act_order = integer});
    for (int64_t group : {16, 32}) {  // scales of scales, as GGUF's K types have them
      WeightFormat f{.element = element,
                     .scaled = true,
                     .group_k = group,
                     .super_k = 64,
                     .zero = integer && group == 32 ? ZeroKind::kOffset : ZeroKind::kNone};
      if (tensor::bits(element) <= 8) out.push_back(f);
    }
  }
  return out;
}

Choice choice_of(const char* packing) {
  return {packing, {{1, INT64_MAX, &all_kernels().back()}}, {}, {}};
}

TEST(matmul, packing_keeps_every_bit_of_every_format) {
  device::Stream stream(2);
  int packed_kinds = 0;
  uint32_t seed = 1;
  for (const WeightFormat& f : formats()) {
    for (auto [n, k] : {std::pair<int64_t, int64_t>{3, 200}, {33, 64}, {64, 49}}) {
      const QuantizedWeight w = random_weight(f, n, k, ++seed);
      const MatmulProblem problem{n, k, f, {}};
      for (Packing p : {Packing::kN2, Packing::kN4, Packing::kN6, Packing::kN8, Packing::kN16,
                        Packing::kN32, Packing::kPlain}) {
        if (!packing_refusal(problem, p).empty()) continue;
        ++packed_kinds;
        SCOPED_TRACE(tensor::to_string(f) + " " + name(p) + " seed " + std::to_string(seed));
        auto packed = pack(w, choice_of(name(p)), stream);
        ASSERT_TRUE(packed) << packed.error().message;
        EXPECT_EQ(static_cast<int64_t>(packed->bytes.size()),
                  packed_bytes(problem, packed->choice));
        std::vector<float> got(static_cast<size_t>(k), NAN);
        std::vector<float> expected(static_cast<size_t>(k));
        for (int64_t row = 0; row < n; ++row) {
          unpack_row(*packed, row, got.data());
          tensor::dequantize_row(w, row, expected.data());
          ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size() * 4), 0) << "row " << row;
        }
      }
    }
  }
  EXPECT_GT(packed_kinds, 500);
}

TEST(matmul, q4_1_takes_five_bits_a_weight) {
  const WeightFormat f{.element = Element::kU4,
                       .scaled = true,
                       .group_k = 32,
                       .scale_type = DType::kF16,
                       .zero = ZeroKind::kOffset};
  EXPECT_EQ(packed_bytes({576, 1536, f, {}}, choice_of("n4")), 576 * 1536 * 5 / 8);
}

TEST(matmul, a_scale_that_its_type_cannot_hold_is_an_error) {
  device::Stream stream(1);
  const WeightFormat f{
      .element = Element::kS4, .scaled = true, .group_k = 32, .scale_type = DType::kF16};
  QuantizedWeight w = random_weight(f, 40, 64, 5);
  w.scale[2 * 33 + 1] = 1e-9f;
  auto packed = pack(w, choice_of("n4"), stream);
  ASSERT_FALSE(packed);
  EXPECT_EQ(packed.error().message,
            "row 33, group 1 of a s4g32 weight: scale 1e-09 cannot be held as f16");
}

// What y must be, in double, and how far from it a kernel may land.
struct Expected {
  std::vector<double> y;      // (m, n)
  std::vector<double> bound;  // (m, n)
};

// The largest |w| of a code and the offset taken apart: kernels that add the two separately round
// numbers of this size.
std::vector<double> magnitudes(const QuantizedWeight& w, int64_t n) {
  std::vector<float> row(static_cast<size_t>(w.k));
  tensor::dequantize_row(w, n, row.data());
  std::vector<double> out(row.begin(), row.end());
  for (double& v : out) v = std::fabs(v);
  if (w.offset.empty()) return out;
  const int64_t group = w.format.group_k == 0 ? w.k : w.format.group_k;
  for (int64_t k = 0; k < w.k; ++k) {
    const auto at = static_cast<size_t>(w.order.empty() ? k : w.order[static_cast<size_t>(k)]);
    out[at] += 2 * std::fabs(w.offset[static_cast<size_t>(n * w.groups() + k / group)]);
  }
  return out;
}

// Rounding of K products and sums in f32: K * 2^-24 of the sum of magnitudes, in any order. An
// activation held as a 16-bit integer is off by half a step, absmax / 32512 / 2, of its unit.
Expected expect(const QuantizedWeight& w, const std::vector<float>& x, int64_t m, Form form,
                int64_t unit) {
  Expected out;
  out.y.resize(static_cast<size_t>(m * w.n));
  out.bound.resize(out.y.size());
  std::vector<float> row(static_cast<size_t>(w.k));
  const bool integers = holds_integers(form);
  std::vector<double> step(x.size(), 0.0);
  for (int64_t i = 0; i < m && integers; ++i) {
    for (int64_t begin = 0; begin < w.k; begin += unit) {
      const auto at = [&](int64_t k) {
        return static_cast<size_t>(i * w.k +
                                   (w.order.empty() ? k : w.order[static_cast<size_t>(k)]));
      };
      double most = 0;
      const int64_t end = std::min(w.k, begin + unit);
      for (int64_t k = begin; k < end; ++k) most = std::max(most, std::fabs(double{x[at(k)]}));
      for (int64_t k = begin; k < end; ++k) step[at(k)] = most / 32512 * 0.51;
    }
  }
  for (int64_t n = 0; n < w.n; ++n) {
    tensor::dequantize_row(w, n, row.data());
    const std::vector<double> magnitude = magnitudes(w, n);
    for (int64_t i = 0; i < m; ++i) {
      double y = 0;
      double sum = 0;
      double quantization = 0;
      for (int64_t k = 0; k < w.k; ++k) {
        const auto at = static_cast<size_t>(k);
        const double v = x[static_cast<size_t>(i * w.k + k)];
        y += v * row[at];
        sum += std::fabs(v) * magnitude[at];
        quantization += step[static_cast<size_t>(i * w.k + k)] * magnitude[at];
      }
      out.y[static_cast<size_t>(i * w.n + n)] = y;
      out.bound[static_cast<size_t>(i * w.n + n)] =
          quantization + static_cast<double>(w.k + 8) * 0x1p-24 * sum + 1e-37;
    }
  }
  return out;
}

bool runs_here(const Kernel& kernel) {
  static const device::Hardware hardware = device::detect_hardware();
  return hardware.has(kernel.isa);
}

bool reads(const Kernel& kernel, const QuantizedWeight& w) {
  if (!reads(kernel, w.format.element)) return false;
  return packing_refusal({w.n, w.k, w.format, {}}, kernel.packing).empty();
}

PackedWeight pack_for(const Kernel& kernel, const QuantizedWeight& w, device::Stream& stream) {
  auto packed =
      pack(w, {name(kernel.packing), {{1, INT64_MAX, &kernel}}, {}, w.activation}, stream);
  EXPECT_TRUE(packed) << packed.error().message;
  return std::move(*packed);
}

constexpr float kPoison = -12345.678f;

// y of one weight, with a poisoned margin around it that must stay.
std::vector<float> product(device::Stream& stream, const PackedWeight& weight,
                           const std::vector<float>& x, int64_t m) {
  const int64_t n = weight.problem.n;
  const int64_t ldy = n + 3;
  std::vector<float> y(static_cast<size_t>(m * ldy + 7), kPoison);
  const MatmulTarget target{&weight, y.data(), ldy};
  matmul(stream, {&target, 1}, x.data(), weight.problem.k, m);
  std::vector<float> out;
  for (int64_t i = 0; i < m; ++i) {
    out.insert(out.end(), y.begin() + i * ldy, y.begin() + i * ldy + n);
    for (int64_t j = n; j < ldy; ++j) EXPECT_EQ(y[static_cast<size_t>(i * ldy + j)], kPoison);
  }
  for (size_t j = y.size() - 7; j < y.size(); ++j) EXPECT_EQ(y[j], kPoison);
  return out;
}

class EveryKernel : public testing::TestWithParam<const Kernel*> {
 protected:
  void SetUp() override {
    if (!runs_here(*GetParam())) {
      GTEST_SKIP() << "this machine lacks " << device::name(GetParam()->isa);
    }
  }
};

std::vector<const Kernel*> kernel_pointers() {
  std::vector<const Kernel*> out;
  for (const Kernel& kernel : all_kernels()) out.push_back(&kernel);
  return out;
}

INSTANTIATE_TEST_SUITE_P(kernels, EveryKernel, testing::ValuesIn(kernel_pointers()),
                         [](const auto& kernel) { return std::string(kernel.param->name); });

TEST_P(EveryKernel, is_right_within_its_derived_bound) {
  const Kernel& kernel = *GetParam();
  device::Stream stream(2);
  const int64_t tokens[] = {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 64};
  const int64_t rows[] = {1, 31, 33, 64, 70};
  const int64_t inputs[] = {1, 32, 49, 200, 416};
  uint32_t seed = 100;
  size_t turn = 0;
  for (const WeightFormat& f : formats()) {
    for (int pass = 0; pass < 5;
         ++pass) {  // 5 and 13 share no divisor: every M meets every kind of format
      ++seed;
      const int64_t m = tokens[turn % 13];
      const int64_t n = rows[turn / 2 % 5];
      const int64_t k = inputs[turn++ / 3 % 5];
      const QuantizedWeight w = random_weight(f, n, k, seed);
      if (!reads(kernel, w)) continue;
      SCOPED_TRACE(testing::Message() << tensor::to_string(f) << " m " << m << " n " << n << " k "
                                      << k << " seed " << seed);
      const std::vector<float> x = random_activations(m * k, seed);
      const PackedWeight packed = pack_for(kernel, w, stream);
      const Layout l = make_layout(packed.problem, kernel.packing);
      const Expected expected = expect(w, x, m, kernel.form, l.unit);
      const std::vector<float> y = product(stream, packed, x, m);
      for (size_t at = 0; at < y.size(); ++at) {
        ASSERT_LE(std::fabs(y[at] - expected.y[at]), expected.bound[at])
            << "y[" << at / static_cast<size_t>(n) << "," << at % static_cast<size_t>(n) << "] is "
            << y[at] << ", expected " << expected.y[at];
      }
    }
  }
}

// All kernels of 16-bit activations do the same arithmetic in the same order: whatever the number
// of tokens and the instruction set, a token's outputs are the same bits.
TEST(matmul, integer_kernels_agree_bit_by_bit) {
  device::Stream stream(2);
  for (const WeightFormat& f : formats()) {
    if (f.act_order) continue;
    const QuantizedWeight w = random_weight(f, 45, 330, 41);
    const std::vector<float> x = random_activations(17 * w.k, 42);
    std::vector<float> first;
    for (const Kernel& kernel : all_kernels()) {
      if (!holds_integers(kernel.form) || !reads(kernel, w) || !runs_here(kernel)) continue;
      const PackedWeight packed = pack_for(kernel, w, stream);
      std::vector<float> y;
      for (int64_t m : {17, 3, 1}) {  // the last token of each, alone or among others
        const std::vector<float> tail(x.end() - m * w.k, x.end());
        const std::vector<float> all = product(stream, packed, tail, m);
        y.assign(all.end() - w.n, all.end());
        if (first.empty()) first = y;
        ASSERT_EQ(std::memcmp(y.data(), first.data(), y.size() * 4), 0)
            << kernel.name << " " << tensor::to_string(f) << " m " << m;
      }
    }
  }
}

TEST_P(EveryKernel, does_not_depend_on_the_number_of_threads) {
  const Kernel& kernel = *GetParam();
  device::Stream one(1);
  device::Stream two(2);
  device::Stream three(3);
  size_t turn = 0;
  for (const WeightFormat& f : formats()) {
    if (++turn % 3 != 0) continue;
    const QuantizedWeight w = random_weight(f, 200, 224, 9);
    if (!reads(kernel, w)) continue;
    const PackedWeight packed = pack_for(kernel, w, one);
    for (int64_t m : {1, 3, 19}) {
      const std::vector<float> x = random_activations(m * w.k, 10);
      const std::vector<float> y = product(one, packed, x, m);
      EXPECT_EQ(product(two, packed, x, m), y) << tensor::to_string(f);
      EXPECT_EQ(product(three, packed, x, m), y) << tensor::to_string(f);
    }
  }
}

TEST_P(EveryKernel, lets_what_is_not_finite_through) {
  const Kernel& kernel = *GetParam();
  device::Stream stream(1);
  for (const WeightFormat& f : formats()) {
    if (f.group_k != 0 && f.group_k != 32) continue;
    const QuantizedWeight w = random_weight(f, 40, 96, 11);
    if (!reads(kernel, w)) continue;
    const PackedWeight packed = pack_for(kernel, w, stream);
    std::vector<float> x = random_activations(3 * w.k, 12);
    x[50] = NAN;
    x[static_cast<size_t>(2 * w.k + 7)] = INFINITY;
    const std::vector<float> y = product(stream, packed, x, 3);
    for (size_t n = 0; n < 40; ++n) {
      EXPECT_TRUE(std::isnan(y[n])) << tensor::to_string(f);
      EXPECT_TRUE(std::isfinite(y[40 + n])) << tensor::to_string(f);
      EXPECT_FALSE(std::isfinite(y[80 + n])) << tensor::to_string(f);
    }
  }
}

TEST_P(EveryKernel, an_input_of_zeros_gives_zeros) {
  const Kernel& kernel = *GetParam();
  device::Stream stream(1);
  for (const WeightFormat& f : formats()) {
    const QuantizedWeight w = random_weight(f, 33, 70, 11);
    if (!reads(kernel, w)) continue;
    const std::vector<float> zeros(5 * 70, 0.0f);
    for (float v : product(stream, pack_for(kernel, w, stream), zeros, 5)) ASSERT_EQ(v, 0.0f);
  }
}

TEST(matmul, several_weights_share_one_call) {
  device::Stream stream(2);
  const device::Hardware hardware = device::detect_hardware();
  const WeightFormat kinds[] = {
      {.element = Element::kU4,
       .scaled = true,
       .group_k = 32,
       .scale_type = DType::kF16,
       .zero = ZeroKind::kOffset},
      {.element = Element::kS8, .scaled = true, .group_k = 32, .scale_type = DType::kF16},
      {.element = Element::kBF16},
      {.element = Element::kS4, .scaled = true, .group_k = 32, .act_order = true},
      {.element = Element::kE4M3, .scaled = true},
      {.element = Element::kU2, .scaled = true, .group_k = 10}};
  std::vector<PackedWeight> weights;
  for (const WeightFormat& f : kinds) {
    QuantizedWeight w = random_weight(f, 65, 96, 21);
    if (f.element == Element::kS8) w.input_factor.assign(96, 0.5f);
    auto choice = choose({w.n, w.k, f, {}}, hardware, {});
    ASSERT_TRUE(choice) << choice.error().message;
    auto packed = pack(w, *choice, stream);
    ASSERT_TRUE(packed) << packed.error().message;
    weights.push_back(std::move(*packed));
  }
  for (int64_t m : {1, 6, 40}) {
    const std::vector<float> x = random_activations(m * 96, 22);
    std::vector<std::vector<float>> y(weights.size());
    std::vector<MatmulTarget> targets;
    for (size_t i = 0; i < weights.size(); ++i) {
      y[i].assign(static_cast<size_t>(m * 65), kPoison);
      targets.push_back({&weights[i], y[i].data(), 65});
    }
    matmul(stream, targets, x.data(), 96, m);
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_EQ(y[i], product(stream, weights[i], x, m)) << tensor::to_string(kinds[i]);
    }
  }
}

// Whatever form a kernel wants x in, and for any number of threads.
TEST(matmul, a_scale_of_the_whole_call_is_the_same_for_every_kernel) {
  using Activation = tensor::ActivationFormat;
  device::Stream stream(2);
  QuantizedWeight w =
      random_weight({.element = Element::kS4, .scaled = true, .group_k = 32}, 33, 64, 5);
  w.input_factor.assign(64, 0.5f);
  std::vector<float> x(static_cast<size_t>(7 * 64));
  Random random(3);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(random);
  x[3 * 64 + 5] = 40;
  for (const Activation& activation :
       {Activation{.type = Activation::Type::kS8, .granularity = Activation::Granularity::kTensor},
        Activation{.type = Activation::Type::kE4M3,
        .granularity = Activation::Granularity::kTensor},
        Activation{.type = Activation::Type::kS8, .outlier = 1.5f}}) {
    w.activation = activation;
    std::vector<float> held = x;
    CallRange range(activation, 64);
    for (float& v : held) v *= 0.5f;
    for (int64_t i = 0; i < 7; ++i) range.add(held.data() + i * 64);
    float scale = 1, zero = 0;
    const Activation format = range.found(scale, zero);
    for (int64_t i = 0; i < 7; ++i) {
      quantize_activation(format, scale, zero, held.data() + i * 64, 64, held.data() + i * 64,
                          range.kept().empty() ? nullptr : range.kept().data());
    }
    for (const Kernel& kernel : all_kernels()) {
      if (!runs_here(kernel) || !reads(kernel, w)) continue;
      const PackedWeight packed = pack_for(kernel, w, stream);
      const std::vector<float> y = product(stream, packed, x, 7);
      for (int64_t i = 0; i < 7; ++i) {
        for (int64_t n = 0; n < 33; ++n) {
          float row[64];
          tensor::dequantize_row(w, n, row);
          double expected = 0, all = 0;
          for (int64_t k = 0; k < 64; ++k) {
            const double term = double{held[static_cast<size_t>(i * 64 + k)]} * double{row[k]};
            expected += term;
            all += std::fabs(term);
          }
          EXPECT_NEAR(y[static_cast<size_t>(i * 33 + n)], expected, all * 0x1p-13)
              << kernel.name << " " << tensor::to_string(activation);
        }
      }
    }
  }
}

TEST(matmul, activations_are_scaled_quantized_and_reordered_as_the_weight_says) {
  device::Stream stream(1);
  const WeightFormat f{.element = Element::kS4, .scaled = true, .group_k = 4, .act_order = true};
  QuantizedWeight w = random_weight(f, 5, 8, 31);
  w.input_factor = {1, 2, 0.5f, 1, 1, 1, 1, 4};
  w.activation = {.type = tensor::ActivationFormat::Type::kS8,
                  .granularity = tensor::ActivationFormat::Granularity::kTensor,
                  .is_static = true};
  w.input_scale = 0.25f;
  const PackedWeight packed = pack_for(all_kernels().back(), w, stream);
  const std::vector<float> x = {0.1f, 0.2f, 1.5f, 100, -3, 0.37f, 0.38f, 0.25f};
  const double held[] = {0, 0.5, 0.75, 31.75, -3, 0.25, 0.5, 1};
  const std::vector<float> y = product(stream, packed, x, 1);
  for (int64_t n = 0; n < 5; ++n) {
    float row[8];
    tensor::dequantize_row(w, n, row);
    double expected = 0;
    for (int k = 0; k < 8; ++k) expected += held[k] * row[k];
    EXPECT_EQ(y[static_cast<size_t>(n)], static_cast<float>(expected));
  }
}

}  // namespace
}  // namespace nibble::kernels
