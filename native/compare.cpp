// Splits two tensors into spans, and combines the results of the spans in order.
#include "compare.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "compensated_sum.h"
#include "plain_arithmetic.h"
#include "pool.h"
#include "walk.h"

namespace opdump {
namespace {

constexpr int64_t kMostSpans = 64;
constexpr int64_t kMostIndices = int64_t{1} << 20;  // longer axes have no sums; the sums of one span take 8 MiB
constexpr int64_t kThreadedBytes = 1024 * 1024;     // as in summarise.cpp
constexpr int64_t kAhead = 8 * kChunk;              // reading from disk takes longer than processing a chunk

const PairFunctions& active_pairs() {
#if defined(OPDUMP_X86_KERNELS)
  const InstructionSet* active = &active_instruction_set();
  if (active == &avx512_kernels) return avx512_pairs;
  if (active == &avx2_kernels) return avx2_pairs;
#endif
  return base_pairs;
}

// One of the two tensors, read block by block.
struct Reader {
  Walk walk;
  int type;
  int64_t item;
  bool dense;

  // Prefetches pages of a mapped file; does nothing for other memory.
  void ask_for(int64_t first, int64_t end) const {
    end = std::min(end, walk.count);
    if (!dense || first >= end) return;
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t begin = reinterpret_cast<uintptr_t>(walk.start + first * item) / page * page;
    const uintptr_t beyond = reinterpret_cast<uintptr_t>(walk.start + end * item);
    madvise(reinterpret_cast<void*>(begin), beyond - begin, MADV_WILLNEED);
  }

  const void* read(int64_t first, int64_t count, char* gathered) const {
    if (dense) return walk.start + first * item;
    gather(walk, item, first, count, gathered);
    return gathered;
  }
};

Reader reader_of(const PairSide& side, int dimensions, const int64_t* shape) {
  Reader reader;
  reader.type = static_cast<int>(side.dtype);
  reader.item = kItemSize[reader.type];
  Walk& walk = reader.walk;
  walk.start = static_cast<const char*>(side.elements);
  for (int d = 0; d < dimensions; ++d) {
    if (shape[d] == 1) continue;
    walk.count *= shape[d];
    const int last = walk.dimensions - 1;
    if (last >= 0 && walk.stride[last] == side.strides[d] * shape[d]) {
      walk.size[last] *= shape[d];
      walk.stride[last] = side.strides[d];
    } else {
      walk.size[walk.dimensions] = shape[d];
      walk.stride[walk.dimensions++] = side.strides[d];
    }
  }
  const bool adjacent = walk.dimensions == 0 || (walk.dimensions == 1 && walk.stride[0] == 1);
  reader.dense = adjacent && reinterpret_cast<uintptr_t>(walk.start) % static_cast<uintptr_t>(reader.item) == 0;
  return reader;
}

// The axes with more than one index, and where the sums of each begin among all sums; -1 for axes without sums.
struct Axes {
  int count = 0;
  int number[kMaxDimensions];
  int64_t size[kMaxDimensions];
  int64_t begin[kMaxDimensions];
  int64_t sums = 0;
};

Axes axes_of(int dimensions, const int64_t* shape) {
  Axes axes;
  for (int d = 0; d < dimensions; ++d) {
    if (shape[d] == 1) continue;
    axes.number[axes.count] = d;
    axes.size[axes.count++] = shape[d];
  }
  for (int k = 0; k < axes.count; ++k) {
    const bool kept = axes.count > 1 && axes.size[k] <= kMostIndices;
    axes.begin[k] = kept ? axes.sums : -1;
    if (kept) axes.sums += axes.size[k];
  }
  return axes;
}

// The maxima of the current row of both tensors.
struct Row {
  RowMaximum first;
  RowMaximum second;

