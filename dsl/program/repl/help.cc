// :help.
#include <algorithm>
#include <set>

#include "dsl/language/bind/names.h"
#include "dsl/language/reference/words.h"
#include "dsl/program/repl/command.h"
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

// The keys of tables that `wanted` says yes to.
Table KeyTable(const std::function<bool(const KeyInfo&)>& wanted) {
  Table keys("keys", {"word", "key", "type", "what"});
  for (const KeyInfo& key : AllKeys()) {
    if (wanted(key)) keys.rows.push_back({key.word, key.key, key.type, key.doc});
  }
  return keys;
}

// The option of this name that the plan declares; a word may have the same name.
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

Answer HelpOfWord(const CommandCall& call, Table words) {
  Answer out;
  if (words.rows.size() > 1) {
    out.tables.push_back(std::move(words));
    return out;
  }
  const std::vector<JsonValue>& row = words.rows[0];
  out.tables.push_back(Table::Facts("help", {{"word", row[0]}, {"signature", row[1]}, {"what", row[2]}}));
  Table keys = KeyTable([&](const KeyInfo& key) { return call.arguments == key.word; });
  if (!keys.rows.empty()) out.tables.push_back(std::move(keys));
  AddOption(call, out);
  return out;
}

// What stands in tables: keys of words, and the options that the plan declares. No tables: there is no such name.
Answer HelpOfKey(const CommandCall& call) {
  Answer out;
  AddOption(call, out);
  Table keys = KeyTable([&](const KeyInfo& key) { return call.arguments == key.key; });
  if (!keys.rows.empty()) out.tables.push_back(std::move(keys));
  return out;
}

}  // namespace

std::vector<std::string> HelpTopics(const Workspace& workspace) {
  std::set<std::string> topics = {"words", "findings"};
  for (const CommandInfo& command : AllCommands()) topics.emplace(command.name);
  for (const NameInfo& info : AllNames()) topics.emplace(info.name);
  for (const KeyInfo& key : AllKeys()) topics.emplace(key.key);
  for (const auto& [name, option] : workspace.record().options) topics.insert(name);
  for (const FindingInfo& info : AllFindings()) topics.emplace(info.id);
  return {topics.begin(), topics.end()};
}

Answer RunHelp(CommandCall& call) {
  const std::string& topic = call.arguments;
  if (topic.empty()) {
    Table commands("commands", {"command", "what"});
    for (const CommandInfo& command : AllCommands()) commands.rows.push_back({CommandText(command), command.doc});
    return {
        .tables = {std::move(commands)},
        .notes = {"Everything else is Lua with the words of the plan language, and shown where it has a value.",
                  ":help words lists them; :help TOPIC explains a command, a word (:help colwise), a key of one (:help "
                  "heads), an option of the plan or a finding (:help MS0201). A command's beginning is enough where "
                  "only one begins so."}};
  }
  for (const CommandInfo& command : AllCommands()) {
    if (topic == command.name || topic == command.name + 1) return HelpOfCommand(command);
  }
  Table words("words", {"word", "signature", "what"});
  for (const NameInfo& info : AllNames()) {
    const std::string name = info.name;
    // A library or an input brings its fields: "string" has "string.rep".
    const bool part = name.starts_with(topic + ".") || name.starts_with(topic + ":");
    if (topic == "words" || name == topic || part) words.rows.push_back({name, info.signature, info.doc});
  }
  if (!words.rows.empty()) return HelpOfWord(call, std::move(words));
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
