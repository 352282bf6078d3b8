// One matcher for every dialect of "these modules": ignore lists, target lists, per-layer rules.
//
//   "lm_head"                       the module, or a whole dotted part of its path
//   "mlp.gate"                      "gate" is a whole segment: it never catches "gate_proj"
//   "model.layers.0.self_attn"      a rule that begins at the root, and everything below it
//   "model.layers.*.mlp.gate"       a glob (* also crosses dots, ? is one character) over the whole
//                                   path or a whole dotted suffix of it
//   "re:.*lm_head"                  a regular expression, matched from the start (Python's match)
//                                   against the module's name as it is stored (the text part of a
//                                   larger model also as "model.language_model.", ...)
//
// Two spellings of one name are taken for the same: with and without the wrappers "model.",
// "language_model.", "text_model." in front and ".linear", ".base_layer", ".weight" behind; and a
// fused name ("qkv_proj", "gate_up_proj") covers its parts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/result.h"

namespace nibble::quant {

// What a rule says of the modules that it names.
enum class Says : uint8_t {
  kNothing,    // how they are quantized, or what becomes of their inputs
  kLeftAlone,  // they are not quantized
  kQuantized,  // they are
  kOnlyThese,  // they are, and those that no rule of the list names are not
};

class NameMatcher {
 public:
  NameMatcher() = default;
  // `where` names the list in messages. A bad regular expression is an error naming the rule.
  static Result<NameMatcher> compile(std::vector<std::string> rules, std::string where,
                                     Says says = Says::kNothing);

  // The first rule (in the list's order) that matches the module, as an index; nothing when none
  // does. Remembers hits. The error: a regular expression that takes too many steps on this name.
  Result<std::optional<size_t>> match(std::string_view module) const;

  // One rule may say otherwise than its list.
  Says says(size_t rule) const { return says_[rule]; }
  void set_says(size_t rule, Says says) { says_[rule] = says; }
  bool only_these() const { return only_these_; }

  bool empty() const { return rules_.empty(); }
  const std::vector<std::string>& rules() const { return rules_; }
  const std::string& where() const { return where_; }
  // Remembers hits of every rule that matches one of the modules, also of those that an earlier one
  // hides. Regular expressions are left out where there are too many for as many names.
  void note_all(const std::vector<std::string_view>& modules) const;
  // Each of them once.
  std::vector<std::string> rules_that_matched_nothing() const;

 private:
  struct Compiled;
  std::vector<std::string> rules_;
  std::vector<Says> says_;  // of each rule
  bool only_these_ = false;
  std::string where_;
  std::shared_ptr<const Compiled> compiled_;
};

// The name of the layer that a runtime fuses a module into ("model.layers.0.self_attn.qkv_proj" for
// its q_proj); empty when it is no part of one.
std::string fused_name(std::string_view module);

}  // namespace nibble::quant
