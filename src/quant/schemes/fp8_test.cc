#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/number.h"
#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::Shape;

const std::string kModule = "model.layers.0.mlp.up_proj";
const std::string kDynamic = R"({"quant_method": "fp8", "activation_scheme": "dynamic"})";
const std::string kStatic = R"({"quant_method": "fp8", "activation_scheme": "static"})";
const std::string kBlock =
    R"({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [4, 8]})";
const std::string kAt = "config.json: quantization_config: ";

std::vector<uint8_t> codes(int64_t count) {
  std::vector<uint8_t> out;
  for (int64_t i = 0; i < count; ++i)
    out.push_back(static_cast<uint8_t>(i * 37 % 126 | i % 2 << 7));
  return out;
}

TestCheckpoint weight_only(int64_t n, int64_t k, DType dtype = DType::kE4M3) {
  TestCheckpoint out;
  out.add(kModule + ".weight", dtype, {n, k}, codes(n * k));
  return out;
}

// Expects w = value(code) * scale(n, k).
template <class Scale>
void expect_weight(const tensor::QuantizedWeight& weight, float (*value)(uint8_t), Scale scale) {
  const auto code = codes(weight.n * weight.k);
  const std::vector<float> w = dequantize(weight);
  for (int64_t n = 0; n < weight.n; ++n) {
    for (int64_t k = 0; k < weight.k; ++k) {
      const auto i = static_cast<size_t>(n * weight.k + k);
      ASSERT_EQ(w[i], value(code[i]) * scale(n, k)) << n << ", " << k;
    }
  }
}

TEST(fp8, a_scale_per_tensor_multiplies_all) {
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{1, 1}}) {
    TestCheckpoint checkpoint = weight_only(6, 10);
    checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, shape, {0.3f});
    const auto weight = load_layer(checkpoint, kDynamic, {kModule, 6, 10, false, {}});
    ASSERT_TRUE(weight) << message(weight);
    EXPECT_EQ(tensor::to_string(weight->format), "e4m3t");
    EXPECT_EQ(tensor::to_string(weight->activation), "e4m3 token");
    expect_weight(*weight, base::f32_from_e4m3, [](int64_t, int64_t) { return 0.3f; });
    // The weights are used where they lie.
    EXPECT_EQ(weight->code.data, checkpoint.view(kModule + ".weight").data);
  }
}

TEST(fp8, a_scale_per_output_has_one_or_two_dimensions) {
  for (const Shape& shape : {Shape{6}, Shape{6, 1}}) {
    TestCheckpoint checkpoint = weight_only(6, 10);
    checkpoint.add<uint16_t>(kModule + ".weight_scale", DType::kBF16, shape,
                             {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0});
    const auto weight = load_layer(checkpoint, kDynamic, {kModule, 6, 10, false, {}});
    ASSERT_TRUE(weight) << message(weight);
    EXPECT_EQ(tensor::to_string(weight->format), "e4m3c");
    EXPECT_EQ(weight->format.scale_type, DType::kBF16);
    expect_weight(*weight, base::f32_from_e4m3,
                  [](int64_t n, int64_t) { return static_cast<float>(n + 1); });
  }
}

TEST(fp8, the_last_blocks_are_short_where_the_size_does_not_divide) {
  for (const char* name : {"weight_scale_inv", "weight_scale"}) {
    TestCheckpoint checkpoint = weight_only(6, 20);  // blocks of 4 and 2 outputs, 8, 8 and 4 inputs
    checkpoint.add<float>(kModule + "." + name, DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6});
    const auto weight = load_layer(checkpoint, kBlock, {kModule, 6, 20, false, {}});
    ASSERT_TRUE(weight) << message(weight);
    EXPECT_EQ(tensor::to_string(weight->format), "e4m3b4x8");
    EXPECT_EQ(tensor::to_string(weight->activation), "e4m3 g8");
    expect_weight(*weight, base::f32_from_e4m3,
                  [](int64_t n, int64_t k) { return static_cast<float>(1 + n / 4 * 3 + k / 8); });
  }
}

