// Two axes of a copy at a time: what reorder.cpp calls for each plane of its arrays.
#pragma once

#include <cstdint>

namespace opdump {

// Elements and the distance from one to the next in bytes.
struct Axis {
  int64_t size;
  int64_t source;
  int64_t destination;
};

// `fast` is the axis along which the destination moves least, `other` the source. One element (or run of elements that
// lie side by side in both) is `run` bytes.
using PlaneFunction = void (*)(const char* source, char* destination, const Axis& fast, const Axis& other, int64_t run);

constexpr int kTransposed = 5;
constexpr int kCopied = 7;

struct PlaneFunctions {
  // For elements of 1 << i bytes, where fast.destination and other.source are of one element: squares are moved across
  // their diagonal.
  PlaneFunction transpose[kTransposed];
  // Any strides; for runs of 1 << i bytes, and of any other length.
  PlaneFunction copy[kCopied];
  PlaneFunction copy_any;
  // Copies run bytes to memory that is not in the cache: whole lines go past it, which saves reading them first. null
  // where that is not to be had.
  void (*stream)(char* destination, const char* source, int64_t bytes);
  // To be called by the thread that has streamed, before another may read.
  void (*finish_streaming)();
};

// One per compilation of reorder_plane.cpp.
extern const PlaneFunctions base_planes;
#if defined(OPDUMP_X86_KERNELS)
extern const PlaneFunctions avx2_planes;
extern const PlaneFunctions avx512_planes;
#endif

}  // namespace opdump
