// A weight on a card: the canonical form, packed as simply as it can be read fast. One allocation:
//
//   values   f32 of every code     (16) at 4 bits, (256) at 8; absent at 16 and 32
//   scale    f32 (rows of scales, groups)
//   zero     f32 (N, groups)
//   offset   f32 (N, groups)
//   codes    (N, K padded to 32): two to a byte, the low nibble first, for elements of up to 4
//   bits;
//            a byte for those of up to 8; as they are for f16, bf16, f32. Padding is zero.
//
// each beginning at a multiple of 256 bytes. Also the kernels that read it, the chooser's list for
// cards, and matmul over them. Private to matmul/.
#pragma once

#include <memory>
#include <span>

#include "device/cuda.h"
#include "device/memory.h"
#include "kernels/cuda/abi.h"
#include "kernels/matmul/kernel.h"
#include "kernels/matmul/rows.h"

namespace nibble::kernels {

// Where the parts begin; absent ones are -1.
struct CudaLayout {
  int code_bits = 8;
  int64_t row_bytes = 0;
  int64_t values = -1;
  int64_t scale = -1;
  int64_t zero = -1;
  int64_t offset = -1;
  int64_t codes = 0;
  int64_t bytes = 0;
};
CudaLayout cuda_layout(int64_t n, int64_t k, const tensor::WeightFormat& format);

// The bytes that go to the card.
Result<tensor::Buffer> cuda_image(const tensor::QuantizedWeight& weight, const CudaLayout& layout,
                                  device::Stream& stream);

struct CudaPacked {
  std::shared_ptr<device::Cuda> cuda;
  device::Memory image;
  device::Memory order;
  device::Memory factor;
  device::Memory row_scales;  // where the weight's own are for several rows
  CudaWeight weight = {};
  CudaInput input;
  const float* row_scale = nullptr;  // (n), for products of codes with codes
};
Result<std::shared_ptr<const CudaPacked>> pack_for_cuda(const tensor::QuantizedWeight& weight,
                                                        const Choice& choice,
                                                        device::Stream& stream);

// unpack_row. What goes wrong on the card is told by the next copy from it.
void unpack_row_of_cuda(const CudaPacked& packed, int64_t n, float* out);

// The kernels for cards, best first; their `run` is null.
std::span<const Kernel> cuda_kernels();
constexpr const char* kCudaPacking = "cuda";
constexpr const char* kTilePacking = "cuda_tiles";  // cuda_tiles.h

bool multiplies_codes(const Choice& choice);  // for some number of tokens

// judge() for a machine with a card.
Choice judge_for_cuda(const MatmulProblem& problem, const device::Gpu& gpu,
                      const MatmulPolicy& policy);
bool glob_matches(std::string_view glob, std::string_view text);
tensor::ActivationFormat activation_for(const MatmulProblem& problem, const MatmulPolicy& policy);

struct Judged {
  std::vector<const Kernel*> fitting;
  std::vector<Refusal> refusals;
};
// The kernels of a list, by why(kernel): "" where it fits.
template <class Why>
Judged judged(std::span<const Kernel> list, const Why& why) {
  Judged out;
  for (const Kernel& kernel : list) {
    std::string refused = why(kernel);
    if (refused.empty()) {
      out.fitting.push_back(&kernel);
    } else {
      out.refusals.push_back({kernel.name, std::move(refused)});
    }
  }
  return out;
}

std::vector<ChoiceRange> ranges_of(const std::vector<const Kernel*>& kernels);

const Kernel& kernel_for(const Choice& choice, int64_t m);
void matmul_on_cuda(device::Stream& stream, std::span<const RowsTarget> targets, ConstRows x,
                    int64_t ldx, int64_t m);

}  // namespace nibble::kernels
