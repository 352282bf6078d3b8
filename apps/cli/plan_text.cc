#include "cli/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "cli/report_json.h"
#include "cli/table.h"

namespace nibble::cli {
namespace {

// A name with its whole-number segments taken out: "a.0.b.12" -> "a.\1.b.\1" and {0, 12}. The byte
// \1 cannot be mistaken for a part of a name.
struct NumberedName {
  std::string pattern;
  std::vector<int64_t> numbers;
};

constexpr char kHole = '\1';

NumberedName take_numbers(std::string_view name) {
  NumberedName taken;
  while (true) {
    const size_t dot = std::min(name.find('.'), name.size());
    const std::string_view segment = name.substr(0, dot);
    int64_t number = 0;
    const auto [stop, error] =
        std::from_chars(segment.data(), segment.data() + segment.size(), number);
    const bool plain = !segment.empty() && error == std::errc() &&
                       stop == segment.data() + segment.size() &&
                       std::to_string(number) == segment;  // "007" stays what it is
    if (plain) {
      taken.numbers.push_back(number);
      taken.pattern += kHole;
    } else {
      taken.pattern += segment;
    }
    if (dot == name.size()) return taken;
    taken.pattern += '.';
    name.remove_prefix(dot + 1);
  }
}

std::string fill(std::string_view pattern, const std::vector<std::string>& holes) {
  std::string name;
  size_t next = 0;
  for (const char c : pattern) {
    if (c == kHole) {
      name += holes[next++];
    } else {
      name += c;
    }
  }
  return name;
}

// All that is said about a layer besides its name.
std::string signature(const LayerPlan& layer) {
  std::string text = fmt::format("{}|{}|{}|{}|{}|{}", layer.scheme, layer.format, layer.activation,
                                 layer.packing, layer.n, layer.k);
  for (const KernelRange& range : layer.kernels) {
    text += fmt::format("|{}-{} {}", range.m_min, range.m_max, range.kernel);
  }
  for (const RefusedKernel& each : layer.refused) {
    text += fmt::format("|{}: {}", each.kernel, each.why);
  }
  return text;
}

using Rows = std::vector<std::vector<int64_t>>;  // each: the numbers of one name

// Names for `rows`, which have the same pattern: the last hole's numbers are joined where all other
// numbers agree, then the hole before it, and so on. Returns holes and how many rows each stands
// for.
struct Joined {
  std::vector<std::string> holes;
  std::vector<size_t> rows;
};

std::vector<Joined> join(const Rows& rows) {
  std::vector<Joined> groups;
  for (size_t i = 0; i < rows.size(); ++i) {
    Joined one{{}, {i}};
    for (const int64_t number : rows[i]) one.holes.push_back(std::to_string(number));
    groups.push_back(one);
  }
  const size_t holes = rows.front().size();
  for (size_t hole = holes; hole-- > 0;) {
    // The other holes' texts -> the groups that agree in them, in order of appearance.
    std::map<std::vector<std::string>, size_t> places;
    std::vector<Joined> merged;
    std::vector<std::vector<int64_t>> numbers;
    for (const Joined& group : groups) {
      std::vector<std::string> others = group.holes;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(hole));
      const auto [place, fresh] = places.emplace(others, merged.size());
      if (fresh) {
        merged.push_back({group.holes, {}});
        numbers.emplace_back();
      }
      Joined& target = merged[place->second];
      target.rows.insert(target.rows.end(), group.rows.begin(), group.rows.end());
      numbers[place->second].push_back(rows[group.rows.front()][hole]);
    }
    for (size_t i = 0; i < merged.size(); ++i) {
      const std::string ranges = number_ranges(numbers[i]);
      merged[i].holes[hole] =
          ranges.find_first_of("-,") == std::string::npos ? ranges : fmt::format("{{{}}}", ranges);
    }
    groups = std::move(merged);
  }
  return groups;
}

}  // namespace

std::string number_ranges(std::vector<int64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(numbers[i]);
    if (last > i) text += fmt::format("-{}", numbers[last]);
    i = last + 1;
  }
  return text;
}

