#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "base/number.h"
#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

const std::string kModule = "model.layers.0.mlp.up_proj";

// The packer of the format, in its own words: position p of a word holds output order[p].
constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};

std::vector<uint32_t> pack(const std::vector<uint32_t>& values) {
  std::vector<uint32_t> words(values.size() / 8);
  for (size_t c = 0; c < words.size(); ++c) {
    for (size_t p = 0; p < 8; ++p)
      words[c] |= values[8 * c + static_cast<size_t>(kOrder[p])] << 4 * p;
  }
  return words;
}

struct Encoder {
  int64_t n = 24, k = 64, group = 32;
  std::vector<uint32_t> code;  // (K, N)
  std::vector<uint32_t> zero;  // (g, N)
  std::vector<float> scale;    // (g, N)

  int64_t groups() const { return group == -1 ? 1 : (k + group - 1) / group; }

  void fill(uint32_t seed) {
    std::mt19937 random(seed);
    code.resize(static_cast<size_t>(n * k));
    zero.resize(static_cast<size_t>(groups() * n));
    scale.resize(zero.size());
    for (uint32_t& c : code) c = random() % 16;
    for (uint32_t& z : zero) z = random() % 16;
    for (float& s : scale) s = static_cast<float>(1 + random() % 1000) / 4096;
  }

  TestCheckpoint checkpoint() const {
    TestCheckpoint out;
    out.add(kModule + ".qweight", DType::kS32, {k, n / 8}, pack(code));
    out.add(kModule + ".qzeros", DType::kS32, {groups(), n / 8}, pack(zero));
    out.add(kModule + ".scales", DType::kF32, {groups(), n}, scale);
    return out;
  }

  std::string config() const {
    return fmt::format(R"({{"quant_method": "awq", "bits": 4, "group_size": {}, "zero_point": true,
                            "version": "gemm"}})",
                       group);
  }

  LinearLayer layer() const { return {kModule, n, k, false, {}}; }

  std::vector<float> expected() const {
    std::vector<float> out;
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < k; ++i) {
        const auto at = static_cast<size_t>((group == -1 ? 0 : i / group) * n + j);
        const auto q = static_cast<float>(code[static_cast<size_t>(i * n + j)]);
        out.push_back((q - static_cast<float>(zero[at])) * scale[at]);
      }
    }
    return out;
  }
};

Encoder small() {
  Encoder e;
  e.fill(1);
  return e;
}

TEST(awq, every_group_size_is_decoded_as_it_was_encoded) {
  uint32_t seed = 20261129;
  for (int64_t group : {-1, 16, 32, 64, 128}) {
    for (int64_t n : {8, 64, 136}) {
      Encoder e;
      e.n = n, e.k = 96, e.group = group;
      e.fill(++seed);
      const auto weight = load_layer(e.checkpoint(), e.config(), e.layer());
      ASSERT_TRUE(weight) << message(weight);
      ASSERT_EQ(dequantize(*weight), e.expected()) << "group " << group << " seed " << seed;
    }
  }
}

// Quark's folders for AutoAWQ's loaders: eight outputs a word in the order of `pack_method`.
TestCheckpoint quarks(const Encoder& e, bool reordered) {
  TestCheckpoint out = e.checkpoint();
  if (reordered) return out;
  const auto in_order = [](const std::vector<uint32_t>& values) {
    std::vector<uint32_t> words(values.size() / 8);
    for (size_t i = 0; i < values.size(); ++i) words[i / 8] |= values[i] << 4 * (i % 8);
    return words;
  };
  out.add(kModule + ".qweight", DType::kS32, {e.k, e.n / 8}, in_order(e.code));
  out.add(kModule + ".qzeros", DType::kS32, {e.groups(), e.n / 8}, in_order(e.zero));
  return out;
}

std::string quarks_config(const Encoder& e, const char* zero_point, const char* pack_method) {
  return fmt::format(R"({{"quant_method": "awq", "bits": 4, "group_size": {}, "version": "gemm",
                          "zero_point": {}, "pack_method": "{}",
                          "export": {{"pack_method": "{}"}}}})",
                     e.group, zero_point, pack_method, pack_method);
}

