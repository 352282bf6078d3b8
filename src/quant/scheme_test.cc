#include "quant/scheme.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

std::string where_of(std::string_view config_text, std::string_view hf = "",
                     std::string_view sidecar = "") {
  const base::Json config = json(config_text);
  const base::Json hf_json = hf.empty() ? base::Json() : json(hf);
  const base::Json sidecar_json = sidecar.empty() ? base::Json() : json(sidecar);
  const auto found =
      find_quantization(&config, hf.empty() ? nullptr : &hf_json,
                        sidecar.empty() ? nullptr : &sidecar_json, "quantize_config.json");
  if (!found) return found.error().message;
  return found->dictionary == nullptr ? "none" : found->where + " " + found->method;
}

TEST(scheme, the_dictionary_is_found_in_order_of_places) {
  EXPECT_EQ(where_of("{}"), "none");
  EXPECT_EQ(where_of(R"({"quantization_config": null})"), "none");
  EXPECT_EQ(where_of(R"({"compression_config": {"quant_method": "GGUF"},
                         "quantization_config": {"quant_method": "GGUF"}})"),
            "config.json: quantization_config gguf");
  EXPECT_EQ(where_of(R"({"compression_config": {"quant_method": "ZZ_8"}})", R"({"a": 1})"),
            "config.json: compression_config zz-8");
  EXPECT_EQ(where_of(R"({"text_config": {"quantization_config": {"quant_method": "zz8"}}})",
                     R"({"a": 1})"),
            "config.json: text_config: quantization_config zz8");
  EXPECT_EQ(where_of("{}", R"({"producer": {"name": "modelopt"}})", R"({"w_bit": 4})"),
            "hf_quant_config.json modelopt");
  EXPECT_EQ(where_of("{}", "", R"({"w_bit": 4, "version": "GEMM"})"), "quantize_config.json awq");
  EXPECT_EQ(where_of("{}", "", R"({"bits": 4, "desc_act": true})"), "quantize_config.json gptq");
}

TEST(scheme, a_dictionary_inside_one_of_the_same_name_is_the_one_that_counts) {
  EXPECT_EQ(where_of(R"({"quantization_config": {
                           "quantization_config": {"config_groups": {}, "quant_method": "ZZ_8"},
                           "sparsity_config": null}})"),
            "config.json: quantization_config: quantization_config zz-8");
  EXPECT_EQ(where_of(R"({"compression_config": {"quantization_config": {"config_groups": {}},
                                                "sparsity_config": {"format": "dense"}}})"),
            "config.json: compression_config: quantization_config compressed-tensors");
  EXPECT_EQ(where_of(R"({"quantization_config": {"quantization_config": null,
                                                 "sparsity_config": {"format": "dense"}}})"),
            "config.json: quantization_config compressed-tensors");
}

TEST(scheme, bitsandbytes_named_itself_by_its_flags_alone_before_there_were_methods) {
  for (const auto& [text, method] : std::vector<std::array<std::string, 2>>{
           {R"({"load_in_8bit": true, "llm_int8_threshold": 6.0})", "bitsandbytes"},
           {R"({"load_in_4bit": true, "bnb_4bit_quant_type": "nf4"})", "bitsandbytes"},
           {R"({"load_in_4bit": false, "load_in_8bit": false})", ""}}) {
    const base::Json config = json(R"({"quantization_config": )" + text + "}");
    const auto found = find_quantization(&config, nullptr, nullptr, "");
    ASSERT_TRUE(found) << message(found);
    EXPECT_EQ(found->method, method) << text;
  }
}

TEST(scheme, two_dictionaries_in_one_config_must_agree) {
  EXPECT_EQ(where_of(R"({"quantization_config": {"quant_method": "zz8"},
                         "text_config": {"quantization_config": {"quant_method": "zz8"}}})"),
            "config.json: quantization_config zz8");
  EXPECT_EQ(where_of(R"({"quantization_config": {"quant_method": "zz8"},
                         "text_config": {"quantization_config": {"quant_method": "zz9"}}})"),
            "config.json: quantization_config and config.json: text_config: quantization_config "
            "differ; keep the one that is true");
  EXPECT_EQ(where_of(R"({"quantization_config": {"quant_method": "zz8", "bits": 4, "x": null},
                         "text_config": {"quantization_config": {"bits": 4.0,
                                                                 "quant_method": "zz8"}}})"),
            "config.json: quantization_config zz8");
  EXPECT_EQ(where_of(R"({"quantization_config": {"quant_method": "zz8", "bits": 4},
                         "compression_config": {"quant_method": "zz8", "bits": 8}})"),
            "config.json: quantization_config and config.json: compression_config differ; keep the "
            "one that is true");
}

