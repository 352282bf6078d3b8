#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <random>

#include "base/number.h"
#include "quant/test_support.h"

namespace nibble::quant {
namespace {

using tensor::DType;

const std::string kModule = "model.layers.0.mlp.up_proj";

// A layer written by an encoder that knows nothing of words but "bit i of the stream is bit i % 32
// of word i / 32".
struct Encoder {
  int64_t n = 32, k = 64, bits = 4, group = 32;
  bool sym = true, v2 = false, act_order = false;
  std::vector<uint32_t> code;   // (K, N)
  std::vector<int64_t> zero;    // (g, N)
  std::vector<uint16_t> scale;  // (g, N) f16
  std::vector<int32_t> g_idx;   // (K)

  int64_t groups() const { return group == -1 ? 1 : (k + group - 1) / group; }

  void fill(uint32_t seed) {
    std::mt19937 random(seed);
    auto below = [&random](uint32_t limit) { return random() % limit; };
    const uint32_t levels = 1u << bits;
    code.resize(static_cast<size_t>(n * k));
    for (uint32_t& c : code) c = below(levels);
    zero.assign(static_cast<size_t>(groups() * n), levels / 2);
    for (int64_t& z : zero) {
      if (!sym) z = below(levels);
    }
    scale.resize(zero.size());
    for (uint16_t& s : scale) s = static_cast<uint16_t>(0x2000 + below(0x1000));
    g_idx.resize(static_cast<size_t>(k));
    for (int64_t i = 0; i < k; ++i) {
      g_idx[static_cast<size_t>(i)] = static_cast<int32_t>(group == -1 ? 0 : i / group);
    }
    if (act_order) std::shuffle(g_idx.begin(), g_idx.end(), random);
  }

  // `count` codes of one stream; code i is value(i).
  template <class F>
  std::vector<uint32_t> stream(int64_t count, F value) const {
    std::vector<uint32_t> words(static_cast<size_t>(count * bits / 32));
    for (int64_t i = 0; i < count * bits; ++i) {
      const uint32_t bit = static_cast<uint32_t>(value(i / bits) >> i % bits & 1);
      words[static_cast<size_t>(i / 32)] |= bit << i % 32;
    }
    return words;
  }

  TestCheckpoint checkpoint() const {
    const auto rows = static_cast<size_t>(k * bits / 32), columns = static_cast<size_t>(n);
    std::vector<uint32_t> qweight(rows * columns), qzeros;
    for (size_t j = 0; j < columns; ++j) {
      const auto words =
          stream(k, [&](int64_t i) { return code[static_cast<size_t>(i) * columns + j]; });
      for (size_t r = 0; r < rows; ++r) qweight[r * columns + j] = words[r];
    }
    for (int64_t g = 0; g < groups(); ++g) {
      auto words = stream(n, [&](int64_t j) {
        const int64_t z = zero[static_cast<size_t>(g * n + j)];
        return bits == 3 && !v2 ? (z - 1) & 7 : z;
      });
      // Version 1 subtracts one from every field, as one subtraction from the word.
      for (uint32_t& word : words) {
        if (!v2 && bits != 3)
          word -= bits == 2 ? 0x55555555u : bits == 4 ? 0x11111111u : 0x01010101u;
      }
      qzeros.insert(qzeros.end(), words.begin(), words.end());
    }
    TestCheckpoint out;
    out.add(kModule + ".qweight", DType::kS32, {k * bits / 32, n}, qweight);
    out.add(kModule + ".qzeros", DType::kS32, {groups(), n * bits / 32}, qzeros);
    out.add(kModule + ".scales", DType::kF16, {groups(), n}, scale);
    out.add(kModule + ".g_idx", DType::kS32, {k}, g_idx);
    return out;
  }

