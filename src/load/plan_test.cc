// What the plan makes of folders that are spelled in unusual ways.
#include "load/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "checkpoint/safetensors_writer.h"
#include "checkpoint/test_files.h"
#include "kernels/cuda/products.h"
#include "kernels/matmul/kernel.h"
#include "load/fill.h"
#include "load/split.h"

namespace nibble::load {
namespace {

using checkpoint::Checkpoint;
using checkpoint::TempFolder;
using tensor::DType;

struct Stored {
  std::string name;
  tensor::Shape shape;
  DType dtype = DType::kBF16;
};

// A Llama of one layer; `prefix` stands before all names but the head's.
std::vector<Stored> tiny_llama(const std::string& prefix = "model.",
                               const std::string& head = "lm_head", DType norms = DType::kBF16) {
  const std::string layer = prefix + "layers.0.";
  return {{prefix + "embed_tokens.weight", {16, 8}},
          {layer + "input_layernorm.weight", {8}, norms},
          {layer + "self_attn.q_proj.weight", {8, 8}},
          {layer + "self_attn.k_proj.weight", {4, 8}},
          {layer + "self_attn.v_proj.weight", {4, 8}},
          {layer + "self_attn.o_proj.weight", {8, 8}},
          {layer + "post_attention_layernorm.weight", {8}, norms},
          {layer + "mlp.gate_proj.weight", {16, 8}},
          {layer + "mlp.up_proj.weight", {16, 8}},
          {layer + "mlp.down_proj.weight", {8, 16}},
          {prefix + "norm.weight", {8}, norms},
          {head + ".weight", {16, 8}}};
}

std::string config(const std::string& more = "") {
  return R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_hidden_layers": 1,
             "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16, )" +
         more + R"("vocab_size": 16})";
}

// Writes the tensors, every byte 0x3c: 0.0117 as bf16.
void write(TempFolder& folder, const std::string& config_json, const std::vector<Stored>& stored) {
  std::vector<tensor::TensorInfo> infos;
  for (const Stored& s : stored) {
    tensor::TensorInfo info;
    info.name = s.name;
    info.dtype = s.dtype;
    info.shape = s.shape;
    infos.push_back(info);
  }
  auto writer = checkpoint::SafetensorsWriter::create(folder.at("model.safetensors"), infos, {});
  ASSERT_TRUE(writer) << writer.error().message;
  for (const tensor::TensorInfo& t : writer->tensors()) {
    ASSERT_TRUE(writer->append(checkpoint::as_bytes(std::string(t.bytes, 0x3c))));
  }
  ASSERT_TRUE(writer->finish());
  folder.write("config.json", config_json);
}

struct Planned {
  std::unique_ptr<Checkpoint> checkpoint;
  LoadPlan plan;
};

Result<Planned> planned(const TempFolder& folder, const PlanOptions& options = {}) {
  NIBBLE_ASSIGN(Checkpoint checkpoint, Checkpoint::open(folder.path()));
  Planned out;
  out.checkpoint = std::make_unique<Checkpoint>(std::move(checkpoint));
  NIBBLE_ASSIGN(out.plan, make_plan(*out.checkpoint, options));
  return out;
}

using Sentences = std::vector<std::string>;

TEST(plan, names_without_the_usual_prefix_are_followed) {
  TempFolder folder;
  write(folder, config(), tiny_llama(""));
  auto p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems, Sentences{});
  EXPECT_EQ(p->plan.modules[1].declared.module, "layers.0.self_attn.q_proj");
  EXPECT_EQ(p->plan.notes,
            Sentences{"the tensors' names begin with \"\" here, where \"model.\" is usual"});
}

TEST(plan, a_rule_that_names_what_is_no_layer_or_a_head_that_is_tied_is_not_idle) {
  TempFolder folder;
  std::vector<Stored> stored = tiny_llama();
  stored.pop_back();  // the head
  stored.push_back({"model.layers.0.self_attn._extra_state", {8}, DType::kU8});
  write(folder, config(R"("tie_word_embeddings": true, "quantization_config": {
            "quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": [
              "lm_head", "model.layers.0", "model.norm", "model.layers.0.input_layernorm",
              "model.layers.0.mlp.up_proj", "visual", "model.embed_tokens", "visual"]}, )"),
        stored);
  auto p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems, Sentences{});
  EXPECT_EQ(
      p->plan.notes,
      (Sentences{"config.json: quantization_config is of fp8, but no layer is stored quantized: "
                 "all are plain floats, and stay so",
                 "config.json: quantization_config: modules_to_not_convert: \"visual\" "
                 "matched no layer"}));
  ASSERT_EQ(p->plan.unused.size(), 1u);
  EXPECT_EQ(p->plan.unused[0].reason, "the state of another engine's kernels");
}

