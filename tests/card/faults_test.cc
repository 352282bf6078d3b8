// Every way in which a card is not there, too old, too small or full: one sentence, exit code 1,
// nothing lost.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "card/on_fake_card.h"
#include "cli/spawn.h"
#include "device/cuda.h"
#include "device/memory.h"
#include "device/other_cards.h"
#include "kernels/attention/kv_cache.h"
#include "kernels/cuda/abi.h"
#include "nibble/nibble.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

const std::string kModel = NIBBLE_SOURCE_DIR "/tests/golden/gguf/q4_1/model.gguf";
const std::string kLibrary = NIBBLE_FAKE_CARD_LIBRARY;

class FakeCard : public OnFakeCard {
 protected:
  static int64_t taken() { return function<int64_t()>("nibble_fake_card_taken")(); }
  static std::string error_of_load(const std::string& settings, int64_t ctx = 0) {
    is(settings);
    Options options;
    options.device = "cuda";
    options.ctx = ctx;
    auto model = Model::load(kModel, options);
    return model ? "" : model.error().message;
  }
};

TEST_F(FakeCard, without_the_library_it_says_what_to_build) {
  setenv("NIBBLE_CUDA_LIBRARY", "/not/there.so", 1);
  EXPECT_EQ(error_of_load(""),
            "--device cuda: NIBBLE_CUDA_LIBRARY names /not/there.so, which is not there; name the "
            "libnibble_cuda.so that was built with this program, or unset it");
}

TEST_F(FakeCard, a_library_of_another_version_is_named) {
  // Another path is another library to the program, which asks each for its version once.
  const std::string other = testing::TempDir() + "other_version.so";
  fs::copy_file(kLibrary, other, fs::copy_options::overwrite_existing);
  setenv("NIBBLE_CUDA_LIBRARY", other.c_str(), 1);
  EXPECT_EQ(error_of_load("version=1000"),
            "--device cuda: " + other + " is of another version than this program, which wants " +
                std::to_string(kNibbleCudaVersion) + "; build both together");
  Options options;
  options.device = "cuda";
  const auto plan = inspect(kModel, options);  // for an H200 in its place
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(plan->warnings.size(), 1u);
  EXPECT_EQ(plan->warnings[0].rfind("the cards of this machine were not looked for: " + other, 0),
            0u)
      << plan->warnings[0];
}

TEST_F(FakeCard, without_a_driver_it_says_so) {
  const std::string error = error_of_load("driver=none is installed");
  EXPECT_EQ(
      error.rfind("--device cuda: no NVIDIA driver answers on this machine: none is installed", 0),
      0u)
      << error;
}

TEST_F(FakeCard, without_a_card_it_says_so) {
  const std::string error = error_of_load("cards=0");
  EXPECT_EQ(error.rfind("--device cuda: this machine has no NVIDIA card", 0), 0u) << error;
}

TEST_F(FakeCard, an_old_card_is_refused_by_name) {
  EXPECT_EQ(error_of_load("name=Tesla V100-SXM2-16GB;major=7;minor=0"),
            "--device cuda: Tesla V100-SXM2-16GB has compute capability 7.0; nibble needs 7.5 "
            "(Turing) or newer");
}

TEST_F(FakeCard, an_old_card_is_refused_for_a_plan_too_and_left_alone_unless_asked_for) {
  is("name=Tesla V100-SXM2-16GB;major=7;minor=0");
  Options options;
  options.device = "cuda";
  const auto plan = inspect(kModel, options);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().message,
            "--device cuda: Tesla V100-SXM2-16GB has compute capability 7.0; nibble needs 7.5 "
            "(Turing) or newer");
  options.device = "auto";
  const auto on_cpu = inspect(kModel, options);
  ASSERT_TRUE(on_cpu) << on_cpu.error().message;
  EXPECT_EQ(on_cpu->hardware.find("Tesla"), std::string::npos) << on_cpu->hardware;
  is("name=Tesla T4;major=7;minor=5");
  const auto on_card = inspect(kModel, options);
  ASSERT_TRUE(on_card) << on_card.error().message;
  EXPECT_EQ(on_card->hardware.rfind("Tesla T4, compute capability 7.5", 0), 0u)
      << on_card->hardware;
}

