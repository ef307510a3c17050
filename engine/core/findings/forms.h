// Forms: diagnostics as text, as data, and as annotations of code review systems.
//
//   text     FILE:LINE: severity[ID]: message, with the source line and a caret (base/diagnostic.h)
//   json     {"format_version", "findings"}: one object per diagnostic
//   sarif    SARIF 2.1.0 (OASIS standard, docs.oasis-open.org/sarif/sarif/v2.1.0) with one run. The run has a rule for
//            every finding that occurs, with the page of the finding as help. A result has a region for the plan line,
//            a logical location for the module, a fix if one word replaces another (fix.h), and a fingerprint that does
//            not depend on line numbers
//   github   one workflow command per line (::error file=...), which GitHub shows at the line
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/core/base/json.h"

namespace moonshard {

enum class FindingForm { kText, kJson, kSarif, kGithub };

inline constexpr const char* kFindingsFormatVersion = "1.0";

// Accepts "text", "json", "sarif", "github"; returns nullopt for any other name.
std::optional<FindingForm> FindingFormFromName(std::string_view name);
std::string FindingFormName(FindingForm form);

// Returns the diagnostics as a document that ends with a line end; the forms text and github give "" if there are no
// diagnostics. `color` applies to text. `subject` is the file of a finding without a place, because sarif requires a
// file for every result; "" for no file. `notes` are messages about the model without an identifier: the form json has
// them as a list of texts, "notes", unless there are none; the other forms leave them out.
std::string WriteFindings(const Diagnostics& diagnostics, FindingForm form, bool color = false,
                          const std::string& subject = "", const std::vector<std::string>& notes = {});

// Returns a diagnostic as JSON: an element of the form json, of explain and of the report, and the form in which
// processes exchange diagnostics.
//
//   {"id", "severity", "message", "source", "location", "path", "declared", "required", "help", "fix", "related",
//    "related_locations"}; empty members are left out
//
// `source` is FILE:LINE, and `related` a list of such texts. A location has file, line, column and length, counted from
// 1 in bytes, and the `text` of the line. `fix` has file, line, column, length, and the `text` to write there.
JsonValue ToJson(const Diagnostic& diagnostic);
JsonValue::Array ToJson(const Diagnostics& diagnostics);
// Reads the list that ToJson wrote; the diagnostics are equal in every member (`source`, `fix` and `related` follow
// from the other members). Returns nullopt if `json`, which is untrusted, is not a list of diagnostics; `wrong` then
// describes the first member that is missing, unknown or of a wrong type.
std::optional<Diagnostics> ReadDiagnosticsJson(const JsonValue& json, std::string& wrong);

JsonValue SarifLog(const Diagnostics& diagnostics, const std::string& subject = "");
std::string GithubAnnotations(const Diagnostics& diagnostics);

}  // namespace moonshard