TEST(plan, layers_with_the_same_trouble_share_one_sentence_with_the_first_ones_names) {
  TempFolder folder;
  std::vector<Stored> stored = tiny_llama();
  for (Stored& each : stored) {
    if (each.name.find("gate_proj") != std::string::npos) each.dtype = DType::kE4M3;
    if (each.name.find("up_proj") != std::string::npos) each.dtype = DType::kE4M3;
  }
  write(folder, config(R"("quantization_config": {"quant_method": "fp8",
                          "activation_scheme": "dynamic"}, )"),
        stored);
  auto p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems,
            Sentences{"layer model.layers.0.mlp.gate_proj and 1 more: "
                      "model.layers.0.mlp.gate_proj.weight is e4m3, but has no scale: neither "
                      "weight_scale_inv nor weight_scale is stored"});
  write(folder, config(R"("quantization_config": {"quant_method": "quark", "global_quant_config": {
                          "weight": {"dtype": "fp8_e4m3"},
                          "output_tensors": {"dtype": "fp8_e4m3"}}}, )"),
        stored);
  p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems,
            Sentences{"layer model.layers.0.mlp.gate_proj and 1 more: its output_tensors are "
                      "given; what a layer gives out is not quantized here"});
}

TEST(plan, names_with_a_wrappers_prefix_are_followed) {
  TempFolder folder;
  write(folder, config(), tiny_llama("language_model.model.", "language_model.lm_head"));
  auto p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems, Sentences{});
  EXPECT_EQ(p->plan.modules.back().declared.module, "language_model.lm_head");
}

TEST(plan, norms_may_be_stored_as_f64) {
  TempFolder folder;
  write(folder, config(), tiny_llama("model.", "lm_head", DType::kF64));
  auto p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems, Sentences{});
  device::Stream stream(1);
  auto decoder = fill(*p->checkpoint, p->plan, {}, stream);
  ASSERT_TRUE(decoder) << decoder.error().message;
  double expected;
  std::memset(&expected, 0x3c, sizeof expected);
  const device::Floats& weight = decoder->final_norm.weight;
  EXPECT_EQ(std::vector<float>(weight.data(), weight.data() + weight.size()),
            std::vector<float>(8, static_cast<float>(expected)));
}

TEST(plan, a_bias_that_is_stored_but_not_declared_is_used_and_said) {
  TempFolder folder;
  auto tensors = tiny_llama();
  tensors.push_back({"model.layers.0.self_attn.k_proj.bias", {4}});
  write(folder, config(), tensors);
  auto p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems, Sentences{});
  EXPECT_EQ(p->plan.notes,
            Sentences{"1 layers store a bias that config.json does not declare (the first: "
                      "model.layers.0.self_attn.k_proj.bias): they are used"});
  device::Stream stream(1);
  auto decoder = fill(*p->checkpoint, p->plan, {}, stream);
  ASSERT_TRUE(decoder) << decoder.error().message;
  EXPECT_EQ(decoder->layers[0].k.bias.size(), 4u);
}

TEST(plan, fp8_layers_on_a_card_without_fp8_are_weight_only_and_a_note_says_so) {
  auto checkpoint =
      Checkpoint::open(std::string(NIBBLE_SOURCE_DIR) + "/tests/golden/fp8/tensor_dynamic");
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  PlanOptions options;
  options.hardware.gpu = device::Gpu{.name = "NVIDIA A100", .major = 8, .minor = 0};
  const std::string note =
      "NVIDIA A100 has no FP8 products (compute capability 8.9): the inputs of 7 layers with FP8 "
      "weights stay floats; --precision exact rounds them as the checkpoint says";
  const auto said = [&] {
    auto plan = make_plan(*checkpoint, options);
    return plan && std::count(plan->notes.begin(), plan->notes.end(), note) == 1;
  };
  EXPECT_TRUE(said());
  options.policy.precision = kernels::Precision::kExact;
  EXPECT_FALSE(said());
  options.policy.precision = kernels::Precision::kFast;
  options.hardware.gpu->minor = 9;
  EXPECT_FALSE(said());
}

