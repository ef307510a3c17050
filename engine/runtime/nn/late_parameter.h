// AddsAlong: the interface of a module class whose held-back parameters (Hookable::HoldBack) do not run along the last
// dim of its result. A class with HoldBack derives from it as well; of a class that does not, the boundary adds a
// parameter along the last dim, as the bias of a Linear is. LateDim also says that the parameter is added to the result
// as it is, once.
#pragma once

#include <cstdint>
#include <string_view>

namespace moonshard::nn {

class AddsAlong {
 public:
  virtual ~AddsAlong() = default;
  // Returns the dim of the first result that the last dim of `parameter` runs along, counted from the end, so that it
  // is the same with and without a batch: -2 for the channels of [batch, channels, positions] and of [channels,
  // positions]. From -1 downwards; a plan is refused (kStyleDoesNotFit) where it is not.
  virtual int64_t LateDim(std::string_view parameter) const = 0;
};

}  // namespace moonshard::nn
