#include "cli/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>

#include "cli/table.h"

namespace nibble::cli {
namespace {

Voice g_voice;
std::set<std::string, std::less<>> g_warned;

bool smart_terminal(int descriptor) {
  const char* term = std::getenv("TERM");
  return isatty(descriptor) != 0 && term != nullptr && *term != 0 && std::strcmp(term, "dumb") != 0;
}

bool has_color(int descriptor) {
  const char* no_color = std::getenv("NO_COLOR");
  return smart_terminal(descriptor) && (no_color == nullptr || *no_color == 0);
}

// errno, or 0 when all was written.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

void line_to_stderr(std::string_view prefix, const char* color, std::string_view message) {
  const bool colored = *color != 0 && has_color(STDERR_FILENO);
  write_all(STDERR_FILENO, fmt::format("{}{}{}{}\n", colored ? color : "", prefix,
                                       colored ? "\x1b[0m" : "", message));
}

}  // namespace

void occupy_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) >= 0) continue;
    // open() gives the lowest number that is free, which is this one.
    [[maybe_unused]] const int taken =
        open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void set_voice(const Voice& voice) {
  g_voice = voice;
  set_log([](LogLevel level, std::string_view message) {
    if (level == LogLevel::kWarning) {
      warn(message);
    } else {
      detail(message);
    }
  });
}

const Voice& voice() { return g_voice; }

bool stderr_is_terminal() { return smart_terminal(STDERR_FILENO); }
size_t stderr_columns() {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

bool stdin_is_terminal() { return isatty(STDIN_FILENO) != 0; }
bool stdout_is_terminal() { return isatty(STDOUT_FILENO) != 0; }

// Errors and warnings quote names from files: printable() keeps them on one harmless line.
void say_error(std::string_view message) {
  line_to_stderr("error: ", "\x1b[1;31m", printable(message));
}

void warn(std::string_view message) {
  if (g_voice.quiet || g_warned.count(message) != 0) return;
  g_warned.emplace(message);
  line_to_stderr("warning: ", "\x1b[1;33m", printable(message));
}

void note(std::string_view message) {
  if (!g_voice.quiet) line_to_stderr("", "", message);
}

void detail(std::string_view message) {
  if (g_voice.verbose && !g_voice.quiet) line_to_stderr("", "", message);
}

Result<void> Output::write(std::string_view text) {
  if (closed) return {};
  const int error = write_all(STDOUT_FILENO, text);
  if (error == EPIPE) {
    closed = true;
  } else if (error != 0) {
    return fail(ErrorCode::kIo, fmt::format("stdout could not be written: {}", strerror(error)));
  }
  return {};
}

Result<int> finish(std::string_view text, int exit_code) {
  NIBBLE_TRY(Output{}.write(text));
  return exit_code;
}

}  // namespace nibble::cli
