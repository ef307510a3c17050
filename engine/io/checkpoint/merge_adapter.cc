// The header of every file is that of the source, since no tensor changes its dtype or shape; then its tensors follow
// in the order of their bytes, chunk by chunk (chunks.h). A chunk of an adapted weight gets its elements of B A added
// while it is in memory.
#include "engine/io/checkpoint/merge_adapter.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/base/float_bits.h"
#include "engine/core/base/hash.h"
#include "engine/core/base/text.h"
#include "engine/io/checkpoint/chunks.h"
#include "engine/io/checkpoint/conversion.h"
#include "engine/io/checkpoint/convert_files.h"
#include "engine/io/checkpoint/model_files.h"
#include "engine/io/config/config.h"
#include "engine/io/safetensors/reader.h"
#include "engine/io/safetensors/tree.h"

namespace moonshard {
namespace {

constexpr std::string_view kWeightOf = ".weight";

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBF16 || dtype == DType::kF16;
}

template <class T>
T Load(const char* from) {
  T out;
  std::memcpy(&out, from, sizeof(T));
  return out;
}

double ElementOf(const char* from, DType dtype) {
  switch (dtype) {
    case DType::kF64: return Load<double>(from);
    case DType::kF32: return Load<float>(from);
    case DType::kBF16: return FromBits(Load<uint16_t>(from), kBFloat16);
    default: return FromBits(Load<uint16_t>(from), kFloat16);
  }
}

void Store(double value, DType dtype, char* to) {
  const auto put = [&](auto rounded) { std::memcpy(to, &rounded, sizeof(rounded)); };
  switch (dtype) {
    case DType::kF64: put(value); return;
    case DType::kF32: put(static_cast<float>(value)); return;
    case DType::kBF16: put(ToBits(value, kBFloat16)); return;
    default: put(ToBits(value, kFloat16)); return;
  }
}

// A matrix with rows of this length, transposed.
std::vector<double> Transposed(const std::vector<double>& matrix, size_t columns) {
  const size_t rows = matrix.size() / columns;
  std::vector<double> out(matrix.size());
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) out[j * rows + i] = matrix[i * columns + j];
  }
  return out;
}

// What is added to one weight.
struct Term {
  const WeightRecipe* a = nullptr;
  const WeightRecipe* b = nullptr;
  RecipeTensor of_a;  // what the recipes make
  RecipeTensor of_b;
  double scale = 1;
  bool looks_up = false;  // the weight is a table: scale (B A)^T is added
};

class AdapterMerger : public Conversion {
 public:
  AdapterMerger(const Checkpoint& source, const StoredAdapter& adapter, const std::string& out,
                const ConvertOptions& options)
      : Conversion(out, options), source_(source), adapter_(adapter), inputs_(PathsOf(source)) {}

  Result<ConvertSummary> Run() {
    if (Failure nested = RefuseNested(source_.path(), out())) return *nested;
    std::optional<ModelFiles> files = ListModelFiles(source_.path(), source_).Collect(found_);
    ListTerms();
    for (const CheckpointFile& file : source_.files()) {
      std::optional<Header> header = ReadHeader(file.path).Collect(found_);
      if (header) headers_.push_back(*std::move(header));
      summary_.source_bytes += file.bytes;
    }
    if (!files || HasErrors(found_)) return found_;
    files_ = *std::move(files);
    for (const KeptFile& file : files_.kept) summary_.source_bytes += file.bytes;
    summary_.written_bytes = summary_.source_bytes;
    summary_.tensors = static_cast<int64_t>(source_.tensors().size());
    return WriteThroughStaging(Work());
  }

 private:
  static std::vector<std::string> PathsOf(const Checkpoint& checkpoint) {
    std::vector<std::string> out;
    for (const CheckpointFile& file : checkpoint.files()) out.push_back(file.path);
    return out;
  }

  // --- what is added to what

