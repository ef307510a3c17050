// The same sequence as a call of the root through its hook (nn/boundary.h), with the host's function in the place of
// forward: outside steps, inside steps, function, inside steps, outside steps. Recomputation is refused: the runner
// would keep `inside` and call it again in the backward, when what the host's function refers to may be gone.
#include "engine/runtime/sharded_model/call_as_model.h"

#include <memory>
#include <utility>

#include "engine/core/base/result.h"
#include "engine/runtime/nn/boundary.h"

namespace moonshard {

at::Tensor CallAsModel(torch::nn::Module& model, at::Tensor input,
                       const std::function<at::Tensor(const at::Tensor&)>& inside) {
  const auto* hook = dynamic_cast<Hookable*>(&model);
  Boundary* boundary = hook == nullptr ? nullptr : hook->boundary();
  if (boundary == nullptr) return inside(input);
  if (boundary->runner() != nullptr) {
    Diagnostic d =
        MakeDiagnostic(Finding::kNotSupported, "CallAsModel does not support a model whose root is recomputed");
    d.required = "recompute { ... } of modules inside the model, not of the root";
    throw PlanError({std::move(d)});
  }
  try {
    BoundaryCall call(*boundary);
    const TensorSlot argument = {0, &input};
    call.Enter({&argument, 1});
    at::Tensor output;
    const TensorSlot result = {0, &output};
    {
      InsideCall around(*boundary);
      around.Enter({&argument, 1});
      output = inside(input);
      around.Leave({&result, 1});
    }
    call.Leave({&result, 1});
    return output;
  } catch (...) {
    boundary->Explain();
    throw;
  }
}

}  // namespace moonshard
