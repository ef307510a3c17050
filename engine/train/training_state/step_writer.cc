// A step on disk, by all ranks and then by rank 0. While it is under construction, for two rank files:
//
//   step_00000100.partial/new/rank-00000.safetensors      rank 0; rank-00001 by rank 1
//   step_00000100.partial/rank-00000.safetensors.note     hashes of its shards, its generators
//   step_00000100.partial/new/moonshard.json              rank 0, last
//
// The commit renames it. Ranks that hold the shards of another one write a note and no file.
#include "engine/train/training_state/step_writer.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "engine/core/base/check.h"
#include "engine/core/base/hash.h"
#include "engine/core/base/json.h"
#include "engine/core/base/small_file.h"
#include "engine/core/base/text.h"
#include "engine/io/checkpoint/rank_file.h"
#include "engine/io/safetensors/writer.h"

namespace moonshard {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

std::string ToHex(const std::string& bytes) {
  std::string out;
  out.reserve(2 * bytes.size());
  for (const char c : bytes) {
    out += kHexDigits[static_cast<unsigned char>(c) >> 4];
    out += kHexDigits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

std::optional<std::string> FromHex(const std::string& text) {
  if (text.size() % 2 != 0 || text.find_first_not_of(kHexDigits) != std::string::npos) return std::nullopt;
  std::string out;
  for (size_t i = 0; i < text.size(); i += 2) {
    out += static_cast<char>(kHexDigits.find(text[i]) << 4 | kHexDigits.find(text[i + 1]));
  }
  return out;
}

std::string NotePath(const std::string& place, int64_t rank) {
  return StagingDirectory::PartialOf(place) + "/" + RankFileName(rank) + ".note";
}

// What a rank reports of its part.
struct RankNote {
  std::map<std::string, std::string> generators;  // state by name, as bytes
  std::vector<uint64_t> hashes;                   // of its shards, by tensor of the manifest
};

// Errors: those of ReadJsonFile (SmallFile::kNote); kCorruptData where the file is not the note of a rank with `shards`
// shards.
Result<RankNote> ReadNote(const std::string& place, int64_t rank, size_t shards) {
  const std::string path = NotePath(place, rank);
  const Result<JsonValue> json = ReadJsonFile(path, SmallFile::kNote);
  if (!json.ok()) return json.diagnostics();
  const auto damaged = [&](const std::string& what) {
    Diagnostic d = MakeDiagnostic(Finding::kCorruptData,
                                  "the record of rank " + std::to_string(rank) + " about the saved step is corrupt");
    d.path = path;
    d.declared = what;
    d.required = "the bytes that rank " + std::to_string(rank) + " wrote; check that all ranks share one file system";
    return d;
  };
  RankNote note;
  const JsonValue* generators = json.value().Find("generators");
  if (generators == nullptr || !generators->is_object()) return damaged("no generator states");
  for (const auto& [name, state] : generators->AsObject()) {
    std::optional<std::string> bytes = state.is_string() ? FromHex(state.AsString()) : std::nullopt;
    if (!bytes) return damaged("a state of generator " + JsonQuoted(name) + " that is not in hexadecimal digits");
    note.generators[name] = std::move(*bytes);
  }
  if (shards == 0) return note;
  const JsonValue* hashes = json.value().Find("hashes");
  if (hashes == nullptr || !hashes->is_string()) return damaged("no hashes of shards");
  for (const std::string& text : Split(hashes->AsString(), ' ')) {
    const std::optional<uint64_t> hash = HashFromText(text);
    if (!hash) return damaged("an invalid hash " + JsonQuoted(text));
    note.hashes.push_back(*hash);
  }
  if (note.hashes.size() == shards) return note;
  return damaged(std::to_string(note.hashes.size()) + " hashes for " + std::to_string(shards) + " shards");
}

// The ranks' generators as one safetensors file.
std::string RandomFile(const std::vector<std::map<std::string, std::string>>& by_rank) {
  std::vector<TensorSpec> specs;
  std::string data;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const auto& [name, state] : by_rank[rank]) {
      specs.push_back({RandomName(static_cast<int64_t>(rank), name), DType::kU8, {static_cast<int64_t>(state.size())}});
      data += state;
    }
  }
  Result<WrittenHeader> header = WriteHeader(kRandomFile, specs, {});
  Check(header.ok(), "names of generators are UTF-8");
  return header.value().text + data;
}

}  // namespace

std::string RandomName(int64_t rank, const std::string& generator) {
  std::array<char, 40> name = {};
  std::snprintf(name.data(), name.size(), "rank_%05lld.", static_cast<long long>(rank));
  return name.data() + generator;
}

std::optional<size_t> FileToWrite(const Manifest& manifest, int64_t rank) {
  const size_t file = manifest.FileOfRank(rank);
  if (manifest.rank_files[file].rank != rank) return std::nullopt;
  return file;
}

