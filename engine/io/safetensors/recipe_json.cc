#include "engine/io/safetensors/recipe_json.h"

#include <set>
#include <utility>

#include "engine/core/base/json_fields.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

using json_fields::Fail;
using json_fields::Integer;
using json_fields::IntegerOf;
using json_fields::List;
using json_fields::MultiplySize;
using json_fields::Size;
using json_fields::Text;
using Kind = WeightRecipe::Kind;

constexpr int kDeepestRecipe = 64;

JsonValue NumbersToJson(const std::vector<int64_t>& numbers) {
  return JsonValue::Array(numbers.begin(), numbers.end());
}

JsonValue PartsToJson(const WeightRecipe& recipe) {
  JsonValue::Array parts;
  for (const WeightRecipe& part : recipe.parts) parts.push_back(ToJson(part));
  return parts;
}

}  // namespace

WeightRecipe RecipeJsonReader::Read(const JsonValue& json, int depth) {
  if (depth > kDeepestRecipe) Fail("a recipe is nested more than " + std::to_string(kDeepestRecipe) + " deep");
  WeightRecipe out;
  if (json.Find("tensor") != nullptr) {
    out.tensor = Text(json, "tensor");
    Count(1, out.tensor.size());
  } else if (const JsonValue* stack = json.Find("stack"); stack != nullptr) {
    out.kind = Kind::kStack;
    out.dim = Integer(json, "dim");
    if (stack->is_string()) {
      ReadNumbered(stack->AsString(), Size(json, "count"), out);
    } else {
      ReadParts(*stack, depth, out);
    }
  } else if (const JsonValue* joined = json.Find("concatenate"); joined != nullptr) {
    out.kind = Kind::kConcatenate;
    out.dim = Integer(json, "dim");
    ReadParts(*joined, depth, out);
  } else if (const JsonValue* slice = json.Find("slice"); slice != nullptr) {
    out.kind = Kind::kSlice;
    out.dim = Integer(json, "dim");
    out.start = Size(json, "start");
    out.stop = Size(json, "stop");
    if (out.start > out.stop) {
      Fail("a recipe has a slice whose start is after its stop: from " + std::to_string(out.start) + " to " +
           std::to_string(out.stop));
    }
    ReadPart(*slice, depth, out);
  } else if (const JsonValue* select = json.Find("select"); select != nullptr) {
    out.kind = Kind::kSelect;
    out.dim = Integer(json, "dim");
    out.start = Size(json, "index");
    ReadPart(*select, depth, out);
  } else if (const JsonValue* permute = json.Find("permute"); permute != nullptr) {
    out.kind = Kind::kPermute;
    std::set<int64_t> seen;
    for (const JsonValue& dim : List(json, "dims")) out.shape.push_back(IntegerOf(dim, "dims"));
    const auto dims = static_cast<int64_t>(out.shape.size());
    for (const int64_t dim : out.shape) {
      if (dim < 0 || dim >= dims || !seen.insert(dim).second) {
        Fail("a recipe permutes by " + ShapeToString(out.shape) + ", which is not an order of the dims");
      }
    }
    ReadPart(*permute, depth, out);
  } else if (const JsonValue* reshape = json.Find("reshape"); reshape != nullptr) {
    out.kind = Kind::kReshape;
    int64_t elements = 1;
    for (const JsonValue& size : List(json, "shape")) {
      out.shape.push_back(IntegerOf(size, "shape"));
      if (out.shape.back() < 0 || !MultiplySize(elements, out.shape.back())) {
        Fail("a recipe makes the shape " + ShapeToString(out.shape) + ", which is not a valid tensor shape");
      }
    }
    ReadPart(*reshape, depth, out);
  } else {
    Fail("a recipe has none of the keys tensor, stack, concatenate, slice, select, permute and reshape");
  }
  return out;
}

void RecipeJsonReader::Count(size_t tensors, size_t name_bytes) {
  constexpr size_t kMostBytes = size_t{1} << 29;
  const size_t each = sizeof(WeightRecipe) + name_bytes;
  if (tensors > (kMostBytes - bytes_) / each) Fail("the recipes name too many tensors");
  bytes_ += tensors * each;
}

void RecipeJsonReader::ReadPart(const JsonValue& part, int depth, WeightRecipe& out) {
  out.parts.push_back(Read(part, depth + 1));
}

void RecipeJsonReader::ReadParts(const JsonValue& list, int depth, WeightRecipe& out) {
  if (!list.is_array() || list.AsArray().empty())
    Fail("the recipes that a recipe stacks or concatenates are not a list, or the list is empty");
  for (const JsonValue& part : list.AsArray()) ReadPart(part, depth, out);
}

// "model.experts.{}.up_proj.weight" with a number in place of the braces.
void RecipeJsonReader::ReadNumbered(const std::string& text, int64_t count, WeightRecipe& out) {
  const size_t at = text.find("{}");
  if (at == std::string::npos) Fail("'" + text + "' has no {}, which stands for the number of the tensor");
  if (count < 1) Fail("a recipe stacks " + std::to_string(count) + " tensors");
  Count(static_cast<size_t>(count), text.size());
  for (int64_t i = 0; i < count; ++i) {
    WeightRecipe part;
    part.tensor = text.substr(0, at) + std::to_string(i) + text.substr(at + 2);
    out.parts.push_back(std::move(part));
  }
}

JsonValue ToJson(const WeightRecipe& recipe) {
  switch (recipe.kind) {
    case Kind::kTensor: return JsonValue::Object{{"tensor", recipe.tensor}};
    case Kind::kStack: return JsonValue::Object{{"stack", PartsToJson(recipe)}, {"dim", recipe.dim}};
    case Kind::kConcatenate: return JsonValue::Object{{"concatenate", PartsToJson(recipe)}, {"dim", recipe.dim}};
    case Kind::kSlice:
      return JsonValue::Object{
          {"slice", ToJson(recipe.parts[0])}, {"dim", recipe.dim}, {"start", recipe.start}, {"stop", recipe.stop}};
    case Kind::kSelect:
      return JsonValue::Object{{"select", ToJson(recipe.parts[0])}, {"dim", recipe.dim}, {"index", recipe.start}};
    case Kind::kPermute:
      return JsonValue::Object{{"permute", ToJson(recipe.parts[0])}, {"dims", NumbersToJson(recipe.shape)}};
    case Kind::kReshape:
      return JsonValue::Object{{"reshape", ToJson(recipe.parts[0])}, {"shape", NumbersToJson(recipe.shape)}};
    case Kind::kUnsupported: break;
  }
  return nullptr;
}

}  // namespace moonshard
