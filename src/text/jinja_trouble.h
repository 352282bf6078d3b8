// How work fails inside the template interpreter, and what bounds it.
//
// Nearly every line of a recursive evaluator can fail, so a failure unwinds as a private exception,
// `Trouble`. It is caught where the interpreter ends (chat_template.cc) and leaves the room as an
// Error; no other room sees it.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "nibble/result.h"

namespace nibble::text::jinja {

struct Trouble {
  ErrorCode code = ErrorCode::kUsage;
  std::string message;  // without the place; the interpreter adds it
  int line = 0;         // 0: not known yet, filled in by the statement or expression under way
};

// A template that does not fit its data: wrong types, undefined values, its own raise_exception.
[[noreturn]] inline void raise(std::string message) {
  throw Trouble{ErrorCode::kUsage, std::move(message), 0};
}
// Well-formed Jinja that this interpreter does not have.
[[noreturn]] inline void raise_unsupported(std::string message) {
  throw Trouble{ErrorCode::kUnsupported, std::move(message), 0};
}

// What one rendering may use. The defaults refuse a template that never ends in about a second and
// leave room for a conversation of megabytes.
struct Limits {
  size_t steps = 10'000'000;            // nodes evaluated, and one per kBytesPerStep bytes touched
  size_t bytes = size_t{256} << 20;     // of values made, in total, freed or not
  size_t one_value = size_t{64} << 20;  // bytes of one string, or of the output
  int depth = 1200;                     // nodes within nodes, macro calls included
};

constexpr size_t kBytesPerStep = 128;
constexpr int kMaxNesting =
    150;  // lists within lists, so that walking one cannot exhaust the stack

// Counts what is used and throws when it is too much. Freed memory is not given back: the bound on
// what was ever made is also a bound on what is alive, and needs no bookkeeping.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  void step(size_t n = 1) {
    if (n > limits_.steps - steps_) too_many_steps();
    steps_ += n;
  }
  // Work proportional to `n` bytes that makes no value.
  void walk(size_t n) { step(n / kBytesPerStep); }
  // A value of `n` bytes is about to be made.
  void make(size_t n) {
    if (n > limits_.one_value) too_large(n);
    if (n > limits_.bytes - bytes_) too_much();
    bytes_ += n;
    walk(n);
  }
  void enter() {
    if (++depth_ > limits_.depth) too_deep();
  }
  void leave() { --depth_; }
  const Limits& limits() const { return limits_; }

 private:
  [[noreturn]] void too_many_steps() const;
  [[noreturn]] void too_large(size_t n) const;
  [[noreturn]] void too_much() const;
  [[noreturn]] void too_deep() const;

  Limits limits_;
  size_t steps_ = 0;
  size_t bytes_ = 0;
  int depth_ = 0;
};

// One level of recursion, for as long as it lives.
class Level {
 public:
  explicit Level(Budget& budget) : budget_(budget) { budget_.enter(); }
  ~Level() { budget_.leave(); }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Budget& budget_;
};

}  // namespace nibble::text::jinja
