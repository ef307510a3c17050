#include "engine/core/base/finding.h"

#include <algorithm>
#include <array>

#include "engine/core/base/check.h"

namespace moonshard {
namespace {

using enum Severity;
using F = Finding;

constexpr std::array kFindings = {
    FindingInfo{F::kSyntax, "MS0101", kError, "the plan is not valid Lua"},
    FindingInfo{F::kUnknownName, "MS0102", kError, "a name that the plan language does not have"},
    FindingInfo{F::kUnknownKey, "MS0103", kError, "a key that the builtin does not have"},
    FindingInfo{F::kUnknownOption, "MS0104", kError, "an option that the plan does not declare"},
    FindingInfo{F::kUnknownConfigKey, "MS0105", kError, "a field that config.json does not have"},
    FindingInfo{F::kUnknownAxis, "MS0106", kError, "a mesh axis that does not exist"},
    FindingInfo{F::kBadArgument, "MS0107", kError, "an argument of the wrong kind"},
    FindingInfo{F::kScriptError, "MS0108", kError, "the plan raised an error"},
    FindingInfo{F::kScriptLimit, "MS0109", kError, "the plan exceeded a limit"},
    FindingInfo{F::kNotAPlan, "MS0110", kError, "the file does not return a plan"},
    FindingInfo{F::kModuleNotFound, "MS0111", kError, "require of a module that does not exist"},
    FindingInfo{F::kPlanNotFound, "MS0112", kError, "no such plan"},
    FindingInfo{F::kDoesNotDivide, "MS0113", kError, "a size that the mesh does not divide"},
    FindingInfo{F::kApiVersion, "MS0114", kError, "a plan language version that is not supported"},
    FindingInfo{F::kReadOnly, "MS0115", kError, "a write to a value that a plan can only read"},
    FindingInfo{F::kPlanFallback, "MS0116", kWarning, "no plan supports this model, so a fallback plan was chosen"},
    FindingInfo{F::kDeprecatedName, "MS0117", kWarning, "a name that was renamed"},
    FindingInfo{F::kLostRule, "MS0118", kWarning, "a rule that is in no plan"},
    FindingInfo{F::kBadPattern, "MS0201", kError, "a pattern that cannot be parsed"},
    FindingInfo{F::kUnmatchedRule, "MS0202", kError, "a rule that matches nothing"},
    FindingInfo{F::kUnmatchedAlternative, "MS0203", kError, "a brace alternative that matches nothing"},
    FindingInfo{F::kRuleConflict, "MS0204", kError, "two rules claim one module"},
    FindingInfo{F::kUnclaimedParameter, "MS0205", kWarning, "a parameter that no rule claims"},
    FindingInfo{F::kPatternMemory, "MS0207", kError, "the patterns need more memory than allowed"},
    FindingInfo{F::kMostlyReplicated, "MS0208", kWarning, "a plan that leaves most of the model replicated"},
    FindingInfo{F::kLargeReplicated, "MS0209", kWarning, "a large parameter that is replicated without a rule"},
    FindingInfo{F::kNoSuchRedistribution, "MS0301", kError, "no redistribution from one layout to the other"},
    FindingInfo{F::kNoSuchParameter, "MS0302", kError, "a style names a parameter that the module does not have"},
    FindingInfo{F::kBadDim, "MS0303", kError, "a tensor dim that the tensor does not have"},
    FindingInfo{F::kHeadsDoNotFit, "MS0304", kError, "heads that do not fit the mesh or the tensor"},
    FindingInfo{F::kPackedDoesNotFit, "MS0305", kError, "packed sizes that do not add up to the tensor"},
    FindingInfo{F::kTieConflict, "MS0306", kError, "tied parameters with different layouts"},
    FindingInfo{F::kUnusedAxis, "MS0307", kWarning, "a mesh axis that nothing uses"},
    FindingInfo{F::kBadMesh, "MS0308", kError, "a mesh that cannot be built"},
    FindingInfo{F::kStyleDoesNotFit, "MS0309", kError, "a style that does not fit the module"},
    FindingInfo{F::kUnreachablePartial, "MS0310", kError, "a sum that would count a replica twice"},
    FindingInfo{F::kNoSuchOwner, "MS0311", kError, "an owner that is not a rank of the axis"},
    FindingInfo{F::kFusedAsOne, "MS0312", kError, "a fused weight that is sharded as one matrix"},
    FindingInfo{F::kShardsNotTaken, "MS0313", kWarning, "a sharded output that no module consumes as shards"},
    FindingInfo{F::kShardsNotMade, "MS0314", kWarning, "a sharded input that no module produces as shards"},
    FindingInfo{F::kUnreducedPartial, "MS0315", kError, "a partial tensor that is not reduced"},
    FindingInfo{F::kNormLayoutDiffers, "MS0316", kWarning,
                "a norm whose declared layout differs from the modules beside it"},
    FindingInfo{F::kCostsMoreThanItSaves, "MS0317", kWarning, "sharding that costs more than it saves"},
    FindingInfo{F::kFixedSize, "MS0318", kError,
                "an exported program with a fixed size for a dim that the plan shards"},
    FindingInfo{F::kFlowDoesNotFit, "MS0319", kError, "a layout that the consumer of the tensor does not accept"},
    FindingInfo{F::kOrderDiffers, "MS0320", kWarning,
                "features that are produced in one order and consumed in another"},
    FindingInfo{F::kFileNotFound, "MS0401", kError, "a file that does not exist"},
    FindingInfo{F::kFileUnreadable, "MS0402", kError, "a file that cannot be read"},
    FindingInfo{F::kBadSafetensors, "MS0403", kError, "a safetensors file that is not valid"},
    FindingInfo{F::kBadIndex, "MS0404", kError, "a checkpoint index that is not valid"},
    FindingInfo{F::kBadJson, "MS0405", kError, "a JSON file that is not valid"},
    FindingInfo{F::kMissingTensor, "MS0406", kError, "a tensor that the checkpoint does not have"},
    FindingInfo{F::kTensorMismatch, "MS0407", kError, "a tensor with another shape or dtype than the model's"},
    FindingInfo{F::kUnsupportedModel, "MS0408", kError, "a model whose architecture moonshard does not implement"},
    FindingInfo{F::kWriteFailed, "MS0409", kError, "a file that could not be written"},
    FindingInfo{F::kBadManifest, "MS0410", kError, "a sharded checkpoint whose manifest is not valid"},
    FindingInfo{F::kCorruptData, "MS0411", kError, "bytes that differ from those that were written"},
    FindingInfo{F::kBadProgram, "MS0412", kError, "an exported program that cannot be used"},
    FindingInfo{F::kRunTaken, "MS0413", kError, "a run directory that another run uses"},
    FindingInfo{F::kNotHookable, "MS0501", kError, "a module whose calls cannot be intercepted"},
    FindingInfo{F::kRanksDisagree, "MS0502", kError, "ranks with different plans"},
    FindingInfo{F::kRankLost, "MS0503", kError, "a rank that was lost"},
    FindingInfo{F::kUnusedHook, "MS0504", kWarning, "a planned module that was never called"},
    FindingInfo{F::kBypassedHook, "MS0505", kError, "a sharded module that was bypassed"},
    FindingInfo{F::kNotSupported, "MS0506", kError, "a feature that this version does not support"},
    FindingInfo{F::kCollectiveMismatch, "MS0507", kError, "ranks with different tensors in one collective"},
    FindingInfo{F::kBadInput, "MS0508", kError, "an input that the model does not accept"},
    FindingInfo{F::kStaleMember, "MS0509", kError, "a member that is not the registered parameter"},
    FindingInfo{F::kNumbersDiffer, "MS0510", kError, "a sharded module whose results differ from the unsharded model"},
    FindingInfo{F::kNotFinite, "MS0511", kError, "a training step with a non-finite loss or gradient"},
    FindingInfo{F::kNoValues, "MS0512", kError, "a parameter without values"},
    FindingInfo{F::kInitialValuesDiffer, "MS0513", kError, "ranks that begin with different parameters"},
    FindingInfo{F::kUnshardedFunction, "MS0514", kError,
                "a function for unsharded models that was used on a sharded model"},
    FindingInfo{F::kProgramGuard, "MS0515", kError, "sizes for which an exported program is not valid"},
    FindingInfo{F::kIllTyped, "MS0601", kError, "an operator whose operands do not fit together"},
    FindingInfo{F::kLayoutNotAsDeclared, "MS0602", kError, "a tensor whose layout differs from the plan"},
    FindingInfo{F::kWrongGradient, "MS0603", kError,
                "a gradient whose layout differs from what its parameter requires"},
    FindingInfo{F::kUnproven, "MS0604", kWarning, "an operator that could not be checked"},
    FindingInfo{F::kSizeNotScaled, "MS0605", kError, "a size or number that does not scale with the mesh"},
    FindingInfo{F::kInternal, "MS0901", kError, "a defect of moonshard"},
};

}  // namespace

const FindingInfo& InfoOf(Finding finding) {
  const auto* found = std::ranges::find(kFindings, finding, &FindingInfo::finding);
  Check(found != kFindings.end(), "a finding without a row in the table");
  return *found;
}

std::span<const FindingInfo> AllFindings() { return kFindings; }

const char* ToString(Severity severity) {
  switch (severity) {
    case kNote: return "note";
    case kWarning: return "warning";
    case kError: return "error";
  }
  return "error";
}

}  // namespace moonshard
