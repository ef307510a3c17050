// Hash: XXH3, 64 bits, of bytes that come in parts. Finds flips and cuts; no defence against somebody who means harm.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace moonshard {

class Hasher {
 public:
  Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();

  void Add(const void* data, uint64_t bytes);
  // Of all that was added so far.
  uint64_t Value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

uint64_t HashOf(std::string_view bytes);

// 16 hex digits, and back; nothing for any other text.
std::string HashToText(uint64_t hash);
std::optional<uint64_t> HashFromText(std::string_view text);

}  // namespace moonshard
