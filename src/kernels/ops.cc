#include "kernels/ops.h"

#include "kernels/activation/activation.h"
#include "kernels/attention/attention_ops.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"

namespace nibble::kernels {

Ops ops_for(device::Isa isa) {
  switch (isa) {
    case device::Isa::kReference:
      return {isa, &kActivationReference, &kNormReference, &kRopeReference, &kAttentionReference};
    case device::Isa::kAvx2:
      return {isa, &kActivationAvx2, &kNormAvx2, &kRopeAvx2, &kAttentionAvx2};
    case device::Isa::kAvx512:
    case device::Isa::kAmx:
      return {isa, &kActivationAvx512, &kNormAvx512, &kRopeAvx512, &kAttentionAvx512};
  }
  return {};
}

}  // namespace nibble::kernels
