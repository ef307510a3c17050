// CountedLabels: which labels the loss of an exported program counts, as far as its graph tells. A trainer that splits
// a batch into parts weights the loss of each part by these labels: the mean over the parts is then the mean over the
// batch.
// Stage before: engine/io/exported_program. Stage after: dsl/commands/train.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/io/exported_program/exported_program.h"

namespace moonshard {

struct CountedLabels {
  std::string input;               // the input of labels; "": the program takes none
  bool shifted = false;            // the loss leaves out the first label of each row, which predicts nothing
  int64_t ignored = -100;          // labels of this value do not count
  std::optional<int64_t> classes;  // labels are below this number; nullopt: the graph does not tell it, or a
                                   // plan may shard it
  // The cross-entropy takes a label for each row of the output "logits": the labels have the shape of the logits
  // without the last dim. No guard of the program compares them.
  bool of_logits = false;
};

// Returns the labels of the cross-entropy whose targets the graph computes from the labels alone: it follows the
// targets of aten::cross_entropy_loss and aten::nll_loss backwards through views, slices, pads and casts. For a program
// with another loss, every label counts, except those of -100. If the program has several archives, these are the
// labels of the first archive that computes such a loss.
CountedLabels CountedLabelsOf(const ExportedProgram& program);

}  // namespace moonshard
