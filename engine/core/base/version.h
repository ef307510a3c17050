// Version: the version of moonshard, for the preprocessor of a host application. CMakeLists.txt reads the version of
// the package (find_package(moonshard 0.1)) and of `moonshard --version` from this file.
//
//   #if MOONSHARD_VERSION_MAJOR == 0 && MOONSHARD_VERSION_MINOR < 2
#pragma once

#define MOONSHARD_VERSION_MAJOR 0
#define MOONSHARD_VERSION_MINOR 1
#define MOONSHARD_VERSION_PATCH 0

#define MOONSHARD_TEXT_OF(x) #x
#define MOONSHARD_VERSION_TEXT(major, minor, patch) \
  MOONSHARD_TEXT_OF(major) "." MOONSHARD_TEXT_OF(minor) "." MOONSHARD_TEXT_OF(patch)
// "0.1.0"
#define MOONSHARD_VERSION \
  MOONSHARD_VERSION_TEXT(MOONSHARD_VERSION_MAJOR, MOONSHARD_VERSION_MINOR, MOONSHARD_VERSION_PATCH)
