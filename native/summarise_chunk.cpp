// The loops over elements. Compiled once for each instruction set, with OPDUMP_KERNELS naming the namespace.
#include "lanes.h"
#include "summarise.h"

namespace opdump {
namespace OPDUMP_KERNELS {
namespace {

constexpr int64_t kWholeLanes = ~static_cast<int64_t>(kLanes - 1);

inline void accumulate(CompensatedSum& total, double x) {
  const double sum = total.sum + x;
  if (__builtin_isfinite(sum)) {
    const bool total_is_larger = __builtin_fabs(total.sum) >= __builtin_fabs(x);
    total.error += total_is_larger ? (total.sum - sum) + x : (x - sum) + total.sum;
  }
  total.sum = sum;
}

// The last count % 16 elements of a block, filled up with zeros, and with their first for the extremes.
template <class Element>
class Tail {
 public:
  Tail(const Element* elements, int64_t count) {
    for (int64_t j = 0; j < kLanes; ++j) {
      lane_[j] = j < count ? elements[j] : Element{};
      repeated_[j] = j < count ? elements[j] : elements[0];
    }
  }
  auto zero_filled() const { return load(lane_); }
  const Element* lanes() const { return lane_; }
  auto repeated() const { return load(repeated_); }

 private:
  Element lane_[kLanes];
  Element repeated_[kLanes];
};

template <class Lane>
Lane lane_of(const Lanes<Lane>&);
template <class Element>
using Lane = decltype(lane_of(load(static_cast<const Element*>(nullptr))));

struct BlockSums {
  double sum;
  double sum_squares;
};

// Asks for memory that comes 8 KiB later, the next block's included: hardware stops at the end of a page and the
// folding of a block is a pause. Worth a third of the speed from memory, nothing in the cache. Past the tensor it does
// nothing.
template <class Element>
inline void prefetch(const Element* elements, int count) {
  constexpr int kLine = 64;
  const char* later = reinterpret_cast<const char*>(elements) + 8192;
  for (int at = 0; at < count * static_cast<int>(sizeof(Element)); at += kLine) __builtin_prefetch(later + at);
}

// What both passes over a block find: extremes, zeros, signs.
template <class Element>
struct Signs {
  using L = Lane<Element>;
  Extremes<L> extremes;
  Count<L> zeros, negatives;

  void take(const Lanes<L>& x, const Lanes<L>& for_extremes) {
    extremes.take(for_extremes);
    zeros.equal(x, Vector<L>{});
    negatives.less(x, Vector<L>{});
  }
  void store(Partial& block, int64_t padding) const {
    block.zero = zeros.total() - padding;
    block.negative = negatives.total();
    block.max = extremes.max();
    block.min = extremes.min();
  }
};

// Sums, extremes and signs of a block that is expected to be finite.
template <class Element>
BlockSums sum_block(const Element* elements, int64_t count, Partial& block) {
  Signs<Element> signs;
  Sums sums;
  const int64_t whole = count & kWholeLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    prefetch(elements + i, kLanes);
    const auto x = load(elements + i);
    signs.take(x, x);
    if constexpr (kSumsInOnePass) sums.take(x, elements + i);
  }
  if constexpr (!kSumsInOnePass) {
    for (int64_t i = 0; i < whole; i += kLanes) sums.take_sum(load(elements + i));
    for (int64_t i = 0; i < whole; i += kLanes) sums.take_squares(load(elements + i));
  }
  if (whole < count) {
    const Tail<Element> tail(elements + whole, count - whole);
    signs.take(tail.zero_filled(), tail.repeated());
    sums.take(tail.zero_filled(), tail.lanes());
  }
  signs.store(block, -count & (kLanes - 1));
  return {fold(sums.sum), fold(sums.squares)};
}

// Everything but the sums: those of a block with NaN or Inf follow from the counts.
template <class Element>
void count_block(const Element* elements, int64_t count, Partial& block) {
  using L = Lane<Element>;
  Signs<Element> signs;
  Count<L> nans, positive_infs, negative_infs;
  const auto take = [&](const Lanes<L>& x, const Lanes<L>& for_extremes) __attribute__((always_inline)) {
    signs.take(x, for_extremes);
    nans.nan(x);
    positive_infs.equal(x, spread<L>(__builtin_inf()));
    negative_infs.equal(x, spread<L>(-__builtin_inf()));
  };
  const int64_t whole = count & kWholeLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    prefetch(elements + i, kLanes);
    const Lanes<L> x = load(elements + i);
    take(x, x);
  }
  if (whole < count) {
    const Tail<Element> tail(elements + whole, count - whole);
    take(tail.zero_filled(), tail.repeated());
  }
  signs.store(block, -count & (kLanes - 1));
  block.nan = nans.total();
  block.positive_inf = positive_infs.total();
  block.negative_inf = negative_infs.total();
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

// Without an instruction for it, converting to float is expensive: once for all passes over a block.
template <class Element>
constexpr bool kConvertFirst = !kSumsInOnePass && sizeof(Element) == 2;

template <class Element>
class Block {
 public:
  const auto* elements(const Element* block, int64_t count) {
    if constexpr (kConvertFirst<Element>) {
      int64_t i = 0;
      for (; i < (count & kWholeLanes); i += kLanes) store(load(block + i), floats_ + i);
      if (i < count) store(Tail<Element>(block + i, count - i).zero_filled(), floats_ + i);
      return static_cast<const float*>(floats_);
    } else {
      return block;
    }
  }

