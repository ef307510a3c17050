// CommandTree: the verbs and options of moonshard as plain data, and the texts that are made from it: shell completion
// and the man page. The data is read from the definitions with which the command line is parsed (options.cc), so these
// texts cover every verb.
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
  std::string place;               // name of a positional argument: "MODEL"
  bool takes_value = false;        // false: a flag
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

// The shells for which there is a completion script: "bash", "zsh", "fish".
std::span<const std::string> CompletionShells();
// The names that are completed as values of options.
struct CompletionNames {
  std::vector<std::string> plans;     // shipped ones
  std::vector<std::string> findings;  // identifiers and names
  std::vector<std::string> axes;
};
// Returns the script for one of these shells. It completes verbs, their options, and values: choices, shipped plans,
// findings and mesh axes. Other values are completed as file names; options of a plan are not completed.
std::string ShellCompletion(const CommandTree& tree, const std::string& shell, const CompletionNames& names);

// Returns the man page of moonshard, in the macros of man(7).
std::string ManPage(const CommandTree& tree, const std::string& version);

}  // namespace moonshard
