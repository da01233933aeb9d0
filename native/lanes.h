// Sixteen elements at a time, in as few vectors as the instruction set of this compilation allows: vectors of 64 bytes
// with AVX-512, 32 with AVX2, 16 otherwise (SSE2, NEON). Vector extensions of GCC and Clang, intrinsics only where the
// compilers do not find the instruction. Everything is in a namespace of its own for each instruction set and nothing
// of the standard library is instantiated: a function shared between the compilations could be linked from the widest.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
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

// 16 running sums and 16 running sums of squares fill all 16 registers of SSE2: a second pass over the cached block is
// cheaper than spilling.
constexpr bool kSumsInOnePass = kVectorBytes > 16;

struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

template <class Element>
struct VectorOf {
  using Type __attribute__((vector_size(kVectorBytes))) = Element;
};
template <class Element>
using Vector = typename VectorOf<Element>::Type;

template <class Element>
struct Lanes {
  static constexpr int kParts = kLanes * static_cast<int>(sizeof(Element)) / kVectorBytes;
  Vector<Element> part[kParts];
};
using Floats = Lanes<float>;
using Doubles = Lanes<double>;

template <class Element>
inline Lanes<Element> filled(Element value) {
  Lanes<Element> x;
  for (auto& part : x.part) part = Vector<Element>{} + value;
  return x;
}

inline Doubles load(const double* p) {
  Doubles x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

inline Floats load(const float* p) {
  Floats x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

#if defined(__AVX512F__)
inline Floats load(const BFloat16* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))}};
}
inline Floats load(const Float16* p) {
  return {{_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}};
}
inline Doubles widen(const Floats& x) {
  return {{_mm512_cvtps_pd(_mm512_castps512_ps256(x.part[0])), _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.part[0], 1))}};
}
#elif defined(__AVX2__)
inline Floats load(const BFloat16* p) {
  Floats x;
  for (int k = 0; k < 2; ++k) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + k));
    x.part[k] = _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  return x;
}
inline Floats load(const Float16* p) {
  Floats x;
  for (int k = 0; k < 2; ++k) x.part[k] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + k));
  return x;
}
inline Doubles widen(const Floats& x) {
  return {{_mm256_cvtps_pd(_mm256_castps256_ps128(x.part[0])), _mm256_cvtps_pd(_mm256_extractf128_ps(x.part[0], 1)),
           _mm256_cvtps_pd(_mm256_castps256_ps128(x.part[1])), _mm256_cvtps_pd(_mm256_extractf128_ps(x.part[1], 1))}};
}
#else
using Half4 = uint16_t __attribute__((vector_size(8)));

inline Floats load(const BFloat16* p) {
  Floats x;
  for (int k = 0; k < Floats::kParts; ++k) {
    Half4 narrow;
    std::memcpy(&narrow, p + 4 * k, sizeof narrow);
    x.part[k] = reinterpret_cast<Vector<float>>(__builtin_convertvector(narrow, Vector<uint32_t>) << 16);
  }
  return x;
}
inline Floats load(const Float16* p) {
  Floats x;
  for (int k = 0; k < Floats::kParts; ++k) {
    Half4 narrow;
    std::memcpy(&narrow, p + 4 * k, sizeof narrow);
    const Vector<uint32_t> half = __builtin_convertvector(narrow, Vector<uint32_t>);
    const Vector<uint32_t> magnitude = half & 0x7fffU;
    // Moved into place the exponent is 112 too small, also that of denormals: one exact product corrects it.
    const Vector<float> scaled = reinterpret_cast<Vector<float>>(magnitude << 13) * 0x1p112F;
    const Vector<uint32_t> nonfinite = reinterpret_cast<Vector<uint32_t>>(magnitude > 0x7bffU) & 0x7f800000U;
    const Vector<uint32_t> sign = (half & 0x8000U) << 16;
    x.part[k] = reinterpret_cast<Vector<float>>(reinterpret_cast<Vector<uint32_t>>(scaled) | nonfinite | sign);
  }
  return x;
}
inline Doubles widen(const Floats& x) {
  using Float2 = float __attribute__((vector_size(8)));
  Doubles wide;
  for (int k = 0; k < Doubles::kParts; ++k) {
    const Vector<float> four = x.part[k / 2];
    const Float2 two = k % 2 == 0 ? Float2{four[0], four[1]} : Float2{four[2], four[3]};
    wide.part[k] = __builtin_convertvector(two, Vector<double>);
  }
  return wide;
}
#endif

inline const Doubles& widen(const Doubles& x) { return x; }

inline void add(Doubles& total, const Doubles& x) {
  for (int k = 0; k < Doubles::kParts; ++k) total.part[k] += x.part[k];
}

// The square is rounded before it is added, on every instruction set (the build forbids the compiler to fuse them).
inline void add_squares(Doubles& total, const Doubles& x) {
  for (int k = 0; k < Doubles::kParts; ++k) total.part[k] += x.part[k] * x.part[k];
}

// The square of what was a float is exact in double: fused or not, the result is the same.
inline void add_exact_squares(Doubles& total, const Doubles& x) {
#if defined(__AVX512F__)
  for (int k = 0; k < Doubles::kParts; ++k) total.part[k] = _mm512_fmadd_pd(x.part[k], x.part[k], total.part[k]);
#elif defined(__AVX2__)
  for (int k = 0; k < Doubles::kParts; ++k) total.part[k] = _mm256_fmadd_pd(x.part[k], x.part[k], total.part[k]);
#else
  add_squares(total, x);
#endif
}

