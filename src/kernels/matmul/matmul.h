// y = x W^T for quantized W: the one operation nibble is about.
//
//   x  (M, K) f32      W  (N, K), see tensor/weight_format.h      y  (M, N) f32
//
//   y[m, n] = sum over k of x'[m, k] * w[n, k]
//
// where x' is x held as the chosen kernel holds it (its name says how) or, when the checkpoint
// quantizes activations itself, as the checkpoint says. Choosing has two moments: at load time
// (N, K, formats, hardware) fix the packing; at run time M picks among the kernels that read it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/hardware.h"
#include "device/stream.h"
#include "nibble/result.h"
#include "tensor/weight_format.h"

namespace nibble::kernels {

struct MatmulProblem {
  int64_t n = 0;
  int64_t k = 0;
  tensor::WeightFormat weight;
  tensor::ActivationFormat activation;
};

enum class Precision : uint8_t { kFast, kExact };

// --activation-dtype: what to do to the activations of layers whose checkpoint leaves them alone.
enum class ActivationChoice : uint8_t { kAuto, kFloat, kS8, kE4M3 };

struct MatmulPolicy {
  Precision precision = Precision::kFast;
  ActivationChoice activation = ActivationChoice::kAuto;
  device::Isa isa = device::Isa::kAmx;  // nothing above this
  std::string kernel_glob = "*";        // --kernel
};

struct Refusal {
  std::string kernel;
  std::string why;  // "needs K divisible by 32; K is 100"
};

struct Kernel;  // a line of kernels.inc

// The kernels for one packed weight: for M in [m_min, m_max] use `kernel`.
struct ChoiceRange {
  int64_t m_min = 1;
  int64_t m_max = INT64_MAX;
  const Kernel* kernel = nullptr;
};

struct Choice {
  std::string packing;              // name of the layout all of them read
  std::vector<ChoiceRange> ranges;  // ascending, without gaps, covering 1..INT64_MAX, or none
  std::vector<Refusal> refusals;    // kernels that come before the chosen ones in the list
  // What x is rounded to before the kernels hold it in their own way: what the checkpoint says,
  // unless the policy says otherwise.
  tensor::ActivationFormat activation;
};

const char* kernel_name(const Kernel& kernel);

// The names that match a glob ("*" is all of them), best first.
std::vector<std::string_view> kernel_names(std::string_view glob);

// Pure: prints nothing, reads nothing, remembers nothing. For a machine with a card the kernels are
// the card's. Where none takes the problem there are no ranges, and every refusal.
Choice judge(const MatmulProblem& problem, const device::Hardware& hardware,
             const MatmulPolicy& policy);
// Then this says why: the refusals joined, each reason once.
std::string none_takes(const MatmulProblem& problem, const device::Hardware& hardware,
                       const Choice& judged);
// judge(), for who cannot go on without a kernel.
Result<Choice> choose(const MatmulProblem& problem, const device::Hardware& hardware,
                      const MatmulPolicy& policy);

// Bytes that pack() will allocate for this problem.
int64_t packed_bytes(const MatmulProblem& problem, const Choice& choice);

struct Layout;
struct CudaPacked;  // cuda_weight.h

// A weight as its kernels want it.
struct PackedWeight {
  MatmulProblem problem;  // its activation is the choice's
  Choice choice;
  std::shared_ptr<const Layout> layout;  // where things are in `bytes`
  tensor::Buffer bytes;
  std::vector<int32_t> order;       // act-order: x is gathered by it before the kernel runs
  std::vector<float> input_factor;  // see QuantizedWeight
  int64_t input_hadamard = 0;
  float input_scale = 1.0f;
  float input_zero = 0.0f;
  std::shared_ptr<const CudaPacked> cuda;  // on a card; then the other parts are empty
};

// Canonical -> packed, to where the stream's kernels run. A pure function of its arguments; runs on
// the stream's threads.
Result<PackedWeight> pack(const tensor::QuantizedWeight& weight, Choice choice,
                          device::Stream& stream);

// Packed -> row n as f32, in the order of the inputs, exactly as dequantize_row gives it from the
// canonical form. For tests, embeddings and `nibble weights`.
void unpack_row(const PackedWeight& weight, int64_t n, float* out);

// Rows of an embedding table: out[i] = W[ids[i]], (ids, K). `out` is the stream's, `ids` the host's
// and in range. `placed`: where the same ids already lie on a card, or null.
void look_up(device::Stream& stream, const PackedWeight& table, std::span<const int32_t> ids,
             float* out, const int32_t* placed = nullptr);

// y = x W^T. x is (m, k) with row stride ldx, y (m, n) with row stride ldy, both in elements.
struct MatmulTarget {
  const PackedWeight* weight;
  float* y;
  int64_t ldy;
};
// Several weights that read the same x (q, k and v; gate and up): x is prepared once per distinct
// activation format, and one parallel loop runs over all of them. Results do not depend on the
// number of threads.
void matmul(device::Stream& stream, std::span<const MatmulTarget> targets, const float* x,
            int64_t ldx, int64_t m);

}  // namespace nibble::kernels
