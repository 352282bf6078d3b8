#include "kernels/matmul/cuda_w8a8.h"

#include <fmt/format.h>

#include "kernels/matmul/cuda_weight.h"
#include "kernels/quantize/round.h"

namespace nibble::kernels {
namespace {

using tensor::ActivationFormat;
using tensor::Element;

bool has_fp8_products(const device::Gpu& gpu) { return gpu.at_least(8, 9); }

bool reads(Codes codes, Element element) {
  if (codes == Codes::kE4M3) return element == Element::kE4M3;
  return element >= Element::kS8 && element <= Element::kS5;  // each code is a byte
}

std::string no_fp8(const device::Gpu& gpu) {
  return fmt::format("needs FP8 products (compute capability 8.9); {} has {}.{}", gpu.name,
                     gpu.major, gpu.minor);
}

// Inputs with one scale, and no zero point, for all of a token.
bool fits(Codes codes, const ActivationFormat& a) {
  const auto type =
      codes == Codes::kE4M3 ? ActivationFormat::Type::kE4M3 : ActivationFormat::Type::kS8;
  return a.type == type && a.granularity != ActivationFormat::Granularity::kGroup &&
         !a.asymmetric && !spans_call(a);
}

}  // namespace

std::string codes_refusal(Codes codes, const MatmulProblem& problem, const device::Gpu& gpu,
                          const MatmulPolicy& policy) {
  const tensor::WeightFormat& f = problem.weight;
  const bool e4m3 = codes == Codes::kE4M3;
  if (!reads(codes, f.element)) {
    return fmt::format("reads {}; the weight is {}", e4m3 ? "e4m3" : "s5 to s8",
                       tensor::name(f.element));
  }
  if (!f.scaled || f.zero != tensor::ZeroKind::kNone || (f.group_k != 0 && f.group_k < problem.k)) {
    return fmt::format("wants one scale, and no zero point, for each row; the weight is {}",
                       tensor::to_string(f));
  }
  const ActivationFormat wanted = activation_for(problem, policy);
  if (!fits(codes, wanted)) {
    return fmt::format("wants inputs as {} with one scale for each token; here they are {}",
                       e4m3 ? "e4m3" : "s8", tensor::to_string(wanted));
  }
  if (policy.precision == Precision::kExact) {
    return "multiplies in tensor cores; --precision exact wants float";
  }
  if (problem.n % 16 != 0 || problem.k % 16 != 0) {
    return fmt::format("needs N and K divisible by 16; they are {} and {}", problem.n, problem.k);
  }
  return e4m3 && !has_fp8_products(gpu) ? no_fp8(gpu) : "";
}

bool weight_only(const MatmulProblem& problem, const device::Gpu& gpu, const MatmulPolicy& policy) {
  const Element element = problem.weight.element;
  const bool fp8 = element >= Element::kE4M3 && element <= Element::kE5M2FNUZ;
  return fp8 && !has_fp8_products(gpu) && policy.precision == Precision::kFast &&
         activation_for(problem, policy).type == ActivationFormat::Type::kE4M3;
}

std::vector<float> row_scales(const tensor::QuantizedWeight& w) {
  if (static_cast<int64_t>(w.scale.size()) == w.n) return {};
  const int64_t group = w.format.group_n == 0 ? w.n : w.format.group_n;
  std::vector<float> out(static_cast<size_t>(w.n));
  for (int64_t n = 0; n < w.n; ++n) {
    out[static_cast<size_t>(n)] = w.scale[static_cast<size_t>(n / group)];
  }
  return out;
}

}  // namespace nibble::kernels
