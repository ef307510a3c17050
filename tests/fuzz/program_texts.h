// An exported program from its texts, a line each: the graph, the exporter's record, the tables of weights and of
// constants. They are packed with entries of 0 and of 32 bytes for values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/text.h"
#include "engine/io/exported_program/program_archive.h"
#include "tests/engine/io/exported_program/stored_zip.h"

namespace moonshard::fuzz {

inline Result<ProgramArchive> ArchiveOf(std::string_view lines) {
  const std::vector<std::string> texts = Split(lines, '\n');
  const auto text = [&](size_t i) { return i < texts.size() ? texts[i] : std::string(); };
  constexpr size_t kConstantBytes = 32;
  std::vector<test::ZipEntry> entries = {{"x/models/model.json", text(0)},
                                         {"x/extra/moonshard.json", text(1)},
                                         {"x/data/weights/w", ""},
                                         {"x/data/constants/c", std::string(kConstantBytes, '\x3f')}};
  if (!text(2).empty()) entries.push_back({"x/data/weights/model_weights_config.json", text(2)});
  if (!text(3).empty()) entries.push_back({"x/data/constants/model_constants_config.json", text(3)});
  return ProgramArchive::FromBytes(test::StoredZip(entries), "fuzz.pt2");
}

}  // namespace moonshard::fuzz
