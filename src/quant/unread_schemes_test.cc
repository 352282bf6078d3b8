#include "quant/unread_schemes.h"

#include <gtest/gtest.h>

#include "quant/test_support.h"

namespace nibble::quant {
namespace {

constexpr const char* kHelp =
    "; use the GPTQ, AWQ, FP8 or GGUF edition of this model, or the unquantized one";

std::string refusal(const std::string& method) {
  return message(parse_config({}, R"({"quant_method": ")" + method + R"("})"));
}

TEST(unread_schemes, each_is_refused_with_its_name_its_reason_and_what_helps) {
  const std::string at = "config.json: quantization_config: quant_method is ";
  const std::string kernel =
      "weights are stored in the order of one GPU kernel, not in a format for exchange";
  for (const auto& [method, name, why] : std::vector<std::array<std::string, 3>>{
           {"aqlm", "AQLM",
            "a weight is a sum of vectors from code books that are learned for each layer"},
           {"quip#", "QuIP#", "weights are points of the E8 lattice in a rotated basis"},
           {"qtip", "QTIP", "weights are paths through a trellis in a rotated basis"},
           {"spqr", "SpQR",
            "quantized weights and their scales stand beside a sparse matrix of outliers"},
           {"vptq", "VPTQ", "weights are indices into vectors learned for each layer"},
           {"exl2", "EXL2",
            "the rows of a layer have different widths in an order of exllamav2's own"},
           {"exl3", "EXL3",
            "weights are paths through a trellis, in tiles for the tensor cores of a GPU"},
           {"fp-quant", "FP-Quant",
            "the inputs of its layers are rotated by a Hadamard matrix before they are quantized"},
           {"higgs", "HIGGS",
            "weights are grid points in a rotated basis, stored as FLUTE's GPU kernels want them"},
           {"quanto", "quanto", "it stores Python tensor subclasses, part by part"},
           {"squeezellm", "SqueezeLLM",
            "every output has a code book of its own, beside a sparse matrix of outliers"},
           {"sinq", "SINQ", "weights have a scale for each row and a second for each column"},
           {"marlin", "Marlin", kernel},
           {"qqq", "QQQ", kernel},
           {"bitblas", "BitBLAS", kernel},
           {"deepspeedfp", "DeepSpeedFP", "it only names how to quantize, while loading"},
           {"mlx", "MLX", "weights lie in words as the framework for Apple's GPUs wants them"},
           {"metal", "MLX's Metal layout", "it is a layout of Apple's GPUs"}}) {
    EXPECT_EQ(refusal(method),
              at + "\"" + method + "\": " + name + " checkpoints are not read: " + why + kHelp);
  }
  for (const auto& [method, name] :
       std::vector<std::array<std::string, 2>>{{"gemma", "transformers' own Gemma"},
                                               {"experts-int8", "quantized mixtures of experts"}}) {
    EXPECT_EQ(refusal(method),
              at + "\"" + method + "\": " + name + " checkpoints are not read yet" + kHelp);
  }
}

TEST(unread_schemes, spellings_and_case_do_not_matter) {
  EXPECT_EQ(refusal("FP_Quant").substr(0, 62), refusal("fp-quant").substr(0, 62));
}

TEST(unread_schemes, a_folder_that_names_no_method_is_known_by_what_it_stores) {
  TestCheckpoint checkpoint;
  checkpoint.add("model.layers.0.mlp.up_proj.Qidxs", tensor::DType::kS64, {1},
                 std::vector<int64_t>{1});
  CheckpointFacts facts;
  facts.tensors = checkpoint.lookup();
  EXPECT_EQ(message(detect_scheme(facts, "")),
            std::string("QuIP# checkpoints are not read: weights are points of the E8 lattice in a "
                        "rotated basis") +
                kHelp);
  const TestCheckpoint empty;
  facts.tensors = empty.lookup();
  EXPECT_EQ((*detect_scheme(facts, ""))->name, "unquantized");
}

}  // namespace
}  // namespace nibble::quant
