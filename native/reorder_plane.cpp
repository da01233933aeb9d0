#include "reorder_plane.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace opdump {
namespace {

constexpr int64_t kCacheLine = 64;
constexpr int64_t kPage = 4096;
constexpr int64_t kPlaceBytes = 2048;
// The number of rows of the destination that are filled side by side: the TLB has an entry for a page of each.
constexpr int64_t kRowsAtATime = 256;

// Lines of the destination are prefetched this many lines before they are written.
constexpr int64_t kLinesAhead = 4;

// Moves blocks of kFast x kOther elements from kFast rows of the source, `source_row` bytes apart, to rows of the
// destination, `destination_row` bytes apart. `Smaller` is used if such a block does not fit.
template <int kItem>
struct Single {
  static constexpr int64_t kFast = 1, kOther = 1;
  using Smaller = Single;
  static void transpose(const char* source, int64_t, char* destination, int64_t) {
    std::memcpy(destination, source, kItem);
  }
};

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

// Blocks of 8 bytes, if 16 do not fit.
struct HalfRegisters {
  static constexpr int64_t kFast = 8, kOther = 8;
  using Smaller = Single<1>;
  static void transpose(const char* source, int64_t source_row, char* destination, int64_t destination_row) {
    __m128i rows[4];
    for (int64_t i = 0; i < 4; ++i) {
      const char* from = source + i * source_row;
      rows[i] = _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)),
                                  _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 4 * source_row)));
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

template <int kItem>
struct SmallerThanRegisters {
  using Type = Single<kItem>;
};
template <>
struct SmallerThanRegisters<1> {
  using Type = HalfRegisters;
};

// As many rows as a register has elements. Interleaving row i with row i + half, log2(rows) times, produces the
// columns.
template <int kItem>
struct Registers {
  static constexpr int64_t kFast = 16 / kItem, kOther = 16 / kItem;
  using Smaller = typename SmallerThanRegisters<kItem>::Type;
  static void transpose(const char* source, int64_t source_row, char* destination, int64_t destination_row) {
    constexpr int64_t kSide = kOther;
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
#else
template <int kItem>
using Registers = Single<kItem>;
#endif

// The destination's rows run along `fast`, the source's along `other`. Each cache line of the destination is filled
// before the next one is begun: rows that are a power of two apart would evict each other from the cache.
template <int kItem, typename Block>
void transpose_blocks(const char* source, char* destination, const Axis& fast, const Axis& other) {
  constexpr int64_t kFast = Block::kFast, kOther = Block::kOther;
  constexpr int64_t kLine = std::max<int64_t>(kCacheLine / kItem, kFast);
  if constexpr (kFast > 1) {
    if (fast.size < kFast || other.size < kOther) {
      return transpose_blocks<kItem, typename Block::Smaller>(source, destination, fast, other);
    }
  } else if (other.size < fast.size) {  // for example, the few channels of an image: reads the source once
    for (int64_t i = 0; i < fast.size; ++i) {
      for (int64_t row = 0; row < other.size; ++row) {
        std::memcpy(destination + row * other.destination + i * kItem, source + i * fast.source + row * kItem, kItem);
      }
    }
    return;
  }
  for (int64_t first_row = 0; first_row < other.size; first_row += kRowsAtATime) {
    const int64_t end_row = std::min(other.size, first_row + kRowsAtATime);
    for (int64_t first = 0; first < fast.size; first += kLine) {
      const int64_t end = std::min(fast.size, first + kLine);
      // If the size is not a multiple of the block, the last block of a row or column overlaps the previous one and
      // writes the same values again.
      for (int64_t row = first_row; row < end_row; row += kOther) {
        const int64_t at_row = std::min(row, end_row - kOther);
        const char* from = source + at_row * kItem;
        char* to = destination + at_row * other.destination;
        if (const int64_t soon = first + kLinesAhead * kLine; kFast > 1 && soon < fast.size) {
          for (int64_t i = 0; i < kOther; ++i) __builtin_prefetch(to + i * other.destination + soon * kItem, 1);
        }
        for (int64_t place = first; place < end; place += kFast) {
          const int64_t at = std::min(place, end - kFast);
          Block::transpose(from + at * fast.source, fast.source, to + at * kItem, other.destination);
        }
      }
    }
  }
}

template <int kItem>
void transpose_plane(const char* source, char* destination, const Axis& fast, const Axis& other, int64_t) {
  if constexpr (kItem == 16) {
    transpose_blocks<kItem, Single<kItem>>(source, destination, fast, other);
  } else {
    transpose_blocks<kItem, Registers<kItem>>(source, destination, fast, other);
  }
}

template <int kRun>
void copy_plane(const char* source, char* destination, const Axis& fast, const Axis& other, int64_t run) {
  // Tiles, so that a page of the source is read, and a good part of a page of the destination written, at once.
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

// For items and runs of 1 << i bytes.
constexpr PlaneFunction kTranspose[] = {transpose_plane<1>, transpose_plane<2>, transpose_plane<4>, transpose_plane<8>,
                                        transpose_plane<16>};
constexpr PlaneFunction kCopy[] = {copy_plane<1>,  copy_plane<2>,  copy_plane<4>, copy_plane<8>,
                                   copy_plane<16>, copy_plane<32>, copy_plane<64>};

}  // namespace

PlaneFunction plane_function(int64_t run, bool across) {
  const PlaneFunction* functions = across ? std::begin(kTranspose) : std::begin(kCopy);
  const int64_t count = across ? std::size(kTranspose) : std::size(kCopy);
  for (int64_t i = 0; i < count; ++i) {
    if (run == int64_t{1} << i) return functions[i];
  }
  return copy_plane<0>;
}

}  // namespace opdump
