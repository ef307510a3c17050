// A model directory becomes a sharded checkpoint in one pass over its bytes. W [4, 6] as shard(1) on tp=2:
//
//   source         a0 a1 a2 a3 a4 a5  b0 b1 b2 b3 b4 b5  ...
//   rank-00000     a0 a1 a2  b0 b1 b2  ...
//   rank-00001     a3 a4 a5  b3 b4 b5  ...
//
// The intervals of a shard ascend along each dim, so its elements have the order that they have in the full tensor.
// What a chunk of the source holds of a shard therefore continues what the chunks before it held: each rank file has
// one place where it is extended, and no more than a chunk is in memory.
//
// Where the model has another form than the directory (stacked experts), the walk is over the model's tensors: a chunk
// of one is read from those that it is made of.

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "engine/core/base/hash.h"
#include "engine/core/base/json.h"
#include "engine/core/base/text.h"
#include "engine/io/checkpoint/chunks.h"
#include "engine/io/checkpoint/conversion.h"
#include "engine/io/checkpoint/convert.h"
#include "engine/io/checkpoint/convert_files.h"
#include "engine/io/checkpoint/lay_out.h"
#include "engine/io/checkpoint/model_files.h"
#include "engine/io/checkpoint/model_form.h"
#include "engine/io/checkpoint/sharded_checkpoint.h"
#include "engine/io/safetensors/invert_recipes.h"
#include "engine/io/safetensors/read_recipe.h"
#include "engine/io/safetensors/reader.h"
#include "engine/io/safetensors/recipe_json.h"
#include "engine/io/storage/storage.h"

namespace moonshard {
namespace {

std::vector<std::string> PathsOf(const Checkpoint& source) {
  std::vector<std::string> paths;
  for (const CheckpointFile& file : source.files()) paths.push_back(file.path);
  return paths;
}

// The source is read once, in the order of its bytes, a chunk at a time; each rank file's share of the chunk goes to
// the end of what that file has of the tensor. A tensor's hashes are recorded in the journal when all of its shards are
// written: the tensor is the unit at which an interrupted run resumes, and what is resumed is read again and compared
// with the hashes.
class Sharder : private Conversion {
 public:
  Sharder(const Checkpoint& source, const CompiledPlan& plan, const std::string& out, const ConvertOptions& options,
          const WeightRecipes* recipes, const ModelForm* form)
      : Conversion(out, options),
        source_(source),
        plan_(plan),
        recipes_(recipes),
        form_(form),
        inputs_(PathsOf(source)),
        reader_(source),
        parts_(source, reader_) {}

  Result<ConvertSummary> Run() {
    std::optional<ModelFiles> files = ModelFiles();
    if (form_ == nullptr) {
      if (Failure nested = RefuseNested(source_.path(), out())) return *nested;
      files = ListModelFiles(source_.path(), source_).Collect(found_);
    }
    ListTensors();
    if (HasErrors(found_)) return found_;
    std::optional<LaidOut> laid_out = LayOut(Placed(), plan_.mesh).Collect(found_);
    if (!files || !laid_out) return found_;
    laid_out_ = std::move(*laid_out);
    Manifest& manifest = laid_out_.manifest;
    manifest.plan = plan_.plan->name;
    manifest.plan_hash = plan_.Hash();
    manifest.ties = Ties();
    for (const auto& [name, recipe] : own_of_model_) manifest.made[name].recipe = recipe;
    manifest.kept = std::move(files->kept);
    manifest.folders = std::move(files->folders);
    if (form_ != nullptr) made_form_ = FitForm(*form_, FormTensors(), manifest);
    CountBytes();
    return WriteThroughStaging(Work());
  }

 private:
  // A tensor that is stored: one of the source, or one that a recipe makes of it.
  struct Item {
    std::string name;
    RecipeTensor form;
    const StoredTensor* stored = nullptr;  // where the source has it; else
    const WeightRecipe* recipe = nullptr;
    std::pair<uint32_t, uint64_t> at;  // file and offset of its first byte
    uint64_t bytes = 0;
  };

