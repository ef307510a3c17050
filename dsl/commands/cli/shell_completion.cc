#include "dsl/commands/cli/command_tree.h"

#include <algorithm>
#include <array>

#include "engine/core/base/check.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

// The first clause of a description: enough for a list.
std::string Short(const std::string& description) {
  return description.substr(0, std::min(description.find_first_of(";\n"), description.size()));
}

// Within single quotes of sh, zsh and fish.
std::string SingleQuoted(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return "'" + out + "'";
}

std::vector<std::string> NamesOf(const std::vector<CommandOption>& options) {
  std::vector<std::string> out;
  for (const CommandOption& option : options) out.insert(out.end(), option.names.begin(), option.names.end());
  return out;
}

// The values of an option other than files, and whether it takes files too. A list has such words behind
// every comma, each with more to type.
struct Values {
  std::vector<std::string> words;
  bool files = true;
  bool list = false;
};
Values ValuesOf(const CommandOption& option, const CompletionNames& names) {
  const auto is = [&](const char* name) { return std::ranges::find(option.names, name) != option.names.end(); };
  if (!option.choices.empty()) return {option.choices, false};
  if (is("--plan")) return {names.plans, true};
  if (option.place == "FINDING") return {names.findings, false};
  if (is("--option")) return {{}, false};
  if (!is("--mesh")) return {};
  Values out{{}, false, true};
  for (const std::string& axis : names.axes) out.words.push_back(axis + "=");
  return out;
}

std::string Bash(const CommandTree& tree, const CompletionNames& names) {
  const std::string function = "_" + tree.command;
  std::string verbs;
  std::string values;
  std::string words;
  for (const CommandVerb& verb : tree.verbs) {
    verbs += verb.name + " ";
    words += "    " + verb.name + ") words='" + Join(NamesOf(verb.options), " ") + "' ;;\n";
    for (const CommandOption& option : verb.options) {
      if (!option.takes_value) continue;
      const Values of = ValuesOf(option, names);
      if (of.words.empty() && of.files) continue;
      const std::string words_of = "compgen -W " + SingleQuoted(Join(of.words, " ")) + (of.files ? " -f" : "");
      const std::string reply = (of.words.empty() ? "return ;;\n"
                                 : of.list        ? "_" + tree.command + "_list \"$(" + words_of + ")\"; return ;;\n"
                                           : "mapfile -t COMPREPLY < <(" + words_of + " -- \"$cur\"); return ;;\n");
      for (const std::string& name : option.names) values += "    " + verb.name + ":" + name + ") " + reply;
      if (!option.place.empty()) values += "    " + verb.name + ":" + verb.name + ") " + reply;
    }
  }
  return "# bash completion for " + tree.command + "; `" + tree.command + " completion bash` prints this file.\n" +
         function +
         "_list() {\n"
         "  local before=\n"
         "  if [[ $cur == *,* ]]; then before=${cur%,*},; fi\n"
         "  COMPREPLY=($(compgen -W \"$1\" -P \"$before\" -- \"${cur##*,}\"))\n"
         "  compopt -o nospace 2> /dev/null\n"
         "}\n" +
         function + "() {\n" +
         "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= words= i\n"
         "  COMPREPLY=()\n"
         "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "    if [[ ${COMP_WORDS[i]} != -* ]]; then verb=${COMP_WORDS[i]}; break; fi\n"
         "  done\n"
         "  if [[ -z $verb ]]; then\n"
         "    COMPREPLY=($(compgen -W '" +
         verbs + Join(NamesOf(tree.options), " ") +
         "' -- \"$cur\"))\n"
         "    return\n"
         "  fi\n"
         // bash also splits at "=": in --mesh tp=2,dp the option is still --mesh.
         "  if [[ $prev == = || $cur == = ]]; then\n"
         "    for ((i = COMP_CWORD - 1; i > 1; i--)); do\n"
         "      if [[ ${COMP_WORDS[i]} == -* ]]; then prev=${COMP_WORDS[i]}; break; fi\n"
         "    done\n"
         "  fi\n"
         "  case $verb:$prev in\n" +
         values +
         "  esac\n"
         "  case $verb in\n" +
         words +
         "  esac\n"
         "  if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
         "  else mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); fi\n"  // names may hold blanks
         "}\n"
         "complete -o filenames -F " +
         function + " " + tree.command + "\n";
}

