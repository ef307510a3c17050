#include "engine/models/rope_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace moonshard {
namespace {

// YaRN's temperature (Peng et al. 2023, arXiv:2309.00071, equation 22), with DeepSeek's generalisation.
double YarnScale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

void ReadLlama3(ConfigReader& fields, RopeConfig& rope) {
  rope.factor = fields.RequiredNumber("factor", 0);
  rope.low_freq_factor = fields.RequiredNumber("low_freq_factor", 0);
  rope.high_freq_factor = fields.RequiredNumber("high_freq_factor", 0);
}

// The factor that is meant where a config gives the two lengths instead.
double LengthRatio(const RopeConfig& rope, int64_t max_position_embeddings) {
  return static_cast<double>(max_position_embeddings) / static_cast<double>(rope.original_max_position_embeddings);
}

void ReadYarn(ConfigReader& fields, int64_t max_position_embeddings, RopeConfig& rope) {
  rope.factor = fields.Number("factor", 0).value_or(LengthRatio(rope, max_position_embeddings));
  const auto positive_or = [&](const char* name, double otherwise) {
    const double value = fields.Number(name, 0).value_or(0);
    return value == 0 ? otherwise : value;
  };
  rope.beta_fast = positive_or("beta_fast", 32);
  rope.beta_slow = positive_or("beta_slow", 1);
  rope.truncate = fields.Bool("truncate").value_or(true);
  const double mscale = fields.Number("mscale", 0).value_or(0);
  const double mscale_all_dim = fields.Number("mscale_all_dim", 0).value_or(0);
  rope.attention_factor = YarnScale(rope.factor, 1);
  if (mscale != 0 && mscale_all_dim != 0) {
    rope.attention_factor = YarnScale(rope.factor, mscale) / YarnScale(rope.factor, mscale_all_dim);
  }
  rope.attention_factor = fields.Number("attention_factor", 0).value_or(rope.attention_factor);
}

std::vector<double> ReadStretches(ConfigReader& fields, std::string_view name, int64_t dims) {
  if (fields.Find(name) == nullptr) {
    fields.Refuse(name, std::string("longrope needs '").append(name).append("'"), "a number for each pair of dims");
    return {};
  }
  std::vector<double> out = fields.Numbers(name).value_or(std::vector<double>{});
  if (static_cast<int64_t>(out.size()) != dims / 2) {
    fields.Refuse(name, std::string(name).append(" must have a number for each pair of dims that is rotated"),
                  std::to_string(dims / 2) + " numbers");
  }
  for (const double value : out) {
    if (!(value > 0)) fields.Refuse(name, std::string(name).append(" must contain only numbers greater than zero"));
  }
  return out;
}

// LongRoPE (Ding et al. 2024, arXiv:2402.13753) as transformers computes it.
void ReadLongrope(ConfigReader& fields, int64_t max_position_embeddings, RopeConfig& rope) {
  rope.factor = fields.Number("factor", 0).value_or(LengthRatio(rope, max_position_embeddings));
  rope.short_factor = ReadStretches(fields, "short_factor", rope.dims);
  rope.long_factor = ReadStretches(fields, "long_factor", rope.dims);
  const double length = static_cast<double>(rope.original_max_position_embeddings);
  rope.attention_factor = rope.factor <= 1 ? 1.0 : std::sqrt(1 + std::log(rope.factor) / std::log(length));
  rope.attention_factor = fields.Number("attention_factor", 0).value_or(rope.attention_factor);
}

// How many dims of a head are turned; 0 where that was refused.
int64_t TurnedDims(ConfigReader& top, ConfigReader& rope, int64_t head_dim, const RopeDefaults& defaults) {
  const double whole = top.Number("partial_rotary_factor", 0, 1).value_or(defaults.partial_rotary_factor);
  const double part = rope.Number("partial_rotary_factor", 0, 1).value_or(whole);
  const auto dims = static_cast<int64_t>(static_cast<double>(head_dim) * part);
  ConfigReader& where = rope.Find("partial_rotary_factor") != nullptr ? rope : top;
  if (!where.Sound({"partial_rotary_factor"}) || !top.Sound({"head_dim", "hidden_size", "num_attention_heads"}))
    return 0;
  if (!defaults.turns_part && part != 1.0) {
    where.Refuse("partial_rotary_factor", "rotating only part of each head is not supported", "1.0");
  } else if (part == 1.0 && (dims % 2 != 0 || dims < 2)) {
    top.Refuse("head_dim", "rotary position embedding needs an even head_dim, not " + std::to_string(head_dim));
  } else if (dims % 2 != 0 || dims < 2) {
    where.Refuse("partial_rotary_factor", "rotary position embedding rotates an even number of dims, not " +
                                              std::to_string(dims) + " of " + std::to_string(head_dim));
  }
  return dims;
}

struct NamedType {
  const char* name;
  RopeConfig::Type type;
};

constexpr NamedType kTypes[] = {{"default", RopeConfig::Type::kDefault},
                                {"linear", RopeConfig::Type::kLinear},
                                {"llama3", RopeConfig::Type::kLlama3},
                                {"yarn", RopeConfig::Type::kYarn},
                                {"longrope", RopeConfig::Type::kLongrope}};

std::optional<NamedType> ReadType(ConfigReader& fields, const RopeDefaults& defaults) {
  const std::string old_name = fields.String("type").value_or("default");
  const std::string name = fields.String("rope_type").value_or(old_name);
  const bool means_longrope = defaults.yarn_means_longrope && (name == "su" || name == "yarn");
  const std::string_view meant = means_longrope ? std::string_view("longrope") : std::string_view(name);
  for (const NamedType& known : kTypes) {
    if (meant == known.name) return known;
  }
  fields.Refuse(fields.Find("rope_type") != nullptr ? "rope_type" : "type", "rope type '" + name + "' is not supported",
                "default, linear, llama3, yarn or longrope");
  return std::nullopt;
}

}  // namespace

