#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;
using tensor::Element;
using tensor::Shape;

const std::string kModule = "model.layers.0.mlp.up_proj";
const std::string kConfig = R"({"quant_method": "bitsandbytes", "load_in_4bit": true})";
const std::string kInt8 = R"({"quant_method": "bitsandbytes", "load_in_8bit": true})";

// Writes a 4-bit layer as the format says, code by code.
struct Encoder {
  int64_t n = 4, k = 128, block = 64, nested = 0;
  std::string type = "nf4";
  std::vector<uint8_t> code;
  std::vector<float> absmax;         // without double quantization
  std::vector<uint8_t> absmax_code;  // with it
  std::vector<float> nested_absmax, nested_map;
  float offset = 0.375f;

  void fill(uint32_t seed) {
    std::mt19937 random(seed);
    const auto number = [&] { return static_cast<float>(1 + random() % 1000) / 256; };
    code.resize(static_cast<size_t>(n * k));
    for (uint8_t& c : code) c = random() % 16;
    const auto blocks = static_cast<size_t>((n * k + block - 1) / block);
    absmax.resize(blocks);
    for (float& a : absmax) a = number();
    if (nested == 0) return;
    absmax_code.resize(blocks);
    for (uint8_t& c : absmax_code) c = static_cast<uint8_t>(random());
    nested_absmax.resize((blocks + static_cast<size_t>(nested) - 1) / static_cast<size_t>(nested));
    for (float& a : nested_absmax) a = number();
    nested_map.resize(256);
    for (float& v : nested_map) v = number() - 2;
    for (size_t i = 0; i < blocks; ++i) {
      absmax[i] = nested_map[absmax_code[i]] * nested_absmax[i / static_cast<size_t>(nested)];
      absmax[i] += offset;
    }
  }

  Element element() const { return type == "nf4" ? Element::kNF4 : Element::kFP4; }
  std::string state_name() const { return kModule + ".weight.quant_state.bitsandbytes__" + type; }
  std::string state() const {
    std::string text = fmt::format(
        R"({{"quant_type": "{}", "blocksize": {}, "dtype": "float16", "shape": [{}, {}])", type,
        block, n, k);
    if (nested != 0) {
      text +=
          fmt::format(R"(, "nested_blocksize": {}, "nested_dtype": "float32", "nested_offset": {})",
                      nested, offset);
    }
    return text + "}";
  }

  TestCheckpoint checkpoint() const {
    TestCheckpoint out;
    std::vector<uint8_t> bytes((code.size() + 1) / 2);
    for (size_t i = 0; i < code.size(); ++i) {
      bytes[i / 2] |= static_cast<uint8_t>(i % 2 == 0 ? code[i] << 4 : code[i]);
    }
    const std::string weight = kModule + ".weight";
    out.add(weight, DType::kU8, {static_cast<int64_t>(bytes.size()), 1}, bytes);
    const auto blocks = static_cast<int64_t>(absmax.size());
    if (nested == 0) {
      out.add(weight + ".absmax", DType::kF32, {blocks}, absmax);
    } else {
      out.add(weight + ".absmax", DType::kU8, {blocks}, absmax_code);
      out.add(weight + ".nested_absmax", DType::kF32, {static_cast<int64_t>(nested_absmax.size())},
              nested_absmax);
      out.add(weight + ".nested_quant_map", DType::kF32, {256}, nested_map);
    }
    std::vector<float> table;
    for (uint32_t c = 0; c < 16; ++c) table.push_back(tensor::value_of(element(), c));
    out.add(weight + ".quant_map", DType::kF32, {16}, table);
    set_state(out, state());
    return out;
  }
  void set_state(TestCheckpoint& checkpoint, const std::string& text) const {
    checkpoint.add_bytes(state_name(), DType::kU8, {static_cast<int64_t>(text.size())}, text);
  }

  LinearLayer layer() const { return {kModule, n, k, false, {}}; }

  std::vector<float> expected() const {
    std::vector<float> out;
    for (size_t i = 0; i < code.size(); ++i) {
      out.push_back(tensor::value_of(element(), code[i]) * absmax[i / static_cast<size_t>(block)]);
    }
    return out;
  }
};

Encoder small(int64_t nested = 0) {
  Encoder e;
  e.nested = nested;
  e.fill(1);
  return e;
}

std::string refusal(const Encoder& e, const TestCheckpoint& checkpoint) {
  return message(load_layer(checkpoint, kConfig, e.layer()));
}

