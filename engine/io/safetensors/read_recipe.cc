// A recipe is read from the outside in: the indices that are wanted of the result are translated into indices of each
// part, down to the tensors of the checkpoint, and what comes back is put together on the way out. For example rows 4
// and 5 of the concatenation of a [4, h] and b [4, h] are rows 0 and 1 of b; nothing of a is read.
#include "engine/io/safetensors/read_recipe.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/core/base/check.h"
#include "engine/core/base/diagnostic.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

using Kind = WeightRecipe::Kind;
using Shape = std::vector<int64_t>;
using Indices = std::vector<std::vector<Interval>>;

// A dim counted from the front; -1 where there is none. `dims` of them.
int64_t DimFromFront(int64_t dim, size_t dims) {
  const auto count = static_cast<int64_t>(dims);
  const int64_t front = dim < 0 ? dim + count : dim;
  return front >= 0 && front < count ? front : -1;
}

// Nothing where a product is beyond int64.
std::optional<int64_t> ElementsOf(const Shape& shape) {
  int64_t out = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(out, size, &out)) return std::nullopt;
  }
  return out;
}

bool IsOrderOfDims(const std::vector<int64_t>& dims, size_t count) {
  std::vector<bool> seen(count);
  for (const int64_t dim : dims) {
    if (dim < 0 || static_cast<size_t>(dim) >= count || seen[static_cast<size_t>(dim)]) return false;
    seen[static_cast<size_t>(dim)] = true;
  }
  return dims.size() == count;
}

// The part of `wanted` that lies in [begin, begin + length), counted from begin.
std::vector<Interval> Within(const Interval& wanted, int64_t begin, int64_t length) {
  const int64_t first = std::max(wanted.begin, begin);
  const int64_t end = std::min(wanted.begin + wanted.length, begin + length);
  if (first >= end) return {};
  return {{first - begin, end - first}};
}

// Elements from dim `from` on.
size_t Block(const Shape& sizes, size_t from) {
  size_t out = 1;
  for (size_t d = from; d < sizes.size(); ++d) out *= static_cast<size_t>(sizes[d]);
  return out;
}

// Row-major element distances of the dims.
std::vector<size_t> StridesOf(const Shape& shape) {
  std::vector<size_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * static_cast<size_t>(shape[d]);
  return strides;
}

class Assembler {
 public:
  Assembler(RecipeSource& source, size_t element) : source_(source), element_(element) {}

  Failure Read(const WeightRecipe& recipe, const Indices& dims, char* to) {
    switch (recipe.kind) {
      case Kind::kTensor: return source_.Read(recipe.tensor, dims, to);
      case Kind::kStack: return ReadStack(recipe, dims, to);
      case Kind::kConcatenate: return ReadConcatenation(recipe, dims, to);
      case Kind::kSlice: {
        Indices inner = dims;
        for (Interval& one : inner[DimOf(recipe, dims.size())]) one.begin += recipe.start;
        return Read(recipe.parts[0], inner, to);
      }
      case Kind::kSelect: {
        Indices inner = dims;
        inner.insert(inner.begin() + static_cast<int64_t>(DimOf(recipe, dims.size() + 1)),
                     std::vector<Interval>{{recipe.start, 1}});
        return Read(recipe.parts[0], inner, to);
      }
      case Kind::kPermute: return ReadPermuted(recipe, dims, to);
      case Kind::kReshape: return ReadReshaped(recipe, dims, to);
      case Kind::kUnsupported: break;
    }
    Check(false, "a recipe of kind kUnsupported makes no tensor");
    return std::nullopt;
  }

 private:
  static size_t DimOf(const WeightRecipe& recipe, size_t dims) {
    return static_cast<size_t>(DimFromFront(recipe.dim, dims));
  }

