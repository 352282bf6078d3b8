// nibble logits: the raw scores of every position.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/npy.h"
#include "cli/open.h"
#include "cli/options.h"
#include "cli/report_json.h"
#include "cli/table.h"
#include "cli/terminal.h"

namespace nibble::cli {
namespace {

constexpr size_t kTop = 5;

struct Arguments {
  Voice voice;
  Options options;
  std::string model;
  std::string tokens;
  std::string out;
};

std::string piece_of(const Model& model, int32_t id) {
  return model.has_tokenizer() ? model.tokenizer().piece(id) : "";
}

// The kTop highest; of equal ones the lower id first.
std::vector<TopToken> top_tokens(const Model& model, std::span<const float> row) {
  std::vector<int32_t> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  const size_t count = std::min(kTop, ids.size());
  const auto higher = [&](int32_t a, int32_t b) {
    const float left = row[static_cast<size_t>(a)], right = row[static_cast<size_t>(b)];
    return left != right ? left > right : a < b;
  };
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(),
                    higher);
  std::vector<TopToken> top;
  for (size_t i = 0; i < count; ++i) {
    top.push_back({ids[i], piece_of(model, ids[i]), row[static_cast<size_t>(ids[i])]});
  }
  return top;
}

std::string rows_text(const Model& model, const std::vector<LogitsRow>& rows) {
  Table table({{"position", Align::kRight},
               {"token", Align::kRight},
               {"piece"},
               {"likeliest next"},
               {""},
               {""},
               {""},
               {""}});
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<std::string> cells = {fmt::format("{}", i), fmt::format("{}", rows[i].token),
                                      printable(piece_of(model, rows[i].token))};
    for (const TopToken& top : rows[i].top) {
      cells.push_back(fmt::format("{} {} {:.3f}", top.id, printable(top.piece), top.logit));
    }
    table.add(std::move(cells));
  }
  return table.text();
}

Result<int> show_logits(const Arguments& arguments) {
  set_voice(arguments.voice);
  NIBBLE_TRY(check_out(arguments.out, arguments.voice.json));
  NIBBLE_ASSIGN(const std::vector<int32_t> tokens, parse_tokens(arguments.tokens, "--tokens"));
  const CatchInterrupt interrupt;
  NIBBLE_ASSIGN(const Model model, open_model(arguments.model, arguments.options, interrupt));
  NIBBLE_TRY(check_tokens(tokens, model.vocab_size()));

  std::optional<NpyWriter> writer;
  if (!arguments.out.empty()) {
    NIBBLE_ASSIGN(
        NpyWriter created,
        NpyWriter::create(arguments.out, static_cast<int64_t>(tokens.size()), model.vocab_size()));
    writer.emplace(std::move(created));
  }
  Session session(model);
  std::vector<LogitsRow> rows;
  Result<void> written;
  const bool wants_top = arguments.voice.json || !writer;
  const Result<void> ran =
      session.logits(tokens, [&](int64_t position, std::span<const float> row) {
        if (writer) written = writer->append(row);
        if (wants_top) {
          rows.push_back({tokens[static_cast<size_t>(position)], top_tokens(model, row)});
        }
        return written && !interrupt.requested();
      });
  NIBBLE_TRY(std::move(written));  // before what it led to: logits() was told to stop
  NIBBLE_TRY(ran);
  if (interrupt.requested()) return kInterrupted;
  if (writer) {
    NIBBLE_TRY(writer->finish());
    note(fmt::format("wrote {}: float32 ({}, {})", arguments.out == "-" ? "stdout" : arguments.out,
                     tokens.size(), model.vocab_size()));
  }
  if (!wants_top) return 0;
  return finish(arguments.voice.json ? logits_json(model.vocab_size(), rows, arguments.out)
                                     : rows_text(model, rows));
}

}  // namespace

Command logits_command() {
  const auto arguments = std::make_shared<Arguments>();
  Command command{"logits", "the scores of every position"};
  command.about =
      "Runs the model over token ids and gives the logits of each position, float32 of shape "
      "(tokens, vocabulary): into a .npy file with --out, else the five highest of each. With "
      "--precision exact --dtype f32 activations are computed in float32, which is how numbers are "
      "compared with other programs.";
  command.examples = {
      "nibble logits smollm2 --tokens 504,3575,282",
      "nibble logits ./Llama-3-8B-AWQ --tokens 1,2,3 --precision exact --dtype f32 --out l.npy",
  };
  Option tokens{"--tokens", "IDS", "token ids like 1,2,3; nothing is added to them",
                &arguments->tokens};
  tokens.required = true;
  command.groups = {{"arguments",
                     {model_argument(arguments->model),
                      tokens,
                      {"-o,--out", "FILE", "write a .npy file; - is stdout", &arguments->out}}},
                    model_options(arguments->options),
                    voice_options(arguments->voice)};
  command.run = [arguments] { return show_logits(*arguments); };
  return command;
}

}  // namespace nibble::cli
