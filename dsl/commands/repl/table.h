// Table: the result of a line of the REPL, and its output formats (:mode).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/base/json.h"

namespace moonshard {

struct Table {
  std::string name;                          // "matches"; the caption of the table if a result has several tables
  std::vector<std::string> columns;          // every row has one cell per column
  std::vector<std::vector<JsonValue>> rows;  // null: an empty cell
  std::vector<std::string> byte_columns;     // columns whose numbers are bytes: "3.50 GiB" as text, a number in JSON
  std::vector<std::string> value_columns;    // columns of values, whose empty texts are shown as "" and not as nothing
  // The table is a record: one row with properties of one thing, written as "name  value" lines and as one JSON object.
  bool record = false;

  Table() = default;
  Table(std::string table_name, std::vector<std::string> table_columns)
      : name(std::move(table_name)), columns(std::move(table_columns)) {}
  // A record.
  static Table Facts(std::string name, const std::vector<std::pair<std::string, JsonValue>>& facts);
};

enum class OutputMode { kTable, kJson, kCsv, kMarkdown };
std::optional<OutputMode> OutputModeFromName(std::string_view name);  // "table", "json", "csv", "md"
const std::vector<std::string>& OutputModeNames();

// Writes the tables of one answer. JSON is one line: an array of objects for one table, else an object with each table
// under its name. The other forms omit tables without rows. The text ends with a line end unless it is empty.
std::string Render(const std::vector<Table>& tables, OutputMode mode);
// Writes one value: a list or an object as a table, anything else as its text on a line of its own.
std::string RenderValue(const JsonValue& value, OutputMode mode);

}  // namespace moonshard
