// ConfigReader: reads typed fields of one JSON object. It reports each field that is wrong and, with NameUnread, each
// field that was never read. A model reads all fields that it uses, so a field that was never read has no effect on the
// model.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/core/base/json.h"

namespace moonshard {

class ConfigReader {
 public:
  // `prefix` precedes field names in messages ("rope_scaling."). `object` and `diagnostics` must outlive the reader.
  ConfigReader(const JsonValue& object, std::string file, std::string prefix, Diagnostics& diagnostics)
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)), diagnostics_(diagnostics) {}

  // Return nullopt for a field that is absent or null. Report an error and return nullopt for a field of another JSON
  // type or out of range: an integer below `least` or above MostOf(name); a number below `least`, above `most` or not
  // finite.
  std::optional<int64_t> Int(std::string_view name, int64_t least);
  std::optional<double> Number(std::string_view name, double least, double most = std::numeric_limits<double>::max());
  std::optional<bool> Bool(std::string_view name);
  std::optional<std::string> String(std::string_view name);
  // As above, for a list. An error is also reported if an element has another JSON type.
  std::optional<std::vector<std::string>> Strings(std::string_view name);
  std::optional<std::vector<int64_t>> Ints(std::string_view name);
  std::optional<std::vector<double>> Numbers(std::string_view name);
  // Returns a reader of a nested object; in messages the name of the field precedes the names of the nested fields. If
  // the field is absent or null, the nested object is empty; if the field has another JSON type, an error is reported
  // too. The returned reader must not outlive this reader.
  ConfigReader Object(std::string_view name);
  // As Int and Number, but an absent or null field is also an error. After an error these functions return `least`.
  int64_t RequiredInt(std::string_view name, int64_t least);
  double RequiredNumber(std::string_view name, double least);

  // Returns the field, or nullptr if it is absent or null. Marks the field as read.
  const JsonValue* Find(std::string_view name) const;
  // Whether the field is present, even as null.
  bool Has(std::string_view name) const { return object_.Find(name) != nullptr; }
  // Returns whether no error was reported about these fields. Checks that compare fields require this: after an error,
  // the value that a function above returned is not that of the config.
  bool Sound(std::initializer_list<std::string_view> names) const;
  bool empty() const { return object_.Keys().empty(); }
  const JsonValue& json() const { return object_; }
  const std::string& file() const { return file_; }
  Diagnostics& diagnostics() { return diagnostics_; }

  // Adds an error (kUnsupportedModel) about a field, with this message, required value and help; the declared value is
  // that of the config.
  void Refuse(std::string_view name, std::string message, std::string required = {}, std::string help = {});
  // Adds an error if the field is present and its value is not `only`, the only supported value.
  void RequireBool(std::string_view name, bool only, std::string message);
  // Adds a warning that `user` (an architecture, a rope type) does not use the field, if the field is present and not
  // null or false.
  void WarnUnused(std::string_view name, std::string_view user);
  // WarnUnused for each field that was not read and is not in `neutral` (sorted). The warning is only a note if the
  // field is not in `meaningful` (sorted) and does not look like a misspelling of a field that was read.
  void NameUnread(std::string_view user, const std::vector<std::string>& neutral,
                  const std::vector<std::string>& meaningful);

 private:
  template <class T>
  std::optional<T> RefuseKind(std::string_view name, const JsonValue& found, const char* wanted);
  template <class T, class Read>
  std::optional<std::vector<T>> List(std::string_view name, const char* wanted, Read read);

  const JsonValue& object_;
  std::string file_;
  std::string prefix_;
  Diagnostics& diagnostics_;
  mutable std::set<std::string, std::less<>> asked_;
  std::set<std::string, std::less<>> refused_;
};

}  // namespace moonshard