  // The tensors in the order of the source's bytes. One that the plan's model does not have keeps the default
  // placement, which is replicated: it is in every rank file, and merging gives it back.
  void ListTensors() {
    std::set<std::string> used;
    if (recipes_ != nullptr) ListMade(used);
    if (HasErrors(found_)) return;
    for (const StoredTensor& tensor : source_.tensors()) {
      if (used.contains(tensor.name)) continue;
      items_.push_back(
          {tensor.name, {tensor.dtype, tensor.shape}, &tensor, nullptr, {tensor.file, tensor.begin}, tensor.bytes});
    }
    std::ranges::sort(items_, {}, [](const Item& item) { return std::tie(item.at, item.name); });
    if (recipes_ != nullptr) CheckModel();
  }

  // The tensors that recipes make, and how those of the source, added to `used`, follow from them.
  void ListMade(std::set<std::string>& used) {
    std::map<std::string, std::string> stored_as;  // tied names
    for (const std::vector<std::string>& tie : Ties()) {
      for (const std::string& name : tie) stored_as[name] = tie.front();
    }
    std::map<std::string, const WeightRecipe*> made;
    for (const auto& [path, recipe] : RecipesThatHold(*recipes_, parts_, found_)) {
      const auto tie = stored_as.find(path);
      made.emplace(tie == stored_as.end() ? path : tie->second, recipe);
    }
    if (HasErrors(found_)) return;
    InvertedRecipes inverted = InvertRecipes(made, parts_);
    for (const std::string& name : inverted.incomplete) {
      Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "the model uses only a part of tensor '" + name +
                                                                "'; merging could not restore the tensor");
      d.path = name;
      d.help = "use `moonshard shard` without --program, with a plan for the names of the tensors in the checkpoint";
      found_.push_back(std::move(d));
    }
    for (const auto& [path, recipe] : made) {
      std::vector<std::string> names;
      recipe->AddSources(names);
      std::string why;
      Item item{path, *MadeBy(*recipe, parts_, why), nullptr, recipe, {UINT32_MAX, 0}, 0};
      item.bytes = static_cast<uint64_t>(ShardBytes(item.form.dtype, FullShard(item.form.shape)));
      for (const std::string& name : names) {
        const StoredTensor& tensor = *source_.Find(name);
        item.at = std::min(item.at, std::pair(tensor.file, tensor.begin));
        used.insert(name);
      }
      items_.push_back(std::move(item));
    }
    own_of_model_ = std::move(inverted.recipes);
  }

  // Every parameter has its tensor, of its shape: those of a program were not read from this source.
  void CheckModel() {
    std::map<std::string, const Item*> by_name;
    for (const Item& item : items_) by_name[item.name] = &item;
    for (const std::vector<std::string>& tie : Ties()) {
      const auto some = std::ranges::find_if(tie, [&](const std::string& name) { return by_name.contains(name); });
      if (some == tie.end()) continue;
      for (const std::string& name : tie) by_name.emplace(name, by_name.at(*some));
    }
    for (uint32_t m = 0; m < plan_.tree->modules().size(); ++m) {
      const ModuleTree::Signature& parameters = plan_.tree->parameters(plan_.tree->modules()[m]);
      for (uint32_t p = 0; p < parameters.size(); ++p) {
        const std::string path = plan_.tree->PathOf({m, p});
        const auto found = by_name.find(path);
        if (found != by_name.end() && found->second->form.shape == parameters[p].shape) continue;
        if (found == by_name.end() && parameters[p].is_buffer) continue;
        Diagnostic d =
            found == by_name.end()
                ? MakeDiagnostic(Finding::kMissingTensor, "the checkpoint has no tensor '" + path + "'")
                : MakeDiagnostic(Finding::kTensorMismatch,
                                 "tensor '" + path + "' of the checkpoint does not match the model's tensor");
        d.path = path;
        if (found != by_name.end()) d.declared = ShapeToString(found->second->form.shape);
        d.required = ShapeToString(parameters[p].shape);
        found_.push_back(std::move(d));
      }
    }
  }

  std::vector<PlacedTensor> Placed() const {
    std::vector<PlacedTensor> placed;
    for (const Item& item : items_) {
      placed.push_back({item.name, item.form.dtype, item.form.shape, {}});
      ParamRef param;
      if (plan_.tree->FindParameter(item.name, &param))
        placed.back().placement = plan_.LayoutsOf(param.module).params[param.param];
    }
    return placed;
  }

