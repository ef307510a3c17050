// A recipe is read from the outside in: the indices that are wanted of the result are translated into indices of each part, down
// to the tensors of the checkpoint, and what comes back is put together on the way out. For example rows 4 and 5 of the
// concatenation of a [4, h] and b [4, h] are rows 0 and 1 of b; nothing of a is read.
#include "engine/runtime/apply/recipe_reader.h"

#include <algorithm>

#include <ATen/Functions.h>

#include "engine/core/base/check.h"
#include "engine/core/base/diagnostic.h"
#include "engine/core/base/text.h"
#include "engine/runtime/apply/local_shard.h"
#include "engine/runtime/apply/scalar_type.h"

namespace moonshard {
namespace {

using Kind = WeightRecipe::Kind;
using Shape = std::vector<int64_t>;
using Indices = std::vector<std::vector<Interval>>;

// A dim counted from the front; -1 where there is none. `dims` of them.
int64_t Dim(int64_t dim, size_t dims) {
  const auto count = static_cast<int64_t>(dims);
  const int64_t front = dim < 0 ? dim + count : dim;
  return front >= 0 && front < count ? front : -1;
}

// Nothing where a product is beyond int64.
std::optional<int64_t> Elements(const Shape& shape) {
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
std::vector<Interval> Within(const std::vector<Interval>& wanted, int64_t begin, int64_t length) {
  std::vector<Interval> out;
  for (const Interval& one : wanted) {
    const int64_t first = std::max(one.begin, begin);
    const int64_t end = std::min(one.begin + one.length, begin + length);
    if (first < end) out.push_back({first - begin, end - first});
  }
  return out;
}

}  // namespace

bool HasSources(const WeightRecipe& recipe, const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  recipe.AddSources(names);
  return std::all_of(names.begin(), names.end(),
                     [&](const std::string& name) { return checkpoint.Find(name) != nullptr; });
}

std::optional<Shape> ShapeOf(const WeightRecipe& recipe, const Checkpoint& checkpoint, std::string& why) {
  if (recipe.kind == Kind::kTensor) {
    const StoredTensor& stored = *checkpoint.Find(recipe.tensor);
    if (ScalarTypeOf(stored.dtype)) return stored.shape;
    why = "tensor '" + recipe.tensor + "' of type " + std::string(ToString(stored.dtype));
    return std::nullopt;
  }
  const bool joins = recipe.kind == Kind::kStack || recipe.kind == Kind::kConcatenate;
  if (recipe.parts.empty() || (!joins && recipe.parts.size() > 1)) {
    why = "a recipe of " + std::to_string(recipe.parts.size()) + " parts";
    return std::nullopt;
  }
  std::vector<Shape> parts;
  for (const WeightRecipe& part : recipe.parts) {
    std::optional<Shape> shape = ShapeOf(part, checkpoint, why);
    if (!shape) return std::nullopt;
    parts.push_back(std::move(*shape));
  }
  Shape out = parts.front();
  const auto wrong = [&](const std::string& what) {
    why = what + " of a tensor of shape " + ShapeToString(parts.front());
    return std::nullopt;
  };
  const int64_t dim = Dim(recipe.dim, out.size() + (recipe.kind == Kind::kStack ? 1 : 0));
  if (recipe.kind != Kind::kReshape && recipe.kind != Kind::kPermute && dim < 0)
    return wrong("dim " + std::to_string(recipe.dim));
  switch (recipe.kind) {
    case Kind::kTensor: break;
    case Kind::kStack:
      for (const Shape& part : parts) {
        if (part != out) return wrong("a tensor of shape " + ShapeToString(part) + " is stacked on one");
      }
      out.insert(out.begin() + dim, static_cast<int64_t>(parts.size()));
      break;
    case Kind::kConcatenate: {
      const auto d = static_cast<size_t>(dim);
      out[d] = 0;
      for (const Shape& part : parts) {
        Shape fitting = parts.front();
        if (part.size() == fitting.size()) fitting[d] = part[d];
        if (part != fitting) return wrong("a tensor of shape " + ShapeToString(part) + " comes behind one");
        out[d] += part[d];
      }
      break;
    }
    case Kind::kSlice:
      if (recipe.start < 0 || recipe.start > recipe.stop || recipe.stop > out[static_cast<size_t>(dim)]) {
        return wrong("the slice from " + std::to_string(recipe.start) + " to " + std::to_string(recipe.stop));
      }
      out[static_cast<size_t>(dim)] = recipe.stop - recipe.start;
      break;
    case Kind::kSelect:
      if (recipe.start < 0 || recipe.start >= out[static_cast<size_t>(dim)]) {
        return wrong("index " + std::to_string(recipe.start));
      }
      out.erase(out.begin() + dim);
      break;
    case Kind::kPermute:
      if (!IsOrderOfDims(recipe.shape, out.size())) return wrong("the order of dims " + ShapeToString(recipe.shape));
      for (size_t i = 0; i < out.size(); ++i) out[i] = parts.front()[static_cast<size_t>(recipe.shape[i])];
      break;
    case Kind::kReshape:
      if (Elements(recipe.shape) != Elements(out)) return wrong("the form " + ShapeToString(recipe.shape));
      out = recipe.shape;
      break;
  }
  return out;
}

at::Tensor ReadRecipe(const WeightRecipe& recipe, const Checkpoint& checkpoint, ShardReader& reader,
                      const Indices& dims) {
  std::string why;
  switch (recipe.kind) {
    case Kind::kTensor: {
      const StoredTensor& stored = *checkpoint.Find(recipe.tensor);
      const std::optional<c10::ScalarType> type = ScalarTypeOf(stored.dtype);
      Check(type.has_value(), "a stored dtype that was not checked");
      std::vector<int64_t> sizes;
      for (const std::vector<Interval>& dim : dims) {
        sizes.push_back(0);
        for (const Interval& one : dim) sizes.back() += one.length;
      }
      at::Tensor out = at::empty(sizes, at::TensorOptions().dtype(*type));
      if (auto error = reader.ReadShard(stored, dims, out.mutable_data_ptr())) throw PlanError({*error});
      return out;
    }
    case Kind::kStack: {
      const auto dim = static_cast<size_t>(Dim(recipe.dim, dims.size()));
      Indices inner = dims;
      inner.erase(inner.begin() + static_cast<int64_t>(dim));
      std::vector<at::Tensor> parts;
      for (const Interval& one : dims[dim]) {
        for (int64_t i = one.begin; i < one.begin + one.length; ++i) {
          parts.push_back(ReadRecipe(recipe.parts[static_cast<size_t>(i)], checkpoint, reader, inner));
        }
      }
      if (parts.empty()) {  // a rank without an index of this dim
        at::Tensor first = ReadRecipe(recipe.parts[0], checkpoint, reader, inner).unsqueeze(static_cast<int64_t>(dim));
        return first.narrow(static_cast<int64_t>(dim), 0, 0);
      }
      return at::stack(parts, static_cast<int64_t>(dim));
    }
    case Kind::kConcatenate: {
      const auto dim = static_cast<size_t>(Dim(recipe.dim, dims.size()));
      // An interval may begin in one part and end in another; the order of the intervals is that of the result.
      std::vector<at::Tensor> pieces;
      for (const Interval& wanted : dims[dim]) {
        int64_t begin = 0;
        for (const WeightRecipe& part : recipe.parts) {
          const int64_t length = (*ShapeOf(part, checkpoint, why))[dim];
          Indices inner = dims;
          inner[dim] = Within({wanted}, begin, length);
          if (!inner[dim].empty()) pieces.push_back(ReadRecipe(part, checkpoint, reader, inner));
          begin += length;
        }
      }
      if (pieces.empty()) {
        Indices inner = dims;
        inner[dim].clear();
        return ReadRecipe(recipe.parts[0], checkpoint, reader, inner);
      }
      return at::cat(pieces, static_cast<int64_t>(dim));
    }
    case Kind::kSlice: {
      Indices inner = dims;
      for (Interval& one : inner[static_cast<size_t>(Dim(recipe.dim, dims.size()))]) one.begin += recipe.start;
      return ReadRecipe(recipe.parts[0], checkpoint, reader, inner);
    }
    case Kind::kSelect: {
      const int64_t dim = Dim(recipe.dim, dims.size() + 1);
      Indices inner = dims;
      inner.insert(inner.begin() + dim, std::vector<Interval>{{recipe.start, 1}});
      return ReadRecipe(recipe.parts[0], checkpoint, reader, inner).squeeze(dim);
    }
    case Kind::kPermute: {
      Indices inner(dims.size());
      for (size_t i = 0; i < dims.size(); ++i) inner[static_cast<size_t>(recipe.shape[i])] = dims[i];
      return ReadRecipe(recipe.parts[0], checkpoint, reader, inner).permute(recipe.shape);
    }
    case Kind::kReshape: {
      const Shape full = *ShapeOf(recipe.parts[0], checkpoint, why);
      const at::Tensor source = ReadRecipe(recipe.parts[0], checkpoint, reader, FullShard(full));
      return SliceShard(source.reshape(recipe.shape), dims);
    }
  }
  Check(false, "a recipe of no known kind");
  return {};
}

}  // namespace moonshard
