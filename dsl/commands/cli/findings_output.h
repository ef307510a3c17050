// FindingsOutput: how a verb prints findings: in which form (engine/core/findings/forms.h), and whether in color.
#pragma once

#include <string>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/core/findings/forms.h"

namespace moonshard {

enum class ColorChoice { kAuto, kAlways, kNever };

struct FindingsOutput {
  FindingForm form = FindingForm::kText;
  ColorChoice color = ColorChoice::kAuto;
  std::string subject;  // file reported for findings without a source location: the plan, or config.json

  bool text() const { return form == FindingForm::kText; }
};

// Whether to write colors to a file descriptor. kAuto: no if NO_COLOR is set (no-color.org); else yes if CLICOLOR_FORCE
// is set and not 0 (bixense.com/clicolors); else yes if the descriptor is a terminal, TERM is not dumb and CLICOLOR is
// not 0. An empty variable counts as not set.
bool UsesColor(ColorChoice choice, int descriptor);

// Writes the diagnostics to stderr; json and sarif write one document. Writes nothing if there are no diagnostics.
void PrintFindings(const Diagnostics& diagnostics, const FindingsOutput& options);
// Writes the diagnostics to stdout; json and sarif write one document even if there are no diagnostics. `notes`: as in
// WriteFindings.
void PrintFindingsAsData(const Diagnostics& diagnostics, const FindingsOutput& options,
                         const std::vector<std::string>& notes = {});

}  // namespace moonshard
