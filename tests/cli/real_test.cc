// Plans, usage, and what is refused: the real program on the golden folders.
#include "cli/real.h"

namespace nibble::cli {
namespace {

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

TEST(nibble, tensors_that_describe_themselves_need_no_config) {
  const std::string folder = kGolden + "torchao/ints", module = "model.layers.0.self_attn.q_proj";
  const Copy copy(folder);
  std::ifstream in(copy.path() + "/config.json");
  Json config = Json::parse(in);
  in.close();
  config.erase("quantization_config");
  std::ofstream(copy.path() + "/config.json") << config;
  EXPECT_EQ(json_of(nibble({"inspect", copy.path(), "--json"}))["scheme"], "torchao");
  const Ran ran = nibble({"weights", copy.path(), module});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(ran.out, nibble({"weights", folder, module}).out);
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
