// KV caches of 8 bits and their scales, as the real program sees them.
#include <cmath>

#include "cli/real.h"

namespace nibble::cli {
namespace {

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
  rename_in(file, "v_proj.v_scale", "v_proj.w_scale");
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

TEST(nibble, fit_knows_the_cache_of_a_token) {
  const Json json = json_of(nibble({"fit", kAwq, "--json"}));
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["model_ctx"], 256);
  EXPECT_GT(json["kv_per_token"], 0);
}

}  // namespace
}  // namespace nibble::cli
