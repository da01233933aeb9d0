#include "walk.h"

#include <algorithm>
#include <cstring>

namespace opdump {
namespace {

template <int kItem>
char* copy_run(char* to, const char* from, int64_t count, int64_t stride) {
  if (stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(count) * kItem);
  } else {
    for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * kItem, from + i * stride * kItem, kItem);
  }
  return to + count * kItem;
}

// Copies elements [first, first + count), in the order of the walk, to `to`.
template <int kItem>
void gather(const Walk& walk, int64_t first, int64_t count, char* to) {
  int64_t index[kMaxDimensions];
  const char* at = walk.start;
  for (int d = walk.dimensions - 1; d >= 0; --d) {
    index[d] = first % walk.size[d];
    first /= walk.size[d];
    at += index[d] * walk.stride[d] * kItem;
  }
  const int inner = walk.dimensions - 1;
  if (inner < 0) copy_run<kItem>(to, at, 1, 1);
  while (inner >= 0 && count > 0) {
    const int64_t run = std::min(count, walk.size[inner] - index[inner]);
    to = copy_run<kItem>(to, at, run, walk.stride[inner]);
    count -= run;
    at += run * walk.stride[inner] * kItem;
    index[inner] += run;
    for (int d = inner; d > 0 && index[d] == walk.size[d]; --d) {
      at += (walk.stride[d - 1] - walk.size[d] * walk.stride[d]) * kItem;
      index[d] = 0;
      ++index[d - 1];
    }
  }
}

}  // namespace

void gather(const Walk& walk, int64_t item, int64_t first, int64_t count, char* to) {
  switch (item) {
    case 1: return gather<1>(walk, first, count, to);
    case 2: return gather<2>(walk, first, count, to);
    case 4: return gather<4>(walk, first, count, to);
    default: return gather<8>(walk, first, count, to);
  }
}

}  // namespace opdump