// Nor does a plan for it answer for another card.
TEST_F(FakeCard, a_card_beyond_the_last_is_refused_for_a_plan_too) {
  is("");
  Options options;
  options.device = "cuda:1";
  const std::string wanted = "--device cuda:1: the last card of this machine is cuda:0";
  const auto plan = inspect(kModel, options);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().message, wanted);
  const auto model = Model::load(kModel, options);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().message, wanted);
  is("cards=0");
  const auto other = inspect(kModel, options);
  ASSERT_TRUE(other) << other.error().message;
  EXPECT_NE(other->hardware.find("asked about"), std::string::npos) << other->hardware;
}

TEST_F(FakeCard, a_card_that_cannot_be_used_is_named_with_the_reason) {
  EXPECT_EQ(error_of_load("busy=out of memory"),
            "--device cuda: NVIDIA Fake cannot be used: out of memory; --device cpu does without "
            "it");
}

TEST_F(FakeCard, weights_that_do_not_fit_are_refused_before_they_are_read) {
  EXPECT_EQ(
      error_of_load("total=16384;free=300"),
      "the weights and the memory to work in need 555 MiB, and 300 of the 16384 MiB of NVIDIA "
      "Fake are free; they fit into this machine's memory: --device cpu");
}

TEST_F(FakeCard, a_context_that_does_not_fit_is_refused_with_those_that_do) {
  EXPECT_EQ(
      error_of_load("total=16384;free=700", 1 << 20),
      "--ctx 1048576: the weights and the memory to work in need 555 MiB, the keys and values "
      "256 MiB, and 700 of the 16384 MiB of NVIDIA Fake are free; 595200 tokens fit, "
      "1190656 with --kv-cache-dtype fp8_e4m3");
  is("total=16384;free=700");
  Options options;
  options.device = "cuda";
  options.ctx = 1 << 20;
  options.kv_cache_dtype = "f32";
  auto plan = inspect(kModel, options);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->problems.size(), 1u);
  EXPECT_EQ(
      plan->problems[0],
      "--ctx 1048576: the weights and the memory to work in need 555 MiB, the keys and values "
      "512 MiB, and 700 of the 16384 MiB of NVIDIA Fake are free; 297472 tokens fit, 595200 "
      "with --kv-cache-dtype f16, 1190656 with --kv-cache-dtype fp8_e4m3");
  options.ctx = 595200;
  options.kv_cache_dtype = "f16";
  EXPECT_TRUE(Model::load(kModel, options));
}

TEST_F(FakeCard, the_context_is_cut_to_what_is_free) {
  is("total=16384;free=16384");
  Options options;
  options.device = "cuda";
  auto model = Model::load(kModel, options);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->ctx(), model->plan().memory.model_ctx);
}

TEST_F(FakeCard, memory_that_runs_out_while_loading_is_one_sentence_and_all_of_it_is_given_back) {
  const int64_t before = taken();
  const std::string error = error_of_load("wall=60000");
  EXPECT_EQ(error,
            "layer blk.0.ffn_gate: the memory of the card ran out: 1 MiB more do not fit on "
            "NVIDIA Fake; other programs may hold some of it");
  EXPECT_EQ(taken(), before);
}

TEST_F(FakeCard, modules_made_ahead_arrive_in_their_order_and_a_cancelled_load_ends) {
  is("");
  const auto modules = [](const std::string& device, size_t most) {
    std::vector<std::string> out;
    Options options;
    options.device = device;
    const auto model = Model::load(NIBBLE_SOURCE_DIR "/tests/golden/awq/g32", options,
                                   [&](std::string_view module, uint64_t, uint64_t) {
                                     out.emplace_back(module);
                                     return out.size() < most;
                                   });
    EXPECT_EQ(model.has_value(), out.size() < most);
    if (!model) {
      EXPECT_EQ(model.error().code, ErrorCode::kCancelled);
    }
    return out;
  };
  const std::vector<std::string> all = modules("cpu", 1000);
  EXPECT_GT(all.size(), 10u);
  EXPECT_EQ(modules("cuda", 1000), all);
  const int64_t before = taken();
  EXPECT_EQ(modules("cuda", 2).size(), 2u);
  EXPECT_EQ(taken(), before);
}

