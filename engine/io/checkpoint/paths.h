// RefuseNested: two directories of which one is read while the other is written.
#pragma once

#include <string>

#include "engine/io/storage/storage.h"

namespace moonshard {

// kNotSupported where one directory is the other or lies in it; links are followed.
Failure RefuseNested(const std::string& from, const std::string& to);

}  // namespace moonshard
