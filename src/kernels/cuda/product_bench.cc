// Microseconds of products with 4- or 8-bit codes in tiles, as the program makes them: the shapes
// and tokens of docs/cuda-notebook.md, each a CUDA graph over weights of 260 MiB at least.
//
//   cuda_product_bench LIBRARY [BITS [TOKENS,TOKENS,...]]       LIBRARY: libnibble_cuda.so
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/bench_card.h"

namespace nibble::kernels {
namespace {

constexpr int64_t kColdBytes = int64_t{260} << 20;
constexpr int64_t kPanelBytes = int64_t{256} << 20;
// The most tokens for which the program takes each kernel (matmul/cuda_matmul.cc).
constexpr int64_t kFewTokens = 16;
int64_t most_of_tiles(int bits) { return bits == 4 ? 4096 : 1024; }

void time_products(Card& card, Table& table, int bits, const std::vector<int64_t>& tokens) {
  constexpr std::pair<int64_t, int64_t> kShapes[] = {
      {4096, 4096}, {28672, 4096}, {4096, 14336}, {57344, 8192}};
  int64_t most = 1;
  for (const int64_t m : tokens) most = std::max(most, m);
  float* panel = most > most_of_tiles(bits) ? card.floats(kPanelBytes / 4) : nullptr;
  for (const auto& [n, k] : kShapes) {
    const int64_t bytes = n * k * bits / 8;
    std::vector<CudaWeight> weights;
    for (int64_t i = 0; i * bytes < kColdBytes; ++i) {
      weights.push_back(weight_in_tiles(card, bits, n, k));
    }
    const void* x = card.bytes(most * k * 2, KvType::kF16);
    float* y = card.floats(most * n);
    for (const int64_t m : tokens) {
      const double floor = std::max(static_cast<double>(bytes) / kBytesPerUs,
                                    2. * static_cast<double>(m * n * k) / kProductsPerUs);
      const auto calls = static_cast<int64_t>(weights.size());
      table.add(card, fmt::format("{} x {}, {} bits, {} tokens", n, k, bits, m), floor, calls,
                [&, n = n, k = k](int64_t i) {
                  const CudaWeight* w = &weights[static_cast<size_t>(i)];
                  if (m <= kFewTokens) {
                    CudaFew few = {};
                    few.weight[0] = w;
                    few.y[0] = y;
                    few.ldy[0] = n;
                    few.count = 1;
                    few.x = x;
                    few.ldx = k;
                    few.m = m;
                    card.kernels().multiply_few(card.context(), &few);
                  } else if (m <= most_of_tiles(bits)) {
                    card.kernels().multiply_many(card.context(), w, x, k, y, n, 0, m);
                  } else {
                    card.kernels().gemm(card.context(), w, x, k, 1, panel, kPanelBytes, y, n, 0, 0,
                                        m);
                  }
                });
    }
  }
}

}  // namespace
}  // namespace nibble::kernels

int main(int argc, char** argv) {
  using namespace nibble::kernels;
  if (argc < 2) {
    std::fprintf(stderr, "cuda_product_bench LIBRARY [BITS [TOKENS,...]]\n");
    return 2;
  }
  const int bits = argc > 2 ? std::atoi(argv[2]) : 4;
  std::vector<int64_t> tokens;
  std::istringstream list(argc > 3 ? argv[3] : "1,8,16,17,32,64,128,256,1024");
  for (std::string one; std::getline(list, one, ',');) tokens.push_back(std::atoll(one.c_str()));
  Card card;
  if ((bits != 4 && bits != 8) || !Card::open(argv[1], &card)) return 1;
  Table table("");
  time_products(card, table, bits, tokens);
  table.print();
  return 0;
}
