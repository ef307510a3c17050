// A form is what a model directory has beside the values of its tensors: the headers of its weight files, byte for
// byte, and its small files (config, tokenizer, index). It is kept with every step of a training run, so that any step
// can be merged into a directory that the model's own tools load, also when the directory that the run began with is
// gone.
#include "engine/io/checkpoint/model_form.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "engine/core/base/check.h"
#include "engine/core/base/hash.h"
#include "engine/core/base/json.h"
#include "engine/core/base/small_file.h"
#include "engine/io/checkpoint/model_files.h"
#include "engine/io/checkpoint/sharded_checkpoint.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/io/safetensors/header.h"
#include "engine/io/safetensors/invert_recipes.h"
#include "engine/io/safetensors/read_recipe.h"
#include "engine/io/safetensors/writer.h"
#include "engine/io/storage/staging.h"

namespace moonshard {
namespace {

Result<std::string> ReadBytes(const std::string& path, uint64_t most) {
  const Result<File> file = File::Open(path);
  if (!file.ok()) return file.diagnostics();
  std::string text(std::min(file.value().bytes(), most), '\0');
  if (Failure failed = file.value().Read(0, text.data(), text.size())) return *failed;
  return text;
}

std::string StoredName(const std::string& name) {
  return name == kCheckpointIndex ? std::string(kSourceFormDirectory) + "/" + name : name;
}

// The tensors of a header, whatever the length of its file.
std::vector<HeaderTensor> TensorsOf(const std::string& header, const std::string& name,
                                    std::map<std::string, std::string>& metadata) {
  HeaderOptions options;
  options.allow_header_only = true;
  Result<Header> parsed = ParseHeader(header, header.size(), name, options);
  Check(parsed.ok(), "a header of the model form is not valid");
  metadata = parsed.value().metadata;
  return std::move(parsed.value().tensors);
}

uint64_t BytesOf(const std::vector<int64_t>& shape, DType dtype) {
  int64_t elements = 1;
  for (int64_t size : shape) elements *= size;
  return static_cast<uint64_t>(moonshard::BytesOf(dtype, elements));
}

// Rewrites the form for the tensors as they are now. Training may have changed dtypes, dropped tensors (a tie that is
// stored once) or added some. A file whose tensors are all as they were keeps its header byte for byte, and with it
// merging gives the same file; only a file that differs gets a new one. Tensors that no file has go to the last file,
// and the index follows.
class Fitter {
 public:
  Fitter(const ModelForm& form, const std::vector<FormTensor>& tensors, const Manifest& manifest)
      : form_(form), manifest_(manifest) {
    for (const FormTensor& tensor : tensors) {
      const ShardedTensor* stored = manifest.Find(tensor.name);
      Check(stored != nullptr, "FitForm: a tensor of the model is not in the manifest");
      by_name_[tensor.name] = stored;
      for (const std::string& alias : tensor.aliases) by_name_[alias] = stored;
    }
    for (const auto& [file, header] : form.headers) {
      std::vector<HeaderTensor>& in_file = tensors_[file];
      in_file = TensorsOf(header, file, metadata_[file]);
      for (const HeaderTensor& tensor : in_file) {
        known_.insert(tensor.name);
        const auto made = form.made.find(tensor.name);
        if (made == form.made.end()) continue;
        std::vector<std::string> parts;
        made->second.AddSources(parts);
        known_.insert(parts.begin(), parts.end());
      }
    }
    // A model that was made in code has no files: it gets one, with all tensors. Buffers are not added to files that a
    // form has: a directory without one (rotary frequencies, which are computed) would be merged into one with a tensor
    // that its loader does not expect.
    if (tensors_.empty()) tensors_[kCheckpointFile];
    for (const FormTensor& tensor : tensors) {
      if (form.headers.empty() || (!tensor.is_buffer && !IsKnown(tensor))) added_.push_back(tensor.name);
    }
  }

