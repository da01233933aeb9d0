// The loops over elements. Compiled once for each instruction set, with OPDUMP_KERNELS naming the namespace.
#include "lanes.h"
#include "summarise.h"

namespace opdump {
namespace OPDUMP_KERNELS {
namespace {

constexpr int64_t kLastWhole = ~static_cast<int64_t>(kLanes - 1);

inline void accumulate(CompensatedSum& total, double x) {
  const double sum = total.sum + x;
  if (__builtin_isfinite(sum)) {
    const bool total_is_larger = __builtin_fabs(total.sum) >= __builtin_fabs(x);
    total.error += total_is_larger ? (total.sum - sum) + x : (x - sum) + total.sum;
  }
  total.sum = sum;
}

// The last count % 16 elements, the other lanes filled with `filler`.
template <class Element>
struct Tail {
  Element lane[kLanes];
  Tail(const Element* elements, int64_t count, Element filler) {
    for (int64_t j = 0; j < kLanes; ++j) lane[j] = filler;
    std::memcpy(lane, elements, static_cast<size_t>(count) * sizeof(Element));
  }
};

template <class Element>
using Widened = decltype(load(static_cast<const Element*>(nullptr)));
template <class Lane>
Lane lane_of(const Lanes<Lane>&);
template <class Element>
using Lane = decltype(lane_of(load(static_cast<const Element*>(nullptr))));

struct BlockSums {
  double sum;
  double sum_squares;
};

template <class Lane>
inline void add_lane_squares(Doubles& total, const Doubles& x) {
  if constexpr (sizeof(Lane) == sizeof(float)) {
    add_exact_squares(total, x);
  } else {
    add_squares(total, x);
  }
}

// Sums, extremes and signs of a block that is expected to be finite.
template <class Element>
BlockSums sum_block(const Element* elements, int64_t count, Partial& block) {
  using L = Lane<Element>;
  const Lanes<L> zero = filled<L>(0);
  Doubles sum = filled<double>(0);
  Doubles squares = filled<double>(0);
  Lanes<L> max = filled<L>(-__builtin_inff());
  Lanes<L> min = filled<L>(__builtin_inff());
  Count<L> zeros, negatives;
  const int64_t whole = count & kLastWhole;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Lanes<L> x = load(elements + i);
    keep_max(max, x);
    keep_min(min, x);
    zeros.equal(x, zero);
    negatives.less(x, zero);
    if constexpr (kSumsInOnePass) {
      const Doubles wide = widen(x);
      add(sum, wide);
      add_lane_squares<L>(squares, wide);
    }
  }
  if constexpr (!kSumsInOnePass) {
    for (int64_t i = 0; i < whole; i += kLanes) add(sum, widen(load(elements + i)));
    for (int64_t i = 0; i < whole; i += kLanes) add_lane_squares<L>(squares, widen(load(elements + i)));
  }
  int64_t padding = 0;
  if (whole < count) {
    padding = kLanes - (count - whole);
    const Tail<Element> zero_filled(elements + whole, count - whole, Element{});
    const Tail<Element> repeated(elements + whole, count - whole, elements[whole]);
    const Lanes<L> x = load(zero_filled.lane);
    const Lanes<L> extreme = load(repeated.lane);
    keep_max(max, extreme);
    keep_min(min, extreme);
    zeros.equal(x, zero);
    negatives.less(x, zero);
    const Doubles wide = widen(x);
    add(sum, wide);
    add_lane_squares<L>(squares, wide);
  }
  block.zero = zeros.total() - padding;
  block.negative = negatives.total();
  block.max = largest(max);
  block.min = smallest(min);
  return {fold(sum), fold(squares)};
}

// Everything but the sums: those of a block with NaN or Inf follow from the counts.
template <class Element>
void count_block(const Element* elements, int64_t count, Partial& block) {
  using L = Lane<Element>;
  const Lanes<L> zero = filled<L>(0);
  const Lanes<L> infinity = filled<L>(__builtin_inff());
  const Lanes<L> minus_infinity = filled<L>(-__builtin_inff());
  Lanes<L> max = minus_infinity;
  Lanes<L> min = infinity;
  Count<L> zeros, negatives, nans, positive_infs, negative_infs;
  const int64_t whole = count & kLastWhole;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Lanes<L> x = load(elements + i);
    keep_max(max, x);
    keep_min(min, x);
    zeros.equal(x, zero);
    negatives.less(x, zero);
    nans.nan(x);
    positive_infs.equal(x, infinity);
    negative_infs.equal(x, minus_infinity);
  }
  int64_t padding = 0;
  if (whole < count) {
    padding = kLanes - (count - whole);
    const Tail<Element> zero_filled(elements + whole, count - whole, Element{});
    const Tail<Element> repeated(elements + whole, count - whole, elements[whole]);
    const Lanes<L> x = load(zero_filled.lane);
    const Lanes<L> extreme = load(repeated.lane);
    keep_max(max, extreme);
    keep_min(min, extreme);
    zeros.equal(x, zero);
    negatives.less(x, zero);
    nans.nan(x);
    positive_infs.equal(x, infinity);
    negative_infs.equal(x, minus_infinity);
  }
  block.zero = zeros.total() - padding;
  block.negative = negatives.total();
  block.nan = nans.total();
  block.positive_inf = positive_infs.total();
  block.negative_inf = negative_infs.total();
  block.max = largest(max);
  block.min = smallest(min);
}

inline void merge(Partial& partial, const Partial& block) {
  partial.nan += block.nan;
  partial.positive_inf += block.positive_inf;
  partial.negative_inf += block.negative_inf;
  partial.zero += block.zero;
  partial.negative += block.negative;
  if (block.max > partial.max) partial.max = block.max;
  if (block.min < partial.min) partial.min = block.min;
}

template <class Element>
void floating_chunk(const void* data, int64_t count, bool sums_wanted, Partial& partial) {
  const Element* elements = static_cast<const Element*>(data);
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t size = count - start < kBlock ? count - start : kBlock;
    Partial block;
    if (sums_wanted) {
      const BlockSums sums = sum_block(elements + start, size, block);
      // A NaN or Inf always shows here; so does an overflow of finite doubles, which keeps its sums.
      if (__builtin_isfinite(sums.sum_squares)) {
        merge(partial, block);
        accumulate(partial.sum, sums.sum);
        accumulate(partial.sum_squares, sums.sum_squares);
        continue;
      }
      count_block(elements + start, size, block);
      sums_wanted = !block.has_nonfinite();
      accumulate(partial.sum, sums.sum);
      accumulate(partial.sum_squares, sums.sum_squares);
    } else {
      count_block(elements + start, size, block);
    }
    merge(partial, block);
  }
}

