#include "checkpoint/gguf_types.h"

namespace nibble::checkpoint {
namespace {

using tensor::DType;

constexpr std::string_view kRemoved = "has been removed from the format";
constexpr std::string_view kRepacked =
    "has been removed from the format (it was q4_0 repacked for one CPU): use the q4_0 file";
constexpr std::string_view kNotYet = "is not read by nibble";

// ggml.h, enum ggml_type, with its gaps.
constexpr GgmlType kTypes[] = {
    {0, "F32", DType::kF32, {}},
    {1, "F16", DType::kF16, {}},
    {2, "Q4_0", DType::kQ4_0, {}},
    {3, "Q4_1", DType::kQ4_1, {}},
    {4, "Q4_2", std::nullopt, kRemoved},
    {5, "Q4_3", std::nullopt, kRemoved},
    {6, "Q5_0", DType::kQ5_0, {}},
    {7, "Q5_1", DType::kQ5_1, {}},
    {8, "Q8_0", DType::kQ8_0, {}},
    {9, "Q8_1", DType::kQ8_1, {}},
    {10, "Q2_K", DType::kQ2_K, {}},
    {11, "Q3_K", DType::kQ3_K, {}},
    {12, "Q4_K", DType::kQ4_K, {}},
    {13, "Q5_K", DType::kQ5_K, {}},
    {14, "Q6_K", DType::kQ6_K, {}},
    {15, "Q8_K", DType::kQ8_K, {}},
    {16, "IQ2_XXS", DType::kIQ2_XXS, {}},
    {17, "IQ2_XS", DType::kIQ2_XS, {}},
    {18, "IQ3_XXS", DType::kIQ3_XXS, {}},
    {19, "IQ1_S", DType::kIQ1_S, {}},
    {20, "IQ4_NL", DType::kIQ4_NL, {}},
    {21, "IQ3_S", DType::kIQ3_S, {}},
    {22, "IQ2_S", DType::kIQ2_S, {}},
    {23, "IQ4_XS", DType::kIQ4_XS, {}},
    {24, "I8", DType::kS8, {}},
    {25, "I16", DType::kS16, {}},
    {26, "I32", DType::kS32, {}},
    {27, "I64", DType::kS64, {}},
    {28, "F64", DType::kF64, {}},
    {29, "IQ1_M", DType::kIQ1_M, {}},
    {30, "BF16", DType::kBF16, {}},
    {31, "Q4_0_4_4", std::nullopt, kRepacked},
    {32, "Q4_0_4_8", std::nullopt, kRepacked},
    {33, "Q4_0_8_8", std::nullopt, kRepacked},
    {34, "TQ1_0", DType::kTQ1_0, {}},
    {35, "TQ2_0", DType::kTQ2_0, {}},
    {36, "IQ4_NL_4_4", std::nullopt, kRemoved},
    {37, "IQ4_NL_4_8", std::nullopt, kRemoved},
    {38, "IQ4_NL_8_8", std::nullopt, kRemoved},
    {39, "MXFP4", DType::kMXFP4, {}},
    {40, "NVFP4", DType::kNVFP4, {}},
    {41, "Q1_0", std::nullopt, kNotYet},
};

}  // namespace

const GgmlType* find_ggml_type(uint32_t id) {
  for (const GgmlType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

const GgmlType* find_ggml_type(DType dtype) {
  for (const GgmlType& type : kTypes) {
    if (type.dtype == dtype) return &type;
  }
  return nullptr;
}

}  // namespace nibble::checkpoint
