// The kernels of libnibble_cuda.so as a table of functions. Pointers are the card's unless said
// otherwise; strides are in elements; every function puts its work into the context's stream and
// returns. What goes wrong is kept in the context (NibbleCudaDevice::error).
//
// A change here counts up kNibbleCudaVersion in device/cuda_abi.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda_abi.h"
#include "tensor/weight_format.h"

namespace nibble::kernels {

// Codes, scales and zeros of an integer weight in tiles for Hopper (matmul/cuda_w4.cuh draws them).
struct CudaTiles {
  int32_t bits;   // 4, 8; 0: the weight is not in tiles
  int32_t group;  // inputs that share a scale
  int64_t k_pad;
  int64_t groups;
  int32_t scales_are_bf16;  // else f16
  int32_t scales_fold;      // each is 0, or at least 2^-60 and below 2^19 (cuda_w4_fragment.cuh)
  const void* codes;
  const void* scales;
  const void* zeros;  // or null
};

// A quantized weight in canonical form, packed simply (matmul/cuda_weight.h draws it).
struct CudaWeight {
  int64_t n;
  int64_t k;
  int64_t row_bytes;     // of codes, a multiple of 16
  int32_t code_bits;     // 4, 8, 16, 32
  int32_t is_bf16;       // 16 bits: bf16, else f16
  int64_t group_n;       // rows that share scales; n when all do
  int64_t group_k;       // inputs that share a scale; k when all do
  int64_t groups;        // along K
  const void* code;      // (n, row_bytes)
  const float* value;    // of each code: (16) or (256); null at 16 and 32 bits
  const float* scale;    // (ceil(n / group_n), groups), or null
  const float* zero;     // (n, groups), or null
  const float* offset;   // (n, groups), or null
  const int32_t* order;  // (k), or null: column i of the codes belongs to input order[i]
  CudaTiles tiles;       // instead of code, value, scale, zero and offset
};

// What happens to x before the product, in this order.
struct CudaInput {
  const float* factor;  // (k), or null
  int64_t hadamard;     // 0: none
  tensor::ActivationFormat activation;
  float input_scale;
  float input_zero;
  const int32_t* order;  // (k), or null
};

// y[i] (m, n of weight i) = x W^T, or with `add` y[i] += x W^T, for up to four weights in tiles
// that have the same k, group, bits, kind of scales, and zeros or none.
struct CudaFew {
  static constexpr int kMost = 4;
  static constexpr int kMostFused = 4;
  const CudaWeight* weight[kMost];
  float* y[kMost];
  int64_t ldy[kMost];
  int32_t count;
  int32_t add;
  // Prepared: bf16 with zeros from k to tiles.k_pad; or f32, for up to 8 tokens, k a multiple of 8.
  // Its rows are aligned to 16 bytes.
  const void* x;
  int64_t ldx;
  int32_t x_is_f32;
  // RMSNorm in two parts, the first done by the product before: x is rows times the norm's weights,
  // and here are the sums of squares of these rows' eight by eight inputs (m, k / 8), k a multiple
  // of 32; y is of the normalized rows. Or null.
  const float* squares;
  float norm_eps;
  // The first part of a norm after one weight with `add`, n a multiple of 64: its weights (n), y
  // times these as bf16 (m, n), and the squares (m, n / 8), all aligned to 16 bytes. Or null.
  const float* next_norm;
  void* next_rows;
  float* next_squares;
  int64_t m;  // any is right, up to 16 fast; with `squares` or `add` up to kMostFused alone
  // Where two weights, without `add`, are the gate and up of an MLP, which have as many rows:
  // function(gate) * up, f32 or bf16; y[0] and y[1] then hold anything. It may be y[0], if f32, or
  // is apart. Or null.
  void* gated;
  int64_t ldg;
  int32_t gated_is_bf16;
  int32_t function;  // Activation
};

// Rows that are each added to all rows of a matrix: the biases of some layers.
struct CudaRows {
  static constexpr int kMost = 4;
  struct Row {
    const float* values;  // (n)
    float* y;             // (m, n)
    int64_t ldy;
    int64_t n;
  };
  Row row[kMost];
  int32_t count;
};

// A layer's keys and values: see attention/kv_cache.h. On a card keys are rows, like values.
struct CudaKv {
  int64_t heads;
  int64_t key_dim;
  int64_t value_dim;
  int64_t value_pad;  // elements from value row to value row
  int32_t type;       // KvType
  int64_t key_bytes;  // of one head in a page
  int64_t head_bytes;
  int64_t page_tokens;
  const void* const* pages;
  int64_t scale_offset;  // of the tokens' own scales in a head's part, the keys' first; -1: none
  const float* scales;   // (4, heads): scales of keys, of values, zeros of both; null: 1 and 0
  long long* first_bad;  // 8 bits: the first token with a number that is not finite
};

// One step of a layer's attention, over m tokens at `position`: q and k are turned, k and v kept,
// then q attends (rope/rope.h, attention/attention.h). q and k may be changed.
struct CudaStep {
  CudaKv kv;
  int64_t heads;
  float scale;
  float soft_cap;      // 0: none
  int64_t window;      // 0: none
  const float* sinks;  // (heads), or null
  int32_t exact;       // products in f32
  int32_t neighbours;
  const float* cos;  // as in RopeRows
  const float* sin;
  int64_t rotary_dim;  // 0: nothing is turned
  float* q;
  int64_t ldq;
  float* k;
  int64_t ldk;
  const float* v;
  int64_t ldv;
  void* out;
  int64_t ldo;
  int32_t out_is_bf16;  // else f32
  int64_t m;
  int64_t position;
  const int32_t* placed;  // where the position is read instead, or null
  int64_t splits;         // of a context, at most
  float* work;            // (heads, splits, value_dim + 2), heads rounded up to 16 for each of k's
};

// What sample() finds; in memory that the host reads.
struct CudaSampled {
  enum Status : int32_t { kDone, kNotFinite, kForTheHost };  // the last: too many to be ranked
  int32_t id;
  int32_t status;
};

// A token out of n logits: see sample/sample.h.
struct CudaSample {
  const float* logits;
  int64_t n;
  float temperature;
  int32_t top_k;
  float top_p;
  float min_p;
  float repeat_penalty;
  uint8_t* seen;            // (n), by id, or null; `accepted` are marked in it first
  const int32_t* accepted;  // ids; those that are not below n are left out
  int64_t accepted_count;
  double uniform;  // the random number
  CudaSampled* answer;
};

struct CudaKernels {
  // Null, or a sentence about what else the kernels need and do not find (cuBLASLt). To be asked
  // once, before anything else.
  const char* (*missing)(NibbleCudaContext*);