// 64-bit integers become doubles with one rounding, half by half: (2^84 + high * 2^32) and (2^52 + low) are exact, so
// is the first difference, and the last addition rounds. Unlike a cast this is vectorised without AVX-512 too.
inline double to_double(uint64_t value, uint64_t sign_bias) {
  const uint64_t high = ((value >> 32) ^ sign_bias) | 0x4530000000000000U;
  const uint64_t low = (value & 0xffffffffU) | 0x4330000000000000U;
  double high_double, low_double;
  std::memcpy(&high_double, &high, sizeof high);
  std::memcpy(&low_double, &low, sizeof low);
  const double offset = 0x1p84 + 0x1p52 + (sign_bias != 0 ? 0x1p63 : 0.0);
  return (high_double - offset) + low_double;
}
inline double to_double(int64_t value) { return to_double(static_cast<uint64_t>(value), 0x80000000U); }
inline double to_double(uint64_t value) { return to_double(value, 0); }
inline double to_double(int32_t value) { return value; }
inline double to_double(uint32_t value) { return value; }

// Sums of up to 16 bits are exact in integers, and as doubles.
template <class Element>
BlockSums sum_narrow_block(const Element* elements, int64_t count) {
  int64_t sum = 0;
  uint64_t squares = 0;
  constexpr int64_t kStep = 128;  // the sums of so many fit into 32 bits, which have twice as many lanes
  for (int64_t start = 0; start < count; start += kStep) {
    const int64_t end = start + kStep < count ? start + kStep : count;
    int32_t step_sum = 0;
    for (int64_t i = start; i < end; ++i) step_sum += elements[i];
    sum += step_sum;
    if constexpr (sizeof(Element) == 1) {
      int32_t step_squares = 0;
      for (int64_t i = start; i < end; ++i) step_squares += elements[i] * elements[i];
      squares += static_cast<uint32_t>(step_squares);
    } else {
      for (int64_t i = start; i < end; ++i) {
        const uint32_t magnitude = static_cast<uint32_t>(elements[i] < 0 ? -elements[i] : elements[i]);
        squares += magnitude * magnitude;
      }
    }
  }
  return {static_cast<double>(sum), static_cast<double>(squares)};
}

