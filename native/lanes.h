// Sixteen elements at a time, in as few vectors as the instruction set of this compilation allows: vectors of 64 bytes
// with AVX-512, 32 with AVX2, 16 otherwise (SSE2, NEON). Uses the vector extensions of GCC and Clang, and intrinsics
// only for instructions that these cannot express. Everything is in a namespace per instruction set, and nothing of the
// standard library that generates code is used: if two compilations share a function, the linker might keep the version
// that most machines cannot run.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "summarise.h"

namespace opdump {
namespace OPDUMP_KERNELS {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

// 16 running sums and 16 running sums of squares fill all 16 registers of SSE2; another pass over a block in the cache
// is cheaper than keeping some of them in memory.
constexpr bool kSumsInOnePass = kVectorBytes > 16;

struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

template <class Element, int kBytes>
struct VectorOf {
  using Type __attribute__((vector_size(kBytes))) = Element;
};
template <class Element, int kBytes = kVectorBytes>
using Vector = typename VectorOf<Element, kBytes>::Type;

template <class Element>
struct Lanes {
  static constexpr int kParts = kLanes * static_cast<int>(sizeof(Element)) / kVectorBytes;
  static constexpr int kWidth = kLanes / kParts;
  Vector<Element> part[kParts];
};
using Floats = Lanes<float>;
using Doubles = Lanes<double>;

// Calls step(0), ..., step(kCount - 1) with constants: an array that is indexed only by constants is kept in registers;
// one that is indexed by a loop is kept on the stack until the loop is unrolled, which is too late.
template <int kCount, int kFrom = 0, class Step>
__attribute__((always_inline)) inline void each(Step&& step) {
  if constexpr (kFrom < kCount) {
    step(std::integral_constant<int, kFrom>());
    each<kCount, kFrom + 1>(step);
  }
}
#define OPDUMP_STEP(k) [&](auto k) __attribute__((always_inline))

template <class Element>
inline Vector<Element> spread(double value) {
  return Vector<Element>{} + static_cast<Element>(value);
}

template <class Element>
inline Lanes<Element> zeros() {
  Lanes<Element> x;
  each<Lanes<Element>::kParts>(OPDUMP_STEP(k) { x.part[k] = Vector<Element>{}; });
  return x;
}

template <class Wanted, class Source>
inline Wanted load_bytes(const Source* p) {
  Wanted x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

template <class Element>
inline Lanes<Element> load_lanes(const Element* p) {
  using L = Lanes<Element>;
  L x;
  each<L::kParts>(OPDUMP_STEP(k) { x.part[k] = load_bytes<Vector<Element>>(p + k * L::kWidth); });
  return x;
}
inline Doubles load(const double* p) { return load_lanes(p); }
inline Floats load(const float* p) { return load_lanes(p); }

inline void store(const Floats& x, float* p) { std::memcpy(p, &x, sizeof x); }

// A bfloat16 is the upper half of a float.
inline Floats load(const BFloat16* p) {
  Floats x;
  each<Floats::kParts>(OPDUMP_STEP(k) {
    const auto narrow = load_bytes<Vector<uint16_t, kVectorBytes / 2>>(p + k * Floats::kWidth);
#if defined(__AVX512F__)
    const auto wide = reinterpret_cast<Vector<uint32_t>>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(narrow)));
#elif defined(__AVX2__)
    const auto wide = reinterpret_cast<Vector<uint32_t>>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(narrow)));
#else
    const auto wide = __builtin_convertvector(narrow, Vector<uint32_t>);
#endif
    x.part[k] = reinterpret_cast<Vector<float>>(wide << 16);
  });
  return x;
}

inline Floats load(const Float16* p) {
  Floats x;
  each<Floats::kParts>(OPDUMP_STEP(k) {
    const auto narrow = load_bytes<Vector<uint16_t, kVectorBytes / 2>>(p + k * Floats::kWidth);
#if defined(__AVX512F__)
    x.part[k] = _mm512_cvtph_ps(reinterpret_cast<__m256i>(narrow));
#elif defined(__AVX2__)
    x.part[k] = _mm256_cvtph_ps(reinterpret_cast<__m128i>(narrow));
#else
    const Vector<uint32_t> half = __builtin_convertvector(narrow, Vector<uint32_t>);
    const Vector<uint32_t> magnitude = half & 0x7fffU;
    // After the shift, the exponent is 112 too small, also for denormals; one exact product corrects it.
    const Vector<float> scaled = reinterpret_cast<Vector<float>>(magnitude << 13) * 0x1p112F;
    const Vector<uint32_t> nonfinite = reinterpret_cast<Vector<uint32_t>>(magnitude > 0x7bffU) & 0x7f800000U;
    const Vector<uint32_t> sign = (half & 0x8000U) << 16;
    x.part[k] = reinterpret_cast<Vector<float>>(reinterpret_cast<Vector<uint32_t>>(scaled) | nonfinite | sign);
#endif
  });
  return x;
}

