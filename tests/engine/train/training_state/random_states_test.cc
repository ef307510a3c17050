#include "engine/train/training_state/random_states.h"

#include <catch2/catch.hpp>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace moonshard::test {
namespace {

MeshShape Mesh(const std::string& text) { return MeshShape::Parse(text).ValueOrThrow(); }

// What every rank of a mesh goes on with: "0", "3", or "0+" with a seed.
std::vector<std::string> Choices(const std::string& saved, const std::vector<std::string>& states,
                                 const std::string& mesh) {
  std::vector<std::string> out;
  for (int64_t rank = 0; rank < Mesh(mesh).world_size(); ++rank) {
    const RandomChoice choice = ChooseRandomState(Mesh(saved), states, Mesh(mesh), rank);
    std::string text = std::to_string(choice.rank);
    if (choice.reseed) text.append("+").append(std::to_string(*choice.reseed));
    out.push_back(std::move(text));
  }
  return out;
}

bool AllDiffer(const std::vector<std::string>& texts) {
  return std::set<std::string>(texts.begin(), texts.end()).size() == texts.size();
}

using Texts = std::vector<std::string>;

TEST_CASE("random states on the mesh that saved them are the ranks' own") {
  for (const char* mesh : {"tp=4", "dp=4", "dp_replicate=2,dp_shard=2", "dp=2,tp=2"}) {
    CHECK(Choices(mesh, {"a", "b", "c", "d"}, mesh) == Texts{"0", "1", "2", "3"});
    // Ranks that drew alike still do.
    for (const std::string& choice : Choices(mesh, {"a", "a", "a", "a"}, mesh)) {
      CHECK(choice.find('+') == std::string::npos);
    }
  }
}

TEST_CASE("random states on other meshes") {
  // HSDP and fsdp of as many data-parallel ranks are the same to a generator.
  CHECK(Choices("dp_replicate=2,dp_shard=2", {"a", "b", "c", "d"}, "dp=4") == Texts{"0", "1", "2", "3"});
  // Ranks of one data coordinate that drew alike go on alike, however many they are now.
  CHECK(Choices("tp=2", {"a", "a"}, "tp=4") == Texts{"0", "0", "0", "0"});
  CHECK(Choices("dp=2,tp=2", {"a", "a", "b", "b"}, "dp=2,tp=3") == Texts{"0", "0", "0", "2", "2", "2"});
  CHECK(Choices("dp=2,tp=2", {"a", "a", "b", "b"}, "dp=2") == Texts{"0", "2"});
  // A single rank tells nothing of whether ranks of tp should differ: they draw alike.
  CHECK(Choices("tp=1", {"a"}, "tp=2") == Texts{"0", "0"});

  // Those that drew differently go on differently.
  const Texts wider = Choices("tp=2", {"a", "b"}, "tp=4");
  CHECK(wider[0] == "0");
  CHECK(wider[1] == "1");
  CHECK(wider[2].starts_with("0+"));
  CHECK(AllDiffer(wider));
  CHECK(wider == Choices("tp=2", {"a", "b"}, "tp=4"));

  // New data-parallel ranks draw differently from all others.
  const Texts more = Choices("dp=2", {"a", "b"}, "dp=4");
  CHECK(more[0] == "0");
  CHECK(more[1] == "1");
  CHECK(AllDiffer(more));
  const Texts alike = Choices("dp=1,tp=2", {"a", "a"}, "dp=2,tp=2");
  CHECK(alike[0] == "0");
  CHECK(alike[1] == "0");
  CHECK(alike[2] == alike[3]);
  CHECK(alike[2].starts_with("0+"));
  const Texts unlike = Choices("dp=1,tp=2", {"a", "b"}, "dp=2,tp=4");
  CHECK(AllDiffer(unlike));
}

}  // namespace
}  // namespace moonshard::test
