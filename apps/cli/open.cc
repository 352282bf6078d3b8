#include "cli/open.h"

#include <fmt/format.h>

#include "cli/options.h"
#include "cli/progress.h"
#include "cli/terminal.h"

namespace nibble::cli {

Result<Model> open_model(const std::string& model, const Options& options,
                         const CatchInterrupt& interrupt) {
  NIBBLE_TRY(check(options));
  ProgressLine progress(Unit::kBytes, interrupt);
  NIBBLE_ASSIGN(Model loaded,
                Model::load(resolve_model(model), options, progress.callback("loading")));
  progress.clear();
  for (const std::string& warning : loaded.plan().warnings) warn(warning);
  for (const std::string& text : loaded.load_notes()) note(text);
  return loaded;
}

Result<Model> open_one_of_two(const std::string& model, const Options& options,
                              const CatchInterrupt& interrupt) {
  Result<Model> opened = open_model(model, options, interrupt);
  if (opened) return opened;
  const std::string& message = opened.error().message;
  const bool of_an_option = message.starts_with("--");
  if (of_an_option || message.find(model) != message.npos) return opened;
  return fail(opened.error().code, fmt::format("{}: {}", model, message));
}

Result<const Tokenizer*> tokenizer_of(const Model& model) {
  if (model.has_tokenizer()) return &model.tokenizer();
  return fail(ErrorCode::kUnsupported, model.tokenizer_error());
}

}  // namespace nibble::cli
