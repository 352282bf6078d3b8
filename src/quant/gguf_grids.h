// The code books of GGUF's IQ types: facts of the format (ggml-common.h), taken from the tables of
// the `gguf` Python package, quants.py.
//
// An entry of the IQ1 and IQ2 grids holds eight elements of 2 bits, one of the IQ3 grids four
// elements of 4 bits (3 used), the first element lowest; each indexes the map of its type.
#pragma once

#include <cstdint>

namespace nibble::quant {

extern const uint16_t kGridIq2Xxs[256];
extern const uint16_t kGridIq2Xs[512];
extern const uint16_t kGridIq2S[1024];
extern const uint16_t kGridIq3Xxs[256];
extern const uint16_t kGridIq3S[512];
extern const uint16_t kGridIq1S[2048];

inline constexpr int8_t kMapIq1[4] = {-1, 0, 1, 0};  // index 3 does not occur
inline constexpr int8_t kMapIq2[4] = {8, 25, 43, 0};
inline constexpr int8_t kMapIq3Xxs[8] = {4, 12, 20, 28, 36, 44, 52, 62};
inline constexpr int8_t kMapIq3S[8] = {1, 3, 5, 7, 9, 11, 13, 15};
inline constexpr int8_t kMapIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                       1,    13,   25,  38,  53,  69,  89,  113};

}  // namespace nibble::quant
