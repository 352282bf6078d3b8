#include "quant/scheme.h"

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
  EXPECT_EQ(where_of(R"({"compression_config": {"quant_method": "ZZ_8"},
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

TEST(scheme, two_dictionaries_in_one_config_must_agree) {
  EXPECT_EQ(where_of(R"({"quantization_config": {"quant_method": "zz8"},
                         "text_config": {"quantization_config": {"quant_method": "zz8"}}})"),
            "config.json: quantization_config zz8");
  EXPECT_EQ(where_of(R"({"quantization_config": {"quant_method": "zz8"},
                         "text_config": {"quantization_config": {"quant_method": "zz9"}}})"),
            "config.json: quantization_config and config.json: text_config: quantization_config "
            "differ; keep the one that is true");
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
