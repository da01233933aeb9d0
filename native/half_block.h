// 16-bit floats: extremes, signs, NaN and Inf from their bits, sums in lanes of doubles. In a namespace per instruction
// set, like lanes.h.
#pragma once

#include "integer_block.h"
#include "lanes.h"
#include "narrow_lanes.h"

namespace opdump {
namespace OPDUMP_KERNELS {

// The bits of infinity. Positive floats have the order of their bits, and NaN come after infinity.
template <class Element>
constexpr uint16_t kInfinity = 0;
template <>
constexpr uint16_t kInfinity<Float16> = 0x7c00;
template <>
constexpr uint16_t kInfinity<BFloat16> = 0x7f80;

using Bits = Vector<uint16_t>;
inline Bits all(uint16_t bits) { return Bits{} + bits; }

#if defined(__SSE2__) && !defined(__AVX2__)
// SSE2 compares only signed numbers; a saturating difference has the same effect.
inline Bits larger(Bits x, Bits y) {
  const auto more = reinterpret_cast<Bits>(_mm_subs_epu16(reinterpret_cast<__m128i>(x), reinterpret_cast<__m128i>(y)));
  return y + more;
}
inline Bits smaller(Bits x, Bits y) {
  const auto more = reinterpret_cast<Bits>(_mm_subs_epu16(reinterpret_cast<__m128i>(x), reinterpret_cast<__m128i>(y)));
  return x - more;
}
#else
inline Bits larger(Bits x, Bits y) { return x > y ? x : y; }
inline Bits smaller(Bits x, Bits y) { return x < y ? x : y; }
#endif

template <class Element>
inline double value_of(uint16_t bits) {
  Element lanes[kLanes] = {};
  lanes[0].bits = bits;
  return load(lanes).part[0][0];
}

// Extremes and signs of at most one chunk.
template <class Element>
class HalfSigns {
 public:
  explicit HalfSigns(Element first)
      : largest_(signed_bits(all(first.bits))), farthest_(all(first.bits)), nearest_(all(first.bits)) {}

  void take(Bits x, Bits for_extremes) {
    const auto as_signed = signed_bits(for_extremes);
    largest_ = as_signed > largest_ ? as_signed : largest_;
    farthest_ = larger(for_extremes, farthest_);
    nearest_ = smaller(for_extremes, nearest_);
    zeros_.equal(x + x, Bits{});  // doubling removes the sign
    positives_.greater(x, Bits{});
  }

  // `partial.nan` must be set; `positive_nan` counts those without a sign.
  void store(Partial& partial, int64_t count, int64_t padding, int64_t positive_nan) const {
    partial.zero = zeros_.count() - padding;
    partial.negative = count - partial.zero - partial.nan - (positives_.count() - positive_nan);
    int16_t largest = largest_[0];
    uint16_t farthest = farthest_[0];
    uint16_t nearest = nearest_[0];
    each<kVectorWidth<uint16_t>>(OPDUMP_STEP(i) {
      largest = largest_[+i] > largest ? largest_[+i] : largest;
      farthest = farthest_[+i] > farthest ? farthest_[+i] : farthest;
      nearest = nearest_[+i] < nearest ? nearest_[+i] : nearest;
    });
    constexpr uint16_t kSign = 0x8000;
    partial.max = value_of<Element>(largest >= 0 ? static_cast<uint16_t>(largest) : nearest);
    partial.min = value_of<Element>(farthest >= kSign ? farthest : nearest);
  }

 private:
  static Vector<int16_t> signed_bits(Bits x) { return reinterpret_cast<Vector<int16_t>>(x); }

  Vector<int16_t> largest_;  // the largest element without a sign, if any
  Bits farthest_;            // the element with a sign that is farthest from zero, if any
  Bits nearest_;             // the element nearest to zero, without a sign if any
  Tally<uint16_t> zeros_, positives_;
};

// NaN and Inf of at most one chunk.
template <class Element>
class HalfNonfinite {
 public:
  void take(Bits x) {
    constexpr uint16_t kSign = 0x8000;
    const Bits infinity = all(kInfinity<Element>);
    positive_infs_.equal(x, infinity);
    negative_infs_.equal(x, infinity | kSign);
    nans_.greater(x & all(0x7fff), infinity);
    positive_nans_.greater(x, infinity);
  }
  void store(Partial& partial) const {
    partial.nan = nans_.count();
    partial.positive_inf = positive_infs_.count();
    partial.negative_inf = negative_infs_.count();
  }
  int64_t positive_nans() const { return positive_nans_.count(); }