// Within a specification of _arguments, where [ ] : and the backslash mean something.
std::string ZshText(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string Zsh(const CommandTree& tree, const CompletionNames& names) {
  const auto action = [&](const CommandOption& option) {
    const Values of = ValuesOf(option, names);
    if (of.words.empty()) return std::string(of.files ? "_files" : " ");
    if (of.list) return "{ compset -P \"*,\"; compadd -S \"\" -- " + Join(of.words, " ") + " }";
    return of.files ? "{ _files; compadd -- " + Join(of.words, " ") + " }" : "(" + Join(of.words, " ") + ")";
  };
  std::string verbs;
  std::string cases;
  for (const CommandVerb& verb : tree.verbs) {
    verbs += "    " + SingleQuoted(verb.name + ":" + ZshText(Short(verb.description))) + "\n";
    cases += "    " + verb.name + ") _arguments";
    for (const CommandOption& option : verb.options) {
      for (const std::string& name : option.names) {
        cases += " \\\n      " + SingleQuoted("*" + name + "[" + ZshText(Short(option.description)) + "]" +
                                              (option.takes_value ? ":value:" + action(option) : ""));
      }
      if (!option.place.empty()) cases += " \\\n      " + SingleQuoted(":" + option.place + ":" + action(option));
    }
    cases += " ;;\n";
  }
  return "#compdef " + tree.command + "\n# `" + tree.command + " completion zsh` prints this file.\n_" + tree.command +
         "() {\n  local -a verbs\n  verbs=(\n" + verbs +
         "  )\n"
         "  if ((CURRENT == 2)); then\n    _describe verb verbs\n    return\n  fi\n"
         "  local verb=$words[2]\n"
         "  shift words\n  ((CURRENT--))\n"
         "  case $verb in\n" +
         cases + "  esac\n}\n_" + tree.command + " \"$@\"\n";
}

std::string Fish(const CommandTree& tree, const CompletionNames& names) {
  const std::string begin = "complete -c " + tree.command + " ";
  std::string out =
      "# fish completion for " + tree.command + "; `" + tree.command + " completion fish` prints this file.\n";
  for (const CommandVerb& verb : tree.verbs) {
    out +=
        begin + "-n __fish_use_subcommand -f -a " + verb.name + " -d " + SingleQuoted(Short(verb.description)) + "\n";
  }
  for (const CommandVerb& verb : tree.verbs) {
    const std::string here = begin + "-n '__fish_seen_subcommand_from " + verb.name + "' ";
    for (const CommandOption& option : verb.options) {
      const Values of = ValuesOf(option, names);
      std::string words;
      if (!of.files) words = "-f ";
      if (of.list) {
        words += "-a " + SingleQuoted("(__fish_append , " + Join(of.words, " ") + ")") + " ";
      } else if (!of.words.empty()) {
        words += "-a " + SingleQuoted(Join(of.words, " ")) + " ";
      }
      if (option.names.empty()) {
        if (!words.empty()) out += here + words + "\n";
        continue;
      }
      out += here;
      for (const std::string& name : option.names) {
        out += (name.starts_with("--") ? "-l " + name.substr(2) : "-s " + name.substr(1)) + " ";
      }
      out += (option.takes_value ? "-r " : "") + words + "-d " + SingleQuoted(Short(option.description)) + "\n";
    }
  }
  return out;
}

}  // namespace

std::span<const std::string> CompletionShells() {
  static const std::array<std::string, 3> kShells = {"bash", "zsh", "fish"};
  return kShells;
}

std::string ShellCompletion(const CommandTree& tree, const std::string& shell, const CompletionNames& names) {
  if (shell == "bash") return Bash(tree, names);
  if (shell == "zsh") return Zsh(tree, names);
  Check(shell == "fish", "no completion for " + shell);
  return Fish(tree, names);
}

}  // namespace moonshard
