// A plan's author comes from Python, Lua or another library, and writes its names. Edit distance does not help there
// ("Shard" is near "shard", but "None", "enumerate" and "ColwiseParallel" are near nothing), so names are listed with
// what to write instead. The list is consulted only when a name was not found, and a linear search of some forty
// entries is fast enough. Entries of what is left out on purpose (io, os, pcall) say why: a search for another way
// around would be in vain.
#include "dsl/language/sandbox/environment.h"

#include <algorithm>
#include <array>

namespace moonshard {
namespace {

struct ForeignName {
  std::string_view name;
  const char* help;
};

constexpr const char* kNil = "write nil; config:get(name, default) returns a default for a missing or null field";
constexpr const char* kOutside =
    "a plan has no access to files, the environment or the clock, so that it is the same on every rank";
constexpr const char* kNotHere =
    "the plan language does not have this name of Lua; moonshard definitions --form markdown prints the available "
    "names";
constexpr const char* kEach = "'for i, value in ipairs(list) do' iterates over a list, from 1";
constexpr const char* kHuggingFace =
    "for a Hugging Face style, write local hf <const> = require \"hugging_face\" and hf.at(key, hf.NAME)";
constexpr const char* kSameEverywhere =
    "a plan is the same on every rank and cannot depend on the rank; mesh.tp is the size of mesh axis tp";

constexpr auto kForeignNames = std::to_array<ForeignName>({
    {"ColwiseParallel", "write colwise {}"},
    {"False", "write false"},
    {"None", kNil},
    {"NULL", kNil},
    {"Partial", "write partial"},
    {"PrepareModuleInput", "write prepare_input { { from, to } }"},
    {"PrepareModuleOutput", "write prepare_output { { from, to } }"},
    {"Replicate", "write replicate"},
    {"RowwiseParallel", "write rowwise {}"},
    {"SequenceParallel", "write sequence_parallel {}, or norm_on(shard(1))"},
    {"Shard", "write shard(dim)"},
    {"True", "write true"},
    {"collectgarbage", kNotHere},
    {"colwise_gather_output", kHuggingFace},
    {"colwise_rep", kHuggingFace},
    {"coroutine", kNotHere},
    {"debug", kNotHere},
    {"def", "write local function"},
    {"dofile", "require \"name\" runs a file of the plan's own directory and returns the file's value"},
    {"getmetatable", kNotHere},
    {"enumerate", kEach},
    {"import", "write local name <const> = require \"name\""},
    {"io", kOutside},
    {"len", "write #list for the length of list"},
    {"isinstance", "type(value) returns the name of the type"},
    {"load", kNotHere},
    {"loadfile", "require \"name\" runs a file of the plan's own directory and returns the file's value"},
    {"null", kNil},
    {"opt", "declare the options first: local opt <const> = options { name = default }"},
    {"os", kOutside},
    {"packed_colwise", kHuggingFace},
    {"pcall", kNotHere},
    {"print",
     "a plan cannot print; moonshard explain shows what the plan does, and the REPL prints the value of an expression"},
    {"range", "'for i = 0, n - 1 do' counts from 0 to n - 1"},
    {"rank", kSameEverywhere},
    {"rowwise_rep", kHuggingFace},
    {"setmetatable", kNotHere},
    {"str", "tostring(value) converts to a string; a .. b concatenates"},
    {"styles", "a style is a builtin: write colwise {}"},
    {"world_size", kSameEverywhere},
    {"xpcall", kNotHere},
});

}  // namespace

std::string HelpForForeignName(std::string_view name) {
  const auto* found = std::ranges::find(kForeignNames, name, &ForeignName::name);
  return found == kForeignNames.end() ? "" : found->help;
}

}  // namespace moonshard