  void ListTerms() {
    tied_ = IsTied();
    std::set<std::string> refused;  // tensors of the adapter: that of a stack is one error, and not one for each expert
    for (const auto& [module, index] : adapter_.section_of) {
      const Adapter& section = adapter_.sections[index];
      std::vector<std::string> stored;
      adapter_.made_of.at(module + ".lora_A." + section.name).AddSources(stored);
      if (refused.contains(stored.front())) continue;
      Term term{.a = &adapter_.made_of.at(module + ".lora_A." + section.name),
                .b = &adapter_.made_of.at(module + ".lora_B." + section.name),
                .scale = section.scale()};
      std::string why;
      term.of_a = MadeBy(*term.a, factors_, why).value();
      term.of_b = MadeBy(*term.b, factors_, why).value();
      term.looks_up = term.a->tensor.ends_with(".lora_embedding_A");
      const size_t before = found_.size();
      AddTerm(module, std::move(term));
      if (found_.size() > before) refused.insert(stored.front());
    }
  }

  static bool NamesHead(const std::string& module) { return module == "lm_head" || module.ends_with(".lm_head"); }

  // A config may leave the field out because its model type ties by default: then a model without a stored head counts
  // as tied.
  bool IsTied() const {
    Diagnostics unread;  // a model without a config has none of its fields
    const std::optional<ModelConfig> config = ModelConfig::Read(source_.path()).Collect(unread);
    const std::optional<bool> declared = config ? config->tie_word_embeddings() : std::nullopt;
    return declared.value_or(std::ranges::none_of(source_.tensors(), [](const StoredTensor& tensor) {
      return tensor.name.ends_with(kWeightOf) &&
             NamesHead(tensor.name.substr(0, tensor.name.size() - kWeightOf.size()));
    }));
  }

  // The token embedding is known by its name; if the model has no table of such a name, it may be any lookup.
  bool MayBeTokenEmbedding(const std::string& module, bool looks_up) const {
    if (NamesTokenEmbedding(module)) return true;
    return looks_up && std::ranges::none_of(source_.tensors(), [](const StoredTensor& tensor) {
             return tensor.name.ends_with(kWeightOf) &&
                    NamesTokenEmbedding(std::string_view(tensor.name).substr(0, tensor.name.size() - kWeightOf.size()));
           });
  }

  void AddTerm(const std::string& module, Term term) {
    const std::string name = module + std::string(kWeightOf);
    if (tied_ && NamesHead(module)) {
      Add(Finding::kNotSupported,
          "the adapter changes '" + name +
              "', which is tied to the embedding: a model that reads the directory would not use it",
          name)
          .help = "store a 'lm_head.weight', and set tie_word_embeddings to false in the config.json of the model";
      return;
    }
    const StoredTensor* weight = source_.Find(name);
    if (weight == nullptr) {
      Diagnostic& d = Add(Finding::kMissingTensor, "the model has no tensor '" + name + "' for the adapter", name);
      std::vector<std::string> names;
      for (const StoredTensor& tensor : source_.tensors()) names.push_back(tensor.name);
      d.help = DidYouMean(name, names, 0);
      return;
    }
    if (tied_ && MayBeTokenEmbedding(module, term.looks_up)) {
      Add(Finding::kNotSupported,
          "the adapter changes '" + name +
              "', which is tied to the head: the head of a model that reads the directory would change too",
          name)
          .help =
          "untie the model: store a 'lm_head.weight', and set tie_word_embeddings to false in its config.json; a model "
          "without a head needs the field alone";
      return;
    }
    std::vector<int64_t> shape = {term.of_b.shape[0], term.of_a.shape[1]};
    if (term.looks_up) std::swap(shape[0], shape[1]);
    if (weight->shape != shape) {
      Diagnostic& d = Add(Finding::kTensorMismatch, "the adapter does not fit '" + name + "'", name);
      d.declared = "lora_A " + ShapeToString(term.of_a.shape) + ", lora_B " + ShapeToString(term.of_b.shape);
      d.required = "factors of " + ShapeToString(weight->shape);
    }
    for (const auto& [tensor, dtype] : {std::pair<std::string, DType>{name, weight->dtype},
                                        {module + ".lora_A", term.of_a.dtype},
                                        {module + ".lora_B", term.of_b.dtype}}) {
      if (IsFloat(dtype)) continue;
      Diagnostic& d = Add(Finding::kNotSupported, "an adapter cannot be added to '" + name + "'", name);
      d.declared = "'" + tensor + "' " + std::string(ToString(dtype));
      d.required = "float32, float64, bfloat16 or float16";
    }
    terms_[name] = std::move(term);
  }

