#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

const std::string kModule = "model.layers.0.mlp.up_proj";

// Fields of `bits` along a row of codes, lowest bits first, whatever word they fall into.
std::vector<uint32_t> pack(const std::vector<uint32_t>& codes, int64_t bits) {
  std::vector<uint32_t> words(codes.size() * static_cast<size_t>(bits) / 32);
  for (size_t i = 0; i < codes.size(); ++i) {
    for (int64_t b = 0; b < bits; ++b) {
      const auto at = static_cast<size_t>(static_cast<int64_t>(i) * bits + b);
      words[at / 32] |= (codes[i] >> b & 1) << at % 32;
    }
  }
  return words;
}

// One layer in GPTQ's layout.
struct Encoder {
  int64_t n = 32, k = 64, group = 32, bits = 4;
  bool less_one = true;  // zero points are stored less one
  std::vector<uint32_t> code, zero;
  std::vector<float> scale;

  void fill(uint32_t seed, bool sym) {
    std::mt19937 random(seed);
    const auto groups = static_cast<size_t>((k + group - 1) / group * n);
    const uint32_t most = (1u << bits) - 1;
    code.resize(static_cast<size_t>(n * k));
    for (uint32_t& c : code) c = random() & most;
    zero.resize(groups);
    for (uint32_t& z : zero) z = sym ? 1u << (bits - 1) : 1 + random() % most;
    scale.resize(groups);
    for (float& s : scale) s = static_cast<float>(1 + random() % 1000) / 4096;
  }

  TestCheckpoint checkpoint() const {
    TestCheckpoint out;
    // Packing goes along K, so column by column; the result is transposed.
    const int64_t rows = k * bits / 32;
    std::vector<uint32_t> qweight(static_cast<size_t>(rows * n));
    for (int64_t j = 0; j < n; ++j) {
      std::vector<uint32_t> column;
      for (int64_t i = 0; i < k; ++i) column.push_back(code[static_cast<size_t>(i * n + j)]);
      const auto words = pack(column, bits);
      for (int64_t r = 0; r < rows; ++r) {
        qweight[static_cast<size_t>(r * n + j)] = words[static_cast<size_t>(r)];
      }
    }
    std::vector<uint32_t> stored = zero;
    for (uint32_t& z : stored) z -= less_one ? 1 : 0;
    const int64_t groups = (k + group - 1) / group;
    out.add(kModule + ".qweight", DType::kS32, {rows, n}, qweight);
    out.add(kModule + ".qzeros", DType::kS32, {groups, n * bits / 32}, pack(stored, bits));
    out.add(kModule + ".scales", DType::kF32, {groups, n}, scale);
    return out;
  }

  std::string config(const std::string& packing, bool sym, const std::string& more = "") const {
    return fmt::format(R"({{"quant_method": "auto-round", "bits": {}, "group_size": {}, "sym": {},
                            "data_type": "int", "packing_format": "{}"{}}})",
                       bits, group, sym, packing, more);
  }
  LinearLayer layer() const { return {kModule, n, k, false, {}}; }

  std::vector<float> expected() const {
    std::vector<float> out;
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < k; ++i) {
        const auto at = static_cast<size_t>(i / group * n + j);
        const auto q = static_cast<float>(code[static_cast<size_t>(i * n + j)]);
        out.push_back((q - static_cast<float>(zero[at])) * scale[at]);
      }
    }
    return out;
  }
};

TEST(auto_round, every_width_is_decoded_as_it_was_encoded) {
  uint32_t seed = 20261130;
  for (int64_t bits = 2; bits <= 8; ++bits) {
    for (const bool sym : {true, false}) {
      for (const char* packing : {"auto_round:auto_gptq", "auto_round:gptqmodel", "auto_round"}) {
        Encoder e;
        e.bits = bits;
        e.less_one = std::string(packing) == "auto_round:auto_gptq";
        e.fill(++seed, sym);
        const auto weight = load_layer(e.checkpoint(), e.config(packing, sym), e.layer());
        ASSERT_TRUE(weight) << message(weight);
        ASSERT_EQ(dequantize(*weight), e.expected()) << bits << " bits, " << packing;
      }
    }
  }
}

