// What a step of a model takes on a card: of Llama-3-8B's shapes with 4-bit weights, each kernel in
// a graph of its own, then whole layers, with and without some of their kernels: what these take
// where others begin before they end. The arguments are libraries (libnibble_cuda.so) of
// this version of the tables, which are timed in the same process.
//
//   cuda_step_bench [--only TEXT] LIBRARY ...     rows whose name has TEXT
//
// Calls go over caches that together are larger than the card's own (L2), as those of the layers
// of a model are between two steps.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/bench_card.h"

namespace nibble::kernels {
namespace {

constexpr int64_t kHeads = 32;
constexpr int64_t kKvHeads = 8;
constexpr int64_t kDim = 128;
constexpr int64_t kHidden = 4096;
constexpr int64_t kFfn = 14336;
constexpr int64_t kVocab = 128256;
constexpr int64_t kPageTokens = 256;
constexpr int64_t kFewTokens = 16;                  // up to which all that products write is f32
constexpr int64_t kColdBytes = int64_t{160} << 20;  // of all that one graph reads

const char* word(KvType type) { return type == KvType::kE4M3 ? "e4m3" : "f16"; }

int64_t bytes_of(KvType type, int64_t tokens) {
  return tokens * kKvHeads * kDim * 2 * (type == KvType::kE4M3 ? 1 : 2);
}

// A layer's step over a cache of `tokens`, the m last of which it brings.
CudaStep attention_step(Card& card, KvType type, int64_t tokens, int64_t m) {
  const int64_t size = type == KvType::kE4M3 ? 1 : 2;
  CudaStep step{};
  step.kv.heads = kKvHeads;
  step.kv.key_dim = step.kv.value_dim = step.kv.value_pad = kDim;
  step.kv.type = static_cast<int32_t>(type);
  step.kv.key_bytes = kPageTokens * kDim * size;
  step.kv.head_bytes = 2 * step.kv.key_bytes;
  step.kv.page_tokens = kPageTokens;
  step.kv.scale_offset = -1;
  const int64_t pages = (tokens + kPageTokens - 1) / kPageTokens;
  const int64_t page_bytes = kKvHeads * step.kv.head_bytes;
  auto* memory = static_cast<char*>(card.bytes(pages * page_bytes, type));
  std::vector<const void*> table;
  for (int64_t i = 0; i < pages; ++i) table.push_back(memory + i * page_bytes);
  step.kv.pages = card.place(std::span<const void* const>(table));
  const long long none = INT64_MAX;
  step.kv.first_bad = card.place(std::span<const long long>(&none, 1));
  step.heads = kHeads;
  step.scale = 0.088388f;
  step.rotary_dim = kDim;
  step.m = m;
  step.position = tokens - m;
  return step;
}

// What all layers share.
void share(Card& card, CudaStep& step) {
  std::vector<float> cos;
  std::vector<float> sin;
  for (int64_t i = 0; i < step.m * kDim / 2; ++i) {
    const auto angle = static_cast<float>(i % 6283) * 1e-3f;
    cos.push_back(std::cos(angle));
    sin.push_back(std::sin(angle));
  }
  step.cos = card.place(std::span<const float>(cos));
  step.sin = card.place(std::span<const float>(sin));
  step.q = card.floats(step.m * kHeads * kDim);
  step.k = card.floats(step.m * kKvHeads * kDim);
  step.v = card.floats(step.m * kKvHeads * kDim);
  step.out = card.floats(step.m * kHeads * kDim);
  step.ldq = step.ldo = kHeads * kDim;
  step.ldk = step.ldv = kKvHeads * kDim;
  step.splits = std::max<int64_t>(1, card.multiprocessors() / kKvHeads);
  step.work = card.floats(16 * kKvHeads * step.splits * (kDim + 2));
  const auto position = static_cast<int32_t>(step.position);
  step.placed = card.place(std::span<const int32_t>(&position, 1));
}

std::vector<CudaStep> layers(Card& card, KvType type, int64_t tokens, int64_t m, int64_t most) {
  const int64_t count = std::clamp<int64_t>(kColdBytes / bytes_of(type, tokens), 4, most);
  std::vector<CudaStep> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(attention_step(card, type, tokens, m));
  CudaStep shared = out.front();
  share(card, shared);
  for (CudaStep& step : out) {
    const CudaKv kv = step.kv;
    step = shared;
    step.kv = kv;
  }
  return out;
}

// The norms and the activation of a layer, and all that is no product.
struct Vectors {
  float* weight;
  float* squares;
  float* x;
  float* delta;
  float* normed;
  float* gate;
  float* up;
  float* inner;

