#include "engine/core/base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <charconv>
#include <cstdio>

namespace moonshard {

struct Hasher::State {
  XXH3_state_t xxh;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh); }
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;
Hasher::~Hasher() = default;

void Hasher::Add(const void* data, uint64_t bytes) { XXH3_64bits_update(&state_->xxh, data, bytes); }

uint64_t Hasher::Value() const { return XXH3_64bits_digest(&state_->xxh); }

uint64_t HashOf(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string LongHashOf(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return HashToText(hash.high64) + HashToText(hash.low64);
}

std::string HashToText(uint64_t hash) {
  std::array<char, 17> digits = {};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(hash));
  return digits.data();
}

std::optional<uint64_t> HashFromText(std::string_view text) {
  uint64_t hash = 0;
  const char* end = text.data() + text.size();
  if (text.size() != 16 || std::from_chars(text.data(), end, hash, 16).ptr != end) return std::nullopt;
  return HashToText(hash) == text ? std::optional(hash) : std::nullopt;
}

}  // namespace moonshard