template <class Element>
BlockSums sum_wide_block(const Element* elements, int64_t count) {
  Doubles sum = filled<double>(0);
  Doubles squares = filled<double>(0);
  const int64_t whole = count & kLastWhole;
  for (int64_t i = 0; i < count; i += kLanes) {
    double lane[kLanes] = {};
    if (i < whole) {
      for (int j = 0; j < kLanes; ++j) lane[j] = to_double(elements[i + j]);
    } else {
      for (int64_t j = i; j < count; ++j) lane[j - i] = to_double(elements[j]);
    }
    const Doubles x = load(lane);
    add(sum, x);
    add_squares(squares, x);
  }
  return {fold(sum), fold(squares)};
}

template <class Element>
void integer_chunk(const void* data, int64_t count, bool sums_wanted, Partial& partial) {
  (void)sums_wanted;
  const Element* elements = static_cast<const Element*>(data);
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t size = count - start < kBlock ? count - start : kBlock;
    const Element* values = elements + start;
    Element max = values[0];
    Element min = values[0];
    int32_t zero = 0;
    int32_t negative = 0;
    for (int64_t i = 0; i < size; ++i) {
      max = values[i] > max ? values[i] : max;
      min = values[i] < min ? values[i] : min;
      zero += values[i] == 0;
      negative += values[i] < 0;
    }
    BlockSums sums;
    if constexpr (sizeof(Element) <= 2) {
      sums = sum_narrow_block(values, size);
    } else {
      sums = sum_wide_block(values, size);
    }
    Partial block;
    block.zero = zero;
    block.negative = negative;
    block.max = static_cast<double>(max);
    block.min = static_cast<double>(min);
    merge(partial, block);
    accumulate(partial.sum, sums.sum);
    accumulate(partial.sum_squares, sums.sum_squares);
  }
}

// Any byte but zero is true.
void boolean_chunk(const void* data, int64_t count, bool sums_wanted, Partial& partial) {
  (void)sums_wanted;
  const uint8_t* elements = static_cast<const uint8_t*>(data);
  int64_t zero = 0;
  for (int64_t i = 0; i < count; ++i) zero += elements[i] == 0;
  const int64_t ones = count - zero;
  partial.zero = zero;
  partial.max = ones > 0;
  partial.min = zero == 0;
  partial.sum.sum = static_cast<double>(ones);
  partial.sum_squares.sum = static_cast<double>(ones);
}

}  // namespace
}  // namespace OPDUMP_KERNELS

#define OPDUMP_JOIN_(a, b) a##b
#define OPDUMP_JOIN(a, b) OPDUMP_JOIN_(a, b)
#define OPDUMP_TEXT_(a) #a
#define OPDUMP_TEXT(a) OPDUMP_TEXT_(a)

extern const InstructionSet OPDUMP_JOIN(OPDUMP_KERNELS, _kernels);
const InstructionSet OPDUMP_JOIN(OPDUMP_KERNELS, _kernels) = {
    OPDUMP_TEXT(OPDUMP_KERNELS),
    {
        OPDUMP_KERNELS::floating_chunk<OPDUMP_KERNELS::Float16>,
        OPDUMP_KERNELS::floating_chunk<OPDUMP_KERNELS::BFloat16>,
        OPDUMP_KERNELS::floating_chunk<float>,
        OPDUMP_KERNELS::floating_chunk<double>,
        OPDUMP_KERNELS::integer_chunk<int8_t>,
        OPDUMP_KERNELS::integer_chunk<int16_t>,
        OPDUMP_KERNELS::integer_chunk<int32_t>,
        OPDUMP_KERNELS::integer_chunk<int64_t>,
        OPDUMP_KERNELS::integer_chunk<uint8_t>,
        OPDUMP_KERNELS::integer_chunk<uint16_t>,
        OPDUMP_KERNELS::integer_chunk<uint32_t>,
        OPDUMP_KERNELS::integer_chunk<uint64_t>,
        OPDUMP_KERNELS::boolean_chunk,
    },
};

}  // namespace opdump
