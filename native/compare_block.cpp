// The loops over blocks of two tensors. Compiled once per instruction set, with OPDUMP_KERNELS as the namespace. Each
// block is read in several simple passes while it is in the cache, because all totals together exceed the registers.
#include "compare.h"
#include "lanes.h"

namespace opdump {
namespace OPDUMP_KERNELS {
namespace {

constexpr int kWidth = Doubles::kWidth;
using Wide = Vector<double>;
using Mask = decltype(Wide{} < Wide{});

inline Wide load_wide(const double* p) { return load_bytes<Wide>(p); }
inline void store_wide(double* p, Wide x) { std::memcpy(p, &x, sizeof x); }
inline Wide magnitude(Wide x) { return reinterpret_cast<Wide>(reinterpret_cast<Mask>(x) & 0x7fffffffffffffff); }
inline int64_t in_lanes(int64_t count) { return (count + kLanes - 1) & ~static_cast<int64_t>(kLanes - 1); }

template <class Element>
inline void widen_lanes(const Element* elements, double* out) {
  const auto x = load(elements);
  each<Doubles::kParts>(OPDUMP_STEP(k) { store_wide(out + k * kWidth, widened<k>(x, elements)); });
}

template <class Element>
void widen_floats(const void* data, int64_t count, double* out) {
  const Element* elements = static_cast<const Element*>(data);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) widen_lanes(elements + i, out + i);
  if (i < count) {
    Element tail[kLanes] = {};
    std::memcpy(tail, elements + i, static_cast<size_t>(count - i) * sizeof(Element));
    widen_lanes(tail, out + i);
  }
}

inline double number(int8_t x) { return x; }
inline double number(int16_t x) { return x; }
inline double number(uint8_t x) { return x; }
inline double number(uint16_t x) { return x; }
template <class Element>
inline double number(Element x) {
  return to_double(x);
}

template <class Element, bool kIsBool>
void widen_integers(const void* data, int64_t count, double* out) {
  const Element* elements = static_cast<const Element*>(data);
  for (int64_t i = 0; i < count; ++i) out[i] = kIsBool ? elements[i] != 0 : number(elements[i]);
  for (int64_t i = count; i < in_lanes(count); ++i) out[i] = 0.0;
}

// Maps the bits of a float to an integer that increases with the number; both zeros become 0.
template <class Bits>
inline auto place_of_float(Bits bits) {
  using Signed = std::make_signed_t<Bits>;
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  const auto without_sign = static_cast<Signed>(static_cast<Bits>(bits & static_cast<Bits>(~kSign)));
  return static_cast<int64_t>((bits & kSign) != 0 ? -static_cast<int64_t>(without_sign) : without_sign);
}

template <class Bits>
void distance_of_floats(const void* first, const void* second, int64_t count, uint64_t* out) {
  const Bits* x = static_cast<const Bits*>(first);
  const Bits* y = static_cast<const Bits*>(second);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t a = place_of_float(x[i]);
    const int64_t b = place_of_float(y[i]);
    const uint64_t up = static_cast<uint64_t>(a) - static_cast<uint64_t>(b);
    out[i] = a > b ? up : uint64_t{0} - up;
  }
}

template <class Element, bool kIsBool>
void distance_of_integers(const void* first, const void* second, int64_t count, uint64_t* out) {
  const Element* x = static_cast<const Element*>(first);
  const Element* y = static_cast<const Element*>(second);
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (kIsBool) {
      out[i] = (x[i] != 0) != (y[i] != 0);
    } else {
      const uint64_t up = static_cast<uint64_t>(x[i]) - static_cast<uint64_t>(y[i]);
      out[i] = x[i] > y[i] ? up : uint64_t{0} - up;
    }
  }
}

// x - x is 0, or NaN if x is not finite.
bool are_finite(const PairBlock& block, int64_t count) {
  Mask finite = ~Mask{};
  for (int64_t i = 0; i < count; i += kWidth) {
    const Wide x = load_wide(block.first + i);
    const Wide y = load_wide(block.second + i);
    finite &= (x - x == y - y);
  }
  bool all = true;
  each<kWidth>(OPDUMP_STEP(j) { all = all && finite[+j] != 0; });
  return all;
}

template <class Term>
inline double sum_of(int64_t count, Term&& term) {
  Doubles total = zeros<double>();
  for (int64_t i = 0; i < count; i += kLanes) {
    each<Doubles::kParts>(OPDUMP_STEP(k) { total.part[k] += term(i + k * kWidth); });
  }
  return fold(total);
}