TEST_F(FakeCard, what_is_wrong_with_a_module_is_said_as_on_a_cpu) {
  is("");
  // Scales become nan.
  const fs::path folder = testing::TempDir() + "damaged_for_card";
  fs::remove_all(folder);
  fs::copy(NIBBLE_SOURCE_DIR "/tests/golden/awq/g32", folder, fs::copy_options::recursive);
  const fs::path file = folder / "model.safetensors";
  const auto size = fs::file_size(file);
  {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(size / 2));
    const std::string noise(size / 2, '\xff');
    bytes.write(noise.data(), static_cast<std::streamsize>(noise.size()));
  }
  std::string errors[2];
  for (const bool card : {false, true}) {
    Options options;
    options.device = card ? "cuda" : "cpu";
    auto model = Model::load(folder.string(), options);
    ASSERT_FALSE(model);
    errors[card] = model.error().message;
  }
  EXPECT_EQ(errors[1], errors[0]);
  EXPECT_EQ(errors[0].rfind("layer ", 0), 0u) << errors[0];
  fs::remove_all(folder);
}

TEST_F(FakeCard, memory_that_runs_out_while_generating_leaves_the_session_as_it_was) {
  is("");
  Options options;
  options.device = "cuda";
  options.ctx = 1024;
  auto model = Model::load(kModel, options);
  ASSERT_TRUE(model) << model.error().message;
  Session session(*model);
  const std::vector<int32_t> first = {1, 2, 3};
  ASSERT_TRUE(session.logits(first));
  // From here every further byte is refused: pages of the cache, and memory to work in.
  is("wall=" + std::to_string(taken()));
  const std::vector<int32_t> many(300, 5);
  const auto refused = session.logits(many);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(refused.error().message,
            "the memory of the card ran out: 1 MiB more do not fit on NVIDIA Fake; other programs "
            "may hold some of it");
  EXPECT_EQ(session.position(), 3);
  is("");
  EXPECT_TRUE(session.logits(many));
  EXPECT_EQ(session.position(), 303);
}

// Wherever the memory ends, in a page, in scratch memory or between, no token is half there.
TEST_F(FakeCard, memory_may_run_out_at_any_byte) {
  is("");
  Options options;
  options.device = "cuda";
  options.ctx = 1024;
  auto model = Model::load(kModel, options);
  ASSERT_TRUE(model) << model.error().message;
  const std::vector<int32_t> many(300, 5);
  int refusals = 0;
  for (int64_t more = 0;; more += 40000) {
    Session session(*model);
    is("wall=" + std::to_string(taken() + more));
    const auto rows = session.logits(many);
    is("");
    if (rows) break;
    ++refusals;
    EXPECT_EQ(rows.error().code, ErrorCode::kOutOfMemory);
    EXPECT_EQ(session.position(), 0);
    ASSERT_TRUE(session.logits(many)) << "after " << more << " bytes";
    EXPECT_EQ(session.position(), 300);
    model = Model::load(kModel, options);  // without the scratch memory of this round
    ASSERT_TRUE(model) << model.error().message;
  }
  EXPECT_GT(refusals, 5);
}

// In pages, where the sentence is a result, and in scratch memory, where it is an exception.
TEST_F(FakeCard, every_command_names_the_card_whose_memory_ran_out) {
  is("");
  Options options;
  options.device = "cuda";
  options.ctx = 1024;
  BenchOptions once;
  once.prompt = {300};
  once.generate = {};
  once.repetitions = 1;
  int refusals = 0;
  for (int64_t more = 0;; more += 40000) {
    auto model = Model::load(kModel, options);
    ASSERT_TRUE(model) << model.error().message;
    is("wall=" + std::to_string(taken() + more));
    const auto rows = bench(*model, once, {});
    is("");
    if (rows) break;
    ++refusals;
    EXPECT_EQ(rows.error().code, ErrorCode::kOutOfMemory);
    EXPECT_EQ(rows.error().message.rfind("the memory of the card ran out: ", 0), 0u)
        << rows.error().message;
    EXPECT_NE(rows.error().message.find("NVIDIA Fake"), std::string::npos);
  }
  EXPECT_GT(refusals, 5);
}