  Diagnostic& Add(Finding finding, std::string message, const std::string& path) {
    Diagnostic& d = found_.emplace_back(MakeDiagnostic(finding, std::move(message)));
    d.path = path;
    return d;
  }

  // --- writing

  // Times and inodes stand for the contents, as in ShardModel.
  std::string Work() const {
    std::string work = "merge adapter " + adapter_.checkpoint.path() + " " + StampOf(adapter_.checkpoint.path()) + "\n";
    for (const Adapter& section : adapter_.sections) work += ToText(section) + "\n";
    for (const CheckpointFile& file : source_.files()) work += file.path + " " + StampOf(file.path) + "\n";
    for (const KeptFile& file : files_.kept) work += file.name + " " + StampOf(source_.path() + "/" + file.name) + "\n";
    return work;
  }

  // The content is not compared: that would compute it.
  bool IsThere() override { return false; }

  Failure Write() override {
    if (Failure failed = MakeDirectories(files_.folders)) return failed;
    std::vector<std::string> names;
    for (const KeptFile& file : files_.kept) {
      names.push_back(file.name);
      const Result<uint64_t> hash = CopyTo(file.name, source_.path() + "/" + file.name, file.bytes);
      if (!hash.ok()) return hash.diagnostics().front();
      Report(file.bytes);
    }
    std::vector<std::vector<const StoredTensor*>> of_file(source_.files().size());
    for (const StoredTensor& tensor : source_.tensors()) of_file[tensor.file].push_back(&tensor);
    for (size_t file = 0; file < source_.files().size(); ++file) {
      std::ranges::sort(of_file[file], {}, &StoredTensor::begin);
      names.push_back(std::filesystem::relative(source_.files()[file].path, source_.path()).string());
      if (Failure failed = WriteFile(file, names.back(), of_file[file])) return failed;
    }
    return staging().Commit(names);
  }

  Failure WriteFile(size_t file, const std::string& name, const std::vector<const StoredTensor*>& tensors) {
    if (Failure failed = MakeDirectoriesFor(storage(), staging().directory(), name)) return failed;
    OutputFiles output(storage(), {staging().PathOf(name)});
    if (Failure failed = output.Truncate(0, source_.files()[file].bytes)) return failed;
    std::vector<char> head(headers_[file].data_begin);
    if (Failure failed = inputs_.Read(file, 0, head.data(), head.size())) return failed;
    if (Failure failed = output.Write(0, 0, head.data(), head.size())) return failed;
    for (const StoredTensor* tensor : tensors) {
      if (Failure failed = WriteTensor(*tensor, output)) return failed;
    }
    return std::nullopt;
  }

