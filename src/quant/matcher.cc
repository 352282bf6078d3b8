#define PCRE2_CODE_UNIT_WIDTH 8
#include "quant/matcher.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <set>
#include <unordered_map>

namespace nibble::quant {
namespace {

// A module's name has some 60 characters; an honest rule needs a few hundred steps on it. The limit
// keeps a hostile rule over twenty thousand modules within seconds.
constexpr uint32_t kMatchSteps = 20000;
constexpr size_t kLongestPattern = 4096;
constexpr size_t kMostNoted = 20000;  // expressions times names

constexpr std::array<std::string_view, 3> kWrappers = {"model.", "language_model.", "text_model."};
constexpr std::array<std::string_view, 4> kSuffixes = {".linear", ".base_layer", ".weight", "."};

struct Fused {
  std::string_view whole;
  std::array<std::string_view, 3> parts;  // "" where there are two
};
constexpr Fused kFused[] = {
    {"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
    {"gate_up_proj", {"gate_proj", "up_proj", ""}},
};

// Without wrappers in front and behind; `rooted` tells whether a wrapper stood in front.
std::string_view strip(std::string_view name, bool* rooted = nullptr) {
  for (bool again = true; again;) {
    again = false;
    for (std::string_view wrapper : kWrappers) {
      if (name.size() <= wrapper.size() || name.substr(0, wrapper.size()) != wrapper) continue;
      name.remove_prefix(wrapper.size());
      if (rooted != nullptr) *rooted = true;
      again = true;
    }
  }
  for (std::string_view suffix : kSuffixes) {
    if (name.size() > suffix.size() && name.substr(name.size() - suffix.size()) == suffix) {
      name.remove_suffix(suffix.size());
    }
  }
  return name;
}

// * is any run of characters, ? is one. Linear in pattern times name: on a mismatch only the last
// star is extended.
bool glob(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0, star = pattern.npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p, ++n;
    } else if (star != pattern.npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == pattern.npos;
}

// The name itself, and the parts of a fused one.
std::vector<std::string> spellings(std::string_view name) {
  std::vector<std::string> out = {std::string(name)};
  const size_t dot = name.rfind('.');
  const size_t last = dot == name.npos ? 0 : dot + 1;
  for (const Fused& fused : kFused) {
    if (name.substr(last) != fused.whole) continue;
    for (std::string_view part : fused.parts) {
      if (!part.empty()) out.push_back(fmt::format("{}{}", name.substr(0, last), part));
    }
  }
  return out;
}

// A module's name as regular expressions may have been written for it: as it is stored, and for the
// text part of a larger model also as its writers and readers place it.
std::vector<std::string> placements(std::string_view module) {
  std::vector<std::string> out = {std::string(module)};
  constexpr std::string_view kPlaces[] = {"model.language_model.", "language_model.model.",
                                          "language_model."};
  for (std::string_view place : kPlaces) {
    if (!module.starts_with(place)) continue;
    const std::string_view rest = module.substr(place.size());
    for (std::string_view other : kPlaces) {
      if (other != place) out.push_back(fmt::format("{}{}", other, rest));
    }
    out.push_back(fmt::format("model.{}", rest));  // the text model saved alone
    out.emplace_back(rest);                        // its head, which stands beside it
    break;
  }
  return out;
}

std::vector<size_t> segment_starts(std::string_view name) {
  std::vector<size_t> starts = {0};
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '.') starts.push_back(i + 1);
  }
  return starts;
}

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct ContextDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

struct Pattern {
  size_t rule;
  bool rooted;
  std::string glob;                               // empty for a regular expression
  std::unique_ptr<pcre2_code, CodeDeleter> code;  // null for a glob
};

// A module's name as rules of each kind look at it.
struct Subject {
  explicit Subject(std::string_view whole)
      : module(whole), name(strip(whole)), starts(segment_starts(name)) {}
  std::string_view module, name;
  std::vector<size_t> starts;
  // Made for the first regular expression: most lists have none.
  mutable std::vector<std::string> placed;
  mutable std::unique_ptr<pcre2_match_data, MatchDeleter> match_data;
};
enum class Outcome : uint8_t { kNone, kHit, kTooManySteps };

Result<std::unique_ptr<pcre2_code, CodeDeleter>> compile_regex(std::string_view text,
                                                               std::string_view where) {
  int code = 0;
  PCRE2_SIZE at = 0;
  std::string reason = fmt::format("longer than {} characters", kLongestPattern);
  if (text.size() <= kLongestPattern) {
    pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                         PCRE2_ANCHORED, &code, &at, nullptr);
    if (compiled != nullptr) return std::unique_ptr<pcre2_code, CodeDeleter>(compiled);
    PCRE2_UCHAR buffer[120] = {};
    pcre2_get_error_message(code, buffer, sizeof buffer);
    reason = fmt::format("{} at character {}", reinterpret_cast<const char*>(buffer), at);
  }
  return fail(ErrorCode::kCorrupt, fmt::format("{}: \"{}\" is not a regular expression: {}", where,
                                               text.substr(0, 80), reason));
}

}  // namespace

