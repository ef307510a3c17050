#include "engine/io/exported_program/program_weights.h"

#include <utility>

#include "engine/io/exported_program/program_archive.h"
#include "engine/io/exported_program/zip_offsets.h"
#include "engine/io/storage/file.h"
#include "engine/layout/dtype.h"

namespace moonshard {
namespace {

// Row-major without gaps; the stride of a dim of one element, and those of a tensor without elements, do not matter.
bool IsContiguous(const ProgramTensor& tensor) {
  int64_t expected = 1;
  for (const int64_t size : tensor.shape) {
    if (size == 0) return true;
  }
  for (size_t d = tensor.shape.size(); d-- > 0;) {
    if (tensor.shape[d] != 1 && tensor.strides[d] != expected) return false;
    expected *= tensor.shape[d];
  }
  return true;
}

}  // namespace

Result<Checkpoint> WeightsOf(const ExportedProgram& program) {
  const Result<File> file = File::Open(program.file);
  if (!file.ok()) return file.diagnostics();
  const auto offsets = ZipOffsets(program.file);
  if (!offsets.ok()) return offsets.diagnostics();
  Diagnostics found;
  std::vector<StoredTensor> tensors;
  for (const ProgramTensor& tensor : program.tensors) {
    const bool stored = tensor.kind == ProgramTensor::Kind::kParameter ||
                        (tensor.kind == ProgramTensor::Kind::kBuffer && tensor.persistent);
    if (!stored || tensor.tied_to >= 0 || tensor.entry.empty()) continue;
    const auto fail = [&](Finding finding, const std::string& message, const std::string& required) {
      Diagnostic d = MakeDiagnostic(finding, message);
      d.path = program.file;
      d.required = required;
      found.push_back(std::move(d));
    };
    const std::optional<DType> dtype = DTypeFromExported(tensor.entry_dtype);
    if (!dtype || !IsContiguous(tensor)) {
      fail(Finding::kNotSupported, "the values of '" + tensor.name + "' are not contiguous in the archive",
           "a program of a model with contiguous parameters, or the model directory as MODEL, and the program in "
           "--program");
      continue;
    }
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    StoredTensor one{tensor.name, *dtype, tensor.shape, 0, 0, static_cast<uint64_t>(BytesOf(*dtype, elements))};
    const auto at = offsets.value().find(tensor.entry);
    const auto before = static_cast<uint64_t>(BytesOf(*dtype, tensor.storage_offset));
    if (at == offsets.value().end() || before > file.value().bytes() - at->second ||
        one.bytes > file.value().bytes() - at->second - before) {
      fail(Finding::kBadProgram, "the values of '" + tensor.name + "' do not lie within the file",
           "a complete archive, as the exporter writes it");
      continue;
    }
    one.begin = at->second + before;
    tensors.push_back(std::move(one));
  }
  if (HasErrors(found)) return found;
  return Checkpoint::FromParts(program.file, std::move(tensors), {{program.file, file.value().bytes(), {}}});
}

}  // namespace moonshard
