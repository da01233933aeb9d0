// One pass over memory: count, NaN, +-Inf, zero, sign, max, min, sum and sum of squares of a tensor.
//
// src/opdump/kernels/reference.py, the numpy twin of this file, is the specification; both produce the same bits. Every
// element is first converted to double. The order of additions is fixed, so that neither the instruction set nor the
// number of threads changes a result:
//   lane   = elements j, j + 16, j + 32, ... of a block, added in order
//   block  = 2048 elements; its 16 lanes are folded in halves (8, 4, 2, 1)
//   chunk  = 32 blocks, added in order with Neumaier's compensation; a chunk is also the unit of work of a thread
//   tensor = its chunks, added in order with Neumaier's compensation
#pragma once

#include <cstdint>

namespace opdump {

constexpr int kLanes = 16;
constexpr int64_t kBlock = 2048;
constexpr int64_t kChunk = 32 * kBlock;
constexpr int kMaxDimensions = 64;  // numpy's limit; torch has none, but views with that many do not occur

// The numbers are DTYPE_CODES of src/opdump/kernels/summary.py.
enum class DType : int {
  float16,
  bfloat16,
  float32,
  float64,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  boolean,
};
constexpr int kDTypes = 13;
constexpr int64_t kItemSize[kDTypes] = {2, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1};

// One row of a table, in the order of SUMMARY_FIELDS.
struct Summary {
  double count, nan, positive_inf, negative_inf, zero, negative, positive, max, min, sum, sum_squares;
};
constexpr int kFields = 11;
static_assert(sizeof(Summary) == kFields * sizeof(double), "a row is eleven doubles");

// A sum with its rounding errors so far.
struct CompensatedSum {
  double sum = 0.0;
  double error = 0.0;
};

// The contribution of one chunk. With a non-finite element, the sums follow from the counts and are not computed, so
// tensors full of -Inf (attention masks) take no longer than others.
struct Partial {
  int64_t nan = 0;
  int64_t positive_inf = 0;
  int64_t negative_inf = 0;
  int64_t zero = 0;
  int64_t negative = 0;
  double max = -__builtin_inf();
  double min = __builtin_inf();
  CompensatedSum sum;
  CompensatedSum sum_squares;

  bool has_nonfinite() const { return (nan | positive_inf | negative_inf) != 0; }
};

// Summarises `count` <= kChunk adjacent elements into a fresh Partial.
using ChunkFunction = void (*)(const void* elements, int64_t count, bool sums_wanted, Partial& partial);

struct InstructionSet {
  const char* name;
  ChunkFunction chunk[kDTypes];
};

// One per compilation of summarise_chunk.cpp.
extern const InstructionSet base_kernels;
#if defined(OPDUMP_X86_KERNELS)
extern const InstructionSet avx2_kernels;
extern const InstructionSet avx512_kernels;
#endif

constexpr int kMaxInstructionSets = 3;
// The instruction sets of this machine, narrowest first; returns their number.
int instruction_sets(const InstructionSet* (&sets)[kMaxInstructionSets]);
const InstructionSet& active_instruction_set();
void use_instruction_set(const InstructionSet& set);

// `elements` may be null only when `count` is 0. Alignment is not required.
Summary summarise(const void* elements, DType dtype, int64_t count);

// Adjacent elements of one tensor.
struct Elements {
  const void* elements;
  DType dtype;
  int64_t count;
};

// The same for many tensors, one row each. Threads share them: large tensors one by one, small ones in groups.
void summarise_all(const Elements* tensors, int64_t count, Summary* rows);

// Any strides, in elements: negative, zero and overlapping too. `dimensions` <= kMaxDimensions.
Summary summarise_strided(const void* elements, DType dtype, int dimensions, const int64_t* shape,
                          const int64_t* strides);

}  // namespace opdump