  std::string config() const {
    return fmt::format(R"({{"quant_method": "gptq", "bits": {}, "group_size": {}, "sym": {},
                            "desc_act": {}, "checkpoint_format": "{}"}})",
                       bits, group, sym, act_order, v2 ? "gptq_v2" : "gptq");
  }

  LinearLayer layer() const { return {kModule, n, k, false, {}}; }

  std::vector<float> expected() const {
    std::vector<float> out(static_cast<size_t>(n * k));
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < k; ++i) {
        const auto at = static_cast<size_t>(g_idx[static_cast<size_t>(i)] * n + j);
        const auto q = static_cast<int64_t>(code[static_cast<size_t>(i * n + j)]);
        out[static_cast<size_t>(j * k + i)] =
            static_cast<float>(q - zero[at]) * base::f32_from_f16(scale[at]);
      }
    }
    return out;
  }
};

Encoder small(uint32_t seed = 1) {
  Encoder e;
  e.fill(seed);
  return e;
}

std::string error_of(const TestCheckpoint& checkpoint, const std::string& config,
                     const LinearLayer& layer) {
  return message(load_layer(checkpoint, config, layer));
}

TEST(gptq, activations_that_are_to_be_quantized_are_refused) {
  EXPECT_EQ(message(parse_config({}, R"({"quant_method": "gptq", "bits": 4, "group_size": 32,
                                         "activation": "w4afp8"})")),
            "config.json: quantization_config: activation is \"w4afp8\": GPTQ layers are read with "
            "float activations only");
  EXPECT_TRUE(parse_config({}, R"({"quant_method": "gptq", "bits": 4, "group_size": 32,
                                   "activation": null, "rotation": null})"));
}

TEST(gptq, a_lost_config_is_read_from_the_shapes_when_asked) {
  for (const auto& [act_order, sym, v2] : {std::array{false, false, false},
                                           {true, false, false},
                                           {false, true, false},
                                           {false, true, true}}) {
    for (const int64_t bits : {3, 4, 8}) {
      Encoder e;
      e.bits = bits, e.sym = sym, e.v2 = v2, e.act_order = act_order;
      e.fill(3);
      const TestCheckpoint checkpoint = e.checkpoint();
      CheckpointFacts facts;
      facts.tensors = checkpoint.lookup();
      const auto scheme = detect_scheme(facts, "gptq");
      ASSERT_TRUE(scheme) << message(scheme);
      const auto config = (*scheme)->parse(facts);
      ASSERT_TRUE(config) << message(config);
      EXPECT_EQ((*config)->notes,
                std::vector<std::string>{
                    "no quantization_config: bits and groups are taken from the shapes of the "
                    "tensors, zero points as stored less one (checkpoint_format gptq) but where "
                    "all of a layer are 2^(bits - 1), as symmetric weights of gptq_v2 have them; "
                    "--quantization-config can say it"});
      const auto method = (*config)->linear_method(e.layer(), facts.tensors);
      ASSERT_TRUE(method) << message(method);
      const auto raw = load_whole(checkpoint, e.layer(), **method);
      ASSERT_TRUE(raw) << message(raw);
      const auto weight = (*method)->process_weights_after_loading(e.n, e.k, *raw);
      ASSERT_TRUE(weight) << message(weight);
      EXPECT_EQ(dequantize(*weight), e.expected()) << bits;
    }
  }
}

TEST(gptq, scales_whose_groups_cover_no_inputs_are_refused) {
  Encoder e = small();
  TestCheckpoint checkpoint = e.checkpoint();
  checkpoint.add(kModule + ".scales", DType::kF16, {5, 32}, std::vector<uint16_t>(160, 0x2000));
  CheckpointFacts facts;
  facts.tensors = checkpoint.lookup();
  const auto config = (*detect_scheme(facts, "gptq"))->parse(facts);
  EXPECT_EQ(message((*config)->linear_method(e.layer(), facts.tensors)),
            kModule + ".scales (5, 32): 5 groups of one size do not cover 64 inputs");
}

