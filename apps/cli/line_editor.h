// Reads a user's lines: with editing and history on a terminal, plainly elsewhere.
#pragma once

#include <memory>
#include <string>

namespace nibble::cli {

class LineEditor {
 public:
  // `history_file` is read at once and written after each line; "" keeps none.
  LineEditor(std::string prompt, std::string history_file);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class Event { kLine, kInterrupt, kEnd };  // kEnd: Ctrl-D, or the end of a pipe
  Event read(std::string& line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// $XDG_STATE_HOME/nibble/chat_history, else ~/.local/state/...; "" when there is no home. Makes the
// folder.
std::string chat_history_file();

}  // namespace nibble::cli
