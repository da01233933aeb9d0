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

constexpr int kTransposed = 5;
constexpr int kCopied = 7;

struct PlaneFunctions {
  // For elements of 1 << i bytes if fast.destination and other.source are one element: transposes squares.
  PlaneFunction transpose[kTransposed];
  // For any strides and runs of 1 << i bytes; `copy_any` for runs of any length.
  PlaneFunction copy[kCopied];
  PlaneFunction copy_any;
  // Copies bytes to memory that is not in the cache, whole lines past it, which saves reading them first. Null if
  // unavailable.
  void (*stream)(char* destination, const char* source, int64_t bytes);
  // The thread that has streamed must call this before another thread reads.
  void (*finish_streaming)();
};

// One per compilation of reorder_plane.cpp.
extern const PlaneFunctions base_planes;
#if defined(OPDUMP_X86_KERNELS)
extern const PlaneFunctions avx2_planes;
extern const PlaneFunctions avx512_planes;
#endif

}  // namespace opdump