  std::vector<std::vector<std::string>> Ties() const {
    std::vector<std::vector<std::string>> ties;
    for (const std::vector<ParamRef>& tie : plan_.tree->ties()) {
      ties.emplace_back();
      for (ParamRef param : tie) ties.back().push_back(plan_.tree->PathOf(param));
    }
    return ties;
  }

  // The tensors of the manifest as FitForm takes them: each with the names that the model ties to it.
  std::vector<FormTensor> FormTensors() const {
    std::map<std::string, std::vector<std::string>> aliases;
    for (const std::vector<std::string>& tie : Ties()) {
      for (const std::string& name : tie) {
        for (const std::string& other : tie) {
          if (other != name) aliases[name].push_back(other);
        }
      }
    }
    std::vector<FormTensor> tensors;
    for (const Item& item : items_) {
      ParamRef param;
      const bool buffer = plan_.tree->FindParameter(item.name, &param) &&
                          plan_.tree->parameters(plan_.tree->modules()[param.module])[param.param].is_buffer;
      tensors.push_back({item.name, aliases[item.name], buffer});
    }
    return tensors;
  }

  void CountBytes() {
    const Manifest& manifest = laid_out_.manifest;
    for (const CheckpointFile& file : source_.files()) summary_.source_bytes += file.bytes;
    for (const KeptFile& file : manifest.kept) summary_.source_bytes += file.bytes;
    for (const RankFile& file : manifest.rank_files) summary_.written_bytes += file.bytes;
    CountTensors(manifest);
  }

  // Whether OUT is what this would write: of this plan and mesh, from these bytes. Then a repeated call, also one after
  // a kill at the very end, succeeds.
  bool IsThere() override {
    std::error_code ignored;
    if (!std::filesystem::exists(out() + "/" + kManifestFile, ignored)) return false;
    Result<ShardedCheckpoint> opened = ShardedCheckpoint::Open(out());
    if (!opened.ok()) return false;
    const Manifest& known = opened.value().manifest();
    Manifest same = laid_out_.manifest;
    for (const auto& [name, content] : made_form_.kept) same.kept.push_back({name, name, content.size(), 0});
    if (same.tensors.size() != known.tensors.size() || same.kept.size() != known.kept.size()) return false;
    for (size_t i = 0; i < same.tensors.size(); ++i) {
      same.tensors[i].hash = known.tensors[i].hash;
      same.tensors[i].shard_hash = known.tensors[i].shard_hash;
    }
    for (size_t i = 0; i < same.kept.size(); ++i) same.kept[i].hash = known.kept[i].hash;
    for (auto& [name, tensor] : same.made) {
      const auto there = known.made.find(name);
      if (there != known.made.end()) tensor.hash = there->second.hash;
    }
    // Hashes are what this run does not know yet. They are taken from the manifest that is there, so that the texts
    // compare everything else; SourceIs then compares the hashes with the source's bytes.
    same.source = known.source;
    return same.ToText() == known.ToText() && SourceIs(known) && OutputIs(opened.value());
  }

  // Whether the files of the output have the bytes that were written.
  bool OutputIs(ShardedCheckpoint& there) {
    const Manifest& known = there.manifest();
    for (const KeptFile& file : known.kept) {
      if (!HasHash(out() + "/" + file.stored, 0, file.bytes, file.hash)) return false;
    }
    for (const ModelFile& file : known.source) {
      const std::string header = out() + "/" + file.header;
      const Result<File> opened = File::Open(header);
      if (!opened.ok() || !HasHash(header, 0, opened.value().bytes(), file.header_hash)) return false;
    }
    for (size_t file = 0; file < known.rank_files.size(); ++file) {
      for (const ShardedTensor& tensor : known.tensors) {
        if (there.CheckShard(tensor, file)) return false;
      }
    }
    return true;
  }

