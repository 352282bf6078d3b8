#include "quant/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace nibble::quant {
namespace {

using tensor::DType;

// How weights are stored where a name says it.
using Types = std::array<DType, 4>;
constexpr Types kAny = {};
constexpr Types kFp8 = {DType::kE4M3, DType::kE5M2, DType::kE4M3FNUZ, DType::kE5M2FNUZ};
constexpr Types kInt8 = {DType::kS8, DType::kS8, DType::kS8, DType::kS8};
constexpr Types kFourBits = {DType::kU8, DType::kS8, DType::kE2M1, DType::kU8};
constexpr Types kWords = {DType::kS32, DType::kU32, DType::kS32, DType::kS32};

struct Name {
  std::string_view name;
  std::string_view schemes;  // "": the one that has it for a name
  Types stored;
};

constexpr std::string_view kFp8Schemes =
    "fp8 compressed-tensors modelopt fbgemm-fp8 w8a8-fp8 quark auto-round";
constexpr std::string_view kAnyKernel =
    "gptq awq fp8 compressed-tensors modelopt mxfp4 mxfp8 auto-round quark";

// Engines take most of these as an order how to run what is stored, whoever wrote it.
constexpr Name kNames[] = {
    {"fp8", kFp8Schemes, kFp8},
    {"fp8-e4m3", kFp8Schemes, kFp8},
    {"fp8-e5m2", kFp8Schemes, kFp8},
    {"w8a8-fp8", "w8a8-fp8 compressed-tensors fp8 modelopt", kFp8},
    {"ptpc-fp8", kFp8Schemes, kFp8},
    {"fp8-per-channel", kFp8Schemes, kFp8},
    {"deepseek-v4-fp8", "fp8 quark", kAny},
    {"fbgemm-fp8", "", kFp8},
    {"mxfp8", "mxfp8 modelopt compressed-tensors auto-round", kFp8},
    {"modelopt-fp8", "", kFp8},
    {"modelopt-mxfp8", "", kFp8},
    {"w8a8-int8", "w8a8-int8 compressed-tensors blockwise-int8", kInt8},
    {"auto-round-int8", "auto-round compressed-tensors w8a8-int8", kInt8},
    {"blockwise-int8", "", kInt8},
    {"bitsandbytes-8bit", "", kInt8},
    {"bitsandbytes-4bit", "", kFourBits},
    {"bitsandbytes-nf4", "", kFourBits},
    {"bitsandbytes-fp4", "", kFourBits},
    {"nvfp4", "modelopt compressed-tensors petit-nvfp4 quark", kFourBits},
    {"modelopt-fp4", "", kFourBits},
    {"modelopt-nvfp4", "", kFourBits},
    {"petit-nvfp4", "petit-nvfp4 modelopt", kFourBits},
    {"mxfp4", "mxfp4 quark compressed-tensors modelopt auto-round", kFourBits},
    {"gpt-oss-mxfp4", "", kFourBits},
    {"quark-mxfp4", "", kFourBits},
    {"gptq", "gptq auto-round", kWords},
    {"gptq-marlin", "gptq auto-round", kWords},
    {"auto-gptq", "gptq auto-round", kWords},
    {"gptq-marlin-24", "compressed-tensors", kWords},
    {"gptq-bitblas", "gptq", kWords},
    {"bitblas", "gptq", kWords},
    {"awq", "awq auto-round", kWords},
    {"awq-marlin", "awq auto-round", kWords},
    {"auto-awq", "awq auto-round", kWords},
    {"cpu-awq", "", kWords},
    {"cpu-wna16", "awq gptq compressed-tensors auto-round", kWords},
    {"moe-wna16", "gptq awq auto-round", kWords},
    {"marlin", "gptq awq auto-round", kWords},
    {"ipex", "gptq awq auto-round", kWords},
    {"exllama", "gptq awq auto-round", kWords},
    {"exllamav2", "gptq awq auto-round", kWords},
    {"inc", "auto-round gptq awq", kAny},
    {"humming", kAnyKernel, kAny},
};

// Names of what other engines make of a plain checkpoint.
constexpr std::string_view kMade[] = {"fp8-per-tensor",
                                      "fp8-per-block",
                                      "online",
                                      "nvfp4-online",
                                      "nvfp4-per-token",
                                      "int8-per-channel-weight-only",
                                      "experts-int8",
                                      "quark-int4fp8-moe",
                                      "tpu-int8",
                                      "neuron-quant",
                                      "rtn",
                                      "deepspeedfp"};

const Name* find_name(std::string_view name) {
  const std::string wanted = normalized(name);
  const auto* it = std::find_if(std::begin(kNames), std::end(kNames),
                                [&wanted](const Name& n) { return n.name == wanted; });
  return it == std::end(kNames) ? nullptr : it;
}

// A tensor that holds the codes of quantized weights.
bool holds_codes(const tensor::TensorInfo& info) {
  static constexpr std::array<std::string_view, 5> kCodes = {"weight", "weight_packed", "qweight",
                                                             "compressed", "blocks"};
  const std::string_view last = std::string_view(info.name).substr(info.name.rfind('.') + 1);
  return std::find(kCodes.begin(), kCodes.end(), last) != kCodes.end() &&
         !tensor::is_plain_float(info.dtype);
}

}  // namespace

std::string normalized(std::string_view name) {
  std::string out(name);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '_') c = '-';
  }
  return out;
}

std::string_view schemes_for(std::string_view name) {
  const Name* found = find_name(name);
  return found == nullptr ? std::string_view() : found->schemes;
}

std::optional<std::string> contradicted(const CheckpointFacts& facts, std::string_view name) {
  const Name* meaning = find_name(name);
  if (meaning == nullptr || meaning->stored == kAny) return std::nullopt;
  const tensor::TensorInfo* other = nullptr;
  for (const tensor::TensorInfo& info : facts.tensors.all) {
    if (!holds_codes(info)) continue;
    const Types& types = meaning->stored;
    if (std::find(types.begin(), types.end(), info.dtype) != types.end()) return std::nullopt;
    if (other == nullptr) other = &info;
  }
  if (other == nullptr) return std::nullopt;
  return fmt::format("means weights stored as {}, but none is: {} is {}",
                     tensor::name(meaning->stored[0]), other->name, tensor::name(other->dtype));
}

std::optional<std::string> why_not_made(std::string_view name) {
  const std::string wanted = normalized(name);
  if (std::find(std::begin(kMade), std::end(kMade), wanted) == std::end(kMade)) return std::nullopt;
  return fmt::format(
      "--quantization {}: it quantizes while loading; of that, only fp8 with a scale per output is "
      "done here: --quantization fp8",
      name);
}

}  // namespace nibble::quant
