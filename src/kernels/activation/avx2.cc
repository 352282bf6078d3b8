#define NIBBLE_SIMD_HEADER "kernels/simd/avx2.h"
#include "kernels/activation/activation_simd.h"

namespace nibble::kernels {

const ActivationOps kActivationAvx2 = {avx2::activate_row, avx2::activate_gated_row,
                                       avx2::add_to_row,   avx2::scale_by_row,
                                       avx2::soft_cap_row, avx2::first_not_finite};

}  // namespace nibble::kernels