TEST(fp8, e8m0_scales_are_powers_of_two) {
  TestCheckpoint checkpoint = weight_only(4, 8);
  checkpoint.add<uint8_t>(kModule + ".weight_scale_inv", DType::kE8M0, {1, 1}, {120});
  const auto weight = load_layer(
      checkpoint, R"({"quant_method": "fp8", "activation_scheme": "dynamic", "scale_fmt": "ue8m0",
                      "weight_block_size": [4, 8]})",
      {kModule, 4, 8, false, {}});
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(weight->format.scale_type, DType::kE8M0);
  expect_weight(*weight, base::f32_from_e4m3, [](int64_t, int64_t) { return 0x1p-7f; });
}

TEST(fp8, each_byte_type_is_read_as_what_it_is) {
  struct Case {
    DType dtype;
    float (*value)(uint8_t);
  };
  for (const Case& c : {Case{DType::kE4M3FNUZ, base::f32_from_e4m3fnuz},
                        Case{DType::kE5M2FNUZ, base::f32_from_e5m2fnuz}}) {
    TestCheckpoint checkpoint = weight_only(6, 10, c.dtype);
    checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, {}, {0.5f});
    const auto weight = load_layer(checkpoint, kDynamic, {kModule, 6, 10, false, {}});
    ASSERT_TRUE(weight) << message(weight);
    expect_weight(*weight, c.value, [](int64_t, int64_t) { return 0.5f; });
  }
}

TEST(fp8, static_activations_take_the_stored_scale) {
  for (const char* name : {"input_scale", "activation_scale"}) {
    TestCheckpoint checkpoint = weight_only(6, 10);
    checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, {}, {0.5f});
    checkpoint.add<float>(kModule + "." + name, DType::kF32, {1}, {0.25f});
    const auto weight = load_layer(checkpoint, kStatic, {kModule, 6, 10, false, {}});
    ASSERT_TRUE(weight) << message(weight);
    EXPECT_EQ(tensor::to_string(weight->activation), "e4m3 tensor static");
    EXPECT_EQ(weight->input_scale, 0.25f);
    checkpoint.remove(kModule + "." + name);
    EXPECT_EQ(message(load_layer(checkpoint, kStatic, {kModule, 6, 10, false, {}})),
              "missing " + kModule + ".input_scale");
  }
}

TEST(fp8, an_input_scale_beside_dynamic_activations_is_unused_and_says_why) {
  TestCheckpoint checkpoint = weight_only(6, 10);
  checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, {}, {0.5f});
  checkpoint.add<float>(kModule + ".input_scale", DType::kF32, {}, {0.25f});
  const auto config = parse_config(checkpoint, kDynamic);
  const auto method = (*config)->linear_method({kModule, 6, 10, false, {}}, checkpoint.lookup());
  ASSERT_TRUE(method) << message(method);
  const auto specs = (*method)->create_weights();
  ASSERT_EQ(specs.size(), 3u);
  EXPECT_EQ(specs[2].slot, Slot::kUnused);
  EXPECT_EQ(specs[2].unused, "activation_scheme is dynamic");
}

TEST(fp8, the_parts_of_a_fused_layer_keep_their_own_scales) {
  TestCheckpoint checkpoint = weight_only(8, 10);
  checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, {3}, {1, 2, 3});
  checkpoint.add<float>(kModule + ".input_scale", DType::kF32, {3}, {0.5f, 0.5f, 0.5f});
  const LinearLayer layer{kModule, 8, 10, false, {4, 2, 2}};
  const auto weight = load_layer(checkpoint, kStatic, layer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "e4m3c");
  expect_weight(*weight, base::f32_from_e4m3, [](int64_t n, int64_t) {
    return n < 4 ? 1.0f : n < 6 ? 2.0f : 3.0f;
  });
  checkpoint.add<float>(kModule + ".input_scale", DType::kF32, {3}, {0.5f, 2.0f, 0.5f});
  EXPECT_EQ(
      message(load_layer(checkpoint, kStatic, layer)),
      "input_scale: the parts of a fused layer have the input scales 0.5, 2, 0.5; one product "
      "needs one");
}