  ModelForm Run() {
    out_.kept = form_.kept;
    out_.folders = form_.folders;
    for (const auto& [file, tensors] : tensors_) {
      std::vector<TensorSpec> specs;
      bool same = form_.headers.contains(file);
      for (const HeaderTensor& tensor : tensors) {
        std::optional<TensorSpec> spec = SpecOf(tensor.name);
        if (!spec) {
          same = false;
          continue;
        }
        specs.push_back(std::move(*spec));
        same = same && specs.back().dtype == tensor.dtype && specs.back().shape == tensor.shape;
      }
      if (file == tensors_.rbegin()->first) {
        for (const std::string& name : added_) specs.push_back(*SpecOf(name));
        same = same && added_.empty();
      }
      out_.headers[file] = same ? form_.headers.at(file) : NewHeader(file, specs);
      changed_ = changed_ || !same;
      for (const TensorSpec& spec : specs) {
        places_[spec.name] = file;
        bytes_ += BytesOf(spec.shape, spec.dtype);
      }
    }
    if (changed_) FitIndex();
    return std::move(out_);
  }

 private:
  bool IsKnown(const FormTensor& tensor) const {
    return known_.contains(tensor.name) ||
           std::ranges::any_of(tensor.aliases, [&](const std::string& alias) { return known_.contains(alias); });
  }

  // The tensors as they are now, as recipes take them apart.
  class TensorsNow : public RecipeSource {
   public:
    explicit TensorsNow(const Fitter& fitter) : fitter_(fitter) {}
    std::optional<RecipeTensor> Find(const std::string& name) const override {
      const auto found = fitter_.by_name_.find(name);
      if (found == fitter_.by_name_.end()) return std::nullopt;
      return RecipeTensor{found->second->dtype, fitter_.manifest_.LayoutOf(*found->second).shape};
    }
    Failure Read(const std::string& /*name*/, const ShardDims& /*dims*/, void* /*to*/) override {
      Check(false, "a form has no values");
      return std::nullopt;
    }

   private:
    const Fitter& fitter_;
  };

  // Of a tensor of the form or of the model; notes the recipe of one that is made. Nothing for one that the model
  // lacks.
  std::optional<TensorSpec> SpecOf(const std::string& name) {
    const TensorsNow now(*this);
    const auto made = form_.made.find(name);
    std::string why;
    const std::optional<RecipeTensor> tensor = made == form_.made.end()        ? now.Find(name)
                                               : HasSources(made->second, now) ? MadeBy(made->second, now, why)
                                                                               : std::nullopt;
    if (!tensor) return std::nullopt;
    if (made != form_.made.end()) out_.made.insert(*made);
    return TensorSpec{name, tensor->dtype, tensor->shape};
  }

  std::string NewHeader(const std::string& file, std::vector<TensorSpec> specs) {
    std::map<std::string, std::string> metadata = metadata_[file];
    if (metadata.empty()) metadata["format"] = "pt";
    // Wider dtypes first: every tensor begins at a multiple of its element.
    std::ranges::stable_sort(specs, std::ranges::greater(), [](const TensorSpec& spec) { return BitsOf(spec.dtype); });
    Result<WrittenHeader> header = WriteHeader(file, specs, metadata);
    Check(header.ok(), "FitForm: no valid header for tensors of a checkpoint");
    return std::move(header).value().text;
  }

  // The index repeats what the headers have, which file a tensor is in and the sum of the bytes: both are written anew.
  // Its other fields stay as they were, but for the number of parameters, which may be another one now.
  void FitIndex() {
    const auto index = out_.kept.find(kCheckpointIndex);
    if (index == out_.kept.end()) return;
    Result<JsonValue> json = ParseJson(index->second, kCheckpointIndex);
    if (!json.ok() || !json.value().is_object()) return;  // it was not an index when the run began
    JsonValue::Object map;
    for (const auto& [name, file] : places_) map.emplace(name, file);
    JsonValue::Object& fields = json.value().AsObject();
    fields["weight_map"] = std::move(map);
    JsonValue& metadata = fields["metadata"];
    if (!metadata.is_object()) metadata = JsonValue::Object();
    metadata.AsObject()["total_size"] = bytes_;
    metadata.AsObject().erase("total_parameters");
    index->second = WriteJson(json.value(), 2) + "\n";
  }

