// A recipe is walked from the outside in with the expression that gives the node's value: at the root the model's
// tensor, below a stack a selection of it, and so on. Below a slice or a selection the expression has a box of the node
// alone; the boxes of one tensor, from everywhere, are joined when all recipes are walked, if they fill it. A reshape
// of which only a box is known is such a tensor too: it is joined first, and the walk goes on below it.
#include "engine/io/safetensors/invert_recipes.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "engine/core/base/check.h"

namespace moonshard {
namespace {

using Kind = WeightRecipe::Kind;
using Shape = std::vector<int64_t>;
using Box = std::vector<Interval>;  // one interval of each dim

// A box of a tensor and what gives its values.
struct Known {
  Box box;
  WeightRecipe value;
};

Box FullBox(const Shape& shape) {
  Box box;
  for (const int64_t size : shape) box.push_back({0, size});
  return box;
}

Shape SizesOf(const Box& box) {
  Shape sizes;
  for (const Interval& one : box) sizes.push_back(one.length);
  return sizes;
}

WeightRecipe Of(Kind kind, WeightRecipe part) {
  WeightRecipe out;
  out.kind = kind;
  out.parts.push_back(std::move(part));
  return out;
}

WeightRecipe Slice(WeightRecipe part, int64_t dim, int64_t start, int64_t stop) {
  WeightRecipe out = Of(Kind::kSlice, std::move(part));
  out.dim = dim;
  out.start = start;
  out.stop = stop;
  return out;
}

WeightRecipe Reshape(WeightRecipe part, Shape shape) {
  WeightRecipe out = Of(Kind::kReshape, std::move(part));
  out.shape = std::move(shape);
  return out;
}

// The boxes as one value of `region`; nothing where they do not fill it, or overlap other than by being the same. They
// are divided where a plane crosses none of them.
std::optional<WeightRecipe> Join(const Box& region, std::vector<Known> known) {
  if (known.empty()) return std::nullopt;
  if (known.front().box == region) return std::move(known.front().value);
  for (size_t d = 0; d < region.size(); ++d) {
    std::set<int64_t> planes;
    for (const Known& one : known) planes.insert(one.box[d].begin);
    std::erase_if(planes, [&](int64_t at) {
      return at <= region[d].begin || std::ranges::any_of(known, [&](const Known& one) {
               return one.box[d].begin < at && one.box[d].begin + one.box[d].length > at;
             });
    });
    if (planes.empty()) continue;
    planes.insert(region[d].begin + region[d].length);
    WeightRecipe out;
    out.kind = Kind::kConcatenate;
    out.dim = static_cast<int64_t>(d);
    int64_t begin = region[d].begin;
    for (const int64_t end : planes) {
      Box part = region;
      part[d] = {begin, end - begin};
      std::vector<Known> inside;
      for (const Known& one : known) {
        if (one.box[d].begin >= begin && one.box[d].begin < end) inside.push_back(one);
      }
      std::optional<WeightRecipe> joined = Join(part, std::move(inside));
      if (!joined) return std::nullopt;
      out.parts.push_back(std::move(*joined));
      begin = end;
    }
    return out;
  }
  return std::nullopt;
}

class Inverter {
 public:
  explicit Inverter(const RecipeSource& source) : source_(source) {}

  InvertedRecipes Run(const std::map<std::string, const WeightRecipe*>& made) {
    for (const auto& [path, recipe] : made) {
      WeightRecipe own;
      own.tensor = path;
      Walk(*recipe, {FullBox(ShapeOf(*recipe)), own});
    }
    // A reshape is below nothing but what was walked before it, or another reshape: each round settles those whose
    // boxes are all known.
    for (bool more = true; more;) {
      more = false;
      for (Pending& one : reshapes_) {
        if (one.done) continue;
        const Shape shape = ShapeOf(*one.node);
        std::optional<WeightRecipe> joined = Join(FullBox(shape), one.known);
        if (!joined) continue;
        one.done = more = true;
        const WeightRecipe& below = one.node->parts[0];
        Walk(below, {FullBox(ShapeOf(below)), Reshape(std::move(*joined), ShapeOf(below))});
        break;  // Walk may have added to the list
      }
    }
    InvertedRecipes out;
    for (auto& [name, known] : tensors_) {
      std::optional<WeightRecipe> joined = Join(FullBox(source_.Find(name)->shape), std::move(known));
      if (joined) out.recipes.emplace(name, std::move(*joined));
    }
    // Others are named by a recipe that takes nothing of them, or not all.
    for (const auto& [path, recipe] : made) {
      std::vector<std::string> names;
      recipe->AddSources(names);
      for (std::string& name : names) {
        if (!out.recipes.contains(name)) out.incomplete.push_back(std::move(name));
      }
    }
    std::ranges::sort(out.incomplete);
    out.incomplete.erase(std::ranges::unique(out.incomplete).begin(), out.incomplete.end());
    return out;
  }