// What kernels are told of a cache has all of its pages, and its scales, also after memory ran out
// when some of them had been taken and fewer are wanted then.
TEST_F(FakeCard, a_cache_that_ran_out_of_memory_half_way_tells_kernels_of_all_its_pages) {
  constexpr int64_t kTokens = kernels::KvCache::kPageTokens;
  for (int64_t more = 0; more < 5 * 2 * kTokens * 256; more += 1000) {
    is("");
    auto cuda = device::Cuda::open(0);
    ASSERT_TRUE(cuda) << cuda.error().message;
    device::Stream stream(1, *cuda);
    auto cache = kernels::KvCache::create({2, 64, 64, kernels::KvType::kE4M3, false},
                                          {.k = {0.5f}, .v = {0.25f}});
    ASSERT_TRUE(cache) << cache.error().message;
    is("wall=" + std::to_string(taken() + more));
    if (cache->reserve(stream, 5 * kTokens)) break;
    is("");
    ASSERT_TRUE(cache->reserve(stream, 2 * kTokens));
    const kernels::CudaKv kv = kernels::cuda_kv(*cache);
    ASSERT_NE(kv.pages, nullptr) << "after " << more << " bytes";
    EXPECT_NE(kv.pages[0], nullptr);
    EXPECT_NE(kv.pages[1], kv.pages[0]);
    ASSERT_NE(kv.scales, nullptr) << "after " << more << " bytes";
    EXPECT_EQ(kv.scales[3], 0.25f);
    ASSERT_NE(kv.first_bad, nullptr) << "after " << more << " bytes";
    EXPECT_EQ(*kv.first_bad, INT64_MAX);
  }
}

TEST_F(FakeCard, memory_to_work_in_grows_by_half_where_there_is_room_and_else_by_what_is_needed) {
  is("");
  auto cuda = device::Cuda::open(0);
  ASSERT_TRUE(cuda) << cuda.error().message;
  const int64_t before = taken();
  (*cuda)->scratch(0, 1000);
  EXPECT_EQ(taken() - before, 1000);
  (*cuda)->scratch(0, 1001);
  EXPECT_EQ(taken() - before, 1500);
  is("wall=" + std::to_string(before + 2000));
  (*cuda)->scratch(0, 1600);
  EXPECT_EQ(taken() - before, 1600);
  EXPECT_THROW((*cuda)->scratch(0, 2001), device::CardMemoryRanOut);
  EXPECT_EQ(taken() - before, 0);
}

TEST_F(FakeCard, page_locked_memory_is_kept_for_who_wants_about_as_much) {
  is("");
  auto cuda = device::Cuda::open(0);
  ASSERT_TRUE(cuda) << cuda.error().message;
  size_t bytes = 100;
  void* first = (*cuda)->allocate_host(&bytes);
  EXPECT_EQ(bytes, size_t{64} << 10);
  std::memset(first, 1, bytes);
  size_t more = bytes;
  void* second = (*cuda)->allocate_host(&more);
  EXPECT_NE(second, first) << "it is in use";
  (*cuda)->release_host(first, bytes);
  size_t same = 5000;
  EXPECT_EQ((*cuda)->allocate_host(&same), first);
  EXPECT_EQ(same, bytes);
  size_t twice = bytes + 1;
  void* larger = (*cuda)->allocate_host(&twice);
  EXPECT_EQ(twice, 2 * bytes);
  std::memset(larger, 1, twice);
  (*cuda)->release_host(larger, twice);
  (*cuda)->release_host(first, bytes);
  (*cuda)->release_host(second, bytes);
  size_t huge = size_t{65} << 20;
  void* not_kept = (*cuda)->allocate_host(&huge);
  EXPECT_EQ(huge, size_t{128} << 20);
  (*cuda)->release_host(not_kept, huge);
}

