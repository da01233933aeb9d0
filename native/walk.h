// The elements of a strided tensor, in order.
#pragma once

#include <cstdint>

#include "summarise.h"

namespace opdump {

// The elements at all indices of some dimensions, the last of which varies fastest. Strides are in elements.
struct Walk {
  const char* start;
  int dimensions = 0;
  int64_t size[kMaxDimensions];
  int64_t stride[kMaxDimensions];
  int64_t count = 1;    // of index tuples, without repetitions
  int64_t repeats = 1;  // the product of the sizes of dimensions with stride 0
};

// Copies elements [first, first + count), in the order of the walk, to `to`; an element has `item` bytes: 1, 2, 4 or 8.
void gather(const Walk& walk, int64_t item, int64_t first, int64_t count, char* to);

}  // namespace opdump
