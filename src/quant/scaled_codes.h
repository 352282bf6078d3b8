// The weights that most schemes store: plain codes, and scales beside them. A scheme fills in a
// ScaledCodes per layer (which tensors, which area has one scale) and gets a LinearMethod.
//
//   <module>.<weight>        codes, as Codes says
//   <module>.<scale>         one per tensor, part, output, group of inputs, or block
//   <module>.<scale2>        ()   a second level: multiplies every scale, or divides it
//   <module>.<input_scale>   ()   static activations
//   <module>.<input_factor>  (K)  multiplies the input before anything else
//
//   w[n, k] = value(code[n, k]) * (scale[area of (n, k)] * scale2)          in float32
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nibble/result.h"
#include "quant/block_sizes.h"
#include "quant/method.h"
#include "quant/scheme.h"

namespace nibble::quant {

// How the codes of a layer lie in the stored tensor.
enum class Codes : uint8_t {
  kBytes,     // (N, K)          one a byte: e4m3, e5m2, s8
  kNibblesK,  // (N, K/2)        two inputs a byte, the even one in the low half
  kNibblesN,  // (N/2, K)        two outputs a byte, the even one in the low half
  kBlocks,    // (N, K/32, 16)   32 inputs in 16 bytes, as kNibblesK
  kE2M3,      // (N, 3K/4)       four inputs in three bytes, lowest bits first; held as e4m3
  kE3M2,      // (N, 3K/4)       the same, held as e5m2
  // Four inputs in three bytes, the first one highest: their upper two bits each in the first byte,
  // the lower four of two inputs each in the others; held as kE2M3 and kE3M2 are.
  kSplitE2M3,  // (N, 3K/4)
  kSplitE3M2,  // (N, 3K/4)
};

// The outputs and inputs that share a scale; 0 is the whole dimension, as in WeightFormat.
struct Area {
  int64_t n = 0, k = 0;
  bool per_part = false;  // one for each part of a layer that is stored fused
};
inline constexpr Area kPerTensor = {0, 0};
inline constexpr Area kPerOutput = {1, 0};

// The one-byte float types; the types of their scales. u8 scales are e8m0 that was stored so.
inline const std::vector<tensor::DType> kFp8Types = {
    tensor::DType::kE4M3, tensor::DType::kE4M3FNUZ, tensor::DType::kE5M2, tensor::DType::kE5M2FNUZ};
inline const std::vector<tensor::DType> kScaleTypes = {tensor::DType::kF32,  tensor::DType::kBF16,
                                                       tensor::DType::kF16,  tensor::DType::kE8M0,
                                                       tensor::DType::kE4M3, tensor::DType::kU8};
bool is_fp8(tensor::DType dtype);
tensor::Element element_of_fp8(tensor::DType dtype);

struct ScaledCodes {
  std::string_view scheme;
  tensor::Element element = tensor::Element::kE4M3;
  Codes codes = Codes::kBytes;
  std::vector<tensor::DType> code_types;  // accepted
  std::string weight = "weight";
  std::string scale = "weight_scale";
  std::vector<tensor::DType> scale_types = kScaleTypes;  // accepted
  Area area;
  // Scales of one byte (`scale_types` has no others), (N, K/G), in the order of Blackwell's tensor
  // cores: N filled up to a multiple of 128, K/G of 4; each 128 x 4 of them stand together, scale
  // (r, c) of those at r % 32 * 16 + r / 32 * 4 + c.
  bool swizzled = false;
  bool signed_exponents = false;  // scales of u8 are s8 exponents of two, not e8m0's
  std::string scale2;             // "": none
  bool scale2_divides = false;
  tensor::ActivationFormat activation;
  // Read (and required) when the activations are static, or have scales on two levels. Stored
  // although they are not: unused, for the reason `input_scale_unused`.
  std::string input_scale = "input_scale";  // "": none is stored, and it is 1
  bool input_scale_divides = false;
  std::string input_scale_unused = "the activations are dynamic";
  std::string input_factor;  // "": none
  // More tensors of the layer that are known and not read: suffix, reason.
  std::vector<std::pair<std::string, std::string>> unused;
};

// The area of a scale tensor, from its shape. `block` is what the config says, (0, 0) for nothing
// (then blocks are found as block_sizes.h says, `all` of the checkpoint's or this layer's), and
// `block_key` the key that says it. Errors: the shape is none of the known ones, or blocks of
// several sizes would have it; a config that gives blocks and a scale that is not one per block.
Result<Area> area_of(const LinearLayer& layer, const tensor::TensorInfo& scale, Area block,
                     std::string_view block_key, const BlockSizes* all = nullptr);

// The scale beside a layer's codes, under the name it has: weight_scale_inv or weight_scale. Error:
// neither is stored.
struct ScaleBeside {
  std::string suffix;
  const tensor::TensorInfo* info;
};
Result<ScaleBeside> scale_beside(const LinearLayer& layer, const TensorLookup& tensors,
                                 const tensor::TensorInfo& codes);

// The method for a layer whose tensors `codes` describes; they are looked up for their types.
// Precondition: N is even for kNibblesN, K for kNibblesK, K divides by 32 for kBlocks, by 4 for
// codes of 6 bits.
std::unique_ptr<LinearMethod> scaled_codes_method(const LinearLayer& layer,
                                                  const TensorLookup& tensors, ScaledCodes codes);

// What a checkpoint says of all of its linears, where they are of one kind.
struct ScaledLinears {
  std::string_view scheme;
  std::vector<tensor::DType> code_types;  // all fp8, or s8
  Area block;                             // as the config has it; (0, 0): the shapes decide
  std::string_view block_key = "weight_block_size";
  tensor::ActivationFormat activation;
  std::string input_scale_unused = "the activations are dynamic";
};

// The config of a scheme whose linears are codes of a byte with weight_scale or weight_scale_inv
// (both multiply) beside them. What is stored outranks the list of names: plain floats are
// unquantized, codes are codes. Errors: a weight of another type, or without a scale.
class ScaledCodesConfig : public QuantizationConfig {
 public:
  explicit ScaledCodesConfig(ScaledLinears all) : linears(std::move(all)) {}

