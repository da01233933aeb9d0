// Integers and bit patterns, a full vector at a time, while lanes.h takes sixteen. All results are exact, so the order
// of additions does not matter. In a namespace per instruction set, like lanes.h.
#pragma once

#include "lanes.h"

namespace opdump {
namespace OPDUMP_KERNELS {

template <class Element>
constexpr int kVectorWidth = kVectorBytes / static_cast<int>(sizeof(Element));

// x[2 i] * y[2 i] + x[2 i + 1] * y[2 i + 1]. Read the result as unsigned: the sum of two squares of -2^15 is 2^31.
inline Vector<int32_t> pair_products(Vector<int16_t> x, Vector<int16_t> y) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vector<int32_t>>(
      _mm512_madd_epi16(reinterpret_cast<__m512i>(x), reinterpret_cast<__m512i>(y)));
#elif defined(__AVX2__)
  return reinterpret_cast<Vector<int32_t>>(
      _mm256_madd_epi16(reinterpret_cast<__m256i>(x), reinterpret_cast<__m256i>(y)));
#elif defined(__SSE2__)
  return reinterpret_cast<Vector<int32_t>>(_mm_madd_epi16(reinterpret_cast<__m128i>(x), reinterpret_cast<__m128i>(y)));
#else
  const auto low = [](Vector<int16_t> pairs) {
    return reinterpret_cast<Vector<int32_t>>(reinterpret_cast<Vector<uint32_t>>(pairs) << 16) >> 16;
  };
  const auto high = [](Vector<int16_t> pairs) { return reinterpret_cast<Vector<int32_t>>(pairs) >> 16; };
  return reinterpret_cast<Vector<int32_t>>(reinterpret_cast<Vector<uint32_t>>(low(x) * low(y)) +
                                           reinterpret_cast<Vector<uint32_t>>(high(x) * high(y)));
#endif
}

// The sums of groups of eight bytes.
inline Vector<uint64_t> sums_of_eight(Vector<uint8_t> x) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vector<uint64_t>>(_mm512_sad_epu8(reinterpret_cast<__m512i>(x), _mm512_setzero_si512()));
#elif defined(__AVX2__)
  return reinterpret_cast<Vector<uint64_t>>(_mm256_sad_epu8(reinterpret_cast<__m256i>(x), _mm256_setzero_si256()));
#elif defined(__SSE2__)
  return reinterpret_cast<Vector<uint64_t>>(_mm_sad_epu8(reinterpret_cast<__m128i>(x), _mm_setzero_si128()));
#else
  auto sums = reinterpret_cast<Vector<uint64_t>>(x);
  sums = (sums & 0x00ff00ff00ff00ffU) + (sums >> 8 & 0x00ff00ff00ff00ffU);
  sums = (sums & 0x0000ffff0000ffffU) + (sums >> 16 & 0x0000ffff0000ffffU);
  return (sums & 0xffffffffU) + (sums >> 32);
#endif
}

template <class Element>
inline int64_t total(Vector<Element> x) {
  int64_t sum = 0;
  each<kVectorWidth<Element>>(OPDUMP_STEP(i) { sum += static_cast<int64_t>(x[+i]); });
  return sum;
}

// Counts the elements of at most one chunk that fulfil a condition.
#if defined(__AVX512F__)
// A comparison leaves a mask; counting its bits keeps the vector units free.
template <class Element>
class Tally {
 public:
  void equal(Vector<Element> x, Vector<Element> y) { take(equal_bits(wide(x), wide(y))); }
  // As signed integers.
  void greater(Vector<Element> x, Vector<Element> y) { take(greater_bits(wide(x), wide(y))); }
  void end_block() {}
  int64_t count() const { return count_; }

 private:
  static __m512i wide(Vector<Element> x) { return reinterpret_cast<__m512i>(x); }
  static uint64_t equal_bits(__m512i x, __m512i y) {
    if constexpr (sizeof(Element) == 1) return _mm512_cmpeq_epi8_mask(x, y);
    if constexpr (sizeof(Element) == 2) return _mm512_cmpeq_epi16_mask(x, y);
    if constexpr (sizeof(Element) == 4) return _mm512_cmpeq_epi32_mask(x, y);
    if constexpr (sizeof(Element) == 8) return _mm512_cmpeq_epi64_mask(x, y);
  }
  static uint64_t greater_bits(__m512i x, __m512i y) {
    if constexpr (sizeof(Element) == 1) return _mm512_cmpgt_epi8_mask(x, y);
    if constexpr (sizeof(Element) == 2) return _mm512_cmpgt_epi16_mask(x, y);
    if constexpr (sizeof(Element) == 4) return _mm512_cmpgt_epi32_mask(x, y);
    if constexpr (sizeof(Element) == 8) return _mm512_cmpgt_epi64_mask(x, y);
  }
  void take(uint64_t bits) { count_ += __builtin_popcountll(bits); }
  int64_t count_ = 0;
};
#else
// A comparison leaves -1 in each lane for which it is true.
template <class Element>
class Tally {
 public:
  void equal(Vector<Element> x, Vector<Element> y) { minus_ += x == y; }
  // As signed integers.
  void greater(Vector<Element> x, Vector<Element> y) {
    minus_ += reinterpret_cast<Mask>(x) > reinterpret_cast<Mask>(y);
  }
  // An 8-bit lane can count only one block, which has 128 vectors of 16 bytes; wider lanes can count a chunk.
  void end_block() {
    if constexpr (sizeof(Element) > 1) return;
    sums_ += sums_of_eight(reinterpret_cast<Vector<uint8_t>>(-minus_));
    minus_ = Mask{};
  }
  int64_t count() const {
    if constexpr (sizeof(Element) == 1) return total<uint64_t>(sums_);
    return -total<Signed>(minus_);
  }

