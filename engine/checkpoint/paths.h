// RefuseNested: two folders of which one is read while the other is written.
#pragma once

#include <string>

#include "engine/checkpoint/storage.h"

namespace moonshard {

// kNotSupported where one folder is the other or lies in it; links are followed.
Failure RefuseNested(const std::string& from, const std::string& to);

}  // namespace moonshard
