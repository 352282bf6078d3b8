// Where words go: results to stdout, everything else to stderr.
#pragma once

#include <string>
#include <string_view>

#include "cli/options.h"
#include "nibble/result.h"

namespace nibble::cli {

// Before any file is opened: a standard descriptor that came closed is taken, so that no file of
// ours gets its number and, say, the notes meant for stderr. What uses it fails as if still closed.
void occupy_standard_descriptors();

// How note() and warn() speak from here on; also what the library says goes through them.
void set_voice(const Voice& voice);
const Voice& voice();

// stderr is a terminal that understands escape sequences (TERM is set and not "dumb").
bool stderr_is_terminal();
size_t stderr_columns();  // of that terminal
bool stdin_is_terminal();
bool stdout_is_terminal();

// `error: ...` on stderr, always.
void say_error(std::string_view message);
// `warning: ...` on stderr, each text once; not with --quiet.
void warn(std::string_view message);
// A line on stderr; not with --quiet.
void note(std::string_view message);
// A line on stderr with --verbose.
void detail(std::string_view message);

// Writes all of `text` to stdout. A reader that went away is no error: `closed` says so, and
// nothing is written from then on.
struct Output {
  bool closed = false;
  Result<void> write(std::string_view text);
};

// Writes a command's whole result and returns its exit code.
Result<int> finish(std::string_view text, int exit_code = 0);

}  // namespace nibble::cli
