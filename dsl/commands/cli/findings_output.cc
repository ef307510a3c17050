#include "dsl/commands/cli/findings_output.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string_view>

namespace moonshard {
namespace {

std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

bool UsesColor(ColorChoice choice, int descriptor) {
  if (choice != ColorChoice::kAuto) return choice == ColorChoice::kAlways;
  if (!Variable("NO_COLOR").empty()) return false;
  const std::string_view force = Variable("CLICOLOR_FORCE");
  if (!force.empty() && force != "0") return true;
  return isatty(descriptor) == 1 && Variable("TERM") != "dumb" && Variable("CLICOLOR") != "0";
}

void PrintFindings(const Diagnostics& diagnostics, const FindingsOutput& options) {
  if (diagnostics.empty()) return;
  std::cerr << WriteFindings(diagnostics, options.form, UsesColor(options.color, STDERR_FILENO), options.subject)
            << std::flush;
}

void PrintFindingsAsData(const Diagnostics& diagnostics, const FindingsOutput& options,
                         const std::vector<std::string>& notes) {
  std::cout << WriteFindings(diagnostics, options.form, UsesColor(options.color, STDOUT_FILENO), options.subject, notes)
            << std::flush;
}

}  // namespace moonshard