TEST(scheme, what_an_outranked_sidecar_says_otherwise_is_told) {
  const base::Json config =
      json(R"({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64}})", "c");
  const base::Json sidecar =
      json(R"({"w_bit": 8, "q_group_size": 64, "zero_point": true})", "quant_config.json");
  const auto found = find_quantization(&config, nullptr, &sidecar, "quant_config.json");
  ASSERT_TRUE(found) << message(found);
  EXPECT_EQ(found->warnings,
            std::vector<std::string>{"quant_config.json: bits is 8, but config.json: "
                                     "quantization_config says 4; the latter counts"});
}

TEST(scheme, a_dictionary_of_the_wrong_type_is_refused) {
  EXPECT_EQ(where_of(R"({"quantization_config": "int4"})"),
            "config.json: quantization_config: expected an object, found a string (\"int4\")");
  EXPECT_EQ(where_of(R"({"quantization_config": {"quant_method": 8}})"),
            "config.json: quantization_config: quant_method: expected a string, found " +
                base::Json(8).describe());
}

TEST(scheme, an_unknown_method_is_refused_with_the_tensors_it_would_touch) {
  TestCheckpoint checkpoint;
  checkpoint.add<uint8_t>("model.layers.0.mlp.up_proj.weight", DType::kE4M3, {1, 2}, {0, 0});
  checkpoint.add<uint8_t>("model.layers.0.mlp.down_proj.weight", DType::kE4M3, {1, 2}, {0, 0});
  const auto config = parse_config(checkpoint, R"({"quant_method": "zz8"})");
  ASSERT_FALSE(config);
  EXPECT_EQ(message(config).substr(0, message(config).rfind(':')),
            "config.json: quantization_config: quant_method is \"zz8\", which is not known (2 "
            "tensors are stored quantized, the first is model.layers.0.mlp.up_proj.weight "
            "(e4m3)); known are");
}

TEST(scheme, a_request_must_agree_with_the_checkpoint) {
  CheckpointFacts facts;
  facts.method = "zz8";
  facts.quantization_where = "config.json: quantization_config";
  EXPECT_EQ(message(detect_scheme(facts, "gguf")),
            "the scheme \"gguf\" was asked for, but config.json: quantization_config says \"zz8\"");
  facts.gguf = true;
  facts.method.clear();
  EXPECT_EQ((*detect_scheme(facts, "gguf"))->name, "gguf");
  EXPECT_EQ(message(detect_scheme(facts, "unquantized")),
            "the scheme \"unquantized\" was asked for, but the file says \"gguf\"");
  EXPECT_EQ(message(detect_scheme(facts, "nonsense"))
                .rfind("the scheme \"nonsense\" was asked for, but is not known; known are: ", 0),
            0u);
}

// What is said when `requested` is asked over a checkpoint with one weight of this type.
std::string asked(std::string_view requested, std::string_view method, const std::string& suffix,
                  DType dtype) {
  TestCheckpoint checkpoint;
  checkpoint.add_bytes("model.layers.0.mlp.up_proj." + suffix, dtype, {0}, "");
  const base::Json config =
      json(R"({"quantization_config": {"quant_method": ")" + std::string(method) + "\"}}");
  const auto source = find_quantization(&config, nullptr, nullptr, "");
  CheckpointFacts facts;
  facts.quantization = source->dictionary;
  facts.quantization_where = source->where;
  facts.method = source->method;
  facts.tensors = checkpoint.lookup();
  const auto scheme = detect_scheme(facts, requested);
  if (!scheme) return message(scheme);
  const std::string taken = taken_for(facts, requested, **scheme);
  return taken.empty() ? std::string((*scheme)->name) : taken;
}

