#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>
#include <time.h>

#include <algorithm>
#include <new>

#include "text/unicode.h"

namespace nibble::text {
namespace {

constexpr uint32_t kStepsPerMatch = 10'000'000;
constexpr int kMatchesPerClock = 32;  // how often the processor time is read
constexpr double kSeconds = 0.5;
constexpr double kSecondsPerMiB = 4.0;
constexpr size_t kJitStackMax = size_t{256} << 20;  // reserved; what a match needs is used

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::string pcre2_text(int code) {
  PCRE2_UCHAR buffer[160];
  if (pcre2_get_error_message(code, buffer, sizeof buffer) < 0) return "unknown error";
  return reinterpret_cast<char*>(buffer);
}

std::string shown(std::string_view pattern) {
  return pattern.size() <= 120 ? std::string(pattern) : std::string(pattern.substr(0, 117)) + "...";
}

}  // namespace

struct Regex::Code {
  std::string pattern;  // as the file writes it
  std::string where;
  pcre2_code* code = nullptr;
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

const std::string& Regex::pattern() const { return code_->pattern; }

Result<Regex> Regex::compile(std::string_view oniguruma, std::string_view where) {
  if (find_invalid_utf8(oniguruma)) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: the regular expression is not UTF-8", where));
  }
  auto translated = translate_regex(oniguruma);
  if (!translated) {
    return fail(translated.error().code, fmt::format("{}: regular expression \"{}\": {}", where,
                                                     shown(oniguruma), translated.error().message));
  }
  auto made = std::make_shared<Code>();
  made->pattern = oniguruma;
  made->where = where;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int code = 0;
  PCRE2_SIZE offset = 0;
  made->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                             &code, &offset, context);
  pcre2_compile_context_free(context);
  if (made->code == nullptr) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: regular expression \"{}\" does not compile: {}", where,
                            shown(oniguruma), pcre2_text(code)));
  }
  // Where the machine allows no JIT the interpreter gives the same matches, more slowly.
  pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE);
  return Regex(std::move(made));
}

struct RegexMatcher::State {
  Regex regex;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  double allowed = 0;
  double started = 0;
  int until_clock = kMatchesPerClock;

  explicit State(Regex r) : regex(std::move(r)) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }

  int match(std::string_view text, size_t start) {
    const auto once = [&] {
      return pcre2_match(regex.code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                         start, PCRE2_NO_UTF_CHECK, data, context);
    };
    const int rc = once();
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT || stack != nullptr) return rc;
    // The machine stack part that JIT code uses by default is small; give it a real one.
    stack = pcre2_jit_stack_create(size_t{32} << 10, kJitStackMax, nullptr);
    if (stack == nullptr) throw std::bad_alloc();
    pcre2_jit_stack_assign(context, nullptr, stack);
    return once();
  }

  Failure failed(std::string_view why) const {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: regular expression \"{}\" on this text: {}", regex.code_->where,
                            shown(regex.code_->pattern), why));
  }
};

RegexMatcher::RegexMatcher(const Regex& regex, size_t text_bytes)
    : state_(std::make_unique<State>(regex)) {
  State& s = *state_;
  s.data = pcre2_match_data_create_from_pattern(regex.code_->code, nullptr);
  s.context = pcre2_match_context_create(nullptr);
  if (s.data == nullptr || s.context == nullptr) throw std::bad_alloc();
  // A run of one character may be as long as the text, and giving it back is a step each.
  const uint64_t steps = kStepsPerMatch + uint64_t{4} * text_bytes;
  pcre2_set_match_limit(s.context, static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
  pcre2_set_heap_limit(s.context, 256u << 10);  // KiB
  s.allowed = kSeconds + kSecondsPerMiB * static_cast<double>(text_bytes) / (1 << 20);
  s.started = thread_seconds();
}

RegexMatcher::~RegexMatcher() = default;

Result<void> RegexMatcher::find_all(std::string_view text, std::vector<Span>& out) {
  State& s = *state_;
  out.clear();
  size_t start = 0;
  while (start <= text.size()) {
    if (--s.until_clock == 0) {
      s.until_clock = kMatchesPerClock;
      if (thread_seconds() - s.started > s.allowed) return s.failed("it takes too long");
    }
    const int rc = s.match(text, start);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) return s.failed(pcre2_text(rc));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(s.data);
    const Span span{range[0], range[1]};
    if (span.end < span.begin || span.begin < start) return s.failed("a match that runs backwards");
    const bool empty = span.begin == span.end;
    if (!empty || out.empty() || out.back().end != span.end) {
      out.push_back(span);
      start = span.end;
      if (!empty) continue;
    }
    // Behind an empty match, go on one character further.
    if (span.end >= text.size()) break;
    start = span.end + utf8_length(static_cast<unsigned char>(text[span.end]));
  }
  return {};
}

}  // namespace nibble::text
