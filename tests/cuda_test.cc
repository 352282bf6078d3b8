// A whole model on a card: every golden folder's logits against the CPU's, the greedy text of the
// packaged model. Without a card these tests say so and are skipped.
#include "device/cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "nibble/nibble.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

class OnCard : public testing::Test {
 protected:
  void SetUp() override {
    const std::vector<std::string> found = version().devices_found;
    const bool card = std::any_of(found.begin(), found.end(), [](const std::string& device) {
      return device.rfind("cuda", 0) == 0;
    });
    if (!card) GTEST_SKIP() << "no CUDA card that nibble can use is here";
  }

  static Options options(const std::string& device, const std::string& precision) {
    Options out;
    out.device = device;
    out.precision = precision;
    out.threads = 2;
    out.ctx = 256;
    out.kv_cache_dtype = precision == "exact" ? "f32" : "f16";
    return out;
  }
};

// Every folder of tests/golden that holds a model.
std::vector<std::string> golden_models() {
  std::vector<std::string> out;
  const fs::path root = fs::path(NIBBLE_SOURCE_DIR) / "tests/golden";
  for (const auto& scheme : fs::directory_iterator(root)) {
    if (!scheme.is_directory()) continue;
    for (const auto& folder : fs::directory_iterator(scheme)) {
      if (!fs::exists(folder.path() / "expected/logits.safetensors")) continue;
      std::vector<std::string> ggufs;
      for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.path().extension() == ".gguf") ggufs.push_back(entry.path().string());
      }
      std::sort(ggufs.begin(), ggufs.end());
      out.push_back(ggufs.empty() ? folder.path().string() : ggufs.front());
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<int32_t> some_tokens(int64_t vocab, int64_t count) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i) {
    out.push_back(static_cast<int32_t>((3 + i * 37 + i * i) % vocab));
  }
  return out;
}

struct Difference {
  double most = 0;
  double mean = 0;     // root of the mean square
  double typical = 0;  // size of a logit, likewise
};

Difference difference(const std::vector<float>& a, const std::vector<float>& b) {
  Difference out;
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = std::fabs(static_cast<double>(a[i]) - b[i]);
    if (!(error <= out.most)) out.most = error;
    out.mean += error * error;
    out.typical += static_cast<double>(b[i]) * b[i];
  }
  out.mean = std::sqrt(out.mean / static_cast<double>(b.size()));
  out.typical = std::sqrt(out.typical / static_cast<double>(b.size()));
  return out;
}

// golden_test.cc derives it: float32 sums in another order.
constexpr double kTolerance = 16 * 1.4e-5;

// Of the tokens in calls of `step`; 0: all in one.
std::vector<float> logits_of(const Model& model, const std::vector<int32_t>& tokens, size_t step) {
  Session session(model);
  std::vector<float> out;
  if (step == 0) step = tokens.size();
  for (size_t i = 0; i < tokens.size(); i += step) {
    auto rows = session.logits({tokens.data() + i, step});
    if (!rows) {
      ADD_FAILURE() << rows.error().message;
      return {};
    }
    out.insert(out.end(), rows->values.begin(), rows->values.end());
  }
  return out;
}

// Activations that a checkpoint rounds may fall to either side of the middle between two codes when
// a sum differs in its last bit; such a token then differs by a step of the grid. The CPU's own
// instruction sets part there, too (fp8/channel_1d_bf16_scales), so that a card may agree with
// either.
bool rounds_activations(const Plan& plan) {
  return std::any_of(plan.layers.begin(), plan.layers.end(),
                     [](const LayerPlan& layer) { return layer.activation != "float"; });
}

