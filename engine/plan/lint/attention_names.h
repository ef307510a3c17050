// The names that architectures use for the projections of attention: the last component of a module's path. The lints
// that compare heads (heads.cc, head_order.cc) recognise projections by them; a block with other names is not checked.
#pragma once

#include <array>
#include <string_view>

namespace moonshard {

inline constexpr std::array<std::string_view, 7> kQueryNames = {"q",          "q_lin", "q_proj", "query",
                                                                "query_proj", "to_q",  "wq"};
inline constexpr std::array<std::string_view, 7> kKeyNames = {"k", "k_lin", "k_proj", "key", "key_proj", "to_k", "wk"};
inline constexpr std::array<std::string_view, 7> kValueNames = {"v",          "v_lin", "v_proj", "value",
                                                                "value_proj", "to_v",  "wv"};
// Queries, keys and values in one weight.
inline constexpr std::array<std::string_view, 7> kFusedNames = {"W_pack", "Wqkv",     "c_attn",         "linear_qkv",
                                                                "qkv",    "qkv_proj", "query_key_value"};

}  // namespace moonshard