  bool flipped() const { return first.index != second.index; }
};

void follow(RowMaximum& maximum, const RowMaximum& later) {
  if (later.index < 0 || (maximum.index >= 0 && std::isnan(maximum.value))) return;
  if (maximum.index < 0 || std::isnan(later.value) || later.value > maximum.value) maximum = later;
}

void follow(Row& row, const Row& later) {
  follow(row.first, later.first);
  follow(row.second, later.second);
}

struct Span {
  int64_t first = 0;  // element
  int64_t count = 0;
  double maximum[kPairMaxima] = {};
  int64_t counts[kPairCounts] = {};
  int64_t distances[kDistances] = {};
  std::vector<double> axis_sums;
  bool ends_a_row = false;
  Row head;  // the span's part of the first row that ends in it
  Row tail;  // and of the row that continues after it
};

struct Comparison {
  const PairFunctions& functions;
  Reader first, second;
  PairTolerance tolerance;
  Axes axes;
  int64_t count = 1;
  int64_t row = 1;  // elements along the last axis
  bool with_argmax = false;
  std::vector<Span> spans = {};
  std::vector<std::unique_ptr<PairBlock>> blocks = {};                 // one for each span
  std::vector<std::array<CompensatedSum, kPairSums>> chunk_sums = {};  // one for each chunk

  bool same_type() const { return first.type == second.type; }
  // Converted to double first, such integers could lose their difference.
  bool exact_integers() const {
    return same_type() &&
           (first.type == static_cast<int>(DType::int64) || first.type == static_cast<int>(DType::uint64));
  }

  void run(int64_t index) {
    Span& span = spans[static_cast<size_t>(index)];
    PairBlock& block = *blocks[static_cast<size_t>(index)];
    Place place(*this, span.first);
    for (int64_t done = 0; done < span.count; done += kBlock) {
      const int64_t size = std::min(kBlock, span.count - done);
      auto& sums = chunk_sums[static_cast<size_t>((span.first + done) / kChunk)];
      take(span, block, sums, place, span.first + done, size);
    }
  }

 private:
  // The position of a span in its rows.
  struct Place {
    int64_t column;
    int64_t index[kMaxDimensions];  // for all axes except the last

    Place(const Comparison& comparison, int64_t first) : column(first % comparison.row) {
      int64_t rest = first / comparison.row;
      for (int k = comparison.axes.count - 2; k >= 0; --k) {
        index[k] = rest % comparison.axes.size[k];
        rest /= comparison.axes.size[k];
      }
    }
    void next_row(const Axes& axes) {
      column = 0;
      for (int k = axes.count - 2; k >= 0 && ++index[k] == axes.size[k]; --k) index[k] = 0;
    }
  };

  void take(Span& span, PairBlock& block, std::array<CompensatedSum, kPairSums>& sums, Place& place, int64_t begin,
            int64_t size) {
    if (begin % kChunk == 0) {
      const int64_t asked = begin == span.first ? begin : begin + kAhead;
      first.ask_for(asked, begin + kAhead + kChunk);
      second.ask_for(asked, begin + kAhead + kChunk);
    }
    const void* x = first.read(begin, size, block.first_gathered);
    const void* y = second.read(begin, size, block.second_gathered);
    functions.widen[first.type](x, size, block.first);
    functions.widen[second.type](y, size, block.second);
    if (same_type()) functions.distance[first.type](x, y, size, block.distance);
    if (with_argmax) find_maxima(span, block, place, begin, size);
    int64_t first_out = -1;
    if (functions.are_finite(block, size)) {
      span.counts[kFinite] += size;
    } else {
      first_out = set_aside_nonfinite(span, block, size);
    }
    if (exact_integers()) functions.distances_to_differences(block.distance, size, block.difference);
    PairBlockTotals totals{{}, span.maximum, span.counts};
    const int64_t out_before = span.counts[kOutOfTolerance];
    functions.measure(block, size, tolerance, exact_integers(), totals);
    if (span.counts[kFirstOut] < 0) {
      if (span.counts[kOutOfTolerance] > out_before) {
        const int64_t found = first_out_of_tolerance(block);
        first_out = first_out < 0 ? found : std::min(first_out, found);
      }
      if (first_out >= 0) span.counts[kFirstOut] = begin + first_out;
    }
    for (int s = 0; s < kPairSums; ++s) accumulate(sums[static_cast<size_t>(s)], totals.sum[s]);
    if (same_type()) functions.count_distances(block.distance, size, span.distances);
    add_to_axes(span, block, place, size);
  }

