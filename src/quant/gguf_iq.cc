// The IQ types: groups of 8 (or 4) elements are entries of a code book, with signs beside them. The
// canonical form holds the signed entries as s8 codes and the scale of each sub-block.
#include <cstring>

#include "quant/gguf_decode.h"
#include "quant/gguf_grids.h"

namespace nibble::quant {
namespace {

// Eight elements of a grid of 2-bit indices, negated where `signs` has a one.
void expand_iq2(uint16_t entry, uint32_t signs, uint8_t* code) {
  for (int i = 0; i < 8; ++i) {
    const int value = kMapIq2[entry >> 2 * i & 3];
    code[i] = static_cast<uint8_t>((signs >> i & 1) != 0 ? -value : value);
  }
}

// Four elements of a grid of 3-bit indices.
void expand_iq3(uint16_t entry, const int8_t* map, uint32_t signs, uint8_t* code) {
  for (int i = 0; i < 4; ++i) {
    const int value = map[entry >> 4 * i & 7];
    code[i] = static_cast<uint8_t>((signs >> i & 1) != 0 ? -value : value);
  }
}

// Seven sign bits are stored; the eighth makes the number of ones even.
uint32_t with_parity(uint32_t seven) {
  uint32_t parity = seven ^ seven >> 4;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return seven | (parity & 1) << 7;
}

// w = d (2 s + 1) (grid + delta), delta = +-1/8. Codes are 8 grid +- 1, the scale is an eighth.
void expand_iq1(uint16_t entry, bool minus, uint8_t* code) {
  for (int i = 0; i < 8; ++i) {
    code[i] = static_cast<uint8_t>(8 * kMapIq1[entry >> 2 * i & 3] + (minus ? -1 : 1));
  }
}

}  // namespace

// f16 d; qs[32]; u16 qh[8]: per 32 elements four times 3 high bits of an index, 3 bits of scale,
// the sign of delta.
void decode_iq1_s(const uint8_t* block, uint8_t* code, float* scale, float*) {
  const float d = read_f16(block);
  for (int sub = 0; sub < 8; ++sub) {
    const uint32_t qh = read_u16(block + 34 + 2 * sub);
    scale[sub] = d * static_cast<float>(2 * (qh >> 12 & 7) + 1) * 0.125f;
    for (int i = 0; i < 4; ++i) {
      const uint32_t index = block[2 + 4 * sub + i] | (qh >> 3 * i & 7) << 8;
      expand_iq1(kGridIq1S[index], (qh & 0x8000) != 0, code + 32 * sub + 8 * i);
    }
  }
}

// qs[32]; qh[16]: per 8 elements 3 high bits of an index and the sign of delta; u16 scales[4]: four
// times 3 bits each, and in the top four bits a quarter of the f16 d.
void decode_iq1_m(const uint8_t* block, uint8_t* code, float* scale, float*) {
  uint32_t d_bits = 0;
  for (int i = 0; i < 4; ++i) {
    d_bits |= static_cast<uint32_t>(read_u16(block + 48 + 2 * i) >> 12) << 4 * i;
  }
  const float d = base::f32_from_f16(static_cast<uint16_t>(d_bits));
  for (int sub = 0; sub < 16; ++sub) {
    const uint32_t s = read_u16(block + 48 + 2 * (sub / 4)) >> 3 * (sub % 4) & 7;
    scale[sub] = d * static_cast<float>(2 * s + 1) * 0.125f;
  }
  for (int i = 0; i < 32; ++i) {
    const uint32_t qh = block[32 + i / 2] >> 4 * (i % 2) & 15;
    expand_iq1(kGridIq1S[block[i] | (qh & 7) << 8], (qh & 8) != 0, code + 8 * i);
  }
}

// f16 d; per 32 elements four index bytes and a u32: four times 7 sign bits, 4 bits of scale.
//   w = d (s + 1/2) / 4 * grid
void decode_iq2_xxs(const uint8_t* block, uint8_t* code, float* scale, float*) {
  const float d = read_f16(block);
  for (int sub = 0; sub < 8; ++sub) {
    const uint8_t* index = block + 2 + 8 * sub;
    const uint32_t tail = read_u32(index + 4);
    scale[sub] = d * (0.5f + static_cast<float>(tail >> 28)) * 0.25f;
    for (int i = 0; i < 4; ++i) {
      expand_iq2(kGridIq2Xxs[index[i]], with_parity(tail >> 7 * i & 127), code + 32 * sub + 8 * i);
    }
  }
}

// f16 d; u16 qs[32]: 9 bits of index, 7 sign bits; scales[8]: 4 bits per 16 elements.
void decode_iq2_xs(const uint8_t* block, uint8_t* code, float* scale, float*) {
  const float d = read_f16(block);
  for (int sub = 0; sub < 16; ++sub) {
    const int s = block[66 + sub / 2] >> 4 * (sub % 2) & 15;
    scale[sub] = d * (0.5f + static_cast<float>(s)) * 0.25f;
  }
  for (int i = 0; i < 32; ++i) {
    const uint32_t q = read_u16(block + 2 + 2 * i);
    expand_iq2(kGridIq2Xs[q & 511], with_parity(q >> 9), code + 8 * i);
  }
}

// f16 d; qs[32]; signs[32]; qh[8]: 2 high bits per index; scales[8]: 4 bits per 16 elements.
void decode_iq2_s(const uint8_t* block, uint8_t* code, float* scale, float*) {
  const float d = read_f16(block);
  for (int sub = 0; sub < 16; ++sub) {
    const int s = block[74 + sub / 2] >> 4 * (sub % 2) & 15;
    scale[sub] = d * (0.5f + static_cast<float>(s)) * 0.25f;
  }
  for (int i = 0; i < 32; ++i) {
    const uint32_t index = block[2 + i] | (block[66 + i / 4] >> 2 * (i % 4) & 3) << 8;
    expand_iq2(kGridIq2S[index], block[34 + i], code + 8 * i);
  }
}

// f16 d; qs[64]; u32 per 32 elements: four times 7 sign bits, 4 bits of scale.
//   w = d (s + 1/2) / 2 * grid
void decode_iq3_xxs(const uint8_t* block, uint8_t* code, float* scale, float*) {
  const float d = read_f16(block);
  for (int sub = 0; sub < 8; ++sub) {
    const uint32_t tail = read_u32(block + 66 + 4 * sub);
    scale[sub] = d * (0.5f + static_cast<float>(tail >> 28)) * 0.5f;
    for (int i = 0; i < 8; ++i) {
      const uint32_t signs = with_parity(tail >> 7 * (i / 2) & 127) >> 4 * (i % 2);
      expand_iq3(kGridIq3Xxs[block[2 + 8 * sub + i]], kMapIq3Xxs, signs, code + 32 * sub + 4 * i);
    }
  }
}

// f16 d; qs[64]; qh[8]: the ninth bit of each index; signs[32]; scales[4]: 4 bits per 32 elements.
//   w = d (2 s + 1) * grid
void decode_iq3_s(const uint8_t* block, uint8_t* code, float* scale, float*) {
  const float d = read_f16(block);
  for (int sub = 0; sub < 8; ++sub) {
    const int s = block[106 + sub / 2] >> 4 * (sub % 2) & 15;
    scale[sub] = d * static_cast<float>(1 + 2 * s);
  }
  for (int i = 0; i < 64; ++i) {
    const uint32_t index = block[2 + i] | (block[66 + i / 8] >> i % 8 & 1) << 8;
    expand_iq3(kGridIq3S[index], kMapIq3S, block[74 + i / 2] >> 4 * (i % 2), code + 4 * i);
  }
}

// f16 d; 16 bytes: low nibbles are elements 0..15, high nibbles 16..31.      w = d map[q]
void decode_iq4_nl(const uint8_t* block, uint8_t* code, float* scale, float*) {
  scale[0] = read_f16(block);
  for (int i = 0; i < 16; ++i) {
    code[i] = static_cast<uint8_t>(kMapIq4[block[2 + i] & 15]);
    code[i + 16] = static_cast<uint8_t>(kMapIq4[block[2 + i] >> 4]);
  }
}

// f16 d; u16 scales_h: 2 bits each; scales_l[4]: 4 bits each; qs as IQ4_NL per 32 elements.
//   w = d (s - 32) map[q]
void decode_iq4_xs(const uint8_t* block, uint8_t* code, float* scale, float*) {
  const float d = read_f16(block);
  const uint32_t high = read_u16(block + 2);
  for (int sub = 0; sub < 8; ++sub) {
    const int s = (block[4 + sub / 2] >> 4 * (sub % 2) & 15) | (high >> 2 * sub & 3) << 4;
    scale[sub] = d * static_cast<float>(s - 32);
    for (int i = 0; i < 16; ++i) {
      const uint8_t q = block[8 + 16 * sub + i];
      code[32 * sub + i] = static_cast<uint8_t>(kMapIq4[q & 15]);
      code[32 * sub + 16 + i] = static_cast<uint8_t>(kMapIq4[q >> 4]);
    }
  }
}

}  // namespace nibble::quant
