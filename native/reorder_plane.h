// Copies planes (two axes); reorder.cpp calls it for each plane of its arrays.
#pragma once

#include <cstdint>

namespace opdump {

// The number of elements along an axis, and the distances between them in bytes.
struct Axis {
  int64_t size;
  int64_t source;
  int64_t destination;
};

// `fast` is the axis with the smallest stride in the destination, `other` the one with the smallest in the source. One
// element (or run of elements that are adjacent in both) has `run` bytes.
using PlaneFunction = void (*)(const char* source, char* destination, const Axis& fast, const Axis& other, int64_t run);

// The function for runs of `run` bytes. `across`: the run is one element, and so are fast.destination and other.source.
PlaneFunction plane_function(int64_t run, bool across);

}  // namespace opdump