TEST(plan, a_card_that_is_too_old_for_the_dialect_is_refused_with_what_helps) {
  TempFolder folder;
  write(folder, config(""), tiny_llama());
  PlanOptions options;
  options.hardware.gpu = device::Gpu{.name = "a V100", .major = 7, .minor = 0};
  auto p = planned(folder, options);
  ASSERT_TRUE(p) << p.error().message;
  ASSERT_FALSE(p->plan.problems.empty());
  EXPECT_EQ(p->plan.problems[0],
            "unquantized checkpoints need a card of compute capability 7.5 or newer; a V100 has "
            "7.0; --device cpu runs them");
  options.hardware.gpu->minor = 5;
  p = planned(folder, options);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems, Sentences{});
}

// A Llama whose q_proj and up_proj are FP8, or all of whose projections are floats.
std::vector<Stored> with_fp8(bool quantized) {
  std::vector<Stored> out = tiny_llama();
  const size_t count = out.size();
  for (size_t i = 0; i < count && quantized; ++i) {
    const std::string module = out[i].name.substr(0, out[i].name.rfind('.'));
    if (!module.ends_with("q_proj") && !module.ends_with("up_proj")) continue;
    out[i].dtype = DType::kE4M3;
    out.push_back({module + ".weight_scale", {}, DType::kF32});
  }
  return out;
}

TEST(plan, where_a_list_contradicts_what_is_stored_it_is_told) {
  TempFolder folder;
  write(folder,
        config(R"("quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
                    "ignored_layers": ["mlp", "self_attn.q_proj", "k_proj"]}, )"),
        with_fp8(true));
  auto p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems, Sentences{});
  const std::string list = "config.json: quantization_config: ignored_layers: ";
  EXPECT_EQ(p->plan.notes,
            (Sentences{list + "\"self_attn.q_proj\" leaves alone model.layers.0.self_attn.q_proj, "
                              "but what is stored counts: codes, which run quantized",
                       list + "\"mlp\" leaves alone model.layers.0.mlp.up_proj, but what is stored "
                              "counts: codes, which run quantized"}));
  write(
      folder,
      config(R"("quantization_config": {"quant_method": "compressed-tensors", "ignore": ["lm_head"],
                    "config_groups": {"group_0": {"targets": ["re:.*mlp.*", "q_proj"],
                      "weights": {"num_bits": 8, "type": "float"}}}}, )"),
      with_fp8(false));
  p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems, Sentences{});
  const std::string targets = "config.json: quantization_config: config_groups: targets: ";
  EXPECT_EQ(
      p->plan.notes,
      (Sentences{targets + "\"q_proj\" quantizes model.layers.0.self_attn.q_proj, but what is "
                           "stored counts: plain floats, which stay so",
                 targets + "\"re:.*mlp.*\" quantizes model.layers.0.mlp.gate_proj and 2 more, "
                           "but what is stored counts: plain floats, which stay so"}));
}

TEST(plan, scales_of_a_whole_call_are_told) {
  TempFolder folder;
  write(folder, config(R"("quantization_config": {"quant_method": "compressed-tensors",
                    "config_groups": {"group_0": {"targets": ["q_proj", "up_proj"],
                      "weights": {"num_bits": 8, "type": "float"},
                      "input_activations": {"num_bits": 8, "type": "float", "strategy": "tensor",
                                            "dynamic": true}}}}, )"),
        with_fp8(true));
  auto p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems, Sentences{});
  EXPECT_EQ(p->plan.notes,
            Sentences{"the inputs of 2 layers are e4m3 tensor, which is found over all tokens that "
                      "are run together: the same text may give other numbers in other pieces"});
}

TEST(plan, buffers_that_the_config_determines_are_left_out) {
  TempFolder folder;
  auto tensors = tiny_llama();
  tensors.push_back({"model.embed_tokens.embed_scale", {}, DType::kBF16});
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {1}, DType::kF32});
  write(folder, config(), tensors);
  auto p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems, Sentences{});
  ASSERT_EQ(p->plan.unused.size(), 2u);
  for (const UnusedTensor& t : p->plan.unused) {
    EXPECT_EQ(t.reason, "a buffer that is computed from config.json") << t.name;
  }
}

