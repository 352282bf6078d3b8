#include "quant/kv_cache.h"

#include <algorithm>

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using kernels::KvType;
using tensor::DType;

const std::string kA = "model.layers.0.self_attn";

KvCacheConfig read(const std::string& text) {
  auto config = read_kv_cache(json(text, "config.json: quantization_config"));
  EXPECT_TRUE(config) << message(config);
  return config ? *config : KvCacheConfig{};
}

TEST(kv_cache_config, every_dialect_says_the_same) {
  for (const char* text :
       {R"({"kv_cache_scheme": {"type": "float", "num_bits": 8, "strategy": "tensor",
            "dynamic": false, "symmetric": true}})",
        R"({"kv_cache_scheme": {"type": "float", "num_bits": "8"}, "kv_cache_quant_algo": "FP8"})",
        R"({"kv_cache_quant_algo": "FP8"})", R"({"quantization": {"kv_cache_quant_algo": "fp8"}})",
        R"({"export": {"kv_cache_group": ["*k_proj", "*v_proj"], "pack_method": "reorder"},
            "layer_quant_config": {"*k_proj": {"output_tensors": {"dtype": "fp8_e4m3",
            "is_dynamic": false}}}})",
        R"({"export": {"kv_cache_group": []}, "kv_cache_quant_config": {"*k_proj":
            {"output_tensors": {"dtype": "fp8_e4m3", "is_dynamic": false}}}})"}) {
    const KvCacheConfig config = read(text);
    EXPECT_EQ(config.type, KvType::kE4M3) << text;
    EXPECT_FALSE(config.dynamic);
    EXPECT_EQ(config.unsupported, "");
    EXPECT_NE(config.where.find("kv_cache"), std::string::npos) << config.where;
  }
  EXPECT_EQ(read(R"({"kv_cache_scheme": {"type": "int", "num_bits": 8}})").type, KvType::kS8);
  for (const char* nothing :
       {"{}", R"({"kv_cache_scheme": null, "kv_cache_quant_algo": null})",
        R"({"kv_cache_quant_algo": "NONE"})", R"({"export": {"kv_cache_group": []}})"}) {
    EXPECT_FALSE(read(nothing).type) << nothing;
    EXPECT_EQ(read(nothing).where, "");
  }
}

TEST(kv_cache_config, static_scales_are_a_promise_but_modelopt_leaves_out_ones) {
  EXPECT_TRUE(read(R"({"kv_cache_scheme": {"type": "float"}})").promised);
  EXPECT_FALSE(read(R"({"kv_cache_scheme": {"type": "float", "dynamic": true}})").promised);
  EXPECT_TRUE(read(R"({"kv_cache_scheme": {"type": "float", "dynamic": "local"}})").dynamic);
  EXPECT_FALSE(
      read(R"({"quant_method": "modelopt", "kv_cache_scheme": {"type": "float"}})").promised);
  EXPECT_FALSE(read(R"({"kv_cache_quant_algo": "FP8"})").promised);
}

TEST(kv_cache_config, a_scheme_in_one_word_is_that_of_an_fp8_cache) {
  // As AutoFP8 writes it, and Quark for quant_method "fp8".
  const KvCacheConfig fixed = read(R"({"quant_method": "fp8", "kv_cache_scheme": "static"})");
  EXPECT_EQ(fixed.type, KvType::kE4M3);
  EXPECT_TRUE(fixed.promised);
  EXPECT_FALSE(fixed.dynamic);
  EXPECT_EQ(fixed.unsupported, "");
  EXPECT_EQ(fixed.where, "config.json: quantization_config: kv_cache_scheme");
  const KvCacheConfig dynamic = read(R"({"quant_method": "fp8", "kv_cache_scheme": "dynamic"})");
  EXPECT_EQ(dynamic.type, KvType::kE4M3);
  EXPECT_FALSE(dynamic.promised);
  EXPECT_TRUE(dynamic.dynamic);
  EXPECT_EQ(read(R"({"kv_cache_scheme": "fp8_e5m2"})").type, KvType::kE5M2);
  EXPECT_EQ(read(R"({"kv_cache_scheme": "other"})").unsupported,
            "config.json: quantization_config: kv_cache_scheme: a cache of other");
}

