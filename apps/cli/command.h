// A command of the program as data: its options, its help and what it does. The parser, the help,
// the completions and the manual page are all made from this.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "nibble/result.h"

namespace nibble::cli {

// A switch that stores `value` when it is given.
struct Switch {
  bool* at;
  bool value = true;
};

// Where an option's value goes. Lists of numbers are written with commas,
// `std::vector<std::string>` and the KEY=VALUE pairs by repeating the option; of the others the
// last one counts.
using Target =
    std::variant<Switch, int*, int64_t*, uint64_t*, float*, std::string*,
                 std::optional<std::string>*, std::vector<int64_t>*, std::vector<std::string>*,
                 std::vector<std::pair<std::string, std::string>>*>;

struct Option {
  std::string names;  // "-n,--max-tokens"; without dashes it is a positional argument
  std::string value;  // how the help calls the value: "N"
  std::string help;
  Target target;
  std::string shown_default = {};                         // "": what the target holds
  std::vector<std::string> words = {};                    // the only values there are; {}: any
  double low = -std::numeric_limits<double>::infinity();  // smallest and largest number
  double high = std::numeric_limits<double>::infinity();
  bool required = false;
  // Why it changes nothing, asked when all options are stored; "": it does. {}: it always does.
  std::function<std::string()> idle = {};

  bool positional() const { return names[0] != '-'; }
  bool is_switch() const { return std::holds_alternative<Switch>(target); }
  // The last of the names: "--max-tokens".
  std::string name() const { return names.substr(names.rfind(',') + 1); }
};

struct OptionGroup {
  std::string title;  // "sampling"
  std::vector<Option> options;
};

struct Command {
  std::string name;
  std::string summary;                // a few words, for the list of commands
  std::string about;                  // what it does, for its own help
  std::vector<std::string> examples;  // the first one stands in the list of commands too
  std::vector<OptionGroup> groups;
  std::function<Result<int>()> run;  // the exit code
  bool hidden = false;
};

// One for each command, in the file of its name.
Command run_command();
Command chat_command();
Command inspect_command();
Command fit_command();
Command verify_command();
Command weights_command();
Command logits_command();
Command tokenize_command();
Command eval_command();
Command compare_command();
Command bench_command();

// All of them, in the order of the help, and `completion`, which the help does not list.
std::vector<Command> all_commands();

}  // namespace nibble::cli
