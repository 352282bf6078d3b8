#include "cli/timings.h"

#include <fmt/format.h>

namespace nibble::cli {
namespace {

std::string speed(int64_t tokens, double seconds) {
  std::string text =
      fmt::format("{} {} in {:.2f} s", tokens, tokens == 1 ? "token" : "tokens", seconds);
  if (seconds > 0) text += fmt::format(" ({:.1f} tokens/s)", static_cast<double>(tokens) / seconds);
  return text;
}

}  // namespace

std::string timings_line(const Generated& generated) {
  const Timings& t = generated.timings;
  return fmt::format("prompt: {}; generated: {}; ended by: {}",
                     speed(t.prompt_tokens, t.prompt_seconds),
                     speed(t.generated_tokens, t.generate_seconds), generated.finish);
}

}  // namespace nibble::cli
