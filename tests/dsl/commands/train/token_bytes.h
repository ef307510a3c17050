// Files of tokens as texts of bytes, for tests of the trainer.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace moonshard::test {

template <class T>
std::string RawTokens(const std::vector<int64_t>& tokens) {
  std::string bytes(tokens.size() * sizeof(T), '\0');
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<T>(tokens[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &token, sizeof(T));
  }
  return bytes;
}

// A tensor of a safetensors file: dtype as "F32", shape as "[2,3]", and its bytes.
struct TensorText {
  std::string name;
  std::string dtype;
  std::string shape;
  std::string data;
};

// A safetensors file of these tensors.
inline std::string TensorFile(const std::vector<TensorText>& tensors) {
  std::string header;
  std::string data;
  for (const TensorText& tensor : tensors) {
    header += (header.empty() ? "{\"" : ",\"") + tensor.name + "\":{\"dtype\":\"" + tensor.dtype +
              "\",\"shape\":" + tensor.shape + ",\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + tensor.data.size()) + "]}";
    data += tensor.data;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return RawTokens<uint64_t>({static_cast<int64_t>(header.size())}) + header + data;
}

inline std::string TensorFile(const std::string& name, const std::string& dtype, const std::string& shape,
                              const std::string& data) {
  return TensorFile({{name, dtype, shape, data}});
}

// 0 1 2 ... below `vocabulary`, over and over, a step apart that changes: something that can be learnt.
inline std::vector<int64_t> SomeTokens(int64_t count, int64_t vocabulary) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back((i * (1 + i / 64 % 3) + i / 7) % vocabulary);
  return tokens;
}

}  // namespace moonshard::test
