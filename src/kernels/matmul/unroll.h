// Loops that must vanish: their counters index registers.
#pragma once

#if defined(__clang__)
#define NIBBLE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define NIBBLE_UNROLL _Pragma("GCC unroll 32")
#endif

// Intrinsics are inlined only into functions that are; a kernel's parts always are.
#define NIBBLE_INLINE static inline __attribute__((always_inline))