TEST(auto_round, symmetric_zero_points_show_their_version_themselves) {
  for (const bool less_one : {true, false}) {
    for (const char* packing : {"auto_round:auto_gptq", "auto_round", "auto"}) {
      Encoder e;
      e.less_one = less_one;
      e.fill(3, true);
      const auto weight = load_layer(e.checkpoint(), e.config(packing, true), e.layer());
      ASSERT_TRUE(weight) << message(weight);
      EXPECT_EQ(dequantize(*weight), e.expected()) << packing << less_one;
    }
  }
  Encoder e;
  e.fill(3, true);
  e.zero[5] = 11;
  EXPECT_EQ(message(load_layer(e.checkpoint(), e.config("auto_round:auto_gptq", true), e.layer())),
            "qzeros: the zero point of group 0, output 5 is 11, but sym is true and packing_format "
            "is auto_round:auto_gptq, which means 8; set sym to false if the weights are "
            "asymmetric");
}

TEST(auto_round, the_old_names_of_method_and_packing_are_known) {
  Encoder e;
  e.less_one = false;
  e.fill(4, false);
  const auto weight = load_layer(e.checkpoint(),
                                 R"({"quant_method": "intel/auto-round", "bits": 4, "sym": false,
                                     "group_size": 32, "backend": "autoround:exllamav2"})",
                                 e.layer());
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), e.expected());
  e.less_one = true;
  const auto with_gptq = load_layer(e.checkpoint(),
                                    R"({"quant_method": "auto_round", "bits": "4", "sym": false,
                                        "group_size": 32, "backend": "gptq:exllamav2"})",
                                    e.layer());
  ASSERT_TRUE(with_gptq) << message(with_gptq);
  EXPECT_EQ(dequantize(*with_gptq), e.expected());
}

TEST(auto_round, extra_config_has_names_before_expressions_and_16_bits_for_what_is_left_alone) {
  Encoder e;
  e.bits = 2, e.group = 64, e.less_one = false;
  e.fill(5, false);
  TestCheckpoint checkpoint = e.checkpoint();
  checkpoint.add("lm_head.weight", DType::kF32, {1, 2}, std::vector<float>{1, 2});
  const std::string config = R"({"quant_method": "auto-round", "bits": 4, "group_size": 32,
      "sym": true, "packing_format": "auto_round", "extra_config": {
        ".*mlp.*": {"bits": 8}, "lm_head": {"bits": 16}, "other": {"bits": 3},
        "model.layers.0.mlp.up_proj": {"bits": 2, "group_size": 64, "sym": false}}})";
  const auto weight = load_layer(checkpoint, config, e.layer());
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), e.expected());
  const auto parsed = parse_config(checkpoint, config);
  EXPECT_EQ(
      (*(*parsed)->linear_method({"lm_head", 1, 2, false, {}}, checkpoint.lookup()))->scheme(),
      "unquantized");
  // Expressions are searched for, as Python's re.search does.
  Encoder wide;
  wide.bits = 8, wide.less_one = false;
  wide.fill(6, true);
  const auto searched = load_layer(wide.checkpoint(),
                                   R"({"quant_method": "auto-round", "bits": 4, "group_size": 32,
                                       "sym": true, "packing_format": "auto_round",
                                       "extra_config": {"up_pro.+": {"bits": 8}}})",
                                   wide.layer());
  ASSERT_TRUE(searched) << message(searched);
  EXPECT_EQ(dequantize(*searched), wide.expected());
}

TEST(auto_round, names_of_blocks_and_modules_say_what_is_quantized) {
  const auto says = [](const std::string& more, const std::string& module, bool vocabulary) {
    const auto config = parse_config(
        TestCheckpoint(), R"({"quant_method": "auto-round", "bits": 4, "group_size": 32, )" + more);
    EXPECT_TRUE(config) << message(config);
    return *(*config)->listed({module, 8, 8, false, {}, vocabulary});
  };
  const std::string at = "config.json: quantization_config: ", out = "vision.blocks.0.fc1";
  const std::string lists = R"("block_name_to_quantize": "model.layers.0, model.layers.1",
      "modules_to_not_convert": ["model.layers.0.mlp.down_proj"],
      "extra_config": {"vision.blocks.0.fc2": {"bits": 8}, "lm_head": {"bits": 8}}})";
  const Listed inside = says(lists, kModule, false);
  EXPECT_EQ(inside.says, Says::kQuantized);
  EXPECT_EQ(inside.by, at + "block_name_to_quantize: \"model.layers.0\"");
  EXPECT_EQ(says(lists, "model.layers.10.mlp.up_proj", false).says, Says::kLeftAlone);
  EXPECT_EQ(says(lists, out, false).by, at + "block_name_to_quantize (by not naming it)");
  const Listed alone = says(lists, "model.layers.0.mlp.down_proj", false);
  EXPECT_EQ(alone.says, Says::kLeftAlone);
  EXPECT_EQ(alone.by, at + "modules_to_not_convert: \"model.layers.0.mlp.down_proj\"");
  // extra_config names single layers, wherever they are.
  EXPECT_EQ(says(lists, "vision.blocks.0.fc2", false).says, Says::kQuantized);
  EXPECT_EQ(says(lists, "lm_head", true).says, Says::kQuantized);
  EXPECT_EQ(says(R"("to_quant_block_names": [["model.layers.0"]]})", out, false).says,
            Says::kLeftAlone);
  EXPECT_EQ(says(R"("to_quant_block_names": null})", out, false).says, Says::kNothing);
}

