// The parts of the program one by one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/npy.h"
#include "cli/options.h"
#include "cli/parse.h"
#include "cli/plan_text.h"
#include "cli/progress.h"
#include "cli/report_json.h"
#include "cli/table.h"

namespace nibble::cli {
namespace {

// --- options -----------------------------------------------------------------------------------

struct Values {
  Options options;
  GenerateOptions generate;
  std::vector<int64_t> list;
  std::string text;

  std::string error_of(const std::vector<std::string>& arguments) {
    const std::vector<OptionGroup> groups = {
        model_options(options),
        sampling_options(generate),
        {"", {{"--list", "N,N", "", &list}, {"-p,--prompt", "TEXT", "", &text}}}};
    const Result<void> result = parse_options(groups, arguments, "here");
    return result ? "" : result.error().message;
  }
};

TEST(options, values_reach_the_library) {
  Values v;
  EXPECT_EQ(v.error_of({"-c", "4096", "--threads=2", "--isa", "avx2", "--no-mmap", "--temp", "0.5",
                        "--top-k", "7", "--seed", "18446744073709551615", "--strict", "-n", "-1"}),
            "");
  EXPECT_EQ(v.options.ctx, 4096);
  EXPECT_EQ(v.options.threads, 2);
  EXPECT_EQ(v.options.isa, "avx2");
  EXPECT_FALSE(v.options.mmap);
  EXPECT_TRUE(v.options.strict);
  EXPECT_FLOAT_EQ(v.generate.temperature, 0.5F);
  EXPECT_EQ(v.generate.top_k, 7);
  EXPECT_EQ(v.generate.seed, 18446744073709551615U);
  EXPECT_EQ(v.generate.max_tokens, -1);
}

TEST(options, what_is_not_given_keeps_the_librarys_default) {
  Values v;
  EXPECT_EQ(v.error_of({}), "");
  EXPECT_EQ(v.options.precision, "fast");
  EXPECT_EQ(v.options.kernel, "*");
  EXPECT_TRUE(v.options.mmap);
  EXPECT_EQ(v.generate.temperature, -1);
}

TEST(options, the_last_of_several_counts) {
  Values v;
  EXPECT_EQ(v.error_of({"-t", "1", "-t", "3"}), "");
  EXPECT_EQ(v.options.threads, 3);
}

TEST(options, stops_repeat_and_stay_as_they_are) {
  Values v;
  EXPECT_EQ(v.error_of({"--stop", "[/INST]", "--stop", "\n\n", "--stop", "a,b", "--stop", "--x"}),
            "");
  EXPECT_EQ(v.generate.stop, (std::vector<std::string>{"[/INST]", "\n\n", "a,b", "--x"}));
}

TEST(options, a_text_may_begin_with_a_dash_or_be_a_list) {
  for (const char* text : {"- item", "--help me", "-", "[1,2]", "{\"a\": 1}", "", "a=b", "%%"}) {
    Values v;
    EXPECT_EQ(v.error_of({"-p", text}), "") << text;
    EXPECT_EQ(v.text, text);
  }
}

TEST(options, overrides_are_pairs_and_split_at_the_first_equals_sign) {
  Values v;
  EXPECT_EQ(v.error_of({"--override", "rope_theta=1e6", "--override", "a=b=c"}), "");
  ASSERT_EQ(v.options.overrides.size(), 2u);
  EXPECT_EQ(v.options.overrides[1], (std::pair<std::string, std::string>{"a", "b=c"}));
  EXPECT_EQ(v.error_of({"--override", "rope_theta"}),
            "--override: expected KEY=VALUE, found \"rope_theta\".");
}

TEST(options, lists_are_written_with_commas) {
  Values v;
  EXPECT_EQ(v.error_of({"--list", "1,20,300"}), "");
  EXPECT_EQ(v.list, (std::vector<int64_t>{1, 20, 300}));
  EXPECT_EQ(v.error_of({"--list", "1,,2"}), "--list: expected a whole number, found \"\".");
}

TEST(options, wrong_values_are_told_in_a_sentence) {
  Values v;
  EXPECT_EQ(v.error_of({"--isa", "sse"}),
            "--isa: \"sse\" is not one of auto, reference, avx2, avx512, amx.");
  EXPECT_EQ(v.error_of({"-n", "many"}), "--max-tokens: expected a whole number, found \"many\".");
  EXPECT_EQ(v.error_of({"-n", "1.5"}), "--max-tokens: expected a whole number, found \"1.5\".");
  EXPECT_EQ(v.error_of({"-c", "0"}),
            "--ctx: expected a whole number from 1 to 1073741824, found 0.");
  EXPECT_EQ(v.error_of({"-c", "99999999999999999999"}),
            "--ctx: expected a whole number from 1 to 1073741824, found 99999999999999999999.");
  EXPECT_EQ(v.error_of({"-n", "99999999999999999999"}),
            "--max-tokens: expected a whole number of at most 9223372036854775807, found "
            "99999999999999999999.");
  EXPECT_EQ(v.error_of({"-n", "-2"}),
            "--max-tokens: expected a whole number of at least -1, found -2.");
  EXPECT_EQ(v.error_of({"--top-p", "2"}), "--top-p: expected a number from 0 to 1, found 2.");
  EXPECT_EQ(v.error_of({"--temp", "nan"}), "--temp: expected a number from 0 to 1000, found nan.");
  EXPECT_EQ(v.error_of({"--seed", "-1"}), "--seed: expected a whole number, found \"-1\".");
  EXPECT_EQ(v.error_of({"--ctx"}), "--ctx needs a value.");
}

TEST(options, an_unknown_option_is_named_with_the_nearest_one) {
  Values v;
  EXPECT_EQ(v.error_of({"--tmep", "1"}), "here has no option \"--tmep\". Did you mean \"--temp\"?");
  EXPECT_EQ(v.error_of({"--frobnicate"}), "here has no option \"--frobnicate\".");
  EXPECT_EQ(v.error_of({"word"}), "here does not expect \"word\"; quote a text of several words.");
}

TEST(options, a_device_is_cpu_or_a_numbered_gpu) {
  for (const char* good : {"auto", "cpu", "cuda", "cuda:0", "cuda:13"}) {
    Options options;
    options.device = good;
    EXPECT_TRUE(check(options)) << good;
  }
  for (const char* bad : {"", "gpu", "cuda:", "cuda:x", "cuda:1234", "cuda0"}) {
    Options options;
    options.device = bad;
    EXPECT_FALSE(check(options)) << bad;
  }
}

TEST(options, an_option_string_is_read_as_a_shell_would) {
  Options options;
  EXPECT_TRUE(apply_option_string(
      "--left", "--isa reference  --override 'a=b c' --kernel \"*avx2*\"", options));
  EXPECT_EQ(options.isa, "reference");
  EXPECT_EQ(options.kernel, "*avx2*");
  ASSERT_EQ(options.overrides.size(), 1u);
  EXPECT_EQ(options.overrides[0].second, "b c");
  EXPECT_FALSE(apply_option_string("--left", "--isa 'reference", options));
  EXPECT_EQ(apply_option_string("--left", "--nothing", options).error().message,
            "--left has no option \"--nothing\".");
  EXPECT_EQ(apply_option_string("--left", "--isa", options).error().message,
            "--left: --isa needs a value.");
}

TEST(input, token_lists_take_commas_and_blanks) {
  EXPECT_EQ(*parse_tokens("1, 2\n3", "--tokens"), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(*parse_tokens(" 1 ,2 3\n", "--tokens"), (std::vector<int32_t>{1, 2, 3}));
  for (const char* bad :
       {"", " ", ",", "1,x", "-1", "1.5", "4294967296", "1,,2", "1,", "1, ", ",1"}) {
    EXPECT_FALSE(parse_tokens(bad, "--tokens")) << bad;
  }
}

// --- tables ------------------------------------------------------------------------------------

TEST(table, columns_align_by_characters_not_bytes) {
  Table table({{"name"}, {"n", Align::kRight}});
  table.add({"é", "1"});
  table.add({"abc", "100"});
  EXPECT_EQ(table.text(),
            "name    n\n"
            "é       1\n"
            "abc   100\n");
  EXPECT_EQ(table.markdown(),
            "| name |   n |\n"
            "| ---- | --: |\n"
            "| é    |   1 |\n"
            "| abc  | 100 |\n");
}

TEST(table, csv_quotes_what_needs_it) {
  Table table({{"a"}, {"b"}});
  table.add({"x,y", "say \"hi\""});
  EXPECT_EQ(table.csv(), "a,b\n\"x,y\",\"say \"\"hi\"\"\"\n");
}

TEST(table, numbers_are_readable) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.0 kB");
  EXPECT_EQ(human_bytes(98'004'480), "98.0 MB");
  EXPECT_EQ(human_bytes(999'999), "1.0 MB");
  EXPECT_EQ(human_bytes(UINT64_MAX), "18446.7 PB");
  EXPECT_EQ(human_count(134'515'008), "134.5 M");
  EXPECT_EQ(human_seconds(65.2), "1:05");
  EXPECT_EQ(human_seconds(7387), "2:03:07");
}

TEST(table, a_files_words_cannot_move_the_cursor) {
  EXPECT_EQ(printable("a\x1b[2Jb\n"), "a\\x1b[2Jb\\n");
  EXPECT_EQ(printable("é\xff"), "é\\xff");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");           // the one-character form of ESC [
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(printable("\xf0\x9f\x98\x80"), "\xf0\x9f\x98\x80");
}

TEST(progress, a_line_says_share_speed_and_time_left) {
  EXPECT_EQ(progress_line("loading", Unit::kBytes, 50'000'000, 100'000'000, 0.5, false),
            "loading   50%  50.0 MB of 100.0 MB  100.0 MB/s  0:01 left");
  EXPECT_EQ(progress_line("prompt", Unit::kTokens, 100, 100, 2, true),
            "prompt  [========================]  100%  100 of 100  50 tokens/s");
  EXPECT_EQ(progress_line("loading", Unit::kBytes, 0, 0, 0, false), "loading  100%  0 B of 0 B");
}

TEST(progress, work_that_is_named_by_its_layers_is_one_work) {
  const CatchInterrupt interrupt;
  testing::internal::CaptureStderr();
  {
    ProgressLine line(Unit::kLayers, interrupt, 0.05);
    const Progress progress = line.callback();
    for (uint64_t i = 1; i <= 4; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
      EXPECT_TRUE(progress(fmt::format("a\x1b{}", i), i, 4));
    }
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("a\\x1b4  100%  4 of 4"), std::string::npos) << said;
  EXPECT_NE(said.find(" layers/s"), std::string::npos) << said;
}

// --- plans -------------------------------------------------------------------------------------

TEST(plan_text, numbers_join_to_ranges) {
  EXPECT_EQ(number_ranges({3, 1, 2, 7, 7, 9, 10}), "1-3,7,9-10");
}

LayerPlan layer(const std::string& name, const std::string& format) {
  LayerPlan plan;
  plan.name = name;
  plan.format = format;
  plan.bytes_disk = 1;
  return plan;
}

std::vector<std::string> group_names(const std::vector<LayerPlan>& layers) {
  std::vector<std::string> names;
  for (const LayerGroup& group : group_layers(layers)) names.push_back(group.name);
  return names;
}

TEST(plan_text, layers_that_differ_only_in_number_are_one_row) {
  std::vector<LayerPlan> layers;
  for (int i = 0; i < 4; ++i) {
    layers.push_back(
        layer("model.layers." + std::to_string(i) + ".q_proj", i == 2 ? "q6_k" : "q4_k"));
    layers.push_back(layer("model.layers." + std::to_string(i) + ".k_proj", "q4_k"));
  }
  layers.push_back(layer("lm_head", "q6_k"));
  EXPECT_EQ(group_names(layers),
            (std::vector<std::string>{"model.layers.{0-1,3}.q_proj", "model.layers.{0-3}.k_proj",
                                      "model.layers.2.q_proj", "lm_head"}));
  EXPECT_EQ(group_layers(layers)[0].count, 3);
  EXPECT_EQ(group_layers(layers)[0].bytes_disk, 3u);
}

TEST(plan_text, experts_join_in_both_numbers_and_exceptions_stand_out) {
  std::vector<LayerPlan> layers;
  for (int i = 0; i < 3; ++i) {
    for (int e = 0; e < 8; ++e) {
      const bool odd_one = i == 1 && e == 5;
      layers.push_back(
          layer("layers." + std::to_string(i) + ".experts." + std::to_string(e) + ".up",
                odd_one ? "bf16" : "s4"));
    }
  }
  EXPECT_EQ(group_names(layers),
            (std::vector<std::string>{"layers.{0,2}.experts.{0-7}.up",
                                      "layers.1.experts.{0-4,6-7}.up", "layers.1.experts.5.up"}));
}

TEST(plan_text, every_layer_is_in_exactly_one_row) {
  std::vector<LayerPlan> layers;
  for (int i = 0; i < 60; ++i) {
    layers.push_back(layer("a." + std::to_string(i % 7) + ".b." + std::to_string(i / 7),
                           i % 3 == 0 ? "x" : "y"));
  }
  int64_t count = 0;
  for (const LayerGroup& group : group_layers(layers)) count += group.count;
  EXPECT_EQ(count, 60);
}

TEST(plan_text, kernels_refused_for_one_reason_share_a_line) {
  Plan plan;
  plan.layers = {layer("a.0", "s4"), layer("a.1", "s4")};
  for (LayerPlan& each : plan.layers) {
    each.refused = {{"one", "needs amx"}, {"two", "needs amx"}, {"three", "k is odd"}};
  }
  const std::string text = plan_text(plan, false);
  EXPECT_NE(text.find("  one and 1 more: needs amx (2 layers)\n  three: k is odd (2 layers)\n"),
            std::string::npos)
      << text;
  const std::string verbose = plan_text(plan, true);
  EXPECT_NE(verbose.find("  two: needs amx (2 layers)\n      a.0\n      a.1\n"), std::string::npos)
      << verbose;
}

// --- npy ---------------------------------------------------------------------------------------

std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

TEST(npy, the_header_is_numpys_and_ends_at_a_multiple_of_64) {
  const std::string header = npy_header(2, 3);
  EXPECT_EQ(header.size() % 64, 0u);
  EXPECT_EQ(header.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  EXPECT_EQ(static_cast<uint8_t>(header[8]) + 256 * static_cast<uint8_t>(header[9]),
            static_cast<int>(header.size()) - 10);
  EXPECT_EQ(header.substr(10, 61), "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }  ");
  EXPECT_EQ(header.back(), '\n');
}

TEST(npy, values_follow_row_by_row) {
  const std::string path = testing::TempDir() + "nibble_values.npy";
  {
    Result<NpyWriter> writer = NpyWriter::create(path, 2, 2);
    ASSERT_TRUE(writer);
    const std::vector<float> first = {1, 2}, second = {3, NAN};
    ASSERT_TRUE(writer->append(first));
    ASSERT_TRUE(writer->append(second));
    ASSERT_TRUE(writer->finish());
  }
  const std::string bytes = file_bytes(path);
  ASSERT_EQ(bytes.size(), npy_header(2, 2).size() + 16);
  float third = 0;
  std::memcpy(&third, bytes.data() + bytes.size() - 8, 4);
  EXPECT_EQ(third, 3);
  std::filesystem::remove(path);
}

TEST(npy, a_file_that_was_not_finished_is_removed) {
  const std::string path = testing::TempDir() + "nibble_half.npy";
  {
    Result<NpyWriter> writer = NpyWriter::create(path, 2, 2);
    ASSERT_TRUE(writer);
    EXPECT_FALSE(writer->finish());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(npy, what_had_the_name_stays_until_the_new_file_is_complete) {
  const std::string path = testing::TempDir() + "nibble_kept.npy", link = path + ".link";
  std::ofstream(path) << "old";
  std::filesystem::remove(link);
  std::filesystem::create_symlink(path, link);
  for (const std::string& name : {path, link}) {
    {
      Result<NpyWriter> writer = NpyWriter::create(name, 1, 1);
      ASSERT_TRUE(writer);
    }
    EXPECT_EQ(file_bytes(path), "old");
    EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  }
  Result<NpyWriter> writer = NpyWriter::create(link, 1, 1);
  const float value = 1;
  ASSERT_TRUE(writer && writer->append({&value, 1}) && writer->finish());
  EXPECT_EQ(file_bytes(path).size(), npy_header(1, 1).size() + 4);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  std::filesystem::remove(link);
  std::filesystem::remove(path);
}

TEST(npy, a_full_disk_is_an_error) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  Result<NpyWriter> writer = NpyWriter::create("/dev/full", 1, 100000);
  ASSERT_TRUE(writer);
  const std::vector<float> row(100000);
  EXPECT_FALSE(writer->append(row) && writer->finish());
}

// --- json --------------------------------------------------------------------------------------

TEST(json, a_kernel_is_a_name_or_a_list_over_m) {
  Plan plan;
  plan.layers = {layer("a", "s4"), layer("b", "s4"), layer("c", "s4")};
  plan.layers[0].kernels = {{1, 0, "one"}};
  plan.layers[1].kernels = {{1, 1, "first"}, {2, 16, "second"}, {17, 0, "third"}};
  const std::string json = plan_json(plan);
  EXPECT_NE(json.find("\"kernel\": \"one\""), std::string::npos) << json;
  for (const char* m : {"\"m\": \"1\"", "\"m\": \"2-16\"", "\"m\": \"17-\"", "\"kernel\": null"}) {
    EXPECT_NE(json.find(m), std::string::npos) << m << " in " << json;
  }
}

TEST(json, what_json_cannot_hold_becomes_null_or_a_replacement) {
  EXPECT_NE(compare_json({{"a\xff", NAN, INFINITY}}).find("\"weight_error\": null"),
            std::string::npos);
  EXPECT_NE(compare_json({{"a\xff", 0, 0}}).find("a\xef\xbf\xbd"), std::string::npos);
}

TEST(json, a_messages_file_is_a_list_or_an_object_with_tools) {
  const Result<MessagesFile> list = split_messages_file("[{\"role\": \"user\"}]", "f");
  ASSERT_TRUE(list);
  EXPECT_EQ(list->tools, "");
  const Result<MessagesFile> object =
      split_messages_file("{\"tools\": [{\"z\": 1, \"a\": 2}], \"messages\": []}", "f");
  ASSERT_TRUE(object);
  EXPECT_EQ(object->messages, "[]");
  EXPECT_EQ(object->tools, "[{\"z\":1,\"a\":2}]");
  for (const char* bad : {"", "{}", "3", "[1", "{\"messages\": 1}"}) {
    EXPECT_FALSE(split_messages_file(bad, "f")) << bad;
  }
}

}  // namespace
}  // namespace nibble::cli
