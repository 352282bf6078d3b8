// Damaged folders: what verify finds, and what refuses to load.
#include <tuple>

#include "cli/real.h"

namespace nibble::cli {
namespace {

TEST(nibble, verify_finds_nothing_in_a_good_checkpoint) {
  for (const std::string& model : {kAwq, kGguf, kFloat}) {
    const Ran ran = nibble({"verify", model, "--json"});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_TRUE(json_of(ran)["findings"].empty());
    EXPECT_GT(json_of(ran)["bytes"], 0);
  }
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

}  // namespace
}  // namespace nibble::cli