class Tally {
 public:
  void take(Mask holds) { minus_ += holds; }
  int64_t total() const {
    int64_t sum = 0;
    each<kWidth>(OPDUMP_STEP(j) { sum -= minus_[+j]; });
    return sum;
  }

 private:
  Mask minus_ = {};
};

inline void raise_to(double& largest, Wide found) {
  each<kWidth>(OPDUMP_STEP(j) { largest = found[+j] > largest ? found[+j] : largest; });
}

void measure(PairBlock& block, int64_t count, const PairTolerance& tolerance, bool differences_given,
             PairBlockTotals& totals) {
  const Wide zero = {};
  const Wide absolute = spread<double>(tolerance.absolute);
  const Wide relative = spread<double>(tolerance.relative);
  Tally different, out, flips, from_zero;
  Wide max_difference = {}, max_relative = {}, max_first = {}, max_second = {};
  for (int64_t i = 0; i < in_lanes(count); i += kWidth) {
    const Wide x = load_wide(block.first + i);
    const Wide y = load_wide(block.second + i);
    const Wide difference = differences_given ? load_wide(block.difference + i) : magnitude(x - y);
    const Wide size = magnitude(x);
    const Wide ratio = difference / size;
    const Wide known = size > zero ? ratio : zero;
    different.take(difference > zero);
    out.take(difference > absolute + relative * size);
    flips.take(((x < zero) & (y > zero)) | ((x > zero) & (y < zero)));
    from_zero.take((size == zero) & (difference > zero));
    max_difference = larger(difference, max_difference);
    max_relative = larger(known, max_relative);
    max_first = larger(size, max_first);
    max_second = larger(magnitude(y), max_second);
    store_wide(block.difference + i, difference);
    store_wide(block.relative + i, known);
    store_wide(block.square + i, difference * difference);
  }
  totals.count[kDifferent] += different.total();
  totals.count[kOutOfTolerance] += out.total();
  totals.count[kSignFlips] += flips.total();
  totals.count[kFromZero] += from_zero.total();
  raise_to(totals.maximum[kMaxDifference], max_difference);
  raise_to(totals.maximum[kMaxRelative], max_relative);
  raise_to(totals.maximum[kMaxFirst], max_first);
  raise_to(totals.maximum[kMaxSecond], max_second);
  const auto from = [](const double* numbers) { return [numbers](int64_t i) { return load_wide(numbers + i); }; };
  const auto product = [](const double* x, const double* y) {
    return [x, y](int64_t i) { return load_wide(x + i) * load_wide(y + i); };
  };
  totals.sum[kSumDifference] = sum_of(count, from(block.difference));
  totals.sum[kSumSquare] = sum_of(count, from(block.square));
  totals.sum[kSumRelative] = sum_of(count, from(block.relative));
  totals.sum[kSumFirstSquare] = sum_of(count, product(block.first, block.first));
  totals.sum[kSumSecondSquare] = sum_of(count, product(block.second, block.second));
  totals.sum[kSumProduct] = sum_of(count, product(block.first, block.second));
}

// Four tables in turn: in a single table, each increment of an equal distance would wait for the previous one.
void count_distances(const uint64_t* distances, int64_t count, int64_t (&counts)[kDistances]) {
  uint32_t table[4][kDistances] = {};
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t distance = distances[i];
    ++table[i % 4][distance == 0 ? 0 : 64 - __builtin_clzll(distance)];
  }
  for (int d = 0; d < kDistances; ++d) counts[d] += int64_t{table[0][d]} + table[1][d] + table[2][d] + table[3][d];
}

void distances_to_differences(const uint64_t* distances, int64_t count, double* differences) {
  for (int64_t i = 0; i < count; ++i) differences[i] = to_double(distances[i]);
  for (int64_t i = count; i < in_lanes(count); ++i) differences[i] = 0.0;
}

// First the largest value of a run, then its position.
void extend_maximum(const double* run, int64_t count, int64_t column, RowMaximum& maximum) {
  if (maximum.value != maximum.value) return;
  double largest = -__builtin_inf();
  bool has_nan = false;
  int64_t i = 0;
  if (count >= kWidth) {
    Wide found = spread<double>(largest);
    Mask nan = {};
    for (; i + kWidth <= count; i += kWidth) {
      const Wide x = load_wide(run + i);
      found = larger(x, found);
      nan |= x != x;
    }
    raise_to(largest, found);
    each<kWidth>(OPDUMP_STEP(j) { has_nan = has_nan || nan[+j] != 0; });
  }
  for (; i < count; ++i) {
    largest = run[i] > largest ? run[i] : largest;
    has_nan = has_nan || run[i] != run[i];
  }
  if (!has_nan && maximum.index >= 0 && !(largest > maximum.value)) return;
  int64_t place = 0;
  while (has_nan ? run[place] == run[place] : run[place] != largest) ++place;
  maximum.value = run[place];
  maximum.index = column + place;
}

