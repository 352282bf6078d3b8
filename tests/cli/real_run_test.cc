// Text, numbers and files that the real program makes of the golden folders.
#include <cmath>

#include "cli/real.h"

namespace nibble::cli {
namespace {

TEST(nibble, greedy_text_does_not_depend_on_threads_or_mmap) {
  for (const std::string& model : {kAwq, kGguf, kFloat}) {
    const auto text = [&](std::vector<std::string> more) {
      std::vector<std::string> arguments = {"run", model, "-p", "The tide", "--temp",
                                            "0",   "-n",  "24", "-q"};
      arguments.insert(arguments.end(), more.begin(), more.end());
      const Ran ran = nibble(arguments);
      EXPECT_EQ(ran.exit_code, 0) << ran.err;
      EXPECT_EQ(ran.err, "");
      return ran.out;
    };
    const std::string first = text({"-t", "1"});
    EXPECT_FALSE(first.empty());
    EXPECT_EQ(first, text({"-t", "2"})) << model;
    EXPECT_EQ(first, text({"-t", "2", "--no-mmap"})) << model;
    EXPECT_EQ(first, text({"-t", "1", "--load-strategy", "eager"})) << model;
  }
}

TEST(nibble, a_prompt_from_a_pipe_is_a_prompt) {
  const std::vector<std::string> common = {"run", kAwq, "--temp", "0", "-n", "8", "-q"};
  std::vector<std::string> direct = common, dash = common;
  direct.insert(direct.end(), {"-p", "The tide"});
  dash.insert(dash.end(), {"-p", "-"});
  const std::string expected = nibble(direct).out;
  EXPECT_FALSE(expected.empty());
  EXPECT_EQ(nibble(common, "The tide\n").out, expected);
  EXPECT_EQ(nibble(dash, "The tide").out, expected);
}

TEST(nibble, tokens_are_a_prompt_to_which_nothing_is_added) {
  const Json ids = json_of(nibble({"tokenize", kAwq, "The tide", "--json"}));
  std::string list;
  for (const Json& id : ids) list += (list.empty() ? "" : ",") + id.dump();
  const std::vector<std::string> common = {"--temp", "0", "-n", "8", "--json", "-q"};
  std::vector<std::string> text = {"run", kAwq, "-p", "The tide"};
  std::vector<std::string> tokens = {"run", kAwq, "--tokens", list};
  text.insert(text.end(), common.begin(), common.end());
  tokens.insert(tokens.end(), common.begin(), common.end());
  const Json a = json_of(nibble(text)), b = json_of(nibble(tokens));
  EXPECT_EQ(a["tokens"], b["tokens"]);
  EXPECT_EQ(b["timings"]["prompt_tokens"], ids.size());
}

TEST(nibble, a_closed_pipe_ends_quietly) {
  Spawn spawn{{NIBBLE_PROGRAM, "run", kAwq, "-p", "The tide", "-q", "-n", "200"}};
  spawn.close_stdout_early = true;
  const Ran ran = run(spawn, 120);
  EXPECT_EQ(ran.signal, 0);
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.err, "");
}

TEST(nibble, tokenize_agrees_with_the_models_own_tool) {
  std::ifstream file(kGolden + "gguf/q4_1/expected/tokenize.json");
  for (const Json& each : Json::parse(file)) {
    const Ran ran = nibble({"tokenize", kGguf, "--json", "--", each["text"]});
    EXPECT_EQ(json_of(ran), each["ids"]) << each["text"];
  }
}

TEST(nibble, tokenize_renders_the_chat_template) {
  const std::string path = temporary("messages.json");
  std::ofstream(path) << "[{\"role\": \"user\", \"content\": \"hello\"}]";
  const Ran ran = nibble({"tokenize", kAwq, "--messages", path});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_TRUE(contains(ran.out, "hello"));
  EXPECT_TRUE(json_of(nibble({"tokenize", kAwq, "--messages", path, "--json"})).is_array());
  fs::remove(path);
}

// The shape a .npy file names, and its data.
struct Npy {
  std::string shape;
  std::vector<float> values;
};

Npy read_npy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream stream;
  stream << file.rdbuf();
  const std::string bytes = stream.str();
  const size_t begin = bytes.find("'shape': "), end = bytes.find(')', begin);
  const size_t data = bytes.find('\n') + 1;
  Npy npy{bytes.substr(begin + 9, end - begin - 8), {}};
  npy.values.resize((bytes.size() - data) / sizeof(float));
  std::memcpy(npy.values.data(), bytes.data() + data, npy.values.size() * sizeof(float));
  fs::remove(path);
  return npy;
}