TEST(bitsandbytes, blocks_of_every_size_are_decoded_as_they_were_encoded) {
  uint32_t seed = 20261130;
  for (const char* type : {"nf4", "fp4"}) {
    for (int64_t block : {32, 64, 128, 1024, 4096}) {
      for (int64_t nested : {0, 4, 256}) {
        for (const auto& [n, k] :
             {std::pair<int64_t, int64_t>{8, 256}, {6, 96}, {96, 64}, {5, 33}, {3, 24}}) {
          Encoder e;
          e.type = type, e.block = block, e.nested = nested, e.n = n, e.k = k;
          e.fill(++seed);
          const auto weight = load_layer(e.checkpoint(), kConfig, e.layer());
          ASSERT_TRUE(weight) << message(weight);
          ASSERT_EQ(dequantize(*weight), e.expected())
              << type << " block " << block << " nested " << nested << " " << n << "x" << k;
        }
      }
    }
  }
}

TEST(bitsandbytes, the_first_code_is_in_the_high_half_of_its_byte) {
  Encoder e;
  e.n = 1, e.k = 8;
  e.code = {0, 15, 7, 8, 14, 1, 7, 0};
  e.absmax = {2};
  const TestCheckpoint checkpoint = e.checkpoint();
  EXPECT_EQ(static_cast<uint8_t>(checkpoint.view(kModule + ".weight").data[1]), 0x78);
  const auto weight = load_layer(checkpoint, kConfig, e.layer());
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight),
            (std::vector<float>{-2, 2, 0, 2 * 0.07958029955625534f, 2 * 0.7229568362236023f,
                                2 * -0.6961928009986877f, 0, -2}));
}

TEST(bitsandbytes, formats_say_the_group_that_a_row_is_cut_into) {
  Encoder e = small();
  EXPECT_EQ(tensor::to_string(load_layer(e.checkpoint(), kConfig, e.layer())->format), "nf4g64");
  e.k = 96, e.type = "fp4";  // blocks of 64 begin at input 0, 64 or, in the next row, 32
  e.fill(2);
  EXPECT_EQ(tensor::to_string(load_layer(e.checkpoint(), kConfig, e.layer())->format), "fp4g32");
  e.k = 32;
  e.fill(3);
  EXPECT_EQ(tensor::to_string(load_layer(e.checkpoint(), kConfig, e.layer())->format), "fp4c");
}

TEST(bitsandbytes, codes_may_be_stored_as_any_float_of_as_many_bytes) {
  const Encoder e = small();
  TestCheckpoint checkpoint = e.checkpoint();
  const tensor::TensorView view = checkpoint.view(kModule + ".weight");
  const std::string bytes(reinterpret_cast<const char*>(view.data), view.bytes);
  for (const auto& [dtype, size] : {std::pair{DType::kBF16, 2}, {DType::kF32, 4}}) {
    checkpoint.add_bytes(kModule + ".weight", dtype, {static_cast<int64_t>(bytes.size()) / size, 1},
                         bytes);
    const auto weight = load_layer(checkpoint, kConfig, e.layer());
    ASSERT_TRUE(weight) << message(weight);
    EXPECT_EQ(dequantize(*weight), e.expected());
  }
}

TEST(bitsandbytes, an_absmax_of_zero_is_a_block_of_zeros) {
  Encoder e = small();
  e.absmax[3] = 0;
  const auto weight = load_layer(e.checkpoint(), kConfig, e.layer());
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), e.expected());
}

TEST(bitsandbytes, a_layer_stored_as_floats_is_unquantized_and_a_stored_one_outranks_the_list) {
  const Encoder e = small();
  TestCheckpoint checkpoint = e.checkpoint();
  checkpoint.add("lm_head.weight", DType::kF32, {1, 2}, std::vector<float>{1, 2});
  const std::string config = R"({"quant_method": "bitsandbytes", "load_in_4bit": true,
      "llm_int8_skip_modules": ["lm_head", "mlp.up_proj", "visual"]})";
  const auto parsed = parse_config(checkpoint, config);
  ASSERT_TRUE(parsed) << message(parsed);
  EXPECT_EQ(
      (*(*parsed)->linear_method({"lm_head", 1, 2, false, {}}, checkpoint.lookup()))->scheme(),
      "unquantized");
  EXPECT_EQ((*(*parsed)->linear_method(e.layer(), checkpoint.lookup()))->scheme(), "bitsandbytes");
  for (const LinearLayer& layer : {e.layer(), LinearLayer{"lm_head", 1, 2, false, {}}}) {
    EXPECT_EQ((*parsed)->listed(layer)->says, Says::kLeftAlone) << layer.module;
  }
  EXPECT_EQ((*parsed)->matchers()[0]->rules_that_matched_nothing(),
            std::vector<std::string>{"visual"});
}