  // Calls take(offset, count) for each part of a row in a block, and ended() after the last part of a row.
  template <class Take, class Ended>
  void each_run(Place& place, int64_t size, Take&& take, Ended&& ended) const {
    for (int64_t offset = 0; offset < size;) {
      const int64_t run = std::min(row - place.column, size - offset);
      take(offset, run);
      offset += run;
      place.column += run;
      if (place.column == row) {
        ended(offset);
        place.next_row(axes);
      }
    }
  }

  void find_maxima(Span& span, const PairBlock& block, Place place, int64_t begin, int64_t size) const {
    each_run(
        place, size,
        [&](int64_t offset, int64_t run) {
          functions.extend_maximum(block.first + offset, run, place.column, span.tail.first);
          functions.extend_maximum(block.second + offset, run, place.column, span.tail.second);
        },
        [&](int64_t offset) {
          if (!span.ends_a_row && begin + offset - row < span.first) {
            span.head = span.tail;
          } else {
            span.counts[kArgmaxFlips] += span.tail.flipped();
          }
          span.ends_a_row = true;
          span.tail = Row();
        });
  }

  void add_to_axes(Span& span, const PairBlock& block, Place& place, int64_t size) const {
    if (axes.sums == 0) {
      each_run(place, size, [](int64_t, int64_t) {}, [](int64_t) {});
      return;
    }
    const int last = axes.count - 1;
    double* sums = span.axis_sums.data();
    each_run(
        place, size,
        [&](int64_t offset, int64_t run) {
          const double* squares = block.square + offset;
          const double sum = functions.sum_run(squares, run);
          if (axes.begin[last] >= 0) functions.add_run(sums + axes.begin[last] + place.column, squares, run);
          for (int k = 0; k < last; ++k) {
            if (axes.begin[k] >= 0) sums[axes.begin[k] + place.index[k]] += sum;
          }
        },
        [](int64_t) {});
  }

  // Counts NaN and Inf and replaces them with zeros; returns the first one that the other tensor lacks, or -1.
  int64_t set_aside_nonfinite(Span& span, PairBlock& block, int64_t size) const {
    int64_t first_out = -1;
    for (int64_t i = 0; i < size; ++i) {
      const double x = block.first[i];
      const double y = block.second[i];
      if (std::isfinite(x) && std::isfinite(y)) {
        ++span.counts[kFinite];
        continue;
      }
      if (x == y || (std::isnan(x) && std::isnan(y))) {
        ++span.counts[kSameNonfinite];
      } else {
        span.counts[kNanFirst] += std::isnan(x);
        span.counts[kNanSecond] += std::isnan(y);
        span.counts[kInfFirst] += std::isinf(x);
        span.counts[kInfSecond] += std::isinf(y);
        ++span.counts[kDifferent];
        ++span.counts[kOutOfTolerance];
        --span.distances[0];  // offsets the zeros, which are counted below
        if (first_out < 0) first_out = i;
      }
      block.first[i] = block.second[i] = 0.0;
      block.distance[i] = 0;
    }
    return first_out;
  }