TEST(nibble, weights_are_written_as_out_by_in) {
  const std::string path = temporary("w.npy");
  const Ran ran =
      nibble({"weights", kAwq, "model.layers.0.mlp.down_proj", "--out", path, "--quiet"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const Npy npy = read_npy(path);
  EXPECT_EQ(npy.shape, "(128, 256)");
  EXPECT_EQ(npy.values.size(), 128u * 256u);
  const Json json = json_of(nibble({"weights", kAwq, "model.layers.0.mlp.down_proj", "--json"}));
  EXPECT_EQ(json["shape"], (Json{128, 256}));
  EXPECT_EQ(json["not_finite"], 0);
}

TEST(nibble, weights_of_a_gguf_file_answer_to_both_names) {
  const Ran own = nibble({"weights", kGguf, "blk.0.attn_v", "--json"});
  const Ran alias = nibble({"weights", kGguf, "model.layers.0.self_attn.v_proj", "--json"});
  EXPECT_EQ(own.exit_code, 0) << own.err;
  EXPECT_EQ(alias.exit_code, 0) << alias.err;
  EXPECT_EQ(json_of(own)["mean"], json_of(alias)["mean"]);
}

TEST(nibble, a_module_that_is_not_there_is_refused_by_name) {
  expect_error(nibble({"weights", kAwq, "model.layers.9.mlp.down_proj"}), 1,
               "model.layers.9.mlp.down_proj");
}

TEST(nibble, logits_are_written_as_tokens_by_vocabulary) {
  const std::string path = temporary("l.npy");
  const Ran ran = nibble({"logits", kAwq, "--tokens", "1,2,3", "--precision", "exact", "--dtype",
                          "f32", "--out", path, "-q"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const Npy npy = read_npy(path);
  EXPECT_EQ(npy.shape, "(3, 288)");
  ASSERT_EQ(npy.values.size(), 3u * 288u);
  for (const float value : npy.values) EXPECT_TRUE(std::isfinite(value));
  // What is shown agrees with what is written.
  const Json json = json_of(nibble(
      {"logits", kAwq, "--tokens", "1,2,3", "--precision", "exact", "--dtype", "f32", "--json"}));
  ASSERT_EQ(json["positions"].size(), 3u);
  const Json& best = json["positions"][2]["top"][0];
  EXPECT_EQ(best["logit"], npy.values[2 * 288 + best["id"].get<size_t>()]);
}

TEST(nibble, a_model_agrees_with_itself) {
  const std::string path = temporary("text.txt");
  std::ofstream(path) << "The tide went out over the flats, and seven shells lay on three stones.";
  const Ran ran = nibble({"eval", kAwq, path, "--ctx", "16", "--reference", kAwq, "--json"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  const Json json = json_of(ran);
  EXPECT_GT(json["perplexity"], 1.0);
  EXPECT_EQ(json["reference"]["perplexity"], json["perplexity"]);
  EXPECT_EQ(json["reference"]["top1_agreement"], 1.0);
  fs::remove(path);
  const Json rows = json_of(nibble({"compare", kAwq, kAwq, "--json"}))["layers"];
  ASSERT_FALSE(rows.empty());
  for (const Json& row : rows) EXPECT_EQ(row["weight_error"], 0.0) << row;
}

TEST(nibble, bench_gives_a_row_for_each_test) {
  const Ran ran = nibble({"bench", kAwq, "-p", "16", "-n", "4", "-t", "1", "-r", "1", "--json"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const Json json = json_of(ran);
  EXPECT_GT(json["machine"]["read_gb_s"], 0);
  EXPECT_FALSE(json["machine"]["peak_gops"].empty());
  ASSERT_EQ(json["results"].size(), 2u);
  EXPECT_EQ(json["results"][0]["test"], "pp16");
  EXPECT_EQ(json["results"][1]["test"], "tg4");
  EXPECT_GT(json["results"][1]["tokens_per_second"], 0);
}

TEST(nibble, chat_answers_from_a_pipe) {
  const Ran ran = nibble({"chat", kAwq, "--temp", "0", "-n", "4", "-q"}, "hello\n/reset\nhello\n");
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  const size_t half = ran.out.size() / 2;
  EXPECT_EQ(ran.out.substr(0, half), ran.out.substr(half)) << "the same after /reset";
}

TEST(nibble, logits_that_cannot_be_written_are_an_error_and_no_interruption) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  std::string tokens = "1";
  for (int i = 0; i < 50; ++i) tokens += ",1";
  expect_error(nibble({"logits", kAwq, "--tokens", tokens, "--out", "/dev/full"}), 1,
               "/dev/full: could not be written");
}

TEST(nibble, chat_without_a_template_is_refused_before_anything_is_typed) {
  const Copy copy(kAwq);
  fs::remove(copy.path() + "/chat_template.jinja");
  expect_error(nibble({"chat", copy.path()}, "hello\n"), 1,
               "put a chat_template.jinja into the folder");
}

TEST(nibble, of_two_models_the_one_with_an_error_is_named) {
  const Copy copy(kAwq);
  fs::resize_file(copy.path() + "/model.safetensors", 5000);
  for (const auto& models : {std::pair(kAwq, copy.path()), {copy.path(), kAwq}}) {
    expect_error(nibble({"compare", models.first, models.second}), 1,
                 "error: " + copy.path() + ": model.safetensors: ");
    expect_error(nibble({"eval", models.first, "-", "--reference", models.second}, "A text."), 1,
                 "error: " + copy.path() + ": model.safetensors: ");
  }
  expect_error(nibble({"compare", kAwq, "/nowhere"}), 1, "error: /nowhere: cannot open");
}

TEST(nibble, ids_are_advised_where_they_are_read) {
  const Copy copy(kFloat);
  fs::remove(copy.path() + "/tokenizer.json");
  const std::string missing = "text needs one";
  const std::string advice = "; --tokens works without a tokenizer";
  expect_error(nibble({"run", copy.path(), "-p", "A"}), 1, missing + advice);
  expect_error(nibble({"tokenize", copy.path(), "A"}), 1, missing + "\n");
  expect_error(nibble({"eval", copy.path(), "-"}, "A"), 1, missing + "\n");
  EXPECT_EQ(nibble({"run", copy.path(), "--tokens", "1,2", "-n", "2"}).exit_code, 0);
}

}  // namespace
}  // namespace nibble::cli
