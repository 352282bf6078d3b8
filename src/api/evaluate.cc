// nibble::evaluate and nibble::compare: what a quantization costs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <new>
#include <numeric>

#include "api/model.h"
#include "generate/sequence.h"
#include "load/gguf_names.h"

namespace nibble {
namespace {

using generate::Sequence;
using kernels::log_sum_exp;

Result<Sequence> sequence_of(const Model::Impl& m, int64_t capacity) {
  return Sequence::create(m.decoder, *m.stream, m.ops, capacity);
}

// KL(p || q) in nats of the distributions that two rows of logits stand for.
double divergence(std::span<const float> p, std::span<const float> q) {
  const double log_p = log_sum_exp(p);
  const double log_q = log_sum_exp(q);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double lp = static_cast<double>(p[i]) - log_p;
    sum += std::exp(lp) * (lp - (static_cast<double>(q[i]) - log_q));
  }
  return std::max(0.0, sum);
}

size_t top(std::span<const float> row) {
  return static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

// Sums over all windows.
struct Tally {
  double nll = 0;
  double reference_nll = 0;
  double kl = 0;
  int64_t agreements = 0;
  int64_t predictions = 0;
  std::vector<EvalPosition> positions;
};

Result<void> run_window(const Model::Impl& model, const Model::Impl* reference, int64_t window,
                        std::span<const int32_t> tokens, Tally& tally) {
  const auto vocab = static_cast<size_t>(model.decoder.spec.vocab);
  std::vector<float> reference_rows;
  if (reference != nullptr) {
    NIBBLE_ASSIGN(Sequence sequence, sequence_of(*reference, static_cast<int64_t>(tokens.size())));
    reference_rows.reserve(tokens.size() * vocab);
    NIBBLE_TRY(sequence.append(tokens, [&](int64_t, std::span<const float> row) {
      reference_rows.insert(reference_rows.end(), row.begin(), row.end());
      return true;
    }));
  }
  NIBBLE_ASSIGN(Sequence sequence, sequence_of(model, static_cast<int64_t>(tokens.size())));
  if (reference == nullptr) {
    NIBBLE_ASSIGN(const std::vector<double> scores, sequence.append_scored(tokens));
    for (const double nll : scores) tally.nll += nll;
    tally.predictions += static_cast<int64_t>(scores.size());
    return {};
  }
  return sequence.append(tokens, [&](int64_t position, std::span<const float> row) {
    const auto at = static_cast<size_t>(position);
    if (at + 1 >= tokens.size()) return true;  // nothing follows: nothing is predicted
    const int32_t next = tokens[at + 1];
    EvalPosition p{window, position, next, log_sum_exp(row) - row[static_cast<size_t>(next)], 0};
    const std::span<const float> ref(reference_rows.data() + at * vocab, vocab);
    tally.reference_nll += log_sum_exp(ref) - ref[static_cast<size_t>(next)];
    p.kl = divergence(ref, row);
    tally.kl += p.kl;
    tally.agreements += top(ref) == top(row) ? 1 : 0;
    tally.positions.push_back(p);
    tally.nll += p.nll;
    ++tally.predictions;
    return true;
  });
}

Result<EvalReport> run_evaluation(const Model& model, std::string_view text, int64_t ctx,
                                  const Model* reference, const Progress& progress) {
  if (!model.has_tokenizer()) return fail(ErrorCode::kNotFound, model.tokenizer_error());
  if (ctx < 2) {
    return fail(ErrorCode::kUsage,
                fmt::format("--ctx: a window needs 2 tokens or more, found {}", ctx));
  }
  if (reference != nullptr && reference->vocab_size() != model.vocab_size()) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the reference has a vocabulary of {} and the model one of {}; they "
                            "cannot be compared",
                            reference->vocab_size(), model.vocab_size()));
  }
  NIBBLE_ASSIGN(std::vector<int32_t> ids, model.tokenizer().encode(text));
  if (ids.size() < 2) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("the text has {} tokens; two are needed for one prediction", ids.size()));
  }
  Tally tally;
  const std::span<const int32_t> all(ids);
  const auto step = static_cast<size_t>(ctx);
  for (size_t begin = 0, window = 0; begin < ids.size(); begin += step, ++window) {
    const auto tokens = all.subspan(begin, std::min(step, ids.size() - begin));
    if (tokens.size() < 2) continue;
    NIBBLE_TRY(run_window(*model.shared(),
                          reference == nullptr ? nullptr : reference->shared().get(),
                          static_cast<int64_t>(window), tokens, tally));
    if (progress && !progress("eval", begin + tokens.size(), ids.size())) {
      return fail(ErrorCode::kCancelled, "cancelled");
    }
  }
  EvalReport out;
  const auto count = static_cast<double>(tally.predictions);
  out.predictions = tally.predictions;
  out.perplexity = std::exp(tally.nll / count);
  if (reference != nullptr) {
    out.has_reference = true;
    out.reference_perplexity = std::exp(tally.reference_nll / count);
    out.mean_kl = tally.kl / count;
    out.top1_agreement = static_cast<double>(tally.agreements) / count;
    std::stable_sort(tally.positions.begin(), tally.positions.end(),
                     [](const EvalPosition& a, const EvalPosition& b) { return a.kl > b.kl; });
    tally.positions.resize(std::min<size_t>(tally.positions.size(), 10));
    out.worst = std::move(tally.positions);
  }
  return out;
}