  // The part's indices `inner` as those of `dim` from `at` on of a result with the sizes `sizes`.
  Failure Put(const WeightRecipe& part, const Indices& inner, const Shape& sizes, size_t dim, int64_t at,
              int64_t length, char* to) {
    const size_t row = Block(sizes, dim) * element_;
    const size_t below = Block(sizes, dim + 1) * element_;
    const size_t own = static_cast<size_t>(length) * below;
    const size_t outer = Block(sizes, 0) / std::max<size_t>(Block(sizes, dim), 1);
    char* begin = to + static_cast<size_t>(at) * below;
    if (outer == 1) return Read(part, inner, begin);
    std::vector<char> bytes(outer * own);
    if (Failure failed = Read(part, inner, bytes.data())) return failed;
    for (size_t i = 0; i < outer; ++i) std::memcpy(begin + i * row, bytes.data() + i * own, own);
    return std::nullopt;
  }

  Failure ReadStack(const WeightRecipe& recipe, const Indices& dims, char* to) {
    const size_t dim = DimOf(recipe, dims.size());
    const Shape sizes = ShardShape(dims);
    Indices inner = dims;
    inner.erase(inner.begin() + static_cast<int64_t>(dim));
    int64_t at = 0;
    for (const Interval& one : dims[dim]) {
      for (int64_t i = one.begin; i < one.begin + one.length; ++i) {
        if (Failure failed = Put(recipe.parts[static_cast<size_t>(i)], inner, sizes, dim, at++, 1, to)) return failed;
      }
    }
    return std::nullopt;
  }

  // An interval may begin in one part and end in another; the order of the intervals is that of the result.
  Failure ReadConcatenation(const WeightRecipe& recipe, const Indices& dims, char* to) {
    const size_t dim = DimOf(recipe, dims.size());
    const Shape sizes = ShardShape(dims);
    std::vector<int64_t> lengths;
    std::string why;
    for (const WeightRecipe& part : recipe.parts) lengths.push_back(MadeBy(part, source_, why)->shape[dim]);
    int64_t at = 0;
    for (const Interval& wanted : dims[dim]) {
      int64_t begin = 0;
      for (size_t p = 0; p < recipe.parts.size(); ++p) {
        Indices inner = dims;
        inner[dim] = Within(wanted, begin, lengths[p]);
        begin += lengths[p];
        if (inner[dim].empty()) continue;
        const int64_t length = inner[dim][0].length;
        if (Failure failed = Put(recipe.parts[p], inner, sizes, dim, at, length, to)) return failed;
        at += length;
      }
    }
    return std::nullopt;
  }

  Failure ReadPermuted(const WeightRecipe& recipe, const Indices& dims, char* to) {
    Indices inner(dims.size());
    for (size_t i = 0; i < dims.size(); ++i) inner[static_cast<size_t>(recipe.shape[i])] = dims[i];
    std::vector<char> bytes(Block(ShardShape(inner), 0) * element_);
    if (Failure failed = Read(recipe.parts[0], inner, bytes.data())) return failed;
    const std::vector<size_t> strides = StridesOf(ShardShape(inner));
    std::vector<size_t> step;
    for (const int64_t dim : recipe.shape) step.push_back(strides[static_cast<size_t>(dim)]);
    std::vector<std::vector<int64_t>> every;
    for (const int64_t size : ShardShape(dims)) {
      every.emplace_back();
      for (int64_t i = 0; i < size; ++i) every.back().push_back(i);
    }
    Pick(bytes.data(), step, every, to);
    return std::nullopt;
  }

  Failure ReadReshaped(const WeightRecipe& recipe, const Indices& dims, char* to) {
    std::string why;
    const Shape full = MadeBy(recipe.parts[0], source_, why)->shape;
    std::vector<char> bytes(Block(full, 0) * element_);
    if (Failure failed = Read(recipe.parts[0], FullShard(full), bytes.data())) return failed;
    std::vector<std::vector<int64_t>> indices;
    for (const std::vector<Interval>& dim : dims) {
      indices.emplace_back();
      for (const Interval& one : dim) {
        for (int64_t i = one.begin; i < one.begin + one.length; ++i) indices.back().push_back(i);
      }
    }
    Pick(bytes.data(), StridesOf(recipe.shape), indices, to);
    return std::nullopt;
  }