TEST(gptq, every_width_zero_version_and_order_is_decoded_as_it_was_encoded) {
  uint32_t seed = 20261129;
  for (int64_t bits : {2, 3, 4, 8}) {
    for (int64_t group : {-1, 32, 64, 128}) {
      for (bool sym : {true, false}) {
        for (bool v2 : {true, false}) {
          for (bool act_order : {true, false}) {
            Encoder e;
            e.bits = bits, e.group = group, e.sym = sym, e.v2 = v2, e.act_order = act_order;
            e.n = 96, e.k = 160;  // 64 and 128 leave a short last group
            e.fill(++seed);
            const auto weight = load_layer(e.checkpoint(), e.config(), e.layer());
            ASSERT_TRUE(weight) << e.config() << message(weight);
            ASSERT_EQ(dequantize(*weight), e.expected()) << e.config() << " seed " << seed;
            EXPECT_EQ(weight->format.act_order, act_order && group != -1);
          }
        }
      }
    }
  }
}

TEST(gptq, known_words_hold_known_codes) {
  // (K, 1 output) streams: the facts of the format, from its packers.
  auto first_codes = [](int64_t bits, const std::vector<uint32_t>& words) {
    TestCheckpoint checkpoint;
    const auto k = static_cast<int64_t>(words.size()) * 32 / bits;
    const int64_t n = 32;
    std::vector<uint32_t> qweight;
    for (uint32_t word : words) qweight.insert(qweight.end(), static_cast<size_t>(n), word);
    checkpoint.add(kModule + ".qweight", DType::kS32, {k * bits / 32, n}, qweight);
    checkpoint.add(kModule + ".qzeros", DType::kS32, {1, n * bits / 32},
                   std::vector<uint32_t>(static_cast<size_t>(n * bits / 32)));
    checkpoint.add(kModule + ".scales", DType::kF32, {1, n}, std::vector<float>(32, 1.0f));
    const auto weight = load_layer(
        checkpoint,
        fmt::format(R"({{"quant_method": "gptq", "bits": {}, "group_size": -1, "sym": false,
                         "desc_act": false, "checkpoint_format": "gptq_v2"}})",
                    bits),
        {kModule, n, k, false, {}});
    EXPECT_TRUE(weight) << message(weight);
    std::vector<float> row(static_cast<size_t>(k));
    if (weight) tensor::dequantize_row(*weight, 0, row.data());
    return row;
  };
  EXPECT_EQ(first_codes(4, {0x862951e3}), (std::vector<float>{3, 14, 1, 5, 9, 2, 6, 8}));
  EXPECT_EQ(first_codes(8, {0x07ff8001}), (std::vector<float>{1, 128, 255, 7}));
  std::vector<float> ramp(16), octal(32);
  for (size_t i = 0; i < 16; ++i) ramp[i] = static_cast<float>(i % 4);
  for (size_t i = 0; i < 32; ++i) octal[i] = static_cast<float>(i % 8);
  EXPECT_EQ(first_codes(2, {0xe4e4e4e4}), ramp);
  EXPECT_EQ(first_codes(3, {0x88fac688, 0xc688fac6, 0xfac688fa}), octal);
}

TEST(gptq, a_zero_of_zero_in_version_1_borrows_from_its_neighbour) {
  Encoder e;
  e.n = 8, e.k = 8, e.group = -1, e.sym = false;
  e.fill(3);
  e.zero = {0, 8, 8, 8, 8, 8, 8, 8};
  const TestCheckpoint checkpoint = e.checkpoint();
  uint32_t word;
  std::memcpy(&word, checkpoint.view(kModule + ".qzeros").data, 4);
  EXPECT_EQ(word, 0x7777776fu);
  const auto weight = load_layer(checkpoint, e.config(), e.layer());
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(weight->zero, (std::vector<float>{0, 8, 8, 8, 8, 8, 8, 8}));
}

