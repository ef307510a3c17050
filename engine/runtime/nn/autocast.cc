#include "engine/runtime/nn/autocast.h"

#include <ATen/autocast_mode.h>

namespace moonshard::nn {

Autocast::Autocast(c10::DeviceType device, c10::ScalarType type)
    : device_(device),
      enabled_(at::autocast::is_autocast_enabled(device)),
      cached_(at::autocast::is_autocast_cache_enabled()),
      type_(at::autocast::get_autocast_dtype(device)) {
  const bool shorter = type == c10::kBFloat16 || type == c10::kHalf;
  at::autocast::set_autocast_enabled(device, shorter);
  at::autocast::set_autocast_cache_enabled(false);
  if (shorter) at::autocast::set_autocast_dtype(device, type);
}

Autocast::~Autocast() {
  at::autocast::set_autocast_dtype(device_, type_);
  at::autocast::set_autocast_cache_enabled(cached_);
  at::autocast::set_autocast_enabled(device_, enabled_);
}

}  // namespace moonshard::nn