struct NameMatcher::Compiled {
  // Rules without wildcards, by their stripped text: one look-up per dotted part of a module's name
  // keeps lists of thousands of rules cheap.
  std::unordered_map<std::string, size_t> anywhere;
  std::unordered_map<std::string, size_t> from_root;
  std::vector<Pattern> patterns;
  mutable std::vector<std::atomic<bool>> hit;
  std::unique_ptr<pcre2_match_context, ContextDeleter> context;

  void add_literal(size_t rule, std::string_view text) {
    bool rooted = false;
    const std::string_view name = strip(text, &rooted);
    auto& table = rooted ? from_root : anywhere;
    for (std::string& spelling : spellings(name)) table.try_emplace(std::move(spelling), rule);
  }

  template <class Visit>
  void each_literal(std::string_view name, Visit visit) const {
    auto look = [&visit](const auto& table, std::string_view part) {
      const auto it = table.find(std::string(part));
      if (it != table.end()) visit(it->second);
    };
    const std::vector<size_t> starts = segment_starts(name);
    for (size_t i = 0; i < starts.size(); ++i) {
      for (size_t j = i; j < starts.size(); ++j) {
        const size_t end = j + 1 < starts.size() ? starts[j + 1] - 1 : name.size();
        const std::string_view part = name.substr(starts[i], end - starts[i]);
        look(anywhere, part);
        if (i == 0) look(from_root, part);
      }
    }
  }
  std::optional<size_t> first_literal(std::string_view name) const {
    std::optional<size_t> best;
    each_literal(name, [&best](size_t rule) {
      if (!best || rule < *best) best = rule;
    });
    return best;
  }

  Result<Outcome> run(const Pattern& pattern, const Subject& subject,
                      std::string_view where) const {
    if (!pattern.code) {
      const size_t count = pattern.rooted ? 1 : subject.starts.size();
      for (size_t i = 0; i < count; ++i) {
        if (glob(pattern.glob, subject.name.substr(subject.starts[i]))) return Outcome::kHit;
      }
      return Outcome::kNone;
    }
    if (!subject.match_data) subject.match_data.reset(pcre2_match_data_create(1, nullptr));
    if (!subject.match_data) {
      return fail(ErrorCode::kOutOfMemory, fmt::format("{}: no memory for its rules", where));
    }
    if (subject.placed.empty()) subject.placed = placements(subject.module);
    Outcome out = Outcome::kNone;
    for (const std::string& place : subject.placed) {
      const int rc = pcre2_match(pattern.code.get(), reinterpret_cast<PCRE2_SPTR>(place.data()),
                                 place.size(), 0, 0, subject.match_data.get(), context.get());
      if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) return Outcome::kTooManySteps;
      if (rc >= 0) out = Outcome::kHit;
    }
    return out;
  }
};