TEST(gptq, formats_are_printed_as_what_they_are) {
  Encoder e = small();
  EXPECT_EQ(tensor::to_string(load_layer(e.checkpoint(), e.config(), e.layer())->format), "s4g32");
  e.sym = false, e.act_order = true;
  e.fill(2);
  EXPECT_EQ(tensor::to_string(load_layer(e.checkpoint(), e.config(), e.layer())->format),
            "u4g32+zp+act");
  e.group = -1;
  e.fill(2);
  EXPECT_EQ(tensor::to_string(load_layer(e.checkpoint(), e.config(), e.layer())->format), "u4c+zp");
}

TEST(gptq, symmetric_files_may_lack_zeros_and_plain_order_may_lack_g_idx) {
  const Encoder e = small();
  TestCheckpoint checkpoint = e.checkpoint();
  checkpoint.remove(kModule + ".qzeros");
  checkpoint.remove(kModule + ".g_idx");
  const auto weight = load_layer(checkpoint, e.config(), e.layer());
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), e.expected());
}

TEST(gptq, asymmetric_files_need_zeros_and_act_order_needs_g_idx) {
  Encoder e = small();
  e.sym = false, e.act_order = true;
  e.fill(4);
  TestCheckpoint checkpoint = e.checkpoint();
  checkpoint.remove(kModule + ".qzeros");
  EXPECT_EQ(error_of(checkpoint, e.config(), e.layer()), "missing " + kModule + ".qzeros");
  checkpoint = e.checkpoint();
  checkpoint.remove(kModule + ".g_idx");
  EXPECT_EQ(error_of(checkpoint, e.config(), e.layer()), "missing " + kModule + ".g_idx");
}

TEST(gptq, a_symmetric_label_over_other_zeros_is_refused) {
  Encoder e = small();
  e.v2 = true;
  const TestCheckpoint version_2 = e.checkpoint();
  e.v2 = false;
  EXPECT_EQ(
      error_of(version_2, e.config(), e.layer()),
      "qzeros: the zero point of group 0, output 0 is 9, but sym is true and checkpoint_format "
      "is gptq, which means 8; a file of gptq_v2 labelled gptq looks like this");
  const TestCheckpoint version_1 = e.checkpoint();
  e.v2 = true;
  EXPECT_EQ(
      error_of(version_1, e.config(), e.layer()),
      "qzeros: the zero point of group 0, output 0 is 7, but sym is true and checkpoint_format "
      "is gptq_v2, which means 8; a file of gptq labelled gptq_v2 looks like this");
  e.zero[5] = 3;
  EXPECT_EQ(
      error_of(e.checkpoint(), e.config(), e.layer()),
      "qzeros: the zero point of group 0, output 5 is 3, but sym is true and checkpoint_format "
      "is gptq_v2, which means 8; set sym to false if the weights are asymmetric");
}

TEST(gptq, g_idx_must_fit_the_claimed_order) {
  Encoder e = small();
  e.g_idx[40] = 0;
  EXPECT_EQ(error_of(e.checkpoint(), e.config(), e.layer()),
            "g_idx: input 40 is in group 0, but without act-order that is 1");
  Encoder shifted = small();
  for (int32_t& group : shifted.g_idx) group += 7;
  EXPECT_EQ(error_of(shifted.checkpoint(), shifted.config(), shifted.layer()),
            "g_idx: input 0 is in group 7, but without act-order that is 0");
  e.act_order = true;
  e.g_idx[40] = 2;
  EXPECT_EQ(error_of(e.checkpoint(), e.config(), e.layer()),
            "g_idx: input 40 is in group 2, but there are groups 0 to 1");
  e.g_idx[40] = -1;
  EXPECT_EQ(error_of(e.checkpoint(), e.config(), e.layer()),
            "g_idx: input 40 is in group -1, but there are groups 0 to 1");
}

