// One pass over two tensors of the same shape, from which every metric of their difference follows.
//
// src/opdump/kernels/pair_reference.py, the numpy twin of this file, is the specification; both produce the same bits.
// Elements are processed in the order of their indices, the last of which varies fastest. summarise.h defines the order
// of additions. A span is a run of whole chunks and the work of one thread; the number of spans depends only on the
// shape.
#pragma once

#include <cstdint>
#include <vector>

#include "summarise.h"

namespace opdump {

// The orders are PAIR_SUMS, PAIR_MAXIMA and PAIR_COUNTS of src/opdump/kernels/pair_metrics.py.
enum PairSum { kSumDifference, kSumSquare, kSumRelative, kSumFirstSquare, kSumSecondSquare, kSumProduct, kPairSums };
enum PairMaximum { kMaxDifference, kMaxRelative, kMaxFirst, kMaxSecond, kPairMaxima };
enum PairCount {
  kFinite,
  kSameNonfinite,
  kNanFirst,
  kNanSecond,
  kInfFirst,
  kInfSecond,
  kDifferent,
  kOutOfTolerance,
  kSignFlips,
  kFromZero,
  kArgmaxFlips,
  kFirstOut,  // the index of the first element out of tolerance; -1 without one
  kPairCounts
};
constexpr int kDistances = 65;  // 0, 1, 2-3, 4-7, ..., 2^63 and more

struct PairTolerance {
  double absolute;
  double relative;  // of the first tensor
};

// Working memory for up to 2048 elements of both tensors, padded with zeros to a multiple of sixteen.
struct PairBlock {
  alignas(64) double first[kBlock];
  alignas(64) double second[kBlock];
  alignas(64) double difference[kBlock];
  alignas(64) double relative[kBlock];
  alignas(64) double square[kBlock];
  alignas(64) uint64_t distance[kBlock];
  alignas(64) char first_gathered[kBlock * 8];
  alignas(64) char second_gathered[kBlock * 8];
};

// The results of `measure` for one block of finite elements. It adds to its own counts and leaves the others unchanged;
// maxima only grow.
struct PairBlockTotals {
  double sum[kPairSums];
  double* maximum;
  int64_t* count;
};

// The largest element so far and its first index; NaN counts as larger than any number. The index is -1 at the start.
struct RowMaximum {
  double value = 0.0;
  int64_t index = -1;
};

struct PairFunctions {
  // Casts to double.
  void (*widen[kDTypes])(const void* elements, int64_t count, double* out);
  // The number of representable values between two elements, including the second; for integers their difference.
  void (*distance[kDTypes])(const void* first, const void* second, int64_t count, uint64_t* out);
  bool (*are_finite)(const PairBlock& block, int64_t count);
  // `differences_given`: block.difference is already filled in.
  void (*measure)(PairBlock& block, int64_t count, const PairTolerance& tolerance, bool differences_given,
                  PairBlockTotals& totals);
  void (*count_distances)(const uint64_t* distances, int64_t count, int64_t (&counts)[kDistances]);
  void (*distances_to_differences)(const uint64_t* distances, int64_t count, double* differences);
  // `run` follows `column` elements of the row.
  void (*extend_maximum)(const double* run, int64_t count, int64_t column, RowMaximum& maximum);
  double (*sum_run)(const double* run, int64_t count);
  void (*add_run)(double* totals, const double* run, int64_t count);
};

// One per compilation of compare_block.cpp.
extern const PairFunctions base_pairs;
#if defined(OPDUMP_X86_KERNELS)
extern const PairFunctions avx2_pairs;
extern const PairFunctions avx512_pairs;
#endif

struct PairSide {
  const void* elements;
  DType dtype;
  const int64_t* strides;  // in elements: negative, zero and overlapping too
};

// The index of an axis at which the sum of squared differences is largest.
struct WorstIndex {
  int axis;
  int64_t index;
  double sum;
};

struct PairTotals {
  double sum[kPairSums] = {};
  double maximum[kPairMaxima] = {};
  int64_t count[kPairCounts] = {};
  std::vector<int64_t> distances;  // empty for different dtypes
  std::vector<WorstIndex> worst;   // empty without a difference
};

PairTotals compare(const PairSide& first, const PairSide& second, int dimensions, const int64_t* shape,
                   const PairTolerance& tolerance, bool with_argmax);

}  // namespace opdump