TEST(kv_cache_config, two_files_that_both_speak_of_it_must_agree) {
  const base::Json fp8 = json(R"({"kv_cache_quant_algo": "FP8"})", "hf_quant_config.json");
  const base::Json same =
      json(R"({"kv_cache_scheme": {"type": "float", "num_bits": 8}})", "a.json");
  const base::Json other = json(R"({"kv_cache_scheme": {"type": "int", "num_bits": 8}})", "a.json");
  const base::Json silent = json("{}", "a.json");
  EXPECT_EQ(find_kv_cache(&silent, &fp8)->type, kernels::KvType::kE4M3);
  EXPECT_EQ(find_kv_cache(nullptr, &fp8)->type, kernels::KvType::kE4M3);
  EXPECT_EQ(find_kv_cache(&same, &fp8)->type, kernels::KvType::kE4M3);
  EXPECT_FALSE(find_kv_cache(&silent, nullptr)->type);
  EXPECT_EQ(message(find_kv_cache(&other, &fp8)),
            "a.json: kv_cache_scheme and hf_quant_config.json: kv_cache_quant_algo name different "
            "caches; remove the one that is wrong");
}

TEST(kv_cache_config, what_nibble_has_not_is_named) {
  const std::string at = "config.json: quantization_config: ";
  EXPECT_EQ(read(R"({"kv_cache_quant_algo": "NVFP4"})").unsupported,
            at + "kv_cache_quant_algo: a cache of NVFP4");
  EXPECT_EQ(read(R"({"kv_cache_scheme": {"type": "float", "num_bits": 4}})").unsupported,
            at + "kv_cache_scheme: a cache of 4 bits of type float");
  EXPECT_EQ(read(R"({"kv_cache_scheme": {"strategy": "channel"}})").unsupported,
            at + "kv_cache_scheme: a cache with the strategy channel");
  EXPECT_EQ(
      message(read_kv_cache(json(R"({"kv_cache_scheme": {"type": "int"},
                                           "quantization": {"kv_cache_quant_algo": "FP8"}})",
                                 "c.json"))),
      "c.json: kv_cache_scheme and c.json: quantization: kv_cache_quant_algo ask for different "
      "KV caches");
  EXPECT_EQ(message(read_kv_cache(json(R"({"kv_cache_quant_algo": 8})", "c.json"))),
            "c.json: kv_cache_quant_algo: expected a string, found the integer 8");
}

Result<KVCacheMethod> method(const TestCheckpoint& checkpoint, KvType cache,
                             const KvCacheConfig& config = {}) {
  return KVCacheMethod::create(kA, 2, cache, config, checkpoint.lookup());
}

Result<kernels::KvScales> scales(const TestCheckpoint& checkpoint, KvType cache,
                                 const KvCacheConfig& config = {}) {
  NIBBLE_ASSIGN(const KVCacheMethod made, method(checkpoint, cache, config));
  return made.process_weights_after_loading(
      [&](const tensor::TensorInfo& info) -> Result<tensor::TensorView> {
        return checkpoint.view(info.name);
      });
}

TEST(kv_cache_method, a_scale_is_found_by_each_of_its_names) {
  const std::vector<std::pair<std::string, std::string>> spellings = {
      {"attn.k_scale", "attn.v_scale"},
      {"k_scale", "v_scale"},
      {"k_proj.k_scale", "v_proj.v_scale"},
      {"qkv_proj.k_scale", "qkv_proj.v_scale"},
      {"k_cache.scale", "v_cache.scale"},
      {"k.scale", "v.scale"},
      {"k_proj.output_scale", "v_proj.output_scale"},
      {"k_scale", "v_proj.v_scale"}};
  for (const auto& [k, v] : spellings) {
    TestCheckpoint checkpoint;
    checkpoint.add<float>(kA + "." + k, DType::kF32, {}, {0.25f});
    checkpoint.add<float>(kA + "." + v, DType::kF32, {1}, {3.0f});
    const auto made = method(checkpoint, KvType::kE4M3);
    ASSERT_TRUE(made) << message(made);
    EXPECT_EQ(made->k_scale()->name, kA + "." + k);
    EXPECT_EQ(made->used().size(), 2u);
    const auto found = scales(checkpoint, KvType::kE5M2);
    ASSERT_TRUE(found) << message(found);
    EXPECT_EQ(found->k, std::vector<float>{0.25f});
    EXPECT_EQ(found->v, std::vector<float>{3.0f});
  }
  TestCheckpoint old;
  old.add<float>(kA + ".kv_scale", DType::kF32, {}, {0.5f});
  const auto found = scales(old, KvType::kE4M3);
  ASSERT_TRUE(found) << message(found);
  EXPECT_EQ(found->k, std::vector<float>{0.5f});
  EXPECT_EQ(found->v, std::vector<float>{0.5f});
}

