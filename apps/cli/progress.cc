#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cli/table.h"
#include "cli/terminal.h"

namespace nibble::cli {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kPlainLineSeconds = 5;
constexpr int kBarWidth = 24;

std::string amount(Unit unit, uint64_t count) {
  return unit == Unit::kBytes ? human_bytes(count) : fmt::format("{}", count);
}

std::string rate(Unit unit, double per_second) {
  if (unit == Unit::kBytes) return human_bytes(static_cast<uint64_t>(per_second)) + "/s";
  return fmt::format("{:.0f} {}/s", per_second, unit == Unit::kTokens ? "tokens" : "layers");
}

// As much of a line as fits, one column for each character.
std::string_view first_columns(std::string_view line, size_t columns) {
  size_t end = 0;
  for (; columns > 0 && end < line.size(); --columns) {
    end += std::max<size_t>(1, character_length(line.substr(end)));
  }
  return line.substr(0, end);
}

void put(std::string_view text) {
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

std::string progress_line(std::string_view what, Unit unit, uint64_t done, uint64_t total,
                          double seconds, bool bar) {
  const double share =
      total == 0 ? 1 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  std::string line(what);
  if (bar) {
    const int filled = static_cast<int>(share * kBarWidth);
    line += "  [" + std::string(static_cast<size_t>(filled), '=') +
            (filled < kBarWidth ? ">" : "") +
            std::string(static_cast<size_t>(std::max(0, kBarWidth - filled - 1)), ' ') + "]";
  }
  line += fmt::format("  {:3.0f}%  {} of {}", share * 100, amount(unit, done), amount(unit, total));
  if (seconds > 0 && done > 0) {
    const double per_second = static_cast<double>(done) / seconds;
    line += "  " + rate(unit, per_second);
    if (done < total) {
      line += "  " + human_seconds(static_cast<double>(total - done) / per_second) + " left";
    }
  }
  return line;
}

ProgressLine::ProgressLine(Unit unit, const CatchInterrupt& interrupt, double patience)
    : unit_(unit),
      interrupt_(interrupt),
      patience_(patience),
      terminal_(stderr_is_terminal()),
      start_(Clock::now()),
      last_(start_) {}

ProgressLine::~ProgressLine() { clear(); }

Progress ProgressLine::callback(std::string name) {
  return [this, name = std::move(name)](std::string_view what, uint64_t done, uint64_t total) {
    return update(name.empty() ? what : name, done, total);
  };
}

void ProgressLine::clear() {
  if (drawn_) put("\r\x1b[K");
  drawn_ = false;
}

bool ProgressLine::update(std::string_view what, uint64_t done, uint64_t total) {
  if (interrupt_.requested()) return false;
  if (voice().quiet) return true;
  const Clock::time_point now = Clock::now();
  // The library's name may change from layer to layer; another work is one whose count begins anew.
  if (total_ != 0 && (total != total_ || done < done_)) {
    clear();
    start_ = last_ = now;
    mentioned_ = false;
  }
  done_ = done;
  total_ = total;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double since_last = std::chrono::duration<double>(now - last_).count();
  if (terminal_) {
    if (since_last < kRedrawSeconds) return true;
    // A line that wraps could not be taken off again: the bar goes first, then the end.
    const size_t columns = stderr_columns() - 1;
    std::string line = progress_line(printable(what), unit_, done, total, seconds, true);
    if (display_width(line) > columns) {
      line = progress_line(printable(what), unit_, done, total, seconds, false);
    }
    put(fmt::format("\r\x1b[K{}", first_columns(line, columns)));
    drawn_ = true;
    last_ = now;
  } else if (seconds >= patience_ &&
             (!mentioned_ || since_last >= kPlainLineSeconds || done >= total)) {
    note(progress_line(printable(what), unit_, done, total, seconds, false));
    mentioned_ = true;
    last_ = now;
  }
  return true;
}

}  // namespace nibble::cli
