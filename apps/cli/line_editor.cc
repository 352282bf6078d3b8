#include "cli/line_editor.h"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <filesystem>
#include <utility>

#include "cli/interrupt.h"
#include "cli/terminal.h"

namespace nibble::cli {
namespace {

constexpr int kHistoryLines = 1000;

// libedit counts columns in the locale's characters. The C locale knows none beyond ASCII.
void use_a_utf8_locale() {
  const char* name = std::setlocale(LC_CTYPE, "");
  if (name == nullptr ||
      (std::strstr(name, "UTF-8") == nullptr && std::strstr(name, "utf8") == nullptr)) {
    std::setlocale(LC_CTYPE, "C.UTF-8");
  }
}

}  // namespace

struct LineEditor::Impl {
  std::string prompt;
  std::string history_file;
  EditLine* editor = nullptr;  // nullptr: stdin is no terminal
  History* history = nullptr;
  std::string pending;  // bytes of a pipe that belong to later lines
  bool ended = false;
  const CatchInterrupt* interrupt = nullptr;  // of the read that goes on

  static char* prompt_of(EditLine* editor) {
    Impl* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return self->prompt.data();
  }
  static int read_character(EditLine* editor, wchar_t* out);
  Event read_edited(std::string& line);
  Event read_plain(std::string& line);
};

LineEditor::LineEditor(std::string prompt, std::string history_file)
    : impl_(std::make_unique<Impl>()) {
  impl_->prompt = std::move(prompt);
  impl_->history_file = std::move(history_file);
  if (!stdin_is_terminal()) return;
  use_a_utf8_locale();
  // The prompt and what is typed go to stderr: stdout holds the answers alone.
  impl_->editor = el_init("nibble", stdin, stderr, stderr);
  if (impl_->editor == nullptr) return;
  el_set(impl_->editor, EL_CLIENTDATA, impl_.get());
  el_set(impl_->editor, EL_PROMPT, &Impl::prompt_of);
  el_set(impl_->editor, EL_EDITOR, "emacs");
  el_set(impl_->editor, EL_SIGNAL, 0);
  el_wset(impl_->editor, EL_GETCFN, &Impl::read_character);
  impl_->history = history_init();
  if (impl_->history != nullptr) {
    HistEvent event;
    history(impl_->history, &event, H_SETSIZE, kHistoryLines);
    history(impl_->history, &event, H_SETUNIQUE, 1);
    el_set(impl_->editor, EL_HIST, history, impl_->history);
    if (!impl_->history_file.empty()) {
      history(impl_->history, &event, H_LOAD, impl_->history_file.c_str());
    }
  }
  el_source(impl_->editor, nullptr);  // the user's ~/.editrc
}

LineEditor::~LineEditor() {
  if (impl_->history != nullptr) history_end(impl_->history);
  if (impl_->editor != nullptr) el_end(impl_->editor);
}

LineEditor::Event LineEditor::read(std::string& line) {
  line.clear();
  return impl_->editor != nullptr ? impl_->read_edited(line) : impl_->read_plain(line);
}

// One character of the terminal: 1, 0 at its end, -1 with EINTR after Ctrl-C. libedit's own reader
// shows the prompt before it waits, and would miss a Ctrl-C that comes in between.
int LineEditor::Impl::read_character(EditLine* editor, wchar_t* out) {
  Impl* self = nullptr;
  el_get(editor, EL_CLIENTDATA, &self);
  std::mbstate_t state = {};
  while (true) {
    pollfd waiting[] = {{STDIN_FILENO, POLLIN, 0}, {self->interrupt->descriptor(), POLLIN, 0}};
    const int ready = poll(waiting, 2, -1);
    if (self->interrupt->requested()) {
      errno = EINTR;
      return -1;
    }
    if (ready < 0 && errno == EINTR) continue;
    char byte = 0;
    const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return static_cast<int>(got);
    const size_t used = std::mbrtowc(out, &byte, 1, &state);
    if (used == static_cast<size_t>(-2)) continue;  // the first bytes of one
    if (used == static_cast<size_t>(-1)) {
      state = {};  // no character: passed over
      continue;
    }
    return 1;
  }
}

LineEditor::Event LineEditor::Impl::read_edited(std::string& line) {
  const CatchInterrupt caught;
  interrupt = &caught;
  // Before the prompt is seen: what the user answers it with is then the editor's, Ctrl-D too.
  el_set(editor, EL_PREP_TERM, 1);
  int count = 0;
  errno = 0;
  const char* text = el_gets(editor, &count);
  interrupt = nullptr;
  if (text == nullptr || count <= 0) {
    if (!caught.requested()) return Event::kEnd;
    el_set(editor, EL_REFRESH);
    el_reset(editor);
    return Event::kInterrupt;
  }
  line.assign(text, static_cast<size_t>(count));
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  if (history != nullptr && !line.empty()) {
    HistEvent event;
    ::history(history, &event, H_ENTER, line.c_str());
    if (!history_file.empty()) ::history(history, &event, H_SAVE, history_file.c_str());
  }
  return Event::kLine;
}

LineEditor::Event LineEditor::Impl::read_plain(std::string& line) {
  while (true) {
    const size_t newline = pending.find('\n');
    if (newline != std::string::npos || ended) {
      if (pending.empty()) return Event::kEnd;
      line = pending.substr(0, newline);
      pending.erase(0, newline == std::string::npos ? newline : newline + 1);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      return Event::kLine;
    }
    char piece[4096];
    const ssize_t got = ::read(STDIN_FILENO, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      ended = true;
    } else {
      pending.append(piece, static_cast<size_t>(got));
    }
  }
}

std::string chat_history_file() {
  std::filesystem::path folder;
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if (state != nullptr && *state == '/') {
    folder = state;
  } else if (home != nullptr && *home != 0) {
    folder = std::filesystem::path(home) / ".local" / "state";
  } else {
    return "";
  }
  folder /= "nibble";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? "" : (folder / "chat_history").string();
}

}  // namespace nibble::cli