// Prefetches memory 8 KiB ahead, across blocks: hardware prefetching stops at the end of a page and pauses while a
// block is folded. It gains a third of the speed from memory, nothing in the cache, and does nothing past the tensor.
template <class Element>
inline void prefetch(const Element* elements, int count) {
  constexpr int kLine = 64;
  const char* later = reinterpret_cast<const char*>(elements) + 8192;
  for (int at = 0; at < count * static_cast<int>(sizeof(Element)); at += kLine) __builtin_prefetch(later + at);
}

template <int kHalf>
inline Vector<double> widened_half(Vector<float> x) {
#if defined(__AVX512F__)
  return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, kHalf));
#elif defined(__AVX2__)
  return _mm256_cvtps_pd(_mm256_extractf128_ps(x, kHalf));
#elif defined(__SSE2__)
  return _mm_cvtps_pd(kHalf == 0 ? x : _mm_movehl_ps(x, x));
#else
  return __builtin_convertvector((Vector<float, 8>{x[2 * kHalf], x[2 * kHalf + 1]}), Vector<double>);
#endif
}

// Vector k of the sixteen elements as doubles.
template <int k>
inline Vector<double> widened(const Doubles& x) {
  return x.part[k];
}
template <int k>
inline Vector<double> widened(const Floats& x) {
  return widened_half<k % 2>(x.part[k / 2]);
}

// Converts 64-bit integers, one or a vector of them, to doubles with one rounding, half by half: (2^84 + high * 2^32),
// (2^52 + low) and the first difference are exact; the last addition rounds. Unlike a cast, this is also vectorised
// without AVX-512.
template <class Double, bool kSigned, class Word>
inline Double rounded(Word value) {
  const Word high = ((value >> 32) ^ uint64_t{kSigned ? 0x80000000U : 0U}) | 0x4530000000000000U;
  const Word low = (value & 0xffffffffU) | 0x4330000000000000U;
  Double high_double, low_double;
  std::memcpy(&high_double, &high, sizeof high);
  std::memcpy(&low_double, &low, sizeof low);
  const double offset = 0x1p84 + 0x1p52 + (kSigned ? 0x1p63 : 0.0);
  return (high_double - offset) + low_double;
}
inline double to_double(int64_t value) { return rounded<double, true>(static_cast<uint64_t>(value)); }
inline double to_double(uint64_t value) { return rounded<double, false>(value); }
inline double to_double(int32_t value) { return value; }
inline double to_double(uint32_t value) { return value; }

// 32-bit integers are exact, 64-bit ones are rounded once.
template <int k, class Integer>
inline Vector<double> widened_integers(const Integer* source) {
  constexpr int kWidth = kVectorBytes / 8;
  const Integer* from = source + k * kWidth;
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<Integer, int32_t>) {
    return _mm512_cvtepi32_pd(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  } else if constexpr (std::is_same_v<Integer, uint32_t>) {
    return _mm512_cvtepu32_pd(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  } else if constexpr (std::is_same_v<Integer, int64_t>) {
    return _mm512_cvtepi64_pd(_mm512_loadu_si512(from));
  } else {
    return _mm512_cvtepu64_pd(_mm512_loadu_si512(from));
  }
#else
  constexpr bool kSigned = std::is_signed_v<Integer>;
  if constexpr (sizeof(Integer) == 4) {
#if defined(__AVX2__)
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i half = _mm_set1_epi32(INT32_MIN);
    return kSigned ? Vector<double>(_mm256_cvtepi32_pd(x))
                   : Vector<double>(_mm256_cvtepi32_pd(_mm_xor_si128(x, half))) + 0x1p31;
#elif defined(__SSE2__)
    const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    const __m128i half = _mm_set1_epi32(INT32_MIN);
    return kSigned ? Vector<double>(_mm_cvtepi32_pd(x))
                   : Vector<double>(_mm_cvtepi32_pd(_mm_xor_si128(x, half))) + 0x1p31;
#else
    Vector<double> x;
    for (int i = 0; i < kWidth; ++i) x[i] = from[i];
    return x;
#endif
  } else {
    return rounded<Vector<double>, kSigned>(load_bytes<Vector<uint64_t>>(from));
  }
#endif
}

// The same from the memory that x was loaded from: for floats, a conversion that reads memory is cheaper than splitting
// a vector.
template <int k, class Element, class Source>
inline Vector<double> widened(const Lanes<Element>& x, [[maybe_unused]] const Source* source) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<Source, float>) return _mm512_cvtps_pd(_mm256_loadu_ps(source + 8 * k));
#elif defined(__AVX2__)
  if constexpr (std::is_same_v<Source, float>) return _mm256_cvtps_pd(_mm_loadu_ps(source + 4 * k));