TEST(plan, a_layer_that_no_kernel_takes_is_in_the_plan_with_every_refusal) {
  TempFolder folder;
  write(folder, config(), tiny_llama());
  auto p = planned(folder, {.policy = {.kernel_glob = "matmul_s16*"}});
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_FALSE(p->plan.problems.empty());
  ASSERT_FALSE(p->plan.modules.empty());
  for (const PlannedModule& module : p->plan.modules) {
    EXPECT_TRUE(module.choice.ranges.empty());
    EXPECT_EQ(module.choice.refusals.size(), kernels::all_kernels().size());
    EXPECT_GT(module.bytes_disk, 0u);
  }
}

TEST(plan, tensors_of_no_elements_count_as_absent) {
  TempFolder folder;
  auto tensors = with_fp8(true);
  tensors.push_back({"model.layers.0.self_attn.q_proj.input_scale", {0}, DType::kF32});
  tensors.push_back({"model.layers.0.mlp.up_proj.bias", {0}});
  tensors.push_back({"model.layers.0.mlp.up_proj.g_idx", {0}, DType::kS32});
  const std::string fp8 =
      R"("quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}, )";
  write(folder, config(fp8), tensors);
  auto p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems, Sentences{});
  ASSERT_EQ(p->plan.unused.size(), 3u);
  for (const UnusedTensor& t : p->plan.unused) {
    EXPECT_EQ(t.reason, "it has no elements: its layer has nothing of the kind") << t.name;
  }
  // Those of symmetric GPTQ weights: 4 bits, one group.
  std::vector<Stored> gptq = tiny_llama();
  const std::string q = "model.layers.0.self_attn.q_proj.";
  for (Stored& t : gptq) {
    if (t.name == q + "weight") t = {q + "qweight", {1, 8}, DType::kS32};
  }
  gptq.push_back({q + "scales", {1, 8}, DType::kF16});
  gptq.push_back({q + "qzeros", {1, 0}, DType::kS32});
  gptq.push_back({q + "g_idx", {0}, DType::kS32});
  write(folder,
        config(R"("quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": -1,
                    "desc_act": false, "sym": true}, )"),
        gptq);
  p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems, Sentences{});
  EXPECT_EQ(p->plan.unused.size(), 2u);
  // One that cannot be absent is named.
  tensors.back() = {"model.norm.bias", {0}};
  for (Stored& t : tensors) {
    if (t.name.ends_with("o_proj.weight")) t.shape = {0};
  }
  write(folder, config(fp8), tensors);
  p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems,
            Sentences{"layer model.layers.0.self_attn.o_proj: "
                      "model.layers.0.self_attn.o_proj.weight (0) holds nothing, without which "
                      "unquantized weights cannot be read"});
}

TEST(plan, what_a_card_multiplies_another_way_is_told) {
  TempFolder folder;
  write(
      folder,
      config(R"("quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}, )"),
      with_fp8(true));
  const auto notes_on = [&](int major, int minor, kernels::Precision precision) {
    PlanOptions options;
    options.policy.precision = precision;
    options.hardware.gpu = device::Gpu{.name = "a card", .major = major, .minor = minor};
    auto p = planned(folder, options);
    return p ? p->plan.notes : Sentences{p.error().message};
  };
  constexpr auto kFast = kernels::Precision::kFast;
  constexpr auto kExact = kernels::Precision::kExact;
  EXPECT_EQ(notes_on(9, 0, kFast), Sentences{});
  EXPECT_EQ(notes_on(8, 9, kFast), Sentences{});
  const std::string weight_only =
      "a card has no FP8 products (compute capability 8.9): the inputs of 2 layers with FP8 "
      "weights "
      "stay floats; --precision exact rounds them as the checkpoint says";
  EXPECT_EQ(notes_on(8, 0, kFast), Sentences{weight_only});
  EXPECT_EQ(notes_on(8, 0, kExact),
            Sentences{"FP8 products need compute capability 8.9, and a card has 8.0: "
                      "2 layers are multiplied as bf16, their inputs rounded to FP8 "
                      "before"});
  EXPECT_EQ(notes_on(7, 5, kFast),
            (Sentences{weight_only,
                       "bf16 products need compute capability 8.0, and a card has 7.5: 9 layers "
                       "are multiplied as float32"}));
  // NVFP4's inputs: no card before Blackwell.
  tensor::ActivationFormat fp4{.type = tensor::ActivationFormat::Type::kE2M1};
  EXPECT_EQ(kernels::native_product(fp4).major, 10);
}

