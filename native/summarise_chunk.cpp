// The loops over elements. Compiled once per instruction set, with OPDUMP_KERNELS as the namespace.
#include "half_block.h"
#include "integer_block.h"
#include "join.h"
#include "summarise.h"

namespace opdump {
namespace OPDUMP_KERNELS {
namespace {

constexpr int64_t kWholeLanes = ~static_cast<int64_t>(kLanes - 1);

// The last count % 16 elements of a block, padded with zeros; for extremes, with the first of them.
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

// The results of both passes over a block: extremes, zeros, signs.
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

// Everything except the sums, which follow from the counts in a block with NaN or Inf.
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

template <class Element>
void floating_chunk(const void* data, int64_t count, bool sums_wanted, Partial& partial) {
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t size = count - start < kBlock ? count - start : kBlock;
    const auto* elements = static_cast<const Element*>(data) + start;
    Partial block;
    if (sums_wanted) {
      const BlockSums sums = sum_block(elements, size, block);
      // NaN and Inf always show up here. So does an overflow of finite doubles, whose sums are kept.
      const bool finite = __builtin_isfinite(sums.squares);
      if (!finite) {
        count_block(elements, size, block);
        sums_wanted = !block.has_nonfinite();
      }
      add(partial, sums);
    } else {
      count_block(elements, size, block);
    }
    merge(partial, block);
  }
}

}  // namespace
}  // namespace OPDUMP_KERNELS

#define OPDUMP_TEXT_(a) #a
#define OPDUMP_TEXT(a) OPDUMP_TEXT_(a)

extern const InstructionSet OPDUMP_JOIN(OPDUMP_KERNELS, _kernels);
const InstructionSet OPDUMP_JOIN(OPDUMP_KERNELS, _kernels) = {
    OPDUMP_TEXT(OPDUMP_KERNELS),
    {
        OPDUMP_KERNELS::half_chunk<OPDUMP_KERNELS::Float16>,
        OPDUMP_KERNELS::half_chunk<OPDUMP_KERNELS::BFloat16>,
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
