// Chooses the instruction set, splits a tensor into chunks, and combines the results of the chunks in order.
#include "summarise.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

#if defined(OPDUMP_X86_KERNELS)
#include <cpuid.h>
#endif

#include "compensated_sum.h"
#include "plain_arithmetic.h"
#include "pool.h"
#include "walk.h"

namespace opdump {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Waking another thread takes about 10 us, as long as reading 200 KiB, and saves at most half of the rest.
constexpr int64_t kThreadedBytes = 1024 * 1024;

// A thread takes groups of small tensors of this size. Each tensor has an overhead, counted as this many bytes.
constexpr int64_t kGroupBytes = 512 * 1024;
constexpr int64_t kBytesPerTensor = 2048;

#if defined(OPDUMP_X86_KERNELS)
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

std::atomic<const InstructionSet*>& chosen_instruction_set() {
  static std::atomic<const InstructionSet*> chosen{[] {
    const InstructionSet* sets[kMaxInstructionSets];
    return sets[instruction_sets(sets) - 1];
  }()};
  return chosen;
}

// The same elements without structure that does not affect a summary: no dimension of size one, no negative stride, no
// repetition; the widest stride first; contiguous dimensions merged.
Walk simplify(const void* elements, int64_t item, int dimensions, const int64_t* shape, const int64_t* strides) {
  Walk walk;
  walk.start = static_cast<const char*>(elements);
  for (int d = 0; d < dimensions; ++d) {
    if (shape[d] == 1) continue;
    if (strides[d] == 0) {
      walk.repeats *= shape[d];
      continue;
    }
    walk.count *= shape[d];
    int64_t stride = strides[d];
    if (stride < 0 && shape[d] > 0) {
      walk.start += (shape[d] - 1) * stride * item;
      stride = -stride;
    }
    int at = walk.dimensions++;
    for (; at > 0 && walk.stride[at - 1] < stride; --at) {
      walk.size[at] = walk.size[at - 1];
      walk.stride[at] = walk.stride[at - 1];
    }
    walk.size[at] = shape[d];
    walk.stride[at] = stride;
  }
  int kept = 0;
  for (int d = 1; d < walk.dimensions; ++d) {
    if (walk.stride[kept] == walk.stride[d] * walk.size[d]) {
      walk.size[kept] *= walk.size[d];
      walk.stride[kept] = walk.stride[d];
    } else {
      ++kept;
      walk.size[kept] = walk.size[d];
      walk.stride[kept] = walk.stride[d];
    }
  }
  if (walk.dimensions > 0) walk.dimensions = kept + 1;
  return walk;
}

void merge(Partial& total, const Partial& chunk) {
  total.nan += chunk.nan;
  total.positive_inf += chunk.positive_inf;
  total.negative_inf += chunk.negative_inf;
  total.zero += chunk.zero;
  total.negative += chunk.negative;
  total.max = std::max(total.max, chunk.max);
  total.min = std::min(total.min, chunk.min);
  accumulate(total.sum, value(chunk.sum));
  accumulate(total.sum_squares, value(chunk.sum_squares));
}

Summary finish(const Partial& total, int64_t count, int64_t repeats) {
  const double times = static_cast<double>(repeats);
  Summary row;
  row.count = static_cast<double>(count) * times;
  row.nan = static_cast<double>(total.nan) * times;
  row.positive_inf = static_cast<double>(total.positive_inf) * times;
  row.negative_inf = static_cast<double>(total.negative_inf) * times;
  row.zero = static_cast<double>(total.zero) * times;
  row.negative = static_cast<double>(total.negative) * times;
  row.positive = static_cast<double>(count - total.nan - total.zero - total.negative) * times;
  if (total.nan > 0) {
    row.max = row.min = row.sum = row.sum_squares = kNaN;
    return row;
  }
  // Adding 0.0 turns -0.0 into 0.0; otherwise the sign of a zero extreme would depend on the order of the elements.
  row.max = total.max + 0.0;
  row.min = total.min + 0.0;
  if (total.has_nonfinite()) {
    row.sum = total.negative_inf == 0 ? kInfinity : total.positive_inf == 0 ? -kInfinity : kNaN;
    row.sum_squares = kInfinity;
    return row;
  }
  row.sum = value(total.sum) * times + 0.0;
  row.sum_squares = value(total.sum_squares) * times;
  return row;
}

bool aligned(const void* elements, int64_t item) { return reinterpret_cast<uintptr_t>(elements) % item == 0; }

// A tensor that is being summarised, shared by the tasks of its chunks.
struct Summation {
  ChunkFunction chunk;
  const char* elements;  // null: gather them from `walk`
  const Walk* walk;
  int64_t item;
  int64_t count;
  std::vector<Partial>* partials = nullptr;
  std::atomic<bool> sums_wanted{true};

  void run(int64_t index, Partial& partial) {
    const int64_t first = index * kChunk;
    const int64_t size = std::min(kChunk, count - first);
    const bool wanted = sums_wanted.load(std::memory_order_relaxed);
    if (elements != nullptr) {
      chunk(elements + first * item, size, wanted, partial);
    } else {
      run_gathered(first, size, wanted, partial);
    }
    // If another thread sees this late, it only computes sums that are not used.
    if (partial.has_nonfinite()) sums_wanted.store(false, std::memory_order_relaxed);
  }

