// The kernels of one ISA, as a value: made once from the Hardware (or from --isa) and handed to
// every operation but matmul, which has a chooser of its own.
//
//   const Ops ops = ops_for(hardware.best_isa());
//   rms_norm(stream, ops, norm, x, n, y, n, m);
#pragma once

#include "device/hardware.h"

namespace nibble::kernels {

struct ActivationOps;  // activation/activation.h
struct NormOps;        // norm/norm.h
struct RopeOps;        // rope/rope.h
struct AttentionOps;   // attention/attention_ops.h

struct Ops {
  device::Isa isa = device::Isa::kReference;
  const ActivationOps* activation = nullptr;
  const NormOps* norm = nullptr;
  const RopeOps* rope = nullptr;
  const AttentionOps* attention = nullptr;
};

// AMX machines get the AVX-512 ones: these operations have no use for tiles. Precondition: the
// machine that will run them has `isa`.
Ops ops_for(device::Isa isa);

}  // namespace nibble::kernels