TEST(fp8, plain_weights_stay_plain_whatever_the_list_says) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kBF16, {2, 2}, std::vector<uint16_t>(4, 0x3f80));
  const auto weight = load_layer(checkpoint, kDynamic, {kModule, 2, 2, false, {}});
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "bf16");
  TestCheckpoint quantized = weight_only(6, 10);
  quantized.add<float>(kModule + ".weight_scale", DType::kF32, {}, {0.5f});
  const auto listed = load_layer(quantized,
                                 R"({"quant_method": "fp8", "activation_scheme": "dynamic",
                                     "ignored_layers": ["mlp.up_proj"]})",
                                 {kModule, 6, 10, false, {}});
  ASSERT_TRUE(listed) << message(listed);
  EXPECT_EQ(tensor::to_string(listed->format), "e4m3t");
}

TEST(fp8, notes_name_the_key_that_has_the_list) {
  const std::string at = "config.json: quantization_config: ";
  for (const auto& [keys, by] :
       {std::pair<std::string, std::string>{R"("modules_to_not_convert": ["mlp.up_proj"])",
                                            "modules_to_not_convert: \"mlp.up_proj\""},
        {R"("ignored_layers": ["mlp.up_proj"])", "ignored_layers: \"mlp.up_proj\""},
        {R"("ignored_layers": ["a"], "modules_to_not_convert": ["up_proj"])",
         "ignored_layers and modules_to_not_convert: \"up_proj\""}}) {
    const auto config =
        parse_config(TestCheckpoint(),
                     R"({"quant_method": "fp8", "activation_scheme": "dynamic", )" + keys + "}");
    ASSERT_TRUE(config) << message(config);
    EXPECT_EQ((*config)->listed({kModule, 6, 10, false, {}})->by, at + by);
  }
}

TEST(fp8, a_weight_without_a_scale_is_refused) {
  TestCheckpoint checkpoint = weight_only(6, 10);
  const LinearLayer layer{kModule, 6, 10, false, {}};
  EXPECT_EQ(message(load_layer(checkpoint, kDynamic, layer)),
            kModule +
                ".weight is e4m3, but has no scale: neither weight_scale_inv nor weight_scale is "
                "stored");
  checkpoint.add<float>(kModule + ".scale_weight", DType::kF32, {}, {0.5f});
  EXPECT_EQ(message(load_layer(checkpoint, kDynamic, layer)),
            kModule +
                ".weight is e4m3, but has no scale: neither weight_scale_inv nor weight_scale is "
                "stored (" +
                kModule + ".scale_weight is no name of this format)");
}

TEST(fp8, a_scale_of_a_strange_shape_is_refused) {
  TestCheckpoint checkpoint = weight_only(6, 10);
  checkpoint.add<float>(kModule + ".weight_scale_inv", DType::kF32, {2, 4},
                        std::vector<float>(8, 1));
  const LinearLayer layer{kModule, 6, 10, false, {}};
  EXPECT_EQ(message(load_layer(checkpoint, kDynamic, layer)),
            kModule +
                ".weight_scale_inv: (2, 4) is neither one scale nor one per output (6), and "
                "weight_block_size is not given: blocks of 3 to 5 x 3 would have as many");
}

TEST(fp8, blocks_that_no_key_gives_are_found) {
  const LinearLayer layer{kModule, 6, 40, false, {}};
  TestCheckpoint checkpoint = weight_only(6, 40);
  checkpoint.add<float>(kModule + ".weight_scale_inv", DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6});
  auto weight = load_layer(checkpoint, kDynamic, layer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "e4m3b4x16");
  EXPECT_EQ(tensor::to_string(weight->activation), "e4m3 g16");
  expect_weight(*weight, base::f32_from_e4m3,
                [](int64_t n, int64_t k) { return static_cast<float>(n / 4 * 3 + k / 16 + 1); });
  // One block of outputs: as long as those of inputs.
  checkpoint.add<float>(kModule + ".weight_scale_inv", DType::kF32, {1, 3}, {1, 2, 3});
  weight = load_layer(checkpoint, kDynamic, layer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "e4m3b16x16");
  EXPECT_EQ(message(load_layer(checkpoint, kStatic, layer)),
            kModule +
                ".weight_scale_inv (1, 3) has a scale per block, but the activations are static; "
                "block weights have dynamic activations");
}

