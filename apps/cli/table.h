// Tables for people: columns aligned by what the terminal shows, and numbers they can read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::cli {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as columns.
  void add(std::vector<std::string> cells);
  size_t rows() const { return rows_.size(); }

  // Two blanks between columns, each line after `indent`.
  std::string text(std::string_view indent = "") const;
  std::string markdown() const;
  std::string csv() const;  // RFC 4180

 private:
  std::vector<size_t> widths() const;
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Columns that UTF-8 text takes on a terminal, counted as one for each code point.
size_t display_width(std::string_view text);

std::string human_bytes(uint64_t bytes);    // "98.0 MB", decimal as files are listed
std::string human_count(int64_t count);     // "134.5 M"
std::string human_seconds(double seconds);  // "1:05", "2:03:07"

// Text with control characters and invalid UTF-8 made visible, so that a file's own words cannot
// move a terminal's cursor.
std::string printable(std::string_view text);

// Bytes of the well-formed UTF-8 character at the front of `text` (not empty), 0 when there is
// none.
size_t character_length(std::string_view text);

}  // namespace nibble::cli
