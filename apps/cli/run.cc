// nibble run: a prompt in, text out.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/open.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/report_json.h"
#include "cli/terminal.h"
#include "cli/timings.h"

namespace nibble::cli {
namespace {

struct Arguments {
  Voice voice;
  Options options;
  GenerateOptions generate;
  std::string model;
  std::optional<std::string> prompt;
  std::string tokens;
  std::string system;
  bool chat = false;
};

// The prompt's text: of -p, or stdin for `-p -` or a pipe. A pipe's last newline is the shell's,
// not the prompt's.
Result<std::string> prompt_text(const Arguments& arguments) {
  if (arguments.prompt && *arguments.prompt != "-") return *arguments.prompt;
  if (!arguments.prompt && stdin_is_terminal()) {
    return fail(ErrorCode::kUsage,
                "run needs a prompt: give -p TEXT, --tokens 1,2,3, or a text on stdin.");
  }
  NIBBLE_ASSIGN(std::string text, read_stdin());
  if (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.empty()) return fail(ErrorCode::kUsage, "run needs a prompt: stdin was empty.");
  return text;
}

Result<std::vector<int32_t>> encode_prompt(const Arguments& arguments, const std::string& text,
                                           const Model& model) {
  if (!model.has_tokenizer() && !arguments.chat) {
    return fail(ErrorCode::kUnsupported,
                model.tokenizer_error() + "; --tokens works without a tokenizer");
  }
  NIBBLE_ASSIGN(const Tokenizer* tokenizer, tokenizer_of(model));
  if (!arguments.chat) return tokenizer->encode(text);
  std::vector<ChatMessage> messages;
  if (!arguments.system.empty()) messages.push_back({"system", arguments.system});
  messages.push_back({"user", text});
  NIBBLE_ASSIGN(const std::string rendered, tokenizer->render_chat(messages_json(messages)));
  return tokenizer->encode_rendered(rendered);
}

Result<int> run(const Arguments& arguments) {
  set_voice(arguments.voice);
  // What the user asked is checked before seconds are spent on loading.
  if (!arguments.system.empty() && !arguments.chat) {
    return fail(ErrorCode::kUsage,
                "--system is a message of the chat template: give --chat too, or leave it out.");
  }
  std::vector<int32_t> ids;
  std::string text;
  if (arguments.tokens.empty()) {
    NIBBLE_ASSIGN(text, prompt_text(arguments));
    NIBBLE_TRY(check_utf8(text, "the prompt"));
    NIBBLE_TRY(check_utf8(arguments.system, "--system"));
  } else if (arguments.prompt || arguments.chat) {
    return fail(ErrorCode::kUsage, "--tokens stands alone: leave out -p and --chat.");
  } else {
    NIBBLE_ASSIGN(ids, parse_tokens(arguments.tokens, "--tokens"));
  }

  const CatchInterrupt interrupt;
  NIBBLE_ASSIGN(const Model model, open_model(arguments.model, arguments.options, interrupt));
  if (arguments.tokens.empty()) {
    NIBBLE_ASSIGN(ids, encode_prompt(arguments, text, model));
  } else {
    NIBBLE_TRY(check_tokens(ids, model.vocab_size()));
  }

  Session session(model);
  ProgressLine progress(Unit::kTokens, interrupt);
  Output output;
  Result<void> written;
  const bool streams = !arguments.voice.json;
  NIBBLE_ASSIGN(const Generated generated, session.generate(
                                               ids, arguments.generate,
                                               [&](std::string_view piece) {
                                                 progress.clear();
                                                 if (streams) written = output.write(piece);
                                                 return written && !output.closed &&
                                                        !interrupt.requested();
                                               },
                                               progress.callback()));
  progress.clear();
  NIBBLE_TRY(std::move(written));
  if (streams && !model.has_tokenizer()) {  // there is no text: the ids are the answer
    NIBBLE_TRY(output.write(fmt::format("{}", fmt::join(generated.tokens, ","))));
  }
  NIBBLE_TRY(output.write(streams ? "\n" : generated_json(generated)));
  note(timings_line(generated));
  return interrupt.requested() ? kInterrupted : 0;
}

}  // namespace

Command run_command() {
  const auto arguments = std::make_shared<Arguments>();
  Command command{"run", "generate text from a prompt"};
  command.about =
      "Generates text and streams it to stdout as it is made; timings go to stderr at the end. The "
      "prompt is not echoed. A prompt from stdin loses its last newline. Of a model without a "
      "tokenizer --tokens gives the ids of the tokens.";
  command.examples = {
      "nibble run smollm2 --chat -p \"Why is the sky blue?\"",
      "nibble run ./Llama-3-8B-AWQ -p \"Once upon a time\" -n 100 --temp 0",
      "echo \"The capital of France is\" | nibble run model.gguf --stop .",
  };
  OptionGroup own{"prompt",
                  {
                      model_argument(arguments->model),
                      {"-p,--prompt", "TEXT",
                       "the prompt; - reads stdin, as a pipe does without -p", &arguments->prompt},
                      {"--tokens", "IDS", "token ids like 1,2,3 instead; nothing is added to them",
                       &arguments->tokens},
                      {"--chat", "", "put the prompt through the model's chat template",
                       Switch{&arguments->chat}},
                      {"--system", "TEXT", "with --chat: the system message", &arguments->system},
                  }};
  command.groups = {own, sampling_options(arguments->generate), model_options(arguments->options),
                    voice_options(arguments->voice)};
  command.run = [arguments] { return run(*arguments); };
  return command;
}

}  // namespace nibble::cli