TEST_F(OnCard, exact_logits_of_every_golden_folder_are_the_cpus) {
  for (const std::string& path : golden_models()) {
    SCOPED_TRACE(path);
    auto cpu = Model::load(path, options("cpu", "exact"));
    auto card = Model::load(path, options("cuda", "exact"));
    EXPECT_TRUE(cpu) << cpu.error().message;
    EXPECT_TRUE(card) << card.error().message;
    if (!cpu || !card) continue;
    const std::vector<int32_t> tokens = some_tokens(cpu->vocab_size(), 24);
    for (const bool each : {false, true}) {  // prefill, then decode
      // A scale over a whole call is another one for each token alone.
      const std::vector<float> want = logits_of(*cpu, tokens, each ? 1 : 0);
      const std::vector<float> got = logits_of(*card, tokens, each ? 1 : 0);
      if (got.size() != want.size()) {
        ADD_FAILURE() << got.size() << " logits, not " << want.size();
        continue;
      }
      Difference d = difference(got, want);
      if (rounds_activations(cpu->plan())) {
        Options how = options("cpu", "exact");
        how.isa = "reference";
        auto reference = Model::load(path, how);
        ASSERT_TRUE(reference) << reference.error().message;
        const Difference other = difference(got, logits_of(*reference, tokens, each ? 1 : 0));
        if (other.mean < d.mean) d = other;
        EXPECT_LE(d.mean, 0.02 * d.typical) << (each ? "decode" : "prefill");
      } else {
        EXPECT_LE(d.most, kTolerance * d.typical) << (each ? "decode" : "prefill");
      }

      std::printf("%s: %s %.2e of a logit, %.2e in the mean\n", path.c_str(),
                  each ? "decode" : "prefill", d.most / d.typical, d.mean / d.typical);
    }
  }
}

// bf16 keeps 8 bits, so that factors are off by 2^-9. What these small random models make of that
// was computed in float64 with weights and inputs rounded so: for gptq/b4_g32 4 % of a typical
// logit in the mean (and half of one at the worst token, whose attention is sharp), for awq/g32 1
// %. Gate and up are rounded once more, by as much as their product is after: at most 1.7 times the
// error that the inputs of `down` bring, a small part of all (measured: 0.1 %). Where a checkpoint
// rounds inputs, few of them fall to other codes, which tells most in fp8/tensor_static: there a
// cache of f16 alone makes 6 % on a CPU.
TEST_F(OnCard, fast_logits_are_near) {
  for (const char* folder :
       {"gptq/b4_g32", "awq/g32", "unquantized/bf16_untied", "fp8/block", "fp8/tensor_dynamic",
        "fp8/tensor_static", "fp8/channel_dynamic", "compressed_tensors/fp8_token",
        "w8a8_int8/dynamic", "architectures/fp8_phi3_parts"}) {
    SCOPED_TRACE(folder);
    const std::string path = std::string(NIBBLE_SOURCE_DIR) + "/tests/golden/" + folder;
    auto cpu = Model::load(path, options("cpu", "exact"));
    auto card = Model::load(path, options("cuda", "fast"));
    ASSERT_TRUE(cpu && card);
    const std::vector<int32_t> tokens = some_tokens(cpu->vocab_size(), 24);
    // As a prompt; and by the products of few tokens, of which from two of these layers on each
    // does part of a norm, and those of up to four tokens the activation.
    const bool tiles = folder == std::string("gptq/b4_g32") || folder == std::string("awq/g32");
    for (const size_t step : tiles ? std::vector<size_t>{0, 1, 4, 8, 12} : std::vector<size_t>{0}) {
      const Difference d =
          difference(logits_of(*card, tokens, step), logits_of(*cpu, tokens, step));
      EXPECT_LE(d.mean, 0.1 * d.typical) << step << " at a time";
      std::printf("%s, %zu at a time: %.2e of a logit in the mean\n", folder, step,
                  d.mean / d.typical);
    }
  }
}

std::vector<int32_t> greedy(const Model& model, const std::vector<int32_t>& prompt) {
  Session session(model);
  GenerateOptions how;
  how.max_tokens = 64;
  how.temperature = 0;
  how.ignore_eos = true;
  auto made = session.generate(prompt, how);
  EXPECT_TRUE(made) << made.error().message;
  return made ? made->tokens : std::vector<int32_t>{};
}

// Texts may part only where two logits are closer than `close`.
void expect_same_text(const Model& cpu, const Model& card, const char* text, float close) {
  SCOPED_TRACE(text);
  const auto prompt = *cpu.tokenizer().encode(text);
  const std::vector<int32_t> want = greedy(cpu, prompt);
  const std::vector<int32_t> got = greedy(card, prompt);
  ASSERT_EQ(got.size(), 64u);
  const auto [a, b] = std::mismatch(want.begin(), want.end(), got.begin());
  std::printf("%td tokens are equal\n", a - want.begin());
  if (a == want.end()) return;
  std::vector<int32_t> ids = prompt;
  ids.insert(ids.end(), want.begin(), a);
  Session session(cpu);
  const auto rows = session.logits(ids);
  ASSERT_TRUE(rows);
  const float* last = rows->values.data() + rows->values.size() - rows->columns;
  EXPECT_LE(std::fabs(last[*a] - last[*b]), close) << "at token " << a - want.begin();
}

