// What a config says of single layers by name: rules, each with the value of those it names.
//
//   GPTQ's dynamic, auto-round's extra_config, Quark's layer_quant_config
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quant/matcher.h"

namespace nibble::quant {

template <class T>
class LayerRules {
 public:
  // The first rule that matches a layer counts.
  void add(std::string rule, T value, Says says) {
    rules_.push_back(std::move(rule));
    values_.push_back(std::move(value));
    says_.push_back(says);
  }

  // After the last rule; `where` names them in messages. Error: a bad regular expression.
  Result<void> compile(std::string where) {
    NIBBLE_ASSIGN(matcher_, NameMatcher::compile(std::move(rules_), std::move(where)));
    for (size_t i = 0; i < says_.size(); ++i) matcher_.set_says(i, says_[i]);
    return {};
  }

  // What is said of a module; null: no rule names it.
  Result<const T*> find(std::string_view module) const {
    NIBBLE_ASSIGN(const std::optional<size_t> rule, matcher_.match(module));
    return rule ? &values_[*rule] : static_cast<const T*>(nullptr);
  }

  const NameMatcher& matcher() const { return matcher_; }

 private:
  std::vector<std::string> rules_;
  std::vector<T> values_;
  std::vector<Says> says_;
  NameMatcher matcher_;
};

}  // namespace nibble::quant