  int64_t first_out_of_tolerance(const PairBlock& block) const {
    int64_t i = 0;
    while (!(block.difference[i] > tolerance.absolute + tolerance.relative * std::fabs(block.first[i]))) ++i;
    return i;
  }
};

// Whole chunks per span, few enough spans that the sums of the axes take less than a quarter of the tensors' memory, or
// a MiB.
int64_t span_count(int64_t count, int64_t axis_sums) {
  const int64_t chunks = (count + kChunk - 1) / kChunk;
  const int64_t by_memory = axis_sums == 0 ? kMostSpans : std::max(count / 16, int64_t{1} << 17) / axis_sums;
  return std::max(int64_t{1}, std::min({kMostSpans, chunks, by_memory}));
}

void cut(Comparison& comparison) {
  const int64_t chunks = (comparison.count + kChunk - 1) / kChunk;
  const int64_t wanted = span_count(comparison.count, comparison.axes.sums);
  const int64_t size = (chunks + wanted - 1) / wanted * kChunk;
  comparison.chunk_sums.resize(static_cast<size_t>(chunks));
  for (int64_t first = 0; first < comparison.count; first += size) {
    Span span;
    span.first = first;
    span.count = std::min(size, comparison.count - first);
    span.counts[kFirstOut] = -1;
    span.axis_sums.resize(static_cast<size_t>(comparison.axes.sums));
    comparison.spans.push_back(std::move(span));
    comparison.blocks.emplace_back(new PairBlock);
  }
}

void run_all(Comparison& comparison) {
  const int64_t spans = static_cast<int64_t>(comparison.spans.size());
  const int64_t bytes = comparison.count * (comparison.first.item + comparison.second.item);
  if (spans == 1 || bytes < kThreadedBytes || threads() == 1) {
    for (int64_t i = 0; i < spans; ++i) comparison.run(i);
    return;
  }
  run_parallel(
      [](void* context, int64_t index) {
        const PlainArithmetic plain;  // the pool's threads have their own floating-point mode
        static_cast<Comparison*>(context)->run(index);
      },
      &comparison, spans);
}

int64_t flips_across_spans(const Comparison& comparison) {
  int64_t flips = 0;
  Row row;
  for (const Span& span : comparison.spans) {
    if (!span.ends_a_row) {
      follow(row, span.tail);
      continue;
    }
    if (span.head.first.index >= 0) {
      follow(row, span.head);
      flips += row.flipped();
    }
    row = span.tail;
  }
  return flips;
}

std::vector<WorstIndex> worst_indices(Comparison& comparison) {
  std::vector<WorstIndex> worst;
  const Axes& axes = comparison.axes;
  std::vector<double>& totals = comparison.spans.front().axis_sums;
  for (size_t s = 1; s < comparison.spans.size(); ++s) {
    const std::vector<double>& sums = comparison.spans[s].axis_sums;
    for (size_t i = 0; i < totals.size(); ++i) totals[i] += sums[i];
  }
  for (int k = 0; k < axes.count; ++k) {
    if (axes.begin[k] < 0) continue;
    const double* sums = totals.data() + axes.begin[k];
    const double* largest = std::max_element(sums, sums + axes.size[k]);
    if (*largest > 0.0) worst.push_back({axes.number[k], largest - sums, *largest});
  }
  return worst;
}

PairTotals put_together(Comparison& comparison) {
  PairTotals totals;
  totals.count[kFirstOut] = -1;
  CompensatedSum sums[kPairSums];
  for (const auto& chunk : comparison.chunk_sums) {
    for (int s = 0; s < kPairSums; ++s) accumulate(sums[s], value(chunk[static_cast<size_t>(s)]));
  }
  for (int s = 0; s < kPairSums; ++s) totals.sum[s] = value(sums[s]);
  if (comparison.same_type()) totals.distances.resize(kDistances);
  for (const Span& span : comparison.spans) {
    for (int m = 0; m < kPairMaxima; ++m) totals.maximum[m] = std::max(totals.maximum[m], span.maximum[m]);
    for (int c = 0; c < kFirstOut; ++c) totals.count[c] += span.counts[c];
    if (totals.count[kFirstOut] < 0) totals.count[kFirstOut] = span.counts[kFirstOut];
    for (size_t d = 0; d < totals.distances.size(); ++d) totals.distances[d] += span.distances[d];
  }
  totals.count[kArgmaxFlips] += flips_across_spans(comparison);
  totals.worst = worst_indices(comparison);
  return totals;
}

}  // namespace

PairTotals compare(const PairSide& first, const PairSide& second, int dimensions, const int64_t* shape,
                   const PairTolerance& tolerance, bool with_argmax) {
  const PlainArithmetic plain;
  const bool is_empty = std::find(shape, shape + dimensions, 0) != shape + dimensions;
  if (is_empty) {
    PairTotals none;
    none.count[kFirstOut] = -1;
    if (first.dtype == second.dtype) none.distances.resize(kDistances);
    return none;
  }
  const Axes axes = axes_of(dimensions, shape);
  Comparison comparison{active_pairs(), reader_of(first, dimensions, shape), reader_of(second, dimensions, shape),
                        tolerance, axes};
  comparison.count = comparison.first.walk.count;
  comparison.row = axes.count > 0 ? axes.size[axes.count - 1] : 1;
  comparison.with_argmax = with_argmax && dimensions > 0 && shape[dimensions - 1] > 1;
  cut(comparison);
  run_all(comparison);
  return put_together(comparison);
}

}  // namespace opdump