  static Vectors make(Card& card, int64_t m) {
    return {card.floats(kHidden),     card.floats(m * kHidden / 8), card.floats(m * kHidden),
            card.floats(m * kHidden), card.floats(m * kHidden),     card.floats(m * kFfn),
            card.floats(m * kFfn),    card.floats(m * kFfn)};
  }
  // `add`: as where the product before has not added to x itself.
  void norm(Card& card, int64_t m, int bf16 = 1, bool add = true) const {
    card.kernels().rms_norm(card.context(), weight, kHidden, 1e-5f, 0, add ? delta : nullptr,
                            kHidden, x, x, kHidden, normed, kHidden, bf16, m);
  }
  // Of bf16 where tokens are many.
  void activate(Card& card, int64_t m, int bf16 = 1) const {
    card.kernels().activate(card.context(), 0, gate, kFfn, up, kFfn, m > kFewTokens, inner, kFfn,
                            bf16, m, kFfn);
  }
};

// The products of a layer, 4-bit codes in groups of 128.
struct Products {
  CudaWeight q, k, v, o, gate, up, down;

  static Products make(Card& card) {
    constexpr int64_t kOfQ = kHeads * kDim;
    constexpr int64_t kOfKv = kKvHeads * kDim;
    return {weight_in_tiles(card, 4, kOfQ, kHidden),  weight_in_tiles(card, 4, kOfKv, kHidden),
            weight_in_tiles(card, 4, kOfKv, kHidden), weight_in_tiles(card, 4, kHidden, kOfQ),
            weight_in_tiles(card, 4, kFfn, kHidden),  weight_in_tiles(card, 4, kFfn, kHidden),
            weight_in_tiles(card, 4, kHidden, kFfn)};
  }
};

void time_vectors(Card& card, Table& table) {
  constexpr int64_t kMany = 2048;
  const CudaKernels& kernels = card.kernels();
  const Vectors v = Vectors::make(card, 1);
  table.add(card, "launch (4 numbers scaled)", 0, 64,
            [&](int64_t) { kernels.scale_by(card.context(), 1, v.delta, 4); });
  table.add(card, "add and norm", 0, 64, [&](int64_t) { v.norm(card, 1); });
  table.add(card, "silu(gate) * up", 0, 64, [&](int64_t) { v.activate(card, 1); });
  const Vectors many = Vectors::make(card, kMany);
  table.add(card, "norm, 2048 tokens", kMany * kHidden * 6 / kBytesPerUs, 8,
            [&](int64_t) { many.norm(card, kMany, 1, false); });
  table.add(card, "add and norm, 2048 tokens", kMany * kHidden * 14 / kBytesPerUs, 8,
            [&](int64_t) { many.norm(card, kMany); });
  table.add(card, "silu(gate) * up, 2048 tokens", kMany * kFfn * 6 / kBytesPerUs, 8,
            [&](int64_t) { many.activate(card, kMany); });
  auto* bf16 = card.floats(kMany / 2 * kFfn);
  auto* work = card.floats(kMany * (kFfn + 3) + kFfn);
  const CudaInput input{};
  table.add(
      card, "14336 inputs to bf16, 2048 tokens", kMany * kFfn * 6 / kBytesPerUs, 8, [&](int64_t) {
        kernels.prepare(card.context(), &input, many.gate, kFfn, kMany, kFfn, work, bf16, kFfn, 1);
      });
}

void time_sampling(Card& card, Table& table) {
  CudaSample call{};
  call.logits = card.floats(kVocab);
  call.n = kVocab;
  call.top_p = 1;
  const CudaSampled none{};
  call.answer = card.place(std::span<const CudaSampled>(&none, 1));
  const auto sample = [&](int64_t) { card.kernels().sample(card.context(), &call); };
  table.add(card, "choose, greedy", 0, 8, sample);
  call.temperature = 0.2f;
  call.top_k = 40;
  call.top_p = 0.95f;
  call.uniform = 0.7;
  table.add(card, "choose, top-k 40", 0, 8, sample);
}

void time_attention(Card& card, Table& table, KvType type) {
  for (const int64_t tokens : {128, 512, 1024, 2048, 8192, 32768}) {
    const std::string name = fmt::format("attention, {}, {}", word(type), tokens);
    const std::string layer = fmt::format("all but products, {}, {}", word(type), tokens);
    if (!table.wants(name) && !table.wants(layer)) continue;
    const auto steps = layers(card, type, tokens, 1, 128);
    const auto attend = [&](int64_t i) {
      card.kernels().attend(card.context(), &steps[static_cast<size_t>(i)]);
    };
    const double floor = static_cast<double>(bytes_of(type, tokens)) / kBytesPerUs;
    const auto count = static_cast<int64_t>(steps.size());
    table.add(card, name, floor, count, attend);
    if (tokens != 128) continue;
    const Vectors v = Vectors::make(card, 1);
    table.add(card, layer, 0, count, [&](int64_t i) {
      v.norm(card, 1);
      attend(i);
      v.norm(card, 1);
      v.activate(card, 1);
    });
  }
  const std::string name = fmt::format("attention of 2048, {}", word(type));
  if (!table.wants(name)) return;
  const auto steps = layers(card, type, 2048, 2048, 4);
  constexpr double kProducts = 2. * 2 * kHeads * kDim * 2048 * 2048 / 2;
  table.add(
      card, name, kProducts / kProductsPerUs, static_cast<int64_t>(steps.size()),
      [&](int64_t i) { card.kernels().attend(card.context(), &steps[static_cast<size_t>(i)]); });
}

// What a layer does, or some of it.
enum : unsigned { kNorms = 1, kProducts = 2, kAttention = 4, kActivation = 8, kAll = 15 };

// How: norms, the activation and the residual stream in the products that have them, as few tokens
// do; or each a kernel of its own, with the inputs of products as bf16 or f32.
enum class Way { kInProducts, kApartBf16, kApartF32 };

class Layer {
 public:
  Layer(Card& card, int64_t tokens, int64_t m)
      : card_(card),
        m_(m),
        v_(Vectors::make(card, m)),
        steps_(layers(card, KvType::kF16, tokens, m, 8)) {
    for (int64_t i = 0; i < kLayers; ++i) products_.push_back(Products::make(card));
  }