TEST(fp8, blocks_that_no_key_gives_have_sides_of_1_or_that_divide_the_sizes) {
  for (const auto& [shape, format] : {std::pair<Shape, const char*>{{96, 3}, "e4m3g32"},
                                      {{3, 96}, "e4m3b32x1"},
                                      {{6, 3}, "e4m3b16x32"},
                                      {{6, 1}, "e4m3b16x96"},
                                      {{2, 3}, "e4m3b64x32"}}) {
    TestCheckpoint checkpoint = weight_only(96, 96);
    std::vector<float> scales(static_cast<size_t>(*tensor::element_count(shape)));
    std::iota(scales.begin(), scales.end(), 1.0f);
    checkpoint.add(kModule + ".weight_scale_inv", DType::kF32, shape, scales);
    auto weight = load_layer(checkpoint, kDynamic, {kModule, 96, 96, false, {}});
    ASSERT_TRUE(weight) << message(weight);
    EXPECT_EQ(tensor::to_string(weight->format), format);
    const int64_t block_n = weight->format.group_n, block_k = weight->format.group_k;
    expect_weight(*weight, base::f32_from_e4m3, [&, columns = shape[1]](int64_t n, int64_t k) {
      return static_cast<float>(n / block_n * columns + k / block_k + 1);
    });
  }
}

TEST(fp8, other_layers_tell_what_blocks_one_leaves_open) {
  TestCheckpoint checkpoint = weight_only(96, 96);
  checkpoint.add<float>(kModule + ".weight_scale_inv", DType::kF32, {2, 2}, {1, 2, 3, 4});
  const LinearLayer layer{kModule, 96, 96, false, {}};
  auto weight = load_layer(checkpoint, kDynamic, layer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "e4m3b64x64");
  checkpoint.add_bytes("other.weight", DType::kE4M3, {192, 192}, "");
  checkpoint.add_bytes("other.weight_scale_inv", DType::kF32, {4, 4}, "");
  weight = load_layer(checkpoint, kDynamic, layer);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "e4m3b48x48");
  EXPECT_EQ((*parse_config(checkpoint, kDynamic))->notes,
            std::vector<std::string>{"weight_block_size is not given: blocks of 48 x 48 are taken "
                                     "from the shapes of the scales"});
}

TEST(fp8, blocks_that_all_layers_together_leave_open_are_refused) {
  TestCheckpoint checkpoint = weight_only(64, 64);
  checkpoint.add<float>(kModule + ".weight_scale_inv", DType::kF32, {2, 2}, {1, 2, 3, 4});
  checkpoint.add_bytes("other.weight", DType::kE4M3, {128, 64}, "");
  checkpoint.add_bytes("other.weight_scale_inv", DType::kF32, {3, 2}, "");
  EXPECT_EQ(message(load_layer(checkpoint, kDynamic, {kModule, 64, 64, false, {}})),
            kModule +
                ".weight_scale_inv: (2, 2) is neither one scale nor one per output (64), and "
                "weight_block_size is not given: blocks of 43 to 63 x 32 to 63 would have as "
                "many");
}

TEST(fp8, a_scale_that_is_not_one_per_block_contradicts_weight_block_size) {
  const LinearLayer layer{kModule, 6, 10, false, {}};
  for (const auto& [shape, text] : {std::pair<Shape, const char*>{{}, "()"},
                                    {{6}, "(6)"},
                                    {{6, 1}, "(6, 1)"},
                                    {{2, 3}, "(2, 3)"}}) {
    TestCheckpoint checkpoint = weight_only(6, 10);
    const auto count = static_cast<size_t>(*tensor::element_count(shape));
    checkpoint.add(kModule + ".weight_scale_inv", DType::kF32, shape, std::vector<float>(count, 1));
    EXPECT_EQ(message(load_layer(checkpoint, kBlock, layer)),
              fmt::format("{}.weight_scale_inv is {}, but weight_block_size says blocks of 4 x 8, "
                          "which makes (2, 2)",
                          kModule, text));
  }
  // A layer of one block has one scale.
  TestCheckpoint small = weight_only(3, 8);
  small.add<float>(kModule + ".weight_scale_inv", DType::kF32, {}, {2});
  const auto weight = load_layer(small, kBlock, {kModule, 3, 8, false, {}});
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->activation), "e4m3 g8");
}