TEST(auto_round, the_shape_of_qweight_tells_autoawqs_layout) {
  TestCheckpoint checkpoint;
  checkpoint.add<uint32_t>(kModule + ".qweight", DType::kS32, {1, 1}, {0x825e6913});
  checkpoint.add<uint32_t>(kModule + ".qzeros", DType::kS32, {1, 1}, {0x8a688597});
  checkpoint.add<uint16_t>(kModule + ".scales", DType::kF16, {1, 8},
                           std::vector<uint16_t>(8, 0x3800));
  const std::string config = R"({"quant_method": "auto-round", "bits": 4, "group_size": -1,
                                 "sym": false, "packing_format": "auto_round:auto_awq"})";
  const auto weight = load_layer(checkpoint, config, {kModule, 8, 1, false, {}});
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), (std::vector<float>{-2, 3, -4, -0.5f, 2, -4, -1, 0}));
  std::string three = config;
  three.replace(three.find("\"bits\": 4"), 9, "\"bits\": 3");
  EXPECT_EQ(message(load_layer(checkpoint, three, {kModule, 8, 1, false, {}})),
            "model.layers.0.mlp.up_proj.qweight is packed as AutoAWQ does it, in 4 bits, but bits "
            "is 3");
}

TEST(auto_round, fp8_layers_have_the_activations_that_act_bits_says) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kE4M3, {2, 1}, std::vector<uint8_t>{0x38, 0x40});
  checkpoint.add(kModule + ".weight_scale", DType::kF32, {2}, std::vector<float>{0.5f, 3});
  checkpoint.add(kModule + ".input_scale", DType::kF32, {1}, std::vector<float>{0.25f});
  const LinearLayer layer{kModule, 2, 1, false, {}};
  for (const auto& [more, activation] :
       {std::pair{R"("act_bits": 8, "act_dynamic": false)", "e4m3 tensor static"},
        {R"("act_bits": 8, "activation_scheme": "static", "act_group_size": 0)",
         "e4m3 tensor static"},
        {R"("act_bits": 8, "act_dynamic": true)", "e4m3 token"},
        {R"("act_bits": 8, "act_dynamic": true, "act_group_size": -1)", "e4m3 token"},
        {R"("act_bits": 8, "act_dynamic": true, "act_group_size": 0)", "e4m3 tensor"},
        {R"("act_bits": 8, "act_data_type": "fp", "act_group_size": 64)", "e4m3 g64"},
        {R"("act_bits": 16)", "float"}}) {
    const auto weight =
        load_layer(checkpoint,
                   fmt::format(R"({{"quant_method": "auto-round", "bits": 8, "data_type": "fp",
                         "group_size": -1, "packing_format": "auto_round:fp8", {}}})",
                               more),
                   layer);
    ASSERT_TRUE(weight) << message(weight);
    EXPECT_EQ(tensor::to_string(weight->activation), activation);
    EXPECT_EQ(dequantize(*weight), (std::vector<float>{0.5f, 6}));
  }
}