 private:
  float floats_[kConvertFirst<Element> ? kBlock : 1];
};

template <class Element>
void floating_chunk(const void* data, int64_t count, bool sums_wanted, Partial& partial) {
  Block<Element> converted;
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t size = count - start < kBlock ? count - start : kBlock;
    const auto* elements = converted.elements(static_cast<const Element*>(data) + start, size);
    Partial block;
    if (sums_wanted) {
      const BlockSums sums = sum_block(elements, size, block);
      // NaN and Inf always show here. So does an overflow of finite doubles, but that keeps its sums.
      const bool finite = __builtin_isfinite(sums.sum_squares);
      if (!finite) {
        count_block(elements, size, block);
        sums_wanted = !block.has_nonfinite();
      }
      accumulate(partial.sum, sums.sum);
      accumulate(partial.sum_squares, sums.sum_squares);
    } else {
      count_block(elements, size, block);
    }
    merge(partial, block);
  }
}

// Sums of up to 16 bits are exact in integers, and as doubles. The totals of a block of 2048 fit: 2^8 * 2^8 * 2^11 into
// 32 bits, 2^16 * 2^16 * 2^11 into 64.
template <class Element>
BlockSums sum_narrow_block(const Element* elements, int64_t count) {
  using Squares = std::conditional_t<sizeof(Element) == 1, uint32_t, uint64_t>;
  int32_t sum = 0;
  Squares squares = 0;
  for (int64_t i = 0; i < count; ++i) sum += elements[i];
  for (int64_t i = 0; i < count; ++i) {
    const int32_t x = elements[i];
    squares += static_cast<uint32_t>(x) * static_cast<uint32_t>(x);
  }
  return {static_cast<double>(sum), static_cast<double>(squares)};
}

template <class Element>
BlockSums sum_wide_block(const Element* elements, int64_t count) {
  Sums sums;
  const int64_t whole = count & kWholeLanes;
  for (int64_t i = 0; i < count; i += kLanes) {
    double lane[kLanes] = {};
    if (i < whole) {
      for (int j = 0; j < kLanes; ++j) lane[j] = to_double(elements[i + j]);
    } else {
      for (int64_t j = i; j < count; ++j) lane[j - i] = to_double(elements[j]);
    }
    sums.take(load(lane), lane);
  }
  return {fold(sums.sum), fold(sums.squares)};
}

// Extremes and signs of a block of integers, as many at a time as a vector holds.
template <class Element>
void sign_block(const Element* elements, int64_t count, Partial& block) {
  constexpr int kWidth = kVectorBytes / sizeof(Element);
  using Mask = decltype(Vector<Element>{} == Vector<Element>{});
  // Each lane counts down by one; even bytes hold that: a block has 128 vectors of 16 bytes.
  static_assert(kBlock / kVectorBytes <= 128, "a lane of int8 counts to -128");
  Mask minus_zeros = {};
  Mask minus_negatives = {};
  Element max = elements[0];
  Element min = elements[0];
  int64_t zeros = 0;
  int64_t negatives = 0;
  int64_t i = 0;
  // SSE2 cannot compare 64-bit integers.
  if (count >= kWidth && kWidth > 2) {
    Vector<Element> vector_max = Vector<Element>{} + max;
    Vector<Element> vector_min = vector_max;
    for (; i + kWidth <= count; i += kWidth) {
      prefetch(elements + i, kWidth);
      const auto x = load_bytes<Vector<Element>>(elements + i);
      vector_max = x > vector_max ? x : vector_max;
      vector_min = x < vector_min ? x : vector_min;
      minus_zeros += x == 0;
      if constexpr (std::is_signed_v<Element>) minus_negatives += x < 0;
    }
    for (int j = 0; j < kWidth; ++j) {
      max = vector_max[j] > max ? vector_max[j] : max;
      min = vector_min[j] < min ? vector_min[j] : min;
      zeros -= minus_zeros[j];
      negatives -= minus_negatives[j];
    }
  }
  for (; i < count; ++i) {
    max = elements[i] > max ? elements[i] : max;
    min = elements[i] < min ? elements[i] : min;
    zeros += elements[i] == 0;
    negatives += elements[i] < 0;
  }
  block.zero = zeros;
  block.negative = negatives;
  block.max = static_cast<double>(max);
  block.min = static_cast<double>(min);
}

template <class Element>
void integer_chunk(const void* data, int64_t count, bool, Partial& partial) {
  const Element* elements = static_cast<const Element*>(data);
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t size = count - start < kBlock ? count - start : kBlock;
    Partial block;
    sign_block(elements + start, size, block);
    merge(partial, block);
    BlockSums sums;
    if constexpr (sizeof(Element) <= 2) {
      sums = sum_narrow_block(elements + start, size);
    } else {
      sums = sum_wide_block(elements + start, size);
    }
    accumulate(partial.sum, sums.sum);
    accumulate(partial.sum_squares, sums.sum_squares);
  }
}

// Any byte but zero is true.
void boolean_chunk(const void* data, int64_t count, bool, Partial& partial) {
  const uint8_t* elements = static_cast<const uint8_t*>(data);
  for (int64_t start = 0; start < count; start += kBlock) {
    Partial block;
    sign_block(elements + start, count - start < kBlock ? count - start : kBlock, block);
    partial.zero += block.zero;
  }
  const int64_t ones = count - partial.zero;
  partial.max = ones > 0;
  partial.min = partial.zero == 0;
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
