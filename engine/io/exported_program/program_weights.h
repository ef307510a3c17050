// ProgramWeights: the weights in the archive of an exported program as a checkpoint. The checkpoint points into the
// archive, where torch.export stores values uncompressed, so that a shard is read without the rest of its tensor.
// Stage before: program_archive.h. Stages after: the readers of a Checkpoint (engine/io/checkpoint, sharded_model).
#pragma once

#include "engine/core/base/result.h"
#include "engine/io/exported_program/exported_program.h"
#include "engine/io/safetensors/checkpoint.h"

namespace moonshard {

// Returns the parameters and persistent buffers whose values are in the program's archive, with their names in the
// model. Of tied tensors, only the first is listed. For a directory of archives, the first archive is read. Errors:
// those of ZipOffsets; kBadProgram: the values of a tensor do not lie within the file; kNotSupported: the values of a
// tensor are not contiguous in the archive.
Result<Checkpoint> WeightsOf(const ExportedProgram& program);

}  // namespace moonshard
