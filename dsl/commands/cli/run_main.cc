#include "dsl/commands/cli/run_main.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>

#include "dsl/commands/cli/options.h"
#include "dsl/commands/cli/verbs.h"
#include "engine/core/base/check.h"
#include "engine/core/base/diagnostic.h"
#include "engine/core/base/visible.h"

namespace moonshard {

int RunMain(const std::string& executable, const std::function<int()>& body) {
  try {
    return body();
  } catch (const InternalError& error) {
    std::cerr << executable << ": defect: " << VisibleLines(error.what()) << "\n";
    return kExitDefect;
  } catch (const PlanError& error) {
    PrintFindings(error.diagnostics(), {});
    return ExitCodeOf(error.diagnostics());
  } catch (const std::bad_alloc&) {
    std::cerr << executable << ": there is not enough memory\n";
    return kExitFailed;
  } catch (const std::exception& error) {
    std::cerr << executable << ": " << VisibleLines(error.what()) << "\n";
    return kExitFailed;
  }
}

int EndOutput(int code, const FindingsOutput& options) {
  errno = 0;
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  const int error = errno;
  if (flushed && std::cout.good() && std::ferror(stdout) == 0) return code;
  const std::string why = error == 0 ? "only a part of the output was written" : std::strerror(error);
  PrintFindings({MakeDiagnostic(Finding::kWriteFailed, "cannot write to stdout: " + why)}, options);
  return code == kExitSuccess ? kExitFailed : code;
}

}  // namespace moonshard
