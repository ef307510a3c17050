// One table in four formats. JSON and CSV have the exact numbers, for programs; the table format and Markdown have
// shortened bytes, for people. Only the table format limits rows and cells: a terminal
// is no use for 60,000 rows, and a program needs them all.
// Text of a model or plan is not trusted by the terminal: a name may contain escape sequences, so every form goes
// through base/visible.h. In JSON the escapes are JSON's own: a program reads the exact text.
#include "dsl/commands/repl/table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <set>

#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"
#include "engine/plan/explain/texts.h"

namespace moonshard {
namespace {

constexpr size_t kWidestCell = 140;  // characters; a wider cell is truncated in the table format
constexpr size_t kMostRows = 400;    // of that form

// How many characters UTF-8 text has.
size_t WidthOf(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string Cut(std::string text) {
  if (WidthOf(text) <= kWidestCell) return text;
  size_t end = 0;
  for (size_t width = 0; width < kWidestCell - 3; ++width) {
    do ++end;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  }
  return text.substr(0, end) + "...";
}

// JSON has no infinity and NaN; text has both.
std::string NumberText(double number) { return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"; }

std::string TextOf(const JsonValue& cell) {
  if (cell.is_null()) return "";
  if (cell.is_double() && !std::isfinite(cell.AsDouble())) return NumberText(cell.AsDouble());
  return cell.is_string() ? cell.AsString() : WriteJson(cell, 0);
}

// A cell as text.
std::string ShownText(const Table& table, size_t row, size_t column) {
  const JsonValue& cell = table.rows[row][column];
  const auto among = [&](const std::vector<std::string>& columns) {
    return std::ranges::find(columns, table.columns[column]) != columns.end();
  };
  if (cell.is_string() && cell.AsString().empty() && among(table.value_columns)) return "\"\"";
  return among(table.byte_columns) && cell.is_int() ? BytesText(cell.AsInt()) : Visible(TextOf(cell));
}

std::string Padded(const std::string& text, size_t width, bool right) {
  const size_t have = WidthOf(text);
  const std::string blanks(width > have ? width - have : 0, ' ');
  return right ? blanks + text : text + blanks;
}

std::string TrimmedCell(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

// A column of numbers is right-aligned.
bool IsNumeric(const Table& table, size_t column) {
  return std::ranges::all_of(table.rows,
                             [&](const auto& row) { return row[column].is_number() || row[column].is_null(); });
}

using Cells = std::vector<std::vector<std::string>>;

Cells TextsOf(const Table& table, size_t rows, const auto& cell) {
  Cells out = {table.columns};
  for (size_t r = 0; r < rows; ++r) {
    out.emplace_back();
    for (size_t c = 0; c < table.columns.size(); ++c) out.back().push_back(cell(table, r, c));
  }
  return out;
}

std::vector<size_t> WidthsOf(const Cells& cells) {
  std::vector<size_t> widths(cells.front().size());
  for (const auto& row : cells) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], WidthOf(row[c]));
  }
  return widths;
}

std::string RenderRecord(const Table& table) {
  size_t width = 0;
  for (const std::string& column : table.columns) width = std::max(width, column.size());
  std::string out;
  for (size_t c = 0; c < table.columns.size(); ++c) {
    const std::string text = ShownText(table, 0, c);
    if (!text.empty()) out += Padded(table.columns[c], width, false) + "  " + text + "\n";
  }
  return out;
}

std::string RenderTable(const Table& table) {
  if (table.record) return RenderRecord(table);
  const size_t shown = std::min(kMostRows, table.rows.size());
  const Cells cells = TextsOf(table, shown, [](const Table& t, size_t r, size_t c) { return Cut(ShownText(t, r, c)); });
  const std::vector<size_t> widths = WidthsOf(cells);
  std::string out;
  for (size_t r = 0; r < cells.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < widths.size(); ++c) {
      line += (c > 0 ? "  " : "") + Padded(cells[r][c], widths[c], IsNumeric(table, c));
    }
    out += TrimmedCell(std::move(line)) + "\n";
    if (r > 0) continue;
    std::string rule;
    for (size_t c = 0; c < widths.size(); ++c) rule += (c > 0 ? "  " : "") + std::string(widths[c], '-');
    out += rule + "\n";
  }
  if (shown < table.rows.size()) out += "... and " + std::to_string(table.rows.size() - shown) + " more rows\n";
  return out;
}

std::string RenderMarkdown(const Table& table) {
  const auto cell = [](const Table& t, size_t row, size_t column) {
    std::string out;
    for (char c : ShownText(t, row, column)) out += c == '|' ? "\\|" : std::string(1, c);
    return out;
  };
  const Cells cells = TextsOf(table, table.rows.size(), cell);
  const std::vector<size_t> widths = WidthsOf(cells);
  std::string out;
  for (size_t r = 0; r < cells.size(); ++r) {
    out += "|";
    for (size_t c = 0; c < widths.size(); ++c) out += " " + Padded(cells[r][c], widths[c], IsNumeric(table, c)) + " |";
    out += "\n";
    if (r > 0) continue;
    out += "|";
    for (size_t c = 0; c < widths.size(); ++c) {
      out += " " + std::string(std::max<size_t>(widths[c], 3) - 1, '-') + (IsNumeric(table, c) ? ":" : "-") + " |";
    }
    out += "\n";
  }
  return out;
}

// As RFC 4180 has it, with plain line ends.
std::string RenderCsv(const Table& table) {
  std::string out;
  for (const auto& row : TextsOf(table, table.rows.size(),
                                 [](const Table&t, size_t r, size_t c) { return Visible(TextOf(t.rows[r][c])); })) {
    for (size_t c = 0; c < row.size(); ++c) {
      if (c > 0) out += ",";
      if (row[c].find_first_of(",\"\r\n") == std::string::npos) {
        out += row[c];
        continue;
      }
      out += '"';
      for (char letter : row[c]) out += letter == '"' ? "\"\"" : std::string(1, letter);
      out += '"';
    }
    out += "\n";
  }
  return out;
}

// Names in JSON before 0.1, which are written too: programs read them.
constexpr std::pair<std::string_view, const char*> kOldNames[] = {
    {"builtins", "words"}, {"redistributions", "moves"}, {"rule", "said by"}};

JsonValue RowToJson(const Table& table, size_t row) {
  JsonValue::Object out;
  for (size_t c = 0; c < table.columns.size(); ++c) out[table.columns[c]] = table.rows[row][c];
  return out;
}

JsonValue TableToJson(const Table& table) {
  if (table.record) {
    JsonValue::Object record = RowToJson(table, 0).AsObject();
    for (const auto& [name, old] : kOldNames) {
      if (const auto found = record.find(std::string(name)); found != record.end()) record.emplace(old, found->second);
    }
    return record;
  }
  JsonValue::Array rows;
  for (size_t r = 0; r < table.rows.size(); ++r) rows.push_back(RowToJson(table, r));
  return rows;
}

bool IsWholeNumber(const std::string& text) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  return std::from_chars(text.data(), end, number) == std::from_chars_result{end, std::errc()};
}

