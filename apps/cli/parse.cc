#include "cli/parse.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <utility>

namespace nibble::cli {
namespace {

Failure usage(std::string message) { return fail(ErrorCode::kUsage, std::move(message)); }

// ---------------------------------------------------------------------------------------------
// Values

template <class Number>
Result<Number> to_number(const Option& option, const std::string& text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  const char* kind = std::is_floating_point_v<Number> ? "a number" : "a whole number";
  if (text.empty() || stop != end || error == std::errc::invalid_argument) {
    return usage(fmt::format("{}: expected {}, found \"{}\".", option.name(), kind, text));
  }
  const double value = static_cast<double>(number);
  if (error == std::errc::result_out_of_range || std::isnan(value) || value < option.low ||
      value > option.high) {
    const bool too_long = error == std::errc::result_out_of_range && text[0] != '-';
    const std::string range =
        !std::isinf(option.high) ? fmt::format("from {:.12g} to {:.12g}", option.low, option.high)
        : too_long               ? fmt::format("of at most {}", std::numeric_limits<Number>::max())
                                 : fmt::format("of at least {:g}", option.low);
    return usage(fmt::format("{}: expected {} {}, found {}.", option.name(), kind, range, text));
  }
  return number;
}

Result<void> check_word(const Option& option, const std::string& text) {
  const auto& words = option.words;
  if (words.empty() || std::find(words.begin(), words.end(), text) != words.end()) return {};
  return usage(
      fmt::format("{}: \"{}\" is not one of {}.", option.name(), text, fmt::join(words, ", ")));
}

// Stores the texts given for one option; one visitor for each kind of target.
struct Store {
  const Option& option;
  const std::vector<std::string>& texts;

  Result<void> operator()(Switch target) const {
    *target.at = target.value;
    return {};
  }
  template <class Number>
  Result<void> operator()(Number* target) const {
    NIBBLE_ASSIGN(*target, to_number<Number>(option, texts.back()));
    return {};
  }
  Result<void> operator()(std::string* target) const {
    NIBBLE_TRY(check_word(option, texts.back()));
    *target = texts.back();
    return {};
  }
  Result<void> operator()(std::optional<std::string>* target) const {
    *target = texts.back();
    return {};
  }
  Result<void> operator()(std::vector<std::string>* target) const {
    *target = texts;
    return {};
  }
  Result<void> operator()(std::vector<int64_t>* target) const {
    target->clear();
    const std::string& text = texts.back();
    for (size_t begin = 0; begin <= text.size();) {
      const size_t comma = std::min(text.find(',', begin), text.size());
      NIBBLE_ASSIGN(const int64_t number,
                    to_number<int64_t>(option, text.substr(begin, comma - begin)));
      target->push_back(number);
      begin = comma + 1;
    }
    return {};
  }
  Result<void> operator()(std::vector<std::pair<std::string, std::string>>* target) const {
    target->clear();
    for (const std::string& text : texts) {
      const size_t equals = text.find('=');
      if (equals == std::string::npos || equals == 0) {
        return usage(fmt::format("{}: expected KEY=VALUE, found \"{}\".", option.name(), text));
      }
      target->emplace_back(text.substr(0, equals), text.substr(equals + 1));
    }
    return {};
  }
};

// ---------------------------------------------------------------------------------------------
// CLI11: it splits the arguments; what the values mean and every sentence is decided here.

struct Binding {
  const Option* option;
  CLI::Option* parser;
};

std::vector<Binding> bind(const std::vector<OptionGroup>& groups, CLI::App& app) {
  std::vector<Binding> bindings;
  for (const OptionGroup& group : groups) {
    for (const Option& option : group.options) {
      CLI::Option* parser = nullptr;
      if (option.is_switch()) {
        parser = app.add_flag(option.names);
      } else {
        parser = app.add_option(option.names, [](const CLI::results_t&) { return true; });
        const bool repeats =
            std::holds_alternative<std::vector<std::string>*>(option.target) ||
            std::holds_alternative<std::vector<std::pair<std::string, std::string>>*>(
                option.target);
        parser->type_size(1)->multi_option_policy(repeats ? CLI::MultiOptionPolicy::TakeAll
                                                          : CLI::MultiOptionPolicy::TakeLast);
        // Without extra arguments a value such as "[x,y]" stays one value.
        parser->expected(1, repeats ? CLI::detail::expected_max_vector_size : 1);
        parser->allow_extra_args(false);
      }
      bindings.push_back({&option, parser});
    }
  }
  return bindings;
}

Result<void> store(const std::vector<Binding>& bindings) {
  for (const auto& [option, parser] : bindings) {
    if (parser->count() == 0) continue;
    NIBBLE_TRY(std::visit(Store{*option, parser->results()}, option->target));
  }
  return {};
}

std::vector<std::string> idle_options(const std::vector<Binding>& bindings) {
  std::vector<std::string> idle;
  for (const auto& [option, parser] : bindings) {
    if (parser->count() == 0 || !option->idle) continue;
    const std::string why = option->idle();
    if (!why.empty()) idle.push_back(fmt::format("{} has no effect: {}", option->name(), why));
  }
  return idle;
}

// Edits (insert, delete, replace, swap neighbours) from one word to the other.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> edits(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        edits[i][j] = i + j;
        continue;
      }
      const size_t replace = edits[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      edits[i][j] = std::min({edits[i - 1][j] + 1, edits[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        edits[i][j] = std::min(edits[i][j], edits[i - 2][j - 2] + 1);
      }
    }
  }
  return edits[a.size()][b.size()];
}

// " Did you mean X?", or nothing when no name is close.
std::string suggestion(std::string_view word, const std::vector<std::string>& names) {
  std::string best;
  size_t best_distance = 3;
  for (const std::string& name : names) {
    const size_t d = distance(word, name);
    if (d < best_distance) {
      best_distance = d;
      best = name;
    }
  }
  return best.empty() ? "" : fmt::format(" Did you mean \"{}\"?", best);
}

Result<void> check_nothing_left(std::vector<std::string> left, const std::vector<Binding>& bindings,
                                const std::string& where) {
  std::erase(left, "--");  // what ends the options is no argument itself
  if (left.empty()) return {};
  const std::string word = left.front().substr(0, left.front().find('='));
  if (word.size() < 2 || word[0] != '-') {
    return usage(
        fmt::format("{} does not expect \"{}\"; quote a text of several words.", where, word));
  }
  std::vector<std::string> names;
  for (const Binding& binding : bindings) names.push_back(binding.option->name());
  return usage(fmt::format("{} has no option \"{}\".{}", where, word, suggestion(word, names)));
}

// The sentence for what CLI11 found: a value that is missing or one too many.
Failure parse_failure(const CLI::ParseError& error) {
  const std::string text = error.what();
  const std::string name = text.substr(0, text.find(':'));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr && name != text) {
    return usage(fmt::format("{} needs a value.", name));
  }
  return usage(text + ".");
}

