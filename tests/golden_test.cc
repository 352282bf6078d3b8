// Every folder of tests/golden: opened as it lies there, each quantized weight compared bit for bit
// with what the format's own tool says, the logits with transformers'. tools/golden/README.md says
// what a case holds and who computed it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "nibble/nibble.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> golden_cases() {
  std::vector<std::string> out;
  const fs::path root = fs::path(NIBBLE_SOURCE_DIR) / "tests/golden";
  for (const auto& scheme : fs::directory_iterator(root)) {
    if (!scheme.is_directory()) continue;
    for (const auto& folder : fs::directory_iterator(scheme)) {
      if (!fs::exists(folder.path() / "expected/logits.safetensors")) continue;
      out.push_back(fs::relative(folder.path(), root).string());
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string test_name(const testing::TestParamInfo<std::string>& param) {
  std::string name = param.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

uint32_t crc32(const void* data, size_t bytes) {  // the polynomial of zlib and PNG
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? 0xedb88320u ^ (c >> 1) : c >> 1;
      t[i] = c;
    }
    return t;
  }();
  uint32_t crc = 0xffffffffu;
  const auto* at = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < bytes; ++i) crc = table[(crc ^ at[i]) & 255] ^ (crc >> 8);
  return ~crc;
}

std::string hex_crc32(const std::vector<float>& values) {
  std::ostringstream crc;
  crc << std::hex << std::setw(8) << std::setfill('0')
      << crc32(values.data(), values.size() * sizeof(float));
  return crc.str();
}

