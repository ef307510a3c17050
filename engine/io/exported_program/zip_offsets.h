// ZipOffsets: where the bytes of the entries of an uncompressed zip file are in the file, so that a part of a large
// entry can be read without the rest. libzip reads entries but does not report their positions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "engine/core/base/result.h"

namespace moonshard {

// Returns the offset of the first byte of each entry, by name without the archive's directory. Reads the central
// directory (APPNOTE.TXT of PKWARE, with the ZIP64 records of files above 4 GiB) and the header before each entry.
// Errors: kFileNotFound, kFileUnreadable; kBadProgram: the records are missing or contradict each other, or an entry
// does not lie within the file.
Result<std::map<std::string, uint64_t, std::less<>>> ZipOffsets(const std::string& path);
// As ZipOffsets, for the bytes of a file; `path` is the name of the file in messages.
Result<std::map<std::string, uint64_t, std::less<>>> ZipOffsetsOfBytes(std::string_view bytes, const std::string& path);

}  // namespace moonshard
