// The loop of XXH3 over the stripes of a large input. Compiled once per instruction set, with OPDUMP_KERNELS as the
// namespace.
#include "join.h"
#include "lanes.h"
#include "xxh3.h"

namespace opdump {
namespace OPDUMP_KERNELS {
namespace {

constexpr int kParts = kXxh3Stripe / kVectorBytes;
constexpr int kStripesOfBlock = (kXxh3SecretBytes - kXxh3Stripe) / 8;
constexpr int64_t kBlockBytes = kStripesOfBlock * kXxh3Stripe;
using Words = Vector<uint64_t>;

// The product of the lower halves.
inline Words lower_product(Words x, Words y) {
#if defined(__AVX512F__)
  return reinterpret_cast<Words>(_mm512_mul_epu32(reinterpret_cast<__m512i>(x), reinterpret_cast<__m512i>(y)));
#elif defined(__AVX2__)
  return reinterpret_cast<Words>(_mm256_mul_epu32(reinterpret_cast<__m256i>(x), reinterpret_cast<__m256i>(y)));
#elif defined(__SSE2__)
  return reinterpret_cast<Words>(_mm_mul_epu32(reinterpret_cast<__m128i>(x), reinterpret_cast<__m128i>(y)));
#else
  return (x & 0xffffffffU) * (y & 0xffffffffU);
#endif
}

inline Words neighbours(Words x) {
  Words order;
  each<kVectorBytes / 8>(OPDUMP_STEP(i) { order[+i] = i ^ 1; });
  return __builtin_shuffle(x, order);
}

// `at` must be a multiple of the vector's size.
inline void store_past_caches(uint8_t* at, Words words) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(at), reinterpret_cast<__m512i>(words));
#elif defined(__AVX2__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(at), reinterpret_cast<__m256i>(words));
#elif defined(__SSE2__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(at), reinterpret_cast<__m128i>(words));
#else
  std::memcpy(at, &words, sizeof words);
#endif
}

struct Accumulators {
  Words part[kParts];

  // With kCopies, each stripe is also written to `copy`, past the caches.
  template <bool kCopies = false>
  void take(const uint8_t* stripe, const uint8_t* secret, [[maybe_unused]] uint8_t* copy = nullptr) {
    each<kParts>(OPDUMP_STEP(k) {
      const Words words = load_bytes<Words>(stripe + k * kVectorBytes);
      if constexpr (kCopies) store_past_caches(copy + k * kVectorBytes, words);
      const Words mixed = words ^ load_bytes<Words>(secret + k * kVectorBytes);
      part[k] += neighbours(words) + lower_product(mixed, mixed >> 32);
    });
  }

  void scramble() {
    const uint8_t* secret = kXxh3Secret + kXxh3SecretBytes - kXxh3Stripe;
    each<kParts>(OPDUMP_STEP(k) {
      const Words mixed = part[k] ^ (part[k] >> 47) ^ load_bytes<Words>(secret + k * kVectorBytes);
      const Words prime = Words{} + kXxh3Prime32_1;
      part[k] = lower_product(mixed, prime) + (lower_product(mixed >> 32, prime) << 32);
    });
  }
};

template <bool kCopies>
void consume(const uint8_t* bytes, int64_t count, uint8_t* copy, uint64_t (&result)[kXxh3Accumulators]) {
  constexpr uint64_t kInitial[kXxh3Accumulators] = {kXxh3Prime32_3, kXxh3Prime64_1, kXxh3Prime64_2, kXxh3Prime64_3,
                                                    kXxh3Prime64_4, kXxh3Prime32_2, kXxh3Prime64_5, kXxh3Prime32_1};
  Accumulators accumulators;
  std::memcpy(&accumulators, kInitial, sizeof kInitial);
  const uint8_t* end = bytes + count;
  const auto take = [&](int64_t stripe) {
    const int64_t at = stripe * kXxh3Stripe;
    accumulators.take<kCopies>(bytes + at, kXxh3Secret + 8 * stripe, kCopies ? copy + at : nullptr);
  };
  for (; count > kBlockBytes; count -= kBlockBytes, bytes += kBlockBytes) {
    for (int i = 0; i < kStripesOfBlock; ++i) {
      __builtin_prefetch(bytes + i * kXxh3Stripe + 1024);
      take(i);
    }
    accumulators.scramble();
    if constexpr (kCopies) copy += kBlockBytes;
  }
  const int64_t whole = (count - 1) / kXxh3Stripe;
  for (int64_t i = 0; i < whole; ++i) take(i);
  if constexpr (kCopies) {
    // The last stripe is hashed from the copy, because another thread may write to the tensor.
    std::memcpy(copy + whole * kXxh3Stripe, bytes + whole * kXxh3Stripe,
                static_cast<size_t>(count - whole * kXxh3Stripe));
#if defined(__SSE2__)
    _mm_sfence();
#endif
    end = copy + count;
  }
  accumulators.take(end - kXxh3Stripe, kXxh3Secret + kXxh3SecretBytes - 71);
  std::memcpy(result, &accumulators, sizeof result);
}

void stripes(const uint8_t* bytes, int64_t count, uint64_t (&result)[kXxh3Accumulators]) {
  consume<false>(bytes, count, nullptr, result);
}

void stripes_copied(const uint8_t* bytes, int64_t count, uint8_t* copy, uint64_t (&result)[kXxh3Accumulators]) {
  consume<true>(bytes, count, copy, result);
}

}  // namespace
}  // namespace OPDUMP_KERNELS

extern const Xxh3Stripes OPDUMP_JOIN(OPDUMP_KERNELS, _xxh3);
const Xxh3Stripes OPDUMP_JOIN(OPDUMP_KERNELS, _xxh3) = OPDUMP_KERNELS::stripes;
extern const Xxh3CopiedStripes OPDUMP_JOIN(OPDUMP_KERNELS, _xxh3_copied);
const Xxh3CopiedStripes OPDUMP_JOIN(OPDUMP_KERNELS, _xxh3_copied) = OPDUMP_KERNELS::stripes_copied;

}  // namespace opdump
