
#include <algorithm>
#include <map>

#include "engine/core/base/hash.h"
#include "engine/core/base/version.h"
#include "engine/core/findings/fix.h"
#include "engine/core/findings/forms.h"
#include "engine/core/findings/page.h"

namespace moonshard {
namespace {

constexpr const char* kSchema = "https://json.schemastore.org/sarif-2.1.0.json";
constexpr const char* kVersion = "2.1.0";
constexpr const char* kInformation = "urn:moonshard";

// A URI reference for a path: the characters that RFC 3986 allows in path segments, any other byte as %XX.
std::string UriOf(const std::string& path) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  constexpr std::string_view kPlain = "-._~!$&'()*+,;=@/";
  std::string out = path.starts_with('/') ? "file://" : "";
  for (char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (word || kPlain.find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return out;
}

// SARIF counts columns in characters; a span in bytes.
int CharactersBefore(const std::string& line, int column) {
  const size_t bytes = std::min(line.size(), static_cast<size_t>(std::max(column - 1, 0)));
  const auto starts = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  const auto beyond = static_cast<int>(static_cast<size_t>(std::max(column - 1, 0)) - bytes);
  return static_cast<int>(std::count_if(line.begin(), line.begin() + static_cast<long>(bytes), starts)) + beyond;
}

JsonValue Physical(const SourceSpan& span) {
  JsonValue::Object out = {{"artifactLocation", JsonValue::Object{{"uri", UriOf(span.file)}}}};
  if (span.line > 0) {
    JsonValue::Object region = {{"startLine", span.line}};
    if (span.column > 0) {
      region["startColumn"] = CharactersBefore(span.text, span.column) + 1;
      if (span.length > 0) region["endColumn"] = CharactersBefore(span.text, span.column + span.length) + 1;
    }
    if (!span.text.empty()) region["snippet"] = JsonValue::Object{{"text", span.text}};
    out["region"] = std::move(region);
  }
  return out;
}

JsonValue Text(const std::string& text) { return JsonValue::Object{{"text", text}}; }

const char* LevelOf(Severity severity) { return ToString(severity); }  // SARIF has the same three names

JsonValue RuleOf(const FindingInfo& info, const std::vector<FindingPage>& pages) {
  JsonValue::Object rule = {{"id", info.id},
                            {"shortDescription", Text(info.title)},
                            {"helpUri", "urn:moonshard:finding:" + std::string(info.id)},
                            {"defaultConfiguration", JsonValue::Object{{"level", LevelOf(info.severity)}}}};
  if (const FindingPage* page = FindPage(pages, info.id)) {
    rule["name"] = page->name;
    rule["fullDescription"] = Text(page->Section(""));
    rule["help"] = JsonValue::Object{{"text", PageText(*page, false)}, {"markdown", page->markdown}};
  }
  return rule;
}

// Does not change when lines of a plan are inserted: the finding, the module and the message without line numbers.
// XXH3, the same on every machine.
std::string FingerprintOf(const Diagnostic& d) {
  std::string text = std::string(InfoOf(d.finding).id) + "\n" + d.path + "\n";
  for (size_t i = 0; i < d.message.size(); ++i) {
    text += d.message[i];
    if (!text.ends_with(".lua:")) continue;
    while (i + 1 < d.message.size() && d.message[i + 1] >= '0' && d.message[i + 1] <= '9') ++i;
  }
  return HashToText(HashOf(text));
}

JsonValue FixJson(const Fix& fix) {
  JsonValue physical = Physical(fix.where);
  JsonValue::Object region = physical.Find("region")->AsObject();
  region.erase("snippet");
  JsonValue::Object replacement = {{"deletedRegion", std::move(region)}, {"insertedContent", Text(fix.text)}};
  JsonValue::Object change = {{"artifactLocation", *physical.Find("artifactLocation")},
                              {"replacements", JsonValue::Array{std::move(replacement)}}};
  return JsonValue::Object{{"description", Text("write '" + fix.text + "'")},
                           {"artifactChanges", JsonValue::Array{std::move(change)}}};
}

// `copy`: the how manieth result with this fingerprint.
JsonValue ResultOf(const Diagnostic& d, int64_t rule, const std::string& subject, const std::string& fingerprint,
                   int64_t copy) {
  std::string message = d.message;
  JsonValue::Object properties;
  const auto add = [&](const char* key, const std::string& value) {
    if (value.empty()) return;
    properties[key] = value;
    message += std::string("\n") + key + ": " + value;
  };
  add("declared", d.declared);
  add("required", d.required);
  add("help", d.help);
  JsonValue::Object result = {
      {"ruleId", InfoOf(d.finding).id},
      {"ruleIndex", rule},
      {"level", LevelOf(d.severity)},
      {"message", Text(message)},
      {"partialFingerprints", JsonValue::Object{{"findingAndModule/v1", fingerprint + ":" + std::to_string(copy)}}}};
  JsonValue::Object location;
  if (d.where.known()) {
    location["physicalLocation"] = Physical(d.where);
  } else if (!subject.empty()) {
    location["physicalLocation"] = Physical({.file = subject});
  }
  if (!d.path.empty()) {
    location["logicalLocations"] = JsonValue::Array{JsonValue::Object{{"fullyQualifiedName", d.path}}};
  }
  if (!location.empty()) result["locations"] = JsonValue::Array{std::move(location)};
  JsonValue::Array related;
  for (const SourceSpan& span : d.related) {
    related.emplace_back(JsonValue::Object{{"id", static_cast<int64_t>(related.size()) + 1},
                                           {"physicalLocation", Physical(span)},
                                           {"message", Text("also involved")}});
  }
  if (!related.empty()) result["relatedLocations"] = std::move(related);
  if (const std::optional<Fix> fix = FixOf(d)) result["fixes"] = JsonValue::Array{FixJson(*fix)};
  if (!properties.empty()) result["properties"] = std::move(properties);
  return result;
}

}  // namespace

JsonValue SarifLog(const Diagnostics& diagnostics, const std::string& subject) {
  const std::vector<FindingPage> pages = AllPages();
  std::map<Finding, int64_t> index;
  for (const Diagnostic& d : diagnostics) index[d.finding] = 0;
  JsonValue::Array rules;
  for (auto& [finding, number] : index) {
    number = static_cast<int64_t>(rules.size());
    rules.push_back(RuleOf(InfoOf(finding), pages));
  }
  JsonValue::Array results;
  std::map<std::string, int64_t> copies;
  for (const Diagnostic& d : diagnostics) {
    const std::string fingerprint = FingerprintOf(d);
    results.push_back(ResultOf(d, index.at(d.finding), subject, fingerprint, ++copies[fingerprint]));
  }
  // Findings are a result, not a failure of the tool; a defect of moonshard is a failure.
  const bool ran =
      std::ranges::none_of(diagnostics, [](const Diagnostic& d) { return d.finding == Finding::kInternal; });
  JsonValue::Object driver = {{"name", "moonshard"},
                              {"version", MOONSHARD_VERSION},
                              {"informationUri", kInformation},
                              {"rules", std::move(rules)}};
  JsonValue::Object run = {{"tool", JsonValue::Object{{"driver", std::move(driver)}}},
                           {"invocations", JsonValue::Array{JsonValue::Object{{"executionSuccessful", ran}}}},
                           {"columnKind", "unicodeCodePoints"},
                           {"results", std::move(results)}};
  return JsonValue::Object{
      {"$schema", kSchema}, {"version", kVersion}, {"runs", JsonValue::Array{JsonValue(std::move(run))}}};
}

}  // namespace moonshard