  bool SourceIs(const Manifest& known) {
    const auto tensor_is = [&](const StoredTensor& tensor) {
      const auto made = known.made.find(tensor.name);
      return HasHash(source_.files()[tensor.file].path, tensor.begin, tensor.bytes,
                     made == known.made.end() ? known.Find(tensor.name)->hash : made->second.hash);
    };
    if (form_ != nullptr) return FormIs(known) && std::ranges::all_of(source_.tensors(), tensor_is);
    return known.source.size() == source_.files().size() &&
           std::ranges::all_of(known.kept,
                               [&](const KeptFile& file) {
                                 return HasHash(source_.path() + "/" + file.name, 0, file.bytes, file.hash);
                               }) &&
           std::ranges::all_of(known.source,
                               [&](const ModelFile& file) {
                                 const Result<File> header = File::Open(out() + "/" + file.header);
                                 return header.ok() && HasHash(source_.path() + "/" + file.name, 0,
                                                               header.value().bytes(), file.header_hash);
                               }) &&
           std::ranges::all_of(source_.tensors(), tensor_is);
  }

  // Whether the form is the one that this run makes.
  bool FormIs(const Manifest& known) const {
    const auto kept_is = [&](const KeptFile& file) {
      const auto made = made_form_.kept.find(file.name);
      return made != made_form_.kept.end() && HashOf(made->second) == file.hash;
    };
    const auto header_is = [&](const ModelFile& file) {
      const auto made = made_form_.headers.find(file.name);
      return made != made_form_.headers.end() && HashOf(made->second) == file.header_hash;
    };
    return known.source.size() == made_form_.headers.size() && std::ranges::all_of(known.kept, kept_is) &&
           std::ranges::all_of(known.source, header_is);
  }

  // What is sharded, and how: another plan or mesh, or a source that was touched, is other work. Times and inodes stand
  // for the contents, since reading the source to compare it would cost as much as the conversion; a record of the
  // journal is compared with the bytes that it describes anyway (TakeNoted).
  std::string Work() const {
    std::string work = std::string("shard ") + kManifestVersion + " " + source_.path() + "\n" + plan_.CanonicalText();
    for (const auto& [name, recipe] : own_of_model_) work += name + " " + WriteJson(ToJson(recipe), 0) + "\n";
    for (const CheckpointFile& file : source_.files()) work += file.path + " " + StampOf(file.path) + "\n";
    for (const KeptFile& file : laid_out_.manifest.kept) {
      work += file.name + " " + StampOf(source_.path() + "/" + file.name) + "\n";
    }
    return work;
  }

  // All offsets follow from the sizes of shards, so every header is complete before the first byte of a tensor, and
  // files get their full length at once. Tensors then fill them in any order of files, and a resumed run finds each
  // shard at the same place. The manifest comes last: it contains the hashes.
  Failure Write() override {
    Manifest& manifest = laid_out_.manifest;
    std::vector<std::string> paths;
    for (const RankFile& file : manifest.rank_files) paths.push_back(staging().PathOf(file.name));
    OutputFiles outputs(storage(), paths);
    for (size_t file = 0; file < paths.size(); ++file) {
      const std::string header = HeaderOf(laid_out_, file);
      if (Failure failed = outputs.Truncate(file, manifest.rank_files[file].bytes)) return failed;
      if (Failure failed = outputs.Write(file, 0, header.data(), header.size())) return failed;
    }
    for (size_t i = 0; i < items_.size(); ++i) {
      if (Failure failed = WriteTensor(items_[i], laid_out_.order[i], outputs)) return failed;
    }
    if (Failure failed = HashMade()) return failed;
    if (Failure failed = form_ == nullptr ? WriteSourceForm() : WriteMadeForm()) return failed;
    if (Failure failed = WriteKept()) return failed;
    const std::string text = manifest.ToText();
    if (Failure failed = WriteFileIn(kManifestFile, text)) return failed;
    return staging().Commit(FilesWritten());
  }

