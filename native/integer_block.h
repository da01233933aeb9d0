// Blocks of integers: extremes, signs and sums. In a namespace per instruction set, like lanes.h.
#pragma once

#include "lanes.h"
#include "narrow_lanes.h"

namespace opdump {
namespace OPDUMP_KERNELS {

// Calls take(vector, vector) for each vector of a block. If the block does not fill the last one, the first argument is
// padded with zeros and the second with the first element.
template <class Element, class Take>
__attribute__((always_inline)) inline void each_vector(const Element* elements, int64_t count, Take take) {
  constexpr int kWidth = kVectorWidth<Element>;
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    prefetch(elements + i, kWidth);
    const auto x = load_bytes<Vector<Element>>(elements + i);
    take(x, x);
  }
  if (i == count) return;
  Vector<Element> with_zeros = {};
  Vector<Element> with_first = with_zeros + elements[0];
  std::memcpy(&with_zeros, elements + i, static_cast<size_t>(count - i) * sizeof(Element));
  std::memcpy(&with_first, elements + i, static_cast<size_t>(count - i) * sizeof(Element));
  take(with_zeros, with_first);
}

// The number of zeros that each_vector adds.
template <class Element>
inline int64_t padding(int64_t count) {
  return -count & (kVectorWidth<Element> - 1);
}

inline int64_t count_zeros(const uint8_t* elements, int64_t count) {
  Tally<uint8_t> zeros;
  each_vector(elements, count, [&](Vector<uint8_t> x, Vector<uint8_t>) __attribute__((always_inline)) {
    zeros.equal(x, Vector<uint8_t>{});
  });
  zeros.end_block();
  return zeros.count() - padding<uint8_t>(count);
}

// Extremes and signs of at most one chunk.
template <class Element>
class IntegerSigns {
 public:
  explicit IntegerSigns(Element first) : max_(Vector<Element>{} + first), min_(max_) {}

  void take(Vector<Element> x, Vector<Element> for_extremes) {
    max_ = for_extremes > max_ ? for_extremes : max_;
    min_ = for_extremes < min_ ? for_extremes : min_;
    zeros_.equal(x, Vector<Element>{});
    if constexpr (std::is_signed_v<Element>) negatives_.greater(Vector<Element>{}, x);
  }
  void end_block() {
    zeros_.end_block();
    negatives_.end_block();
  }

  void store(Partial& partial, int64_t padding) const {
    Element max = max_[0];
    Element min = min_[0];
    each<kVectorWidth<Element>>(OPDUMP_STEP(i) {
      max = max_[+i] > max ? max_[+i] : max;
      min = min_[+i] < min ? min_[+i] : min;
    });
    partial.zero = zeros_.count() - padding;
    partial.negative = negatives_.count();
    partial.max = static_cast<double>(max);
    partial.min = static_cast<double>(min);
  }

 private:
  Vector<Element> max_, min_;
  Tally<Element> zeros_, negatives_;
};

// The same for one block, element by element, added to `partial`: SSE2 cannot compare 64-bit integers.
template <class Element>
void sign_scalars(const Element* elements, int64_t count, Partial& partial) {
  Element max = elements[0];
  Element min = elements[0];
  for (int64_t i = 0; i < count; ++i) {
    max = elements[i] > max ? elements[i] : max;
    min = elements[i] < min ? elements[i] : min;
    partial.zero += elements[i] == 0;
    partial.negative += elements[i] < 0;
  }
  if (static_cast<double>(max) > partial.max) partial.max = static_cast<double>(max);
  if (static_cast<double>(min) < partial.min) partial.min = static_cast<double>(min);
}

// The squares of wide integers are rounded, so they are added in lanes like those of floats.
template <class Element>
BlockSums sum_wide_block(const Element* elements, int64_t count) {
  Sums sums;
  const int64_t whole = count & ~static_cast<int64_t>(kLanes - 1);
  for (int64_t i = 0; i < whole; i += kLanes) sums.take_integers(elements + i);
  if (whole < count) {
    Element lane[kLanes] = {};
    for (int64_t j = whole; j < count; ++j) lane[j - whole] = elements[j];
    sums.take_integers(lane);
  }
  return {fold(sums.sum), fold(sums.squares)};
}

// Calls step(elements, count) for each block of a chunk.
template <class Element, class Step>
__attribute__((always_inline)) inline void each_block(const Element* elements, int64_t count, Step step) {
  for (int64_t start = 0; start < count; start += kBlock) {
    step(elements + start, count - start < kBlock ? count - start : kBlock);
  }
}

// For integers of up to 16 bits, the sums of blocks and of a chunk are exact as doubles (less than 2^49), so their
// order does not matter and no compensation is needed.
template <class Element>
void narrow_integer_chunk(const Element* elements, int64_t count, Partial& partial) {
  IntegerSigns<Element> signs(elements[0]);
  NarrowSums<Element> sums;
  each_block(elements, count, [&](const Element* block, int64_t size) __attribute__((always_inline)) {
    each_vector(block, size, [&](Vector<Element> x, Vector<Element> for_extremes) __attribute__((always_inline)) {
      signs.take(x, for_extremes);
      sums.take(x);
    });
    signs.end_block();
  });
  signs.store(partial, padding<Element>(count));
  const BlockSums found = sums.sums();
  partial.sum.sum = found.sum;
  partial.sum_squares.sum = found.squares;
}

template <class Element>
void wide_integer_chunk(const Element* elements, int64_t count, Partial& partial) {
  if constexpr (kVectorWidth<Element> <= 2) {
    each_block(elements, count, [&](const Element* block, int64_t size) {
      sign_scalars(block, size, partial);
      add(partial, sum_wide_block(block, size));
    });
  } else {
    IntegerSigns<Element> signs(elements[0]);
    each_block(elements, count, [&](const Element* block, int64_t size) __attribute__((always_inline)) {
      each_vector(block, size, [&](Vector<Element> x, Vector<Element> for_extremes) __attribute__((always_inline)) {
        signs.take(x, for_extremes);
      });
      add(partial, sum_wide_block(block, size));
    });
    signs.store(partial, padding<Element>(count));
  }
}

template <class Element>
void integer_chunk(const void* data, int64_t count, bool, Partial& partial) {
  const Element* elements = static_cast<const Element*>(data);
  if constexpr (sizeof(Element) <= 2) {
    narrow_integer_chunk(elements, count, partial);
  } else {
    wide_integer_chunk(elements, count, partial);
  }
}

// Any non-zero byte is true.
inline void boolean_chunk(const void* data, int64_t count, bool, Partial& partial) {
  each_block(static_cast<const uint8_t*>(data), count,
             [&](const uint8_t* block, int64_t size) { partial.zero += count_zeros(block, size); });
  const int64_t ones = count - partial.zero;
  partial.max = ones > 0;
  partial.min = partial.zero == 0;
  partial.sum.sum = static_cast<double>(ones);
  partial.sum_squares.sum = static_cast<double>(ones);
}

}  // namespace OPDUMP_KERNELS
}  // namespace opdump