TEST(plan, an_override_of_rope_theta_reaches_rope_parameters) {
  TempFolder folder;
  write(folder, config(R"("rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, )"),
        tiny_llama());
  PlanOptions options;
  options.overrides = {{"rope_theta", "123"}};
  auto p = planned(folder, options);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.spec.rope.theta, 123);
}

TEST(plan, an_override_of_rope_theta_reaches_what_rope_scaling_leaves_open) {
  TempFolder folder;
  write(folder, config(R"("rope_parameters": {"rope_theta": 5e5},
                  "rope_scaling": {"type": "linear", "factor": 2}, )"),
        tiny_llama());
  PlanOptions options;
  options.overrides = {{"rope_theta", "123"}};
  auto p = planned(folder, options);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.spec.rope.theta, 123);
  EXPECT_EQ(p->plan.spec.rope.type, kernels::RopeType::kLinear);
}

TEST(plan, an_override_that_could_mean_several_ropes_is_refused) {
  TempFolder folder;
  write(folder, config(R"("rope_parameters": {"full_attention": {"rope_theta": 5e5}}, )"),
        tiny_llama());
  PlanOptions options;
  options.overrides = {{"rope_theta", "123"}};
  auto p = planned(folder, options);
  ASSERT_FALSE(p);
  EXPECT_EQ(p.error().message,
            "--override rope_theta: rope_parameters has one for each kind of layer; say "
            "rope_parameters.full_attention.rope_theta or "
            "rope_parameters.sliding_attention.rope_theta");
}

TEST(plan, an_override_inside_what_is_no_object_is_refused) {
  TempFolder folder;
  write(folder, config(), tiny_llama());
  PlanOptions options;
  options.overrides = {{"vocab_size.a.b", "1"}};
  const auto p = planned(folder, options);
  ASSERT_FALSE(p);
  EXPECT_EQ(p.error().message,
            "--override vocab_size.a.b: vocab_size is the integer 16, not an object");
}

TEST(plan, a_folder_without_a_config_is_refused_with_what_helps) {
  TempFolder folder;
  write(folder, config(), tiny_llama());
  std::filesystem::remove(folder.at("config.json"));
  const auto p = planned(folder);
  ASSERT_FALSE(p);
  EXPECT_EQ(p.error().message,
            folder.path() + "/: config.json is missing beside the weights; download it too");
}

// 0x3c in every byte is 0.0117 as bf16; the norm's first element is made a NaN.
TEST(fill, a_norm_that_is_not_finite_is_refused_with_its_element) {
  TempFolder folder;
  std::vector<Stored> stored = tiny_llama();
  std::reverse(stored.begin(), stored.end());
  write(folder, config(), stored);
  auto p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  ASSERT_EQ(p->plan.problems, Sentences{});
  const tensor::TensorInfo* norm = p->checkpoint->find("model.norm.weight");
  ASSERT_NE(norm, nullptr);
  {
    std::fstream file(folder.at("model.safetensors"),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(norm->offset));
    file.write("\xff\x7f", 2);
  }
  auto again = planned(folder);
  ASSERT_TRUE(again) << again.error().message;
  device::Stream stream(1);
  const auto decoder = fill(*again->checkpoint, again->plan, {}, stream);
  ASSERT_FALSE(decoder);
  EXPECT_EQ(decoder.error().message,
            "model.norm.weight: element 0 is nan, expected a finite number");
}

TEST(fill, a_load_that_is_cancelled_says_so) {
  TempFolder folder;
  write(folder, config(), tiny_llama());
  auto p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  device::Stream stream(1);
  const auto decoder = fill(*p->checkpoint, p->plan, {}, stream,
                            [](std::string_view, uint64_t, uint64_t) { return false; });
  ASSERT_FALSE(decoder);
  EXPECT_EQ(decoder.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(decoder.error().message, "loading was cancelled");
}

TEST(split, every_part_of_a_fused_projection_is_dealt_out_evenly) {
  // 6 query heads and 2 key-value heads of 4: two ranks have 12 + 4 + 4 rows each.
  TempFolder folder;
  std::vector<Stored> tensors = {{"model.embed_tokens.weight", {16, 24}},
                                 {"model.layers.0.input_layernorm.weight", {24}},
                                 {"model.layers.0.self_attn.qkv_proj.weight", {40, 24}},
                                 {"model.layers.0.self_attn.o_proj.weight", {24, 24}},
                                 {"model.layers.0.post_attention_layernorm.weight", {24}},
                                 {"model.layers.0.mlp.gate_up_proj.weight", {12, 24}},
                                 {"model.layers.0.mlp.down_proj.weight", {24, 6}},
                                 {"model.norm.weight", {24}},
                                 {"lm_head.weight", {16, 24}}};
  write(folder, R"({"architectures": ["Phi3ForCausalLM"], "hidden_size": 24, "vocab_size": 16,
                    "num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 2,
                    "intermediate_size": 6})",
        tensors);
  auto p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems, Sentences{});
  const quant::LinearLayer& qkv = p->plan.modules[1].declared;
  EXPECT_EQ(qkv.parts, (std::vector<int64_t>{24, 8, 8}));
  EXPECT_TRUE(check_split(p->plan, 2));
  EXPECT_EQ(check_split(p->plan, 3).error().message,
            "2 key-value heads do not divide among 3 ranks");
}

