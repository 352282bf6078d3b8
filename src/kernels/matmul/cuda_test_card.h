// What tests of a card's products share: machines with one, and the fixture that skips without.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/thread_pool.h"
#include "kernels/cuda/abi.h"
#include "kernels/hadamard/hadamard.h"
#include "kernels/matmul/cuda_weight.h"
#include "kernels/matmul/random_weight.h"
#include "kernels/quantize/quantize.h"

namespace nibble::kernels {

inline device::Hardware with_card(const device::Gpu& gpu) {
  device::Hardware out = device::hardware_with(device::Isa::kAvx2);
  out.gpu = gpu;
  return out;
}

inline std::string ranges(const Result<Choice>& choice) {
  if (!choice) return choice.error().message;
  std::string out = choice->packing + ":";
  for (const ChoiceRange& r : choice->ranges) {
    out += " " + std::to_string(r.m_min) + "+ " + kernel_name(*r.kernel);
  }
  return out;
}

class Card : public testing::Test {
 protected:
  void SetUp() override {
    auto cuda = device::Cuda::open(0);
    if (!cuda) GTEST_SKIP() << cuda.error().message;
    if (const char* missing = (*cuda)->kernels().missing((*cuda)->context()); missing != nullptr) {
      GTEST_SKIP() << missing;
    }
    cuda_ = *cuda;
    stream_ = std::make_unique<device::Stream>(2, cuda_);
  }

  PackedWeight packed(const tensor::QuantizedWeight& w, const MatmulPolicy& policy) {
    const MatmulProblem problem{w.n, w.k, w.format, w.activation};
    auto choice = choose(problem, with_card(cuda_->gpu()), policy);
    EXPECT_TRUE(choice) << choice.error().message;
    auto out = pack(w, *choice, *stream_);
    EXPECT_TRUE(out) << out.error().message;
    return std::move(*out);
  }

  // y (m, n) of the card for x (m, k); every element was written.
  std::vector<float> product(const PackedWeight& weight, const std::vector<float>& x, int64_t m) {
    const int64_t n = weight.problem.n;
    const int64_t k = weight.problem.k;
    std::vector<float> y(static_cast<size_t>(m * n), NAN);
    auto on_card = device::Floats::place(*stream_, x);
    auto out = device::Memory::copy_of(*stream_, y.data(), y.size() * sizeof(float));
    EXPECT_TRUE(on_card && out);
    const MatmulTarget target{&weight, reinterpret_cast<float*>(out->data()), n};
    matmul(*stream_, {&target, 1}, on_card->data(), k, m);
    const auto ok = device::copy_to_host(*stream_, y.data(), out->data(), y.size() * sizeof(float));
    EXPECT_TRUE(ok) << ok.error().message;
    return y;
  }

  std::shared_ptr<device::Cuda> cuda_;
  std::unique_ptr<device::Stream> stream_;
};

class Hopper : public Card {
 protected:
  void SetUp() override {
    Card::SetUp();
    if (!IsSkipped() && cuda_->gpu().major != 9) GTEST_SKIP() << "the card is not a Hopper";
  }
};

// The m tokens of x as the weight wants them: the reference.
inline std::vector<float> transformed(const tensor::QuantizedWeight& w, const float* x, int64_t m) {
  std::vector<float> out(x, x + m * w.k);
  CallRange range(w.activation, w.k);
  for (int64_t row = 0; row < m; ++row) {
    float* token = out.data() + row * w.k;
    for (size_t i = 0; i < w.input_factor.size(); ++i) token[i] *= w.input_factor[i];
    if (w.input_hadamard != 0) hadamard(token, w.k, w.input_hadamard);
    range.add(token);
  }
  float scale = w.input_scale;
  float zero = w.input_zero;
  const tensor::ActivationFormat format = range.found(scale, zero);
  for (int64_t row = 0; row < m; ++row) {
    float* token = out.data() + row * w.k;
    quantize_activation(format, scale, zero, token, w.k, token,
                        range.kept().empty() ? nullptr : range.kept().data());
  }
  return out;
}

inline std::vector<float> normal_floats(int64_t count, uint32_t seed) {
  Random random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(count));
  for (float& v : out) v = normal(random);
  return out;
}

// call(token, row, sum, magnitudes) for each output of x W^T in float64, and the sum of the
// magnitudes of what is added. Each row is dequantized once, on all of the machine's threads: the
// sums here cost more than the card's.
template <class Call>
void for_outputs(const tensor::QuantizedWeight& w, const std::vector<float>& x, int64_t m,
                 const Call& call) {
  device::ThreadPool pool(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  pool.parallel_for(w.n, 1, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(w.k));
    for (int64_t n = begin; n < end; ++n) {
      tensor::dequantize_row(w, n, row.data());
      for (int64_t i = 0; i < m; ++i) {
        const float* xi = x.data() + i * w.k;
        double sum = 0;
        double all = 0;
        for (size_t k = 0; k < row.size(); ++k) {
          const double term = double{xi[k]} * double{row[k]};
          sum += term;
          all += std::fabs(term);
        }
        call(i, n, sum, all);
      }
    }
  });
}

// `relative` of the sum of the magnitudes of a row's products.
inline void expect_product(const tensor::QuantizedWeight& w, const std::vector<float>& x, int64_t m,
                           const std::vector<float>& y, double relative, const std::string& what) {
  std::vector<std::string> wrong(static_cast<size_t>(w.n));
  for_outputs(w, transformed(w, x.data(), m), m, [&](int64_t i, int64_t n, double sum, double all) {
    const double got = y[static_cast<size_t>(i * w.n + n)];
    if (std::fabs(got - sum) <= relative * all + 1e-30) return;  // false for a NaN
    wrong[static_cast<size_t>(n)] = "token " + std::to_string(i) + " row " + std::to_string(n) +
                                    ": " + std::to_string(got) + ", not " + std::to_string(sum);
  });
  for (const std::string& one : wrong) ASSERT_EQ(one, "") << what << " m " << m;
}

}  // namespace nibble::kernels
