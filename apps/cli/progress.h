// Progress of long work on stderr: one line that is redrawn on a terminal, now and then a plain
// line elsewhere, nothing with --quiet.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "cli/interrupt.h"
#include "nibble/nibble.h"

namespace nibble::cli {

enum class Unit { kBytes, kTokens, kLayers };

// "loading   [=====>    ]  54%  53.1 MB of 98.0 MB  812.4 MB/s  0:01 left"
std::string progress_line(std::string_view what, Unit unit, uint64_t done, uint64_t total,
                          double seconds, bool bar);

class ProgressLine {
 public:
  // Work that is over within `patience` seconds is never mentioned.
  explicit ProgressLine(Unit unit, const CatchInterrupt& interrupt, double patience = 1.0);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // To hand to the library; valid while this lives. Answers false once Ctrl-C was pressed. `name`
  // stands for the whole work, where the library names each layer.
  Progress callback(std::string name = "");
  // Takes the line off the terminal, so that other text may follow.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  bool update(std::string_view what, uint64_t done, uint64_t total);

  Unit unit_;
  const CatchInterrupt& interrupt_;
  double patience_;
  bool terminal_;
  bool drawn_ = false;             // a line stands on the terminal
  bool mentioned_ = false;         // this work was shown at least once
  uint64_t done_ = 0, total_ = 0;  // of the work at hand
  Clock::time_point start_;
  Clock::time_point last_;
};

}  // namespace nibble::cli
