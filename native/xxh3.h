// XXH3 with 128 bits, no seed and the default secret (xxHash fast digest algorithm, doc/xxhash_spec.md of xxHash). It
// detects whether bytes differ, but does not protect against deliberate collisions.
#pragma once

#include <cstdint>

namespace opdump {

struct Xxh3 {
  uint64_t low;
  uint64_t high;
};

Xxh3 xxh3_128(const uint8_t* bytes, int64_t count);
// The same while copying: each byte is read once, and the hash is that of the bytes in `copy`.
Xxh3 xxh3_128_copied(const uint8_t* bytes, int64_t count, uint8_t* copy);

constexpr int kXxh3Accumulators = 8;
constexpr int kXxh3Stripe = 64;
constexpr int kXxh3SecretBytes = 192;
extern const uint8_t kXxh3Secret[kXxh3SecretBytes];

constexpr uint64_t kXxh3Prime32_1 = 0x9e3779b1U;
constexpr uint64_t kXxh3Prime32_2 = 0x85ebca77U;
constexpr uint64_t kXxh3Prime32_3 = 0xc2b2ae3dU;
constexpr uint64_t kXxh3Prime64_1 = 0x9e3779b185ebca87U;
constexpr uint64_t kXxh3Prime64_2 = 0xc2b2ae3d27d4eb4fU;
constexpr uint64_t kXxh3Prime64_3 = 0x165667b19e3779f9U;
constexpr uint64_t kXxh3Prime64_4 = 0x85ebca77c2b2ae63U;
constexpr uint64_t kXxh3Prime64_5 = 0x27d4eb2f165667c5U;

// Consumes more than 240 bytes (steps 1 to 3 of the algorithm for large inputs).
using Xxh3Stripes = void (*)(const uint8_t* bytes, int64_t count, uint64_t (&accumulators)[kXxh3Accumulators]);
// The same, and copies the bytes to an address that is a multiple of 64.
using Xxh3CopiedStripes = void (*)(const uint8_t* bytes, int64_t count, uint8_t* copy,
                                   uint64_t (&accumulators)[kXxh3Accumulators]);

}  // namespace opdump
