// The real program on the golden folders: what docs/cli.md promises. Numbers are judged by
// tests/golden_test.cc; here it is exit codes, streams, files and the shapes of documents.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "cli/spawn.h"

namespace nibble::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kGolden = NIBBLE_SOURCE_DIR "/tests/golden/";
const std::string kAwq = kGolden + "awq/g32";
const std::string kGguf = kGolden + "gguf/q4_1/model.gguf";
const std::string kFloat = kGolden + "unquantized/bf16_untied";

Ran nibble(std::vector<std::string> arguments, const std::string& input = "") {
  arguments.insert(arguments.begin(), NIBBLE_PROGRAM);
  Spawn spawn{std::move(arguments)};
  spawn.input = input;
  return run(spawn, 120);
}

Json json_of(const Ran& ran) {
  Json json = Json::parse(ran.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << ran.out << ran.err;
  return json;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void expect_error(const Ran& ran, int exit_code, const std::string& part) {
  EXPECT_EQ(ran.signal, 0);
  EXPECT_EQ(ran.exit_code, exit_code) << ran.err;
  EXPECT_EQ(ran.out, "");
  const size_t at = ran.err.find("error: ");
  ASSERT_NE(at, std::string::npos) << ran.err;
  EXPECT_TRUE(at == 0 || ran.err[at - 1] == '\n') << ran.err;
  EXPECT_EQ(ran.err.find('\n', at), ran.err.size() - 1) << "one line, the last: " << ran.err;
  EXPECT_TRUE(contains(ran.err, part)) << ran.err;
}

// A path of the running test's own: tests run side by side.
std::string temporary(const std::string& name) {
  return testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() + "_" +
         name;
}

// A folder of its own with a copy of a golden one.
class Copy {
 public:
  explicit Copy(const std::string& folder) : path_(temporary("copy")) {
    fs::remove_all(path_);
    fs::copy(folder, path_, fs::copy_options::recursive);
  }
  ~Copy() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(nibble, a_missing_model_is_refused_by_every_command) {
  const std::string none = "/nowhere/model.gguf";
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"run", none, "-p", "a"},
                                             {"chat", none},
                                             {"fit", none},
                                             {"verify", none},
                                             {"weights", none, "lm_head"},
                                             {"logits", none, "--tokens", "1"},
                                             {"tokenize", none, "a"},
                                             {"eval", none, kGolden + "awq/g32/config.json"},
                                             {"compare", none, none},
                                             {"bench", none}}) {
    SCOPED_TRACE(arguments[0]);
    expect_error(nibble(arguments), 1, "/nowhere/model.gguf");
  }
}

