#include "reorder.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "pool.h"
#include "summarise.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace opdump {
namespace {

// A thread takes so much at a time.
constexpr int64_t kTaskBytes = 1024 * 1024;
constexpr int64_t kCacheLine = 64;
constexpr int64_t kPage = 4096;
constexpr int64_t kPlaceBytes = 2048;
// How many rows of the destination are filled side by side: as many as the TLB holds pages of.
constexpr int64_t kRowsAtATime = 256;

struct Axis {
  int64_t size;
  int64_t source;
  int64_t destination;
};

// Moves blocks of kSide x kSide elements across their diagonal: from rows of the source `source_row` bytes apart to
// rows of the destination `destination_row` bytes apart.
#if defined(__SSE2__)
inline __m128i load(const char* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
inline void store(char* to, __m128i value) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value); }

// a0 b0 a1 b1 ... of the lower (upper) halves of a and b.
template <int kItem>
inline __m128i interleave_low(__m128i a, __m128i b) {
  if constexpr (kItem == 1) return _mm_unpacklo_epi8(a, b);
  if constexpr (kItem == 2) return _mm_unpacklo_epi16(a, b);
  if constexpr (kItem == 4) return _mm_unpacklo_epi32(a, b);
  return _mm_unpacklo_epi64(a, b);
}
template <int kItem>
inline __m128i interleave_high(__m128i a, __m128i b) {
  if constexpr (kItem == 1) return _mm_unpackhi_epi8(a, b);
  if constexpr (kItem == 2) return _mm_unpackhi_epi16(a, b);
  if constexpr (kItem == 4) return _mm_unpackhi_epi32(a, b);
  return _mm_unpackhi_epi64(a, b);
}

// As many rows as a register has elements. Row i and row i + half interleaved, log2(rows) times over, are the columns.
template <int kItem>
struct Registers {
  static constexpr int64_t kSide = 16 / kItem;
  static void transpose(const char* source, int64_t source_row, char* destination, int64_t destination_row) {
    __m128i rows[kSide], next[kSide];
    for (int64_t i = 0; i < kSide; ++i) rows[i] = load(source + i * source_row);
    for (int64_t done = 1; done < kSide; done *= 2) {
      for (int64_t i = 0; i < kSide / 2; ++i) {
        next[2 * i] = interleave_low<kItem>(rows[i], rows[i + kSide / 2]);
        next[2 * i + 1] = interleave_high<kItem>(rows[i], rows[i + kSide / 2]);
      }
      for (int64_t i = 0; i < kSide; ++i) rows[i] = next[i];
    }
    for (int64_t i = 0; i < kSide; ++i) store(destination + i * destination_row, rows[i]);
  }
};

// Blocks of 8 bytes where there are no 16.
struct HalfRegisters {
  static constexpr int64_t kSide = 8;
  static void transpose(const char* source, int64_t source_row, char* destination, int64_t destination_row) {
    __m128i rows[4];
    for (int64_t i = 0; i < 4; ++i) {
      const auto half = [&](int64_t row) {
        return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(source + row * source_row));
      };
      rows[i] = _mm_unpacklo_epi8(half(i), half(i + 4));
    }
    const __m128i a = _mm_unpacklo_epi8(rows[0], rows[2]), b = _mm_unpackhi_epi8(rows[0], rows[2]);
    const __m128i c = _mm_unpacklo_epi8(rows[1], rows[3]), d = _mm_unpackhi_epi8(rows[1], rows[3]);
    const __m128i columns[4] = {_mm_unpacklo_epi8(a, c), _mm_unpackhi_epi8(a, c), _mm_unpacklo_epi8(b, d),
                                _mm_unpackhi_epi8(b, d)};
    for (int64_t i = 0; i < 4; ++i) {
      char* to = destination + 2 * i * destination_row;
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to), columns[i]);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to + destination_row), _mm_unpackhi_epi64(columns[i], columns[i]));
    }
  }
};
#else
template <int kItem>
struct Registers {
  static constexpr int64_t kSide = 1;
  static void transpose(const char* source, int64_t, char* destination, int64_t) {
    std::memcpy(destination, source, kItem);
  }
};
using HalfRegisters = Registers<1>;
#endif

// Two axes at once: `fast` is the one along which the destination moves least, `other` the source. One element (or run
// of elements that lie side by side in both) is `run` bytes.
using PlaneFunction = void (*)(const char* source, char* destination, const Axis& fast, const Axis& other, int64_t run);

