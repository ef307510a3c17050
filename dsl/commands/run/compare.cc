#include <cmath>
#include <cstdio>

#include "dsl/commands/cli/verbs.h"
#include "dsl/commands/run/difference.h"
#include "dsl/commands/run/tensor_file.h"
#include "dsl/commands/run/verbs.h"
#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"

namespace moonshard {
int RunCompare(const CompareVerb& verb) {
  const std::map<std::string, at::Tensor> actual = ReadTensorFile(verb.actual).ValueOrThrow();
  const std::map<std::string, at::Tensor> expected = ReadTensorFile(verb.expected).ValueOrThrow();
  Diagnostics errors;
  double worst = 0;
  std::string worst_name;
  for (const auto& [name, tensor] : expected) {
    const auto found = actual.find(name);
    Diagnostic d = MakeDiagnostic(Finding::kMissingTensor, "'" + name + "' is not in " + verb.actual);
    if (found != actual.end() && found->second.sizes() != tensor.sizes()) {
      d = MakeDiagnostic(Finding::kTensorMismatch, "'" + name + "' has another shape");
      d.declared = ShapeToString({found->second.sizes().begin(), found->second.sizes().end()});
      d.required = ShapeToString({tensor.sizes().begin(), tensor.sizes().end()});
    } else if (found != actual.end()) {
      const double difference = RelativeDifference(found->second, tensor);
      // A difference that is not a number must not pass either.
      const bool good = difference <= verb.tolerance;
      std::printf("%-64s %.2e%s\n", Visible(name).c_str(), difference, good ? "" : "  TOO LARGE");
      if (!good || difference > worst) {
        worst = std::isfinite(difference) ? std::max(worst, difference) : difference;
        worst_name = name;
      }
      if (good) continue;
      d = MakeDiagnostic(Finding::kTensorMismatch, "'" + name + "' differs by more than the tolerance");
      d.declared = std::to_string(difference);
      d.required = "at most " + std::to_string(verb.tolerance) + " of the largest expected value";
    }
    errors.push_back(std::move(d));
  }
  std::printf("%zu tensors, largest difference %.2e (%s), tolerance %.0e\n", expected.size(), worst,
              Visible(worst_name).c_str(), verb.tolerance);
  if (errors.empty()) return kExitSuccess;
  std::fputs(ToText(errors).c_str(), stderr);
  return kExitFailed;
}

}  // namespace moonshard
