// FindingsOutput: how a verb reports findings: the form (engine/core/findings/forms.h), and colours on a terminal.
#pragma once

#include <string>

#include "engine/core/base/diagnostic.h"
#include "engine/core/findings/forms.h"

namespace moonshard {

enum class ColorChoice { kAuto, kAlways, kNever };

struct FindingsOutput {
  FindingForm form = FindingForm::kText;
  ColorChoice color = ColorChoice::kAuto;
  std::string subject;  // the file that findings without a place refer to: the plan, or config.json

  bool text() const { return form == FindingForm::kText; }
};

// Whether to write colours to a file descriptor. kAuto: never with NO_COLOR (no-color.org), always with CLICOLOR_FORCE
// other than 0 (bixense.com/clicolors), else if it is a terminal that is not dumb and CLICOLOR is not 0. Variables that
// are empty count as absent.
bool UsesColor(ColorChoice choice, int descriptor);

// All of the diagnostics on stderr. In the forms json and sarif one document, and nothing without diagnostics.
void PrintFindings(const Diagnostics& diagnostics, const FindingsOutput& options);
// On stdout, as data: in the forms json and sarif a document also without diagnostics.
void PrintFindingsAsData(const Diagnostics& diagnostics, const FindingsOutput& options);

}  // namespace moonshard