  void run(int64_t i, unsigned what, Way way) {
    const Products& p = products_[static_cast<size_t>(i % kLayers)];
    CudaStep& step = steps_[static_cast<size_t>(i) % steps_.size()];
    step.out_is_bf16 = way != Way::kApartF32;
    const auto attend = [&] {
      if ((what & kAttention) != 0) card_.kernels().attend(card_.context(), &step);
    };
    float* const of_qkv[] = {step.q, step.k, const_cast<float*>(step.v)};
    if (way == Way::kInProducts) {
      multiply_in_one(p, what, of_qkv, step.out, attend);
    } else {
      multiply_apart(p, what, of_qkv, step.out, step.out_is_bf16, attend);
    }
  }

  static constexpr int64_t kLayers = 4;
  static constexpr double kBytes = 218103808. * (0.5 + 2. / 128);
  static constexpr double kSums = 2 * 218103808.;  // a token

 private:
  // v_.x is the residual stream; v_.normed, with v_.squares, what products leave of it for the
  // next.
  template <class Attend>
  void multiply_in_one(const Products& p, unsigned what, float* const* of_qkv, const void* mixed,
                       const Attend& attend) {
    if ((what & kProducts) == 0) return attend();
    const auto reads = [&](CudaFew call) {
      if ((what & kNorms) != 0) call.squares = v_.squares;
      card_.kernels().multiply_few(card_.context(), &call);
    };
    const auto adds = [&](CudaFew call) {
      call.add = 1;
      if ((what & kNorms) != 0) {
        call.next_norm = v_.weight;
        call.next_rows = v_.normed;
        call.next_squares = v_.squares;
      }
      card_.kernels().multiply_few(card_.context(), &call);
    };
    reads(few({&p.q, &p.k, &p.v}, of_qkv, v_.normed));
    attend();
    adds(few({&p.o}, &v_.x, mixed));
    float* const of_gate[] = {v_.gate, v_.up};
    CudaFew gate = few({&p.gate, &p.up}, of_gate, v_.normed);
    if ((what & kActivation) != 0) {
      gate.gated = v_.inner;
      gate.ldg = kFfn;
      gate.gated_is_bf16 = 1;
    }
    reads(gate);
    adds(few({&p.down}, &v_.x, v_.inner));
  }

  template <class Attend>
  void multiply_apart(const Products& p, unsigned what, float* const* of_qkv, const void* mixed,
                      int bf16, const Attend& attend) {
    const bool products = (what & kProducts) != 0;
    float* const of_gate[] = {v_.gate, v_.up};
    if ((what & kNorms) != 0) v_.norm(card_, m_, bf16);
    if (products) multiply({&p.q, &p.k, &p.v}, of_qkv, v_.normed, bf16);
    attend();
    if (products) multiply({&p.o}, &v_.delta, mixed, bf16);
    if ((what & kNorms) != 0) v_.norm(card_, m_, bf16);
    if (products) multiply({&p.gate, &p.up}, of_gate, v_.normed, bf16, m_ > kFewTokens);
    if ((what & kActivation) != 0) v_.activate(card_, m_, bf16);
    if (products) multiply({&p.down}, &v_.delta, v_.inner, bf16);
  }

