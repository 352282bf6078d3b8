// Which of the stream's scratch slots belongs to which operation (device/stream.h). Operations do
// not run inside one another, but one may keep what it prepared while the next runs.
#pragma once

namespace nibble::kernels {

// Slots 7 to 15 are matmul's.
constexpr int kAttentionWorkerSlot = 0;  // a tile for each worker
constexpr int kAttentionPartSlot = 1;    // partial sums of context splits

}  // namespace nibble::kernels