// One of the safetensors files of expected/, whole in memory.
class ExpectedFile {
 public:
  explicit ExpectedFile(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    const std::span<const std::byte> all(reinterpret_cast<const std::byte*>(bytes_.data()),
                                         bytes_.size());
    auto head = checkpoint::safetensors_head_bytes(all, bytes_.size(), path.string());
    EXPECT_TRUE(head) << head.error().message;
    if (!head) return;
    auto header =
        checkpoint::parse_safetensors_header(all.first(*head), bytes_.size(), path.string());
    EXPECT_TRUE(header) << header.error().message;
    if (header) tensors_ = std::move(header->tensors);
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  template <class T>
  std::vector<T> read(std::string_view name) const {
    const tensor::TensorInfo* info = find(name);
    EXPECT_NE(info, nullptr) << name;
    if (info == nullptr) return {};
    std::vector<T> out(info->bytes / sizeof(T));
    std::memcpy(out.data(), bytes_.data() + info->offset, info->bytes);
    return out;
  }

 private:
  const tensor::TensorInfo* find(std::string_view name) const {
    for (const tensor::TensorInfo& t : tensors_) {
      if (t.name == name) return &t;
    }
    return nullptr;
  }
  std::string bytes_;
  std::vector<tensor::TensorInfo> tensors_;
};

class Golden : public testing::TestWithParam<std::string> {
 protected:
  fs::path folder() const { return fs::path(NIBBLE_SOURCE_DIR) / "tests/golden" / GetParam(); }
  std::string path() const {
    // A GGUF case holds the file (or the first of a split one) beside expected/.
    std::vector<std::string> ggufs;
    for (const auto& entry : fs::directory_iterator(folder())) {
      if (entry.path().extension() == ".gguf") ggufs.push_back(entry.path().string());
    }
    std::sort(ggufs.begin(), ggufs.end());
    return ggufs.empty() ? folder().string() : ggufs.front();
  }
};

Options exact() {
  Options options;
  options.precision = "exact";
  options.dtype = "f32";
  options.threads = 2;
  return options;
}

TEST_P(Golden, the_plan_has_no_problem_and_accounts_for_every_tensor) {
  auto plan = inspect(path(), exact());
  ASSERT_TRUE(plan) << plan.error().message;
  for (const std::string& problem : plan->problems) ADD_FAILURE() << problem;
  for (const std::string& warning : plan->warnings) ADD_FAILURE() << warning;
  for (const std::string& note : plan->notes) {  // the tools' own lists are right
    EXPECT_EQ(note.find("but what is stored counts"), note.npos) << note;
  }
  EXPECT_EQ(plan->tensors_used + static_cast<int64_t>(plan->unused.size()), plan->tensors_total);
}

TEST_P(Golden, verify_finds_nothing_wrong) {
  auto report = verify(path(), exact());
  ASSERT_TRUE(report) << report.error().message;
  for (const Finding& f : report->findings) ADD_FAILURE() << f.where << ": " << f.what;
}

TEST_P(Golden, quantized_weights_are_bit_equal_to_the_tools_own) {
  const fs::path list = folder() / "expected/weights_crc32.json";
  if (!fs::exists(list)) GTEST_SKIP() << "nothing is quantized in this case";
  std::ifstream in(list);
  const auto expected = nlohmann::json::parse(in);
  ASSERT_FALSE(expected.empty());
  for (const auto& [module, what] : expected.items()) {
    auto weight = weights(path(), module, exact());
    ASSERT_TRUE(weight) << module << ": " << weight.error().message;
    EXPECT_EQ(weight->rows, what["shape"][0].get<int64_t>()) << module;
    EXPECT_EQ(weight->columns, what["shape"][1].get<int64_t>()) << module;
    EXPECT_EQ(hex_crc32(weight->values), what["crc32"].get<std::string>()) << module;
  }
}

// Float32 sums in another order: each of the decoder's matrix products has a relative error of some
// sqrt(K) 2^-24 (a random walk over K roundings), and about 6 L + 1 of them follow one another.
// With K <= 320 and L = 2 that is 18 * 13 * 2^-24 = 1.4e-5 of the typical logit; a factor of 16
// covers the largest of thousands of logits and the amplification by norms and softmax.
double tolerance(const std::vector<float>& expected) {
  double square = 0;
  for (float v : expected) square += static_cast<double>(v) * v;
  const double typical = std::sqrt(square / static_cast<double>(expected.size()));
  return 16 * 1.4e-5 * typical;
}

// Where a checkpoint asks for a quantized KV cache, the expected logits have it too.
void expect_logits(const std::string& path, const Options& options, const ExpectedFile& file,
                   const std::string& prefix) {
  const auto tokens64 = file.read<int64_t>(prefix + "tokens");
  const auto expected = file.read<float>(prefix + "logits");
  const std::vector<int32_t> tokens(tokens64.begin(), tokens64.end());
  ASSERT_FALSE(expected.empty());
  auto model = Model::load(path, options);
  ASSERT_TRUE(model) << model.error().message;
  Session session(*model);
  auto logits = session.logits(tokens);
  ASSERT_TRUE(logits) << logits.error().message;
  ASSERT_EQ(logits->values.size(), expected.size());
  double worst = 0;
  size_t where = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(static_cast<double>(logits->values[i]) - expected[i]);
    if (!(error <= worst)) {
      worst = error;
      where = i;
    }
  }
  EXPECT_LE(worst, tolerance(expected)) << prefix << "logits at " << where << ": expected "
                                        << expected[where] << ", got " << logits->values[where];
}

TEST_P(Golden, exact_logits_are_transformers_logits) {
  const ExpectedFile file(folder() / "expected/logits.safetensors");
  expect_logits(path(), exact(), file, "");
  if (file.has("long.tokens")) expect_logits(path(), exact(), file, "long.");
}

// Positions, windows and the cache: what a token sees does not depend on how it came.
TEST_P(Golden, tokens_one_by_one_give_the_same_logits) {
  if (!GetParam().starts_with("architectures/") || GetParam().find("fp8") != std::string::npos) {
    GTEST_SKIP() << "one folder of each family is enough; rounded activations may fall to either "
                    "side";
  }
  const ExpectedFile file(folder() / "expected/logits.safetensors");
  const auto tokens = file.read<int64_t>("tokens");
  const auto expected = file.read<float>("logits");
  auto model = Model::load(path(), exact());
  ASSERT_TRUE(model) << model.error().message;
  Session session(*model);
  const size_t vocabulary = expected.size() / tokens.size();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t token = static_cast<int32_t>(tokens[i]);
    auto row = session.logits({&token, 1});
    ASSERT_TRUE(row) << row.error().message;
    for (size_t v = 0; v < vocabulary; ++v) {
      ASSERT_NEAR(row->values[v], expected[i * vocabulary + v], tolerance(expected))
          << "token " << i << ", logit " << v;
    }
  }
}