#endif
  return widened<k>(x);
}

// The square is rounded before it is added, on every instruction set (the build forbids fusing the two operations).
template <class Element>
inline Vector<double> add_square(Vector<double> total, Vector<double> x) {
#if defined(__AVX2__)
  if constexpr (std::is_same_v<Element, float>) {
    // The square of a former float is exact, so fusing does not change the result; the square of an integer is not.
#if defined(__AVX512F__)
    return _mm512_fmadd_pd(x, x, total);
#else
    return _mm256_fmadd_pd(x, x, total);
#endif
  }
#endif
  return total + x * x;
}

struct Sums {
  Doubles sum = zeros<double>();
  Doubles squares = zeros<double>();

  // Vector k of the sixteen, whose elements were floats or narrower.
  template <int k>
  void add(Vector<double> x) {
    sum.part[k] += x;
    squares.part[k] = add_square<float>(squares.part[k], x);
  }
  // Vector by vector, so that few registers are needed at a time: totals occupy all but three of AVX2's registers.
  template <class Element, class Source>
  void take(const Lanes<Element>& x, const Source* source) {
    each<Doubles::kParts>(OPDUMP_STEP(k) {
      const Vector<double> wide = widened<k>(x, source);
      sum.part[k] += wide;
      squares.part[k] = add_square<Element>(squares.part[k], wide);
    });
  }
  template <class Integer>
  void take_integers(const Integer* source) {
    each<Doubles::kParts>(OPDUMP_STEP(k) {
      const Vector<double> wide = widened_integers<k>(source);
      sum.part[k] += wide;
      squares.part[k] = add_square<Integer>(squares.part[k], wide);
    });
  }
  template <class Element>
  void take_sum(const Lanes<Element>& x) {
    each<Doubles::kParts>(OPDUMP_STEP(k) { sum.part[k] += widened<k>(x); });
  }
  template <class Element>
  void take_squares(const Lanes<Element>& x) {
    each<Doubles::kParts>(OPDUMP_STEP(k) { squares.part[k] = add_square<Element>(squares.part[k], widened<k>(x)); });
  }
};

struct BlockSums {
  double sum;
  double squares;
};

// Adds lane j + 8 to lane j, and so on in halves, down to one lane.
inline double fold(const Doubles& x) {
  Doubles folded = x;
  if constexpr (Doubles::kParts == 8) {
    each<4>(OPDUMP_STEP(k) { folded.part[k] += folded.part[k + 4]; });
  }
  if constexpr (Doubles::kParts >= 4) {
    each<2>(OPDUMP_STEP(k) { folded.part[k] += folded.part[k + 2]; });
  }
  const Vector<double> last = folded.part[0] + folded.part[1];
  double lane[8];
  each<Doubles::kWidth>(OPDUMP_STEP(j) { lane[j] = last[+j]; });
  if constexpr (Doubles::kWidth == 8) each<4>(OPDUMP_STEP(j) { lane[j] += lane[j + 4]; });
  if constexpr (Doubles::kWidth >= 4) each<2>(OPDUMP_STEP(j) { lane[j] += lane[j + 2]; });
  return lane[0] + lane[1];
}

inline Vector<float> larger(Vector<float> x, Vector<float> y) {
#if defined(__AVX512F__)
  return _mm512_max_ps(x, y);
#elif defined(__AVX2__)
  return _mm256_max_ps(x, y);
#elif defined(__SSE2__)
  return _mm_max_ps(x, y);
#else
  return x > y ? x : y;
#endif
}
inline Vector<float> smaller(Vector<float> x, Vector<float> y) {
#if defined(__AVX512F__)
  return _mm512_min_ps(x, y);
#elif defined(__AVX2__)
  return _mm256_min_ps(x, y);
#elif defined(__SSE2__)
  return _mm_min_ps(x, y);
#else
  return x < y ? x : y;
#endif
}
inline Vector<double> larger(Vector<double> x, Vector<double> y) {
#if defined(__AVX512F__)
  return _mm512_max_pd(x, y);
#elif defined(__AVX2__)
  return _mm256_max_pd(x, y);
#elif defined(__SSE2__)
  return _mm_max_pd(x, y);
#else
  return x > y ? x : y;
#endif
}
inline Vector<double> smaller(Vector<double> x, Vector<double> y) {
#if defined(__AVX512F__)
  return _mm512_min_pd(x, y);
#elif defined(__AVX2__)
  return _mm256_min_pd(x, y);
#elif defined(__SSE2__)
  return _mm_min_pd(x, y);
#else
  return x < y ? x : y;
#endif
}

