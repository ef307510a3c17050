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

constexpr const char* kNil = "in Lua it is nil; config:get(name, default) takes a default";
constexpr const char* kOutside =
    "a plan has no access to files, the environment or the clock, so that it is the same on every rank";
constexpr const char* kNotHere = "the plan language does not include this part of Lua; dsl/README.md lists its names";
constexpr const char* kEach = "'for i, value in ipairs(list) do' iterates over a list, from 1";
constexpr const char* kHuggingFace =
    "a style of Hugging Face: local hf <const> = require \"hugging_face\", then hf.at(key, hf.NAME)";
constexpr const char* kSameEverywhere =
    "a plan is the same on every rank and cannot depend on it; mesh.tp is the size of an axis";

constexpr auto kForeignNames = std::to_array<ForeignName>({
    {"ColwiseParallel", "here it is colwise {}"},
    {"False", "write false"},
    {"None", kNil},
    {"NULL", kNil},
    {"Partial", "here it is partial"},
    {"PrepareModuleInput", "here it is prepare_input { { from, to } }"},
    {"PrepareModuleOutput", "here it is prepare_output { { from, to } }"},
    {"Replicate", "here it is replicate"},
    {"RowwiseParallel", "here it is rowwise {}"},
    {"SequenceParallel", "here it is sequence_parallel {}, or norm_on(shard(1))"},
    {"Shard", "here it is shard(dim)"},
    {"True", "write true"},
    {"collectgarbage", kNotHere},
    {"colwise_gather_output", kHuggingFace},
    {"colwise_rep", kHuggingFace},
    {"coroutine", kNotHere},
    {"debug", kNotHere},
    {"def", "write local function"},
    {"dofile", "require \"name\" runs a file of the plan's own directory, and returns its value"},
    {"getmetatable", kNotHere},
    {"enumerate", kEach},
    {"import", "write local name <const> = require \"name\""},
    {"io", kOutside},
    {"len", "#list is its length"},
    {"isinstance", "type(value) is the name of its type"},
    {"load", kNotHere},
    {"loadfile", "require \"name\" runs a file of the plan's own directory, and returns its value"},
    {"null", kNil},
    {"opt", "options are declared first: local opt <const> = options { name = default }"},
    {"os", kOutside},
    {"packed_colwise", kHuggingFace},
    {"pcall", kNotHere},
    {"print", "a plan prints nothing; explain shows what it does, and the REPL prints every expression"},
    {"range", "'for i = 0, n - 1 do' counts from 0 to n - 1"},
    {"rank", kSameEverywhere},
    {"rowwise_rep", kHuggingFace},
    {"setmetatable", kNotHere},
    {"str", "tostring(value) converts to a string; a .. b concatenates"},
    {"styles", "styles are builtins: colwise {}"},
    {"world_size", kSameEverywhere},
    {"xpcall", kNotHere},
});

}  // namespace

std::string HelpForForeignName(std::string_view name) {
  const auto* found = std::ranges::find(kForeignNames, name, &ForeignName::name);
  return found == kForeignNames.end() ? "" : found->help;
}

}  // namespace moonshard
