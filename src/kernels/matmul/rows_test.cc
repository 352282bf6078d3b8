// Rows in other ways than f32. As the product reads them that comes after: the same numbers as when
// the product rounds them itself, bit for bit. As products write them, or add to them: what floats
// would have become, but for the order of sums.
#include "kernels/matmul/rows.h"

#include <algorithm>
#include <cmath>

#include "base/number.h"
#include "kernels/activation/activation.h"
#include "kernels/matmul/cuda_test_card.h"
#include "kernels/norm/norm.h"

namespace nibble::kernels {
namespace {

using tensor::DType;
using tensor::Element;
using tensor::WeightFormat;

const WeightFormat kFourBits = {
    .element = Element::kS4, .scaled = true, .group_k = 128, .scale_type = DType::kF16};

Held held(const device::Stream& stream, std::initializer_list<const PackedWeight*> weights,
          int64_t m) {
  return held_for(stream, {weights.begin(), weights.size()}, m);
}

TEST(rows, are_floats_on_a_cpu) {
  device::Stream stream(1);
  const tensor::QuantizedWeight w = random_weight(kFourBits, 64, 128, 1);
  auto choice = choose({64, 128, w.format, w.activation}, device::detect_hardware(), {});
  ASSERT_TRUE(choice);
  auto weight = pack(w, *choice, stream);
  ASSERT_TRUE(weight);
  const PackedWeight* const weights[] = {&*weight};
  for (const int64_t m : {1, 100}) {
    EXPECT_EQ(held(stream, {&*weight}, m), Held::kF32);
    EXPECT_EQ(held_by(stream, weights, m), Held::kF32);
    EXPECT_FALSE(can_add(stream, *weight, m));
    EXPECT_FALSE(can_split_norm(stream, *weight, weights, m));
    EXPECT_FALSE(can_gate(stream, *weight, *weight, m));
  }
}

class RowsOnCard : public Card {
 protected:
  // What `write` makes of (m, n), poisoned before: as f32 and as bf16, both as bits of bf16.
  template <class Write>
  void expect_rounded(int64_t m, int64_t n, const Write& write) {
    const auto count = static_cast<size_t>(m * n);
    std::vector<float> wide(count, NAN);
    std::vector<uint16_t> narrow(count, 0xffff);
    auto to_wide = device::Memory::copy_of(*stream_, wide.data(), count * 4);
    auto to_narrow = device::Memory::copy_of(*stream_, narrow.data(), count * 2);
    ASSERT_TRUE(to_wide && to_narrow);
    write(Rows(to_wide->data(), Held::kF32));
    write(Rows(to_narrow->data(), Held::kBf16));
    ASSERT_TRUE(device::copy_to_host(*stream_, wide.data(), to_wide->data(), count * 4));
    ASSERT_TRUE(device::copy_to_host(*stream_, narrow.data(), to_narrow->data(), count * 2));
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(narrow[i], base::bf16_from_f32(wide[i])) << i << " of rows of " << n;
    }
  }
};

TEST_F(RowsOnCard, norms_and_activations_round_what_they_write) {
  const Ops ops = ops_for(device::Isa::kReference);
  constexpr int64_t kRows = 37;
  for (const int64_t n : {64, 97, 100, 576, 4096, 5000, 20000}) {
    auto x = device::Floats::place(*stream_, normal_floats(kRows * n, 1));
    auto y = device::Floats::place(*stream_, normal_floats(kRows * n, 2));
    auto weight = device::Floats::place(*stream_, normal_floats(n, 3));
    ASSERT_TRUE(x && y && weight);
    expect_rounded(kRows, n, [&](Rows to) {
      rms_norm(*stream_, ops, {weight->data(), n}, x->data(), n, to, n, kRows);
    });
    expect_rounded(kRows, n, [&](Rows to) {
      layer_norm(*stream_, ops, {weight->data(), nullptr, n}, x->data(), n, to, n, kRows);
    });
    expect_rounded(kRows, n, [&](Rows to) {  // the residual is a new one each time
      auto residual = device::Floats::place(*stream_, normal_floats(kRows * n, 1));
      ASSERT_TRUE(residual);
      add_rms_norm(*stream_, ops, {weight->data(), n}, y->data(), n,
                   const_cast<float*>(residual->data()), n, to, n, kRows);
    });
    expect_rounded(kRows, n, [&](Rows to) {
      activate(*stream_, ops, Activation::kRelu2, x->data(), n, to, n, kRows, n);
    });
    expect_rounded(kRows, n, [&](Rows to) {
      activate_gated(*stream_, ops, Activation::kSilu, x->data(), n, y->data(), n, to, n, kRows, n);
    });
  }
}

TEST_F(RowsOnCard, a_product_of_rounded_rows_is_that_of_floats) {
  constexpr int64_t kOut = 200;
  constexpr int64_t kIn = 512;
  const WeightFormat formats[] = {
      kFourBits,
      {.element = Element::kS8, .scaled = true, .group_k = 128, .scale_type = DType::kBF16},
      {.element = Element::kF16}};
  for (const WeightFormat& format : formats) {
    const PackedWeight weight = packed(random_weight(format, kOut, kIn, 4), {});
    for (const int64_t m : {1, 3, 6, 16, 20, 300, 4100}) {
      if (held(*stream_, {&weight}, m) == Held::kF32) continue;
      const std::vector<float> x = normal_floats(m * kIn, static_cast<uint32_t>(m));
      std::vector<uint16_t> rounded;
      for (const float v : x) rounded.push_back(base::bf16_from_f32(v));
      auto on_card = device::Memory::copy_of(*stream_, rounded.data(), rounded.size() * 2);
      std::vector<float> y(static_cast<size_t>(m * kOut), NAN);
      auto out = device::Memory::copy_of(*stream_, y.data(), y.size() * 4);
      ASSERT_TRUE(on_card && out);
      const RowsTarget target{&weight, reinterpret_cast<float*>(out->data()), kOut};
      matmul(*stream_, {&target, 1}, Rows(on_card->data(), Held::kBf16), kIn, m);
      ASSERT_TRUE(device::copy_to_host(*stream_, y.data(), out->data(), y.size() * 4));
      EXPECT_EQ(y, product(weight, x, m)) << tensor::to_string(format) << ", m " << m;
    }
  }
}

// Rows of bf16 that are what `wide` is rounded to.
std::vector<uint16_t> rounded(const std::vector<float>& wide) {
  std::vector<uint16_t> out;
  for (const float v : wide) out.push_back(base::bf16_from_f32(v));
  return out;
}

TEST_F(RowsOnCard, an_activation_of_rounded_rows_is_that_of_floats) {
  const Ops ops = ops_for(device::Isa::kReference);
  constexpr int64_t kRows = 19;
  for (const int64_t n : {8, 97, 100, 4096}) {
    std::vector<uint16_t> narrow[2];
    std::vector<float> wide[2];
    for (uint32_t i = 0; i < 2; ++i) {
      narrow[i] = rounded(normal_floats(kRows * n, i));
      for (const uint16_t v : narrow[i]) wide[i].push_back(base::f32_from_bf16(v));
    }
    const size_t bytes = narrow[0].size() * 2;
    auto gate = device::Memory::copy_of(*stream_, narrow[0].data(), bytes);
    auto up = device::Memory::copy_of(*stream_, narrow[1].data(), bytes);
    auto wide_gate = device::Floats::place(*stream_, wide[0]);
    auto wide_up = device::Floats::place(*stream_, wide[1]);
    auto expected = device::Memory::allocate(*stream_, bytes);
    ASSERT_TRUE(gate && up && wide_gate && wide_up && expected);
    const Rows of_floats(expected->data(), Held::kBf16);
    const auto expect_same = [&] {  // as in place
      std::vector<uint16_t> a(narrow[0].size());
      std::vector<uint16_t> b(a);
      ASSERT_TRUE(device::copy_to_host(*stream_, a.data(), expected->data(), bytes));
      ASSERT_TRUE(device::copy_to_host(*stream_, b.data(), gate->data(), bytes));
      EXPECT_EQ(a, b) << "rows of " << n;
    };
    const Rows in_place(gate->data(), Held::kBf16);
    activate_gated(*stream_, ops, Activation::kSilu, wide_gate->data(), n, wide_up->data(), n,
                   of_floats, n, kRows, n);
    activate_gated(*stream_, ops, Activation::kSilu, in_place, n, Rows(up->data(), Held::kBf16), n,
                   in_place, n, kRows, n);
    expect_same();
    gate = device::Memory::copy_of(*stream_, narrow[0].data(), bytes);
    ASSERT_TRUE(gate);
    activate(*stream_, ops, Activation::kGelu, wide_gate->data(), n, of_floats, n, kRows, n);
    activate(*stream_, ops, Activation::kGelu, Rows(gate->data(), Held::kBf16), n,
             Rows(gate->data(), Held::kBf16), n, kRows, n);
    expect_same();
  }
}

// Sums may be made in another order, so that a sum is off by a little of those of magnitudes, and
// then rounds to the other side: a step of bf16 is 2^-7 at most.
TEST_F(RowsOnCard, products_round_what_they_write_and_add_to_what_there_is) {
  constexpr int64_t kIn = 512;
  constexpr float kOfSum = 2e-4f;  // of the largest sum
  const WeightFormat formats[] = {
      kFourBits,
      {.element = Element::kS8, .scaled = true, .group_k = 128, .scale_type = DType::kBF16},
      {.element = Element::kF16}};
  for (const WeightFormat& format : formats) {
    for (const int64_t n : {128, 200, 201}) {
      const PackedWeight weight = packed(random_weight(format, n, kIn, 4), {});
      const PackedWeight* const weights[] = {&weight};
      for (const int64_t m : {1, 20, 300, 4100}) {
        const std::vector<float> x = normal_floats(m * kIn, static_cast<uint32_t>(m));
        const std::vector<float> y = product(weight, x, m);
        float most = 0;
        for (const float v : y) most = std::max(most, std::abs(v));
        auto from = device::Floats::place(*stream_, x);
        ASSERT_TRUE(from);
        if (held_by(*stream_, weights, m) == Held::kBf16) {
          std::vector<uint16_t> got(y.size(), 0xffff);
          auto out = device::Memory::copy_of(*stream_, got.data(), got.size() * 2);
          ASSERT_TRUE(out);
          const RowsTarget target{&weight, Rows(out->data(), Held::kBf16), n};
          matmul(*stream_, {&target, 1}, from->data(), kIn, m);
          ASSERT_TRUE(device::copy_to_host(*stream_, got.data(), out->data(), got.size() * 2));
          for (size_t i = 0; i < y.size(); ++i) {
            ASSERT_NEAR(base::f32_from_bf16(got[i]), y[i], std::abs(y[i]) / 256 + kOfSum * most)
                << i << ", n " << n << ", m " << m;
          }
        }
        if (can_add(*stream_, weight, m)) {
          std::vector<float> sum = normal_floats(m * n, 9);
          auto out = device::Memory::copy_of(*stream_, sum.data(), sum.size() * 4);
          ASSERT_TRUE(out);
          const std::vector<float> before = sum;
          const RowsTarget target{&weight, Rows(out->data(), Held::kF32), n, true};
          matmul(*stream_, {&target, 1}, from->data(), kIn, m);
          ASSERT_TRUE(device::copy_to_host(*stream_, sum.data(), out->data(), sum.size() * 4));
          for (size_t i = 0; i < y.size(); ++i) {
            ASSERT_NEAR(sum[i], before[i] + y[i], kOfSum * most) << i << ", n " << n << ", m " << m;
          }
        }
      }
    }
  }
}

TEST_F(RowsOnCard, are_written_as_bf16_by_many_rows_alone_and_added_to_by_few_on_hopper_too) {
  const PackedWeight fast = packed(random_weight(kFourBits, 64, 256, 1), {});
  const PackedWeight exact =
      packed(random_weight(kFourBits, 64, 256, 4), {.precision = Precision::kExact});
  const PackedWeight* const fast_one[] = {&fast};
  const PackedWeight* const both[] = {&fast, &exact};
  const bool bf16 = cuda_->gpu().at_least(8, 0);
  EXPECT_EQ(held_by(*stream_, fast_one, 4096), bf16 ? Held::kBf16 : Held::kF32);
  EXPECT_EQ(held_by(*stream_, fast_one, 1), Held::kF32);
  EXPECT_EQ(held_by(*stream_, both, 4096), Held::kF32);
  EXPECT_EQ(can_add(*stream_, fast, 4096), cuda_->gpu().major != 9);
  EXPECT_TRUE(can_add(*stream_, fast, 4097));
  EXPECT_EQ(can_add(*stream_, fast, 1), cuda_->gpu().major == 9);
  EXPECT_FALSE(can_add(*stream_, exact, 1));
}

TEST_F(RowsOnCard, stay_floats_where_something_comes_before_rounding) {
  WeightFormat ordered = kFourBits;
  ordered.act_order = true;
  const PackedWeight plain = packed(random_weight(kFourBits, 64, 256, 1), {});
  const PackedWeight in_order = packed(random_weight(ordered, 64, 256, 2), {});
  const PackedWeight ragged = packed(random_weight(kFourBits, 64, 200, 3), {});
  const PackedWeight exact =
      packed(random_weight(kFourBits, 64, 256, 4), {.precision = Precision::kExact});
  const bool bf16 = cuda_->gpu().at_least(8, 0);
  EXPECT_EQ(held(*stream_, {&plain}, 100), bf16 ? Held::kBf16 : Held::kF32);
  EXPECT_EQ(held(*stream_, {&plain, &plain}, 100), held(*stream_, {&plain}, 100));
  EXPECT_EQ(held(*stream_, {&in_order}, 100), Held::kF32);
  EXPECT_EQ(held(*stream_, {&plain, &in_order}, 100), Held::kF32);
  EXPECT_EQ(held(*stream_, {&ragged}, 100), Held::kF32);
  EXPECT_EQ(held(*stream_, {&exact}, 100), Held::kF32);
}

}  // namespace
}  // namespace nibble::kernels