// ||a - b|| / ||b||; 0 when both are zero.
class RelativeError {
 public:
  void add(std::span<const float> a, std::span<const float> b) {
    for (size_t i = 0; i < a.size(); ++i) {
      const double d = static_cast<double>(a[i]) - b[i];
      difference_ += d * d;
      norm_ += static_cast<double>(b[i]) * b[i];
    }
  }
  double value() const {
    if (difference_ == 0) return 0;
    return norm_ == 0 ? HUGE_VAL : std::sqrt(difference_ / norm_);
  }

 private:
  double difference_ = 0;
  double norm_ = 0;
};

// For each row of `a` the row of `b` that means the same. Some GGUF files hold the rows of q and k
// so that neighbours turn together (2 i, 2 i + 1), folders so that halves do (i, i + d / 2). And
// where a folder has q, k and v of a fused projection head by head, GGUF files have them apart.
std::vector<int64_t> matching_rows(std::string_view key, int64_t n, const layers::DecoderSpec& a,
                                   const layers::DecoderSpec& b) {
  std::vector<int64_t> rows(static_cast<size_t>(n));
  std::iota(rows.begin(), rows.end(), 0);
  if (key.ends_with(".attn_qkv") && a.qkv_order != b.qkv_order) {
    const bool a_by_heads = a.qkv_order == layers::QkvOrder::kHeads;
    const int64_t d = a.head_dim;
    for (int64_t row = 0; row < n; ++row) {
      const int64_t head = row / (3 * d);
      const int64_t part = row / d % 3;
      const int64_t apart = (part * a.heads + head) * d + row % d;
      rows[static_cast<size_t>(a_by_heads ? row : apart)] = a_by_heads ? apart : row;
    }
    return rows;
  }
  const bool turned = key.ends_with(".attn_q") || key.ends_with(".attn_k");
  if (!turned || a.rope.order == b.rope.order) return rows;
  const int64_t d = a.rope.rotary_dim > 0 ? a.rope.rotary_dim : a.head_dim;
  for (int64_t head = 0; head + a.head_dim <= n; head += a.head_dim) {
    for (int64_t i = 0; i < d; ++i) {
      const int64_t neighbour = head + 2 * (i % (d / 2)) + i / (d / 2);
      const bool a_has_halves = a.rope.order == kernels::PairOrder::kHalves;
      const int64_t from = a_has_halves ? head + i : neighbour;
      rows[static_cast<size_t>(from)] = a_has_halves ? neighbour : head + i;
    }
  }
  return rows;
}

double weight_error(const layers::Linear& a, const layers::Linear& b,
                    const std::vector<int64_t>& rows) {
  RelativeError error;
  std::vector<float> row_a(static_cast<size_t>(a.k()));
  std::vector<float> row_b(static_cast<size_t>(a.k()));
  for (int64_t n = 0; n < a.n(); ++n) {
    kernels::unpack_row(a.weight, n, row_a.data());
    kernels::unpack_row(b.weight, rows[static_cast<size_t>(n)], row_b.data());
    error.add(row_a, row_b);
  }
  return error.value();
}

std::map<std::string, const layers::Linear*> linears_of(const layers::Decoder& d) {
  std::map<std::string, const layers::Linear*> out;
  const auto add = [&out](const layers::Linear& l) { out[load::gguf_module_name(l.name)] = &l; };
  for (const layers::DecoderLayer& l : d.layers) {
    for (const layers::Linear* x : l.linears()) add(*x);
  }
  add(d.head());
  return out;
}

