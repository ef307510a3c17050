// Numbered patterns: keys of a Hugging Face tp_plan, as transformers compares them with names. It replaces, from left to
// right, every component of a name that is a number between two dots (or a dot and the end) by `*`, and looks the result
// up as it is. So in a key `*` stands for one number and everything else for itself, and some keys can never be found:
//
//   layers.*.mlp      layers.0.mlp, layers.17.mlp; not layers.first.mlp
//   layers.0.mlp      nothing: the 0 of every name is replaced before the key is looked up
//   blocks.*.*.w      nothing: a dot ends one number only, so of two in a row the second stays (blocks.*.2.w is found)
//   *.mlp             nothing: the first component stands behind no dot
//
// Source: replace_layer_number_by_wildcard in transformers/distributed/tensor_parallel.py, 5.18. Part of pattern.h.
#pragma once

#include <string>
#include <string_view>

#include "engine/plan/match/pattern.h"

namespace moonshard {

// The expression for a key; one that matches no path where no name can be found under it.
Pattern TranslateNumbered(std::string_view key);

// The key under which a name is looked up: "layers.17.mlp" -> "layers.*.mlp".
std::string NumberedKeyOf(std::string_view name);

// Why no name can be found under a key: "" where one can.
std::string WhyNeverFound(std::string_view key);

}  // namespace moonshard
