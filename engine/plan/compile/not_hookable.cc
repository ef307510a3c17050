#include "engine/plan/compile/not_hookable.h"

namespace moonshard {

Diagnostic NotHookable(const Module& module, const std::string& consequence, const SourceSpan& where) {
  const std::string name = module.path.empty() ? "the model itself" : "'" + module.path + "'";
  Diagnostic d =
      MakeDiagnostic(Finding::kNotHookable, "calls of " + name + " cannot be intercepted, so " + consequence, where);
  d.path = module.path;
  d.declared = (module.kind.empty() ? "its class" : "'" + module.kind + "'") + " is an ordinary LibTorch module";
  d.required = "a module whose calls moonshard sees";
  d.help = "declare its class with MOONSHARD_MODULE(Name) in place of TORCH_MODULE(Name)";
  return d;
}

}  // namespace moonshard
