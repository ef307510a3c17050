// CommandTree: the verbs and options of the program as plain data, from the definitions that the command line is parsed
// with (options.cc), so that the texts made from it have every verb. Stage after: shell_completion.h, man_page.h.
#pragma once

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
  std::string program;
  std::string about;
  std::vector<CommandOption> options;  // of the program itself: --help, --version
  std::vector<CommandVerb> verbs;
};

CommandTree ReadCommandTree(const CLI::App& app);

}  // namespace moonshard