TEST(bitsandbytes, int8_rows_have_a_127th_of_their_absmax_as_scale) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kS8, {2, 2}, std::vector<int8_t>{127, -127, 1, -128});
  checkpoint.add(kModule + ".SCB", DType::kF32, {2}, std::vector<float>{127, 0.5f});
  const auto weight = load_layer(checkpoint, kInt8, {kModule, 2, 2, false, {}});
  ASSERT_TRUE(weight) << message(weight);
  const float unit = 0.5f * (1.0f / 127.0f);
  EXPECT_EQ(dequantize(*weight),
            (std::vector<float>{127 * (127 * (1.0f / 127.0f)), -127 * (127 * (1.0f / 127.0f)), unit,
                                -128 * unit}));
  EXPECT_EQ(tensor::to_string(weight->activation), "s8 token outliers>=6");
  const auto plain =
      load_layer(checkpoint, R"({"quant_method": "bitsandbytes", "llm_int8_threshold": 0.0})",
                 {kModule, 2, 2, false, {}});
  EXPECT_EQ(tensor::to_string(plain->activation), "s8 token");
}

TEST(bitsandbytes, contradictions_of_the_quant_state_are_refused_with_both_sides) {
  const std::string state = "weight.quant_state.bitsandbytes__nf4: ";
  for (const auto& [key, from, to, sentence] :
       {std::tuple{"quant_type", "\"nf4\"", "\"fp4\"",
                   "quant_type is fp4, but the stored tensors say nf4"},
        {"blocksize", ": 64", ": 128", "blocksize is 128, but the stored tensors say 64"},
        {"shape", "[4, 128]", "[128, 4]", "shape is [128,4], but the stored tensors say [4,128]"},
        {"nested_blocksize", ": 4", ": 8",
         "nested_blocksize is 8, but the stored tensors say 4"}}) {
    const Encoder e = small(4);
    TestCheckpoint checkpoint = e.checkpoint();
    std::string text = e.state();
    const std::string old = fmt::format("\"{}\": {}", key, from[0] == ':' ? from + 2 : from);
    ASSERT_NE(text.find(old), std::string::npos) << text;
    text.replace(text.find(old), old.size(),
                 fmt::format("\"{}\": {}", key, to[0] == ':' ? to + 2 : to));
    e.set_state(checkpoint, text);
    EXPECT_EQ(refusal(e, checkpoint), state + sentence);
  }
  const Encoder e = small();
  TestCheckpoint checkpoint = e.checkpoint();
  e.set_state(checkpoint, "{\"quant_type\": \"nf4\"}");
  EXPECT_EQ(refusal(e, checkpoint),
            "weight.quant_state.bitsandbytes__nf4: key \"blocksize\" is missing");
}

TEST(bitsandbytes, a_config_of_another_kind_than_what_is_stored_is_noted) {
  Encoder e;
  e.fill(1);
  const auto notes = [&](const TestCheckpoint& checkpoint, const std::string& keys) {
    const auto config =
        parse_config(checkpoint, R"({"quant_method": "bitsandbytes", )" + keys + "}");
    EXPECT_TRUE(config) << message(config);
    return config ? (*config)->notes : std::vector<std::string>();
  };
  using Notes = std::vector<std::string>;
  const std::string at = "config.json: quantization_config: ";
  EXPECT_EQ(notes(e.checkpoint(), R"("load_in_4bit": true, "bnb_4bit_quant_type": "nf4")"),
            Notes{});
  EXPECT_EQ(notes(e.checkpoint(), R"("load_in_8bit": true)"), Notes{});
  EXPECT_EQ(notes(e.checkpoint(), R"("load_in_4bit": "False", "load_in_8bit": true)"),
            Notes{at + "load_in_4bit is false, but nf4 is stored, which counts"});
  EXPECT_EQ(notes(e.checkpoint(), R"("bnb_4bit_quant_type": "fp4")"),
            Notes{at + "bnb_4bit_quant_type is fp4, but nf4 is stored, which counts"});
  e.type = "fp4";
  EXPECT_EQ(notes(e.checkpoint(), R"("bnb_4bit_quant_type": "nf4")"),
            Notes{at + "bnb_4bit_quant_type is nf4, but fp4 is stored, which counts"});
  TestCheckpoint int8;
  int8.add(kModule + ".SCB", DType::kF32, {1}, std::vector<float>{1});
  EXPECT_EQ(notes(int8, R"("load_in_8bit": false)"),
            Notes{at + "load_in_8bit is false, but int8 is stored, which counts"});
}

