// Checks memory that Python passes by address, and summarises it with or without the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "summarise.h"

namespace opdump {

namespace nb = nanobind;

// Releasing and reacquiring the GIL takes longer than reading this many bytes.
constexpr int64_t kReleaseBytes = 256 * 1024;

// The bytes of this many adjacent elements of any size fit into an int64.
constexpr int64_t kMostAdjacent = INT64_MAX / 16;

inline DType dtype_of(int64_t code) {
  if (code < 0 || code >= kDTypes) {
    throw nb::value_error(("dtype code " + std::to_string(code) + " is not in DTYPE_CODES; the last one is " +
                           std::to_string(kDTypes - 1))
                              .c_str());
  }
  return static_cast<DType>(code);
}

inline void require_elements(uintptr_t pointer, int64_t count) {
  if (count < 0) throw nb::value_error(("a tensor cannot have " + std::to_string(count) + " elements").c_str());
  if (pointer == 0 && count > 0) {
    throw nb::value_error(("found a null pointer and " + std::to_string(count) + " elements to read").c_str());
  }
}

inline void require_adjacent(uintptr_t pointer, int64_t count) {
  require_elements(pointer, count);
  if (count > kMostAdjacent) throw nb::value_error("the elements extend beyond the address space");
}

inline Summary summary_of(uintptr_t pointer, int code, int64_t count) {
  const DType dtype = dtype_of(code);
  require_adjacent(pointer, count);
  const void* elements = reinterpret_cast<const void*>(pointer);
  if (count * kItemSize[code] < kReleaseBytes) return summarise(elements, dtype, count);
  const nb::gil_scoped_release released;
  return summarise(elements, dtype, count);
}

// The product of the sizes. The bytes of all elements and the distance between any two must fit into an int64.
inline int64_t count_of(size_t dimensions, const int64_t* sizes, const int64_t* steps, int64_t item) {
  for (size_t d = 0; d < dimensions; ++d) {
    if (sizes[d] == 0) return 0;
  }
  int64_t bytes = item, extent = item;
  for (size_t d = 0; d < dimensions; ++d) {
    int64_t reach;
    if (__builtin_mul_overflow(bytes, sizes[d], &bytes) || __builtin_mul_overflow(sizes[d] - 1, steps[d], &reach) ||
        __builtin_mul_overflow(reach, item, &reach) || reach == INT64_MIN ||
        __builtin_add_overflow(extent, reach < 0 ? -reach : reach, &extent)) {
      throw nb::value_error("the elements extend beyond the address space");
    }
  }
  return bytes / item;
}

inline int64_t integer(nb::handle item) { return nb::cast<int64_t>(item); }

inline Summary summary_of_strided(const void* elements, DType dtype, int rank, const int64_t* sizes,
                                  const int64_t* steps, int64_t count) {
  if (count * kItemSize[static_cast<int>(dtype)] < kReleaseBytes) {
    return summarise_strided(elements, dtype, rank, sizes, steps);
  }
  const nb::gil_scoped_release released;
  return summarise_strided(elements, dtype, rank, sizes, steps);
}

inline Summary summary_of_strided(uintptr_t pointer, int code, const nb::tuple& shape, const nb::tuple& strides) {
  const DType dtype = dtype_of(code);
  const size_t dimensions = shape.size();
  if (strides.size() != dimensions) {
    throw nb::value_error(("the shape has " + std::to_string(dimensions) + " dimensions, the strides have " +
                           std::to_string(strides.size()))
                              .c_str());
  }
  if (dimensions > kMaxDimensions) {
    throw nb::value_error(("found a tensor with " + std::to_string(dimensions) + " dimensions; at most " +
                           std::to_string(kMaxDimensions) + " can be summarised")
                              .c_str());
  }
  int64_t sizes[kMaxDimensions];
  int64_t steps[kMaxDimensions];
  for (size_t d = 0; d < dimensions; ++d) {
    sizes[d] = integer(shape[d]);
    steps[d] = integer(strides[d]);
    require_elements(1, sizes[d]);
  }
  const int64_t count = count_of(dimensions, sizes, steps, kItemSize[code]);
  require_elements(pointer, count);
  return summary_of_strided(reinterpret_cast<const void*>(pointer), dtype, static_cast<int>(dimensions), sizes, steps,
                            count);
}

}  // namespace opdump
