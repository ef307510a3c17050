// RecordingBackend: a c10d backend without peers. It records every collective and fills outputs with this rank's own
// data, so that shapes are right and values are not. For dry runs of any rank of any world size.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace moonshard {

struct RecordedCollective {
  std::string group;           // "tp[0,1]"
  std::string kind;            // "all_reduce", "all_gather", "reduce_scatter", "all_to_all"
  std::vector<int64_t> shape;  // of this rank's input to c10d
  std::string dtype;           // "Float"
  bool operator==(const RecordedCollective&) const = default;
};

using CollectiveLog = std::vector<RecordedCollective>;

// The backend appends to `log`. Only one thread at a time may use it.
c10::intrusive_ptr<c10d::Backend> MakeRecordingBackend(int rank, int size, std::string name,
                                                       std::shared_ptr<CollectiveLog> log);

}  // namespace moonshard
