#include "fake_kernels.h"

#include <cstdio>
#include <cstring>

namespace nibble::fake {
namespace {

using kernels::CudaFew;
using kernels::CudaInput;
using kernels::CudaRows;
using kernels::CudaSample;
using kernels::CudaStep;
using kernels::CudaTiles;
using kernels::CudaWeight;

constexpr int64_t kFloat = 4;
Done g_done;

// What one kernel is given. Sizes are in bytes.
class Given {
 public:
  explicit Given(const char* kernel) : kernel_(kernel) {}

  void must(bool fine, const char* what) const {
    if (fine) return;
    char text[160];
    std::snprintf(text, sizeof text, "%s: %s", kernel_, what);
    note(text);
  }
  void memory(const char* name, const void* p, int64_t bytes, int64_t aligned = 1) const {
    char text[120];
    std::snprintf(text, sizeof text, "%s is not %lld bytes of memory aligned to %lld", name,
                  static_cast<long long>(bytes), static_cast<long long>(aligned));
    must(is_held(p, bytes) && reinterpret_cast<uintptr_t>(p) % static_cast<uint64_t>(aligned) == 0,
         text);
  }
  void maybe(const char* name, const void* p, int64_t bytes) const {
    if (p != nullptr) memory(name, p, bytes);
  }
  // m rows of n elements of `size` bytes.
  void rows(const char* name, const void* p, int64_t m, int64_t n, int64_t ld, int64_t size,
            int64_t aligned) const {
    must(m > 0 && n > 0 && (m == 1 || ld >= n), "rows overlap, or there are none");
    memory(name, p, ((m - 1) * ld + n) * size, aligned);
  }
  void floats(const char* name, const void* p, int64_t m, int64_t n, int64_t ld) const {
    rows(name, p, m, n, ld, kFloat, kFloat);
  }
  // f32 or bf16.
  static int64_t size_of(int is_bf16) { return is_bf16 != 0 ? 2 : kFloat; }
  void numbers(const char* name, const void* p, int64_t m, int64_t n, int64_t ld,
               int is_bf16) const {
    rows(name, p, m, n, ld, size_of(is_bf16), size_of(is_bf16));
  }
  // A y may be x where both are held alike, row for row; a y of bf16 overlaps it in no other way.
  void result(const void* y, int64_t m, int64_t n, int64_t ldy, int y_is_bf16, const void* x,
              int64_t ldx, int x_is_bf16 = 0) const {
    numbers("y", y, m, n, ldy, y_is_bf16);
    if (y_is_bf16 == 0 || x == nullptr) return;
    if (x_is_bf16 != 0 && x == y && ldx == ldy) return;
    const auto* from = static_cast<const char*>(x);
    const auto* to = static_cast<const char*>(y);
    must(from + ((m - 1) * ldx + n) * size_of(x_is_bf16) <= to ||
             to + ((m - 1) * ldy + n) * size_of(y_is_bf16) <= from,
         "a y of bf16 overlaps what is read");
  }
  void weight(const CudaWeight& w) const {
    maybe("order", w.order, w.k * kFloat);
    const CudaTiles& t = w.tiles;
    if (t.bits != 0) {
      const int64_t strips = (w.n + 63) / 64;
      must((t.bits == 4 || t.bits == 8) && t.k_pad % 128 == 0 && t.k_pad >= w.k, "tiles' sizes");
      must(t.group == 32 || t.group % 64 == 0 || t.group == t.k_pad, "the tiles' group");
      must(t.groups == (t.k_pad + t.group - 1) / t.group, "the tiles' number of groups");
      must(t.bits == 4 || t.zeros == nullptr, "8-bit codes have no zeros");
      memory("tiles' codes", t.codes, strips * 64 * t.k_pad * t.bits / 8, 16);
      memory("tiles' scales", t.scales, strips * 64 * t.groups * 2, 16);
      maybe("tiles' zeros", t.zeros, strips * 64 * t.groups);
      return;
    }
    const int64_t k = (w.k + 31) / 32 * 32;
    must(w.row_bytes % 16 == 0 && w.row_bytes * 8 >= k * w.code_bits, "bytes of a row of codes");
    memory("codes", w.code, w.n * w.row_bytes, 16);
    if (w.code_bits <= 8) memory("values", w.value, (int64_t{1} << w.code_bits) * kFloat, kFloat);
    const int64_t scale_rows = (w.n + w.group_n - 1) / w.group_n;
    maybe("scale", w.scale, scale_rows * w.groups * kFloat);
    maybe("zero", w.zero, w.n * w.groups * kFloat);
    maybe("offset", w.offset, w.n * w.groups * kFloat);
  }

