// Operators that make tensors of numbers: the same on every rank. Random numbers are a shard where they are drawn for
// the elements of a shard, and else the same on every rank; whether the rank draws them so is for the checker
// (OperatorChecker::CheckDraws).
//
// Of sizes that are given as numbers, a rule cannot tell which are those of a shard: the checker compares them with the
// sizes that the same call has with one rank on the axis (OperatorChecker::CompareMade).
#include "engine/analysis/types/rule_table.h"
#include "engine/analysis/types/rules/combine.h"

namespace moonshard {
namespace {

// With the sizes of a shard, as long as the shard (ones_like, or ones in the place of what was there).
AxisTypes Constant(Operands& o) {
  AxisTypes out;
  for (size_t i = 0; i < o.products(); ++i) {
    out.push_back(AxisType::Uniform(o.made_dims(i)));
    if (o.size() == 0 || o.made(i) != o.sizes(0)) continue;
    const AxisType& like = o.type(0);
    if (like.is_shard() && like.dim < 64) out.back().local = uint64_t{1} << like.dim;
    if (like.is_replicate()) out.back().local = like.local;
  }
  return out;
}

// Whether a result is as long as operand 0, a shard, along its dim: of the same sizes, or of others along other dims
// (new_empty(rows, channels, 1, 1) for a mask of whole channels).
bool IsAsLongAsShard(const Operands& o) {
  if (o.size() == 0 || !o.type(0).is_shard() || o.products() != 1) return false;
  const AxisType& like = o.type(0);
  if (o.made() == o.sizes(0)) return true;
  const auto dim = static_cast<size_t>(like.dim);
  return like.lead == 1 && like.inner == 1 && o.made().size() == o.sizes(0).size() && o.made()[dim] == o.sizes(0)[dim];
}

// Memory that nothing was written to yet.
AxisTypes Empty(Operands& o) {
  AxisTypes out = Constant(o);
  for (AxisType& type : out) {
    type.unwritten = true;
    if (IsAsLongAsShard(o)) type.like = std::make_shared<const AxisType>(o.type(0));
  }
  return out;
}

AxisTypes Zeros(Operands& o) {
  AxisTypes out = Constant(o);
  for (AxisType& type : out) {
    type.zero = true;
    if (o.size() == 0 || !o.type(0).is_shard() || o.made() != o.sizes(0)) continue;
    type.map = o.type(0).map;
    type.dim = o.type(0).dim;
    type.lead = o.type(0).lead;
    type.length = o.type(0).length;
  }
  return out;
}

// A number everywhere: full(size, fill_value), scalar_tensor(s), fill(x, value), whose value may be a tensor.
AxisTypes Filled(Operands& o) {
  for (const char* name : {"fill_value", "s", "value"}) {
    const size_t argument = o.Named(name);
    if (argument >= o.arguments()) continue;
    if (const int tensor = o.TensorOf(static_cast<int>(argument)); tensor >= 0) {
      const AxisType& value = o.type(static_cast<size_t>(tensor));
      if (!value.is_replicate()) return {value};
      return value.zero ? Zeros(o) : Constant(o);
    }
    const c10::IValue& number = o.argument(argument);
    if (number.isScalar() && number.toScalar().equal(0)) return Zeros(o);
  }
  return Constant(o);
}

AxisTypes Counted(Operands& /*o*/) { return {AxisType::Replicate()}; }

// Random numbers for the elements of a shard: those of one rank in distribution, since no element is the same one as on
// another rank, and each rank draws others for its shards (engine/runtime/random). They are the shard that the memory
// was made for.
AxisType DrawnFor(const AxisType& shard) {
  AxisType drawn = OfNewValues(shard);
  drawn.copies = 0;
  drawn.local_in = nullptr;
  drawn.local_column = -1;
  return drawn;
}

// rand_like(x), x.normal_().
AxisTypes Drawn(Operands& o) {
  if (o.size() == 0) return Counted(o);
  const AxisType& into = o.type(0);
  if (into.is_shard() && IsAsLongAsShard(o)) return {DrawnFor(into)};
  if (into.is_replicate() && into.unwritten && into.like != nullptr) return {DrawnFor(*into.like)};
  if (into.is_replicate() && into.local != 0)
    return {o.Unproven("random numbers in memory as long as a shard, and it is not known of which shard")};
  return Counted(o);
}

// Random numbers by probabilities or means that are tensors: each element follows its own. A number that all elements
// have in common is drawn for each of them.
AxisTypes Sampled(Operands& o) {
  // bernoulli(x) reads x; bernoulli_(x, p) and normal_(x, mean, std) overwrite it.
  const bool reads_first =
      o.Named("self") >= o.arguments() || (o.name() == "bernoulli" && o.Named("p") >= o.arguments());
  c10::SmallVector<Meeting, 4> read;
  for (size_t i = reads_first ? 0 : 1; i < o.size(); ++i) read.push_back({&o.type(i), o.sizes(i)});
  if (read.empty()) return Drawn(o);
  for (const Meeting& one : read) {
    if (one.type->is_replicate() && one.type->local != 0)
      return {o.Unproven("random numbers in as many places as a shard has, and it is not known of which shard")};
  }
  const AxisType made = OfNewValues(Meet(o, read, o.made_dims(), Dependence::kAny));
  return made.is_replicate() && !reads_first ? Drawn(o) : AxisTypes{made};
}

}  // namespace

void AddFactoryRules(RuleTable& table) {
  table.AddAten({"zeros", "zeros_like", "new_zeros", "zero", "_efficientzerotensor"}, Zeros);
  table.AddAten({"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"}, Empty);
  table.AddAten({"ones", "ones_like", "new_ones"}, Constant);
  table.AddAten({"full", "full_like", "new_full", "scalar_tensor", "fill"}, Filled);
  table.AddAten({"bernoulli", "normal"}, Sampled);
  table.AddAten(
      {"arange", "eye", "linspace", "tril_indices", "triu_indices", "rand", "randn", "randint", "randperm", "lift"},
      Counted);
  table.AddAten({"rand_like", "randn_like", "randint_like", "uniform", "random", "exponential", "cauchy", "log_normal",
                 "geometric"},
                Drawn);
}

}  // namespace moonshard
