// One matcher for every dialect of "these modules": ignore lists, target lists, per-layer rules.
//
//   "lm_head"                         the module, or a whole dotted suffix of it
//   "model.layers.0.self_attn"        the module, or a whole dotted part of its path
//   "model.layers.*.mlp.gate"         a glob (*, ?) over the whole path or a whole suffix
//   "re:.*lm_head"                    a regular expression, matched from the start (Python's match)
//   "model.language_model.layers..."  wrapper prefixes are tried with and without
//   "qkv_proj" / "q_proj"             a fused name covers its parts
//
// A rule is compared whole segment by whole segment: "gate" never catches "gate_proj".
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/result.h"

namespace nibble::quant {

class NameMatcher {
 public:
  NameMatcher() = default;
  // `where` names the list in messages. A bad regular expression is an error naming the rule.
  static Result<NameMatcher> compile(std::vector<std::string> rules, std::string where);

  // The first rule that matches the module, as an index; nothing when none does. Remembers hits.
  std::optional<size_t> match(std::string_view module) const;
  bool matches(std::string_view module) const { return match(module).has_value(); }

  bool empty() const { return rules_.empty(); }
  const std::vector<std::string>& rules() const { return rules_; }
  const std::string& where() const { return where_; }
  std::vector<std::string> rules_that_matched_nothing() const;

 private:
  struct Rule;
  std::vector<std::string> rules_;
  std::string where_;
  std::vector<std::shared_ptr<Rule>> compiled_;
};

}  // namespace nibble::quant