TEST(kv_cache_method, scales_may_be_one_for_each_head) {
  TestCheckpoint checkpoint;
  checkpoint.add<uint16_t>(kA + ".k_scale", DType::kBF16, {2, 1, 1}, {0x3f80, 0x4000});
  checkpoint.add<uint16_t>(kA + ".v_scale", DType::kF16, {2}, {0x3c00, 0x3800});
  const auto found = scales(checkpoint, KvType::kE4M3);
  ASSERT_TRUE(found) << message(found);
  EXPECT_EQ(found->k, (std::vector<float>{1, 2}));
  EXPECT_EQ(found->v, (std::vector<float>{1, 0.5f}));
  checkpoint.add<float>(kA + ".v_scale", DType::kF32, {3}, {1, 1, 1});
  EXPECT_EQ(message(scales(checkpoint, KvType::kE4M3)),
            kA + ".v_scale: expected one number or one for each of 2 key-value heads, found (3)");
  EXPECT_TRUE(method(checkpoint, KvType::kF16)) << "a cache of floats does not ask";
}

TEST(kv_cache_method, zero_points_belong_to_int8) {
  TestCheckpoint checkpoint;
  checkpoint.add<float>(kA + ".k_scale", DType::kF32, {1}, {0.25f});
  checkpoint.add<float>(kA + ".v_scale", DType::kF32, {1}, {3.0f});
  checkpoint.add<int8_t>(kA + ".k_zero_point", DType::kS8, {1}, {-5});
  checkpoint.add<int32_t>(kA + ".v_zero_point", DType::kS32, {1}, {7});
  KvCacheConfig int8;
  int8.type = KvType::kS8;
  const auto found = scales(checkpoint, KvType::kS8, int8);
  ASSERT_TRUE(found) << message(found);
  EXPECT_EQ(found->k_zero, std::vector<float>{-5});
  EXPECT_EQ(found->v_zero, std::vector<float>{7});
  const auto fp8 = method(checkpoint, KvType::kE4M3);
  ASSERT_TRUE(fp8);
  EXPECT_EQ(fp8->used().size(), 2u);
  ASSERT_EQ(fp8->unused().size(), 2u);
  EXPECT_EQ(fp8->unused()[0].second, "a zero point of an int8 KV cache; the cache here has none");
  checkpoint.add<int32_t>(kA + ".v_zero_point", DType::kS32, {1}, {128});
  EXPECT_EQ(
      message(scales(checkpoint, KvType::kS8, int8)),
      kA + ".v_zero_point is 128; a zero point of an int8 cache is a whole number from -128 to "
           "127");
}

TEST(kv_cache_method, scales_made_for_another_type_are_left_alone) {
  TestCheckpoint checkpoint;
  checkpoint.add<float>(kA + ".k_scale", DType::kF32, {}, {0.25f});
  checkpoint.add<float>(kA + ".v_scale", DType::kF32, {}, {3.0f});
  checkpoint.add<float>(kA + ".q_scale", DType::kF32, {}, {1.0f});
  checkpoint.add<float>(kA + ".prob_scale", DType::kF32, {}, {1.0f});
  const auto of_floats = method(checkpoint, KvType::kF16);
  ASSERT_TRUE(of_floats);
  EXPECT_TRUE(of_floats->used().empty());
  EXPECT_FALSE(of_floats->token_scales());
  std::vector<std::string> reasons;
  for (const auto& [info, why] : of_floats->unused()) reasons.push_back(why);
  EXPECT_EQ(reasons, (std::vector<std::string>{
                         "a scale of a quantized KV cache; the cache here is f16",
                         "a scale of a quantized KV cache; the cache here is f16",
                         "of the queries, which are not quantized here",
                         "of the attention's probabilities, which are not quantized here"}));
  const auto int8 = method(checkpoint, KvType::kS8);  // these scales are for fp8
  ASSERT_TRUE(int8);
  EXPECT_TRUE(int8->token_scales());
  EXPECT_EQ(int8->unused()[0].second,
            "a scale of a quantized KV cache; the cache here is int8 with a scale for each token");
  KvCacheConfig dynamic;
  dynamic.type = KvType::kE4M3;
  dynamic.dynamic = true;
  EXPECT_TRUE(method(TestCheckpoint(), KvType::kE4M3, dynamic)->token_scales());
}

