#include "quant/rotations.h"

#include <gtest/gtest.h>

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

std::string refusal(const std::string& text) {
  const base::Json dictionary = json(text, "config.json: quantization_config");
  return message(check_rotations(dictionary));
}

TEST(rotations, a_key_that_asks_for_rotated_inputs_is_refused_whoever_wrote_it) {
  const std::string at = "config.json: quantization_config: ";
  const std::string why = ": the inputs of its layers are to be rotated, which is not done yet";
  for (const auto& [text, what] : std::vector<std::array<std::string, 2>>{
           {R"({"rotation": "hadamard"})", "rotation is given"},
           {R"({"meta": {"rotation": "random", "quantizer": []}})", "meta: rotation is given"},
           {R"({"rotation_config": {"hadamard_type": "hadamard"}})", "rotation_config is given"},
           {R"({"hadamard_config": {"block_size": 32}})", "hadamard_config is given"},
           {R"({"spinquant_config": {"online_r1_rotation": true}})", "spinquant_config is given"},
           {R"({"extra_config": {"a.b": {"bits": 4}, "a.c": {"rotation_config": "x"}}})",
            "extra_config: a.c: rotation_config is given"},
           {R"({"algo_config": [{"name": "awq"}, {"name": "rotation", "r1": true, "r4": true}]})",
            "algo_config: r4 of \"rotation\" is given"},
           {R"({"algo_config": [{"name": "rotation", "r1": true, "online_r1_rotation": true}]})",
            "algo_config: online_r1_rotation of \"rotation\" is given"}}) {
    EXPECT_EQ(refusal(text), at + what + why) << text;
  }
}

TEST(rotations, what_is_in_the_weights_or_asks_for_nothing_is_read) {
  for (const char* text :
       {"{}", R"({"rotation": null})", R"({"rotation": ""})", R"({"rotation": "none"})",
        R"({"rotation_config": {}})", R"({"hadamard_config": null})",
        R"({"meta": {"rotation": null, "opt_rotation_epochs": 10}})", R"({"meta": 1})",
        R"({"extra_config": {"a.b": {"rotation_config": {}}}})", R"({"extra_config": 1})",
        R"({"algo_config": null})", R"({"algo_config": [{"name": "smooth"}, 1]})",
        R"({"algo_config": [{"name": "rotation", "r1": true, "r2": true, "r3": true,
            "r4": false, "online_r1_rotation": false}]})",
        R"({"transform_config": {"config_groups": {"u": {"type": "hadamard"}}}})"}) {
    EXPECT_EQ(refusal(text), "no error") << text;
  }
}

TEST(rotations, every_scheme_is_asked) {
  EXPECT_EQ(message(parse_config({}, R"({"quant_method": "gptq", "bits": 4, "group_size": 32,
                "rotation": "hadamard"})")),
            "config.json: quantization_config: rotation is given: the inputs of its layers are to "
            "be rotated, which is not done yet");
}

}  // namespace
}  // namespace nibble::quant