  // The elements of `from` at these indices of each dim, whose neighbours are `step` elements apart, in row-major
  // order.
  void Pick(const char* from, const std::vector<size_t>& step, const std::vector<std::vector<int64_t>>& indices,
            char* to) const {
    for (const std::vector<int64_t>& dim : indices) {
      if (dim.empty()) return;
    }
    std::vector<size_t> at(indices.size(), 0);
    while (true) {
      size_t offset = 0;
      for (size_t d = 0; d < at.size(); ++d) offset += step[d] * static_cast<size_t>(indices[d][at[d]]);
      std::memcpy(to, from + offset * element_, element_);
      to += element_;
      size_t d = at.size();
      while (d > 0 && ++at[d - 1] == indices[d - 1].size()) at[--d] = 0;
      if (d == 0) return;
    }
  }

  RecipeSource& source_;
  size_t element_;
};

}  // namespace

std::optional<RecipeTensor> CheckpointSource::Find(const std::string& name) const {
  const StoredTensor* found = checkpoint_.Find(name);
  if (found == nullptr) return std::nullopt;
  return RecipeTensor{found->dtype, found->shape};
}

Failure CheckpointSource::Read(const std::string& name, const Indices& dims, void* to) {
  return reader_.ReadShard(*checkpoint_.Find(name), dims, to);
}

bool HasSources(const WeightRecipe& recipe, const RecipeSource& source) {
  std::vector<std::string> names;
  recipe.AddSources(names);
  return std::ranges::all_of(names, [&](const std::string& name) { return source.Find(name).has_value(); });
}

const WeightRecipe* FirstThatHolds(const std::vector<WeightRecipe>& recipes, const RecipeSource& source) {
  const auto found = std::ranges::find_if(recipes, [&](const WeightRecipe& one) { return HasSources(one, source); });
  return found == recipes.end() ? nullptr : &*found;
}

std::map<std::string, const WeightRecipe*> RecipesThatHold(const WeightRecipes& recipes, const RecipeSource& source,
                                                           Diagnostics& found) {
  std::map<std::string, const WeightRecipe*> out;
  for (const auto& [path, listed] : recipes) {
    const WeightRecipe* recipe = FirstThatHolds(listed, source);
    if (recipe == nullptr || (recipe->kind == Kind::kTensor && recipe->tensor == path)) continue;
    std::string why;
    if (MadeBy(*recipe, source, why)) {
      out.emplace(path, recipe);
      continue;
    }
    Diagnostic d = MakeDiagnostic(Finding::kTensorMismatch,
                                  "the recipe of '" + path + "' cannot be applied to the tensors of the checkpoint");
    d.path = path;
    d.declared = why;
    found.push_back(std::move(d));
  }
  return out;
}

bool HasReshape(const WeightRecipe& recipe) {
  return recipe.kind == Kind::kReshape || std::ranges::any_of(recipe.parts, HasReshape);
}