TEST_F(OnCard, greedy_text_is_the_cpus) {
  const auto path = find_packaged_model("smollm2");
  if (!path) GTEST_SKIP() << "smollm2 is not there; ./quickstart fetches it";
  auto cpu = Model::load(*path, options("cpu", "exact"));
  ASSERT_TRUE(cpu) << cpu.error().message;
  // 30 layers instead of the 2 of kTolerance, times a typical logit of about 10.
  const float exact = static_cast<float>(kTolerance) * 15 * 10;
  for (const auto& [precision, close] : {std::pair{"exact", exact}, {"fast", 0.3f}}) {
    SCOPED_TRACE(precision);
    auto card = Model::load(*path, options("cuda", precision));
    ASSERT_TRUE(card) << card.error().message;
    for (const char* text : {"The river was long and", "The capital of France is",
                             "Once upon a time, in a village by the sea,", "def fibonacci(n):"}) {
      expect_same_text(*cpu, *card, text, close);
    }
  }
}

// The recorded step against kernels that are started one by one, past the border of a page.
TEST_F(OnCard, recorded_steps_are_the_same_steps) {
  for (const char* folder : {"gptq/b4_g32", "unquantized/bf16_untied"}) {
    SCOPED_TRACE(folder);
    const std::string path = std::string(NIBBLE_SOURCE_DIR) + "/tests/golden/" + folder;
    Options how = options("cuda", "fast");
    how.ctx = 600;
    auto recorded = Model::load(path, how);
    how.enforce_eager = true;
    auto eager = Model::load(path, how);
    ASSERT_TRUE(recorded && eager);
    const std::vector<int32_t> prompt = some_tokens(eager->vocab_size(), 24);
    GenerateOptions sampling;
    sampling.max_tokens = 500;
    sampling.temperature = 0.9f;
    sampling.repeat_penalty = 1.1f;
    sampling.ignore_eos = true;
    Session a(*recorded);
    Session b(*eager);
    auto made_a = a.generate(prompt, sampling);
    auto made_b = b.generate(prompt, sampling);
    ASSERT_TRUE(made_a) << made_a.error().message;
    ASSERT_TRUE(made_b) << made_b.error().message;
    EXPECT_EQ(made_a->tokens.size(), 500u);
    EXPECT_EQ(made_a->tokens, made_b->tokens);
  }
}

TEST_F(OnCard, keys_and_values_of_8_bits) {
  const std::string path = std::string(NIBBLE_SOURCE_DIR) + "/tests/golden/gptq/b4_g32";
  for (const char* type : {"fp8_e4m3", "fp8_e5m2", "int8"}) {
    SCOPED_TRACE(type);
    Options on_cpu = options("cpu", "exact");
    Options on_card = options("cuda", "exact");
    on_cpu.kv_cache_dtype = on_card.kv_cache_dtype = type;
    auto cpu = Model::load(path, on_cpu);
    auto card = Model::load(path, on_card);
    ASSERT_TRUE(cpu) << cpu.error().message;
    ASSERT_TRUE(card) << card.error().message;
    const std::vector<int32_t> tokens = some_tokens(cpu->vocab_size(), 24);
    const std::vector<float> want = logits_of(*cpu, tokens, 0);
    for (const bool each : {false, true}) {
      // A key may fall to the other side of the middle between two codes.
      const Difference d = difference(logits_of(*card, tokens, each ? 1 : 0), want);
      EXPECT_LE(d.mean, 0.02 * d.typical) << (each ? "decode" : "prefill");
    }
  }
}

TEST_F(OnCard, scores_of_a_text_are_the_cpus) {
  const auto path = find_packaged_model("smollm2");
  if (!path) GTEST_SKIP() << "smollm2 is not there; ./quickstart fetches it";
  auto cpu = Model::load(*path, options("cpu", "exact"));
  auto card = Model::load(*path, options("cuda", "exact"));
  ASSERT_TRUE(cpu && card);
  const char* text = "The river was long and the boat was slow, so they talked of home all day.";
  auto want = evaluate(*cpu, text, 64);
  auto got = evaluate(*card, text, 64);
  ASSERT_TRUE(want && got);
  EXPECT_EQ(got->predictions, want->predictions);
  EXPECT_NEAR(got->perplexity, want->perplexity, 1e-3 * want->perplexity);
}