TEST_F(FakeCard, page_locked_memory_that_is_kept_makes_room_for_a_larger_piece) {
  constexpr size_t kPiece = size_t{1} << 20;
  is("hostwall=" + std::to_string(2 * kPiece));
  auto cuda = device::Cuda::open(0);
  ASSERT_TRUE(cuda) << cuda.error().message;
  size_t bytes = kPiece;
  void* kept = (*cuda)->allocate_host(&bytes);
  ASSERT_NE(kept, nullptr);
  (*cuda)->release_host(kept, bytes);
  bytes = 2 * kPiece;
  void* larger = (*cuda)->allocate_host(&bytes);
  EXPECT_NE(larger, nullptr);
  size_t more = kPiece;
  EXPECT_EQ((*cuda)->allocate_host(&more), nullptr);
  if (larger != nullptr) (*cuda)->release_host(larger, bytes);
}

// ---- the program

cli::Ran nibble(std::vector<std::string> arguments, const std::string& card,
                const std::string& input = "") {
  arguments.insert(arguments.begin(), NIBBLE_PROGRAM);
  cli::Spawn spawn{std::move(arguments)};
  spawn.input = input;
  spawn.environment = {"NIBBLE_CUDA_LIBRARY=" + kLibrary, "NIBBLE_FAKE_CARD=" + card};
  return cli::run(spawn, 60);
}

TEST_F(FakeCard, memory_given_back_is_kept_for_who_wants_as_much_until_it_is_needed) {
  is("total=64");  // MiB, of which one may be kept
  const int64_t before = taken();
  constexpr size_t kPiece = size_t{512} << 10;
  constexpr auto kBytes = static_cast<int64_t>(kPiece);
  {
    auto cuda = device::Cuda::open(0);
    ASSERT_TRUE(cuda) << cuda.error().message;
    void* first = (*cuda)->allocate(kPiece);
    ASSERT_NE(first, nullptr);
    const uint64_t generation = (*cuda)->generation();
    (*cuda)->release(first, kPiece);
    EXPECT_NE((*cuda)->generation(), generation) << "what was recorded would go on with it";
    EXPECT_EQ(taken() - before, kBytes);
    void* half = (*cuda)->allocate(kPiece / 2);
    EXPECT_NE(half, first);
    const uint64_t of_release = (*cuda)->generation();
    EXPECT_EQ((*cuda)->allocate(kPiece), first);
    EXPECT_NE((*cuda)->generation(), of_release);
    EXPECT_EQ(taken() - before, kBytes * 3 / 2);
    void* second = (*cuda)->allocate(kPiece);
    void* third = (*cuda)->allocate(kPiece);
    for (void* memory : {first, second, third}) (*cuda)->release(memory, kPiece);
    EXPECT_EQ(taken() - before, kBytes * 5 / 2) << "the third is more than may be kept";
    is("total=64;wall=" + std::to_string(taken()));
    void* whole = (*cuda)->allocate(2 * kPiece);
    EXPECT_NE(whole, nullptr) << "what is kept makes room";
    EXPECT_EQ(taken() - before, kBytes * 5 / 2);
    EXPECT_EQ((*cuda)->allocate(kPiece), nullptr);
    (*cuda)->release(whole, 2 * kPiece);
    (*cuda)->release(half, kPiece / 2);
  }
  EXPECT_EQ(taken(), before) << "nothing is kept without the card";
}

TEST(program, every_command_that_runs_a_model_refuses_a_card_that_is_not_there_with_one_line) {
  const std::string text = testing::TempDir() + "text.txt";
  std::ofstream(text) << "Once upon a time there was a card.";
  const std::vector<std::string> commands[] = {
      {"run", kModel, "--tokens", "1,2"},
      {"chat", kModel},
      {"logits", kModel, "--tokens", "1,2"},
      {"eval", kModel, text},
      {"bench", kModel},
      {"compare", kModel, "--tokens", "1,2", "--left", "--device cpu", "--right", "--device cuda"},
  };
  for (std::vector<std::string> command : commands) {
    const std::string name = command.front();
    if (name != "compare") command.insert(command.end(), {"--device", "cuda"});
    const cli::Ran ran = nibble(command, "driver=none is installed");
    EXPECT_EQ(ran.exit_code, 1) << name << ran.err;
    EXPECT_EQ(ran.out, "") << name;
    EXPECT_EQ(ran.err.rfind("error: --device cuda: no NVIDIA driver answers", 0), 0u)
        << name << ": " << ran.err;
    EXPECT_EQ(ran.err.find('\n'), ran.err.size() - 1) << name << ": " << ran.err;
  }
}

