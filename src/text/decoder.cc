#include "text/decoder.h"

#include <array>
#include <optional>
#include <utility>

#include "text/byte_level.h"
#include "text/normalizer.h"
#include "text/unicode.h"

namespace nibble::text {
namespace {

std::string replaced(std::string_view text, const std::variant<std::string, Regex>& pattern,
                     std::string_view content) {
  auto out = replace_all(text, pattern, content);
  return out ? std::move(*out) : std::string(text);
}

std::string with(std::string_view text, std::string_view from, std::string_view to) {
  return replaced(text, std::string(from), to);
}

// English spacing as BERT's decoder tidies it.
std::string clean_up(std::string text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kRules = {{
      {" .", "."},
      {" ?", "?"},
      {" !", "!"},
      {" ,", ","},
      {" ' ", "'"},
      {" n't", "n't"},
      {" 'm", "'m"},
      {" do not", " don't"},
      {" 's", "'s"},
      {" 've", "'ve"},
      {" 're", "'re"},
  }};
  for (const auto& [from, to] : kRules) text = with(text, from, to);
  return text;
}

// The byte of "<0xE2>".
std::optional<char> byte_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const char low = static_cast<char>(c | 0x20);
    if (c >= '0' && c <= '9') {
      value = value * 16 + (c - '0');
    } else if (low >= 'a' && low <= 'f') {
      value = value * 16 + (low - 'a' + 10);
    } else {
      return std::nullopt;
    }
  }
  return static_cast<char>(value);
}

// Takes from `bytes` what is decided: valid characters as they are, a byte that no character can
// contain as U+FFFD. What may still become a character stays, unless this is the end.
std::string take_characters(std::string& bytes, bool end) {
  std::string out;
  size_t i = 0;
  const size_t keep = end ? 0 : incomplete_tail(bytes);
  while (i + keep < bytes.size()) {
    const std::string_view rest = std::string_view(bytes).substr(i);
    const size_t good = find_invalid_utf8(rest).value_or(rest.size());
    if (good > 0) {
      out += rest.substr(0, good);
      i += good;
    } else {
      out += kReplacementCharacter;
      ++i;
    }
  }
  bytes.erase(0, i);
  return out;
}

}  // namespace

// One token's way through the steps, from step `i` on; what comes out at the end is in `out`.
struct StreamRunner {
  DecodeStream& stream;
  const std::vector<DecodeStep>& steps;
  std::string out;

  void feed(size_t i, std::string token) {
    if (i == steps.size()) {
      out += token;
      return;
    }
    DecodeStream::State& state = stream.states_[i];
    if (state.fused) {
      feed_part(i, state, std::move(token));
    } else {
      std::visit([&](const auto& step) { apply(i, state, step, std::move(token)); }, steps[i]);
    }
    state.first = false;
  }

  // The one token that a step before makes of everything, in parts.
  void feed_part(size_t i, DecodeStream::State& state, std::string part) {
    if (const auto* strip = std::get_if<DecodeStrip>(&steps[i])) {
      strip_part(i, state, *strip, part, false);
    } else if (std::holds_alternative<DecodeFuse>(steps[i])) {
      feed(i + 1, std::move(part));
    } else {
      state.held += part;  // this step needs to see the whole of it
    }
  }

  void strip_part(size_t i, DecodeStream::State& state, const DecodeStrip& step,
                  std::string_view part, bool end) {
    state.held += part;
    std::string_view text = state.held;
    while (!state.start_done && !step.content.empty()) {
      if (state.cut >= step.start) {
        state.start_done = true;
      } else if (text.starts_with(step.content)) {
        text.remove_prefix(step.content.size());
        ++state.cut;
      } else {
        if (text.empty()) break;
        state.start_done = true;
      }
    }
    size_t tail = 0;  // what the end of the text would cut
    std::string_view head = text;
    while (tail < step.stop && !step.content.empty() && head.ends_with(step.content)) {
      head.remove_suffix(step.content.size());
      ++tail;
    }
    std::string ready(head);
    state.held = end ? std::string() : std::string(text.substr(head.size()));
    if (!ready.empty()) feed(i + 1, std::move(ready));
  }

  void end(size_t i) {
    if (i == steps.size()) return;
    DecodeStream::State& state = stream.states_[i];
    std::visit([&](const auto& step) { finish(i, state, step); }, steps[i]);
    end(i + 1);
  }

  // --- one overload per step: a whole token comes ---