TEST(scheme, names_that_people_type_are_said_to_be_taken_for_something) {
  const std::string q = "config.json: quantization_config: quant_method ";
  EXPECT_EQ(asked("", "gptq_marlin", "qweight", DType::kS32), q + "gptq_marlin was taken for gptq");
  EXPECT_EQ(asked("", "compressed_tensors", "weight", DType::kS8), "compressed-tensors");
  EXPECT_EQ(asked("", "auto-round:auto_gptq", "qweight", DType::kS32),
            q + "auto-round:auto_gptq was taken for auto-round");
  EXPECT_EQ(asked("GPTQ", "auto_gptq", "qweight", DType::kS32), "gptq");
  EXPECT_EQ(asked("GPTQ", "autogptq", "qweight", DType::kS32), "gptq");
  EXPECT_EQ(asked("fp8", "fp8", "weight", DType::kE4M3), "fp8");
  struct Case {
    std::string_view requested, method;
    DType stored;
  };
  for (const Case& c : std::vector<Case>{{"gptq_marlin", "gptq", DType::kS32},
                                         {"marlin", "gptq", DType::kS32},
                                         {"marlin", "awq", DType::kS32},
                                         {"moe_wna16", "awq", DType::kS32},
                                         {"ipex", "gptq", DType::kS32},
                                         {"inc", "auto-round", DType::kS32},
                                         {"inc", "gptq", DType::kS32},
                                         {"auto-round:auto_gptq", "auto-round", DType::kS32},
                                         {"gptq", "auto-round", DType::kS32},
                                         {"auto-round-int8", "compressed-tensors", DType::kS8},
                                         {"cpu_awq", "awq", DType::kS32},
                                         {"auto_awq", "awq", DType::kS32},
                                         {"gptq_marlin_24", "compressed-tensors", DType::kS32},
                                         {"fp8", "compressed-tensors", DType::kE4M3},
                                         {"fp8_e4m3", "modelopt", DType::kE4M3},
                                         {"ptpc_fp8", "fp8", DType::kE4M3},
                                         {"w8a8_int8", "compressed-tensors", DType::kS8},
                                         {"w8a8_fp8", "compressed-tensors", DType::kE4M3},
                                         {"modelopt_fp4", "modelopt", DType::kU8},
                                         {"modelopt_mixed", "modelopt", DType::kU8},
                                         {"w4afp8", "modelopt", DType::kS8},
                                         {"petit_nvfp4", "modelopt", DType::kU8},
                                         {"nvfp4", "compressed-tensors", DType::kU8},
                                         {"gpt_oss_mxfp4", "mxfp4", DType::kU8},
                                         {"quark_mxfp4", "quark", DType::kU8},
                                         {"deepseek_v4_fp8", "fp8", DType::kE4M3},
                                         {"bitsandbytes-nf4", "bitsandbytes", DType::kU8},
                                         {"humming", "fp8", DType::kE4M3}}) {
    EXPECT_EQ(asked(c.requested, c.method, "weight", c.stored),
              fmt::format("--quantization {} was taken for {}", c.requested, c.method));
  }
}

TEST(scheme, names_of_what_is_not_done_are_refused_with_what_helps) {
  EXPECT_EQ(asked("fp8_per_tensor", "", "weight", DType::kBF16),
            "--quantization fp8_per_tensor: it quantizes while loading; of that, only fp8 with a "
            "scale per output is done here: --quantization fp8");
  EXPECT_EQ(asked("fp_quant", "", "weight", DType::kBF16),
            "the scheme \"fp_quant\" was asked for: FP-Quant checkpoints are not read: the inputs "
            "of its layers are rotated by a Hadamard matrix before they are quantized; use the "
            "GPTQ, AWQ, FP8 or GGUF edition of this model, or the unquantized one");
  EXPECT_EQ(asked("", "modelopt_fp8", "weight", DType::kU8),
            "config.json: quantization_config: quant_method is \"modelopt_fp8\", which means "
            "weights stored as e4m3, but none is: model.layers.0.mlp.up_proj.weight is u8; correct "
            "it to what is stored, or to \"modelopt\"");
}

TEST(scheme, a_name_that_means_other_weights_than_are_stored_is_refused) {
  const std::string w = "model.layers.0.mlp.up_proj.";
  EXPECT_EQ(asked("fp8", "compressed-tensors", "weight", DType::kS8),
            "the scheme \"fp8\" was asked for, which means weights stored as e4m3, but none is: " +
                w + "weight is s8");
  EXPECT_EQ(
      asked("w8a8_int8", "compressed-tensors", "weight", DType::kE4M3),
      "the scheme \"w8a8_int8\" was asked for, which means weights stored as s8, but none is: " +
          w + "weight is e4m3");
  EXPECT_EQ(asked("awq_marlin", "awq", "weight_packed", DType::kU8),
            "the scheme \"awq_marlin\" was asked for, which means weights stored as s32, but none "
            "is: " +
                w + "weight_packed is u8");
  EXPECT_EQ(asked("gptq_marlin", "awq", "qweight", DType::kS32),
            "the scheme \"gptq_marlin\" was asked for, but config.json: quantization_config says "
            "\"awq\"");
}

TEST(scheme, names_and_aliases_are_unique) {
  for (const Scheme* scheme : schemes()) {
    EXPECT_EQ(find_scheme(scheme->name), scheme);
    for (std::string_view alias : scheme->aliases) EXPECT_EQ(find_scheme(alias), scheme) << alias;
  }
  EXPECT_EQ(find_scheme("zz8"), nullptr);
}

TEST(scheme, unknown_keys_are_warned_about_unless_null_private_or_harmless) {
  const base::Json dictionary =
      json(R"({"bits": 4, "meta": {}, "_load": 1, "zz": null, "color": "red"})", "config.json");
  std::vector<std::string> warnings;
  check_keys(dictionary, "bits sym", "meta", warnings);
  EXPECT_EQ(warnings, (std::vector<std::string>{"config.json: the key \"color\" (a string "
                                                "(\"red\")) is not known and has no effect"}));
}

}  // namespace
}  // namespace nibble::quant