TEST_F(OnCard, a_second_sequence_does_not_disturb_the_first) {
  const std::string path = std::string(NIBBLE_SOURCE_DIR) + "/tests/golden/gptq/b4_g32";
  auto card = Model::load(path, options("cuda", "exact"));
  ASSERT_TRUE(card) << card.error().message;
  const std::vector<int32_t> tokens = some_tokens(card->vocab_size(), 24);
  const std::vector<float> want = logits_of(*card, tokens, 0);
  Session first(*card);
  Session second(*card);
  std::vector<float> got;
  for (const int32_t token : tokens) {
    auto row = first.logits({&token, 1});
    ASSERT_TRUE(row);
    got.insert(got.end(), row->values.begin(), row->values.end());
    ASSERT_TRUE(second.logits({tokens.data(), 1}));
  }
  const Difference d = difference(got, want);
  EXPECT_LE(d.most, kTolerance * d.typical);
}

TEST_F(OnCard, memory_that_runs_out_leaves_a_session_as_it_was) {
  Options how = options("cuda", "exact");
  how.ctx = 1024;
  auto card =
      Model::load(std::string(NIBBLE_SOURCE_DIR) + "/tests/golden/unquantized/bf16_untied", how);
  ASSERT_TRUE(card) << card.error().message;
  const std::vector<int32_t> few = some_tokens(card->vocab_size(), 3);
  const std::vector<int32_t> many = some_tokens(card->vocab_size(), 400);
  std::vector<float> want;
  {
    auto fresh =
        Model::load(std::string(NIBBLE_SOURCE_DIR) + "/tests/golden/unquantized/bf16_untied", how);
    ASSERT_TRUE(fresh);
    Session session(*fresh);
    ASSERT_TRUE(session.logits(few));
    auto rows = session.logits(many);
    ASSERT_TRUE(rows) << rows.error().message;
    want = rows->values;
  }
  Session session(*card);
  ASSERT_TRUE(session.logits(few));
  {
    auto hog = device::Cuda::open(0);
    ASSERT_TRUE(hog) << hog.error().message;
    std::vector<std::pair<void*, size_t>> held;
    for (size_t bytes = size_t{64} << 30; bytes >= 512; bytes /= 2) {
      while (void* memory = (*hog)->allocate(bytes)) held.emplace_back(memory, bytes);
    }
    const auto refused = session.logits(many);
    for (const auto& [memory, bytes] : held) (*hog)->release(memory, bytes);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
    std::printf("%s\n", refused.error().message.c_str());
  }
  EXPECT_EQ(session.position(), 3);
  auto rows = session.logits(many);
  ASSERT_TRUE(rows) << rows.error().message;
  EXPECT_EQ(rows->values, want);
}

// ---- on any machine

TEST(cuda_plan, is_made_for_an_h200_where_there_is_no_card) {
  Options options;
  options.device = "cuda";
  auto plan = inspect(std::string(NIBBLE_SOURCE_DIR) + "/tests/golden/gptq/b4_g32_act", options);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_TRUE(plan->problems.empty());
  EXPECT_NE(plan->hardware.find("NVIDIA"), std::string::npos) << plan->hardware;
  for (const LayerPlan& layer : plan->layers) {
    EXPECT_EQ(layer.packing, layer.scheme == "unquantized" ? "cuda" : "cuda_tiles");
    ASSERT_FALSE(layer.kernels.empty());
    EXPECT_EQ(layer.kernels[0].kernel,
              layer.packing == "cuda" ? "matvec_f32_any_f32_cuda" : "matvec_bf16_int_f32_sm90");
  }
}

TEST(cuda_plan, words_that_name_no_card_are_refused) {
  for (const char* device : {"cuda:", "cuda:x", "cuda:-1", "cuda0", "gpu"}) {
    Options options;
    options.device = device;
    auto plan = inspect(std::string(NIBBLE_SOURCE_DIR) + "/tests/golden/gptq/b4_g32", options);
    ASSERT_FALSE(plan) << device;
    EXPECT_EQ(plan.error().message, "--device: \"" + std::string(device) +
                                        "\" is not known; expected cpu, cuda or cuda:N");
  }
}

}  // namespace
}  // namespace nibble