// The destination's rows run along `fast`, the source's along `other`. A line of the destination's cache is filled
// before the next is begun: rows that are a power of two apart would drive each other out of the cache.
template <int kItem, typename Block>
void transpose_blocks(const char* source, char* destination, const Axis& fast, const Axis& other) {
  constexpr int64_t kSide = Block::kSide;
  constexpr int64_t kLine = std::max<int64_t>(kCacheLine / kItem, kSide);
  if (fast.size < kSide || other.size < kSide) {
    const auto move = [&](int64_t row, int64_t i) {
      std::memcpy(destination + row * other.destination + i * kItem, source + i * fast.source + row * kItem, kItem);
    };
    if (other.size < fast.size) {  // the few channels of an image: its source is read once
      for (int64_t i = 0; i < fast.size; ++i) {
        for (int64_t row = 0; row < other.size; ++row) move(row, i);
      }
    } else {
      for (int64_t row = 0; row < other.size; ++row) {
        for (int64_t i = 0; i < fast.size; ++i) move(row, i);
      }
    }
    return;
  }
  for (int64_t first_row = 0; first_row < other.size; first_row += kRowsAtATime) {
    const int64_t end_row = std::min(other.size, first_row + kRowsAtATime);
    for (int64_t first = 0; first < fast.size; first += kLine) {
      const int64_t end = std::min(fast.size, first + kLine);
      // The last block of a row or column overlaps the one before where the size is not a whole number of blocks: what
      // is written twice is the same.
      for (int64_t row = first_row; row < end_row; row += kSide) {
        const int64_t at_row = std::min(row, end_row - kSide);
        const char* from = source + at_row * kItem;
        char* to = destination + at_row * other.destination;
        for (int64_t place = first; place < end; place += kSide) {
          const int64_t at = std::min(place, end - kSide);
          Block::transpose(from + at * fast.source, fast.source, to + at * kItem, other.destination);
        }
      }
    }
  }
}

template <int kItem>
void transpose_plane(const char* source, char* destination, const Axis& fast, const Axis& other, int64_t) {
  if (kItem == 1 && std::min(fast.size, other.size) < 16) {
    return transpose_blocks<1, HalfRegisters>(source, destination, fast, other);
  }
  transpose_blocks<kItem, Registers<kItem>>(source, destination, fast, other);
}

template <int kRun>
void copy_plane(const char* source, char* destination, const Axis& fast, const Axis& other, int64_t run) {
  // Tiles, so that a page of the source is read at once, and a good part of a page of the destination written at once.
  const int64_t bytes = kRun > 0 ? kRun : run;
  const int64_t rows = std::max<int64_t>(kPage / bytes, 16), places = std::max<int64_t>(kPlaceBytes / bytes, 16);
  for (int64_t first_row = 0; first_row < other.size; first_row += rows) {
    const int64_t end_row = std::min(other.size, first_row + rows);
    for (int64_t first = 0; first < fast.size; first += places) {
      const int64_t end = std::min(fast.size, first + places);
      for (int64_t row = first_row; row < end_row; ++row) {
        const char* from = source + row * other.source;
        char* to = destination + row * other.destination;
        for (int64_t i = first; i < end; ++i) {
          std::memcpy(to + i * fast.destination, from + i * fast.source, kRun > 0 ? kRun : bytes);
        }
      }
    }
  }
}

PlaneFunction transposing(int64_t item) {
  switch (item) {
    case 1: return &transpose_plane<1>;
    case 2: return &transpose_plane<2>;
    case 4: return &transpose_plane<4>;
    case 8: return &transpose_plane<8>;
    default: return &transpose_plane<16>;
  }
}

PlaneFunction copying(int64_t run) {
  switch (run) {
    case 1: return &copy_plane<1>;
    case 2: return &copy_plane<2>;
    case 4: return &copy_plane<4>;
    case 8: return &copy_plane<8>;
    case 16: return &copy_plane<16>;
    case 32: return &copy_plane<32>;
    case 64: return &copy_plane<64>;
    default: return &copy_plane<0>;
  }
}

struct Copy {
  const char* source;
  char* destination;
  int64_t run;
  PlaneFunction plane;
  Axis fast;
  Axis other;
  // A unit of work is a strip of the plane: of `fast` where elements change rows, of `other` where runs are copied.
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
    copy.plane(source + first * whole.source, destination + first * whole.destination, copy.across ? part : copy.fast,
               copy.across ? copy.other : part, copy.run);
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

// Without axes of one element and negative strides of the destination, its widest stride first, and axes that continue
// each other in both as one. Moves the two pointers to the element that comes first then. False if there is none.
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

// Of the axes outside the plane, steps along the one whose places lie next to each other in the source come together,
// as many as fill a page: else each page of the source would be fetched anew for the few bytes of one step.
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
  if (copy.outer == 0 && copy.run > kTaskBytes) {  // threads share a plain copy, too; the last piece is shorter
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
  copy.plane = copy.across ? transposing(item) : copying(copy.run);
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
