// The program as a user runs it, over a stand-in for the library (fake_api.cc).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/spawn.h"

namespace nibble::cli {
namespace {

using Json = nlohmann::json;

Ran nibble(std::vector<std::string> arguments, const std::string& input = "") {
  arguments.insert(arguments.begin(), NIBBLE_PROGRAM);
  Spawn spawn{std::move(arguments)};
  spawn.input = input;
  return run(spawn);
}

Json json_of(const Ran& ran) {
  Json json = Json::parse(ran.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << ran.out;
  return json;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Exit code, nothing on stdout, and a stderr whose last line begins with "error: ".
void expect_error(const Ran& ran, int exit_code, const std::string& part) {
  EXPECT_EQ(ran.exit_code, exit_code) << ran.err;
  EXPECT_EQ(ran.out, "");
  const size_t last = ran.err.rfind('\n', ran.err.size() - 2);
  const std::string line = ran.err.substr(last == std::string::npos ? 0 : last + 1);
  EXPECT_EQ(line.rfind("error: ", 0), 0u) << ran.err;
  EXPECT_TRUE(contains(line, part)) << ran.err;
}

// --- usage -------------------------------------------------------------------------------------

TEST(program, the_help_fits_a_screen_and_has_an_example_for_each_command) {
  const Ran ran = nibble({"--help"});
  EXPECT_EQ(ran.exit_code, 0);
  std::istringstream lines(ran.out);
  std::string line;
  int count = 0;
  for (; std::getline(lines, line); ++count) EXPECT_LE(line.size(), 100u) << line;
  EXPECT_LE(count, 40);
  for (const char* command : {"run", "chat", "inspect", "fit", "verify", "weights", "logits",
                              "tokenize", "eval", "compare", "bench"}) {
    EXPECT_TRUE(contains(ran.out, std::string("            nibble ") + command)) << command;
  }
}

TEST(program, a_commands_help_shows_defaults_and_needs_no_arguments) {
  const Ran ran = nibble({"run", "--help"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_TRUE(contains(ran.out, "(default: fast)"));
  EXPECT_TRUE(contains(ran.out, "(default: until the model stops or the"));
  std::istringstream lines(ran.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  EXPECT_TRUE(contains(nibble({"eval", "-h"}).out, "tokens in a window (default: 512)"));
}

TEST(program, wrong_usage_ends_with_2_and_a_sentence) {
  expect_error(nibble({}), 2, "no command was given.");
  expect_error(nibble({"rnu"}), 2, "Did you mean \"run\"?");
  expect_error(nibble({"--frob"}), 2, "--frob");
  expect_error(nibble({"run"}), 2, "run needs MODEL");
  expect_error(nibble({"run", "fake", "--frob"}), 2, "run has no option \"--frob\".");
  expect_error(nibble({"run", "fake", "-p", "a", "b"}), 2, "does not expect \"b\"");
  expect_error(nibble({"run", "fake", "-p", "a", "--isa", "sse"}), 2, "--isa");
  expect_error(nibble({"run", "fake", "-p", "a", "--device", "gpu"}), 2, "--device");
  expect_error(nibble({"run", "fake", "-p", "a", "--tokens", "1"}), 2, "--tokens stands alone");
  expect_error(nibble({"logits", "fake", "--tokens", "1,a"}), 2, "--tokens");
  expect_error(nibble({"logits", "fake", "--tokens", "258"}), 2, "there is no token 258");
  expect_error(nibble({"compare", "fake"}), 2, "compare needs a second model");
  expect_error(nibble({"chat", "fake", "--json"}), 2, "chat has no JSON form");
  expect_error(nibble({"bench", "-o", "xml"}), 2, "md, csv, json");
  expect_error(nibble({"bench", "fake", "-p", "0", "-n", "0"}), 2,
               "bench has nothing to measure: -p and -n are both 0.");
  expect_error(nibble({"run", "fake", "-p", "a", "--temp", "1e99"}), 2,
               "--temp: expected a number from 0 to 1000, found 1e99.");
  expect_error(nibble({"run", "fake", "-p", "a", "--system", "s"}), 2,
               "--system is a message of the chat template: give --chat too");
  expect_error(nibble({"compare", "fake", "--left", "--frob"}), 2,
               "--left has no option \"--frob\".");
  expect_error(nibble({"logits", "fake", "--tokens", "1,,2"}), 2,
               "--tokens: expected token ids like 1,2,3, found \"\".");
  expect_error(nibble({"logits", "fake", "--tokens", "1", "--out", "-", "--json"}), 2,
               "--out - and --json both write to stdout");
}

TEST(program, a_refusal_ends_with_1_and_one_harmless_line) {
  expect_error(nibble({"run", "nowhere", "-p", "a"}), 1, "nowhere: there is no such file");
  expect_error(nibble({"run", "fake", "-p", "a", "--isa", "amx"}), 1, "this machine has no AMX");
  expect_error(nibble({"run", "fake-broken", "-p", "a"}), 1, "the header\\nis \\x1b[31mbroken.");
  expect_error(nibble({"weights", "fake", "nothing"}), 1, "there is no module \"nothing\"");
  expect_error(nibble({"eval", "fake", "/nowhere.txt"}), 1, "/nowhere.txt: could not be opened");
}

TEST(program, text_that_is_not_utf8_is_refused) {
  expect_error(nibble({"run", "fake", "-p", "a\xff"}), 1,
               "the prompt is not UTF-8 at byte 1 (0xff).");
  expect_error(nibble({"run", "fake", "--chat", "-p", "a\xe2\x82"}), 1, "the prompt is not UTF-8");
  expect_error(nibble({"chat", "fake", "--system", "\xff"}), 1, "--system is not UTF-8 at byte 0");
  const Ran ran = nibble({"chat", "fake", "-n", "1"}, "\xc3(\n/system \xff\nfine\n");
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.out, "word0\n");
  EXPECT_EQ(ran.err,
            "error: the line is not UTF-8 at byte 0 (0xc3).\n"
            "error: the line is not UTF-8 at byte 8 (0xff).\n");
}

TEST(program, the_version_has_a_line_each_and_a_json_form) {
  EXPECT_TRUE(contains(nibble({"--version"}).out, "nibble 0.1.0\ncommit    0123456\n"));
  EXPECT_EQ(json_of(nibble({"--version", "--json"}))["isas_compiled"], (Json{"reference", "avx2"}));
}

// --- run and chat --------------------------------------------------------------------------------

TEST(program, run_prints_the_answer_alone_and_timings_on_stderr) {
  const Ran ran = nibble({"run", "fake", "-p", "hi", "-n", "3"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.out, "word0 word1 word2\n");
  EXPECT_EQ(ran.err,
            "prompt: 3 tokens in 0.50 s (6.0 tokens/s); generated: 3 tokens in 2.00 s (1.5 "
            "tokens/s); ended by: stop\n");
  EXPECT_EQ(nibble({"run", "fake", "-p", "hi", "-q"}).err, "");
}

TEST(program, run_prints_ids_where_there_is_no_tokenizer_to_make_text) {
  EXPECT_EQ(nibble({"run", "fake-without-tokenizer", "--tokens", "1,2", "-n", "3"}).out, "0,1,2\n");
  EXPECT_EQ(nibble({"run", "fake", "--tokens", "1,2", "-n", "3"}).out, "word0 word1 word2\n");
}

TEST(program, run_reads_its_prompt_from_a_pipe) {
  for (const auto& arguments : {std::vector<std::string>{"run", "fake", "--json"},
                                std::vector<std::string>{"run", "fake", "--json", "-p", "-"}}) {
    EXPECT_EQ(json_of(nibble(arguments, "abc\n"))["timings"]["prompt_tokens"], 4);
  }
  expect_error(nibble({"run", "fake"}), 2, "stdin was empty");
}

TEST(program, run_as_json_is_one_document) {
  const Json json =
      json_of(nibble({"run", "packaged", "--tokens", "1,2", "--json", "--stop", "[x]"}));
  EXPECT_EQ(json["text"], "word0 word1 word2 word3 word4|[x]");
  EXPECT_EQ(json["tokens"].size(), 5u);
  EXPECT_EQ(json["finish"], "stop");
  EXPECT_EQ(json["timings"]["prompt_tokens"], 2);
}

TEST(program, a_chat_prompt_goes_through_the_template) {
  const Json json =
      json_of(nibble({"run", "fake", "--chat", "--system", "s", "-p", "hi", "--json"}));
  const std::string rendered =
      "[\n  {\n    \"role\": \"system\",\n    \"content\": \"s\"\n  },\n  {\n    \"role\": "
      "\"user\",\n    \"content\": \"hi\"\n  }\n]\n";
  EXPECT_EQ(json["timings"]["prompt_tokens"], rendered.size());
}

TEST(program, ctrl_c_ends_an_answer_with_130) {
  Spawn spawn{{NIBBLE_PROGRAM, "run", "fake-slow", "-p", "hi"}};
  spawn.interrupt_early = true;
  const Ran ran = run(spawn);
  EXPECT_EQ(ran.exit_code, 130);
  EXPECT_LT(ran.seconds, 10);
  EXPECT_EQ(ran.out.back(), '\n');
  EXPECT_TRUE(contains(ran.err, "ended by: cancelled")) << ran.err;
}

TEST(program, a_closed_pipe_ends_quietly) {
  Spawn spawn{{NIBBLE_PROGRAM, "run", "fake-slow", "-p", "hi", "-q"}};
  spawn.close_stdout_early = true;
  const Ran ran = run(spawn);
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.err, "");
  EXPECT_LT(ran.seconds, 10);
}

TEST(program, a_full_disk_is_said) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  const std::string command = std::string(NIBBLE_PROGRAM) + " tokenize fake hi > /dev/full";
  const Ran ran = run({{"/bin/sh", "-c", command}});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_TRUE(contains(ran.err, "error: stdout could not be written"));
}

TEST(program, a_limit_on_the_size_of_files_is_an_error_and_no_signal) {
  const std::string path = testing::TempDir() + "nibble_large.npy";
  const Ran ran = run({{"/bin/sh", "-c",
                        "ulimit -f 1; " + std::string(NIBBLE_PROGRAM) +
                            " logits fake --tokens 65,66,67 --out " + path}});
  expect_error(ran, 1, path + ": could not be written: File too large");
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
}

TEST(program, an_option_without_effect_is_said) {
  const auto said = [](const std::vector<std::string>& arguments) {
    const Ran ran = nibble(arguments);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return ran.err;
  };
  EXPECT_EQ(said({"verify", "fake", "--threads", "2", "--override", "a=b"}),
            "warning: --threads has no effect: verify reads the files and runs nothing\n");
  EXPECT_EQ(said({"verify", "fake", "--threads", "2", "-q"}), "");
  EXPECT_EQ(
      said({"weights", "fake", "lm_head", "--load-format", "dummy"}),
      "warning: --load-format has no effect: a weight is the same however the model is run\n");
  EXPECT_EQ(said({"tokenize", "fake", "a", "--tools", "/nowhere"}),
            "warning: --tools has no effect: it belongs to --messages, which is not given\n");
  EXPECT_EQ(said({"compare", "fake", "fake", "-p", "a", "--tokens", "1"}),
            "warning: --prompt has no effect: --tokens replaces it\n");
  EXPECT_TRUE(
      contains(said({"bench", "-n", "3", "-r", "1"}),
               "warning: --n-gen has no effect: it is about a MODEL, and none was named\n"));
  EXPECT_TRUE(contains(said({"bench", "fake", "--json", "-o", "csv"}),
                       "warning: --output has no effect: --json replaces it\n"));
  EXPECT_EQ(said({"bench", "fake", "-n", "0", "--json", "-o", "json"}).find("no effect"),
            std::string::npos);
  expect_error(nibble({"fit", "fake", "--tp", "2"}), 1, "--tp 2: this version runs on one rank");
}

TEST(program, no_file_takes_the_place_of_a_closed_descriptor) {
  const std::string path = testing::TempDir() + "nibble_closed.npy";
  const auto shell = [](const std::string& command) {
    return run({{"/bin/sh", "-c", std::string(NIBBLE_PROGRAM) + " " + command}});
  };
  EXPECT_EQ(shell("weights fake lm_head --out " + path + " >&- 2>&-").exit_code, 0);
  EXPECT_EQ(std::filesystem::file_size(path), 128u + 24u) << "a note went into it";
  std::filesystem::remove(path);
  expect_error(shell("tokenize fake a >&-"), 1, "stdout could not be written: Bad file descriptor");
  expect_error(shell("tokenize fake <&-"), 1, "stdin could not be read: Bad file descriptor");
}

TEST(program, chat_answers_lines_and_obeys_its_commands) {
  const std::string saved = testing::TempDir() + "nibble_saved.json";
  const Ran ran = nibble({"chat", "fake", "-n", "2"},
                         "hello\nsecond \\\nline\n/save " + saved + "\n/nope\n/quit\nnever\n");
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.out, "word0 word1\nword0 word1\n");
  EXPECT_TRUE(contains(ran.err, "error: there is no /nope")) << ran.err;
  std::ifstream file(saved);
  const Json json = Json::parse(file, nullptr, false);
  ASSERT_EQ(json.size(), 4u);
  EXPECT_EQ(json[2]["content"], "second \nline");
  EXPECT_EQ(json[3]["role"], "assistant");
  std::filesystem::remove(saved);
}

TEST(program, what_chat_cannot_save_leaves_the_file_as_it_was) {
  const Ran ran = nibble({"chat", "fake", "-n", "1"}, "/save /dev/full\n/save /nowhere/a\n");
  EXPECT_TRUE(contains(ran.err, "error: /dev/full: could not be written: No space left"))
      << ran.err;
  EXPECT_TRUE(contains(ran.err, "error: /nowhere/a: could not be written: No such file"));
  EXPECT_FALSE(contains(ran.err, "saved"));
}

TEST(program, chat_says_when_the_context_is_full_and_goes_on) {
  const Ran ran = nibble({"chat", "fake", "-n", "1"}, std::string(600, 'x') + "\nshort\n");
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.out, "word0\n");
  EXPECT_TRUE(contains(ran.err, "error: the conversation has")) << ran.err;
}

TEST(program, in_a_chat_ctrl_c_stops_the_answer_and_not_the_program) {
  if (!has_terminals()) GTEST_SKIP() << "this system gives no pseudo-terminals";
  Spawn spawn{{NIBBLE_PROGRAM, "chat", "fake-slow"}};
  spawn.environment = {"TERM=xterm", "XDG_STATE_HOME=" + testing::TempDir()};
  const Ran ran = run_on_terminal(spawn, {{"> ", "hello\n"},
                                          {"word5", "\x03"},
                                          {"\n> ", "half\x03"},
                                          {"(/quit or Ctrl-D ends)", "\x1b[A"},  // up: history
                                          {"hello", "\n"},
                                          {"word5", "\x03"},
                                          {"\n> ", "\x04"}});
  EXPECT_EQ(ran.signal, 0);
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  EXPECT_FALSE(contains(ran.out, "word1000")) << ran.out;
}

TEST(program, colors_are_for_terminals_without_no_color) {
  if (!has_terminals()) GTEST_SKIP() << "this system gives no pseudo-terminals";
  Spawn spawn{{NIBBLE_PROGRAM, "run", "nowhere", "-p", "a"}};
  spawn.environment = {"TERM=xterm"};
  EXPECT_TRUE(contains(run_on_terminal(spawn, {}).out, "\x1b[1;31merror: \x1b[0m"));
  spawn.environment = {"TERM=xterm", "NO_COLOR=1"};
  EXPECT_EQ(run_on_terminal(spawn, {}).out.rfind("error: ", 0), 0u);
  spawn.environment = {"TERM=dumb"};
  EXPECT_EQ(run_on_terminal(spawn, {}).out.rfind("error: ", 0), 0u);
}

TEST(program, long_work_draws_a_bar_on_a_terminal_and_plain_lines_elsewhere) {
  if (!has_terminals()) GTEST_SKIP() << "this system gives no pseudo-terminals";
  Spawn spawn{{NIBBLE_PROGRAM, "verify", "fake-slow"}};
  spawn.environment = {"TERM=xterm"};
  const Ran terminal = run_on_terminal(spawn, {});
  EXPECT_TRUE(contains(terminal.out, "\r\x1b[Kreading  [====")) << terminal.out;
  EXPECT_TRUE(contains(terminal.out, " left")) << terminal.out;
  spawn.columns = 30;  // a line that wraps could not be taken off again
  const std::string narrow = run_on_terminal(spawn, {}).out;
  for (size_t at = narrow.find("\r\x1b[K"); at != std::string::npos;) {
    const size_t next = narrow.find("\r\x1b[K", at + 1);
    EXPECT_LE(narrow.substr(at + 4, next == std::string::npos ? 0 : next - at - 4).size(), 29u);
    at = next;
  }
  EXPECT_TRUE(contains(narrow, "\r\x1b[Kreading   ")) << narrow;
  const Ran elsewhere = run(spawn);
  EXPECT_TRUE(contains(elsewhere.err, "reading   ")) << elsewhere.err;
  EXPECT_FALSE(contains(elsewhere.err, "\x1b")) << elsewhere.err;
  spawn.arguments.push_back("--quiet");
  EXPECT_EQ(run(spawn).err, "");
}

TEST(program, ctrl_c_ends_long_work_with_130) {
  if (!has_terminals()) GTEST_SKIP() << "this system gives no pseudo-terminals";
  Spawn spawn{{NIBBLE_PROGRAM, "verify", "fake-slow"}};
  spawn.environment = {"TERM=xterm"};
  const Ran ran = run_on_terminal(spawn, {{"reading", "\x03"}});
  EXPECT_EQ(ran.exit_code, 130) << ran.out;
  EXPECT_FALSE(contains(ran.out, "error")) << ran.out;
}

// --- the rest ----------------------------------------------------------------------------------

TEST(program, inspect_groups_layers_and_names_kernels_once) {
  const Ran ran = nibble({"inspect", "fake"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_TRUE(contains(ran.out, "model.layers.{0-2}.self_attn.q_proj")) << ran.out;
  EXPECT_TRUE(contains(ran.out, "tokens 1-16    matmul_f32_s4g128_f32_avx2"));
  EXPECT_TRUE(contains(ran.out, "tokens 17-     matmul_bf16_s4g128_f32_avx2"));
  EXPECT_TRUE(contains(ran.out, "needs AMX; this machine has none (6 layers)"));
  const Ran verbose = nibble({"inspect", "fake", "-v"});
  EXPECT_TRUE(contains(verbose.out, "model.layers.2.self_attn.q_proj")) << verbose.out;
}

TEST(program, inspect_as_json_has_the_keys_of_the_contract) {
  const Json json = json_of(nibble({"inspect", "fake-warns", "--json"}));
  for (const char* key : {"architecture", "scheme", "layers", "kv", "tensors", "memory", "notes",
                          "warnings", "problems"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  for (const char* key : {"name", "scheme", "format", "activation", "packing", "kernel", "refused",
                          "bytes_disk", "bytes_memory"}) {
    EXPECT_TRUE(json["layers"][0].contains(key)) << key;
  }
  EXPECT_EQ(json["layers"][0]["kernel"][1]["m"], "17-");
  EXPECT_EQ(json["layers"][0]["refused"][0]["why"], "needs AMX; this machine has none");
  EXPECT_EQ(json["kv"][0]["k_source"], "default");
  EXPECT_EQ(json["tensors"]["unused"][0]["reason"], "computed from the config");
}

TEST(program, inspect_with_problems_prints_the_plan_and_ends_with_1) {
  for (const char* json : {"--json", "-q"}) {
    const Ran ran = nibble({"inspect", "fake-problem", json});
    EXPECT_EQ(ran.exit_code, 1);
    EXPECT_TRUE(contains(ran.out, "lm_head: no kernel takes it"));
    EXPECT_EQ(ran.err, "error: lm_head: no kernel takes it\n");
  }
}

TEST(program, inspect_as_json_prints_a_document_even_without_a_plan) {
  const Ran ran = nibble({"inspect", "nowhere", "--json"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_EQ(json_of(ran)["problems"].size(), 1u);
  EXPECT_TRUE(contains(ran.err, "error: nowhere: "));
  const Ran usage = nibble({"inspect", "fake", "--device", "tpu", "--json"});
  EXPECT_EQ(usage.exit_code, 2);
  EXPECT_EQ(json_of(usage)["problems"].size(), 1u);
}

TEST(program, warnings_begin_with_warning_and_quiet_hides_them) {
  const std::string line = "warning: config.json: the key \"oddity\" is not known\n";
  EXPECT_TRUE(contains(nibble({"run", "fake-warns", "-p", "a"}).err, line));
  EXPECT_EQ(nibble({"inspect", "fake-warns"}).err, line);
  EXPECT_EQ(nibble({"inspect", "fake-warns", "--quiet"}).err, "");
}

TEST(program, fit_compares_with_the_machine) {
  const Ran ran = nibble({"fit", "fake", "--batch", "1,200", "--json"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_EQ(ran.err,
            "error: fake: 200 sequences of 512 tokens need 1.0 MB and 1.0 MB is available; a "
            "shorter --ctx, fewer sequences or a smaller --kv-cache-dtype needs less.\n");
  const Json json = json_of(ran);
  EXPECT_EQ(json["fits"], false);
  EXPECT_EQ(json["weights"], 1000);
  EXPECT_EQ(json["longest_ctx"], 2048);
  EXPECT_EQ(json["table"][0]["kv"], 5120);
  EXPECT_EQ(json["table"][1]["fits"], false);
}

TEST(program, fits_its_rows_and_the_exit_code_say_the_same) {
  const auto expect_fit = [](std::vector<std::string> arguments, bool fits) {
    arguments.push_back("--json");
    const Ran ran = nibble(arguments);
    const Json json = json_of(ran);
    EXPECT_EQ(ran.exit_code, fits ? 0 : 1) << ran.err;
    EXPECT_EQ(json["fits"], fits);
    EXPECT_EQ(ran.err.empty(), fits) << ran.err;
    return json;
  };
  expect_fit({"fit", "fake"}, true);
  expect_fit({"fit", "fake", "--batch", "16"}, true);
  const Json asked = expect_fit({"fit", "fake", "--ctx", "200000"}, false);
  for (const Json& row : asked["table"]) EXPECT_EQ(row["ctx"], 200000);
  expect_fit({"fit", "fake", "--ctx", "1073741824", "--batch", "65536"}, false);
  // What a model with a problem needs is not known.
  const Json unknown = expect_fit({"fit", "fake-problem"}, false);
  for (const Json& row : unknown["table"]) {
    EXPECT_EQ(row["fits"], false);
  }
}

TEST(program, verify_ends_with_1_when_something_is_wrong) {
  EXPECT_EQ(nibble({"verify", "fake"}).exit_code, 0);
  const Ran ran = nibble({"verify", "fake-problem", "--json"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_EQ(json_of(ran)["findings"][0]["what"], "holds 3 NaN");
  EXPECT_TRUE(contains(ran.err, "error: model.safetensors, a.scales: holds 3 NaN"));
}

TEST(program, weights_go_into_an_npy_file_or_a_summary) {
  const Json json = json_of(nibble({"weights", "fake", "lm_head", "--json"}));
  EXPECT_EQ(json["shape"], (Json{2, 3}));
  EXPECT_EQ(json["min"], -1.0);
  EXPECT_EQ(json["max"], 1.0);
  EXPECT_EQ(json["histogram"][0], 1);
  const std::string path = testing::TempDir() + "nibble_w.npy";
  const Ran ran = nibble({"weights", "fake", "lm_head", "--out", path});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(std::filesystem::file_size(path), 128u + 24u);
  std::filesystem::remove(path);
  expect_error(nibble({"weights", "fake", "lm_head", "--out", "/nowhere/w.npy"}), 1,
               "/nowhere/w.npy: could not be written");
}

TEST(program, logits_show_the_top_5_or_go_into_a_file) {
  const Json json = json_of(nibble({"logits", "fake", "--tokens", "65,66", "--json"}));
  EXPECT_EQ(json["shape"], (Json{2, 258}));
  EXPECT_EQ(json["positions"][0]["top"].size(), 5u);
  EXPECT_EQ(json["positions"][0]["top"][0]["id"], 65);
  EXPECT_EQ(json["positions"][0]["top"][1]["id"], 64);  // of equal ones the lower
  const std::string path = testing::TempDir() + "nibble_l.npy";
  EXPECT_EQ(nibble({"logits", "fake", "--tokens", "65,66", "--out", path}).out, "");
  EXPECT_EQ(std::filesystem::file_size(path), 128u + 2u * 258u * 4u);
  std::filesystem::remove(path);
}

TEST(program, a_minus_for_a_file_to_write_is_stdout) {
  const Ran ran = nibble({"logits", "fake", "--tokens", "65,66", "--out", "-"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.out.size(), 128u + 2u * 258u * 4u);
  EXPECT_EQ(ran.out.substr(1, 5), "NUMPY");
  EXPECT_EQ(ran.err, "wrote stdout: float32 (2, 258)\n");
  EXPECT_EQ(nibble({"weights", "fake", "lm_head", "--out", "-"}).out.size(), 128u + 24u);
  EXPECT_FALSE(std::filesystem::exists("-"));
  Spawn spawn{{NIBBLE_PROGRAM, "weights", "fake", "lm_head", "--out", "-", "-q"}};
  spawn.close_stdout_early = true;
  EXPECT_EQ(run(spawn).exit_code, 0);
}

TEST(program, a_share_of_the_limit_above_1_is_explained) {
  const Ran ran = nibble({"bench", "fake", "-p", "7", "-n", "0"});
  EXPECT_TRUE(contains(ran.err, "above 100 % of the limit: what is read lies in the processor's"))
      << ran.err;
  EXPECT_FALSE(contains(nibble({"bench", "fake", "-n", "0"}).err, "above 100 %"));
}

TEST(program, tokenize_prints_ids_then_pieces) {
  EXPECT_EQ(nibble({"tokenize", "fake", "a\n"}).out,
            "257,97,10\n"
            " id  piece\n"
            "257  <s>\n"
            " 97  a\n"
            " 10  \\n\n");
  EXPECT_EQ(nibble({"tokenize", "fake", "a", "--json"}).out, "[257,97]\n");
  EXPECT_EQ(nibble({"tokenize", "fake", "--json"}, "a\n").out, "[257,97,10]\n");
  EXPECT_EQ(nibble({"tokenize", "fake", "--json", ""}).out, "[257]\n");
  EXPECT_EQ(nibble({"tokenize", "fake", "--json", "--", "-a"}).out, "[257,45,97]\n");
}

TEST(program, tokenize_renders_messages) {
  const std::string path = testing::TempDir() + "nibble_messages.json";
  std::ofstream(path) << "[]";
  const Ran ran = nibble({"tokenize", "fake", "--messages", path});
  EXPECT_EQ(ran.out.substr(0, 9), "[]\n91,93\n");
  EXPECT_EQ(nibble({"tokenize", "fake", "--messages", path, "--json"}).out, "[91,93]\n");
  std::filesystem::remove(path);
}

TEST(program, eval_reports_perplexity_and_divergence) {
  EXPECT_EQ(json_of(nibble({"eval", "fake", "-", "--json"}, "abc"))["predictions"], 515);
  const Json json = json_of(nibble({"eval", "fake", "-", "-c", "7", "--reference", "fake",
                                    "--reference-options", "--precision exact", "--json"},
                                   "abc"));
  EXPECT_EQ(json["predictions"], 10);
  EXPECT_EQ(json["reference"]["mean_kl"], 1e-4);
  EXPECT_EQ(json["reference"]["worst"][0]["position"], 2);
}

TEST(program, compare_lists_the_worst_first) {
  const Json json = json_of(nibble({"compare", "fake", "--left", "--isa reference", "--json"}));
  EXPECT_EQ(json["layers"][0]["name"], "broken");
  EXPECT_EQ(json["layers"][0]["weight_error"], nullptr);
  EXPECT_EQ(json["layers"][1]["name"], "bad");
  EXPECT_EQ(json["layers"][2]["name"], "good");
}

TEST(program, bench_writes_markdown_csv_and_json) {
  const Ran markdown = nibble({"bench", "fake", "-p", "512", "-n", "0", "-r", "1"});
  EXPECT_TRUE(contains(markdown.out, "|  test |")) << markdown.out;
  EXPECT_TRUE(contains(markdown.out, "300.50 ± 1.25")) << markdown.out;
  EXPECT_FALSE(contains(markdown.out, "tg128"));
  const Json json =
      json_of(nibble({"bench", "fake", "-p", "512", "-n", "128", "-t", "1,2", "--json"}));
  EXPECT_EQ(json["results"].size(), 4u);
  EXPECT_EQ(json["results"][3]["test"], "tg128");
  EXPECT_EQ(json["results"][3]["threads"], 2);
  for (const char* key : {"tokens_per_second", "stddev", "kernel", "of_limit"}) {
    EXPECT_TRUE(json["results"][0].contains(key)) << key;
  }
  const Json kernels = json_of(nibble({"bench", "-o", "json"}));
  EXPECT_EQ(kernels["machine"]["peak_gops"]["s8"], 400);
  EXPECT_EQ(kernels["results"][0]["us"], 12.5);
  EXPECT_TRUE(contains(nibble({"bench", "fake", "-o", "csv"}).out, ",tg128,100.25,0.5,kernel_b,"));
}

TEST(program, completions_are_accepted_by_their_shells) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Ran made = nibble({"completion", shell});
    EXPECT_EQ(made.exit_code, 0);
    EXPECT_TRUE(contains(made.out, "tokenize")) << shell;
  }
  const std::string command = "bash -c 'eval \"$(" + std::string(NIBBLE_PROGRAM) +
                              " completion bash)\"; COMP_WORDS=(nibble run --isa a); COMP_CWORD=3; "
                              "_nibble; echo \"${COMPREPLY[@]}\"'";
  EXPECT_EQ(run({{"/bin/sh", "-c", command}}).out, "auto avx2 avx512 amx\n");
}

}  // namespace
}  // namespace nibble::cli
