// The table of options that several commands share (docs/cli.md), bound to the library's structs.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "nibble/nibble.h"

namespace nibble::cli {

// How a command speaks; every command has these.
struct Voice {
  bool quiet = false;
  bool verbose = false;
  bool json = false;
};

// Each binds to its argument, which has to outlive the result.
OptionGroup voice_options(Voice& voice);
OptionGroup model_options(Options& options);
OptionGroup sampling_options(GenerateOptions& options);
Option model_argument(std::string& model);

// The group without the option of this name, for a command that means something else by it.
OptionGroup without(OptionGroup group, std::string_view name);

// The group where options of these names change nothing when `why` gives a reason.
OptionGroup idle(OptionGroup group, const std::vector<std::string_view>& names,
                 const std::function<std::string()>& why);

// What the table cannot say about one value alone.
Result<void> check(const Options& options);

// The path of MODEL: a path that exists, or the name of a packaged model.
std::string resolve_model(const std::string& model);

// Applies the options in `text` ("--isa reference --threads 1", quotes as in a shell) to `options`.
// `option`, whose value the text is, stands in the errors.
Result<void> apply_option_string(const std::string& option, std::string_view text,
                                 Options& options);

}  // namespace nibble::cli