TEST(program, commands_that_run_nothing_answer_for_a_card_that_is_not_there) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{"inspect", kModel},
                                                  {"fit", kModel},
                                                  {"weights", kModel, "token_embd"}}) {
    std::vector<std::string> all = command;
    all.insert(all.end(), {"--device", "cuda"});
    const cli::Ran ran = nibble(all, "driver=none is installed");
    EXPECT_EQ(ran.exit_code, 0) << command.front() << ran.err;
  }
}

TEST(program, fit_counts_what_others_hold_of_a_card) {
  const cli::Ran roomy = nibble({"fit", kModel, "--device", "cuda"}, "total=16384;free=16000");
  EXPECT_EQ(roomy.exit_code, 0) << roomy.err;
  EXPECT_NE(
      roomy.out.find("NVIDIA Fake, compute capability 9.0, 16384 MiB, 16000 MiB of them free"),
      roomy.out.npos)
      << roomy.out;
  const cli::Ran full = nibble({"fit", kModel, "--device", "cuda"}, "total=16384;free=200");
  EXPECT_EQ(full.exit_code, 1) << full.out;
  EXPECT_NE(full.err.find("200 of the 16384 MiB of NVIDIA Fake are free"), full.err.npos)
      << full.err;
}

TEST(program, bench_without_a_model_refuses_a_card_before_it_measures) {
  const cli::Ran ran = nibble({"bench", "--device", "cuda"}, "");
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_EQ(ran.err,
            "error: --device cuda: without a MODEL only the CPU's kernels are measured; name a "
            "model, or say --device cpu.\n");
}

TEST_F(FakeCard, a_chat_goes_on_after_the_memory_ran_out) {
  is("");
  Options options;
  options.device = "cuda";
  const int64_t before = taken();
  auto model = Model::load(kModel, options);
  ASSERT_TRUE(model) << model.error().message;
  const std::string wall = "wall=" + std::to_string(taken() - before);
  const std::string saved = testing::TempDir() + "saved_chat.json";
  const cli::Ran ran =
      nibble({"chat", kModel, "--device", "cuda", "-n", "1"}, wall, "hello\n/save " + saved + "\n");
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_NE(ran.err.find("error: the memory of the card ran out: "), ran.err.npos) << ran.err;
  EXPECT_NE(ran.err.find("/save keeps the conversation, /reset begins anew.\nsaved 0 messages"),
            ran.err.npos)
      << ran.err;
}

// ---- other makers

TEST(other_cards, are_named_by_maker_and_number) {
  const fs::path root = testing::TempDir() + "other_cards";
  const auto device = [&](const std::string& slot, const char* kind, const char* vendor,
                          const char* id) {
    const fs::path folder = root / "sys/bus/pci/devices" / slot;
    fs::create_directories(folder);
    std::ofstream(folder / "class") << kind << "\n";
    std::ofstream(folder / "vendor") << vendor << "\n";
    std::ofstream(folder / "device") << id << "\n";
  };
  EXPECT_EQ(device::other_cards_clause(root.string()), "");
  device("0000:00:1f.0", "0x020000", "0x8086", "0x1533");  // a network card
  device("0000:00:02.0", "0x030000", "0x10de", "0x2330");  // NVIDIA's own
  EXPECT_EQ(device::other_cards_clause(root.string()), "");
  device("0000:03:00.0", "0x038000", "0x1002", "0x740f");
  EXPECT_EQ(device::other_cards_clause(root.string()),
            "; the card of AMD in it (device 740f) is none that nibble runs on");
  device("0000:04:00.0", "0x030000", "0x8086", "0x56c0");
  EXPECT_EQ(device::other_cards_clause(root.string()),
            "; the card of AMD in it (device 740f) and the card of Intel in it (device 56c0) are "
            "none that nibble runs on");
  fs::remove_all(root);
}

}  // namespace
}  // namespace nibble