TEST(gptq, act_order_fills_every_group) {
  Encoder e = small();
  e.act_order = true;
  e.fill(7);
  e.g_idx.assign(64, 0);
  for (size_t k = 30; k < 64; ++k) e.g_idx[k] = 1;
  EXPECT_EQ(error_of(e.checkpoint(), e.config(), e.layer()),
            "g_idx: group 0 has 30 inputs, expected 32");
}

TEST(gptq, a_scale_that_is_not_finite_is_refused) {
  Encoder e = small();
  e.scale[33] = 0x7c00;
  EXPECT_EQ(error_of(e.checkpoint(), e.config(), e.layer()),
            "scales: element (1, 1) is inf; the file is damaged");
}

TEST(gptq, what_is_stored_outranks_the_lists) {
  const Encoder e = small();
  TestCheckpoint checkpoint = e.checkpoint();
  const std::string skip =
      R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": false,
                              "sym": true, "dynamic": {"-:.*up_proj": {}}})";
  EXPECT_TRUE(load_layer(checkpoint, skip, e.layer()));
  TestCheckpoint plain;
  plain.add(kModule + ".weight", DType::kBF16, {32, 64}, std::vector<uint16_t>(32 * 64, 0x3f80));
  const auto weight = load_layer(plain, e.config(), e.layer());
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(tensor::to_string(weight->format), "bf16");
  // With neither stored, the lists say what is missing.
  EXPECT_EQ(error_of(TestCheckpoint(), e.config(), e.layer()), "missing " + kModule + ".qweight");
  EXPECT_EQ(error_of(TestCheckpoint(), skip, e.layer()), "missing " + kModule + ".weight");
  EXPECT_EQ(error_of(TestCheckpoint(),
                     R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": false,
                         "sym": true, "modules_in_block_to_quantize": [["mlp.down_proj"]]})",
                     e.layer()),
            "missing " + kModule + ".weight");
}

TEST(gptq, the_first_dynamic_rule_that_matches_counts) {
  Encoder e = small();
  e.bits = 8, e.group = 64;
  e.fill(5);
  const TestCheckpoint checkpoint = e.checkpoint();
  auto config = [](const std::string& dynamic) {
    return R"({"quant_method": "gptq", "bits": "4", "group_size": 32, "desc_act": false, "sym": true,
               "dynamic": )" +
           dynamic + "}";
  };
  const auto weight = load_layer(
      checkpoint,
      config(R"({"+:.*down_proj": {"bits": 2}, ".*mlp\\.up": {"bits": 8, "group_size": 64},
                 ".*": {"bits": 3}})"),
      e.layer());
  ASSERT_TRUE(weight) << message(weight);
  EXPECT_EQ(dequantize(*weight), e.expected());
  EXPECT_EQ(error_of(checkpoint, config("{}"), e.layer()),
            kModule +
                ".qweight: expected shape (8, 32) for 64 inputs of 4 bits, found (16, 32): "
                "bits is 8, or the layer has 128 inputs; the config is wrong in one of them");
  EXPECT_EQ(
      error_of(checkpoint, config(R"({".*": 8})"), e.layer()),
      "config.json: quantization_config: dynamic: .*: expected an object, found the integer 8");
  EXPECT_EQ(error_of(checkpoint, config("[]"), e.layer()),
            "config.json: quantization_config: dynamic: expected an object, found a list of 0");
  EXPECT_EQ(
      error_of(checkpoint, config(R"({".*": {"bits": 9}})"), e.layer()),
      "config.json: quantization_config: dynamic: .*: bits is 9; GPTQ weights of 2 to 8 bits are "
      "read");
}

// The error of a config whose keys are replaced by those of `changes`.
std::string refused(const std::string& changes) {
  base::Json config = json(small().config());
  const base::Json change = json(changes);
  for (const auto& [key, value] : change.as_object()) config.set(key, value);
  return message(parse_config(TestCheckpoint(), config.dump()));
}