 private:
  static_assert(kBlock / kVectorBytes <= 255, "a lane of 8 bits");
  static_assert(kChunk / (kVectorBytes / 2) <= 32767, "a lane of 16 bits");
  using Signed = std::make_signed_t<Element>;
  using Mask = Vector<Signed>;
  Mask minus_ = {};
  Vector<uint64_t> sums_ = {};
};
#endif

// The results are unsigned: the magnitude of -2^7 is 2^7.
inline Vector<uint8_t> magnitudes(Vector<uint8_t> x) { return x; }
inline Vector<uint8_t> magnitudes(Vector<int8_t> x) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vector<uint8_t>>(_mm512_abs_epi8(reinterpret_cast<__m512i>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<Vector<uint8_t>>(_mm256_abs_epi8(reinterpret_cast<__m256i>(x)));
#else
  const auto sign = x < 0;
  return reinterpret_cast<Vector<uint8_t>>((x ^ sign) - sign);
#endif
}

// Sums of at most one chunk of vectors of int8 or uint8. 32-bit totals suffice: eight lanes share the 2^16 squares of a
// chunk, each less than 2^16.
template <class Element>
class ByteSums {
 public:
  void take(Vector<Element> x) {
    constexpr bool kSigned = std::is_signed_v<Element>;
    const auto bytes = reinterpret_cast<Vector<uint8_t>>(x);
    sum_ += sums_of_eight(kSigned ? bytes ^ uint8_t{kBias} : bytes);
    const auto pairs = reinterpret_cast<Vector<uint16_t>>(magnitudes(x));
    const auto even = reinterpret_cast<Vector<int16_t>>(pairs & 0xff);
    const auto odd = reinterpret_cast<Vector<int16_t>>(pairs >> 8);
    squares_ += pair_products(even, even);
    more_squares_ += pair_products(odd, odd);
    ++taken_;
  }
  BlockSums sums() const {
    const int64_t bias = std::is_signed_v<Element> ? int64_t{kBias} * kVectorBytes * taken_ : 0;
    return {static_cast<double>(total<uint64_t>(sum_) - bias),
            static_cast<double>(total<int32_t>(squares_) + total<int32_t>(more_squares_))};
  }

 private:
  static constexpr uint8_t kBias = 128;
  Vector<uint64_t> sum_ = {};
  Vector<int32_t> squares_ = {};
  Vector<int32_t> more_squares_ = {};
  int64_t taken_ = 0;
};

// The same for int16 and uint16. uint16 is shifted to begin at -2^15: x = y + b, x^2 = y^2 + 2 b y + b^2.
template <class Element>
class WordSums {
 public:
  void take(Vector<Element> x) {
    const auto y = reinterpret_cast<Vector<int16_t>>(x ^ static_cast<Element>(std::is_signed_v<Element> ? 0 : kBias));
    sum_ += pair_products(y, Vector<int16_t>{} + int16_t{1});
    const auto squares = reinterpret_cast<Vector<uint64_t>>(pair_products(y, y));
    squares_ += squares & 0xffffffffU;
    more_squares_ += squares >> 32;
    ++taken_;
  }
  BlockSums sums() const {
    const int64_t sum = total<int32_t>(sum_);
    const int64_t squares = total<uint64_t>(squares_) + total<uint64_t>(more_squares_);
    const int64_t bias = std::is_signed_v<Element> ? 0 : kBias;
    const int64_t count = taken_ * kVectorWidth<Element>;
    return {static_cast<double>(sum + bias * count),
            static_cast<double>(squares + 2 * bias * sum + bias * bias * count)};
  }

 private:
  static constexpr int64_t kBias = 0x8000;
  Vector<int32_t> sum_ = {};
  Vector<uint64_t> squares_ = {};
  Vector<uint64_t> more_squares_ = {};
  int64_t taken_ = 0;
};

template <class Element>
using NarrowSums = std::conditional_t<sizeof(Element) == 1, ByteSums<Element>, WordSums<Element>>;

}  // namespace OPDUMP_KERNELS
}  // namespace opdump