std::vector<LayerGroup> group_layers(const std::vector<LayerPlan>& layers) {
  // Pattern and signature -> the layers, in order of appearance.
  std::map<std::pair<std::string, std::string>, size_t> places;
  std::vector<std::pair<std::string, std::vector<size_t>>> alike;
  std::vector<std::vector<int64_t>> numbers;
  for (size_t i = 0; i < layers.size(); ++i) {
    NumberedName name = take_numbers(layers[i].name);
    const auto [place, fresh] =
        places.emplace(std::make_pair(name.pattern, signature(layers[i])), alike.size());
    if (fresh) alike.push_back({name.pattern, {}});
    alike[place->second].second.push_back(i);
    numbers.push_back(std::move(name.numbers));
  }
  std::vector<LayerGroup> groups;
  for (const auto& [pattern, members] : alike) {
    Rows rows;
    for (const size_t member : members) rows.push_back(numbers[member]);
    for (const Joined& joined : join(rows)) {
      LayerGroup group{fill(pattern, joined.holes), &layers[members[joined.rows.front()]]};
      for (const size_t row : joined.rows) {
        const LayerPlan& layer = layers[members[row]];
        group.count += 1;
        group.bytes_disk += layer.bytes_disk;
        group.bytes_memory += layer.bytes_memory;
      }
      groups.push_back(std::move(group));
    }
  }
  return groups;
}