  // (m, n) float32, some y also bf16; see norm/norm.h and activation/activation.h. A y of bf16 does
  // not overlap what is read.
  void (*rms_norm)(NibbleCudaContext*, const float* weight, int64_t n, float eps, int add_one,
                   const float* delta, int64_t ldd, float* residual, const float* x, int64_t ldx,
                   void* y, int64_t ldy, int y_is_bf16,
                   int64_t m);  // delta: or null; else residual is x
  void (*layer_norm)(NibbleCudaContext*, const float* weight, const float* bias, int64_t n,
                     float eps, const float* x, int64_t ldx, void* y, int64_t ldy, int y_is_bf16,
                     int64_t m);
  // up: or null. x and up may both be bf16; then a y of bf16 may be one of them.
  void (*activate)(NibbleCudaContext*, int function, const void* x, int64_t ldx, const void* up,
                   int64_t ldu, int x_is_bf16, void* y, int64_t ldy, int y_is_bf16, int64_t m,
                   int64_t n);
  void (*add_to)(NibbleCudaContext*, const float* x, int64_t ldx, float* y, int64_t ldy, int64_t m,
                 int64_t n);
  void (*add_rows)(NibbleCudaContext*, const CudaRows* rows, int64_t m);
  void (*copy)(NibbleCudaContext*, const float* x, int64_t ldx, float* y, int64_t ldy, int64_t m,
               int64_t n);
  void (*scale_by)(NibbleCudaContext*, float factor, float* y, int64_t n);
  void (*soft_cap)(NibbleCudaContext*, float cap, float* y, int64_t n);