  CudaFew few(const std::vector<const CudaWeight*>& weights, float* const* y, const void* x) const {
    CudaFew out = {};
    for (size_t i = 0; i < weights.size(); ++i) {
      out.weight[i] = weights[i];
      out.y[i] = y[i];
      out.ldy[i] = weights[i]->n;
    }
    out.count = static_cast<int32_t>(weights.size());
    out.x = x;
    out.ldx = weights[0]->k;
    out.norm_eps = 1e-5f;
    out.m = m_;
    return out;
  }

  // As the program does up to 4096 tokens (matmul/cuda_matmul.cc).
  void multiply(const std::vector<const CudaWeight*>& weights, float* const* y, const void* x,
                int bf16, bool y_is_bf16 = false) {
    if (m_ <= kFewTokens) {
      CudaFew call = few(weights, y, x);
      call.x_is_f32 = bf16 == 0;
      return card_.kernels().multiply_few(card_.context(), &call);
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      const CudaWeight& w = *weights[i];
      card_.kernels().multiply_many(card_.context(), &w, x, w.k, y[i], w.n, y_is_bf16, m_);
    }
  }

  Card& card_;
  int64_t m_;
  Vectors v_;
  std::vector<CudaStep> steps_;
  std::vector<Products> products_;
};

void time_layers(Card& card, Table& table) {
  constexpr std::pair<const char*, unsigned> kParts[] = {
      {"all", kAll},
      {"products alone", kProducts},
      {"no norms", kAll & ~kNorms},
      {"no attention", kAll & ~kAttention},
      {"no activation", kAll & ~kActivation},
  };
  for (const int64_t m : {1, 2, 4, 8, 16, 2048}) {
    const bool few = m <= kFewTokens;
    const std::string name = fmt::format("layer, {} tokens", m);
    if (!table.wants(name)) continue;
    const double floor =
        few ? Layer::kBytes / kBytesPerUs : static_cast<double>(m) * Layer::kSums / kProductsPerUs;
    const int64_t calls = few ? 32 : 4;
    Layer layer(card, few ? 128 : m, m);
    const auto add = [&](const char* part, unsigned what, Way way) {
      table.add(card, fmt::format("{}, {}", name, part), floor, calls,
                [&layer, what, way](int64_t i) { layer.run(i, what, way); });
    };
    const bool fused = m <= CudaFew::kMostFused;
    for (const auto& [part, what] : kParts) {
      if (few && !fused) break;
      add(part, what, fused ? Way::kInProducts : Way::kApartBf16);
      if (m != 1 && few) break;
    }
    if (!few) continue;
    add("all, apart", kAll, Way::kApartBf16);
    add("all, apart, f32", kAll, Way::kApartF32);
  }
}

// The last product of a step: an f16 table of the vocabulary.
void time_head(Card& card, Table& table) {
  if (!table.wants("head, f16")) return;
  CudaWeight head{};
  head.n = head.group_n = kVocab;
  head.k = head.group_k = kHidden;
  head.groups = 1;
  head.row_bytes = 2 * kHidden;
  head.code_bits = 16;
  head.code = card.bytes(kVocab * head.row_bytes, KvType::kF16);
  const float* x = card.floats(kHidden);
  float* y = card.floats(kVocab);
  table.add(
      card, "head, f16", static_cast<double>(kVocab * head.row_bytes) / kBytesPerUs, 4,
      [&](int64_t) { card.kernels().matvec(card.context(), &head, x, kHidden, y, kVocab, 1); });
}

}  // namespace
}  // namespace nibble::kernels

int main(int argc, char** argv) {
  using namespace nibble::kernels;
  const bool some = argc > 2 && std::string(argv[1]) == "--only";
  const int first = some ? 3 : 1;
  if (first >= argc) {
    std::fprintf(stderr, "cuda_step_bench [--only TEXT] LIBRARY ...\n");
    return 2;
  }
  Table table(some ? argv[2] : "");
  for (int i = first; i < argc; ++i) {
    Card card;
    if (!Card::open(argv[i], &card)) return 1;
    time_vectors(card, table);
    time_sampling(card, table);
    time_attention(card, table, KvType::kF16);
    time_attention(card, table, KvType::kE4M3);
    time_head(card, table);
    time_layers(card, table);
  }
  table.print();
  return 0;
}