  // The hashes of a tensor that an earlier process has written, if its bytes are there. The record in the journal is
  // compared with the bytes in the files, so a record whose data never reached the disk only costs a second write.
  bool TakeNoted(const Item& item, uint32_t t) {
    ShardedTensor& tensor = laid_out_.manifest.tensors[t];
    const ShardLayout& layout = laid_out_.manifest.LayoutOf(tensor);
    const std::vector<uint64_t>* noted = staging().Recorded(item.name);
    if (!noted || noted->size() != layout.shards.size() + 1) return false;
    for (size_t file = 0; file < layout.shards.size(); ++file) {
      const std::string path = staging().PathOf(laid_out_.manifest.rank_files[file].name);
      const auto bytes = static_cast<uint64_t>(ShardBytes(tensor.dtype, *layout.shards[file]));
      if (!HasHash(path, laid_out_.begin[file][t], bytes, (*noted)[file])) return false;
    }
    tensor.shard_hash.assign(noted->begin(), noted->end() - 1);
    tensor.hash = noted->back();
    summary_.resumed_bytes += item.bytes;
    return true;
  }

  // Memory is one chunk and one share of it, whatever the size of the tensor. Two kinds of hashes are taken from the
  // same pass: one for each shard, which finds damage in a rank file, and one of the full tensor, which finds shards
  // that are intact and do not belong together.
  Failure WriteTensor(const Item& item, uint32_t t, OutputFiles& outputs) {
    if (TakeNoted(item, t)) {
      Report(item.bytes);
      return std::nullopt;
    }
    if (item.stored != nullptr) {
      if (Failure changed = CheckLength(*item.stored)) return changed;
    }
    ShardedTensor& tensor = laid_out_.manifest.tensors[t];
    const ShardLayout& layout = laid_out_.manifest.LayoutOf(tensor);
    std::vector<uint64_t> at;
    for (size_t file = 0; file < layout.shards.size(); ++file) at.push_back(laid_out_.begin[file][t]);
    std::vector<Hasher> hashers(layout.shards.size());
    Hasher full;
    // A reshape is read in full for any part of it.
    const bool at_once = item.recipe != nullptr && HasReshape(*item.recipe);
    ChunkWalk walk(item.form.shape, item.form.dtype, at_once ? std::max(item.bytes, kChunkBytes) : kChunkBytes);
    for (Chunk chunk; walk.Next(chunk);) {
      buffer_.resize(std::max<size_t>(buffer_.size(), chunk.bytes));
      if (Failure failed = ReadChunk(item, chunk)) return failed;
      full.Add(buffer_.data(), chunk.bytes);
      for (size_t file = 0; file < layout.shards.size(); ++file) {
        const ShardDims share = ShardInChunk(*layout.shards[file], chunk);
        const uint64_t bytes = ShareBytes(item.form.dtype, share);
        if (bytes == 0) continue;
        share_.resize(std::max<size_t>(share_.size(), bytes));
        const char* data = TakeFromChunk(chunk, item.form.dtype, share, buffer_.data(), share_.data());
        hashers[file].Add(data, bytes);
        if (Failure failed = outputs.Write(file, at[file], data, bytes)) return failed;
        at[file] += bytes;
      }
      Report(chunk.bytes);
    }
    std::vector<uint64_t> noted;
    for (const Hasher& hasher : hashers) noted.push_back(hasher.Value());
    tensor.shard_hash = noted;
    tensor.hash = full.Value();
    noted.push_back(*tensor.hash);
    return staging().Record(item.name, noted);
  }

  Failure CheckLength(const StoredTensor& stored) {
    const Result<const File*> opened = inputs_.At(stored.file);
    if (!opened.ok()) return opened.diagnostics().front();
    if (opened.value()->bytes() == source_.files()[stored.file].bytes) return std::nullopt;
    Diagnostic d =
        MakeDiagnostic(Finding::kFileUnreadable, "'" + opened.value()->path() + "' changed while it was read");
    d.path = stored.name;
    return d;
  }

  Failure ReadChunk(const Item& item, const Chunk& chunk) {
    if (item.stored != nullptr) {
      return inputs_.Read(item.stored->file, item.stored->begin + chunk.begin, buffer_.data(), chunk.bytes);
    }
    ShardDims dims;
    for (size_t d = 0; d < item.form.shape.size(); ++d) dims.push_back({{chunk.first[d], chunk.lengths[d]}});
    return ReadRecipe(*item.recipe, parts_, dims, buffer_.data());
  }