TEST(auto_round, what_is_not_read_is_refused_by_name) {
  Encoder e;
  e.fill(7, true);
  const auto refusal = [&](const TestCheckpoint& checkpoint, const std::string& more) {
    return message(load_layer(checkpoint, e.config("auto_round", true, more), e.layer()));
  };
  EXPECT_EQ(refusal(e.checkpoint(), R"(, "act_bits": 8)"),
            "model.layers.0.mlp.up_proj: act_bits is 8, but its weights are packed integers, which "
            "are read with float activations only");
  EXPECT_EQ(refusal(e.checkpoint(), R"(, "rotation_config": {"hadamard": "random"})"),
            "config.json: quantization_config: rotation_config is given: the inputs of its layers "
            "are to be rotated, which is not done yet");
  EXPECT_EQ(message(load_layer(e.checkpoint(), e.config("zip", true, ""), e.layer())),
            "config.json: quantization_config: packing_format is \"zip\", which is not known: it "
            "decides how zero points are stored");
  EXPECT_EQ(refusal(e.checkpoint(), R"(, "extra_config": 7)"),
            "config.json: quantization_config: extra_config: expected an object, found the integer "
            "7");
  EXPECT_EQ(
      refusal(e.checkpoint(), R"(, "extra_config": {"up_proj": 4})"),
      "config.json: quantization_config: extra_config: up_proj: expected an object, found the "
      "integer 4");
  EXPECT_EQ(refusal(e.checkpoint(), R"(, "extra_config": {"up_proj": {"bits": 9}})"),
            "model.layers.0.mlp.up_proj: bits is 9; packed weights of 2 to 8 bits are read");
  EXPECT_EQ(refusal(e.checkpoint(), R"(, "extra_config": {"up_proj": {"bits": 8}})"),
            "model.layers.0.mlp.up_proj.qweight: expected shape (16, 32) for 64 inputs of 8 bits, "
            "found (8, 32): bits is 4, or the layer has 32 inputs; the config is wrong in one of "
            "them");
  TestCheckpoint nv;
  nv.add(kModule + ".weight_packed", DType::kU8, {32, 32}, std::vector<uint8_t>(1024));
  EXPECT_EQ(refusal(nv, ""),
            "model.layers.0.mlp.up_proj.weight_packed is u8, but has no scale: neither "
            "weight_scale_inv nor weight_scale is stored");
  nv.add(kModule + ".weight_scale", DType::kF16, {32, 4}, std::vector<uint16_t>(128));
  EXPECT_EQ(refusal(nv, ""),
            "model.layers.0.mlp.up_proj.weight_scale is f16: of the packed floats of auto-round "
            "mx_fp is read, whose scales are u8, and nv_fp, whose scales are e4m3");
  nv.add(kModule + ".weight_scale", DType::kU8, {32, 4}, std::vector<uint8_t>(128));
  EXPECT_EQ(refusal(nv, ""),
            "model.layers.0.mlp.up_proj.weight_scale u8 (32, 4): one for 16 inputs: scales of "
            "nvfp4_v2 (e5m3), which are not read");
  TestCheckpoint bytes;
  bytes.add(kModule + ".weight", DType::kU8, {32, 64}, std::vector<uint8_t>(2048));
  bytes.add(kModule + ".weight_scale", DType::kF32, {}, std::vector<float>{1});
  EXPECT_EQ(
      refusal(bytes, ""),
      "model.layers.0.mlp.up_proj.weight u8 (32, 64): of floats of a byte or less fp8 (N, K), and "
      "as u8 fp6 (N, 3K/4) and fp4 (N, K/2) are read; N is 32 and K 64");
}

TEST(auto_round, integers_that_are_stored_as_floats_are_and_other_inputs_are_refused) {
  TestCheckpoint four;
  four.add(kModule + ".weight_packed", DType::kU8, {1, 16}, std::vector<uint8_t>(16, 0xf2));
  four.add(kModule + ".weight_scale", DType::kU8, {1, 1}, std::vector<uint8_t>{128});
  const auto refusal = [&](const std::string& more) {
    const std::string start = R"({"quant_method": "auto-round", "bits": 4, "group_size": 32, )";
    return message(load_layer(four, start + more + "}", {kModule, 1, 32, false, {}}));
  };
  const std::string mx_int =
      "model.layers.0.mlp.up_proj.weight_packed is u8 (1, 16): so floats are stored (fp, mx_fp, "
      "nv_fp), but data_type is \"mx_int\", which is not read";
  EXPECT_EQ(refusal(R"("data_type": "mx_int", "act_bits": 4, "act_data_type": "mx_int")"), mx_int);
  EXPECT_EQ(refusal(R"("data_type": "mx_fp", "extra_config": {
                      "model.layers.0.mlp.up_proj": {"data_type": "mx_int"}})"),
            mx_int);
  const std::string wrong_inputs =
      "model.layers.0.mlp.up_proj: act_bits is {} and act_data_type \"{}\"; beside weights that "
      "are floats inputs of e4m3 (8 bits) and e2m1 (4 bits) are read";
  EXPECT_EQ(refusal(R"("data_type": "mx_fp", "act_bits": 6, "act_data_type": "mx_fp")"),
            fmt::format(fmt::runtime(wrong_inputs), 6, "mx_fp"));
  EXPECT_EQ(refusal(R"("data_type": "mx_fp", "act_bits": 8, "act_data_type": "int")"),
            fmt::format(fmt::runtime(wrong_inputs), 8, "int"));
  EXPECT_EQ(refusal(R"("data_type": "mx_fp", "act_bits": 4, "act_group_size": 64)"),
            "model.layers.0.mlp.up_proj: act_group_size is not 32, which goes with scales like "
            "those of its weights");
  EXPECT_EQ(refusal(R"("act_bits": 8, "act_group_size": -2)"),
            "config.json: quantization_config: act_group_size: expected -1 (a token), 0 (all "
            "tokens) or a positive number, found -2");
  EXPECT_EQ(refusal(R"("act_bits": 8, "act_dynamic": true, "activation_scheme": "static")"),
            "config.json: quantization_config: activation_scheme is static, but act_dynamic is "
            "true; one of them is wrong");
}

