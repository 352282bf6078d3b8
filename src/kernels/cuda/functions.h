// The functions of the table in abi.h; each is defined in the folder of its operation.
#pragma once

#include "kernels/cuda/abi.h"

namespace nibble::kernels::cuda {

const char* missing(NibbleCudaContext* context);
void rms_norm(NibbleCudaContext* context, const float* weight, int64_t n, float eps, int add_one,
              const float* delta, int64_t ldd, float* residual, const float* x, int64_t ldx,
              void* y, int64_t ldy, int y_is_bf16, int64_t m);
void layer_norm(NibbleCudaContext* context, const float* weight, const float* bias, int64_t n,
                float eps, const float* x, int64_t ldx, void* y, int64_t ldy, int y_is_bf16,
                int64_t m);
void activate(NibbleCudaContext* context, int function, const void* x, int64_t ldx, const void* up,
              int64_t ldu, int x_is_bf16, void* y, int64_t ldy, int y_is_bf16, int64_t m,
              int64_t n);
void add_to(NibbleCudaContext* context, const float* x, int64_t ldx, float* y, int64_t ldy,
            int64_t m, int64_t n);
void add_rows(NibbleCudaContext* context, const CudaRows* rows, int64_t m);
void copy(NibbleCudaContext* context, const float* x, int64_t ldx, float* y, int64_t ldy, int64_t m,
          int64_t n);
void scale_by(NibbleCudaContext* context, float factor, float* y, int64_t n);
void soft_cap(NibbleCudaContext* context, float cap, float* y, int64_t n);
void attend(NibbleCudaContext* context, const CudaStep* step);
void forget_bad(NibbleCudaContext* context, long long* first_bad, int64_t token);
void sample(NibbleCudaContext* context, const CudaSample* call);
void score(NibbleCudaContext* context, const float* logits, int64_t m, int64_t n,
           const int32_t* targets, double* out);
void look_up(NibbleCudaContext* context, const CudaWeight* weight, const int32_t* ids, int64_t m,
             float* out);
void prepare(NibbleCudaContext* context, const CudaInput* input, const float* x, int64_t ldx,
             int64_t m, int64_t k, float* work, void* out, int64_t ldo, int to_bf16);
void matvec(NibbleCudaContext* context, const CudaWeight* weight, const float* x, int64_t ldx,
            float* y, int64_t ldy, int64_t m);
void gemm(NibbleCudaContext* context, const CudaWeight* weight, const void* x, int64_t ldx,
          int bf16, void* panel, int64_t panel_bytes, void* y, int64_t ldy, int y_is_bf16, int add,
          int64_t m);
void prepare_codes(NibbleCudaContext* context, const CudaInput* input, const float* x, int64_t ldx,
                   int64_t m, int64_t k, float* work, void* out, int64_t ldo, float* scale);
void multiply_codes(NibbleCudaContext* context, const CudaWeight* weight, int integers,
                    const void* x, int64_t ldx, const float* scale, const float* row_scale,
                    void* sum, int64_t lds, float* y, int64_t ldy, int64_t m);
void multiply_few(NibbleCudaContext* context, const CudaFew* call);
void multiply_many(NibbleCudaContext* context, const CudaWeight* weight, const void* x, int64_t ldx,
                   void* y, int64_t ldy, int y_is_bf16, int64_t m);
double read_seconds(NibbleCudaContext* context, int64_t bytes);
double product_seconds(NibbleCudaContext* context, int64_t n);

}  // namespace nibble::kernels::cuda
