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
  std::string subject;  // file named for findings without a source location: the plan, or config.json

  bool text() const { return form == FindingForm::kText; }
};

// Whether to write colours to a file descriptor. kAuto: never with NO_COLOR (no-color.org), always with CLICOLOR_FORCE
// other than 0 (bixense.com/clicolors), else if it is a terminal that is not dumb and CLICOLOR is not 0. Variables that
// are empty count as absent.
bool UsesColor(ColorChoice choice, int descriptor);

// Writes the diagnostics to stderr, in the forms json and sarif as one document. Writes nothing if there are none.
void PrintFindings(const Diagnostics& diagnostics, const FindingsOutput& options);
// The same to stdout, except that json and sarif write an (empty) document even if there are no diagnostics.
void PrintFindingsAsData(const Diagnostics& diagnostics, const FindingsOutput& options);

}  // namespace moonshard
