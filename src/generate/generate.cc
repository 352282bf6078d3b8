#include "generate/generate.h"

#include <algorithm>
#include <chrono>
#include <optional>

namespace nibble::generate {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Holds text back while it may still become a stop string.
class StopFilter {
 public:
  explicit StopFilter(const std::vector<std::string>& stops) : stops_(stops) {}

  // Adds text; returns what is final. Sets `stopped` when a stop string is complete.
  std::string add(std::string_view text) {
    held_ += text;
    size_t first = held_.npos;
    for (const std::string& stop : stops_) {
      if (!stop.empty()) first = std::min(first, held_.find(stop));
    }
    if (first != held_.npos) {
      stopped_ = true;
      held_.resize(first);
      return std::exchange(held_, {});
    }
    const size_t keep = longest_prefix_at_end();
    std::string out = held_.substr(0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
    return out;
  }

  std::string flush() { return std::exchange(held_, {}); }
  bool stopped() const { return stopped_; }

 private:
  // How many bytes at the end of held_ begin some stop string.
  size_t longest_prefix_at_end() const {
    size_t longest = 0;
    for (const std::string& stop : stops_) {
      const size_t most = std::min(held_.size(), stop.empty() ? 0 : stop.size() - 1);
      for (size_t n = most; n > longest; --n) {
        if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) {
          longest = n;
          break;
        }
      }
    }
    return longest;
  }

  const std::vector<std::string>& stops_;
  std::string held_;
  bool stopped_ = false;
};

// The text side of a generation: ids in, final text out.
class TextSide {
 public:
  TextSide(const text::Tokenizer* tokenizer, const std::vector<std::string>& stops,
           const TextSink& sink, std::string& text)
      : stop_(stops), sink_(sink), text_(text) {
    if (tokenizer != nullptr) detokenizer_.emplace(*tokenizer);
  }

  // False when the generation should end.
  bool add(int32_t id) { return !detokenizer_ || pass_on(stop_.add(detokenizer_->push(id))); }
  void finish() {
    if (!detokenizer_ || stop_.stopped() || cancelled_) return;
    if (pass_on(stop_.add(detokenizer_->finish()))) pass_on(stop_.flush());
  }
  bool cancelled() const { return cancelled_; }

 private:
  bool pass_on(const std::string& piece) {
    text_ += piece;
    if (!piece.empty() && sink_ && !sink_(piece)) cancelled_ = true;
    return !cancelled_ && !stop_.stopped();
  }

  std::optional<text::Detokenizer> detokenizer_;
  StopFilter stop_;
  const TextSink& sink_;
  std::string& text_;
  bool cancelled_ = false;
};

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Result<Generation> generate(Sequence& sequence, const text::Tokenizer* tokenizer,
                            std::span<const int32_t> prompt, const GenerateSettings& settings,
                            const TextSink& on_text, const PromptProgress& progress) {
  if (tokenizer == nullptr && !settings.stop.empty()) {
    return fail(ErrorCode::kUnsupported,
                "stop strings need a tokenizer, and this checkpoint has none");
  }
  if (prompt.empty() && sequence.length() == 0) {
    return fail(ErrorCode::kUnsupported,
                "the prompt has no tokens and the tokenizer adds none; give some text or --tokens");
  }
  Generation out;
  auto start = Clock::now();
  NIBBLE_TRY(sequence.append(prompt, {}, progress));
  NIBBLE_TRY(sequence.settle());
  out.prompt_seconds = seconds_since(start);

  start = Clock::now();
  kernels::Sampler sampler(settings.sample);
  for (int32_t id : sequence.tokens()) sampler.accept(id);
  TextSide text(tokenizer, settings.stop, on_text, out.text);
  const int64_t most = settings.max_tokens < 0 ? INT64_MAX : settings.max_tokens;
  while (true) {
    if (static_cast<int64_t>(out.tokens.size()) >= most) {
      out.finish = Finish::kLength;
      break;
    }
    NIBBLE_ASSIGN(const int32_t id, sequence.sample(sampler));
    sampler.accept(id);
    if (contains(settings.eos, id)) {
      out.finish = Finish::kEos;
      break;
    }
    out.tokens.push_back(id);
    if (!text.add(id)) {
      out.finish = text.cancelled() ? Finish::kCancelled : Finish::kStopString;
      break;
    }
    if (sequence.length() == sequence.capacity()) {
      out.finish = Finish::kContext;
      break;
    }
    if (static_cast<int64_t>(out.tokens.size()) < most) NIBBLE_TRY(sequence.append({&id, 1}));
  }
  text.finish();
  out.generate_seconds = seconds_since(start);
  return out;
}

}  // namespace nibble::generate