// The same additions for fewer than sixteen elements, without those of zeros.
double sum_short_run(const double* run, int64_t count) {
  double lane[kLanes];
  for (int64_t j = 0; j < count; ++j) lane[j] = run[j];
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t j = width; j < count; ++j) lane[j - width] += lane[j];
    count = count < width ? count : width;
  }
  return lane[0];
}

double sum_run(const double* run, int64_t count) {
  if (count < kLanes) return sum_short_run(run, count);
  Doubles total = zeros<double>();
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    each<Doubles::kParts>(OPDUMP_STEP(k) { total.part[k] += load_wide(run + i + k * kWidth); });
  }
  if (i < count) {
    double tail[kLanes] = {};
    for (int64_t j = i; j < count; ++j) tail[j - i] = run[j];
    each<Doubles::kParts>(OPDUMP_STEP(k) { total.part[k] += load_wide(tail + k * kWidth); });
  }
  return fold(total);
}

void add_run(double* __restrict totals, const double* __restrict run, int64_t count) {
  for (int64_t i = 0; i < count; ++i) totals[i] += run[i];
}

}  // namespace
}  // namespace OPDUMP_KERNELS

#define OPDUMP_JOIN_(a, b) a##b
#define OPDUMP_JOIN(a, b) OPDUMP_JOIN_(a, b)

extern const PairFunctions OPDUMP_JOIN(OPDUMP_KERNELS, _pairs);
const PairFunctions OPDUMP_JOIN(OPDUMP_KERNELS, _pairs) = {
    {
        OPDUMP_KERNELS::widen_floats<OPDUMP_KERNELS::Float16>,
        OPDUMP_KERNELS::widen_floats<OPDUMP_KERNELS::BFloat16>,
        OPDUMP_KERNELS::widen_floats<float>,
        OPDUMP_KERNELS::widen_floats<double>,
        OPDUMP_KERNELS::widen_integers<int8_t, false>,
        OPDUMP_KERNELS::widen_integers<int16_t, false>,
        OPDUMP_KERNELS::widen_integers<int32_t, false>,
        OPDUMP_KERNELS::widen_integers<int64_t, false>,
        OPDUMP_KERNELS::widen_integers<uint8_t, false>,
        OPDUMP_KERNELS::widen_integers<uint16_t, false>,
        OPDUMP_KERNELS::widen_integers<uint32_t, false>,
        OPDUMP_KERNELS::widen_integers<uint64_t, false>,
        OPDUMP_KERNELS::widen_integers<uint8_t, true>,
    },
    {
        OPDUMP_KERNELS::distance_of_floats<uint16_t>,
        OPDUMP_KERNELS::distance_of_floats<uint16_t>,
        OPDUMP_KERNELS::distance_of_floats<uint32_t>,
        OPDUMP_KERNELS::distance_of_floats<uint64_t>,
        OPDUMP_KERNELS::distance_of_integers<int8_t, false>,
        OPDUMP_KERNELS::distance_of_integers<int16_t, false>,
        OPDUMP_KERNELS::distance_of_integers<int32_t, false>,
        OPDUMP_KERNELS::distance_of_integers<int64_t, false>,
        OPDUMP_KERNELS::distance_of_integers<uint8_t, false>,
        OPDUMP_KERNELS::distance_of_integers<uint16_t, false>,
        OPDUMP_KERNELS::distance_of_integers<uint32_t, false>,
        OPDUMP_KERNELS::distance_of_integers<uint64_t, false>,
        OPDUMP_KERNELS::distance_of_integers<uint8_t, true>,
    },
    OPDUMP_KERNELS::are_finite,
    OPDUMP_KERNELS::measure,
    OPDUMP_KERNELS::count_distances,
    OPDUMP_KERNELS::distances_to_differences,
    OPDUMP_KERNELS::extend_maximum,
    OPDUMP_KERNELS::sum_run,
    OPDUMP_KERNELS::add_run,
};

}  // namespace opdump
