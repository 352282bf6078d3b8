#define NIBBLE_SIMD_HEADER "kernels/simd/avx512.h"
#include "kernels/attention/attention_simd.h"

namespace nibble::kernels {

const AttentionOps kAttentionAvx512 = {avx512::attention_range, avx512::join_parts,
                                       avx512::store_key, avx512::store_value};

}  // namespace nibble::kernels