  // Of the source's tensors that are stored as parts of others: with it a merge finds out that what it makes is the
  // original.
  Failure HashMade() {
    for (auto& [name, tensor] : laid_out_.manifest.made) {
      const StoredTensor& stored = *source_.Find(name);
      const Result<const File*> opened = inputs_.At(stored.file);
      if (!opened.ok()) return opened.diagnostics().front();
      const Result<uint64_t> hash = HashFile(*opened.value(), stored.begin, stored.bytes);
      if (!hash.ok()) return hash.diagnostics().front();
      tensor.hash = hash.value();
    }
    return std::nullopt;
  }

  // The header of each of the source's files, byte for byte: order, padding and metadata of the original are in it, and
  // merging gives the original back only with them.
  Failure WriteSourceForm() {
    for (size_t i = 0; i < source_.files().size(); ++i) {
      const CheckpointFile& file = source_.files()[i];
      const std::string name = std::filesystem::path(file.path).lexically_relative(source_.path()).string();
      ModelFile kept{name, std::string(kSourceFormDirectory) + "/" + name + ".header", file.bytes, 0};
      const Result<const File*> opened = inputs_.At(i);
      if (!opened.ok()) return opened.diagnostics().front();
      // The header is everything before the first tensor: padding behind its declared length belongs to it.
      uint64_t bytes = file.bytes;  // where the file has no tensor, or only empty ones
      for (const StoredTensor& tensor : source_.tensors()) {
        if (tensor.file == i) bytes = std::min(bytes, tensor.begin);
      }
      std::string header(bytes, '\0');
      if (Failure failed = opened.value()->Read(0, header.data(), header.size())) return failed;
      kept.header_hash = HashOf(header);
      if (Failure failed = WriteFileIn(kept.header, header)) return failed;
      laid_out_.manifest.source.push_back(std::move(kept));
      Report(bytes);
    }
    return std::nullopt;
  }

  Failure WriteMadeForm() {
    std::vector<std::string> names;
    if (Failure failed = WriteForm(storage(), staging().directory(), made_form_, laid_out_.manifest, names))
      return failed;
    for (const auto& [name, content] : made_form_.kept) summary_.written_bytes += content.size();
    for (const auto& [name, header] : made_form_.headers) summary_.written_bytes += header.size();
    return std::nullopt;
  }

  Failure WriteKept() {
    if (form_ != nullptr) return std::nullopt;  // WriteMadeForm
    if (Failure failed = MakeDirectories(laid_out_.manifest.folders)) return failed;
    for (KeptFile& file : laid_out_.manifest.kept) {
      const Result<uint64_t> hash = CopyTo(file.stored, source_.path() + "/" + file.name, file.bytes);
      if (!hash.ok()) return hash.diagnostics().front();
      file.hash = hash.value();
      summary_.written_bytes += file.bytes;
      Report(file.bytes);
    }
    return std::nullopt;
  }

  Failure WriteFileIn(const std::string& name, const std::string& content) {
    if (Failure failed = MakeDirectoriesFor(storage(), staging().directory(), name)) return failed;
    summary_.written_bytes += content.size();
    return WriteFile(storage(), staging().PathOf(name), content);
  }

  std::vector<std::string> FilesWritten() const {
    const Manifest& manifest = laid_out_.manifest;
    std::vector<std::string> names = {kManifestFile};
    for (const RankFile& file : manifest.rank_files) names.push_back(file.name);
    for (const ModelFile& file : manifest.source) names.push_back(file.header);
    for (const KeptFile& file : manifest.kept) names.push_back(file.stored);
    return names;
  }

  const Checkpoint& source_;
  const CompiledPlan& plan_;
  const WeightRecipes* recipes_;
  const ModelForm* form_;  // null: that of the source directory
  ModelForm made_form_;    // `form_` with the header of its tensors
  InputFiles inputs_;
  ShardReader reader_;
  CheckpointSource parts_;
  std::vector<Item> items_;
  std::map<std::string, WeightRecipe> own_of_model_;  // how tensors of the source are made of items
  LaidOut laid_out_;
};

}  // namespace

Result<ConvertSummary> ShardModel(const Checkpoint& source, const CompiledPlan& plan, const std::string& out,
                                  const ConvertOptions& options, const WeightRecipes* recipes, const ModelForm* form) {
  return Sharder(source, plan, out, options, recipes, form).Run();
}

}  // namespace moonshard