TEST(plan, an_image_part_that_the_model_does_not_declare_is_a_problem) {
  TempFolder folder;
  auto tensors = tiny_llama("model.");
  tensors.push_back({"model.vision_tower.conv.weight", {4}});
  write(folder, config(), tensors);
  auto p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems,
            Sentences{"model.vision_tower.conv.weight: no layer of LlamaForCausalLM uses this bf16 "
                      "(4) tensor, and nothing says it may be left out"});
}

TEST(plan, the_scales_of_a_cache_stand_by_the_attention_also_of_fused_projections) {
  TempFolder folder;
  const std::string attention = "model.layers.0.self_attn";
  write(folder,
        R"({"architectures": ["Phi3ForCausalLM"], "hidden_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16,
            "pad_token_id": 0, "tie_word_embeddings": true, "vocab_size": 16,
            "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
              "kv_cache_scheme": {"type": "float", "num_bits": 8}}})",
        {{"model.embed_tokens.weight", {16, 8}},
         {"model.layers.0.input_layernorm.weight", {8}},
         {attention + ".qkv_proj.weight", {16, 8}},
         {attention + ".o_proj.weight", {8, 8}},
         {attention + ".qkv_proj.k_scale", {1}},
         {attention + ".qkv_proj.v_scale", {1}},
         {"model.layers.0.post_attention_layernorm.weight", {8}},
         {"model.layers.0.mlp.gate_up_proj.weight", {32, 8}},
         {"model.layers.0.mlp.down_proj.weight", {8, 16}},
         {"model.norm.weight", {8}}});
  auto p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  const CachePlan& cache = p->plan.cache;
  EXPECT_EQ(p->plan.problems, Sentences{});
  ASSERT_EQ(cache.layers.size(), 1u);
  EXPECT_EQ(cache.format.type, kernels::KvType::kE4M3);
  EXPECT_EQ(cache.layers[0].attention, attention);
  EXPECT_EQ(cache.layers[0].k_source, attention + ".qkv_proj.k_scale");
  EXPECT_EQ(cache.layers[0].v_source, attention + ".qkv_proj.v_scale");
}

TEST(plan, a_cache_that_is_not_known_is_not_said_to_be_none) {
  TempFolder folder;
  std::vector<Stored> stored = tiny_llama();
  stored.push_back({"model.layers.0.self_attn.k_scale", {1}});
  stored.push_back({"model.layers.0.self_attn.v_scale", {1}});
  write(folder, config(R"("quantization_config": {"quant_method": "fp8",
          "activation_scheme": "dynamic", "kv_cache_scheme": {"type": "int", "num_bits": 4}}, )"),
        stored);
  auto p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(
      p->plan.problems,
      Sentences{"config.json: quantization_config: kv_cache_scheme: a cache of 4 bits of type "
                "int is not known here; --kv-cache-dtype fp8_e4m3, or another type, runs the "
                "model with that"});
  EXPECT_EQ(p->plan.notes,
            Sentences{"config.json: quantization_config is of fp8, but no layer is stored "
                      "quantized: all are plain floats, and stay so"});
}

TEST(plan, a_head_of_no_elements_is_none_beside_tied_embeddings) {
  TempFolder folder;
  std::vector<Stored> stored = tiny_llama("model.");
  for (Stored& s : stored) {
    if (s.name == "lm_head.weight") s.shape = {0};
  }
  write(folder, config(R"("tie_word_embeddings": true, )"), stored);
  auto p = planned(folder);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(p->plan.problems, Sentences{});
  EXPECT_EQ(p->plan.notes, Sentences{});
  EXPECT_TRUE(p->plan.spec.tied_embeddings);
}

}  // namespace
}  // namespace nibble::load
