// The table of kernels that the program asks libnibble_cuda.so for.
#include "kernels/cuda/functions.h"

namespace {

constexpr nibble::kernels::CudaKernels kKernels = {
    nibble::kernels::cuda::missing,
    nibble::kernels::cuda::rms_norm,
    nibble::kernels::cuda::layer_norm,
    nibble::kernels::cuda::activate,
    nibble::kernels::cuda::add_to,
    nibble::kernels::cuda::add_rows,
    nibble::kernels::cuda::copy,
    nibble::kernels::cuda::scale_by,
    nibble::kernels::cuda::soft_cap,
    nibble::kernels::cuda::attend,
    nibble::kernels::cuda::forget_bad,
    nibble::kernels::cuda::sample,
    nibble::kernels::cuda::score,
    nibble::kernels::cuda::look_up,
    nibble::kernels::cuda::prepare,
    nibble::kernels::cuda::matvec,
    nibble::kernels::cuda::gemm,
    nibble::kernels::cuda::multiply_few,
    nibble::kernels::cuda::multiply_many,
    nibble::kernels::cuda::prepare_codes,
    nibble::kernels::cuda::multiply_codes,
    nibble::kernels::cuda::read_seconds,
    nibble::kernels::cuda::product_seconds,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const void* nibble_cuda_kernels(
    uint32_t version) {
  return version == kNibbleCudaVersion ? &kKernels : nullptr;
}