Result<std::vector<CompareRow>> run_comparison(const Model& left, const Model& right,
                                               std::span<const int32_t> tokens,
                                               const Progress& progress) {
  const Model::Impl& a = *left.shared();
  const Model::Impl& b = *right.shared();
  const auto linears_a = linears_of(a.decoder);
  const auto linears_b = linears_of(b.decoder);
  // Keys are GGUF's names, so that a folder and a GGUF file of one model can be compared.
  std::map<std::string, std::vector<float>> outputs;
  const auto key = [](std::string_view module) { return load::gguf_module_name(module); };
  const auto capacity = static_cast<int64_t>(tokens.size());
  if (capacity > Sequence::kBatch) {
    return fail(ErrorCode::kUnsupported, fmt::format("compare takes at most {} tokens, found {}",
                                                     Sequence::kBatch, capacity));
  }
  NIBBLE_ASSIGN(Sequence run_a, sequence_of(a, capacity));
  NIBBLE_TRY(run_a.append(tokens, {}, {},
                          [&](std::string_view module, const float* y, int64_t m, int64_t n) {
                            outputs[key(module)].assign(y, y + m * n);
                          }));
  std::map<std::string, double> activation_errors;
  NIBBLE_ASSIGN(Sequence run_b, sequence_of(b, capacity));
  NIBBLE_TRY(run_b.append(
      tokens, {}, {}, [&](std::string_view module, const float* y, int64_t m, int64_t n) {
        const auto found = outputs.find(key(module));
        const auto count = static_cast<size_t>(m * n);
        if (found == outputs.end() || found->second.size() != count) return;
        const std::vector<int64_t> rows =
            matching_rows(key(module), n, a.decoder.spec, b.decoder.spec);
        RelativeError error;
        for (size_t i = 0; i < count; ++i) {
          const size_t row = i / static_cast<size_t>(n) * static_cast<size_t>(n);
          const auto to = static_cast<size_t>(rows[i - row]);
          error.add({&found->second[i], 1}, {y + row + to, 1});
        }
        activation_errors[key(module)] = error.value();
      }));
  NIBBLE_ASSIGN(const std::span<const float> logits_a, run_a.last_logits());
  NIBBLE_ASSIGN(const std::span<const float> logits_b, run_b.last_logits());
  if (logits_a.size() == logits_b.size()) {
    RelativeError error;  // of the head: the logits of the last token
    error.add(logits_a, logits_b);
    activation_errors[key(a.decoder.head().name)] = error.value();
  }
  std::vector<CompareRow> rows;
  for (const auto& [name, linear_a] : linears_a) {
    const auto found = linears_b.find(name);
    if (found == linears_b.end()) {
      return fail(ErrorCode::kUnsupported, fmt::format("{} stands only in the first model", name));
    }
    const layers::Linear& linear_b = *found->second;
    if (linear_a->n() != linear_b.n() || linear_a->k() != linear_b.k()) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{} is ({}, {}) in the first model and ({}, {}) in "
                              "the second",
                              name, linear_a->n(), linear_a->k(), linear_b.n(), linear_b.k()));
    }
    const std::vector<int64_t> order =
        matching_rows(name, linear_b.n(), a.decoder.spec, b.decoder.spec);
    rows.push_back(
        {linear_a->name, weight_error(*linear_a, linear_b, order), activation_errors[name]});
    if (progress && !progress(name, rows.size(), linears_a.size())) {
      return fail(ErrorCode::kCancelled, "cancelled");
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const CompareRow& x, const CompareRow& y) {
    return std::max(x.weight_error, x.activation_error) >
           std::max(y.weight_error, y.activation_error);
  });
  return rows;
}

}  // namespace

Result<EvalReport> evaluate(const Model& model, std::string_view text, int64_t ctx,
                            const Model* reference, const Progress& progress) try {
  return run_evaluation(model, text, ctx, reference, progress);
} catch (const std::bad_alloc& error) {
  return api::out_of_memory(error, "a shorter window (--ctx) needs less");
}

Result<std::vector<CompareRow>> compare(const Model& left, const Model& right,
                                        std::span<const int32_t> tokens,
                                        const Progress& progress) try {
  return run_comparison(left, right, tokens, progress);
} catch (const std::bad_alloc& error) {
  return api::out_of_memory(error, "fewer tokens need less");
}

}  // namespace nibble
