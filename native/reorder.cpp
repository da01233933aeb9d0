#include "reorder.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "pool.h"
#include "reorder_plane.h"
#include "summarise.h"

namespace opdump {
namespace {

// The amount of work that a thread takes at a time.
constexpr int64_t kTaskBytes = 1024 * 1024;
constexpr int64_t kCacheLine = 64;
constexpr int64_t kPage = 4096;

struct Copy {
  const char* source;
  char* destination;
  int64_t run;
  PlaneFunction plane;
  Axis fast;
  Axis other;
  // A unit of work is a strip of the plane, of `fast` if `across` (elements change rows), else of `other`.
  bool across;
  int64_t strip;
  int64_t strips;
  int outer;
  Axis axes[kMaxDimensions];  // the rest, outermost first
  int64_t units;
  int64_t tasks;
};

void copy_units(void* context, int64_t task) {
  const Copy& copy = *static_cast<const Copy*>(context);
  // Not units * task / tasks, which may overflow.
  const int64_t each = copy.units / copy.tasks, more = copy.units % copy.tasks;
  const int64_t begin = each * task + std::min(task, more);
  const int64_t end = begin + each + (task < more ? 1 : 0);
  int64_t place[kMaxDimensions];
  const char* source = copy.source;
  char* destination = copy.destination;
  int64_t rest = begin / copy.strips;
  int64_t strip = begin % copy.strips;
  for (int d = copy.outer - 1; d >= 0; --d) {
    place[d] = rest % copy.axes[d].size;
    rest /= copy.axes[d].size;
    source += place[d] * copy.axes[d].source;
    destination += place[d] * copy.axes[d].destination;
  }
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t first = strip * copy.strip;
    const Axis& whole = copy.across ? copy.fast : copy.other;
    const Axis part{std::min(copy.strip, whole.size - first), whole.source, whole.destination};
    const char* from = source + first * whole.source;
    char* to = destination + first * whole.destination;
    const Axis& fast = copy.across ? part : copy.fast;
    const Axis& other = copy.across ? copy.other : part;
    copy.plane(from, to, fast, other, copy.run);
    if (++strip < copy.strips) continue;
    strip = 0;
    for (int d = copy.outer - 1; d >= 0; --d) {
      const Axis& axis = copy.axes[d];
      source += axis.source;
      destination += axis.destination;
      if (++place[d] < axis.size) break;
      place[d] = 0;
      source -= axis.size * axis.source;
      destination -= axis.size * axis.destination;
    }
  }
}

// Removes axes of one element and negative strides of the destination, sorts axes by its stride, widest first, and
// merges axes that are contiguous in both. Moves both pointers to the new first element. False if there are no
// elements.
bool simplify(int dimensions, const int64_t* shape, const int64_t* source_strides, const int64_t* destination_strides,
              Copy& copy) {
  int count = 0;
  Axis* axes = copy.axes;
  for (int d = 0; d < dimensions; ++d) {
    if (shape[d] == 0) return false;
    if (shape[d] == 1) continue;
    Axis axis{shape[d], source_strides[d], destination_strides[d]};
    if (axis.destination < 0) {
      copy.source += (axis.size - 1) * axis.source;
      copy.destination += (axis.size - 1) * axis.destination;
      axis.source = -axis.source;
      axis.destination = -axis.destination;
    }
    axes[count++] = axis;
  }
  std::stable_sort(axes, axes + count, [](const Axis& a, const Axis& b) { return a.destination > b.destination; });
  int merged = 0;
  for (int d = 0; d < count; ++d) {
    Axis& last = axes[std::max(merged - 1, 0)];
    if (merged > 0 && last.destination == axes[d].size * axes[d].destination &&
        last.source == axes[d].size * axes[d].source) {
      last = {last.size * axes[d].size, axes[d].source, axes[d].destination};
    } else {
      axes[merged++] = axes[d];
    }
  }
  copy.outer = merged;
  return true;
}

void take_out(Copy& copy, int axis) {
  std::copy(copy.axes + axis + 1, copy.axes + copy.outer, copy.axes + axis);
  --copy.outer;
}

void run(Copy& copy) {
  const int64_t size = copy.across ? copy.fast.size : copy.other.size;
  const int64_t line = (copy.across ? copy.other.size : copy.fast.size) * copy.run;
  const int64_t least = copy.across ? kCacheLine : std::max<int64_t>(kPage / copy.run, 1);
  copy.strip = (std::max<int64_t>(kTaskBytes / 4 / line, 1) + least - 1) / least * least;
  copy.strips = (size + copy.strip - 1) / copy.strip;
  copy.units = copy.strips;
  for (int d = 0; d < copy.outer; ++d) copy.units *= copy.axes[d].size;
  const int64_t unit_bytes = std::min(copy.strip, size) * line;
  copy.tasks = std::max<int64_t>(copy.units / std::max<int64_t>(kTaskBytes / unit_bytes, 1), 1);
  run_parallel(&copy_units, &copy, copy.tasks);
}

// Groups steps along the outer axis with the smallest stride in the source, as many as fill a page; otherwise each page
// of the source would be fetched again for the few bytes of one step.
void visit_pages_whole(Copy& copy) {
  int nearest = -1;
  for (int d = 0; d < copy.outer; ++d) {
    if (nearest < 0 || std::abs(copy.axes[d].source) < std::abs(copy.axes[nearest].source)) nearest = d;
  }
  if (nearest < 0 || nearest == copy.outer - 1 || copy.outer == kMaxDimensions) return run(copy);
  const Axis axis = copy.axes[nearest];
  const int64_t steps = std::min(kPage / std::max<int64_t>(std::abs(axis.source), 1), axis.size);
  if (steps < 2) return run(copy);
  const int64_t whole = axis.size / steps;
  Copy part = copy;
  part.axes[nearest] = {whole, axis.source * steps, axis.destination * steps};
  part.axes[part.outer++] = {steps, axis.source, axis.destination};
  run(part);
  if (axis.size % steps == 0) return;
  part.source += whole * steps * axis.source;
  part.destination += whole * steps * axis.destination;
  part.axes[nearest].size = 1;
  part.axes[part.outer - 1].size = axis.size % steps;
  run(part);
}

}  // namespace

