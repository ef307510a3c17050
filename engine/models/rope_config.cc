#include "engine/models/rope_config.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "engine/base/text.h"
#include "engine/models/config_reader.h"

namespace moonshard {
namespace {

// YaRN's temperature (Peng et al. 2023, arXiv:2309.00071, equation 22), with DeepSeek's generalisation.
double YarnScale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

// The fields that a type reads, besides rope_type, type and rope_theta.
std::vector<std::string> FieldsOf(RopeConfig::Type type) {
  switch (type) {
    case RopeConfig::Type::kDefault: return {};
    case RopeConfig::Type::kLinear: return {"factor"};
    case RopeConfig::Type::kLlama3:
      return {"factor", "high_freq_factor", "low_freq_factor", "original_max_position_embeddings"};
    case RopeConfig::Type::kYarn:
      return {"attention_factor",
              "beta_fast",
              "beta_slow",
              "factor",
              "mscale",
              "mscale_all_dim",
              "original_max_position_embeddings",
              "truncate"};
  }
  return {};
}

void ReadLlama3(ConfigReader& fields, RopeConfig& rope) {
  rope.factor = fields.RequiredNumber("factor", 0);
  rope.low_freq_factor = fields.RequiredNumber("low_freq_factor", 0);
  rope.high_freq_factor = fields.RequiredNumber("high_freq_factor", 0);
}

void ReadYarn(ConfigReader& fields, int64_t max_position_embeddings, RopeConfig& rope) {
  const double implied =
      static_cast<double>(max_position_embeddings) / static_cast<double>(rope.original_max_position_embeddings);
  rope.factor = fields.Number("factor", 0).value_or(implied);
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

void NameUnusedFields(const JsonValue& json, ConfigReader& fields, RopeConfig::Type type, const std::string& type_name,
                      Diagnostics& diagnostics) {
  std::vector<std::string> known = FieldsOf(type);
  for (const char* common : {"partial_rotary_factor", "rope_theta", "rope_type", "type"}) known.emplace_back(common);
  for (const std::string& name : json.Keys()) {
    if (std::find(known.begin(), known.end(), name) != known.end() || fields.Find(name) == nullptr) continue;
    fields.Refuse(name, "rope type '" + type_name + "' does not use '" + name + "'", "", DidYouMean(name, known, 0));
    diagnostics.back().severity = Severity::kWarning;
  }
}

}  // namespace

RopeConfig ParseRopeConfig(const JsonValue& config, int64_t max_position_embeddings, const std::string& file_name,
                           Diagnostics& diagnostics) {
  ConfigReader top(config, file_name, "", diagnostics);
  RopeConfig rope;
  rope.theta = top.Number("rope_theta", 0).value_or(10000.0);
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const JsonValue* found = top.Find(name);
    if (found != nullptr && !found->is_object())
      top.Refuse(name, std::string(name) + " is of kind " + found->KindName(), "an object");
  }
  const auto object = [&](const char* name) -> const JsonValue* {
    const JsonValue* found = top.Find(name);
    return found != nullptr && found->is_object() && !found->AsObject().empty() ? found : nullptr;
  };
  const char* where = object("rope_scaling") != nullptr ? "rope_scaling" : "rope_parameters";
  const JsonValue empty{JsonValue::Object{}};
  const JsonValue* json = object(where) != nullptr ? object(where) : &empty;
  ConfigReader fields(*json, file_name, std::string(where) + ".", diagnostics);

  rope.theta = fields.Number("rope_theta", 0).value_or(rope.theta);
  const double rotated =
      fields.Number("partial_rotary_factor", 0).value_or(top.Number("partial_rotary_factor", 0).value_or(1.0));
  if (rotated != 1.0) {
    (fields.Find("partial_rotary_factor") != nullptr ? fields : top)
        .Refuse("partial_rotary_factor", "rotating only part of each head is not computed here", "1.0");
  }
  const std::string type = fields.String("rope_type").value_or(fields.String("type").value_or("default"));
  if (type == "default") {
    rope.type = RopeConfig::Type::kDefault;
  } else if (type == "linear") {
    rope.type = RopeConfig::Type::kLinear;
    rope.factor = fields.RequiredNumber("factor", 0);
  } else if (type == "llama3" || type == "yarn") {
    // A length beside the rope parameters goes before the one inside, as in transformers.
    rope.original_max_position_embeddings =
        top.Int("original_max_position_embeddings", 1)
            .value_or(fields.Int("original_max_position_embeddings", 1).value_or(max_position_embeddings));
    rope.type = type == "yarn" ? RopeConfig::Type::kYarn : RopeConfig::Type::kLlama3;
    type == "yarn" ? ReadYarn(fields, max_position_embeddings, rope) : ReadLlama3(fields, rope);
  } else {
    const char* name = fields.Find("rope_type") != nullptr ? "rope_type" : "type";
    fields.Refuse(name, "rope type '" + type + "' is not computed here", "default, linear, llama3 or yarn");
    return rope;
  }
  for (const auto& [name, value] : {std::pair("rope_theta", rope.theta), std::pair("factor", rope.factor)}) {
    if (!(value > 0)) fields.Refuse(name, std::string(name) + " must be greater than zero");
  }
  NameUnusedFields(*json, fields, rope.type, type, diagnostics);
  return rope;
}

}  // namespace moonshard