inline double fold(const Doubles& x) {
  double lane[kLanes];
  std::memcpy(lane, &x, sizeof lane);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
  }
  return lane[0];
}

// Keeps the larger (smaller) of each lane; a NaN may or may not stay.
template <class Element>
inline void keep_max(Lanes<Element>& kept, const Lanes<Element>& x) {
  for (int k = 0; k < Lanes<Element>::kParts; ++k) {
    kept.part[k] = x.part[k] > kept.part[k] ? x.part[k] : kept.part[k];
  }
}
template <class Element>
inline void keep_min(Lanes<Element>& kept, const Lanes<Element>& x) {
  for (int k = 0; k < Lanes<Element>::kParts; ++k) {
    kept.part[k] = x.part[k] < kept.part[k] ? x.part[k] : kept.part[k];
  }
}
#if defined(__AVX2__)
#define OPDUMP_KEEP(Element, suffix, bits)                                                                       \
  inline void keep_max(Lanes<Element>& kept, const Lanes<Element>& x) {                                          \
    for (int k = 0; k < Lanes<Element>::kParts; ++k) kept.part[k] = _mm##bits##_max_##suffix(x.part[k], kept.part[k]); \
  }                                                                                                              \
  inline void keep_min(Lanes<Element>& kept, const Lanes<Element>& x) {                                          \
    for (int k = 0; k < Lanes<Element>::kParts; ++k) kept.part[k] = _mm##bits##_min_##suffix(x.part[k], kept.part[k]); \
  }
#if defined(__AVX512F__)
OPDUMP_KEEP(float, ps, 512)
OPDUMP_KEEP(double, pd, 512)
#else
OPDUMP_KEEP(float, ps, 256)
OPDUMP_KEEP(double, pd, 256)
#endif
#undef OPDUMP_KEEP
#endif

template <class Element>
inline double largest(const Lanes<Element>& x) {
  Element lane[kLanes];
  std::memcpy(lane, &x, sizeof lane);
  Element found = lane[0];
  for (Element value : lane) found = value > found ? value : found;
  return static_cast<double>(found);
}
template <class Element>
inline double smallest(const Lanes<Element>& x) {
  Element lane[kLanes];
  std::memcpy(lane, &x, sizeof lane);
  Element found = lane[0];
  for (Element value : lane) found = value < found ? value : found;
  return static_cast<double>(found);
}

// Counts elements that fulfil a condition; at most a block of them.
#if defined(__AVX512F__)
// A comparison leaves a bit mask: counting its bits keeps the vector units free.
template <class Element>
class Count {
 public:
  void less(const Floats& x, const Floats& y) { take(_mm512_cmp_ps_mask(x.part[0], y.part[0], _CMP_LT_OQ)); }
  void equal(const Floats& x, const Floats& y) { take(_mm512_cmp_ps_mask(x.part[0], y.part[0], _CMP_EQ_OQ)); }
  void nan(const Floats& x) { take(_mm512_cmp_ps_mask(x.part[0], x.part[0], _CMP_UNORD_Q)); }
  void less(const Doubles& x, const Doubles& y) {
    for (int k = 0; k < 2; ++k) take(_mm512_cmp_pd_mask(x.part[k], y.part[k], _CMP_LT_OQ));
  }
  void equal(const Doubles& x, const Doubles& y) {
    for (int k = 0; k < 2; ++k) take(_mm512_cmp_pd_mask(x.part[k], y.part[k], _CMP_EQ_OQ));
  }
  void nan(const Doubles& x) {
    for (int k = 0; k < 2; ++k) take(_mm512_cmp_pd_mask(x.part[k], x.part[k], _CMP_UNORD_Q));
  }
  int64_t total() const { return total_; }

 private:
  void take(unsigned mask) { total_ += __builtin_popcount(mask); }
  int64_t total_ = 0;
};
#else
template <class Element>
class Count {
 public:
  void less(const Lanes<Element>& x, const Lanes<Element>& y) {
    for (int k = 0; k < kParts; ++k) minus_[k % kChains] += x.part[k] < y.part[k];
  }
  void equal(const Lanes<Element>& x, const Lanes<Element>& y) {
    for (int k = 0; k < kParts; ++k) minus_[k % kChains] += x.part[k] == y.part[k];
  }
  void nan(const Lanes<Element>& x) {
    for (int k = 0; k < kParts; ++k) minus_[k % kChains] += x.part[k] != x.part[k];
  }
  int64_t total() const {
    int64_t sum = 0;
    for (const Mask& mask : minus_) {
      for (unsigned j = 0; j < kVectorBytes / sizeof(Element); ++j) sum -= mask[j];
    }
    return sum;
  }

 private:
  static constexpr int kParts = Lanes<Element>::kParts;
  static constexpr int kChains = 1;
  using Mask = decltype(Vector<Element>{} < Vector<Element>{});
  Mask minus_[kChains] = {};
};
#endif

}  // namespace OPDUMP_KERNELS
}  // namespace opdump