TEST(fp8, scales_that_cannot_be_are_refused_by_place) {
  const LinearLayer layer{kModule, 2, 4, false, {}};
  auto with = [&](std::vector<float> scales) {
    TestCheckpoint checkpoint = weight_only(2, 4);
    checkpoint.add(kModule + ".weight_scale", DType::kF32, {2, 1}, scales);
    return message(load_layer(checkpoint, kDynamic, layer));
  };
  EXPECT_EQ(with({1, 0}), "no error");  // as tools write it for a row of zeros
  EXPECT_EQ(with({-1, 1}), "weight_scale: element (0, 0) is -1; a scale is not negative");
  EXPECT_EQ(with({1, HUGE_VALF}), "weight_scale: element (1, 0) is inf; the file is damaged");
  EXPECT_EQ(with({1, NAN}), "weight_scale: element (1, 0) is nan; the file is damaged");
  TestCheckpoint checkpoint = weight_only(2, 4);
  checkpoint.add<uint8_t>(kModule + ".weight_scale", DType::kE8M0, {}, {255});
  EXPECT_EQ(message(load_layer(checkpoint, kDynamic, layer)),
            "weight_scale is nan; the file is damaged");
}

TEST(fp8, codes_that_are_no_numbers_are_refused_by_place) {
  const LinearLayer layer{kModule, 2, 4, false, {}};
  auto with = [&](DType dtype, uint8_t code) {
    TestCheckpoint checkpoint;
    checkpoint.add<uint8_t>(kModule + ".weight", dtype, {2, 4}, {0, 1, 2, 3, 4, 5, code, 7});
    checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, {}, {1});
    return message(load_layer(checkpoint, kDynamic, layer));
  };
  auto refusal = [](const char* code) {
    return fmt::format(
        "weight: element (1, 2) is {}, which is no number; the file is damaged or was "
        "quantized with a scale of zero",
        code);
  };
  EXPECT_EQ(with(DType::kE4M3, 0x7f), refusal("0x7f"));
  EXPECT_EQ(with(DType::kE4M3, 0xff), refusal("0xff"));
  EXPECT_EQ(with(DType::kE4M3, 0x80), "no error");
  EXPECT_EQ(with(DType::kE5M2, 0x7c), refusal("0x7c"));
  EXPECT_EQ(with(DType::kE5M2, 0xfe), refusal("0xfe"));
  EXPECT_EQ(with(DType::kE4M3FNUZ, 0x80), refusal("0x80"));
  EXPECT_EQ(with(DType::kE4M3FNUZ, 0xff), "no error");
}

TEST(fp8, a_weight_of_another_type_is_refused) {
  TestCheckpoint checkpoint;
  checkpoint.add<uint8_t>(kModule + ".weight", DType::kU8, {2, 4}, std::vector<uint8_t>(8));
  EXPECT_EQ(message(load_layer(checkpoint, kDynamic, {kModule, 2, 4, false, {}})),
            kModule + ".weight: expected a type of fp8 or a plain float, found u8");
}

TEST(fp8, configs_that_cannot_be_read_are_refused_by_key_and_value) {
  auto refused = [](const std::string& keys) {
    return message(parse_config(TestCheckpoint(), R"({"quant_method": "fp8", )" + keys + "}"));
  };
  EXPECT_EQ(refused(R"("activation_scheme": "dynamic", "scale_fmt": "float", "fmt": "e4m3")"),
            "no error");
  EXPECT_EQ(refused(R"("fmt": "e4m3")"), kAt + "key \"activation_scheme\" is missing");
  EXPECT_EQ(refused(R"("activation_scheme": "token")"),
            kAt + "activation_scheme is \"token\"; known are: dynamic, static");
  EXPECT_EQ(refused(R"("activation_scheme": "dynamic", "scale_fmt": "e5m3")"),
            kAt + "scale_fmt is \"e5m3\"; known are: float, ue8m0");
  EXPECT_EQ(refused(R"("activation_scheme": "dynamic", "store_dtype": "mxfp4")"),
            kAt + "store_dtype is \"mxfp4\"; known are: fp8");
  EXPECT_EQ(refused(R"("activation_scheme": "static", "weight_block_size": [128, 128])"),
            kAt +
                "activation_scheme is static, but weight_block_size is given; block weights have "
                "dynamic activations");
  for (const char* size :
       {"128", "[128]", "[128, 0]", "[-1, 128]", "[128, 128, 128]", "[1.5, 2]"}) {
    EXPECT_EQ(
        refused(fmt::format(R"("activation_scheme": "dynamic", "weight_block_size": {})", size))
            .rfind(kAt + "weight_block_size: expected two positive integers, found ", 0),
        0u)
        << size;
  }
}