 private:
  Tally<uint16_t> positive_infs_, negative_infs_, nans_, positive_nans_;
};

#if defined(__AVX2__)

// Converts as many at a time as a vector has doubles, so that no vector is split.
inline Vector<double> widened(Vector<float, kVectorBytes / 2> x) {
#if defined(__AVX512F__)
  return _mm512_cvtps_pd(x);
#else
  return _mm256_cvtps_pd(x);
#endif
}

// Sixteen at a time, in lanes of doubles.
class Float16Sums {
 public:
  void take(const Float16* elements) {
    each<Doubles::kParts>(OPDUMP_STEP(k) {
#if defined(__AVX512F__)
      const __m256 floats = _mm256_cvtph_ps(load_bytes<__m128i>(elements + k * Doubles::kWidth));
#else
      const __m128 floats = _mm_cvtph_ps(__m128i{load_bytes<int64_t>(elements + k * Doubles::kWidth), 0});
#endif
      sums_.add<k>(widened(floats));
    });
  }
  BlockSums sums() const { return {fold(sums_.sum), fold(sums_.squares)}; }

 private:
  Sums sums_;
};

// Of two adjacent bfloat16, a shift extracts one and a mask the other, each as the upper half of a float: those at even
// places, and those at odd ones. Each lane is added in its order, but is stored elsewhere until it is folded.
class BFloat16Sums {
 public:
  void take(const BFloat16* elements) {
    each<kParts>(OPDUMP_STEP(k) {
      const auto pairs = load_bytes<Pairs>(elements + k * 2 * Doubles::kWidth);
      sums_.add<k>(widened(reinterpret_cast<Floats>(pairs << 16)));
      sums_.add<kParts + k>(widened(reinterpret_cast<Floats>(pairs & 0xffff0000U)));
    });
  }
  BlockSums sums() const { return {fold(in_order(sums_.sum)), fold(in_order(sums_.squares))}; }

 private:
  using Pairs = Vector<uint32_t, kVectorBytes / 2>;
  using Floats = Vector<float, kVectorBytes / 2>;
  static constexpr int kParts = Doubles::kParts / 2;  // for the lanes at even places

  static Doubles in_order(const Doubles& x) {
    double lanes[kLanes];
    each<kLanes>(OPDUMP_STEP(lane) {
      constexpr int kPlace = lane / 2;
      lanes[+lane] = x.part[lane % 2 * kParts + kPlace / Doubles::kWidth][kPlace % Doubles::kWidth];
    });
    return load(static_cast<const double*>(lanes));
  }

  Sums sums_;
};

template <class Element>
inline BlockSums sum_half_block(const Element* elements, int64_t count) {
  std::conditional_t<std::is_same_v<Element, Float16>, Float16Sums, BFloat16Sums> totals;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) totals.take(elements + i);
  if (i < count) {
    Element rest[kLanes] = {};
    for (int64_t j = i; j < count; ++j) rest[j - i] = elements[j];
    totals.take(rest);
  }
  return totals.sums();
}

#else

// Without a native instruction, conversion to float is expensive, so it is done once for both passes over a block.
template <class Element>
inline BlockSums sum_half_block(const Element* elements, int64_t count) {
  float floats[kBlock];
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(load(elements + i), floats + i);
  if (i < count) {
    Element lanes[kLanes] = {};
    for (int64_t j = i; j < count; ++j) lanes[j - i] = elements[j];
    store(load(lanes), floats + i);
  }
  Sums sums;
  for (i = 0; i < count; i += kLanes) sums.take_sum(load(floats + i));
  for (i = 0; i < count; i += kLanes) sums.take_squares(load(floats + i));
  return {fold(sums.sum), fold(sums.squares)};
}
#endif

// NaN and Inf show up in the sums, because squares of finite elements cannot overflow a double. From then on they are
// counted and nothing is added, because the sums follow from the counts.
template <class Element>
void half_chunk(const void* data, int64_t count, bool sums_wanted, Partial& partial) {
  const auto* elements = static_cast<const Element*>(data);
  HalfSigns<Element> signs(elements[0]);
  HalfNonfinite<Element> nonfinite;
  each_block(elements, count, [&](const Element* block, int64_t size) __attribute__((always_inline)) {
    const auto* bits = reinterpret_cast<const uint16_t*>(block);
    if (sums_wanted) {
      const BlockSums sums = sum_half_block(block, size);
      sums_wanted = __builtin_isfinite(sums.squares);
      add(partial, sums);
    }
    each_vector(bits, size, [&](Bits x, Bits for_extremes) __attribute__((always_inline)) {
      signs.take(x, for_extremes);
      if (!sums_wanted) nonfinite.take(x);
    });
  });
  nonfinite.store(partial);
  signs.store(partial, count, padding<uint16_t>(count), nonfinite.positive_nans());
}

}  // namespace OPDUMP_KERNELS
}  // namespace opdump