  Failure WriteTensor(const StoredTensor& tensor, OutputFiles& output) {
    const std::vector<uint64_t>* noted = staging().Recorded(tensor.name);
    if (noted && noted->size() == 1 && HasHash(output.path(0), tensor.begin, tensor.bytes, noted->front())) {
      summary_.resumed_bytes += tensor.bytes;
      Report(tensor.bytes);
      return std::nullopt;
    }
    const auto found = terms_.find(tensor.name);
    if (found != terms_.end()) {
      if (Failure failed = ReadTerm(found->second)) return failed;
    }
    Hasher full;
    ChunkWalk walk(tensor.shape, tensor.dtype);
    for (Chunk chunk; walk.Next(chunk);) {
      buffer_.resize(std::max<size_t>(buffer_.size(), chunk.bytes));
      if (Failure failed = inputs_.Read(tensor.file, tensor.begin + chunk.begin, buffer_.data(), chunk.bytes))
        return failed;
      if (found != terms_.end()) AddTo(chunk, tensor.dtype, found->second.scale);
      full.Add(buffer_.data(), chunk.bytes);
      if (Failure failed = output.Write(0, tensor.begin + chunk.begin, buffer_.data(), chunk.bytes)) return failed;
      Report(chunk.bytes);
    }
    return staging().Record(tensor.name, {full.Value()});
  }

  Failure ReadTerm(const Term& term) {
    const auto read = [&](const WeightRecipe& recipe, const RecipeTensor& made, std::vector<double>& to) -> Failure {
      const std::vector<std::vector<Interval>> all = FullShard(made.shape);
      std::vector<char> bytes(static_cast<size_t>(ShardBytes(made.dtype, all)));
      if (Failure failed = ReadRecipe(recipe, factors_, all, bytes.data())) return failed;
      const auto size = static_cast<size_t>(BitsOf(made.dtype) / 8);
      to.resize(bytes.size() / size);
      for (size_t i = 0; i < to.size(); ++i) to[i] = ElementOf(bytes.data() + i * size, made.dtype);
      return std::nullopt;
    };
    if (Failure failed = read(*term.a, term.of_a, a_)) return failed;
    if (Failure failed = read(*term.b, term.of_b, b_)) return failed;
    rank_ = static_cast<size_t>(term.of_a.shape[0]);
    columns_ = static_cast<size_t>(term.of_a.shape[1]);
    if (term.looks_up) {  // (B A)^T = A^T B^T
      a_ = Transposed(a_, columns_);
      b_ = Transposed(b_, rank_);
      columns_ = b_.size() / rank_;
      std::swap(a_, b_);
    }
    return std::nullopt;
  }

  // Adds scale B A to the elements of the chunk: rows first[0]..., columns first[1]... of the weight.
  void AddTo(const Chunk& chunk, DType dtype, double scale) {
    const auto size = static_cast<size_t>(BitsOf(dtype) / 8);
    const auto length = static_cast<size_t>(chunk.lengths[1]);
    const auto first = static_cast<size_t>(chunk.first[1]);
    std::vector<double> row(length);
    char* at = buffer_.data();
    for (int64_t i = 0; i < chunk.lengths[0]; ++i) {
      std::ranges::fill(row, 0.0);
      for (size_t k = 0; k < rank_; ++k) {
        const double factor = b_[static_cast<size_t>(chunk.first[0] + i) * rank_ + k];
        const double* a = a_.data() + k * columns_ + first;
        for (size_t j = 0; j < length; ++j) row[j] += factor * a[j];
      }
      for (size_t j = 0; j < length; ++j, at += size) Store(ElementOf(at, dtype) + scale * row[j], dtype, at);
    }
  }

  const Checkpoint& source_;
  const StoredAdapter& adapter_;
  bool tied_ = false;  // the head to the token embedding
  ShardReader reader_{adapter_.checkpoint};
  FactorSource factors_{adapter_.checkpoint, reader_};
  InputFiles inputs_;
  ModelFiles files_;
  std::vector<Header> headers_;
  std::map<std::string, Term> terms_;  // by weight
  std::vector<double> a_;              // of the tensor that is written
  std::vector<double> b_;
  size_t rank_ = 0;
  size_t columns_ = 0;
};

}  // namespace

Result<ConvertSummary> MergeAdapter(const Checkpoint& source, const StoredAdapter& adapter, const std::string& out,
                                    const ConvertOptions& options) {
  return AdapterMerger(source, adapter, out, options).Run();
}

}  // namespace moonshard