Table TableOf(const JsonValue& value) {
  Table out;
  if (value.is_object()) {
    out.columns = {"key", "value"};
    std::vector<std::string> keys = value.Keys();
    if (std::ranges::all_of(keys, IsWholeNumber)) {
      std::ranges::sort(keys, {}, [](const std::string& key) { return std::stoll(key); });
    }
    for (const std::string& key : keys) out.rows.push_back({key, *value.Find(key)});
    return out;
  }
  const JsonValue::Array& list = value.AsArray();
  const bool objects = !list.empty() && std::ranges::all_of(list, &JsonValue::is_object);
  if (!objects) {
    out.columns = {"#", "value"};
    for (size_t i = 0; i < list.size(); ++i) out.rows.push_back({static_cast<int64_t>(i + 1), list[i]});
    return out;
  }
  std::set<std::string> keys;
  for (const JsonValue& item : list) {
    for (const std::string& key : item.Keys()) keys.insert(key);
  }
  out.columns = {"#"};
  out.columns.insert(out.columns.end(), keys.begin(), keys.end());
  for (size_t i = 0; i < list.size(); ++i) {
    out.rows.push_back({static_cast<int64_t>(i + 1)});
    for (const std::string& key : keys) {
      const JsonValue* field = list[i].Find(key);
      out.rows.back().push_back(field != nullptr ? *field : JsonValue());
    }
  }
  return out;
}

}  // namespace

Table Table::Facts(std::string name, const std::vector<std::pair<std::string, JsonValue>>& facts) {
  Table out;
  out.name = std::move(name);
  out.record = true;
  out.rows.emplace_back();
  for (const auto& [column, value] : facts) {
    out.columns.push_back(column);
    out.rows.front().push_back(value);
  }
  return out;
}

const std::vector<std::string>& OutputModeNames() {
  static const std::vector<std::string> names = {"table", "json", "csv", "md"};
  return names;
}

std::optional<OutputMode> OutputModeFromName(std::string_view name) {
  const auto found = std::ranges::find(OutputModeNames(), name);
  if (found == OutputModeNames().end()) return std::nullopt;
  return static_cast<OutputMode>(found - OutputModeNames().begin());
}

std::string Render(const std::vector<Table>& tables, OutputMode mode) {
  if (mode == OutputMode::kJson) {
    if (tables.empty()) return "";
    if (tables.size() == 1) return VisibleJson(WriteJson(TableToJson(tables.front()), 0)) + "\n";
    JsonValue::Object out;
    for (const Table& table : tables) {
      out[table.name] = TableToJson(table);
      for (const auto& [name, old] : kOldNames) {
        if (table.name == name) out[old] = out[table.name];
      }
    }
    return VisibleJson(WriteJson(out, 0)) + "\n";
  }
  std::string out;
  for (const Table& table : tables) {
    if (table.rows.empty()) continue;
    if (!out.empty()) out += "\n";
    const bool caption = tables.size() > 1 && !table.record && !table.name.empty();
    switch (mode) {
      case OutputMode::kCsv: out += RenderCsv(table); break;
      case OutputMode::kMarkdown: out += (caption ? "**" + table.name + "**\n\n" : "") + RenderMarkdown(table); break;
      default: out += (caption ? table.name + ":\n" : "") + RenderTable(table); break;
    }
  }
  return out;
}

std::string RenderValue(const JsonValue& value, OutputMode mode) {
  if (mode == OutputMode::kJson) return VisibleJson(WriteJson(value, 0)) + "\n";
  const bool empty = (value.is_array() && value.AsArray().empty()) || (value.is_object() && value.AsObject().empty());
  if (empty) return "{}\n";
  if (value.is_array() || value.is_object()) return Render({TableOf(value)}, mode);
  if (value.is_null()) return "nil\n";
  if (!value.is_string()) return TextOf(value) + "\n";
  if (mode == OutputMode::kCsv) return Render({TableOf(JsonValue::Array{value})}, mode);
  return VisibleLines(value.AsString(), "  ") + "\n";  // a text keeps its lines, of which only the first begins a line
}

}  // namespace moonshard
