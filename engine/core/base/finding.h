// Finding: the closed list of the kinds of Diagnostics. Each kind has an identifier that never changes and is never
// reused: MS01xx the plan language, MS02xx matching, MS03xx layouts and shapes, MS04xx files, MS05xx live models and
// ranks, MS06xx proofs of a step, MS09xx moonshard itself. A new finding needs an enumerator here, a row in finding.cc
// and a page in engine/core/findings/pages/ that explains the finding with an example (engine/core/findings/page.h).
#pragma once

#include <span>

namespace moonshard {

enum class Severity { kNote, kWarning, kError };

enum class Finding {
  // MS01xx: evaluating the plan text
  kSyntax,
  kUnknownName,
  kUnknownKey,
  kUnknownOption,
  kUnknownConfigKey,
  kUnknownAxis,
  kBadArgument,
  kScriptError,
  kScriptLimit,
  kNotAPlan,
  kModuleNotFound,
  kPlanNotFound,
  kDoesNotDivide,
  kApiVersion,
  kReadOnly,
  kPlanFallback,
  kDeprecatedName,
  kLostRule,
  // MS02xx: rules against the module tree
  kBadPattern,
  kUnmatchedRule,
  kUnmatchedAlternative,
  kRuleConflict,
  kUnclaimedParameter,
  kPatternMemory,
  kMostlyReplicated,
  kLargeReplicated,
  // MS03xx: layouts against shapes
  kNoSuchRedistribution,
  kNoSuchParameter,
  kBadDim,
  kHeadsDoNotFit,
  kPackedDoesNotFit,
  kTieConflict,
  kUnusedAxis,
  kBadMesh,
  kStyleDoesNotFit,
  kUnreachablePartial,
  kNoSuchOwner,
  kFusedAsOne,
  kShardsNotTaken,
  kShardsNotMade,
  kUnreducedPartial,
  kNormLayoutDiffers,
  kCostsMoreThanItSaves,
  kFixedSize,
  kFlowDoesNotFit,
  kOrderDiffers,
  // MS04xx: model directories and checkpoints
  kFileNotFound,
  kFileUnreadable,
  kBadSafetensors,
  kBadIndex,
  kBadJson,
  kMissingTensor,
  kTensorMismatch,
  kUnsupportedModel,
  kWriteFailed,
  kBadManifest,
  kCorruptData,
  kBadProgram,
  kRunTaken,
  // MS05xx: live models and ranks
  kNotHookable,
  kRanksDisagree,
  kRankLost,
  kUnusedHook,
  kBypassedHook,
  kNotSupported,
  kCollectiveMismatch,
  kBadInput,
  kStaleMember,
  kNumbersDiffer,
  kNotFinite,
  kNoValues,
  kInitialValuesDiffer,
  kUnshardedFunction,
  kProgramGuard,
  // MS06xx: proofs of a step
  kIllTyped,
  kLayoutNotAsDeclared,
  kWrongGradient,
  kUnproven,
  kSizeNotScaled,
  // MS09xx
  kInternal,
};

struct FindingInfo {
  Finding finding;
  const char* id;     // "MS0201"
  Severity severity;  // the default; a diagnostic may have another severity
  const char* title;  // one line, for lists and SARIF
};

const FindingInfo& InfoOf(Finding finding);
// Returns all findings in the order of their identifiers.
std::span<const FindingInfo> AllFindings();
// "note", "warning", "error".
const char* ToString(Severity severity);

}  // namespace moonshard