void reorder(const void* source, void* destination, int64_t item, int dimensions, const int64_t* shape,
             const int64_t* source_strides, const int64_t* destination_strides) {
  Copy copy;
  copy.source = static_cast<const char*>(source);
  copy.destination = static_cast<char*>(destination);
  if (!simplify(dimensions, shape, source_strides, destination_strides, copy)) return;

  copy.run = item;
  if (copy.outer > 0) {
    const Axis& last = copy.axes[copy.outer - 1];
    if (last.source == item && last.destination == item) {
      copy.run = item * last.size;
      --copy.outer;
    }
  }
  if (copy.outer == 0 && copy.run > kTaskBytes) {  // split a plain copy for the threads; the last piece is shorter
    const int64_t whole = copy.run / kTaskBytes * kTaskBytes;
    std::memcpy(copy.destination + whole, copy.source + whole, copy.run - whole);
    copy.axes[copy.outer++] = {whole / kTaskBytes, kTaskBytes, kTaskBytes};
    copy.run = kTaskBytes;
  }
  copy.fast = copy.other = {1, 0, 0};
  if (copy.outer == 1 && copy.run == kTaskBytes) {
    copy.other = copy.axes[--copy.outer];
  } else if (copy.outer > 0) {
    copy.fast = copy.axes[--copy.outer];
    int nearest = -1;
    for (int d = copy.outer - 1; d >= 0; --d) {
      if (nearest < 0 || std::abs(copy.axes[d].source) < std::abs(copy.axes[nearest].source)) nearest = d;
    }
    if (nearest >= 0) {
      copy.other = copy.axes[nearest];
      take_out(copy, nearest);
    }
  }
  copy.across = copy.run == item && copy.fast.destination == item && copy.other.source == item;
  copy.plane = plane_function(copy.run, copy.across);
  visit_pages_whole(copy);
}

namespace {

struct Widening {
  const uint8_t* codes;
  int64_t count;
  const float* table;
  float* out;
};

constexpr int64_t kCodesOfTask = 256 * 1024;

void widen_task(void* context, int64_t task) {
  const Widening& work = *static_cast<const Widening*>(context);
  const int64_t begin = task * kCodesOfTask, end = std::min(work.count, begin + kCodesOfTask);
  const float* const table = work.table;
  for (int64_t i = begin; i < end; ++i) work.out[i] = table[work.codes[i]];
}

}  // namespace

void widen_codes(const uint8_t* codes, int64_t count, const float* table, float* out) {
  Widening work{codes, count, table, out};
  run_parallel(&widen_task, &work, (count + kCodesOfTask - 1) / kCodesOfTask);
}

}  // namespace opdump
