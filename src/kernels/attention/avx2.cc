#define NIBBLE_SIMD_HEADER "kernels/simd/avx2.h"
#include "kernels/attention/attention_simd.h"

namespace nibble::kernels {

const AttentionOps kAttentionAvx2 = {avx2::attention_range, avx2::join_parts, avx2::store_key,
                                     avx2::store_value};

}  // namespace nibble::kernels