TEST(gptq, configs_that_cannot_be_read_are_refused_by_key_and_value) {
  const std::string at = "config.json: quantization_config: ";
  EXPECT_EQ(refused("{}"), "no error");
  EXPECT_EQ(refused(R"({"bits": 1})"), at + "bits is 1; GPTQ weights of 2 to 8 bits are read");
  EXPECT_EQ(refused(R"({"bits": "four"})"),
            at + "bits: expected an integer, found a string (\"four\")");
  EXPECT_EQ(refused(R"({"bits": null})"), at + "key \"bits\" is missing");
  EXPECT_EQ(refused(R"({"group_size": 0})"),
            at + "group_size: expected -1 (all inputs) or a positive number, found 0");
  EXPECT_EQ(refused(R"({"group_size": -128})"),
            at + "group_size: expected -1 (all inputs) or a positive number, found -128");
  EXPECT_EQ(refused(R"({"checkpoint_format": "marlin"})"),
            at + "checkpoint_format is \"marlin\"; known are: gptq, gptq_v2");
  EXPECT_EQ(refused(R"({"is_marlin_format": true})"),
            at + "is_marlin_format is true; the layouts gptq and gptq_v2 are read");
  EXPECT_EQ(
      refused(R"({"format": "gptq_v2"})"),
      at + "checkpoint_format is \"gptq\" but format is \"gptq_v2\"; keep the one that is true");
  EXPECT_EQ(refused(R"({"method": "qqq"})"), at + "method is \"qqq\"; known are: gptq");
  EXPECT_EQ(refused(R"({"pack_dtype": "int16"})"),
            at + "pack_dtype is \"int16\"; known are: int32");
  EXPECT_EQ(refused(R"({"sym": "yes"})"),
            at + "sym: expected true or false, found a string (\"yes\")");
  EXPECT_EQ(refused(R"({"dynamic": {"(": {}}})"),
            at + "dynamic: \"(\" is not a regular expression: missing closing parenthesis at "
                 "character 1");
  EXPECT_EQ(refused(R"({"modules_in_block_to_quantize": [["a"], 3]})"),
            at + "modules_in_block_to_quantize: expected a list of names, found the integer 3");
}

TEST(gptq, sizes_that_do_not_fill_words_are_refused) {
  const Encoder e = small();
  EXPECT_EQ(error_of(e.checkpoint(), e.config(), {kModule, 32, 60, false, {}}),
            kModule + ": 32 outputs and 60 inputs do not fill whole words of 4-bit codes");
}

TEST(gptq, flags_and_numbers_may_be_text) {
  const Encoder e = small();
  const auto plain = load_layer(e.checkpoint(), e.config(), e.layer());
  ASSERT_TRUE(plain) << message(plain);
  std::string config = e.config();
  for (const auto& [from, to] : {std::pair<std::string, std::string>{": false", ": \"False\""},
                                 {": true", ": \"true\""},
                                 {": 4", ": \"4\""}}) {
    if (config.find(from) != config.npos) config.replace(config.find(from), from.size(), to);
  }
  EXPECT_NE(config, e.config());
  const auto text = load_layer(e.checkpoint(), config, e.layer());
  ASSERT_TRUE(text) << message(text);
  EXPECT_EQ(dequantize(*text), dequantize(*plain));
}

TEST(gptq, missing_flags_are_noted_and_unknown_keys_warned_about) {
  const auto config =
      parse_config(TestCheckpoint(),
                   R"({"quant_method": "GPTQ_Marlin", "bits": 4, "group_size": 128, "hue": 1})");
  ASSERT_TRUE(config) << message(config);
  const std::string at = "config.json: quantization_config: ";
  EXPECT_EQ((*config)->notes,
            (std::vector<std::string>{
                at + "desc_act is not given: taken as false; the weights are checked for it",
                at + "sym is not given: taken as true; the weights are checked for it"}));
  EXPECT_EQ(
      (*config)->warnings,
      (std::vector<std::string>{at + "the key \"hue\" (the integer 1) is not known and has no "
                                     "effect"}));
}

}  // namespace
}  // namespace nibble::quant