TEST(awq, quarks_pack_method_says_the_order_of_its_words) {
  const Encoder e = small();
  for (const bool reordered : {true, false}) {
    const auto weight = load_layer(
        quarks(e, reordered), quarks_config(e, "true", reordered ? "reorder" : "order"), e.layer());
    ASSERT_TRUE(weight) << message(weight);
    EXPECT_EQ(dequantize(*weight), e.expected()) << reordered;
  }
  EXPECT_EQ(
      message(load_layer(e.checkpoint(), quarks_config(e, "true", "other"), e.layer())),
      "config.json: quantization_config: pack_method is \"other\"; known are: reorder, order");
}

TEST(awq, quarks_codes_without_zero_points_are_signed) {
  Encoder e = small();
  std::fill(e.zero.begin(), e.zero.end(), 0u);
  std::vector<float> expected;
  for (int64_t j = 0; j < e.n; ++j) {
    for (int64_t i = 0; i < e.k; ++i) {
      const int code = static_cast<int>(e.code[static_cast<size_t>(i * e.n + j)]);
      expected.push_back(static_cast<float>(code < 8 ? code : code - 16) *
                         e.scale[static_cast<size_t>(i / e.group * e.n + j)]);
    }
  }
  for (const bool reordered : {true, false}) {
    const std::string config = quarks_config(e, "false", reordered ? "reorder" : "order");
    const auto weight = load_layer(quarks(e, reordered), config, e.layer());
    ASSERT_TRUE(weight) << message(weight);
    EXPECT_EQ(dequantize(*weight), expected) << reordered;
  }
  e.zero[3] = 2;
  EXPECT_EQ(message(load_layer(quarks(e, true), quarks_config(e, "false", "reorder"), e.layer())),
            "qzeros: number 3 is 2, but symmetric is true, which means 0");
}

// Rows of codes along K, of zero points and scales along the groups, padded to `width` words.
TestCheckpoint gemv(const Encoder& e, int64_t width) {
  const int64_t g = e.groups();
  std::vector<uint32_t> code(static_cast<size_t>(e.n * e.k / 8));
  std::vector<uint32_t> zero(static_cast<size_t>(e.n * width));
  std::vector<float> scale(static_cast<size_t>(e.n * width * 8));
  for (int64_t j = 0; j < e.n; ++j) {
    for (int64_t i = 0; i < e.k; ++i) {
      code[static_cast<size_t>((j * e.k + i) / 8)] |= e.code[static_cast<size_t>(i * e.n + j)]
                                                      << 4 * (i % 8);
    }
    for (int64_t i = 0; i < g; ++i) {
      zero[static_cast<size_t>(j * width + i / 8)] |= e.zero[static_cast<size_t>(i * e.n + j)]
                                                      << 4 * (i % 8);
      scale[static_cast<size_t>(j * width * 8 + i)] = e.scale[static_cast<size_t>(i * e.n + j)];
    }
  }
  TestCheckpoint out;
  out.add(kModule + ".qweight", DType::kS32, {e.n, e.k / 8}, code);
  out.add(kModule + ".qzeros", DType::kS32, {e.n, width}, zero);
  out.add(kModule + ".scales", DType::kF32, {e.n, width * 8}, scale);
  return out;
}

TEST(awq, the_shapes_tell_layout_gemv_whatever_the_version_says) {
  for (const auto& [k, group, width] : {std::array<int64_t, 3>{128, 128, 1},
                                        {256, 64, 2},
                                        {512, 32, 4},
                                        {256, -1, 1},
                                        {768, 32, 4},  // as many groups as outputs
                                        {24, 32, 4}}) {
    Encoder e;  // n and k are equal once: then only the scales tell
    e.n = 24, e.k = k, e.group = group;
    e.fill(7);
    for (const char* version : {"gemv", "gemm"}) {
      const std::string config =
          fmt::format(R"({{"quant_method": "awq", "bits": 4, "group_size": {}, "version": "{}"}})",
                      group, version);
      const auto weight = load_layer(gemv(e, width), config, e.layer());
      ASSERT_TRUE(weight) << message(weight);
      EXPECT_EQ(dequantize(*weight), e.expected()) << k;
    }
  }
  // And what is stored as gemm is read so.
  for (const char* version : {"gemv", "exllama", "ipex", "marlin"}) {
    const Encoder e = small();
    const auto weight = load_layer(
        e.checkpoint(),
        fmt::format(R"({{"quant_method": "awq", "bits": 4, "group_size": 32, "version": "{}"}})",
                    version),
        e.layer());
    ASSERT_TRUE(weight) << message(weight);
    EXPECT_EQ(dequantize(*weight), e.expected());
  }
}