// The largest and the smallest element so far. NaN are ignored, because they are counted elsewhere.
template <class Element>
class Extremes {
 public:
  void take(const Lanes<Element>& x) {
    each<Lanes<Element>::kParts>(OPDUMP_STEP(k) {
      max_ = larger(x.part[k], max_);
      min_ = smaller(x.part[k], min_);
    });
  }
  double max() const {
    Element found = max_[0];
    each<Lanes<Element>::kWidth>(OPDUMP_STEP(j) { found = max_[+j] > found ? max_[+j] : found; });
    return static_cast<double>(found);
  }
  double min() const {
    Element found = min_[0];
    each<Lanes<Element>::kWidth>(OPDUMP_STEP(j) { found = min_[+j] < found ? min_[+j] : found; });
    return static_cast<double>(found);
  }

 private:
  Vector<Element> max_ = spread<Element>(-__builtin_inf());
  Vector<Element> min_ = spread<Element>(__builtin_inf());
};

// Counts the elements of at most one block that fulfil a condition.
#if defined(__AVX512F__)
// A comparison leaves a mask; counting its bits keeps the vector units free.
template <class Element>
class Count {
 public:
  void less(const Lanes<Element>& x, Vector<Element> bound) { take<_CMP_LT_OQ>(x, bound); }
  void equal(const Lanes<Element>& x, Vector<Element> value) { take<_CMP_EQ_OQ>(x, value); }
  void nan(const Lanes<Element>& x) {
    each<Lanes<Element>::kParts>(OPDUMP_STEP(k) { total_ += bits<_CMP_UNORD_Q>(x.part[k], x.part[k]); });
  }
  int64_t total() const { return total_; }

 private:
  template <int kCondition>
  static int bits(Vector<float> x, Vector<float> y) {
    return __builtin_popcount(_mm512_cmp_ps_mask(x, y, kCondition));
  }
  template <int kCondition>
  static int bits(Vector<double> x, Vector<double> y) {
    return __builtin_popcount(_mm512_cmp_pd_mask(x, y, kCondition));
  }
  template <int kCondition>
  void take(const Lanes<Element>& x, Vector<Element> y) {
    each<Lanes<Element>::kParts>(OPDUMP_STEP(k) { total_ += bits<kCondition>(x.part[k], y); });
  }
  int64_t total_ = 0;
};
#else
// A comparison leaves -1 in each lane for which it is true.
template <class Element>
class Count {
 public:
  void less(const Lanes<Element>& x, Vector<Element> bound) {
    each<Lanes<Element>::kParts>(OPDUMP_STEP(k) { minus_ += x.part[k] < bound; });
  }
  void equal(const Lanes<Element>& x, Vector<Element> value) {
    each<Lanes<Element>::kParts>(OPDUMP_STEP(k) { minus_ += x.part[k] == value; });
  }
  void nan(const Lanes<Element>& x) {
    each<Lanes<Element>::kParts>(OPDUMP_STEP(k) { minus_ += x.part[k] != x.part[k]; });
  }
  int64_t total() const {
    int64_t sum = 0;
    each<Lanes<Element>::kWidth>(OPDUMP_STEP(j) { sum -= minus_[+j]; });
    return sum;
  }

 private:
  using Mask = decltype(Vector<Element>{} < Vector<Element>{});
  Mask minus_ = {};
};
#endif

inline void accumulate(CompensatedSum& total, double x) {
  const double sum = total.sum + x;
  if (__builtin_isfinite(sum)) {
    const bool total_is_larger = __builtin_fabs(total.sum) >= __builtin_fabs(x);
    total.error += total_is_larger ? (total.sum - sum) + x : (x - sum) + total.sum;
  }
  total.sum = sum;
}

// Adds the sums of a block to those of its chunk.
inline void add(Partial& partial, const BlockSums& block) {
  accumulate(partial.sum, block.sum);
  accumulate(partial.sum_squares, block.squares);
}

}  // namespace OPDUMP_KERNELS
}  // namespace opdump
