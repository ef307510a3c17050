#include "dsl/commands/cli/text_verbs.h"

#include <CLI/CLI.hpp>

#include <filesystem>
#include <system_error>
#include <utility>

#include "dsl/commands/cli/command_tree.h"
#include "dsl/language/eval/load_plan.h"
#include "dsl/language/reference/forms.h"
#include "engine/core/base/diagnostic.h"
#include "engine/core/base/version.h"
#include "engine/core/findings/page.h"
#include "engine/layout/mesh_shape.h"

namespace moonshard {

namespace {

CompletionNames NamesToComplete() {
  const auto plans = BuiltInPlans();
  const auto axes = MeshAxisNames();
  CompletionNames out{{plans.begin(), plans.end()}, {}, {axes.begin(), axes.end()}};
  out.axes.emplace_back("dp");
  for (const FindingPage& page : AllPages()) out.findings.insert(out.findings.end(), {page.id, page.name});
  return out;
}

// Beside the executable in a build directory, in the prefix's share/ where it is installed in bin/.
std::string ExportScript() {
  constexpr const char* kScript = "share/moonshard/export/export_program.py";
  std::error_code ignored;
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const std::filesystem::path& base : {here, here.parent_path()}) {
    if (std::filesystem::exists(base / kScript, ignored)) return (base / kScript).string();
  }
  Diagnostic d = MakeDiagnostic(Finding::kFileNotFound, "the exporter is not installed with moonshard");
  d.path = (here.parent_path() / kScript).string();
  d.help = "install with cmake --install, or use engine/models/program/export/export_program.py from the source tree";
  throw PlanError({std::move(d)});
}

}  // namespace

TextVerbs::TextVerbs(CLI::App& app) : app_(app) {
  CLI::App* definitions =
      app.add_subcommand("definitions", "the names and keys of the plan language, for editors and checkers");
  definitions
      ->add_option("--form", form_,
                   "luacats: definitions for lua-language-server; luarc: settings of lua-language-server; luacheck: a "
                   ".luacheckrc; markdown: the reference")
      ->check(CLI::IsMember({"luacats", "luarc", "luacheck", "markdown"}));
  definitions->add_option("--library", library_, "for luarc: the directory of the definitions");
  CLI::App* completion = app.add_subcommand("completion", "completion of this command line, as a script for a shell");
  const auto shells = CompletionShells();
  completion->add_option("SHELL", shell_, "the shell: bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember(std::vector<std::string>(shells.begin(), shells.end())));
  man_ = app.add_subcommand("man", "the man page on stdout; man -l - shows it");
  export_script_ =
      app.add_subcommand("export-script", "the path of the Python script that exports a PyTorch model as a program");
  definitions_ = definitions;
  completion_ = completion;
}

std::optional<std::string> TextVerbs::Asked() const {
  if (definitions_->parsed()) {
    if (form_ == "luarc") return LuarcJson(library_);
    if (form_ == "luacheck") return LuacheckConfig();
    return form_ == "markdown" ? ReferencePage() : LuaDefinitions();
  }
  if (completion_->parsed()) return ShellCompletion(ReadCommandTree(app_), shell_, NamesToComplete());
  if (man_->parsed()) return ManPage(ReadCommandTree(app_), MOONSHARD_VERSION);
  if (export_script_->parsed()) return ExportScript() + "\n";
  return std::nullopt;
}

}  // namespace moonshard