TEST(awq, the_groups_of_layout_gemv_are_not_in_its_shapes) {
  Encoder e;
  e.k = 256, e.group = 64;
  e.fill(8);
  const TestCheckpoint checkpoint = gemv(e, 2);
  const auto config = find_scheme("awq")->parse(CheckpointFacts{});
  ASSERT_TRUE(config) << message(config);
  EXPECT_EQ(message((*config)->linear_method(e.layer(), checkpoint.lookup())),
            kModule +
                ".qweight is as AutoAWQ's version \"gemv\" stores it, whose padded scales do "
                "not say the size of groups; give the lost config with "
                "--quantization-config");
}

TEST(awq, layouts_for_one_gpu_kernel_are_refused_with_what_helps) {
  const std::string config = R"({"quant_method": "awq", "bits": 4, "group_size": 32})";
  const std::string helps =
      "\" stores it, in the order of one GPU kernel; quantize again with version \"gemm\", or use "
      "the GPTQ or GGUF edition of this model";
  TestCheckpoint fast;
  fast.add(kModule + ".qweight", DType::kS16, {6, 64}, std::vector<int16_t>(6 * 64));
  EXPECT_EQ(message(load_layer(fast, config, {kModule, 24, 64, false, {}})),
            kModule + ".qweight s16 (6, 64) is as AutoAWQ's version \"gemv_fast" + helps);
  TestCheckpoint marlin;
  marlin.add(kModule + ".qweight", DType::kS32, {4, 48}, std::vector<int32_t>(4 * 48));
  EXPECT_EQ(message(load_layer(marlin, config, {kModule, 24, 64, false, {}})),
            kModule + ".qweight s32 (4, 48) is as AutoAWQ's version \"marlin" + helps);
}

TEST(awq, a_lost_config_is_read_from_the_shapes_when_asked) {
  const Encoder e = small();
  CheckpointFacts facts;
  const auto checkpoint = e.checkpoint();
  facts.tensors = checkpoint.lookup();
  const auto scheme = detect_scheme(facts, "awq");
  ASSERT_TRUE(scheme) << message(scheme);
  const auto config = (*scheme)->parse(facts);
  ASSERT_TRUE(config) << message(config);
  EXPECT_EQ((*config)->notes,
            std::vector<std::string>{"no quantization_config: the size of groups is taken from the "
                                     "shapes of the tensors"});
  const auto method = (*config)->linear_method(e.layer(), facts.tensors);
  ASSERT_TRUE(method) << message(method);
  EXPECT_EQ(tensor::to_string((*method)->weight_format()), "u4g32+zp");
}

TEST(awq, known_words_hold_known_columns) {
  EXPECT_EQ(pack({0, 1, 2, 3, 4, 5, 6, 7})[0], 0x75316420u);
  EXPECT_EQ(pack({3, 14, 1, 5, 9, 2, 6, 8})[0], 0x825e6913u);
  TestCheckpoint checkpoint;
  checkpoint.add<uint32_t>(kModule + ".qweight", DType::kS32, {1, 1}, {0x825e6913});
  checkpoint.add<uint32_t>(kModule + ".qzeros", DType::kS32, {1, 1}, {0x8a688597});
  checkpoint.add<uint16_t>(kModule + ".scales", DType::kF16, {1, 8},
                           std::vector<uint16_t>(8, 0x3800));
  const auto weight = load_layer(
      checkpoint, R"({"quant_method": "awq", "w_bit": 4, "q_group_size": -1, "zero_point": true,
                      "version": "GEMM"})",
      {kModule, 8, 1, false, {}});
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "u4c+zp");
  EXPECT_EQ(weight->format.scale_type, DType::kF16);
  EXPECT_EQ(dequantize(*weight), (std::vector<float>{-2, 3, -4, -0.5f, 2, -4, -1, 0}));
}

TEST(awq, zero_points_are_stored_exactly) {
  Encoder e = small();
  for (size_t i = 0; i < e.zero.size(); ++i) e.zero[i] = i % 16;
  const auto weight = load_layer(e.checkpoint(), e.config(), e.layer());
  ASSERT_TRUE(weight) << message(weight);
  for (int64_t g = 0; g < e.groups(); ++g) {
    for (int64_t j = 0; j < e.n; ++j) {
      EXPECT_EQ(weight->zero[static_cast<size_t>(j * e.groups() + g)],
                static_cast<float>(e.zero[static_cast<size_t>(g * e.n + j)]));
    }
  }
}