// What rank 0 needs from the others to complete the step (hashes of their shards, states of their generators) goes
// through small files in the staging directory, which all ranks share, and not through the exchange, whose store is the
// memory of one process. The notes are outside of new/, so the commit leaves them behind.
Diagnostics WriteRankPart(Storage& storage, const StepJob& job) {
  JsonValue::Object note;
  const Manifest& manifest = job.laid_out.manifest;
  if (const std::optional<size_t> file = FileToWrite(manifest, job.rank)) {
    Result<RankFileWriter> writer =
        RankFileWriter::Create(storage, StagingDirectory::PartialOf(job.place) + "/new", job.laid_out, *file);
    if (!writer.ok()) return writer.diagnostics();
    // From front to back: by offset and not by name, since storage is fastest with sequential writes.
    std::vector<size_t> order;
    for (size_t t = 0; t < manifest.tensors.size(); ++t) {
      if (manifest.LayoutOf(manifest.tensors[t]).shards[*file]) order.push_back(t);
    }
    std::ranges::sort(order, {}, [&](size_t t) { return job.laid_out.begin[*file][t]; });
    for (size_t t : order) {
      const at::Tensor shard = job.shards[t].cpu().contiguous();
      if (Failure failed = writer.value().Write(t, shard.const_data_ptr(), shard.nbytes())) return {*failed};
    }
    const Result<std::vector<uint64_t>> hashes = writer.value().Finish();
    if (!hashes.ok()) return hashes.diagnostics();
    std::ranges::sort(order);
    std::vector<std::string> texts;
    for (size_t t : order) texts.push_back(HashToText(hashes.value()[t]));
    note["hashes"] = Join(texts, " ");
  }
  JsonValue::Object generators;
  for (const auto& [name, state] : job.generators) generators[name] = ToHex(state);
  note["generators"] = std::move(generators);
  if (Failure failed = WriteFile(storage, NotePath(job.place, job.rank), WriteJson(note, 0))) return {*failed};
  return {};
}

// Runs on rank 0 after every rank has reported its part. The manifest is last, with the hashes of everything else; then
// the commit makes the step visible, and only a visible step is named by `latest` and lets older ones be removed.
Diagnostics CompleteStep(Storage& storage, RunDirectory& run, StepJob& job) {
  Manifest& manifest = job.laid_out.manifest;
  std::vector<std::map<std::string, std::string>> generators(static_cast<size_t>(manifest.mesh.world_size()));
  for (size_t rank = 0; rank < generators.size(); ++rank) {
    const std::optional<size_t> file = FileToWrite(manifest, static_cast<int64_t>(rank));
    std::vector<ShardedTensor*> written;
    for (ShardedTensor& tensor : manifest.tensors) {
      if (file && manifest.LayoutOf(tensor).shards[*file]) written.push_back(&tensor);
    }
    Result<RankNote> note = ReadNote(job.place, static_cast<int64_t>(rank), written.size());
    if (!note.ok()) return note.diagnostics();
    generators[rank] = std::move(note.value().generators);
    for (size_t i = 0; i < written.size(); ++i) written[i]->shard_hash[*file] = note.value().hashes[i];
  }

  std::vector<std::string> files = {kManifestFile, kRandomFile};
  for (const RankFile& file : manifest.rank_files) files.push_back(file.name);
  ModelForm form = FitForm(*job.form, job.form_tensors, manifest);
  AddAdapterFiles(job.adapter, manifest, form);
  if (Failure failed = WriteForm(storage, job.staging->directory(), form, manifest, files)) return {*failed};
  const std::string random = RandomFile(generators);
  job.record.random_bytes = random.size();
  job.record.random_hash = HashOf(random);
  if (Failure failed = MakeDirectoriesFor(storage, job.staging->directory(), kRandomFile)) return {*failed};
  if (Failure failed = WriteFile(storage, job.staging->PathOf(kRandomFile), random)) return {*failed};
  manifest.extra = job.record.ToJson();
  if (Failure failed = WriteFile(storage, job.staging->PathOf(kManifestFile), manifest.ToText())) return {*failed};
  if (Failure taken = run.MayWrite(job.step)) return {*taken};
  if (Failure failed = job.staging->Commit(files)) return {*failed};
  job.staging.reset();
  run.Wrote(job.step);
  if (Failure failed = run.PointTo(storage, job.step)) {
    failed->help = "'" + job.place + "' is complete: load this step by its number";
    return {*failed};
  }
  return run.Prune(storage, job.step, job.keep);
}

void AbandonStep(Storage& storage, StepJob& job) {
  if (!job.staging) return;
  job.staging.reset();
  StagingDirectory::RemovePartial(job.place, storage);
}

}  // namespace moonshard
