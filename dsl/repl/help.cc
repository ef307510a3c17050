// :help.
#include <algorithm>

#include "dsl/bind/names.h"
#include "dsl/repl/command.h"
#include "engine/base/finding.h"
#include "engine/base/text.h"

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

}  // namespace

Answer RunHelp(CommandCall& call) {
  const std::string& topic = call.arguments;
  if (topic.empty()) {
    Table commands("commands", {"command", "what"});
    for (const CommandInfo& command : AllCommands()) commands.rows.push_back({CommandText(command), command.doc});
    return {
        .tables = {std::move(commands)},
        .notes = {"Everything else is Lua with the words of the plan language, and shown where it has a value.",
                  ":help words lists them; :help TOPIC explains a command, a word (:help colwise) or a finding (:help "
                  "MS0201). A command's beginning is enough where only one begins so."}};
  }
  std::vector<std::string> topics = {"words", "findings"};
  for (const CommandInfo& command : AllCommands()) {
    if (topic == command.name || topic == command.name + 1) return HelpOfCommand(command);
    topics.emplace_back(command.name);
  }
  Table words("words", {"word", "signature", "what"});
  for (const NameInfo& info : AllNames()) {
    const std::string name = info.name;
    topics.push_back(name);
    // A library or an input brings its fields: "string" has "string.rep".
    const bool part = name.starts_with(topic + ".") || name.starts_with(topic + ":");
    if (topic == "words" || name == topic || part) words.rows.push_back({name, info.signature, info.doc});
  }
  if (words.rows.size() == 1) {
    return {.tables = {Table::Facts(
                "help", {{"word", words.rows[0][0]}, {"signature", words.rows[0][1]}, {"what", words.rows[0][2]}})}};
  }
  if (!words.rows.empty()) return {.tables = {std::move(words)}};
  Table findings("findings", {"finding", "severity", "what"});
  for (const FindingInfo& info : AllFindings()) {
    if (topic == "findings" || topic == info.id)
      findings.rows.push_back({info.id, ToString(info.severity), info.title});
    topics.emplace_back(info.id);
  }
  if (!findings.rows.empty()) return {.tables = {std::move(findings)}};
  return Refused(call, "there is no topic '" + topic + "'", DidYouMean(topic, topics));
}

}  // namespace moonshard
