#include "dsl/commands/cli/command_tree.h"

#include <array>
#include <cctype>
#include <span>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

// A line of text: backslashes and hyphens as themselves, and no request at its beginning.
std::string Troff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
      out += c;
    }
  }
  return out;
}

std::string Upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

struct Entry {
  const char* name;
  const char* text;
};

constexpr auto kEnvironment = std::to_array<Entry>({
    {"NO_COLOR", "if not empty, --color auto means never"},
    {"CLICOLOR_FORCE, CLICOLOR",
     "--color auto means always if CLICOLOR_FORCE is set and not 0, and never if CLICOLOR is 0"},
    {"TERM", "if it is dumb: no colors, and the REPL has no line editing"},
    {"XDG_STATE_HOME, HOME", "the directory of the REPL's history: see FILES"},
    {"TMPDIR", "directory of the file that local ranks use to find each other; default: /tmp"},
    {"RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT",
     "if set, as by torchrun, this process is one rank of a group that a launcher started. The variables of srun "
     "(SLURM_PROCID, SLURM_STEP_ID and others) and of mpirun (OMPI_COMM_WORLD_RANK, PMI_RANK and others) mean the "
     "same. Without such "
     "variables moonshard starts the ranks"},
    {"MOONSHARD_STORE",
     "replaces MASTER_ADDR and MASTER_PORT: a new file that the ranks of one machine use to find each other"},
    {"GLOO_SOCKET_IFNAME", "the network interface between ranks on CPUs"},
});

constexpr auto kFiles = std::to_array<Entry>({
    {"$XDG_STATE_HOME/moonshard/history",
     "the lines typed in the REPL; only the owner can read the file. In $HOME/.local/state without XDG_STATE_HOME. "
     "With "
     "--no-history the file is neither read nor written"},
    {"~/.editrc", "key bindings of the REPL's line editor, as for every program that uses libedit"},
});

constexpr auto kExamples = std::to_array<Entry>({
    {"moonshard check model --mesh tp=4 --plan mine.lua", "all findings about a plan on four ranks"},
    {"moonshard explain model --mesh tp=4 --html report.html", "what the plan chosen for the model does, as a page"},
    {"moonshard explain-finding shards-not-taken", "what a finding means, and its suggested fix"},
    {"moonshard suggest model -o mine.lua", "a first plan for a model without a plan"},
    {"moonshard repl model --mesh tp=4 -c ':why model.layers.0.mlp.down_proj'",
     "the rule that applies to a module, and its line"},
    {"moonshard shard model sharded --mesh tp=2", "a checkpoint as one file per rank"},
});

std::string OptionText(const CommandOption& option) {
  std::string value;
  if (option.takes_value && option.place.empty()) {
    value = option.choices.empty() ? " \\fIVALUE\\fR" : " " + Troff(Join(option.choices, "|"));
  }
  const std::string name = option.place.empty() ? Join(option.names, ", ") : option.place;
  return ".TP\n\\fB" + Troff(name) + "\\fR" + value + "\n" + Troff(option.description) +
         (option.required ? " (required)" : "") + "\n";
}

}  // namespace

std::string ManPage(const CommandTree& tree, const std::string& version) {
  const std::vector<std::string> about = Split(tree.about, '\n');
  std::string out =
      ".TH " + Upper(tree.command) + " 1 \"\" \"" + tree.command + " " + version + "\" \"User Commands\"\n";
  out += ".SH NAME\n" + tree.command + " \\- " + Troff(about.front()) + "\n";
  out += ".SH SYNOPSIS\n";
  for (const CommandVerb& verb : tree.verbs) {
    out += ".B " + tree.command + " " + Troff(verb.name) + "\n";
    for (const CommandOption& option : verb.options) {
      if (!option.place.empty())
        out += (option.required ? "" : "[") + Troff(option.place) + (option.required ? "" : "]") + "\n";
    }
    out += "[\\fIoption\\fR]...\n.br\n";
  }
  out += ".SH DESCRIPTION\n";
  for (const std::string& line : about) out += Troff(line) + "\n.br\n";
  out += ".SH VERBS\n";
  for (const CommandVerb& verb : tree.verbs) {
    out += ".SS " + Troff(verb.name) + "\n" + Troff(verb.description) + "\n";
    for (const CommandOption& option : verb.options) out += OptionText(option);
  }
  out += ".SH OPTIONS\n";
  for (const CommandOption& option : tree.options) out += OptionText(option);
  const auto section = [&](const char* title, std::span<const Entry> entries) {
    out += ".SH " + std::string(title) + "\n";
    for (const Entry& entry : entries) {
      out += ".TP\n\\fB" + Troff(entry.name) + "\\fR\n" + Troff(entry.text) + "\n";
    }
  };
  section("ENVIRONMENT", kEnvironment);
  section("FILES", kFiles);
  section("EXAMPLES", kExamples);
  return out;
}

}  // namespace moonshard