TEST(awq, what_is_stored_outranks_the_list) {
  const Encoder e = small();
  const std::string listed =
      R"({"quant_method": "awq", "bits": 4, "group_size": 32, "modules_to_not_convert": ["mlp"]})";
  EXPECT_TRUE(load_layer(e.checkpoint(), listed, e.layer()));
  TestCheckpoint plain;
  plain.add(kModule + ".weight", DType::kF16, {24, 64}, std::vector<uint16_t>(24 * 64, 0x3c00));
  const auto weight = load_layer(plain, e.config(), e.layer());
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "f16");
  EXPECT_EQ(message(load_layer(TestCheckpoint(), e.config(), e.layer())),
            "missing " + kModule + ".qweight");
  EXPECT_EQ(message(load_layer(TestCheckpoint(), listed, e.layer())),
            "missing " + kModule + ".weight");
}

TEST(awq, rules_that_match_nothing_are_known) {
  const Encoder e = small();
  const auto config = parse_config(e.checkpoint(),
                                   R"({"quant_method": "awq", "bits": 4, "group_size": 32,
                                       "modules_to_not_convert": ["lm_head", "vision"]})");
  ASSERT_TRUE(config) << message(config);
  ASSERT_TRUE((*config)->linear_method({"lm_head", 24, 64, false, {}}, e.checkpoint().lookup()));
  ASSERT_EQ((*config)->matchers().size(), 1u);
  EXPECT_EQ((*config)->matchers()[0]->rules_that_matched_nothing(),
            (std::vector<std::string>{"vision"}));
}

TEST(awq, missing_zeros_are_missing) {
  const Encoder e = small();
  TestCheckpoint checkpoint = e.checkpoint();
  checkpoint.remove(kModule + ".qzeros");
  EXPECT_EQ(message(load_layer(checkpoint, e.config(), e.layer())),
            "missing " + kModule + ".qzeros");
}

TEST(awq, tensors_that_do_not_fit_are_refused) {
  const Encoder e = small();
  TestCheckpoint checkpoint = e.checkpoint();
  checkpoint.add(kModule + ".scales", DType::kF32, {3, 24}, std::vector<float>(72, 1.0f));
  EXPECT_EQ(message(load_layer(checkpoint, e.config(), e.layer())),
            "scales: expected (2, 24), found f32 (3, 24) of 288 bytes");
  EXPECT_EQ(message(load_layer(e.checkpoint(), e.config(), {kModule, 20, 64, false, {}})),
            kModule + ": 20 outputs do not fill whole words of eight 4-bit codes");
}

TEST(awq, configs_that_cannot_be_read_are_refused_by_key_and_value) {
  auto refused = [](const std::string& keys) {
    return message(parse_config(TestCheckpoint(), R"({"quant_method": "awq", )" + keys + "}"));
  };
  const std::string at = "config.json: quantization_config: ";
  EXPECT_EQ(refused(R"("bits": 4, "group_size": 128)"), "no error");
  EXPECT_EQ(refused(R"("bits": 8, "group_size": 128)"),
            at + "bits is 8; AWQ weights of 4 bits are read");
  EXPECT_EQ(refused(R"("w_bit": 3, "group_size": 128)"),
            at + "w_bit is 3; AWQ weights of 4 bits are read");
  EXPECT_EQ(refused(R"("group_size": 128)"), at + "key \"w_bit\" is missing");
  EXPECT_EQ(refused(R"("bits": 4)"), at + "key \"q_group_size\" is missing");
  EXPECT_EQ(refused(R"("bits": 4, "q_group_size": -2)"),
            at + "q_group_size: expected -1 (all inputs) or a positive number, found -2");
  EXPECT_EQ(refused(R"("bits": 4, "group_size": 128, "version": "gemx")"),
            at + "version is \"gemx\"; known are: gemm, gemv, gemv_fast, llm-awq, marlin, exllama, "
                 "exllamav2, ipex");
  EXPECT_EQ(refused(R"("bits": 4, "group_size": 128, "modules_to_not_convert": "lm_head")")
                .rfind(at + "modules_to_not_convert: expected a list of names, found ", 0),
            0u);
}

}  // namespace
}  // namespace nibble::quant