TEST(nibble, inspect_without_a_model_prints_a_document_with_the_problem) {
  const Ran ran = nibble({"inspect", "/nowhere", "--json"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_EQ(json_of(ran)["problems"].size(), 1u);
}

TEST(nibble, inspect_spells_formats_and_modules_as_the_checkpoint_does) {
  const Ran ran = nibble({"inspect", kAwq, "--json"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  const Json json = json_of(ran);
  EXPECT_EQ(json["architecture"], "LlamaForCausalLM");
  EXPECT_EQ(json["scheme"], "awq");
  EXPECT_TRUE(json["problems"].empty());
  EXPECT_EQ(json["tensors"]["total"],
            json["tensors"]["used"].get<size_t>() + json["tensors"]["unused"].size());
  bool found = false;
  for (const Json& layer : json["layers"]) {
    for (const char* key : {"name", "scheme", "format", "activation", "packing", "kernel",
                            "refused", "bytes_disk", "bytes_memory"}) {
      EXPECT_TRUE(layer.contains(key)) << key;
    }
    EXPECT_TRUE(layer["kernel"].is_string() || layer["kernel"].is_array()) << layer;
    if (layer["name"] != "model.layers.1.mlp.down_proj") continue;
    found = true;
    EXPECT_EQ(layer["format"], "u4g32+zp");
    EXPECT_EQ(layer["scheme"], "awq");
  }
  EXPECT_TRUE(found);
}

TEST(nibble, inspect_of_a_gguf_file_uses_the_files_names) {
  const Json json = json_of(nibble({"inspect", kGguf, "--json"}));
  bool found = false;
  for (const Json& layer : json["layers"]) {
    found = found || (layer["name"] == "blk.0.attn_q" && layer["format"] == "q4_1");
  }
  EXPECT_TRUE(found) << json["layers"];
  EXPECT_EQ(json["kv"][0]["layer"], "blk.0");
}

TEST(nibble, inspect_asks_about_hardware_that_is_not_here) {
  const Ran ran = nibble({"inspect", kAwq, "--isa", "amx", "--json"});
  EXPECT_EQ(ran.exit_code, json_of(ran)["problems"].empty() ? 0 : 1) << ran.err;
}

TEST(nibble, an_isa_that_this_machine_lacks_is_refused) {
  const Json found = json_of(nibble({"--version", "--json"}))["isas_found"];
  std::ostringstream cpu;  // amx has no kernels yet, so the program does not list it
  cpu << std::ifstream("/proc/cpuinfo").rdbuf();
  for (const std::string isa : {"avx2", "avx512", "amx"}) {
    if (std::find(found.begin(), found.end(), isa) != found.end()) continue;
    if (contains(cpu.str(), " " + isa + "_tile")) continue;
    expect_error(nibble({"run", kAwq, "-p", "a", "--isa", isa}), 1, "--isa " + isa);
    return;
  }
  GTEST_SKIP() << "this machine has every ISA";
}

TEST(nibble, a_device_that_is_not_there_is_refused) {
  const Json devices = json_of(nibble({"--version", "--json"}))["devices_found"];
  for (const Json& device : devices) {
    if (device.get<std::string>().rfind("cuda", 0) == 0) GTEST_SKIP() << "there is a GPU";
  }
  expect_error(nibble({"run", kAwq, "-p", "a", "--device", "cuda"}), 1, "cuda");
}

TEST(nibble, wrong_usage_ends_with_2) {
  expect_error(nibble({"run", kAwq, "--frobnicate"}), 2, "--frobnicate");
  expect_error(nibble({"run", kAwq, "-p", "a", "--isa", "sse"}), 2, "--isa");
  expect_error(nibble({"logits", kAwq, "--tokens", "99999"}), 2, "99999");
}

TEST(nibble, trouble_with_data_ends_with_1) {
  const std::string path = temporary("short.txt");
  std::ofstream(path) << "";
  expect_error(nibble({"eval", kAwq, path}), 1, "two are needed for one prediction");
  std::ofstream(path) << "[{\"role\": 7}]";
  EXPECT_EQ(nibble({"tokenize", kAwq, "--messages", path}).exit_code, 1);
  fs::remove(path);
  expect_error(nibble({"tokenize", kAwq, "--json"}, "\xff"), 1, "is not UTF-8 at byte 0");
  expect_error(nibble({"run", kAwq, "-p", "The tide went out", "--ctx", "2"}), 1,
               "tokens do not fit: the context holds 2");
}

TEST(nibble, an_override_that_nobody_reads_is_said) {
  expect_error(nibble({"inspect", kAwq, "--override", "rms_norm_esp=1e-5"}), 2,
               "--override rms_norm_esp: config.json has no such key and nothing would read it; "
               "did you mean rms_norm_eps?");
  expect_error(nibble({"inspect", kAwq, "--override", "qqqq=1"}), 2,
               "--override qqqq: config.json has no such key and nothing would read it\n");
  expect_error(nibble({"inspect", kAwq, "--override", "rope_scaling.factor_=2"}), 2,
               "--override rope_scaling.factor_");
  const Ran unread = nibble({"inspect", kAwq, "--override", "initializer_range=1"});
  EXPECT_EQ(unread.exit_code, 0);
  EXPECT_EQ(unread.err,
            "warning: --override initializer_range: nothing reads this key of config.json; it has "
            "no effect\n");
  for (const std::string known :
       {"rms_norm_eps=1e-3", "eos_token_id=7", "quantization_config.group_size=32",
        "rope_scaling={\"rope_type\": \"linear\", \"factor\": 2}"}) {
    const Ran ran = nibble({"inspect", kAwq, "--override", known});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_EQ(ran.err, "") << known;
    EXPECT_TRUE(contains(ran.out, "overridden with")) << known;
  }
}

TEST(nibble, a_kernel_that_is_not_there_is_one_sentence) {
  const Ran ran = nibble({"inspect", kAwq, "--kernel", "matmul_*_avx3", "--json"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_LT(ran.err.size(), 250u) << ran.err;
  EXPECT_TRUE(contains(ran.err, "--kernel matmul_*_avx3: none of the ")) << ran.err;
  EXPECT_TRUE(contains(ran.err, "kernels has such a name; the nearest are ")) << ran.err;
  EXPECT_TRUE(contains(ran.err, "matmul_s16_u2g_f32_avx512vnni, ")) << ran.err;
  EXPECT_EQ(json_of(ran)["problems"].size(), 1u);
  EXPECT_EQ(nibble({"run", kAwq, "-p", "a", "--kernel", "nope"}).exit_code, 1);
  // A name that is there but fits no layer: a sentence for each kind of layer, not for each.
  const Json plan = json_of(nibble({"inspect", kFloat, "--kernel", "matvec_*", "--json"}));
  EXPECT_FALSE(plan["problems"].empty());
  EXPECT_LT(plan["problems"].size(), 8u) << plan["problems"];
  EXPECT_TRUE(contains(plan["problems"].dump(), " more: no kernel multiplies a bf16 weight"))
      << plan["problems"];
}

TEST(nibble, a_context_beyond_the_trained_length_is_a_warning) {
  const std::string line = "warning: --ctx 300: the model was trained for 256 tokens\n";
  EXPECT_EQ(nibble({"inspect", kAwq, "--ctx", "300"}).err, line);
  EXPECT_EQ(nibble({"logits", kAwq, "--tokens", "1", "--ctx", "300"}).err, line);
  expect_error(nibble({"logits", kAwq, "--tokens", "1", "--ctx", "300", "--strict"}), 1,
               "--strict: --ctx 300");
}

TEST(nibble, every_legal_number_of_ranks_is_listed) {
  const Json json = json_of(nibble({"inspect", kFloat, "--json"}));
  EXPECT_EQ(json["legal_tp"], (Json{1, 2})) << json["legal_tp"];
  for (const Json& ranks : json["legal_tp"]) {
    EXPECT_EQ(nibble({"inspect", kFloat, "--tp", ranks.dump()}).exit_code, 0);
  }
}

TEST(nibble, a_tensor_with_a_problem_is_neither_used_nor_unused) {
  const Copy copy(kFloat);
  const std::string path = copy.path() + "/config.json";
  std::ifstream in(path);
  Json config = Json::parse(in);
  config["num_hidden_layers"] = 1;  // the tensors of the second layer are no one's
  std::ofstream(path) << config;
  const Json json = json_of(nibble({"inspect", copy.path(), "--json"}));
  const Json& tensors = json["tensors"];
  EXPECT_EQ(tensors["total"].get<int>(), tensors["used"].get<int>() + 9) << tensors;
  EXPECT_EQ(json["problems"].size(), 9u);
}

TEST(nibble, a_file_that_is_cut_short_is_refused_by_name) {
  const Copy copy(kFloat);
  const std::string file = copy.path() + "/model.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1);
  for (const char* command : {"verify", "run", "inspect"}) {
    std::vector<std::string> arguments = {command, copy.path()};
    if (arguments[0] == "run") arguments.insert(arguments.end(), {"-p", "a"});
    const Ran ran = nibble(arguments);
    EXPECT_EQ(ran.exit_code, 1) << command;
    EXPECT_TRUE(contains(ran.err, "error: ")) << command;
    EXPECT_TRUE(contains(ran.err, "model.safetensors")) << ran.err;
  }
}

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

TEST(nibble, verify_finds_nothing_in_a_good_checkpoint) {
  for (const std::string& model : {kAwq, kGguf, kFloat}) {
    const Ran ran = nibble({"verify", model, "--json"});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_TRUE(json_of(ran)["findings"].empty());
    EXPECT_GT(json_of(ran)["bytes"], 0);
  }
}

// Where a tensor's bytes lie in a safetensors file, and how many they are.
std::pair<uint64_t, uint64_t> bytes_of(const std::string& file, const std::string& tensor) {
  std::ifstream in(file, std::ios::binary);
  uint64_t length = 0;
  in.read(reinterpret_cast<char*>(&length), 8);
  std::string header(length, '\0');
  in.read(header.data(), static_cast<std::streamsize>(length));
  const Json range = Json::parse(header)[tensor]["data_offsets"];
  return {8 + length + range[0].get<uint64_t>(),
          range[1].get<uint64_t>() - range[0].get<uint64_t>()};
}

void write_at(const std::string& file, uint64_t offset, const std::string& bytes) {
  std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(static_cast<std::streamoff>(offset));
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// verify --json of a damaged copy: exit code 1, and the only finding.
std::string only_finding(const std::string& model) {
  const Ran ran = nibble({"verify", model, "--json"});
  EXPECT_EQ(ran.exit_code, 1) << ran.out;
  const Json findings = json_of(ran)["findings"];
  EXPECT_EQ(findings.size(), 1u) << findings;
  if (findings.empty()) return "";
  return findings[0]["where"].get<std::string>() + ": " + findings[0]["what"].get<std::string>();
}

TEST(nibble, verify_and_load_refuse_a_scale_that_is_no_number) {
  for (const auto& [folder, tensor, code] :
       {std::tuple{"gptq/b4_g32", "model.layers.0.mlp.up_proj.scales", "\x00\x7e"},
        std::tuple{"awq/g32", "model.layers.0.mlp.up_proj.scales", "\x00\x7c"}}) {
    const Copy copy(kGolden + folder);
    const std::string file = copy.path() + "/model.safetensors";
    write_at(file, bytes_of(file, tensor).first + 6, std::string(code, 2));
    const std::string found = only_finding(copy.path());
    EXPECT_TRUE(contains(found, "model.safetensors: " + std::string(tensor) + ": element 3 of ") &&
                contains(found, "is not a finite number"))
        << found;
    expect_error(nibble({"logits", copy.path(), "--tokens", "1"}), 1,
                 "layer model.layers.0.mlp.up_proj: scales: element (0, 3) is ");
  }
}

TEST(nibble, verify_names_a_layer_once) {
  const Copy copy(kGolden + "fp8/tensor_static");
  const std::string file = copy.path() + "/model.safetensors";
  write_at(file, bytes_of(file, "model.layers.0.mlp.up_proj.weight").first, "\x7f");
  EXPECT_EQ(only_finding(copy.path()),
            "model.layers.0.mlp.up_proj: weight: element (0, 0) is 0x7f, which is no number; the "
            "file is damaged or was quantized with a scale of zero");
}

TEST(nibble, verify_finds_a_scale_of_zero_and_notes_a_negative_one) {
  const Copy copy(kGolden + "gptq/b4_g32");
  const std::string file = copy.path() + "/model.safetensors";
  const uint64_t scales = bytes_of(file, "model.layers.0.mlp.up_proj.scales").first;
  write_at(file, scales + 1, std::string(1, '\xa0'));  // the sign of an f16, and a new exponent
  const Ran negative = nibble({"verify", copy.path(), "--json"});
  EXPECT_EQ(negative.exit_code, 0) << negative.err;
  EXPECT_TRUE(contains(negative.out, "model.layers.0.mlp.up_proj: 1 of 1024 scales are negative"))
      << negative.out;
  write_at(file, scales, std::string(2, '\0'));
  EXPECT_EQ(only_finding(copy.path()),
            "model.layers.0.mlp.up_proj: the scale of output 0, group 0 is 0 although the codes of "
            "the group differ: its weights are lost");
}

TEST(nibble, verify_reads_the_tensors_that_no_layer_multiplies) {
  const Copy copy(kFloat);
  const std::string file = copy.path() + "/model.safetensors";
  write_at(file, bytes_of(file, "model.norm.weight").first, "\xc0\x7f");
  EXPECT_TRUE(contains(only_finding(copy.path()), "model.norm.weight: element 0 of "));

  const Copy gguf(kGolden + "gguf/f16_rope_llama3");
  const std::string model = gguf.path() + "/model.gguf";
  std::ifstream in(model, std::ios::binary);
  std::ostringstream all;
  all << in.rdbuf();
  const float factors[] = {8, 8, 8, 8};  // the slow pairs of rope_freqs.weight
  const size_t at = all.str().find(std::string(reinterpret_cast<const char*>(factors), 16));
  ASSERT_NE(at, std::string::npos);
  write_at(model, at, std::string(4, '\0'));
  EXPECT_TRUE(
      contains(only_finding(model), "rope_freqs.weight holds a number that is not positive"))
      << only_finding(model);
}

TEST(nibble, verify_reads_the_documents_beside_the_weights) {
  const Copy copy(kAwq);
  const auto replace = [&](const std::string& name, const std::string& text) {
    std::ofstream(copy.path() + "/" + name) << text;
  };
  replace("generation_config.json", "{\"eos_token_id\": [2, 5000], \"temperature\": 0.6}");
  EXPECT_EQ(
      only_finding(copy.path()),
      "generation_config.json: eos_token_id: expected a token id below 288, found the integer "
      "5000");
  replace("generation_config.json", "{\"top_p\": 3}");
  EXPECT_TRUE(contains(only_finding(copy.path()), "top-p is 3"));
  expect_error(nibble({"run", copy.path(), "-p", "a"}), 1, "generation_config.json: --top-p is 3");
  replace("generation_config.json", "{\"top_k\": -2}");
  EXPECT_TRUE(contains(only_finding(copy.path()), "top-k is -2"));
  expect_error(nibble({"run", copy.path(), "-p", "a"}), 1, "generation_config.json: --top-k is -2");
  replace("generation_config.json", "{\"top_k\": -1}");  // all, as 0
  EXPECT_EQ(nibble({"verify", copy.path()}).exit_code, 0);
  EXPECT_EQ(nibble({"run", copy.path(), "-p", "a", "-n", "1"}).exit_code, 0);
  replace("generation_config.json", "{}");
  replace("chat_template.jinja", "{% if %}");
  EXPECT_TRUE(contains(only_finding(copy.path()), "chat_template.jinja"))
      << only_finding(copy.path());
  fs::remove(copy.path() + "/chat_template.jinja");
  replace("tokenizer.json", "{\"model\": {\"type\": \"BPE\"}}");
  EXPECT_TRUE(contains(only_finding(copy.path()), "tokenizer.json")) << only_finding(copy.path());
}

TEST(nibble, verify_compares_the_checksums_that_a_download_leaves) {
  // `sha256sum` of the golden file, as a hub's etag.
  const Copy copy(kAwq);
  const std::string file = copy.path() + "/model.safetensors";
  const Ran sum = run({{"/bin/sh", "-c", "sha256sum " + file}});
  if (sum.exit_code != 0) GTEST_SKIP() << "this system has no sha256sum";
  const std::string digest = sum.out.substr(0, 64);
  const fs::path kept = fs::path(copy.path()) / ".cache/huggingface/download";
  fs::create_directories(kept);
  std::ofstream(kept / "model.safetensors.metadata") << "0123abcd\n"
                                                     << digest << "\n1700000000.5\n";
  const Ran good = nibble({"verify", copy.path(), "--json"});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_TRUE(contains(good.out, "SHA-256 of 1 files compared")) << good.out;

  const uint64_t end = fs::file_size(file) - 2;  // a weight's last bit: only the digest can tell
  std::ifstream in(file, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(end));
  const auto byte = static_cast<char>(in.get() ^ 1);
  write_at(file, end, std::string(1, byte));
  EXPECT_TRUE(contains(only_finding(copy.path()), "and " + digest + " when it was downloaded"));

  // A hub's cache: the file is a link to one that is named by its digest.
  fs::remove_all(kept);
  const std::string blob = temporary(digest);
  fs::rename(file, blob);
  const std::string named = testing::TempDir() + digest;
  fs::rename(blob, named);
  fs::create_symlink(named, file);
  EXPECT_TRUE(contains(only_finding(copy.path()), "and " + digest + " when it was downloaded"));
  fs::remove(named);
}

TEST(nibble, inspect_says_where_the_scales_of_the_cache_come_from) {
  const std::string attention = "model.layers.0.self_attn";
  const auto row = [](const std::string& model, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"inspect", model, "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ran ran = nibble(arguments);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return json_of(ran);
  };
  const auto expect_row = [](const Json& json, const Json& expected) {
    EXPECT_EQ(json["kv"][0], expected);
  };
  expect_row(row(kGolden + "kv/e4m3_head", {}), {{"layer", attention},
                                                 {"type", "fp8_e4m3"},
                                                 {"k", nullptr},
                                                 {"v", nullptr},
                                                 {"k_source", attention + ".k_scale"},
                                                 {"v_source", attention + ".v_scale"}});
  const Json plain = row(kFloat, {"--kv-cache-dtype", "fp8_e5m2"});
  expect_row(plain, {{"layer", attention},
                     {"type", "fp8_e5m2"},
                     {"k", 1.0},
                     {"v", 1.0},
                     {"k_source", "default"},
                     {"v_source", "default"}});
  EXPECT_TRUE(contains(plain["notes"].dump(), "stores no scales for it, so they are 1"));
  expect_row(row(kFloat, {"--kv-cache-dtype", "int8"}), {{"layer", attention},
                                                         {"type", "int8"},
                                                         {"k", nullptr},
                                                         {"v", nullptr},
                                                         {"k_source", "each token"},
                                                         {"v_source", "each token"}});
  // Scales without a config that asks for them: found, but not used unless asked for.
  const Json stored = row(kGolden + "fp8/tensor_kv_scales", {});
  EXPECT_EQ(stored["kv"][0]["type"], "f16");
  EXPECT_NEAR(stored["kv"][0]["v"].get<double>(), 0.033, 1e-7);
  EXPECT_EQ(stored["kv"][0]["v_source"], attention + ".v_scale");
  EXPECT_EQ(stored["tensors"]["unused"][0]["reason"],
            "a scale of a quantized KV cache; the cache here is f16");
  const Json used = row(kGolden + "fp8/tensor_kv_scales", {"--kv-cache-dtype", "fp8_e4m3"});
  EXPECT_TRUE(used["tensors"]["unused"].empty());
  const Json old = row(kGolden + "fp8/tensor_kv_scale_old", {"--kv-cache-dtype", "fp8_e4m3"});
  EXPECT_EQ(old["kv"][0]["k_source"], attention + ".kv_scale");
  EXPECT_EQ(old["kv"][0]["v_source"], attention + ".kv_scale");
}

TEST(nibble, a_scale_that_the_cache_needs_is_refused_when_it_is_missing_or_no_number) {
  const Copy copy(kGolden + "kv/e4m3_tensor");
  const std::string file = copy.path() + "/model.safetensors";
  const std::string scale = "model.layers.0.self_attn.v_proj.v_scale";
  write_at(file, bytes_of(file, scale).first, std::string("\x00\x00\xc0\x7f", 4));
  EXPECT_TRUE(contains(only_finding(copy.path()), scale)) << only_finding(copy.path());
  expect_error(nibble({"logits", copy.path(), "--tokens", "1"}), 1, scale + " is nan");
  // Renamed in the header, it is not there. A cache of floats does without.
  std::ifstream in(file, std::ios::binary);
  std::ostringstream all;
  all << in.rdbuf();
  write_at(file, all.str().find("v_proj.v_scale"), "v_proj.w_scale");
  expect_error(nibble({"logits", copy.path(), "--tokens", "1"}), 1,
               "model.layers.0.self_attn.v_scale: the checkpoint has no such tensor, by this or "
               "another name");
}

TEST(nibble, eight_bit_caches_stay_near_floats_and_take_half_the_memory) {
  const auto best = [&](const std::string& type) {
    return json_of(nibble({"logits", kFloat, "--tokens", "5,17,92,140,33,7", "--json",
                           "--kv-cache-dtype", type}))["positions"][5]["top"][0];
  };
  const Json floats = best("f16");
  for (const std::string type : {"fp8_e4m3", "fp8_e5m2", "int8"}) {
    const Json json = best(type);
    EXPECT_NEAR(json["logit"].get<double>(), floats["logit"].get<double>(),
                0.15 * std::fabs(floats["logit"].get<double>()))
        << type;
  }
  const auto per_token = [&](const std::string& type) {
    return json_of(nibble({"fit", kFloat, "--json", "--kv-cache-dtype", type}))["kv_per_token"]
        .get<int>();
  };
  EXPECT_EQ(per_token("fp8_e4m3") * 2, per_token("f16"));
  EXPECT_LT(per_token("int8"), per_token("f16"));
}

TEST(nibble, a_lost_quantization_config_comes_from_the_command_line) {
  const Copy copy(kGolden + "gptq/b4_g32");
  fs::remove(copy.path() + "/quantize_config.json");
  std::ifstream in(copy.path() + "/config.json");
  Json config = Json::parse(in);
  in.close();
  const std::string given = config["quantization_config"].dump();
  expect_error(nibble({"weights", copy.path(), "model.layers.0.self_attn.q_proj",
                       "--quantization-config", given}),
               2,
               "--quantization-config: the checkpoint has its own (config.json: "
               "quantization_config); leave the option out, or change single keys with "
               "--override");
  config.erase("quantization_config");
  std::ofstream(copy.path() + "/config.json") << config;
  const std::string file = copy.path() + "/lost.json";
  std::ofstream(file) << given;
  const std::string module = "model.layers.0.self_attn.q_proj";
  const std::string wanted = nibble({"weights", kGolden + "gptq/b4_g32", module}).out;
  for (const std::string& option : {given, file}) {
    const Ran ran = nibble({"weights", copy.path(), module, "--quantization-config", option});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_EQ(ran.out, wanted);
  }
  expect_error(nibble({"inspect", copy.path(), "--quantization-config", "/nowhere.json"}), 1,
               "--quantization-config /nowhere.json: the file cannot be read");
}

TEST(nibble, fit_knows_the_cache_of_a_token) {
  const Json json = json_of(nibble({"fit", kAwq, "--json"}));
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["model_ctx"], 256);
  EXPECT_GT(json["kv_per_token"], 0);
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

TEST(nibble, warnings_are_lines_and_errors_under_strict) {
  const Copy copy(kAwq);
  const std::string path = copy.path() + "/config.json";
  std::ifstream in(path);
  Json config = Json::parse(in);
  config["quantization_config"]["oddity"] = 7;
  std::ofstream(path) << config;
  const Ran ran = nibble({"inspect", copy.path(), "--json"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(ran.err.rfind("warning: ", 0), 0u) << ran.err;
  EXPECT_TRUE(contains(ran.err, "oddity")) << ran.err;
  EXPECT_TRUE(contains(json_of(ran)["warnings"].dump(), "oddity")) << ran.out;
  EXPECT_EQ(nibble({"inspect", copy.path(), "--quiet"}).err, "");
  const Ran strict = nibble({"inspect", copy.path(), "--strict"});
  EXPECT_EQ(strict.exit_code, 1);
  EXPECT_TRUE(contains(strict.err, "error: ") && contains(strict.err, "oddity")) << strict.err;
}

// Writes `to` over the first `from` of a file.
void rename_in(const std::string& path, const std::string& from, const std::string& to) {
  std::ostringstream all;
  all << std::ifstream(path, std::ios::binary).rdbuf();
  const size_t at = all.str().find(from);
  ASSERT_NE(at, std::string::npos) << from;
  ASSERT_EQ(from.size(), to.size());
  write_at(path, at, to);
}

TEST(nibble, a_missing_embedding_is_missed_by_its_own_name) {
  for (const char* folder : {"gptq/b4_g32", "awq/g32", "auto_round/w4_asym_gptq"}) {
    const Copy copy(kGolden + folder);
    rename_in(copy.path() + "/model.safetensors", "model.embed_tokens.weight",
              "model.embed_tokenz.weight");
    const Ran ran = nibble({"inspect", copy.path(), "-q"});
    EXPECT_EQ(ran.exit_code, 1);
    EXPECT_TRUE(contains(ran.err, "the checkpoint has no tensor model.embed_tokens.weight"))
        << ran.err;
  }
}

TEST(nibble, a_wrong_hidden_size_is_said_once_and_of_the_key) {
  for (const char* folder : {"gptq/b3_g32", "compressed_tensors/w4_g32", "hqq/b1_g32"}) {
    const Copy copy(kGolden + folder);
    rename_in(copy.path() + "/config.json", "\"hidden_size\": 64", "\"hidden_size\": 32");
    const Ran ran = nibble({"inspect", copy.path(), "-q"});
    EXPECT_EQ(ran.err,
              "error: config.json: hidden_size is 32, but "
              "model.layers.0.input_layernorm.weight and 2 more norms have 64 values; take the "
              "config and the weights of one model\n")
        << folder;
    EXPECT_EQ(ran.exit_code, 1);
  }
  expect_error(nibble({"run", kGguf, "-p", "a", "--override", "hidden_size=32"}), 1,
               "llama.embedding_length is 32, but blk.0.attn_norm.weight and");
}

TEST(nibble, a_card_library_that_cannot_be_used_is_said_and_the_cpu_runs) {
  const auto with = [](const std::string& library, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), NIBBLE_PROGRAM);
    Spawn spawn{std::move(arguments)};
    spawn.environment = {"NIBBLE_CUDA_LIBRARY=" + library};
    const Ran ran = run(spawn, 120);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return ran;
  };
  const std::string none = "/nowhere/libnibble_cuda.so";
  const std::string sentence =
      "the cards of this machine were not looked for: NIBBLE_CUDA_LIBRARY names " + none;
  EXPECT_TRUE(
      contains(with(none, {"run", kAwq, "-p", "a", "-n", "1"}).err, "warning: " + sentence));
  EXPECT_FALSE(
      contains(with(none, {"run", kAwq, "-p", "a", "-n", "1", "--device", "cpu"}).err, "warning"));
  const std::string other = kAwq + "/config.json";  // which is no library
  for (const std::string& library : {none, other}) {
    const Json plan = json_of(with(library, {"inspect", kAwq, "--device", "cuda", "--json"}));
    EXPECT_TRUE(contains(plan["warnings"].dump(), library)) << plan["warnings"];
    EXPECT_TRUE(contains(plan["hardware"], "H200"));
    EXPECT_TRUE(contains(with(library, {"fit", kAwq, "--device", "cuda"}).err, library));
  }
}

TEST(nibble, logits_that_cannot_be_written_are_an_error_and_no_interruption) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  std::string tokens = "1";
  for (int i = 0; i < 50; ++i) tokens += ",1";
  expect_error(nibble({"logits", kAwq, "--tokens", tokens, "--out", "/dev/full"}), 1,
               "/dev/full: could not be written");
}

TEST(nibble, an_option_that_the_hardware_makes_idle_is_a_warning) {
  const std::string eager = "--enforce-eager has no effect: only on a card are steps recorded";
  const Ran cpu = nibble({"run", kAwq, "-p", "a", "-n", "1", "--device", "cpu", "--enforce-eager"});
  EXPECT_EQ(cpu.exit_code, 0);
  EXPECT_TRUE(contains(cpu.err, "warning: " + eager + "\n")) << cpu.err;
  expect_error(nibble({"run", kAwq, "-p", "a", "--device", "cpu", "--enforce-eager", "--strict"}),
               1, "--strict: " + eager);
  EXPECT_EQ(nibble({"inspect", kAwq, "--device", "cuda", "--enforce-eager"}).err, "");
  const Json card =
      json_of(nibble({"inspect", kAwq, "--device", "cuda", "--isa", "avx2", "--json"}));
  EXPECT_TRUE(contains(card["warnings"].dump(), "--isa avx2 has no effect: it is about CPUs"));
  const Ran dummy = nibble({"run", kAwq, "--tokens", "1", "-n", "1", "--device", "cpu",
                            "--load-format", "dummy", "--load-strategy", "prefetch"});
  EXPECT_TRUE(contains(dummy.err, "--load-strategy prefetch has no effect: dummy weights are not"))
      << dummy.err;
}

TEST(nibble, chat_without_a_template_is_refused_before_anything_is_typed) {
  const Copy copy(kAwq);
  fs::remove(copy.path() + "/chat_template.jinja");
  expect_error(nibble({"chat", copy.path()}, "hello\n"), 1,
               "put a chat_template.jinja into the folder");
}

TEST(nibble, threads_that_the_system_does_not_start_are_an_error) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs more addresses than the limit leaves";
#endif
  // 4095 stacks do not fit.
  const std::string command = "ulimit -v 2000000; exec " + std::string(NIBBLE_PROGRAM) + " run " +
                              kAwq + " --tokens 1 -n 1 --device cpu --threads 4096";
  expect_error(run({{"/bin/sh", "-c", command}}, 120), 1, "--threads 4096: the system started ");
}

}  // namespace
}  // namespace nibble::cli
