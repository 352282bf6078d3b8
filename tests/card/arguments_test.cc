// What a card's kernels are given for whole models: memory that somebody holds, as large and as
// aligned as kernels/cuda/abi.h says. The card is not there (fake_kernels.h looks at the
// arguments).
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "card/on_fake_card.h"
#include "device/cuda.h"
#include "kernels/cuda/abi.h"
#include "nibble/nibble.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

using Arguments = OnFakeCard;

std::set<std::string> golden_models() {
  std::set<std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(NIBBLE_SOURCE_DIR "/tests/golden")) {
    if (entry.path().filename() == "config.json") out.insert(entry.path().parent_path().string());
    if (entry.path().extension() == ".gguf") out.insert(entry.path().string());
  }
  return out;
}

// Prompts and single tokens, those that are recorded too; with the first error.
Result<void> use(const Options& options, const std::string& path, int* loaded) {
  auto model = Model::load(path, options);
  if (!model) return {};  // no whole model, or one that is refused
  ++*loaded;
  Session session(*model);
  for (const size_t count : {1, 1, 1, 3, 9, 17, 11}) {
    NIBBLE_TRY(session.logits(std::vector<int32_t>(count, 1)));
  }
  GenerateOptions how;
  how.max_tokens = 4;
  Session other(*model);
  NIBBLE_TRY(other.generate(std::vector<int32_t>{1, 2, 3}, how));
  return {};
}

TEST_F(Arguments, of_every_golden_model_are_held_large_enough_and_aligned) {
  int loaded = 0;
  for (const std::string& path : golden_models()) {
    for (const auto& [card, precision] : {std::pair{"major=9", "fast"},
                                          {"major=9", "exact"},
                                          {"major=8;minor=9", "fast"},
                                          {"major=7;minor=5", "fast"}}) {
      is(card);
      Options options;
      options.device = "cuda";
      options.precision = precision;
      const auto ok = use(options, path, &loaded);
      ASSERT_TRUE(ok) << path << ", " << card << ", " << precision << ": " << ok.error().message;
    }
  }
  EXPECT_GT(loaded, 500);
}

TEST_F(Arguments, that_are_too_small_are_told) {
  auto cuda = device::Cuda::open(0);
  ASSERT_TRUE(cuda) << cuda.error().message;
  constexpr size_t kBytes = 64 * sizeof(float);
  auto* memory = static_cast<float*>((*cuda)->allocate(kBytes));
  const auto& kernels = (*cuda)->kernels();
  kernels.add_to((*cuda)->context(), memory, 32, memory + 32, 32, 1, 32);
  EXPECT_TRUE((*cuda)->wait());
  kernels.add_to((*cuda)->context(), memory, 32, memory + 32, 32, 1, 33);
  const auto told = (*cuda)->wait();
  ASSERT_FALSE(told);
  EXPECT_EQ(told.error().message, "NVIDIA Fake: add_to: y is not 132 bytes of memory aligned to 4");
  (*cuda)->release(memory, kBytes);
}

}  // namespace
}  // namespace nibble
