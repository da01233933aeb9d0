// XXH3: the algorithms for small and medium inputs, and the final mix of the accumulators for large ones.
#include "xxh3.h"

#include <cstring>

#include "summarise.h"

namespace opdump {

extern const Xxh3Stripes base_xxh3;
extern const Xxh3CopiedStripes base_xxh3_copied;
#if defined(OPDUMP_X86_KERNELS)
extern const Xxh3Stripes avx2_xxh3;
extern const Xxh3Stripes avx512_xxh3;
extern const Xxh3CopiedStripes avx2_xxh3_copied;
extern const Xxh3CopiedStripes avx512_xxh3_copied;
#endif

// clang-format off
alignas(64) const uint8_t kXxh3Secret[kXxh3SecretBytes] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};
// clang-format on

namespace {

// Available in GCC and Clang on every 64-bit machine.
__extension__ using uint128 = unsigned __int128;

constexpr uint64_t kMix1 = 0x165667919e3779f9U;
constexpr uint64_t kMix2 = 0x9fb21c651e98df25U;
constexpr int64_t kMedium = 240;

uint64_t word(const uint8_t* bytes) {
  uint64_t x;
  std::memcpy(&x, bytes, sizeof x);
  return x;
}

uint32_t half_word(const uint8_t* bytes) {
  uint32_t x;
  std::memcpy(&x, bytes, sizeof x);
  return x;
}

uint64_t secret(int64_t offset) { return word(kXxh3Secret + offset); }

uint64_t folded_product(uint64_t x, uint64_t y) {
  const uint128 product = static_cast<uint128>(x) * y;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t avalanche(uint64_t x) {
  x = (x ^ (x >> 37)) * kMix1;
  return x ^ (x >> 32);
}

uint64_t avalanche_of_xxh64(uint64_t x) {
  x = (x ^ (x >> 33)) * kXxh3Prime64_2;
  x = (x ^ (x >> 29)) * kXxh3Prime64_3;
  return x ^ (x >> 32);
}

Xxh3 of_1_to_3(const uint8_t* bytes, int64_t count) {
  const uint32_t combined = bytes[count - 1] | static_cast<uint32_t>(count) << 8 |
                            static_cast<uint32_t>(bytes[0]) << 16 | static_cast<uint32_t>(bytes[count >> 1]) << 24;
  const uint32_t turned = __builtin_bswap32(combined);
  const uint64_t low = (half_word(kXxh3Secret) ^ half_word(kXxh3Secret + 4)) ^ combined;
  const uint64_t high = (half_word(kXxh3Secret + 8) ^ half_word(kXxh3Secret + 12)) ^ (turned << 13 | turned >> 19);
  return {avalanche_of_xxh64(low), avalanche_of_xxh64(high)};
}

Xxh3 of_4_to_8(const uint8_t* bytes, int64_t count) {
  const uint64_t combined = half_word(bytes) | static_cast<uint64_t>(half_word(bytes + count - 4)) << 32;
  const uint128 product = static_cast<uint128>((secret(16) ^ secret(24)) ^ combined) *
                          (kXxh3Prime64_1 + (static_cast<uint64_t>(count) << 2));
  uint64_t low = static_cast<uint64_t>(product);
  uint64_t high = static_cast<uint64_t>(product >> 64);
  high += low << 1;
  low ^= high >> 3;
  low = (low ^ (low >> 35)) * kMix2;
  return {low ^ (low >> 28), avalanche(high)};
}

Xxh3 of_9_to_16(const uint8_t* bytes, int64_t count) {
  const uint64_t first = word(bytes);
  const uint64_t last = word(bytes + count - 8);
  const uint64_t one = (secret(32) ^ secret(40)) ^ first ^ last;
  const uint64_t other = (secret(48) ^ secret(56)) ^ last;
  const uint128 product = static_cast<uint128>(one) * kXxh3Prime64_1;
  uint64_t low = static_cast<uint64_t>(product) + (static_cast<uint64_t>(count - 1) << 54);
  uint64_t high = static_cast<uint64_t>(product >> 64) + (other >> 32 << 32) + (other & 0xffffffffU) * kXxh3Prime32_2;
  low ^= __builtin_bswap64(high);
  const uint128 again = static_cast<uint128>(low) * kXxh3Prime64_2;
  high = static_cast<uint64_t>(again >> 64) + high * kXxh3Prime64_2;
  return {avalanche(static_cast<uint64_t>(again)), avalanche(high)};
}

Xxh3 of_small(const uint8_t* bytes, int64_t count) {
  if (count > 8) return of_9_to_16(bytes, count);
  if (count > 3) return of_4_to_8(bytes, count);
  if (count > 0) return of_1_to_3(bytes, count);
  return {avalanche_of_xxh64(secret(64) ^ secret(72)), avalanche_of_xxh64(secret(80) ^ secret(88))};
}

// The accumulators of a medium input.
struct Pair {
  uint64_t low;
  uint64_t high = 0;

  void take(const uint8_t* one, const uint8_t* other, int64_t offset) {
    low += mixed(one, offset);
    high += mixed(other, offset + 16);
    low ^= word(other) + word(other + 8);
    high ^= word(one) + word(one + 8);
  }

  static uint64_t mixed(const uint8_t* bytes, int64_t offset) {
    return folded_product(word(bytes) ^ secret(offset), word(bytes + 8) ^ secret(offset + 8));
  }
};

Xxh3 of_medium(const uint8_t* bytes, int64_t count) {
  const uint64_t length = static_cast<uint64_t>(count);
  Pair pair{length * kXxh3Prime64_1};
  if (count <= 128) {
    for (int64_t i = (count - 1) / 32; i >= 0; --i) pair.take(bytes + 16 * i, bytes + count - 16 * i - 16, 32 * i);
  } else {
    for (int64_t i = 0; i < 4; ++i) pair.take(bytes + 32 * i, bytes + 32 * i + 16, 32 * i);
    pair = {avalanche(pair.low), avalanche(pair.high)};
    for (int64_t i = 4; i < count / 32; ++i) pair.take(bytes + 32 * i, bytes + 32 * i + 16, 32 * (i - 4) + 3);
    pair.take(bytes + count - 16, bytes + count - 32, 103);
  }
  const uint64_t high = pair.low * kXxh3Prime64_1 + pair.high * kXxh3Prime64_4 + length * kXxh3Prime64_2;
  return {avalanche(pair.low + pair.high), 0 - avalanche(high)};
}

uint64_t merged(const uint64_t (&accumulators)[kXxh3Accumulators], uint64_t result, int64_t offset) {
  for (int i = 0; i < kXxh3Accumulators; i += 2) {
    result +=
        folded_product(accumulators[i] ^ secret(offset + 8 * i), accumulators[i + 1] ^ secret(offset + 8 * i + 8));
  }
  return avalanche(result);
}

#if defined(OPDUMP_X86_KERNELS)
template <typename Kernel>
Kernel chosen(Kernel avx512, Kernel avx2, Kernel base) {
  const InstructionSet& active = active_instruction_set();
  if (&active == &avx512_kernels) return avx512;
  return &active == &avx2_kernels ? avx2 : base;
}
#define OPDUMP_CHOSEN(name) chosen(avx512_##name, avx2_##name, base_##name)
#else
#define OPDUMP_CHOSEN(name) base_##name
#endif

Xxh3 result_of(const uint64_t (&accumulators)[kXxh3Accumulators], int64_t count) {
  const uint64_t length = static_cast<uint64_t>(count);
  return {merged(accumulators, length * kXxh3Prime64_1, 11),
          merged(accumulators, ~(length * kXxh3Prime64_2), kXxh3SecretBytes - 75)};
}

}  // namespace

Xxh3 xxh3_128(const uint8_t* bytes, int64_t count) {
  if (count <= 16) return of_small(bytes, count);
  if (count <= kMedium) return of_medium(bytes, count);
  uint64_t accumulators[kXxh3Accumulators];
  OPDUMP_CHOSEN(xxh3)(bytes, count, accumulators);
  return result_of(accumulators, count);
}

Xxh3 xxh3_128_copied(const uint8_t* bytes, int64_t count, uint8_t* copy) {
  if (count <= kMedium || reinterpret_cast<uintptr_t>(copy) % kXxh3Stripe != 0) {
    if (count > 0) std::memcpy(copy, bytes, static_cast<size_t>(count));
    return xxh3_128(copy, count);
  }
  uint64_t accumulators[kXxh3Accumulators];
  OPDUMP_CHOSEN(xxh3_copied)(bytes, count, copy, accumulators);
  return result_of(accumulators, count);
}

}  // namespace opdump