TEST(auto_round, nv_fp_has_scales_on_two_levels_that_divide) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight_packed", DType::kU8, {1, 8}, std::vector<uint8_t>(8, 0xf2));
  checkpoint.add(kModule + ".weight_scale", DType::kE4M3, {1, 1}, std::vector<uint8_t>{0x40});
  checkpoint.add(kModule + ".weight_global_scale", DType::kF32, {1}, std::vector<float>{8});
  checkpoint.add(kModule + ".input_global_scale", DType::kF32, {1}, std::vector<float>{4});
  const LinearLayer layer{kModule, 1, 16, false, {}};
  const std::string start = R"({"quant_method": "auto-round", "bits": 4, "group_size": 16,
      "data_type": "nv_fp", "act_data_type": "nv_fp4_with_static_gs", "act_bits": )";
  const auto weight = load_layer(checkpoint, start + "4}", layer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight)[0], 0.25f);
  EXPECT_EQ(dequantize(*weight)[1], -1.5f);
  EXPECT_EQ(tensor::to_string(weight->activation), "e2m1 g16 x e4m3");
  EXPECT_EQ(weight->input_scale, 0.25f);
  const auto alone = load_layer(checkpoint, start + "16}", layer);
  ASSERT_TRUE(alone) << message(alone);
  EXPECT_EQ(tensor::to_string(alone->activation), "float");
}

TEST(auto_round, micro_scaled_floats_have_scales_that_are_powers_of_two) {
  TestCheckpoint four;
  four.add(kModule + ".weight_packed", DType::kU8, {1, 16}, std::vector<uint8_t>(16, 0xf2));
  four.add(kModule + ".weight_scale", DType::kU8, {1, 1}, std::vector<uint8_t>{128});
  const LinearLayer layer{kModule, 1, 32, false, {}};
  const auto weight = load_layer(four,
                                 R"({"quant_method": "auto-round", "bits": 4, "group_size": 32,
      "data_type": "mx_fp", "act_bits": 4, "act_data_type": "mx_fp_rceil",
      "packing_format": "auto_round:llm_compressor"})",
                                 layer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight)[0], 2);
  EXPECT_EQ(dequantize(*weight)[1], -12);
  EXPECT_EQ(weight->activation.type, tensor::ActivationFormat::Type::kE2M1);
  EXPECT_EQ(weight->activation.scale_rule, tensor::ActivationFormat::ScaleRule::kE8M0Ceil);
  TestCheckpoint eight;
  eight.add(kModule + ".weight", DType::kE4M3, {1, 32}, std::vector<uint8_t>(32, 0x38));
  eight.add(kModule + ".weight_scale", DType::kU8, {1, 1}, std::vector<uint8_t>{126});
  const auto wide = load_layer(eight,
                               R"({"quant_method": "auto-round", "bits": 8, "group_size": 32,
      "data_type": "mx_fp", "act_bits": 8, "act_data_type": "mx_fp",
      "packing_format": "auto_round:llm_compressor"})",
                               layer);
  ASSERT_TRUE(wide) << message(wide);
  EXPECT_EQ(dequantize(*wide)[0], 0.5f);
  EXPECT_EQ(wide->activation.scale_rule, tensor::ActivationFormat::ScaleRule::kE8M0Floor);
  EXPECT_EQ(message(load_layer(eight, R"({"quant_method": "auto-round", "group_size": 32})",
                               {kModule, 1, 33, false, {}})),
            "model.layers.0.mlp.up_proj.weight_scale is (1, 1), but a scale that is a power of two "
            "says blocks of 1 x 32, which makes (1, 2)");
}

}  // namespace
}  // namespace nibble::quant