Result<NameMatcher> NameMatcher::compile(std::vector<std::string> rules, std::string where,
                                         Says says) {
  auto compiled = std::make_shared<Compiled>();
  compiled->hit = std::vector<std::atomic<bool>>(rules.size());
  compiled->context.reset(pcre2_match_context_create(nullptr));
  if (!compiled->context) {
    return fail(ErrorCode::kOutOfMemory, fmt::format("{}: no memory for its rules", where));
  }
  pcre2_set_match_limit(compiled->context.get(), kMatchSteps);
  pcre2_set_depth_limit(compiled->context.get(), kMatchSteps);
  for (size_t i = 0; i < rules.size(); ++i) {
    const std::string& rule = rules[i];
    if (rule.rfind("re:", 0) == 0) {
      NIBBLE_ASSIGN(auto code, compile_regex(std::string_view(rule).substr(3), where));
      compiled->patterns.push_back({i, false, {}, std::move(code)});
    } else if (rule.find_first_of("*?") != rule.npos) {
      bool rooted = false;
      for (std::string& spelling : spellings(strip(rule, &rooted))) {
        compiled->patterns.push_back({i, rooted, std::move(spelling), nullptr});
      }
    } else if (!rule.empty()) {
      compiled->add_literal(i, rule);
    }
  }
  NameMatcher out;
  out.says_.assign(rules.size(), says);
  out.only_these_ = says == Says::kOnlyThese;
  out.rules_ = std::move(rules);
  out.where_ = std::move(where);
  out.compiled_ = std::move(compiled);
  return out;
}

Result<std::optional<size_t>> NameMatcher::match(std::string_view module) const {
  if (!compiled_) return std::optional<size_t>();
  const Subject subject(module);
  std::optional<size_t> best = compiled_->first_literal(subject.name);
  for (const Pattern& pattern : compiled_->patterns) {
    if (best && *best < pattern.rule) break;
    NIBBLE_ASSIGN(const Outcome outcome, compiled_->run(pattern, subject, where_));
    if (outcome == Outcome::kTooManySteps) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: the rule \"{}\" takes more than {} steps on the name \"{}\"; "
                              "write it without nested repeats",
                              where_, rules_[pattern.rule].substr(0, 80), kMatchSteps,
                              module.substr(0, 120)));
    }
    if (outcome == Outcome::kNone) continue;
    best = pattern.rule;
    break;
  }
  if (best) compiled_->hit[*best] = true;
  return best;
}

void NameMatcher::note_all(const std::vector<std::string_view>& modules) const {
  if (!compiled_) return;
  std::vector<const Pattern*> idle;
  size_t expressions = 0;
  for (const Pattern& pattern : compiled_->patterns) {
    if (compiled_->hit[pattern.rule]) continue;
    idle.push_back(&pattern);
    if (pattern.code) ++expressions;
  }
  const bool too_many = expressions * modules.size() > kMostNoted;
  for (std::string_view module : modules) {
    const Subject subject(module);
    compiled_->each_literal(subject.name, [&](size_t rule) { compiled_->hit[rule] = true; });
    for (const Pattern* pattern : idle) {
      if (compiled_->hit[pattern->rule] || (pattern->code && too_many)) continue;
      const Result<Outcome> outcome = compiled_->run(*pattern, subject, where_);
      if (outcome && *outcome == Outcome::kHit) compiled_->hit[pattern->rule] = true;
    }
  }
}

std::vector<std::string> NameMatcher::rules_that_matched_nothing() const {
  std::vector<std::string> out;
  std::vector<size_t> idle;
  std::set<std::string_view> told;  // a list may name a module twice
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (compiled_->hit[i]) {
      told.insert(rules_[i]);
    } else if (!rules_[i].empty()) {
      idle.push_back(i);
    }
  }
  for (size_t i : idle) {
    if (told.insert(rules_[i]).second) out.push_back(rules_[i]);
  }
  return out;
}

std::string fused_name(std::string_view module) {
  const size_t dot = module.rfind('.');
  const size_t last = dot == module.npos ? 0 : dot + 1;
  for (const Fused& fused : kFused) {
    for (std::string_view part : fused.parts) {
      if (!part.empty() && module.substr(last) == part) {
        return fmt::format("{}{}", module.substr(0, last), fused.whole);
      }
    }
  }
  return {};
}

}  // namespace nibble::quant