TEST(bitsandbytes, missing_and_damaged_tensors_are_named) {
  const Encoder e = small(4);
  TestCheckpoint checkpoint = e.checkpoint();
  checkpoint.remove(kModule + ".weight.nested_absmax");
  EXPECT_EQ(refusal(e, checkpoint),
            "model.layers.0.mlp.up_proj.weight.absmax is u8, double quantization, but "
            "model.layers.0.mlp.up_proj.weight.nested_absmax is missing");
  checkpoint.remove(kModule + ".weight.absmax");
  EXPECT_EQ(refusal(e, checkpoint),
            "model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4 is stored, but "
            "model.layers.0.mlp.up_proj.weight.absmax is missing");
  checkpoint = e.checkpoint();
  checkpoint.remove(e.state_name());
  EXPECT_EQ(refusal(e, checkpoint),
            "model.layers.0.mlp.up_proj.weight is u8 (256, 1), but has no "
            "quant_state.bitsandbytes__nf4 (or fp4), which says how to read it");
  checkpoint = small().checkpoint();
  checkpoint.add(kModule + ".weight.absmax", DType::kF32, {7}, std::vector<float>(7, 1.0f));
  EXPECT_EQ(refusal(e, checkpoint),
            "model.layers.0.mlp.up_proj.weight.absmax (7): no block size of 4 to 8192 gives 7 "
            "blocks of 512 numbers");
  checkpoint = small().checkpoint();
  std::vector<float> absmax(8, 1.0f);
  absmax[5] = std::numeric_limits<float>::quiet_NaN();
  checkpoint.add(kModule + ".weight.absmax", DType::kF32, {8}, absmax);
  EXPECT_EQ(refusal(e, checkpoint), "weight.absmax: element (5) is nan; the file is damaged");
  checkpoint = small().checkpoint();
  std::vector<float> table(16, 0.5f);
  table[0] = -1;
  checkpoint.add(kModule + ".weight.quant_map", DType::kF32, {16}, table);
  EXPECT_EQ(refusal(e, checkpoint),
            "weight.quant_map: the value of code 1 is 0.5; that of nf4 is -0.6961928");
  checkpoint = small().checkpoint();
  checkpoint.add(kModule + ".weight", DType::kU8, {255, 1}, std::vector<uint8_t>(255));
  EXPECT_EQ(refusal(e, checkpoint), "weight: expected (256), found u8 (255, 1) of 255 bytes");
}

TEST(bitsandbytes, int8_layouts_of_old_gpus_are_refused) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kS8, {1, 1}, std::vector<int8_t>{1});
  checkpoint.add(kModule + ".SCB", DType::kF32, {1}, std::vector<float>{1});
  checkpoint.add(kModule + ".weight_format", DType::kU8, {}, std::vector<uint8_t>{0});
  EXPECT_TRUE(load_layer(checkpoint, kInt8, {kModule, 1, 1, false, {}}));
  checkpoint.add(kModule + ".weight_format", DType::kU8, {}, std::vector<uint8_t>{2});
  EXPECT_EQ(message(load_layer(checkpoint, kInt8, {kModule, 1, 1, false, {}})),
            "weight_format is 2, a layout of an old GPU's tensor cores; 0 (row) is read: save the "
            "model again with bitsandbytes 0.45 or later");
}

TEST(bitsandbytes, int8_codes_without_the_absmax_of_their_rows_are_refused) {
  TestCheckpoint checkpoint;
  checkpoint.add(kModule + ".weight", DType::kS8, {1, 2}, std::vector<int8_t>{1, 2});
  EXPECT_EQ(message(load_layer(checkpoint, kInt8, {kModule, 1, 2, false, {}})),
            "missing model.layers.0.mlp.up_proj.SCB");
}

TEST(bitsandbytes, a_threshold_below_zero_is_refused) {
  EXPECT_EQ(message(parse_config({}, R"({"quant_method": "bitsandbytes",
                                        "llm_int8_threshold": -1})")),
            "config.json: quantization_config: llm_int8_threshold: expected 0 (no outliers) or a "
            "positive number, found -1");
}

}  // namespace
}  // namespace nibble::quant
