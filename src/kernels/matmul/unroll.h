// Loops that must vanish: their counters index registers.
#pragma once

#if defined(__clang__)
#define NIBBLE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define NIBBLE_UNROLL _Pragma("GCC unroll 32")
#endif

// Never a symbol of its own: a function compiled for AVX-512 must not be the copy that an older CPU
// is given by the linker.
#define NIBBLE_INLINE static inline __attribute__((always_inline))

// F(0) F(1) ... F(13): one name a row of a register tile. g++ 12 keeps an array of accumulators in
// memory, however far its loops are unrolled.
#define NIBBLE_ROWS_6(F) F(0) F(1) F(2) F(3) F(4) F(5)
#define NIBBLE_ROWS_14(F) NIBBLE_ROWS_6(F) F(6) F(7) F(8) F(9) F(10) F(11) F(12) F(13)