namespace {

std::vector<LayerGroup> each_layer(const std::vector<LayerPlan>& layers) {
  std::vector<LayerGroup> groups;
  for (const LayerPlan& layer : layers) {
    groups.push_back({layer.name, &layer, 1, layer.bytes_disk, layer.bytes_memory});
  }
  return groups;
}

std::string header_text(const Plan& plan) {
  std::string text;
  const auto line = [&](const char* what, const std::string& value) {
    if (!value.empty()) text += fmt::format("{:<13} {}\n", what, printable(value));
  };
  line("model", plan.path);
  line("architecture", plan.architecture);
  line("scheme", plan.scheme);
  line("claims", plan.claims);
  line("proves", plan.proves);
  line("size", fmt::format("{} parameters, {} on disk", human_count(plan.parameters),
                           human_bytes(plan.file_bytes)));
  line("hardware", plan.hardware);
  return text;
}

// The kernels of a layer and the packing they read, as one thing that many layers share.
std::string kernels_key(const LayerPlan& layer) {
  std::string key = layer.packing + "|";
  for (const KernelRange& range : layer.kernels) {
    key += fmt::format("{}-{} {}|", range.m_min, range.m_max, range.kernel);
  }
  return key;
}

// Layers name their kernels by number; the list of numbers follows the table.
std::string layers_text(const std::vector<LayerGroup>& groups) {
  Table table({{"layer"},
               {"n x k", Align::kRight},
               {"format"},
               {"activation"},
               {"kernel"},
               {"disk", Align::kRight},
               {"memory", Align::kRight}});
  std::map<std::string, size_t> numbers;
  std::string kernels;
  for (const LayerGroup& group : groups) {
    const LayerPlan& layer = *group.layer;
    const auto [place, fresh] = numbers.emplace(kernels_key(layer), numbers.size() + 1);
    if (fresh) {
      kernels += fmt::format("  [{}] packing {}\n", place->second,
                             layer.packing.empty() ? "as stored" : layer.packing);
      for (const KernelRange& range : layer.kernels) {
        kernels += fmt::format("      tokens {:<7} {}\n", range_text(range), range.kernel);
      }
      if (layer.kernels.empty()) kernels += "      no kernel\n";
    }
    table.add({printable(group.name), fmt::format("{} x {}", layer.n, layer.k), layer.format,
               layer.activation, fmt::format("[{}]", place->second), human_bytes(group.bytes_disk),
               human_bytes(group.bytes_memory)});
  }
  return "\n" + table.text() + "\nkernels (by the number of tokens that run at once)\n" + kernels;
}

struct Refusal {
  std::vector<std::string> kernels;
  std::string why;
  int64_t layers;
  std::string names;  // of the layers, a line each
};

// One for each kernel and reason, in order of appearance.
std::vector<Refusal> collect_refusals(const std::vector<LayerGroup>& groups) {
  std::map<std::pair<std::string, std::string>, size_t> places;
  std::vector<Refusal> refusals;
  for (const LayerGroup& group : groups) {
    for (const RefusedKernel& each : group.layer->refused) {
      const auto [place, fresh] =
          places.emplace(std::make_pair(each.kernel, each.why), refusals.size());
      if (fresh) refusals.push_back({{each.kernel}, each.why, 0, ""});
      refusals[place->second].layers += group.count;
      refusals[place->second].names += "      " + printable(group.name) + "\n";
    }
  }
  return refusals;
}

// Kernels that the same layers refuse for the same reason, as one.
std::vector<Refusal> join_refusals(const std::vector<Refusal>& refusals) {
  std::map<std::pair<std::string, std::string>, size_t> places;
  std::vector<Refusal> joined;
  for (const Refusal& each : refusals) {
    const auto [place, fresh] = places.emplace(std::make_pair(each.why, each.names), joined.size());
    if (fresh) {
      joined.push_back(each);
    } else {
      joined[place->second].kernels.push_back(each.kernels.front());
    }
  }
  return joined;
}

std::string refusals_text(const std::vector<LayerGroup>& groups, bool verbose) {
  const std::vector<Refusal> each_one = collect_refusals(groups);
  if (each_one.empty()) return "";
  std::string text = "\nkernels that were refused\n";
  for (const Refusal& each : verbose ? each_one : join_refusals(each_one)) {
    std::string kernels = each.kernels.front();
    const size_t more = each.kernels.size() - 1;
    if (more > 0) kernels += fmt::format(" and {} more", more);
    text += fmt::format("  {}: {} ({} {})\n", kernels, printable(each.why), each.layers,
                        each.layers == 1 ? "layer" : "layers");
    if (verbose) text += each.names;
  }
  return text;
}

std::string scale_text(const std::optional<double>& scale, const std::string& source) {
  const std::string from = printable(source);
  if (source == "default" || source == "each token") return from;
  return fmt::format("{} from {}", scale ? fmt::format("{:.6g}", *scale) : "one a head", from);
}

// Layers whose scales are not stored share a line; the others have one each.
std::string kv_text(const Plan& plan) {
  std::map<std::string, size_t> places;
  std::vector<std::pair<std::string, int64_t>> kinds;
  for (const KvPlan& kv : plan.kv) {
    std::string kind = kv.type;
    const bool floats = kv.type == "f32" || kv.type == "bf16" || kv.type == "f16";
    if (!floats || kv.k_source != "default" || kv.v_source != "default") {
      kind += fmt::format(", scale of k: {}, of v: {}{}", scale_text(kv.k, kv.k_source),
                          scale_text(kv.v, kv.v_source), floats ? " (not used)" : "");
    }
    const auto [place, fresh] = places.emplace(kind, kinds.size());
    if (fresh) kinds.emplace_back(kind, 0);
    ++kinds[place->second].second;
  }
  std::string text;
  for (const auto& [kind, count] : kinds) {
    text += fmt::format("  {} {}: {}\n", count, count == 1 ? "layer" : "layers", kind);
  }
  return text.empty() ? "" : "\nKV cache\n" + text;
}

std::string memory_text(const MemoryPlan& memory) {
  std::string text = "\nmemory\n";
  const auto line = [&](const char* what, const std::string& value) {
    text += fmt::format("  {:<28} {:>10}\n", what, value);
  };
  line("weights", human_bytes(memory.weights));
  line("embeddings, norms, scratch", human_bytes(memory.other));
  line(fmt::format("KV cache, {} tokens", memory.ctx).c_str(), human_bytes(memory.kv_at_ctx));
  line("peak while loading", human_bytes(memory.peak_load));
  line("available here", human_bytes(memory.available));
  text += fmt::format("  context: the model's own is {}, the longest that fits {}\n",
                      memory.model_ctx, memory.longest_ctx);
  return text;
}

std::string unused_text(const Plan& plan, bool verbose) {
  std::string text =
      fmt::format("\ntensors: {} in the files, {} used\n", plan.tensors_total, plan.tensors_used);
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const UnusedTensor& each : plan.unused) by_reason[each.reason].push_back(each.name);
  for (const auto& [reason, names] : by_reason) {
    text += fmt::format("  {} unused: {}", names.size(), printable(reason));
    const size_t shown = verbose ? names.size() : std::min<size_t>(names.size(), 1);
    for (size_t i = 0; i < shown; ++i) text += "\n    " + printable(names[i]);
    text += shown < names.size() ? fmt::format(" and {} more\n", names.size() - shown) : "\n";
  }
  return text;
}

std::string list_text(const char* title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string text = fmt::format("\n{}\n", title);
  for (const std::string& line : lines) text += "  " + printable(line) + "\n";
  return text;
}

}  // namespace

std::string plan_text(const Plan& plan, bool verbose) {
  const std::vector<LayerGroup> groups =
      verbose ? each_layer(plan.layers) : group_layers(plan.layers);
  std::string text = header_text(plan);
  if (!groups.empty()) text += layers_text(groups);
  text += refusals_text(groups, verbose);
  text += kv_text(plan);
  text += unused_text(plan, verbose);
  text += memory_text(plan.memory);
  if (plan.legal_tp.size() > 1) {
    text += fmt::format("\nranks the layers can be cut for: {}\n", fmt::join(plan.legal_tp, ", "));
  }
  text += list_text("notes", plan.notes);
  text += list_text("warnings", plan.warnings);
  text += list_text("problems", plan.problems);
  return text;
}

}  // namespace nibble::cli