 private:
  struct Pending {
    const WeightRecipe* node;
    std::vector<Known> known;
    bool done = false;
  };

  Shape ShapeOf(const WeightRecipe& recipe) const {
    std::string why;
    std::optional<RecipeTensor> made = MadeBy(recipe, source_, why);
    Check(made.has_value(), "InvertRecipes requires recipes for which MadeBy has a value");
    return std::move(made->shape);
  }

  static size_t DimOf(const WeightRecipe& recipe, size_t dims) {
    return static_cast<size_t>(recipe.dim < 0 ? recipe.dim + static_cast<int64_t>(dims) : recipe.dim);
  }

  void Walk(const WeightRecipe& node, Known known) {
    switch (node.kind) {
      case Kind::kTensor: tensors_[node.tensor].push_back(std::move(known)); return;
      case Kind::kStack: {
        const size_t dim = DimOf(node, known.box.size());
        for (int64_t i = 0; i < known.box[dim].length; ++i) {
          Known part = known;
          part.box.erase(part.box.begin() + static_cast<int64_t>(dim));
          part.value = Of(Kind::kSelect, known.value);
          part.value.dim = static_cast<int64_t>(dim);
          part.value.start = i;
          Walk(node.parts[static_cast<size_t>(known.box[dim].begin + i)], std::move(part));
        }
        return;
      }
      case Kind::kConcatenate: {
        const size_t dim = DimOf(node, known.box.size());
        const Interval wanted = known.box[dim];
        int64_t begin = 0;
        for (const WeightRecipe& part : node.parts) {
          const int64_t length = ShapeOf(part)[dim];
          const int64_t first = std::max(wanted.begin, begin);
          const int64_t end = std::min(wanted.begin + wanted.length, begin + length);
          if (first < end || (length == 0 && first == end)) {
            Known below = known;
            below.box[dim] = {first - begin, end - first};
            if (end - first < wanted.length) {
              below.value = Slice(known.value, static_cast<int64_t>(dim), first - wanted.begin, end - wanted.begin);
            }
            Walk(part, std::move(below));
          }
          begin += length;
        }
        return;
      }
      case Kind::kSlice: {
        known.box[DimOf(node, known.box.size())].begin += node.start;
        Walk(node.parts[0], std::move(known));
        return;
      }
      case Kind::kSelect: {
        const size_t dim = DimOf(node, known.box.size() + 1);
        known.box.insert(known.box.begin() + static_cast<int64_t>(dim), {node.start, 1});
        known.value = Reshape(std::move(known.value), SizesOf(known.box));
        Walk(node.parts[0], std::move(known));
        return;
      }
      case Kind::kPermute: {
        Known below = known;
        below.value = Of(Kind::kPermute, std::move(known.value));
        below.value.shape.resize(known.box.size());
        for (size_t i = 0; i < known.box.size(); ++i) {
          const auto of = static_cast<size_t>(node.shape[i]);
          below.box[of] = known.box[i];
          below.value.shape[of] = static_cast<int64_t>(i);
        }
        Walk(node.parts[0], std::move(below));
        return;
      }
      case Kind::kReshape: {
        const Shape below = ShapeOf(node.parts[0]);
        if (known.box == FullBox(node.shape)) {
          Walk(node.parts[0], {FullBox(below), Reshape(std::move(known.value), below)});
          return;
        }
        const auto same = std::ranges::find_if(reshapes_, [&](const Pending& one) { return *one.node == node; });
        if (same != reshapes_.end()) {
          same->known.push_back(std::move(known));
        } else {
          reshapes_.push_back({&node, {std::move(known)}});
        }
        return;
      }
      case Kind::kUnsupported: Check(false, "a recipe of kind kUnsupported makes no tensor");
    }
  }

  const RecipeSource& source_;
  std::map<std::string, std::vector<Known>> tensors_;
  std::vector<Pending> reshapes_;
};

}  // namespace

InvertedRecipes InvertRecipes(const std::map<std::string, const WeightRecipe*>& made, const RecipeSource& source) {
  return Inverter(source).Run(made);
}

}  // namespace moonshard
