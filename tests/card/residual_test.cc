// Where products of a card add to what there is, and where they write bf16: in whole models to the
// residual stream alone, and each block once. The card is not there (fake_kernels.h counts).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "card/fake_kernels.h"
#include "card/on_fake_card.h"
#include "device/cuda.h"
#include "kernels/matmul/cuda_test_card.h"
#include "kernels/matmul/rows.h"
#include "nibble/nibble.h"

namespace nibble {
namespace {

using tensor::DType;
using tensor::Element;
using tensor::WeightFormat;

using fake::Done;
using fake::Work;

class Residual : public OnFakeCard {
 protected:
  static Done done() {
    Done out;
    function<void(Done*)>("nibble_fake_card_done")(&out);
    return out;
  }
  // By a prompt of m tokens.
  static Done done_by(const std::string& model, const char* precision, int m) {
    Options options;
    options.device = "cuda";
    options.precision = precision;
    auto loaded = Model::load(NIBBLE_SOURCE_DIR "/tests/golden/" + model, options);
    EXPECT_TRUE(loaded) << loaded.error().message;
    if (!loaded) return {};
    const Done before = done();
    Session session(*loaded);
    const auto ok = session.logits(std::vector<int32_t>(static_cast<size_t>(m), 1));
    EXPECT_TRUE(ok) << ok.error().message;
    const Done after = done();
    const auto since = [](const Work& a, const Work& b) {
      return Work{a.by_products - b.by_products, a.by_passes - b.by_passes};
    };
    return {since(after.added, before.added), since(after.normalized, before.normalized),
            since(after.gated, before.gated)};
  }
};

TEST_F(Residual, stream_is_added_to_by_the_products_themselves_unless_something_comes_between) {
  is("major=8;minor=0");  // where every weight becomes a panel
  struct Case {
    const char* model;
    int64_t layers;
    bool as_it_is;           // nothing between o or down and the residual stream
    bool positions = false;  // learned ones are added, too
  };
  constexpr Case kCases[] = {
      {"architectures/gemma", 2, true},
      {"architectures/phi3", 2, true},
      {"architectures/qwen2", 2, true},
      {"architectures/gptq_qwen2", 1, true},
      {"architectures/fp8_qwen3_block", 1, true},
      {"architectures/starcoder2", 2, true},  // biases of all layers
      {"architectures/gptq_starcoder2", 1, true},
      {"architectures/opt", 2, true, true},
      {"architectures/gpt_neox_sequential", 1, true},
      {"architectures/gemma2", 2, false},  // norms after both
      {"architectures/gemma3", 3, false},
      {"architectures/gptq_gemma2", 1, false},
      {"architectures/olmo2", 2, false},
      {"architectures/granite", 2, false},  // a factor
      {"architectures/gptq_granite", 1, false},
      {"architectures/phi", 2, false},  // parallel blocks
      {"architectures/phi_qk_norm", 1, false},
      {"architectures/gpt_neox", 2, false},
      {"architectures/gptq_gpt_neox", 1, false},
      {"architectures/opt_350m", 2, false, true},  // the sum itself is normalized
  };
  for (const Case& c : kCases) {
    for (const char* precision : {"fast", "exact"}) {
      SCOPED_TRACE(std::string(c.model) + ", " + precision);
      const int64_t blocks = 2 * c.layers + (c.positions ? 1 : 0);
      const Work few = done_by(c.model, precision, 8).added;
      EXPECT_EQ(few.by_products, 0);
      EXPECT_EQ(few.by_passes, blocks);
      const Work many = done_by(c.model, precision, 9).added;
      EXPECT_EQ(many.by_products, c.as_it_is ? 2 * c.layers : 0);
      EXPECT_EQ(many.by_products + many.by_passes, blocks);
    }
  }
}

// Of a prompt of m tokens on a Hopper: what is added to the residual stream, norms, gates. The
// norms that are never left to products are the first, whose input no product makes, and the last.
TEST_F(Residual, stream_is_normalized_and_gates_are_applied_by_products_of_few_tokens) {
  is("major=9;minor=0");
  struct Case {
    const char* model;
    const char* precision;
    int m;
    Work added, normalized, gated;
  };
  constexpr Case kCases[] = {
      {"gptq/b4_g32", "fast", 1, {4, 0}, {3, 2}, {2, 0}},  // two layers
      {"gptq/b4_g32", "fast", 4, {4, 0}, {3, 2}, {2, 0}},
      {"gptq/b4_g32", "fast", 5, {0, 4}, {0, 5}, {2, 0}},
      {"gptq/b4_g32", "fast", 16, {0, 4}, {0, 5}, {2, 0}},
      {"gptq/b4_g32", "fast", 17, {0, 4}, {0, 5}, {0, 2}},
      {"gptq/b4_g32", "exact", 1, {0, 4}, {0, 5}, {0, 2}},
      {"gptq/b4_g32_act", "fast", 1, {2, 0}, {0, 3}, {0, 1}},  // x is put into another order
      {"gptq/b8_g64", "fast", 1, {2, 0}, {0, 3}, {1, 0}},      // 64 inputs are padded
      {"gptq/mistral", "fast", 1, {2, 0}, {0, 3}, {1, 0}},
      {"architectures/gptq_phi3", "fast", 1, {2, 0}, {0, 3}, {0, 1}},        // gate and up are one
      {"architectures/gptq_gemma2", "fast", 1, {0, 2}, {0, 5}, {1, 0}},      // norms between
      {"architectures/gptq_granite", "fast", 1, {0, 2}, {0, 3}, {1, 0}},     // a factor between
      {"architectures/gptq_starcoder2", "fast", 1, {2, 0}, {0, 0}, {0, 0}},  // LayerNorm
      {"architectures/gptq_gpt_neox", "fast", 1, {0, 2}, {0, 0}, {0, 0}},    // parallel blocks
      {"architectures/qwen2", "fast", 1, {0, 4}, {0, 5}, {0, 2}},            // not in tiles
  };
  const auto text = [](const Work& w) {
    return std::to_string(w.by_products) + " and " + std::to_string(w.by_passes);
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(std::string(c.model) + ", " + c.precision + ", " + std::to_string(c.m));
    const Done done = done_by(c.model, c.precision, c.m);
    EXPECT_EQ(text(done.added), text(c.added));
    EXPECT_EQ(text(done.normalized), text(c.normalized));
    EXPECT_EQ(text(done.gated), text(c.gated));
  }
}

// Who listens hears what a layer made, of bf16 too: o and down do not add to the residual stream.
TEST_F(Residual, stream_is_added_to_later_where_somebody_listens_to_the_layers) {
  is("major=8;minor=0;nan=64");  // gate, up (as bf16) and the head
  Options options;
  options.device = "cuda";
  auto model = Model::load(NIBBLE_SOURCE_DIR "/tests/golden/architectures/gptq_qwen2", options);
  ASSERT_TRUE(model) << model.error().message;
  const Work before = done().added;
  Session session(*model);
  const auto logits = session.logits(std::vector<int32_t>(9, 1));
  ASSERT_FALSE(logits);
  EXPECT_EQ(logits.error().message,
            "the logits are not finite (nan or inf); the first module whose output was not is "
            "model.layers.0.mlp.gate_proj; check the file with `nibble verify`");
  const Work after = done().added;
  EXPECT_EQ(after.by_products - before.by_products, 2) << "once without a listener";
  EXPECT_EQ(after.by_passes - before.by_passes, 2) << "once with one";
}

// ---- what products say they do, and that they do it, where their kernels change

kernels::PackedWeight packed(const WeightFormat& format, kernels::Precision precision,
                             device::Stream& stream) {
  const tensor::QuantizedWeight w = kernels::random_weight(format, 64, 256, 1);
  kernels::MatmulPolicy policy;
  policy.precision = precision;
  auto choice = kernels::choose({w.n, w.k, w.format, w.activation},
                                kernels::with_card(stream.cuda()->gpu()), policy);
  EXPECT_TRUE(choice) << choice.error().message;
  auto out = kernels::pack(w, *choice, stream);
  EXPECT_TRUE(out) << out.error().message;
  return std::move(*out);
}

// For each of kTokens: '.' f32; 'b' bf16 may be written; 'a' f32 may be added to; 'x' either.
constexpr int64_t kTokens[] = {1, 4, 5, 8, 9, 16, 17, 1024, 1025, 4096, 4097};

std::string ways(const kernels::PackedWeight& weight, device::Stream& stream) {
  const int64_t n = weight.problem.n;
  const int64_t k = weight.problem.k;
  const kernels::PackedWeight* const weights[] = {&weight};
  std::string out;
  for (const int64_t m : kTokens) {
    const bool bf16 = kernels::held_by(stream, weights, m) == kernels::Held::kBf16;
    const bool add = kernels::can_add(stream, weight, m);
    out += bf16 && add ? 'x' : bf16 ? 'b' : add ? 'a' : '.';
    auto x = device::Memory::allocate(stream, static_cast<size_t>(m * k) * sizeof(float));
    auto y = device::Memory::allocate(stream, static_cast<size_t>(m * n) * sizeof(float));
    EXPECT_TRUE(x && y);
    const kernels::ConstRows from = reinterpret_cast<const float*>(x->data());
    const kernels::Held narrow = bf16 ? kernels::Held::kBf16 : kernels::Held::kF32;
    const kernels::RowsTarget targets[] = {
        {&weight, kernels::Rows(y->data(), narrow), n},
        {&weight, kernels::Rows(y->data(), kernels::Held::kF32), n, add}};
    for (const kernels::RowsTarget& target : targets) {
      kernels::matmul(stream, {&target, 1}, from, k, m);
      const auto ok = stream.cuda()->wait();
      EXPECT_TRUE(ok) << ok.error().message << ", m " << m;
    }
  }
  return out;
}

TEST_F(Residual, products_write_bf16_or_add_as_their_kernels_can_at_every_border) {
  const WeightFormat four = {
      .element = Element::kU4, .scaled = true, .group_k = 128, .scale_type = DType::kF16};
  const WeightFormat eight = {
      .element = Element::kS8, .scaled = true, .group_k = 128, .scale_type = DType::kF16};
  const WeightFormat half = {.element = Element::kF16};
  using kernels::Precision;
  const struct {
    const char* card;
    WeightFormat format;
    Precision precision;
    const char* ways;
  } cases[] = {
      {"major=9;minor=0", four, Precision::kFast, "aa....bbbbx"},
      {"major=9;minor=0", eight, Precision::kFast, "aa....bbxxx"},
      {"major=9;minor=0", half, Precision::kFast, "....xxxxxxx"},
      {"major=9;minor=0", four, Precision::kExact, "....aaaaaaa"},
      {"major=8;minor=0", four, Precision::kFast, "....xxxxxxx"},
      {"major=7;minor=5", four, Precision::kFast, "....aaaaaaa"},
  };
  for (const auto& c : cases) {
    is(c.card);
    auto cuda = device::Cuda::open(0);
    ASSERT_TRUE(cuda) << cuda.error().message;
    device::Stream stream(1, *cuda);
    EXPECT_EQ(ways(packed(c.format, c.precision, stream), stream), c.ways)
        << c.card << ", " << tensor::to_string(c.format);
  }
}

}  // namespace
}  // namespace nibble