  void apply(size_t i, DecodeStream::State& state, const DecodeByteLevel&, std::string token) {
    append_bytes_of(state.held, token);
    const size_t tail = incomplete_tail(state.held);
    std::string ready =
        lossy_utf8(std::string_view(state.held).substr(0, state.held.size() - tail));
    state.held.erase(0, state.held.size() - tail);
    if (!ready.empty()) feed(i + 1, std::move(ready));
  }
  void apply(size_t i, DecodeStream::State& state, const DecodeByteFallback&, std::string token) {
    if (const auto byte = byte_token(token)) {
      state.held += *byte;
      std::string ready = take_characters(state.held, false);
      if (!ready.empty()) feed(i + 1, std::move(ready));
      return;
    }
    flush_bytes(i, state);
    feed(i + 1, std::move(token));
  }
  void apply(size_t i, DecodeStream::State&, const DecodeFuse&, std::string token) {
    feed(i + 1, std::move(token));
  }
  void apply(size_t i, DecodeStream::State&, const DecodeStrip& step, std::string token) {
    std::string_view text = token;
    for (size_t n = 0; n < step.start && !step.content.empty() && text.starts_with(step.content);
         ++n) {
      text.remove_prefix(step.content.size());
    }
    for (size_t n = 0; n < step.stop && !step.content.empty() && text.ends_with(step.content);
         ++n) {
      text.remove_suffix(step.content.size());
    }
    feed(i + 1, std::string(text));
  }
  void apply(size_t i, DecodeStream::State&, const DecodeReplace& step, std::string token) {
    feed(i + 1, replaced(token, step.pattern, step.content));
  }
  void apply(size_t i, DecodeStream::State& state, const DecodeMetaspace& step, std::string token) {
    feed(i + 1, with(token, step.replacement, state.first && step.drop_first ? "" : " "));
  }
  void apply(size_t i, DecodeStream::State& state, const DecodeWordPiece& step, std::string token) {
    if (!state.first) {
      if (token.starts_with(step.prefix)) {
        token.erase(0, step.prefix.size());
      } else {
        token.insert(0, 1, ' ');
      }
    }
    feed(i + 1, step.cleanup ? clean_up(std::move(token)) : std::move(token));
  }
  void apply(size_t i, DecodeStream::State& state, const DecodeBpe& step, std::string token) {
    // The last token of all is treated differently, so each waits for the next.
    if (!state.first) feed(i + 1, with(state.held, step.suffix, " "));
    state.held = std::move(token);
  }
  void apply(size_t i, DecodeStream::State& state, const DecodeCtc& step, std::string token) {
    if (!state.first && token == state.held) return;  // the same sound goes on
    state.held = token;
    std::string text = with(token, step.pad_token, "");
    if (step.cleanup) text = with(clean_up(std::move(text)), step.word_delimiter_token, " ");
    if (!text.empty()) feed(i + 1, std::move(text));
  }
  void apply(size_t i, DecodeStream::State& state, const DecodeSpaced&, std::string token) {
    feed(i + 1, state.first ? std::move(token) : " " + token);
  }

  // --- and the end comes ---

  void flush_bytes(size_t i, DecodeStream::State& state) {
    std::string rest = take_characters(state.held, true);
    if (!rest.empty()) feed(i + 1, std::move(rest));
  }
  // A step that was given one token in parts and needed the whole of it.
  template <class Step>
  bool finish_fused(size_t i, DecodeStream::State& state, const Step& step) {
    if (!state.fused) return false;
    std::string whole = std::exchange(state.held, {});
    state.fused = false;
    state.first = true;
    apply(i, state, step, std::move(whole));
    state.first = false;
    return true;
  }
  template <class Step>
  void finish(size_t i, DecodeStream::State& state, const Step& step) {
    finish_fused(i, state, step);
  }
  void finish(size_t, DecodeStream::State&, const DecodeFuse&) {}
  void finish(size_t i, DecodeStream::State& state, const DecodeStrip& step) {
    if (state.fused) strip_part(i, state, step, "", true);
  }
  void finish(size_t i, DecodeStream::State& state, const DecodeByteLevel& step) {
    finish_fused(i, state, step);
    std::string rest = lossy_utf8(std::exchange(state.held, {}));
    if (!rest.empty()) feed(i + 1, std::move(rest));
  }
  void finish(size_t i, DecodeStream::State& state, const DecodeByteFallback& step) {
    finish_fused(i, state, step);
    flush_bytes(i, state);
  }
  void finish(size_t i, DecodeStream::State& state, const DecodeBpe& step) {
    finish_fused(i, state, step);
    if (!state.first) feed(i + 1, with(std::exchange(state.held, {}), step.suffix, ""));
  }
};

std::string Decoder::piece(std::string_view token) const {
  std::string out(token);
  for (const DecodeStep& step : steps_) {
    if (std::holds_alternative<DecodeByteLevel>(step)) {
      std::string bytes;
      append_bytes_of(bytes, out);
      return bytes;
    }
    if (std::holds_alternative<DecodeByteFallback>(step)) {
      if (const auto byte = byte_token(out)) return std::string(1, *byte);
    } else if (std::holds_alternative<DecodeFuse>(step)) {
      return out;
    } else if (const auto* replace = std::get_if<DecodeReplace>(&step)) {
      out = replaced(out, replace->pattern, replace->content);
    } else if (const auto* metaspace = std::get_if<DecodeMetaspace>(&step)) {
      out = with(out, metaspace->replacement, " ");
    } else if (const auto* bpe = std::get_if<DecodeBpe>(&step)) {
      out = with(out, bpe->suffix, " ");
    } else if (const auto* word = std::get_if<DecodeWordPiece>(&step)) {
      out = out.starts_with(word->prefix) ? out.substr(word->prefix.size()) : " " + out;
    } else if (std::holds_alternative<DecodeSpaced>(step)) {
      out.insert(0, 1, ' ');
    }
  }
  return out;
}

DecodeStream::DecodeStream(const Decoder& decoder) : states_(decoder.steps().size()) {
  bool fused = false;
  for (size_t i = 0; i < states_.size(); ++i) {
    const DecodeStep& step = decoder.steps()[i];
    states_[i].fused = fused;
    if (std::holds_alternative<DecodeFuse>(step) || std::holds_alternative<DecodeByteLevel>(step)) {
      fused = true;
    }
  }
}

std::string DecodeStream::push(const Decoder& decoder, std::string_view token) {
  StreamRunner runner{*this, decoder.steps(), {}};
  runner.feed(0, std::string(token));
  return std::move(runner.out);
}

std::string DecodeStream::finish(const Decoder& decoder) {
  StreamRunner runner{*this, decoder.steps(), {}};
  runner.end(0);
  return std::move(runner.out);
}

}  // namespace nibble::text
