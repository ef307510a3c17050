#include "dsl/commands/cli/command_tree.h"

#include <CLI/CLI.hpp>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

std::vector<CommandOption> OptionsOf(const CLI::App& app) {
  std::vector<CommandOption> out;
  for (const CLI::Option* option : app.get_options()) {
    CommandOption read;
    for (const std::string& name : option->get_snames()) read.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) read.names.push_back("--" + name);
    if (read.names.empty()) read.place = option->get_name(/*positional=*/true);
    read.takes_value = option->get_items_expected_max() > 0;
    read.required = option->get_required();
    read.description = option->get_description();
    // IsMember shows its choices in the type: "TEXT:{auto,cpu,cuda}".
    const std::string type = option->get_type_name();
    const size_t open = type.find('{');
    if (open != std::string::npos && type.ends_with('}')) {
      read.choices = Split(type.substr(open + 1, type.size() - open - 2), ',');
    }
    out.push_back(std::move(read));
  }
  return out;
}

}  // namespace

CommandTree ReadCommandTree(const CLI::App& app) {
  CommandTree out{app.get_name(), app.get_description(), OptionsOf(app), {}};
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    out.verbs.push_back({verb->get_name(), verb->get_description(), OptionsOf(*verb)});
  }
  return out;
}

}  // namespace moonshard
