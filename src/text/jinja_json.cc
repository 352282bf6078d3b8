// The filter tojson, as transformers defines it for chat templates: Python's json.dumps.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja_filters.h"
#include "text/jinja_unicode.h"

namespace nibble::text::jinja {
namespace {

class Writer {
 public:
  Writer(Budget& budget, const JsonStyle& style) : budget_(budget), style_(style) {}

  void write(const Value& v) {
    const Level level(budget_);
    budget_.step();
    switch (v.kind()) {
      case Value::Kind::kNone:
        return add("null");
      case Value::Kind::kBool:
        return add(v.boolean() ? "true" : "false");
      case Value::Kind::kInt:
        return add(std::to_string(v.integer()));
      case Value::Kind::kFloat:
        return add(number(v.real()));
      case Value::Kind::kString:
        return string(v.bytes());
      case Value::Kind::kDict:
        return object(v.dict());
      case Value::Kind::kSequence:
        if (v.is_list() || v.is_tuple()) return array(v.items());
        break;
      default:
        break;
    }
    raise(fmt::format("Object of type {} is not JSON serializable", type_name(v)));
  }

  std::string take() { return std::move(out_); }

 private:
  void add(std::string_view text) {
    out_ += text;
    if (out_.size() > budget_.limits().one_value) budget_.make(out_.size());
  }

  static std::string number(double v) {
    if (std::isnan(v)) return "NaN";
    if (std::isinf(v)) return v < 0 ? "-Infinity" : "Infinity";
    return float_repr(v);
  }

  void escape(uint32_t unit) { out_ += fmt::format("\\u{:04x}", unit); }

  void string(std::string_view s) {
    budget_.walk(s.size());
    out_ += '"';
    for (size_t at = 0; at < s.size();) {
      const size_t begin = at;
      const char32_t c = next_code_point(s, at);
      switch (c) {
        case '"':
          out_ += "\\\"";
          continue;
        case '\\':
          out_ += "\\\\";
          continue;
        case '\n':
          out_ += "\\n";
          continue;
        case '\r':
          out_ += "\\r";
          continue;
        case '\t':
          out_ += "\\t";
          continue;
        case '\f':
          out_ += "\\f";
          continue;
        case '\b':
          out_ += "\\b";
          continue;
        default:
          break;
      }
      if (c < 0x20 || (style_.ascii && c > 0x7E && c < 0x10000)) {
        escape(c);
      } else if (style_.ascii && c >= 0x10000) {
        escape(0xD800 + ((c - 0x10000) >> 10));
        escape(0xDC00 + ((c - 0x10000) & 0x3FF));
      } else {
        out_.append(s.substr(begin, at - begin));
      }
    }
    add("\"");
  }

  void line() {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < depth_; ++i) add(*style_.indent);
  }

  void array(const std::vector<Value>& items) {
    if (items.empty()) return add("[]");
    add("[");
    ++depth_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) add(style_.item_separator);
      line();
      write(items[i]);
    }
    --depth_;
    line();
    add("]");
  }

  std::string key_text(const Value& key) const {
    switch (key.kind()) {
      case Value::Kind::kString:
        return key.bytes();
      case Value::Kind::kNone:
        return "null";
      case Value::Kind::kBool:
        return key.boolean() ? "true" : "false";
      case Value::Kind::kInt:
        return std::to_string(key.integer());
      case Value::Kind::kFloat:
        return number(key.real());
      default:
        break;
    }
    raise(fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key)));
  }

  void object(const Dict& dict) {
    if (dict.members.empty()) return add("{}");
    std::vector<const std::pair<Value, Value>*> order;
    for (const auto& member : dict.members) order.push_back(&member);
    if (style_.sort_keys) {
      std::stable_sort(order.begin(), order.end(), [&](const auto* a, const auto* b) {
        return less(budget_, a->first, b->first);
      });
    }
    add("{");
    ++depth_;
    for (size_t i = 0; i < order.size(); ++i) {
      if (i > 0) add(style_.item_separator);
      line();
      string(key_text(order[i]->first));
      add(style_.key_separator);
      write(order[i]->second);
    }
    --depth_;
    line();
    add("}");
  }

  Budget& budget_;
  const JsonStyle& style_;
  std::string out_;
  int depth_ = 0;
};

}  // namespace

std::string to_json(Budget& budget, const Value& v, const JsonStyle& style) {
  Writer writer(budget, style);
  writer.write(v);
  return writer.take();
}

Value filter_tojson(Interpreter& in, const Value& value, const Arguments& args) {
  JsonStyle style;
  style.ascii = args.truth(in.budget(), 0, false);
  style.sort_keys = args.truth(in.budget(), 3, false);
  if (const Value* indent = args.get(1); indent != nullptr && !indent->is_none()) {
    style.item_separator.assign(1, ',');
    if (indent->is_string()) {
      style.indent = indent->bytes();
    } else {
      const int64_t width = args.integer(1, 0);
      in.budget().make(width > 0 ? static_cast<size_t>(width) : 0);
      style.indent = std::string(width > 0 ? static_cast<size_t>(width) : 0, ' ');
    }
  }
  if (const Value* separators = args.get(2); separators != nullptr && !separators->is_none()) {
    const std::vector<Value> both = in.items_of(*separators);
    if (both.size() != 2 || !both[0].is_string() || !both[1].is_string()) {
      raise("the separators of tojson must be two strings");
    }
    style.item_separator = both[0].bytes();
    style.key_separator = both[1].bytes();
  }
  return in.string(to_json(in.budget(), value, style));
}

}  // namespace nibble::text::jinja