  void run_gathered(int64_t first, int64_t size, bool wanted, Partial& partial) {
    alignas(64) char block[kBlock * 8];
    for (int64_t done = 0; done < size; done += kBlock) {
      const int64_t part = std::min(kBlock, size - done);
      gather(*walk, item, first + done, part, block);
      Partial found;
      chunk(block, part, wanted, found);
      wanted = wanted && !found.has_nonfinite();
      merge(partial, found);
    }
  }
};

Partial run_all(Summation& summation) {
  Partial total;
  const int64_t chunks = (summation.count + kChunk - 1) / kChunk;
  if (chunks == 1 || summation.count * summation.item < kThreadedBytes || threads() == 1) {
    for (int64_t i = 0; i < chunks; ++i) {
      Partial partial;
      summation.run(i, partial);
      if (chunks == 1) return partial;
      merge(total, partial);
    }
    return total;
  }
  std::vector<Partial> partials(static_cast<size_t>(chunks));
  summation.partials = &partials;
  run_parallel(
      [](void* context, int64_t index) {
        const PlainArithmetic plain;  // the pool's threads have their own floating-point mode
        Summation& one = *static_cast<Summation*>(context);
        one.run(index, (*one.partials)[static_cast<size_t>(index)]);
      },
      &summation, chunks);
  for (const Partial& partial : partials) merge(total, partial);
  return total;
}

}  // namespace

int instruction_sets(const InstructionSet* (&sets)[kMaxInstructionSets]) {
  int found = 0;
  sets[found++] = &base_kernels;
#if defined(OPDUMP_X86_KERNELS)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  if (avx2) sets[found++] = &avx2_kernels;
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    sets[found++] = &avx512_kernels;
  }
#endif
  return found;
}

const InstructionSet& active_instruction_set() { return *chosen_instruction_set().load(std::memory_order_relaxed); }

void use_instruction_set(const InstructionSet& set) { chosen_instruction_set().store(&set, std::memory_order_relaxed); }

Summary summarise(const void* elements, DType dtype, int64_t count) {
  const PlainArithmetic plain;
  const int type = static_cast<int>(dtype);
  if (count == 0) return finish(Partial(), 0, 1);
  if (!aligned(elements, kItemSize[type])) {
    const int64_t stride = 1;
    return summarise_strided(elements, dtype, 1, &count, &stride);
  }
  Summation summation{active_instruction_set().chunk[type], static_cast<const char*>(elements), nullptr,
                      kItemSize[type], count};
  return finish(run_all(summation), count, 1);
}

void summarise_all(const Elements* tensors, int64_t count, Summary* rows) {
  struct Groups {
    const Elements* tensors;
    Summary* rows;
    std::vector<int64_t> small;  // positions in `tensors`
    std::vector<int64_t> ends;   // of each group, in `small`
  } groups{tensors, rows, {}, {}};
  int64_t bytes = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Elements& one = tensors[i];
    const int64_t size = one.count * kItemSize[static_cast<int>(one.dtype)];
    if (size >= kThreadedBytes) {
      rows[i] = summarise(one.elements, one.dtype, one.count);
      continue;
    }
    groups.small.push_back(i);
    bytes += size + kBytesPerTensor;
    if (bytes >= kGroupBytes) {
      groups.ends.push_back(static_cast<int64_t>(groups.small.size()));
      bytes = 0;
    }
  }
  groups.ends.push_back(static_cast<int64_t>(groups.small.size()));
  run_parallel(
      [](void* context, int64_t index) {
        const Groups& all = *static_cast<const Groups*>(context);
        const size_t group = static_cast<size_t>(index);
        for (int64_t i = group == 0 ? 0 : all.ends[group - 1]; i < all.ends[group]; ++i) {
          const int64_t place = all.small[static_cast<size_t>(i)];
          const Elements& one = all.tensors[place];
          all.rows[place] = summarise(one.elements, one.dtype, one.count);
        }
      },
      &groups, static_cast<int64_t>(groups.ends.size()));
}

Summary summarise_strided(const void* elements, DType dtype, int dimensions, const int64_t* shape,
                          const int64_t* strides) {
  const PlainArithmetic plain;
  const int type = static_cast<int>(dtype);
  for (int d = 0; d < dimensions; ++d) {
    if (shape[d] == 0) return summarise(elements, dtype, 0);
  }
  const int64_t item = kItemSize[type];
  const Walk walk = simplify(elements, item, dimensions, shape, strides);
  const bool adjacent = walk.dimensions == 0 || (walk.dimensions == 1 && walk.stride[0] == 1);
  const bool dense = adjacent && aligned(walk.start, item);
  Summation summation{active_instruction_set().chunk[type], dense ? walk.start : nullptr, &walk, item, walk.count};
  return finish(run_all(summation), walk.count, walk.repeats);
}

}  // namespace opdump
