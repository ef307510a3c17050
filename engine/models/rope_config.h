// The rotary part of a decoder's config.json: rope_theta with rope_scaling (transformers 4), or rope_parameters
// (transformers 5), with the precedence and the defaults of transformers 5. Used by decoder_config.cc.
#pragma once

#include "engine/base/diagnostic.h"
#include "engine/models/decoder_config.h"

namespace moonshard {

// Adds an error for a type that is not computed here, by name, and for each field that is missing or of the wrong kind.
RopeConfig ParseRopeConfig(const JsonValue& config, int64_t max_position_embeddings, const std::string& file_name,
                           Diagnostics& diagnostics);

}  // namespace moonshard
