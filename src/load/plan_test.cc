// What the plan makes of folders that are spelled in unusual ways.
#include "load/plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/safetensors_writer.h"
#include "checkpoint/test_files.h"
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

}  // namespace
}  // namespace nibble::load
