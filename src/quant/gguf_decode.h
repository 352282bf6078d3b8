// Inside gguf_blocks: one decoder per block type.
#pragma once

#include <cstdint>

#include "base/number.h"

namespace nibble::quant {

// Decodes one block: a code byte per element, a scale per group, an offset per group where the type
// has one.
using GgufDecode = void (*)(const uint8_t* block, uint8_t* code, float* scale, float* offset);

inline uint16_t read_u16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }
inline uint32_t read_u32(const uint8_t* p) { return read_u16(p) | uint32_t{read_u16(p + 2)} << 16; }
inline float read_f16(const uint8_t* p) { return base::f32_from_f16(read_u16(p)); }

// gguf_iq.cc
void decode_iq1_s(const uint8_t* block, uint8_t* code, float* scale, float* offset);
void decode_iq1_m(const uint8_t* block, uint8_t* code, float* scale, float* offset);
void decode_iq2_xxs(const uint8_t* block, uint8_t* code, float* scale, float* offset);
void decode_iq2_xs(const uint8_t* block, uint8_t* code, float* scale, float* offset);
void decode_iq2_s(const uint8_t* block, uint8_t* code, float* scale, float* offset);
void decode_iq3_xxs(const uint8_t* block, uint8_t* code, float* scale, float* offset);
void decode_iq3_s(const uint8_t* block, uint8_t* code, float* scale, float* offset);
void decode_iq4_nl(const uint8_t* block, uint8_t* code, float* scale, float* offset);
void decode_iq4_xs(const uint8_t* block, uint8_t* code, float* scale, float* offset);

}  // namespace nibble::quant