 private:
  const char* kernel_;
};

void rms_norm(NibbleCudaContext*, const float* weight, int64_t n, float, int, const float* delta,
              int64_t ldd, float* residual, const float* x, int64_t ldx, void* y, int64_t ldy,
              int y_is_bf16, int64_t m) {
  const Given given("rms_norm");
  given.maybe("weight", weight, n * kFloat);
  given.floats("x", x, m, n, ldx);
  if (delta != nullptr) given.floats("delta", delta, m, n, ldd);
  given.must(delta == nullptr || residual == x, "residual is not x");
  if (delta != nullptr) ++g_done.added.by_passes;
  ++g_done.normalized.by_passes;
  given.result(y, m, n, ldy, y_is_bf16, x, ldx);
}

void layer_norm(NibbleCudaContext*, const float* weight, const float* bias, int64_t n, float,
                const float* x, int64_t ldx, void* y, int64_t ldy, int y_is_bf16, int64_t m) {
  const Given given("layer_norm");
  given.maybe("weight", weight, n * kFloat);
  given.maybe("bias", bias, n * kFloat);
  given.floats("x", x, m, n, ldx);
  given.result(y, m, n, ldy, y_is_bf16, x, ldx);
}

void activate(NibbleCudaContext*, int, const void* x, int64_t ldx, const void* up, int64_t ldu,
              int x_is_bf16, void* y, int64_t ldy, int y_is_bf16, int64_t m, int64_t n) {
  const Given given("activate");
  given.numbers("x", x, m, n, ldx, x_is_bf16);
  if (up != nullptr) {
    given.numbers("up", up, m, n, ldu, x_is_bf16);
    ++g_done.gated.by_passes;
  }
  given.must(x_is_bf16 == 0 || y_is_bf16 != 0, "bf16 becomes f32");
  given.result(y, m, n, ldy, y_is_bf16, x, ldx, x_is_bf16);
  if (up != nullptr) given.result(y, m, n, ldy, y_is_bf16, up, ldu, x_is_bf16);
}

void add_to(NibbleCudaContext*, const float* x, int64_t ldx, float* y, int64_t ldy, int64_t m,
            int64_t n) {
  const Given given("add_to");
  given.floats("x", x, m, n, ldx);
  given.floats("y", y, m, n, ldy);
  ++g_done.added.by_passes;
}

void add_rows(NibbleCudaContext*, const CudaRows* rows, int64_t m) {
  const Given given("add_rows");
  given.must(rows->count > 0 && rows->count <= CudaRows::kMost, "the number of rows");
  for (int i = 0; i < rows->count; ++i) {
    const CudaRows::Row& row = rows->row[i];
    given.memory("values", row.values, row.n * kFloat, kFloat);
    given.floats("y", row.y, m, row.n, row.ldy);
  }
}

void copy(NibbleCudaContext*, const float* x, int64_t ldx, float* y, int64_t ldy, int64_t m,
          int64_t n) {
  const Given given("copy");
  given.floats("x", x, m, n, ldx);
  given.floats("y", y, m, n, ldy);
}

void attend(NibbleCudaContext*, const CudaStep* step) {
  const Given given("attend");
  const kernels::CudaKv& kv = step->kv;
  const int64_t tokens = step->position + step->m;
  given.floats("q", step->q, step->m, step->heads * kv.key_dim, step->ldq);
  given.floats("k", step->k, step->m, kv.heads * kv.key_dim, step->ldk);
  given.floats("v", step->v, step->m, kv.heads * kv.value_dim, step->ldv);
  given.result(step->out, step->m, step->heads * kv.value_dim, step->ldo, step->out_is_bf16,
               step->q, step->ldq);
  given.maybe("sinks", step->sinks, step->heads * kFloat);
  given.maybe("placed", step->placed, kFloat);
  if (step->rotary_dim > 0) {
    const int64_t numbers = step->m * step->rotary_dim / (step->neighbours != 0 ? 1 : 2);
    given.memory("cos", step->cos, numbers * kFloat, 16);
    given.memory("sin", step->sin, numbers * kFloat, 16);
  }
  const int64_t sixteens = (step->heads / kv.heads + 15) / 16;
  given.must(step->splits >= 1 && step->splits <= 128, "splits");
  given.memory("work", step->work,
               kv.heads * sixteens * step->splits * 16 * (kv.value_dim + 2) * kFloat, 16);
  const int64_t pages = (tokens + kv.page_tokens - 1) / kv.page_tokens;
  given.memory("pages", kv.pages, pages * static_cast<int64_t>(sizeof(void*)), sizeof(void*));
  for (int64_t i = 0; i < pages; ++i) {
    given.memory("a page", kv.pages[i], kv.heads * kv.head_bytes, 16);
  }
  if (kv.first_bad != nullptr) given.memory("first_bad", kv.first_bad, 8, 8);
  given.maybe("scales", kv.scales, 4 * kv.heads * kFloat);
}

void look_up(NibbleCudaContext*, const CudaWeight* weight, const int32_t* ids, int64_t m,
             float* out) {
  const Given given("look_up");
  given.weight(*weight);
  given.memory("ids", ids, m * kFloat, kFloat);
  given.floats("out", out, m, weight->k, weight->k);
}

void work_of(const Given& given, const CudaInput* input, const float* x, int64_t ldx, int64_t m,
             int64_t k, const float* work) {
  given.maybe("factor", input->factor, k * kFloat);
  given.maybe("order", input->order, k * kFloat);
  given.floats("x", x, m, k, ldx);
  given.memory("work", work, m * (k + 3) * kFloat + k, 16);
}

void prepare(NibbleCudaContext*, const CudaInput* input, const float* x, int64_t ldx, int64_t m,
             int64_t k, float* work, void* out, int64_t ldo, int to_bf16) {
  const Given given("prepare");
  work_of(given, input, x, ldx, m, k, work);
  given.must(ldo >= k, "ldo");
  given.rows("out", out, m, ldo, ldo, to_bf16 != 0 ? 2 : kFloat, 16);
}

void prepare_codes(NibbleCudaContext*, const CudaInput* input, const float* x, int64_t ldx,
                   int64_t m, int64_t k, float* work, void* out, int64_t ldo, float* scale) {
  const Given given("prepare_codes");
  work_of(given, input, x, ldx, m, k, work);
  given.must(ldo >= k, "ldo");
  given.rows("out", out, m, ldo, ldo, 1, 16);
  given.memory("scale", scale, m * kFloat, kFloat);
}

void matvec(NibbleCudaContext*, const CudaWeight* weight, const float* x, int64_t ldx, float* y,
            int64_t ldy, int64_t m) {
  const Given given("matvec");
  given.weight(*weight);
  given.must(ldx % 4 == 0, "rows of x are not aligned");
  given.rows("x", x, m, (weight->k + 31) / 32 * 32, ldx, kFloat, 16);
  given.floats("y", y, m, weight->n, ldy);
}

void gemm(NibbleCudaContext*, const CudaWeight* weight, const void* x, int64_t ldx, int bf16,
          void* panel, int64_t panel_bytes, void* y, int64_t ldy, int y_is_bf16, int add,
          int64_t m) {
  const Given given("gemm");
  given.weight(*weight);
  const bool tiles = weight->tiles.bits != 0;
  const int64_t k = tiles ? weight->tiles.k_pad : (weight->k + 31) / 32 * 32;
  const int64_t size = bf16 != 0 ? 2 : kFloat;
  given.must(!tiles || bf16 != 0, "tiles become a panel of bf16 alone");
  given.rows("x", x, m, k, ldx, size, 4);
  given.must(panel_bytes >= 64 * k * size, "the panel is too small");
  given.memory("panel", panel, panel_bytes, 16);
  given.must(y_is_bf16 == 0 || (bf16 != 0 && add == 0), "y of bf16");
  if (add != 0) ++g_done.added.by_products;
  if (weight->n < rows_of_nan()) return;
  const auto row_bytes = static_cast<size_t>(weight->n * Given::size_of(y_is_bf16));
  for (int64_t i = 0; i < m; ++i) {  // bytes of ones are nan in both
    std::memset(static_cast<char*>(y) + i * ldy * Given::size_of(y_is_bf16), 0xff, row_bytes);
  }
  given.numbers("y", y, m, weight->n, ldy, y_is_bf16);
}

// What the last product left of a norm.
struct HalfNormed {
  const void* rows;
  const float* squares;
  int64_t m, n;
} g_half_normed;

void multiply_few(NibbleCudaContext*, const CudaFew* call) {
  const Given given("multiply_few");
  given.must(call->count >= 1 && call->count <= CudaFew::kMost, "the number of weights");
  const CudaWeight& first = *call->weight[0];
  for (int i = 0; i < call->count; ++i) {
    const CudaWeight& weight = *call->weight[i];
    const CudaTiles& a = first.tiles;
    const CudaTiles& b = weight.tiles;
    given.weight(weight);
    given.must(b.bits != 0 && weight.k == first.k && a.k_pad == b.k_pad && a.bits == b.bits &&
                   a.group == b.group && a.scales_are_bf16 == b.scales_are_bf16 &&
                   (a.zeros == nullptr) == (b.zeros == nullptr),
               "weights of one launch that are not alike");
    given.floats("y", call->y[i], call->m, weight.n, call->ldy[i]);
  }
  if (call->x_is_f32 != 0) {
    given.must(call->m <= 8 && first.k % 8 == 0 && call->ldx % 4 == 0, "f32 x");
    given.rows("x", call->x, call->m, first.k, call->ldx, kFloat, 16);
  } else {
    given.must(call->ldx % 8 == 0, "rows of x are not aligned");
    given.rows("x", call->x, call->m, first.tiles.k_pad, call->ldx, 2, 16);
  }
  if (call->squares != nullptr || call->add != 0 || call->next_norm != nullptr) {
    given.must(call->m <= CudaFew::kMostFused, "more tokens than are fused");
  }
  if (call->squares != nullptr) {
    given.must(call->squares == g_half_normed.squares && call->x == g_half_normed.rows &&
                   call->m <= g_half_normed.m && first.k == g_half_normed.n,
               "not what the last product left half normalized");
    given.must(first.k % 32 == 0 && call->norm_eps > 0, "half normalized rows");
    given.rows("squares", call->squares, call->m, first.k / 8, first.k / 8, kFloat, 16);
    ++g_done.normalized.by_products;
  }
  if (call->next_norm != nullptr) {
    given.must(call->add != 0 && call->count == 1 && first.n % 64 == 0, "rows to half normalize");
    given.memory("next_norm", call->next_norm, first.n * kFloat, 16);
    given.rows("next_rows", call->next_rows, call->m, first.n, first.n, 2, 16);
    given.rows("next_squares", call->next_squares, call->m, first.n / 8, first.n / 8, kFloat, 16);
    g_half_normed = {call->next_rows, call->next_squares, call->m, first.n};
  }
  if (call->add != 0) ++g_done.added.by_products;
  if (call->gated == nullptr) return;
  given.must(call->count == 2 && call->weight[1]->n == first.n && call->add == 0,
             "gate and up are not alike");
  given.result(call->gated, call->m, first.n, call->ldg, call->gated_is_bf16, call->y[0],
               call->ldy[0]);
  given.result(call->gated, call->m, first.n, call->ldg, call->gated_is_bf16, call->y[1],
               call->ldy[1]);
  ++g_done.gated.by_products;
}

void multiply_many(NibbleCudaContext*, const CudaWeight* weight, const void* x, int64_t ldx,
                   void* y, int64_t ldy, int y_is_bf16, int64_t m) {
  const Given given("multiply_many");
  given.weight(*weight);
  given.must(weight->tiles.bits != 0 && ldx % 8 == 0, "a weight in tiles, aligned rows");
  given.rows("x", x, m, weight->tiles.k_pad, ldx, 2, 16);
  given.numbers("y", y, m, weight->n, ldy, y_is_bf16);
}

void multiply_codes(NibbleCudaContext*, const CudaWeight* weight, int, const void* x, int64_t ldx,
                    const float* scale, const float* row_scale, void* sum, int64_t lds, float* y,
                    int64_t ldy, int64_t m) {
  const Given given("multiply_codes");
  given.weight(*weight);
  given.must(weight->n % 16 == 0 && weight->k % 16 == 0 && lds % 4 == 0, "sizes");
  given.rows("x", x, m, weight->k, ldx, 1, 16);
  given.memory("scale", scale, m * kFloat, kFloat);
  given.memory("row_scale", row_scale, weight->n * kFloat, kFloat);
  given.rows("sum", sum, m, weight->n, lds, kFloat, 16);
  given.floats("y", y, m, weight->n, ldy);
}

void sample(NibbleCudaContext*, const CudaSample* call) {
  const Given given("sample");
  given.memory("logits", call->logits, call->n * kFloat, kFloat);
  given.maybe("seen", call->seen, call->n);
  if (call->accepted_count > 0) {
    given.must(call->seen != nullptr, "accepted, but not to be marked");
    given.memory("accepted", call->accepted, call->accepted_count * kFloat, kFloat);
  }
  given.memory("answer", call->answer, sizeof *call->answer, kFloat);
}

void score(NibbleCudaContext*, const float* logits, int64_t m, int64_t n, const int32_t* targets,
           double* out) {
  const Given given("score");
  given.floats("logits", logits, m, n, n);
  given.memory("targets", targets, m * kFloat, kFloat);
  given.memory("out", out, m * static_cast<int64_t>(sizeof *out), sizeof *out);
}

}  // namespace

Done done() { return g_done; }

void look_at_arguments(kernels::CudaKernels* table) {
  table->rms_norm = rms_norm;
  table->layer_norm = layer_norm;
  table->activate = activate;
  table->add_to = add_to;
  table->add_rows = add_rows;
  table->copy = copy;
  table->attend = attend;
  table->look_up = look_up;
  table->prepare = prepare;
  table->prepare_codes = prepare_codes;
  table->matvec = matvec;
  table->gemm = gemm;
  table->multiply_few = multiply_few;
  table->multiply_many = multiply_many;
  table->multiply_codes = multiply_codes;
  table->sample = sample;
  table->score = score;
}

}  // namespace nibble::fake
