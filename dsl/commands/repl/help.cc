// :help.
#include <algorithm>
#include <set>

#include "dsl/commands/repl/command.h"
#include "dsl/language/bind/builtins.h"
#include "engine/core/base/finding.h"
#include "engine/core/base/text.h"
#include "engine/core/findings/page.h"

namespace moonshard {
namespace {

std::string CommandText(const CommandInfo& command) {
  const std::string arguments = command.arguments;
  return std::string(command.name) + (arguments.empty() ? "" : " " + arguments);
}

Answer HelpOfCommand(const CommandInfo& command) {
  Answer out;
  std::vector<std::pair<std::string, JsonValue>> facts = {{"command", CommandText(command)}, {"what", command.doc}};
  const std::vector<std::string> more = Split(command.more, '\n');
  if (!more.front().empty()) facts.emplace_back("more", Join(more, " "));
  out.tables.push_back(Table::Facts("help", facts));
  return out;
}

// The keys that `wanted` selects.
Table KeyTable(const std::function<bool(const KeyInfo&)>& wanted) {
  Table keys("keys", {"table", "key", "type", "default", "example", "what"});
  for (const KeyInfo& key : AllKeys()) {
    if (key.key != kPositional && wanted(key)) {
      keys.rows.push_back({key.table, key.key, key.type, key.fallback, key.example, key.doc});
    }
  }
  return keys;
}

// The option of this name that the plan declares; a builtin may have the same name.
void AddOption(const CommandCall& call, Answer& out) {
  const auto& declared = call.workspace.record().options;
  const auto found = declared.find(call.arguments);
  if (found == declared.end()) return;
  const auto& [name, option] = *found;
  Table options("options", {"option", "value", "default", "declared at"});
  options.rows.push_back({name, option.value, option.fallback, option.source.ToString()});
  out.tables.push_back(std::move(options));
  out.notes.push_back("an option of the plan: :option " + name + "=VALUE sets it");
}

// Of the builtins in `builtins`, of which there is at least one. One alone is shown with its keys.
Answer HelpOfBuiltins(const CommandCall& call, Table builtins) {
  Answer out;
  if (builtins.rows.size() > 1) {
    out.tables.push_back(std::move(builtins));
    return out;
  }
  const std::vector<JsonValue>& row = builtins.rows[0];
  out.tables.push_back(Table::Facts("help", {{"name", row[0]}, {"signature", row[1]}, {"what", row[2]}}));
  Table keys = KeyTable([&](const KeyInfo& key) { return call.arguments == key.table; });
  if (!keys.rows.empty()) out.tables.push_back(std::move(keys));
  AddOption(call, out);
  return out;
}

// Keys of builtins, and the options that the plan declares. No tables: there is no such name.
Answer HelpOfKey(const CommandCall& call) {
  Answer out;
  AddOption(call, out);
  Table keys = KeyTable([&](const KeyInfo& key) { return call.arguments == key.key; });
  if (!keys.rows.empty()) out.tables.push_back(std::move(keys));
  return out;
}

}  // namespace

std::vector<std::string> HelpTopics(const Workspace& workspace) {
  std::set<std::string> topics = {"builtins", "findings"};
  for (const CommandInfo& command : AllCommands()) topics.emplace(command.name);
  for (const BuiltinInfo& info : AllBuiltins()) topics.emplace(info.name);
  for (const KeyInfo& key : AllKeys()) {
    if (key.key != kPositional) topics.emplace(key.key);
  }
  for (const auto& [name, option] : workspace.record().options) topics.insert(name);
  for (const FindingInfo& info : AllFindings()) topics.emplace(info.id);
  return {topics.begin(), topics.end()};
}

Answer RunHelp(CommandCall& call) {
  const std::string& topic = call.arguments;
  if (topic.empty()) {
    Table commands("commands", {"command", "what"});
    for (const CommandInfo& command : AllCommands()) commands.rows.push_back({CommandText(command), command.doc});
    return {.tables = {std::move(commands)},
            .notes = {
                "Other input is Lua with the builtins of the plan language; an expression prints its value.",
                ":help builtins lists the builtins; :help TOPIC explains a command, a builtin (:help colwise), a key "
                "(:help heads), an option of the plan or a finding (:help MS0201). A command may be abbreviated while "
                "the abbreviation is unique."}};
  }
  for (const CommandInfo& command : AllCommands()) {
    if (topic == command.name || topic == command.name + 1) return HelpOfCommand(command);
  }
  Table builtins("builtins", {"name", "signature", "what"});
  const bool all = topic == "builtins" || topic == "words";  // "words": the name before 0.1
  for (const BuiltinInfo& info : AllBuiltins()) {
    const std::string name = info.name;
    // A library or an input includes its fields: "string" has "string.rep".
    const bool part = name.starts_with(topic + ".") || name.starts_with(topic + ":");
    if (all || name == topic || part) builtins.rows.push_back({name, SignatureOf(info), info.doc});
  }
  if (!builtins.rows.empty()) return HelpOfBuiltins(call, std::move(builtins));
  if (Answer keys = HelpOfKey(call); !keys.tables.empty()) return keys;
  if (const std::vector<FindingPage> pages = AllPages(); const FindingPage* page = FindPage(pages, topic)) {
    const JsonValue json = ToJson(*page);
    std::vector<std::pair<std::string, JsonValue>> facts;
    for (const std::string& key : json.Keys()) facts.emplace_back(key, *json.Find(key));
    return {.tables = {Table::Facts("help", facts)}, .text = PageText(*page, /*color=*/false)};
  }
  Table findings("findings", {"finding", "severity", "what"});
  for (const FindingInfo& info : AllFindings()) {
    if (topic == "findings") findings.rows.push_back({info.id, ToString(info.severity), info.title});
  }
  if (!findings.rows.empty()) return {.tables = {std::move(findings)}};
  return Refused(call, "there is no topic '" + topic + "'", DidYouMean(topic, HelpTopics(call.workspace)));
}

}  // namespace moonshard
