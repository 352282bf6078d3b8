#define NIBBLE_SIMD_HEADER "kernels/simd/avx512.h"
#include "kernels/activation/activation_simd.h"

namespace nibble::kernels {

const ActivationOps kActivationAvx512 = {avx512::activate_row, avx512::activate_gated_row,
                                         avx512::add_to_row,   avx512::scale_by_row,
                                         avx512::soft_cap_row, avx512::first_not_finite};

}  // namespace nibble::kernels
