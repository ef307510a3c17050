// Hash: XXH3 hashes of bytes, equal on every machine and in every run. The hashes detect accidental changes; they do
// not protect against deliberate changes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace moonshard {

// Computes the 64-bit hash of bytes that are added in parts.
class Hasher {
 public:
  Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();

  void Add(const void* data, uint64_t bytes);
  // Returns the hash of all bytes added so far.
  uint64_t Value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns the 64-bit hash of `bytes`, as Hasher computes it.
uint64_t HashOf(std::string_view bytes);
// Returns the 128-bit hash as 32 hex digits, for texts that are compared only by their hash.
std::string LongHashOf(std::string_view bytes);

// Convert a 64-bit hash to 16 lowercase hex digits and back. HashFromText returns nullopt for any other text.
std::string HashToText(uint64_t hash);
std::optional<uint64_t> HashFromText(std::string_view text);

}  // namespace moonshard