  const ModelForm& form_;
  const Manifest& manifest_;
  std::map<std::string, const ShardedTensor*> by_name_;
  std::map<std::string, std::vector<HeaderTensor>> tensors_;            // by file, in the order of their bytes
  std::map<std::string, std::map<std::string, std::string>> metadata_;  // by file
  std::set<std::string> known_;
  std::vector<std::string> added_;
  ModelForm out_;
  std::map<std::string, std::string> places_;
  uint64_t bytes_ = 0;
  bool changed_ = false;
};

}  // namespace

// The form is read without the data: a header is all bytes before the first tensor, so checkpoints of any size cost
// their headers and their small files.
Result<ModelForm> FormOfModel(const std::string& folder, const WeightRecipes& recipes) {
  Diagnostics found;
  HeaderOptions headers_only;
  headers_only.allow_header_only = true;
  std::error_code ignored;
  std::optional<Checkpoint> checkpoint = Checkpoint();
  if (std::filesystem::exists(folder + "/" + kCheckpointFile, ignored) ||
      std::filesystem::exists(folder + "/" + kCheckpointIndex, ignored)) {
    checkpoint = Checkpoint::Open(folder, headers_only).Collect(found);
  }
  if (!checkpoint) return found;
  found.clear();  // loading the checkpoint reports them
  std::optional<ModelFiles> files = ListModelFiles(folder, *checkpoint).Collect(found);
  if (!files) return found;
  ModelForm form;
  form.folders = std::move(files->folders);
  for (const KeptFile& file : files->kept) {
    if (file.bytes > kMostKeptBytes) {
      Diagnostic d = MakeDiagnostic(
          Finding::kNotSupported,
          "'" + folder + "/" + file.name + "' is longer than 64 MiB; the steps of the run are stored without it");
      d.severity = Severity::kWarning;
      d.path = file.name;
      found.push_back(std::move(d));
      continue;
    }
    if (std::optional<std::string> text = ReadBytes(folder + "/" + file.name, file.bytes).Collect(found)) {
      form.kept[file.name] = std::move(*text);
    }
  }
  for (size_t i = 0; i < checkpoint->files().size(); ++i) {
    const CheckpointFile& file = checkpoint->files()[i];
    uint64_t bytes = file.bytes;  // where the file has no tensor, or only empty ones
    for (const StoredTensor& tensor : checkpoint->tensors()) {
      if (tensor.file == i) bytes = std::min(bytes, tensor.begin);
    }
    const std::string name = std::filesystem::path(file.path).lexically_relative(folder).string();
    if (std::optional<std::string> text = ReadBytes(file.path, bytes).Collect(found)) {
      form.headers[name] = std::move(*text);
    }
  }
  ShardReader reader(*checkpoint);
  const CheckpointSource source(*checkpoint, reader);
  // A parameter whose conversion is not supported keeps its own name.
  WeightRecipes supported = recipes;
  std::erase_if(supported, [&](const auto& listed) {
    const WeightRecipe* recipe = FirstThatHolds(listed.second, source);
    return recipe != nullptr && recipe->kind == WeightRecipe::Kind::kUnsupported;
  });
  const std::map<std::string, const WeightRecipe*> hold = RecipesThatHold(supported, source, found);
  if (HasErrors(found)) return found;
  InvertedRecipes inverted = InvertRecipes(hold, source);
  form.made = std::move(inverted.recipes);
  // A tensor of the model that has a part of an incomplete one is stored as it is, and nothing is made of it.
  std::set<std::string> kept;
  for (const auto& [path, recipe] : hold) {
    std::vector<std::string> parts;
    recipe->AddSources(parts);
    const auto incomplete = [&](const std::string& name) {
      return std::ranges::binary_search(inverted.incomplete, name);
    };
    if (std::ranges::any_of(parts, incomplete)) kept.insert(path);
  }
  std::erase_if(form.made, [&](const auto& made) {
    std::vector<std::string> of;
    made.second.AddSources(of);
    return std::ranges::any_of(of, [&](const std::string& path) { return kept.contains(path); });
  });
  for (const std::string& name : inverted.incomplete) {
    Diagnostic d =
        MakeDiagnostic(Finding::kNotSupported, "the model uses only a part of tensor '" + name +
                                                   "'; merging a step of this run does not restore the tensor");
    d.severity = Severity::kWarning;
    d.path = name;
    d.help = "merging writes the tensors of the model instead, which the exported program of this model can load";
    found.push_back(std::move(d));
  }
  return {std::move(form), std::move(found)};
}

Result<ModelForm> FormOfSharded(const std::string& folder, const Manifest& manifest) {
  Diagnostics found;
  ModelForm form;
  form.folders = manifest.folders;
  const auto read = [&](const std::string& stored, uint64_t hash, SmallFile kind) -> std::string {
    const std::string path = folder + "/" + stored;
    std::optional<std::string> text = ReadSmallFile(path, kind).Collect(found);
    if (!text) return "";
    if (HashOf(*text) != hash) found.push_back(Corrupt(path, "", HashOf(*text), hash));
    return std::move(*text);
  };
  for (const KeptFile& file : manifest.kept) form.kept[file.name] = read(file.stored, file.hash, SmallFile::kKeptFile);
  for (const ModelFile& file : manifest.source) {
    form.headers[file.name] = read(file.header, file.header_hash, SmallFile::kStoredHeader);
  }
  for (const auto& [name, tensor] : manifest.made) form.made.emplace(name, tensor.recipe);
  return {std::move(form), std::move(found)};
}

ModelForm FitForm(const ModelForm& form, const std::vector<FormTensor>& tensors, const Manifest& manifest) {
  return Fitter(form, tensors, manifest).Run();
}

// The length of a file follows from its header, which declares the size of each tensor. So a merged file has a known
// length although the file of this step never existed.
Failure WriteForm(Storage& storage, const std::string& folder, const ModelForm& form, Manifest& manifest,
                  std::vector<std::string>& files) {
  const auto write = [&](const std::string& name, const std::string& content) -> Failure {
    files.push_back(name);
    if (Failure failed = MakeDirectoriesFor(storage, folder, name)) return failed;
    return WriteFile(storage, folder + "/" + name, content);
  };
  manifest.folders = form.folders;
  for (const std::string& name : form.folders) {
    if (Failure failed = MakeDirectoriesFor(storage, folder, name + "/")) return failed;
  }
  for (const auto& [name, content] : form.kept) {
    manifest.kept.push_back({name, StoredName(name), content.size(), HashOf(content)});
    if (Failure failed = write(manifest.kept.back().stored, content)) return failed;
  }
  for (const auto& [name, recipe] : form.made) manifest.made[name].recipe = recipe;
  for (const auto& [name, header] : form.headers) {
    std::map<std::string, std::string> metadata;
    uint64_t bytes = header.size();
    for (const HeaderTensor& tensor : TensorsOf(header, name, metadata)) bytes += tensor.end - tensor.begin;
    manifest.source.push_back(
        {name, std::string(kSourceFormDirectory) + "/" + name + ".header", bytes, HashOf(header)});
    if (Failure failed = write(manifest.source.back().header, header)) return failed;
  }
  return std::nullopt;
}

}  // namespace moonshard