  std::string_view scheme() const override { return linears.scheme; }
  std::vector<const NameMatcher*> matchers() const override { return {&ignored_}; }
  Result<std::unique_ptr<LinearMethod>> linear_method(const LinearLayer& layer,
                                                      const TensorLookup& tensors) const override;

  // The lists of modules that are left alone, under any of these keys.
  Result<void> read_ignored(const base::Json& dictionary,
                            std::initializer_list<std::string_view> keys);

  // Blocks that no key gives, from all tensors; a note says what was found.
  void find_blocks(const TensorLookup& tensors);

  // The whole of a config that says nothing but its name and a list (w8a8_fp8, w8a8_int8), also a
  // missing one: activations are dynamic per token, or static per tensor where input scales are
  // stored and nothing says otherwise.
  Result<void> read_dynamic(const CheckpointFacts& facts, tensor::ActivationFormat::Type type);

  ScaledLinears linears;

 private:
  NameMatcher ignored_;
  BlockSizes sizes_;  // where no key gives them
};

// A key of two positive integers, a block of outputs x inputs; (0, 0) when absent or null.
Result<Area> block_key(const base::Json& dictionary, std::string_view key);

// Elements of a scale tensor: finite and positive. Errors have the place.
Result<std::vector<float>> read_scales(const tensor::TensorView& view, std::string_view suffix);

// The same for scales of weights, which may be 0: tools write that where every code is (and e4m3
// ones may have been rounded to it). `verify` finds those above other codes.
Result<std::vector<float>> read_weight_scales(const tensor::TensorView& view,
                                              std::string_view suffix);

// Refuses codes that are no numbers: nan, and the infinities of e5m2.
Result<void> check_fp8_codes(const tensor::TensorView& weight, std::string_view suffix, int64_t k);

}  // namespace nibble::quant