ConfigReader RopeObject(ConfigReader& top) {
  const ConfigReader scaling = top.Object("rope_scaling");
  const ConfigReader parameters = top.Object("rope_parameters");
  return scaling.empty() ? parameters : scaling;
}

// Newer configs have the rope fields in one object, older ones beside the other fields; an object's field has
// precedence, except for the original length. A field of the object that the chosen type does not use is always a
// warning: each such field scales positions in some type, so ignoring it silently would give other numbers for long
// inputs.
RopeConfig ReadRopeObject(ConfigReader& top, ConfigReader& fields, int64_t head_dim, int64_t max_position_embeddings,
                          const RopeDefaults& defaults) {
  RopeConfig rope;
  rope.theta = fields.Number("rope_theta", 0).value_or(defaults.theta);
  rope.dims = TurnedDims(top, fields, head_dim, defaults);
  const std::optional<NamedType> named = ReadType(fields, defaults);
  if (!named || rope.dims == 0) return rope;
  rope.type = named->type;
  if (rope.type == RopeConfig::Type::kLinear) rope.factor = fields.RequiredNumber("factor", 0);
  if (rope.type != RopeConfig::Type::kDefault && rope.type != RopeConfig::Type::kLinear) {
    // A length beside the rope parameters goes before the one inside, as in transformers.
    const int64_t inside = fields.Int("original_max_position_embeddings", 1).value_or(max_position_embeddings);
    rope.original_max_position_embeddings = top.Int("original_max_position_embeddings", 1)
                                                .value_or(defaults.original_max_position_embeddings.value_or(inside));
  }
  if (rope.type == RopeConfig::Type::kLlama3) ReadLlama3(fields, rope);
  if (rope.type == RopeConfig::Type::kYarn) ReadYarn(fields, max_position_embeddings, rope);
  if (rope.type == RopeConfig::Type::kLongrope) ReadLongrope(fields, max_position_embeddings, rope);
  for (const auto& [name, value] : {std::pair("rope_theta", rope.theta), std::pair("factor", rope.factor)}) {
    if (fields.Sound({name}) && !(value > 0)) fields.Refuse(name, std::string(name) + " must be greater than zero");
  }
  for (const std::string& name : defaults.also_reads) fields.Find(name);
  fields.NameUnread("rope type '" + std::string(named->name) + "'", {}, fields.json().Keys());
  return rope;
}

RopeConfig ReadRope(ConfigReader& top, int64_t head_dim, int64_t max_position_embeddings,
                    const RopeDefaults& defaults) {
  RopeDefaults outside = defaults;
  outside.theta = top.Number("rope_theta", 0).value_or(defaults.theta);
  top.Find("original_max_position_embeddings");
  ConfigReader rope = RopeObject(top);
  return ReadRopeObject(top, rope, head_dim, max_position_embeddings, outside);
}

}  // namespace moonshard