  void (*attend)(NibbleCudaContext*, const CudaStep* step);
  // The cache forgets that tokens from `token` on were not finite.
  void (*forget_bad)(NibbleCudaContext*, long long* first_bad, int64_t token);

  void (*sample)(NibbleCudaContext*, const CudaSample* call);
  // out[i] = log(sum(e^logits[i])) - logits[i][targets[i]], of (m, n) logits.
  void (*score)(NibbleCudaContext*, const float* logits, int64_t m, int64_t n,
                const int32_t* targets, double* out);

  // Row ids[i] of the weight, in the order of the inputs, to row i of out (m, k).
  void (*look_up)(NibbleCudaContext*, const CudaWeight* weight, const int32_t* ids, int64_t m,
                  float* out);
  // x (m, k) as the weight wants it, to `out` with ldo >= k elements, padded with zeros: f32, or
  // bf16. `work` has m rows of k f32, behind them 3 m f32 and k bytes.
  void (*prepare)(NibbleCudaContext*, const CudaInput* input, const float* x, int64_t ldx,
                  int64_t m, int64_t k, float* work, void* out, int64_t ldo, int to_bf16);
  // y = x W^T by reading codes; x f32, prepared, its rows 16-byte aligned and padded. For few
  // tokens; any number is right.
  void (*matvec)(NibbleCudaContext*, const CudaWeight* weight, const float* x, int64_t ldx,
                 float* y, int64_t ldy, int64_t m);
  // The same by panels of dequantized rows in `panel` and cuBLASLt, x and panel both bf16 or f32;
  // the panel holds 64 rows at least. y is f32 (with `add`: y += x W^T), or bf16
  // where x is, too.
  void (*gemm)(NibbleCudaContext*, const CudaWeight* weight, const void* x, int64_t ldx, int bf16,
               void* panel, int64_t panel_bytes, void* y, int64_t ldy, int y_is_bf16, int add,
               int64_t m);

  void (*multiply_few)(NibbleCudaContext*, const CudaFew* call);
  // y = x W^T of one weight in tiles and any number of tokens; x bf16 alone, y f32 or bf16.
  void (*multiply_many)(NibbleCudaContext*, const CudaWeight* weight, const void* x, int64_t ldx,
                        void* y, int64_t ldy, int y_is_bf16, int64_t m);

  // x as codes, e4m3 or s8 by its format, with a scale (m) for each token: out (m, ldo) bytes,
  // ldo >= k, padded with zeros. `work` as for prepare.
  void (*prepare_codes)(NibbleCudaContext*, const CudaInput* input, const float* x, int64_t ldx,
                        int64_t m, int64_t k, float* work, void* out, int64_t ldo, float* scale);
  // y = scale (x W^T) row_scale by cuBLASLt, where x and the weight's codes are both e4m3, or s8 if
  // `integers`; N and K are multiples of 16. row_scale (n), scale (m). The sums go to `sum` (m, n),
  // 16-byte aligned, with lds a multiple of 4; it may be y.
  void (*multiply_codes)(NibbleCudaContext*, const CudaWeight* weight, int integers, const void* x,
                         int64_t ldx, const float* scale, const float* row_scale, void* sum,
                         int64_t lds, float* y, int64_t ldy, int64_t m);

  // For `bench`: seconds to read `bytes` once, and of an n x n x n bf16 product; 0 when impossible.
  double (*read_seconds)(NibbleCudaContext*, int64_t bytes);
  double (*product_seconds)(NibbleCudaContext*, int64_t n);
};

}  // namespace nibble::kernels
