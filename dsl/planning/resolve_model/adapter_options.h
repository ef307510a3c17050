// Adapter options: the adapters of a command line, as sections that replace the plan's `lora` sections.
//
//   --adapter DIR, NAME=DIR                            an adapter in the files of PEFT (stored_adapter.h)
//   --lora rank=8,alpha=16,target=q_proj+v_proj        a new adapter, with the keys of `lora`
//   --active NAME                                      which of several adapters is computed with and trained
//
// Stages before: the command line. Stage after: ResolveModel (resolve_model.h).
#pragma once

#include <string>
#include <vector>

#include "engine/core/base/result.h"
#include "engine/io/checkpoint/stored_adapter.h"
#include "engine/io/config/config.h"
#include "engine/layout/module_tree.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// Reads the adapter of each text: "DIR", or "NAME=DIR" if what is before the first '=' is the name of an adapter
// (IsAdapterName) and the text is not a directory as a whole. Without a name it is "default". `model`: as in
// ReadAdapter. Errors, all that are found: those of ReadAdapter; kBadArgument: an empty DIR, two adapters with one
// name.
Result<std::vector<StoredAdapter>> ReadAdapters(const std::vector<std::string>& texts, HeaderOptions options,
                                                const AdaptedModel& model = {});

// Returns a section for each text: keys and values of `lora` separated by commas, except `at`; in its place `target`
// has names of modules, separated by '+'. A target is a glob pattern (engine/plan/match/pattern.h) that matches a full
// path or the end of one, in whole components: "q_proj", "layers.{0..3}.*.q_proj". A comma or '+' within braces is part
// of the pattern; spaces around keys, values and targets are not. Without a target, it is TargetsOf(config, tree).
// Errors, all that are found: kBadArgument: no key, an unknown or duplicate key, a value out of range, no target.
Result<std::vector<Adapter>> ParseLora(const std::vector<std::string>& texts, const ModelConfig& config,
                                       const ModuleTree& tree);

// The targets that PEFT 0.21 has by default for the config's model_type. For another type: the query and value
// projections of attention, or the projection that has both, by the names that the tree has. Empty: it has none.
std::vector<std::string> TargetsOf(const ModelConfig& config, const ModuleTree& tree);

// Moves the sections of adapter `name` before the others, in their order, so that the plan's first adapter, which is
// the active one, is this one. Error: kBadArgument: no section has the name.
Diagnostics Activate(const std::string& name, std::vector<Adapter>& sections);

}  // namespace moonshard
