#define NIBBLE_SIMD_HEADER "kernels/simd/avx512.h"
#include "kernels/rope/rope_simd.h"

namespace nibble::kernels {

const RopeOps kRopeAvx512 = {avx512::rotate_halves, avx512::rotate_neighbours};

}  // namespace nibble::kernels