std::optional<RecipeTensor> MadeBy(const WeightRecipe& recipe, const RecipeSource& source, std::string& why) {
  if (recipe.kind == Kind::kTensor) return source.Find(recipe.tensor);
  if (recipe.kind == Kind::kUnsupported) {
    why = "the conversion is not supported: " + recipe.reason;
    return std::nullopt;
  }
  const bool joins = recipe.kind == Kind::kStack || recipe.kind == Kind::kConcatenate;
  if (recipe.parts.empty() || (!joins && recipe.parts.size() > 1)) {
    why = "an operation of the recipe has " + std::to_string(recipe.parts.size()) + " inputs; " +
          (joins ? "it needs at least one" : "it takes exactly one");
    return std::nullopt;
  }
  std::vector<Shape> parts;
  std::optional<DType> dtype;
  for (const WeightRecipe& part : recipe.parts) {
    std::optional<RecipeTensor> made = MadeBy(part, source, why);
    if (!made) return std::nullopt;
    if (BitsOf(made->dtype) % 8 != 0 || made->dtype != dtype.value_or(made->dtype)) {
      why = dtype && made->dtype != *dtype ? "tensors of the dtypes " + std::string(ToString(*dtype)) + " and " +
                                                 std::string(ToString(made->dtype)) + " are joined"
                                           : "a tensor of the sub-byte dtype " + std::string(ToString(made->dtype));
      return std::nullopt;
    }
    dtype = made->dtype;
    parts.push_back(std::move(made->shape));
  }
  Shape out = parts.front();
  const auto wrong = [&](const std::string& what) {
    why = what + " (first tensor: shape " + ShapeToString(parts.front()) + ")";
    return std::nullopt;
  };
  const int64_t dim = DimFromFront(recipe.dim, out.size() + (recipe.kind == Kind::kStack ? 1 : 0));
  if (recipe.kind != Kind::kReshape && recipe.kind != Kind::kPermute && dim < 0)
    return wrong("there is no dim " + std::to_string(recipe.dim));
  switch (recipe.kind) {
    case Kind::kTensor:
    case Kind::kUnsupported: break;
    case Kind::kStack:
      for (const Shape& part : parts) {
        if (part != out) return wrong("a stacked tensor has the shape " + ShapeToString(part));
      }
      out.insert(out.begin() + dim, static_cast<int64_t>(parts.size()));
      break;
    case Kind::kConcatenate: {
      const auto d = static_cast<size_t>(dim);
      out[d] = 0;
      for (const Shape& part : parts) {
        Shape fitting = parts.front();
        if (part.size() == fitting.size()) fitting[d] = part[d];
        if (part != fitting) return wrong("a concatenated tensor has the shape " + ShapeToString(part));
        out[d] += part[d];
      }
      break;
    }
    case Kind::kSlice:
      if (recipe.start < 0 || recipe.start > recipe.stop || recipe.stop > out[static_cast<size_t>(dim)]) {
        return wrong("the slice from " + std::to_string(recipe.start) + " to " + std::to_string(recipe.stop) +
                     " is out of range");
      }
      out[static_cast<size_t>(dim)] = recipe.stop - recipe.start;
      break;
    case Kind::kSelect:
      if (recipe.start < 0 || recipe.start >= out[static_cast<size_t>(dim)]) {
        return wrong("index " + std::to_string(recipe.start) + " is out of range");
      }
      out.erase(out.begin() + dim);
      break;
    case Kind::kPermute:
      if (!IsOrderOfDims(recipe.shape, out.size()))
        return wrong(ShapeToString(recipe.shape) + " is not an order of the dims");
      for (size_t i = 0; i < out.size(); ++i) out[i] = parts.front()[static_cast<size_t>(recipe.shape[i])];
      break;
    case Kind::kReshape:
      if (ElementsOf(recipe.shape) != ElementsOf(out))
        return wrong("the shape " + ShapeToString(recipe.shape) + " has another number of elements");
      out = recipe.shape;
      break;
  }
  // The bytes of what is made are counted in int64.
  const std::optional<int64_t> elements = ElementsOf(out);
  if (!elements || *elements > INT64_MAX / 16) return wrong("the tensor has too many elements");
  return RecipeTensor{*dtype, std::move(out)};
}

Failure ReadRecipe(const WeightRecipe& recipe, RecipeSource& source, const Indices& dims, void* to) {
  if (recipe.kind == Kind::kTensor) return source.Read(recipe.tensor, dims, to);
  std::string why;
  const std::optional<RecipeTensor> made = MadeBy(recipe, source, why);
  Check(made.has_value(), "ReadRecipe requires a recipe for which MadeBy has a value");
  return Assembler(source, static_cast<size_t>(BitsOf(made->dtype) / 8)).Read(recipe, dims, static_cast<char*>(to));
}

}  // namespace moonshard