TEST(fp8, a_checkpoint_that_does_not_say_is_read_when_the_scheme_is_named) {
  TestCheckpoint checkpoint = weight_only(6, 10);
  checkpoint.add<float>(kModule + ".weight_scale", DType::kF32, {}, {0.5f});
  checkpoint.add<float>(kModule + ".input_scale", DType::kF32, {}, {0.25f});
  CheckpointFacts facts;
  facts.tensors = checkpoint.lookup();
  const auto scheme = detect_scheme(facts, "FP8");
  ASSERT_TRUE(scheme) << message(scheme);
  const auto config = (*scheme)->parse(facts);
  ASSERT_TRUE(config) << message(config);
  EXPECT_EQ((*config)->notes, (std::vector<std::string>{
                                  "no quantization_config: activations taken as static, for there "
                                  "are input scales"}));
  const auto method = (*config)->linear_method({kModule, 6, 10, false, {}}, facts.tensors);
  ASSERT_TRUE(method) << message(method);
  EXPECT_TRUE((*method)->activation_format().is_static);
}

// --quantization fp8 over a checkpoint of plain floats.
Result<std::unique_ptr<LinearMethod>> online_method(const TestCheckpoint& checkpoint,
                                                    const LinearLayer& layer) {
  CheckpointFacts facts;
  facts.tensors = checkpoint.lookup();
  NIBBLE_ASSIGN(const Scheme* scheme, detect_scheme(facts, "fp8"));
  NIBBLE_ASSIGN(const auto config, scheme->parse(facts));
  EXPECT_EQ(config->notes,
            (std::vector<std::string>{"no tensor is quantized: linear layers become e4m3 with a "
                                      "scale per output while loading"}));
  return config->linear_method(layer, facts.tensors);
}

TEST(fp8, plain_weights_become_e4m3_while_loading_when_it_is_asked_for) {
  TestCheckpoint checkpoint;
  checkpoint.add<float>(kModule + ".weight", DType::kF32, {3, 2}, {448, -1, 0.5f, 0.26f, 0, 0});
  const LinearLayer layer{kModule, 3, 2, false, {}};
  const auto method = online_method(checkpoint, layer);
  ASSERT_TRUE(method) << message(method);
  EXPECT_EQ((*method)->scheme(), "fp8");
  EXPECT_EQ(tensor::to_string((*method)->activation_format()), "e4m3 token");
  const auto raw = load_whole(checkpoint, layer, **method);
  const auto weight = (*method)->process_weights_after_loading(3, 2, *raw);
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "e4m3c");
  const float scale = 0.5f / 448;
  EXPECT_EQ(weight->scale, (std::vector<float>{1, scale, 1.0f / (448 * 512)}));
  EXPECT_EQ(
      dequantize(*weight),
      (std::vector<float>{448, -1, 448 * scale,
                          base::f32_from_e4m3(base::e4m3_from_f32(0.26f / scale)) * scale, 0, 0}));
}

TEST(fp8, the_embedding_and_the_head_are_left_alone_while_loading) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kBF16, {2, 2}, std::vector<uint16_t>(4, 0x3f80));
  const auto method = online_method(checkpoint, {kModule, 2, 2, false, {}, true});
  ASSERT_TRUE(method) << message(method);
  EXPECT_EQ((*method)->scheme(), "unquantized");
}

TEST(fp8, weights_that_are_no_numbers_are_refused_while_loading) {
  TestCheckpoint checkpoint;
  checkpoint.add<float>(kModule + ".weight", DType::kF32, {2, 2}, {1, 2, 3, NAN});
  const LinearLayer layer{kModule, 2, 2, false, {}};
  const auto method = online_method(checkpoint, layer);
  ASSERT_TRUE(method) << message(method);
  const auto raw = load_whole(checkpoint, layer, **method);
  EXPECT_EQ(message((*method)->process_weights_after_loading(2, 2, *raw)),
            "weight: output 1: element (0, 1) is nan; the file is damaged");
}

}  // namespace
}  // namespace nibble::quant
