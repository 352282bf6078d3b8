#define NIBBLE_SIMD_HEADER "kernels/simd/avx2.h"
#include "kernels/rope/rope_simd.h"

namespace nibble::kernels {

const RopeOps kRopeAvx2 = {avx2::rotate_halves, avx2::rotate_neighbours};

}  // namespace nibble::kernels
