// TextVerbs: the verbs that only print a text: `definitions` (the plan language, for editors), `completion`, `man`, and
// `export-script` (the path of the exporter of PyTorch models). `completion` and `man` read the definitions of all
// verbs, so these verbs are added last.
#pragma once

#include <optional>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): the name of CLI11
class App;
}

namespace moonshard {

class TextVerbs {
 public:
  // Adds the verbs to `app`, which must outlive this object.
  explicit TextVerbs(CLI::App& app);
  TextVerbs(const TextVerbs&) = delete;
  TextVerbs& operator=(const TextVerbs&) = delete;

  // After parsing: returns the text of the verb that was given; nothing if that is none of these verbs. Throws
  // PlanError: kFileNotFound if the exporter is not installed.
  std::optional<std::string> Asked() const;

 private:
  const CLI::App& app_;
  const CLI::App* definitions_;
  const CLI::App* completion_;
  const CLI::App* man_;
  const CLI::App* export_script_;
  std::string form_ = "luacats";
  std::string library_ = "/usr/local/share/moonshard/library";
  std::string shell_;
};

}  // namespace moonshard