TEST(longrope, past_the_original_context_cached_keys_are_made_anew) {
  for (const char* folder : {"phi3_longrope", "gguf_phi3/model.gguf"}) {
    const fs::path path = fs::path(NIBBLE_SOURCE_DIR) / "tests/golden/architectures" / folder;
    const fs::path beside = path.extension() == ".gguf" ? path.parent_path() : path;
    const ExpectedFile file(beside / "expected/logits.safetensors");
    const auto tokens64 = file.read<int64_t>("long.tokens");
    const auto expected = file.read<float>("long.logits");
    const std::vector<int32_t> tokens(tokens64.begin(), tokens64.end());
    Options options;
    options.precision = "exact";
    options.dtype = "f32";
    auto model = Model::load(path.string(), options);
    ASSERT_TRUE(model) << model.error().message;
    Session session(*model);
    constexpr size_t kShort = 20;  // the original context is 24
    ASSERT_TRUE(session.logits({tokens.data(), kShort}));
    auto rest = session.logits({tokens.data() + kShort, tokens.size() - kShort});
    ASSERT_TRUE(rest) << rest.error().message;
    const size_t first = expected.size() - rest->values.size();
    for (size_t i = 0; i < rest->values.size(); ++i) {
      ASSERT_NEAR(rest->values[i], expected[first + i], tolerance(expected)) << folder << " " << i;
    }
  }
}

TEST_P(Golden, every_isa_of_this_machine_gives_the_same_logits) {
  const ExpectedFile file(folder() / "expected/logits.safetensors");
  for (const std::string& isa : version().isas_found) {
    Options options = exact();
    options.isa = isa;
    SCOPED_TRACE(isa);
    expect_logits(path(), options, file, "");
  }
}

TEST_P(Golden, one_two_and_three_threads_and_no_mmap_give_the_same_bits) {
  const ExpectedFile file(folder() / "expected/logits.safetensors");
  const auto tokens64 = file.read<int64_t>("tokens");
  const std::vector<int32_t> tokens(tokens64.begin(), tokens64.end());
  std::vector<float> first;
  for (int threads : {1, 2, 3}) {
    Options options;
    options.threads = threads;
    options.mmap = threads != 2;
    auto model = Model::load(path(), options);
    ASSERT_TRUE(model) << model.error().message;
    Session session(*model);
    auto logits = session.logits(tokens);
    ASSERT_TRUE(logits) << logits.error().message;
    if (first.empty()) first = logits->values;
    EXPECT_EQ(std::memcmp(first.data(), logits->values.data(), first.size() * sizeof(float)), 0)
        << threads << " threads";
  }
}

// --quantization fp8 over an unquantized folder: the weights it makes, and what they compute.
TEST(online, fp8_made_while_loading_is_what_its_formula_says) {
  const fs::path folder = fs::path(NIBBLE_SOURCE_DIR) / "tests/golden/unquantized/online_fp8";
  Options options = exact();
  options.quantization = "fp8";
  std::ifstream in(folder / "expected/online_fp8_crc32.json");
  const auto expected = nlohmann::json::parse(in);
  ASSERT_EQ(expected.size(), 7u);
  for (const auto& [module, crc] : expected.items()) {
    auto weight = weights(folder.string(), module, options);
    ASSERT_TRUE(weight) << module << ": " << weight.error().message;
    EXPECT_EQ(hex_crc32(weight->values), crc.get<std::string>()) << module;
  }
  expect_logits(folder.string(), options, ExpectedFile(folder / "expected/logits.safetensors"),
                "online_fp8.");
}

INSTANTIATE_TEST_SUITE_P(folders, Golden, testing::ValuesIn(golden_cases()), test_name);

}  // namespace
}  // namespace nibble
