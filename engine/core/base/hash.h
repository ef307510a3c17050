// Hash: XXH3 of bytes, the same on every machine and in every run. Finds changes that happen by accident; it is no
// defence against changes made on purpose.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace moonshard {

// 64 bits, of bytes that arrive in parts.
class Hasher {
 public:
  Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();

  void Add(const void* data, uint64_t bytes);
  // Of all bytes added so far.
  uint64_t Value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// 64 bits.
uint64_t HashOf(std::string_view bytes);
// 128 bits as 32 hex digits: for texts that are only compared by hash, and never again in full.
std::string LongHashOf(std::string_view bytes);

// 16 hex digits, and back; nothing for any other text.
std::string HashToText(uint64_t hash);
std::optional<uint64_t> HashFromText(std::string_view text);

}  // namespace moonshard