Result<void> run_parser(CLI::App& app, const std::vector<std::string>& arguments) {
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    return parse_failure(error);
  }
  return {};
}

Result<void> check_required(const Command& command, const std::vector<Binding>& bindings) {
  for (const auto& [option, parser] : bindings) {
    if (option->required && parser->count() == 0) {
      return usage(fmt::format("{} needs {}, {}; for example: {}", command.name, option->name(),
                               option->help, command.examples.front()));
    }
  }
  return {};
}

std::vector<std::string> visible_names(const std::vector<Command>& commands) {
  std::vector<std::string> names;
  for (const Command& command : commands) {
    if (!command.hidden) names.push_back(command.name);
  }
  return names;
}

// `nibble --help`, `nibble --version [--json]`: no command was named.
Result<Parsed> parse_root(const std::vector<std::string>& arguments) {
  Parsed parsed;
  bool verbose = false;
  const std::vector<Option> options = {
      {"-h,--help", "", "", Switch{&parsed.help}}, {"--version", "", "", Switch{&parsed.version}},
      {"--json", "", "", Switch{&parsed.json}},    {"-q,--quiet", "", "", Switch{&parsed.quiet}},
      {"-v,--verbose", "", "", Switch{&verbose}},  // there is no more to say
  };
  NIBBLE_TRY(parse_options({{"", options}}, arguments, "nibble without a command"));
  return parsed;
}

}  // namespace

Result<Parsed> parse(const std::vector<Command>& commands,
                     const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0].rfind('-', 0) == 0) return parse_root(arguments);
  const auto command = std::find_if(commands.begin(), commands.end(),
                                    [&](const Command& each) { return each.name == arguments[0]; });
  if (command == commands.end()) {
    const std::vector<std::string> names = visible_names(commands);
    return usage(fmt::format("there is no command \"{}\"; there are {}.{}", arguments[0],
                             fmt::join(names, ", "), suggestion(arguments[0], names)));
  }
  Parsed parsed;
  parsed.command = &*command;
  CLI::App app("nibble");
  app.set_help_flag();
  app.allow_extras();
  const CLI::Option* help = app.add_flag("-h,--help");
  const std::vector<Binding> bindings = bind(command->groups, app);
  NIBBLE_TRY(run_parser(app, {arguments.begin() + 1, arguments.end()}));
  parsed.help = help->count() != 0;
  if (parsed.help) return parsed;
  NIBBLE_TRY(check_nothing_left(app.remaining(), bindings, command->name));
  NIBBLE_TRY(check_required(*command, bindings));
  NIBBLE_TRY(store(bindings));
  parsed.idle = idle_options(bindings);
  const CLI::Option* quiet = app.get_option_no_throw("--quiet");
  parsed.quiet = quiet != nullptr && quiet->count() != 0;
  return parsed;
}

Result<void> parse_options(const std::vector<OptionGroup>& groups,
                           const std::vector<std::string>& arguments, const std::string& where) {
  CLI::App app("nibble");
  app.set_help_flag();
  app.allow_extras();
  const std::vector<Binding> bindings = bind(groups, app);
  NIBBLE_TRY(run_parser(app, arguments));
  NIBBLE_TRY(check_nothing_left(app.remaining(), bindings, where));
  return store(bindings);
}

}  // namespace nibble::cli
