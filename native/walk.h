// Elements of a strided tensor, one after the other.
#pragma once

#include <cstdint>

#include "summarise.h"

namespace opdump {

// The elements at all indices of some dimensions, the last of which runs fastest. Strides are in elements.
struct Walk {
  const char* start;
  int dimensions = 0;
  int64_t size[kMaxDimensions];
  int64_t stride[kMaxDimensions];
  int64_t count = 1;    // of different index tuples, after repetitions are taken out
  int64_t repeats = 1;  // by dimensions of stride 0
};

// Copies elements [first, first + count) of the walk's order to `to`; an element has `item` bytes, 1, 2, 4 or 8.
void gather(const Walk& walk, int64_t item, int64_t first, int64_t count, char* to);

}  // namespace opdump
