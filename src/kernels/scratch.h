// Which of the stream's scratch slots belongs to which operation (device/stream.h). Operations do
// not run inside one another, but one may keep what it prepared while the next runs.
#pragma once

namespace nibble::kernels {

// Slots 7 to 15 of a CPU are matmul's, and 0 to 8 of a card.
constexpr int kAttentionWorkerSlot = 0;  // a tile for each worker
constexpr int kAttentionPartSlot = 1;    // partial sums of context splits
constexpr int kAttentionCudaSlot = 15;   // of a card: the same
constexpr int kSampleCudaSlot = 14;      // of a card: what comes of logits

}  // namespace nibble::kernels
