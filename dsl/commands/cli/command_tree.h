// CommandTree: the verbs and options of moonshard as plain data, from the definitions that the command line is parsed
// with (options.cc), so that the texts made from it have every verb. Below: the texts.
#pragma once

#include <span>

#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): the name of CLI11
class App;
}

namespace moonshard {

struct CommandOption {
  std::vector<std::string> names;  // "--mesh"; "-c", "--code"; empty for a positional argument
  std::string place;               // "MODEL", of a positional argument
  bool takes_value = false;        // else a flag
  bool required = false;
  std::vector<std::string> choices;  // the allowed values; empty: any
  std::string description;
};

struct CommandVerb {
  std::string name;
  std::string description;
  std::vector<CommandOption> options;  // in the order in which they are defined
};

struct CommandTree {
  std::string command;
  std::string about;
  std::vector<CommandOption> options;  // of moonshard itself: --help, --version
  std::vector<CommandVerb> verbs;
};

CommandTree ReadCommandTree(const CLI::App& app);

// a script that completes verbs, their options and values: choices, shipped plans, findings, mesh
// axes. Options of a plan are not completed; other values are files.
// "bash", "zsh", "fish".
std::span<const std::string> CompletionShells();
// The names that values consist of.
struct CompletionNames {
  std::vector<std::string> plans;     // shipped ones
  std::vector<std::string> findings;  // identifiers and names
  std::vector<std::string> axes;
};
// The script for one of these shells.
std::string ShellCompletion(const CommandTree& tree, const std::string& shell, const CompletionNames& names);

// The man page of moonshard, in the macros of man(7).
std::string ManPage(const CommandTree& tree, const std::string& version);

}  // namespace moonshard