TEST(kv_cache_method, what_is_missing_or_wrong_is_named) {
  KvCacheConfig promised;
  promised.type = KvType::kE4M3;
  promised.promised = true;
  promised.where = "config.json: quantization_config: kv_cache_scheme";
  EXPECT_EQ(message(method(TestCheckpoint(), KvType::kE4M3, promised)),
            kA + ".k_scale: the checkpoint has no such tensor, by this or another name, though "
                 "config.json: quantization_config: kv_cache_scheme asks for one; "
                 "--kv-cache-dtype f16 needs none");
  EXPECT_TRUE(method(TestCheckpoint(), KvType::kF16, promised));
  TestCheckpoint checkpoint;
  checkpoint.add<float>(kA + ".k_proj.k_scale", DType::kF32, {}, {0.25f});
  EXPECT_EQ(message(method(checkpoint, KvType::kE4M3)),
            kA + ".v_scale: the checkpoint has no such tensor, by this or another name, though " +
                kA + ".k_proj.k_scale is stored; --kv-cache-dtype f16 needs none");
  checkpoint.add<float>(kA + ".v_proj.v_scale", DType::kF32, {}, {-1.0f});
  EXPECT_EQ(message(scales(checkpoint, KvType::kE4M3)),
            kA + ".v_proj.v_scale is -1; a scale is positive");
  checkpoint.add<uint32_t>(kA + ".v_proj.v_scale", DType::kF32, {}, {0x7fc00000u});
  EXPECT_EQ(message(scales(checkpoint, KvType::kE4M3)),
            kA + ".v_proj.v_scale is nan; the file is damaged");
}

TEST(kv_cache_method, a_scale_of_no_elements_is_none) {
  TestCheckpoint checkpoint;
  for (const char* name : {".k_proj.output_scale", ".v_proj.output_scale"}) {
    checkpoint.add<float>(kA + name, DType::kF32, {0}, {});
  }
  EXPECT_FALSE(stores_kv_scales(checkpoint.lookup()));
  const auto cache = method(checkpoint, KvType::kE4M3);
  ASSERT_TRUE(cache) << message(cache);
  EXPECT_EQ(cache->k_scale(), nullptr);
  EXPECT_FALSE(cache->uses_stored());
}

TEST(kv_cache_method, a_cache_with_a_bias_is_refused_where_it_is_used) {
  TestCheckpoint checkpoint;
  checkpoint.add<float>(kA + ".k_proj.k_scale", DType::kF32, {}, {0.25f});
  checkpoint.add<float>(kA + ".v_proj.v_scale", DType::kF32, {}, {0.25f});
  checkpoint.add<float>(kA + ".k_proj.k_bias", DType::kF32, {1, 2, 1, 8}, std::vector<float>(16));
  EXPECT_EQ(message(method(checkpoint, KvType::kE4M3)),
            kA + ".k_proj.k_bias: a KV cache with a bias is not known here; --kv-cache-dtype f16 "
                 "runs the model without");
  const auto floats = method(checkpoint, KvType::kF16);
  ASSERT_TRUE(floats);
  EXPECT_EQ(floats->unused()[1].second, "the bias of a quantized KV cache");
}

TEST(kv_cache_method, two_names_of_one_scale_must_agree) {
  TestCheckpoint checkpoint;
  for (const char* name : {".k_scale", ".k_proj.k_scale", ".v_scale"}) {
    checkpoint.add<float>(kA + name, DType::kF32, {}, {0.25f});
  }
  EXPECT_TRUE(scales(checkpoint, KvType::kE4M3));
  checkpoint.add<float>(kA + ".k_proj.k_scale", DType::kF32, {}, {0.5f});
  EXPECT_EQ(
      message(scales(checkpoint, KvType::kE4M3)),
      kA + ".k_scale is 0.25 and " + kA + ".k_proj.k_scale is 0.5; they are names of one scale");
  // The old one for both is known beside newer ones, and needs not agree.
  checkpoint.remove(kA + ".k_proj.k_scale");
  checkpoint.add<float>(kA + ".kv_scale", DType::kF32, {}, {9.0f});
  EXPECT_TRUE(scales(checkpoint, KvType::kE4M3));
  EXPECT_EQ(method(checkpoint, KvType::kE4M3)->unused()[0].second,
            "the scales of keys and values are stored apart, too");
}

}  // namespace
}  // namespace nibble::quant
