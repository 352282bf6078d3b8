#include "cli/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace nibble::cli {

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::vector<size_t> Table::widths() const {
  std::vector<size_t> widths;
  // At least 2, the narrowest that markdown's "-:" allows.
  for (const Column& column : columns_) {
    widths.push_back(std::max<size_t>(display_width(column.title), 2));
  }
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  return widths;
}

namespace {

std::string padded(const std::string& cell, size_t width, Align align) {
  const std::string blanks(width - std::min(width, display_width(cell)), ' ');
  return align == Align::kLeft ? cell + blanks : blanks + cell;
}

std::vector<std::string> titles(const std::vector<Column>& columns) {
  std::vector<std::string> cells;
  for (const Column& column : columns) cells.push_back(column.title);
  return cells;
}

std::string csv_cell(const std::string& cell) {
  if (cell.find_first_of(",\"\r\n") == std::string::npos) return cell;
  std::string quoted = "\"";
  for (const char c : cell) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  quoted += '"';
  return quoted;
}

}  // namespace

std::string Table::text(std::string_view indent) const {
  const std::vector<size_t> width = widths();
  std::string text;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out(indent);
    for (size_t i = 0; i < cells.size(); ++i) {
      out += padded(cells[i], width[i], columns_[i].align);
      if (i + 1 < cells.size()) out += "  ";
    }
    out.erase(out.find_last_not_of(' ') + 1);
    text += out + "\n";
  };
  line(titles(columns_));
  for (const auto& row : rows_) line(row);
  return text;
}

std::string Table::markdown() const {
  const std::vector<size_t> width = widths();
  std::string text;
  const auto line = [&](const std::vector<std::string>& cells) {
    for (size_t i = 0; i < cells.size(); ++i) {
      text += "| " + padded(cells[i], width[i], columns_[i].align) + " ";
    }
    text += "|\n";
  };
  line(titles(columns_));
  for (size_t i = 0; i < columns_.size(); ++i) {
    const bool left = columns_[i].align == Align::kLeft;
    text += "| " + (left ? std::string(width[i], '-') : std::string(width[i] - 1, '-') + ":") + " ";
  }
  text += "|\n";
  for (const auto& row : rows_) line(row);
  return text;
}

std::string Table::csv() const {
  std::string text;
  const auto line = [&](const std::vector<std::string>& cells) {
    for (size_t i = 0; i < cells.size(); ++i) text += (i == 0 ? "" : ",") + csv_cell(cells[i]);
    text += "\n";
  };
  line(titles(columns_));
  for (const auto& row : rows_) line(row);
  return text;
}

size_t display_width(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

std::string human_bytes(uint64_t bytes) {
  static constexpr std::array<const char*, 6> kUnits = {"B", "kB", "MB", "GB", "TB", "PB"};
  if (bytes < 1000) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.95 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string human_count(int64_t count) {
  const double value = static_cast<double>(count);
  if (count >= 1'000'000'000) return fmt::format("{:.2f} B", value / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.1f} M", value / 1e6);
  return fmt::format("{}", count);
}

std::string human_seconds(double seconds) {
  const int64_t whole = static_cast<int64_t>(std::clamp(seconds + 0.5, 0.0, 1e9));
  if (whole >= 3600) {
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  const size_t length = lead < 0x80   ? 1
                        : lead < 0xC2 ? 0
                        : lead < 0xE0 ? 2
                        : lead < 0xF0 ? 3
                        : lead < 0xF5 ? 4
                                      : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (lead == 0xE0 && byte(1) < 0xA0) return 0;  // overlong
  if (lead == 0xED && byte(1) > 0x9F) return 0;  // surrogates
  if (lead == 0xF0 && byte(1) < 0x90) return 0;  // overlong
  if (lead == 0xF4 && byte(1) > 0x8F) return 0;  // beyond U+10FFFF
  return length;
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const uint8_t first = static_cast<uint8_t>(text[0]);
    const size_t length = character_length(text);
    // C1 controls are U+0080 to U+009F: C2 80 to C2 9F.
    const bool control = first < 0x20 || first == 0x7F ||
                         (length == 2 && first == 0xC2 && static_cast<uint8_t>(text[1]) < 0xA0);
    if (first == '\n') {
      out += "\\n";
    } else if (first == '\t') {
      out += "\\t";
    } else if (length == 0 || control) {
      for (size_t i = 0; i < std::max<size_t>(length, 1); ++i) {
        out += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[i]));
      }
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

}  // namespace nibble::cli
