#include "staging_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

namespace opdump {

namespace {

constexpr int64_t kPage = 4096;

int64_t rounded(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

constexpr std::align_val_t kAlignment{kPage};

// More than any machine has; limits sizes so that their sums do not overflow.
constexpr int64_t kMostCapacity = int64_t{1} << 48;

struct Free {
  void operator()(uint8_t* memory) const { operator delete[](memory, kAlignment); }
};

}  // namespace

void StagingMemory::Unmap::operator()(uint8_t* memory) const { munmap(memory, static_cast<size_t>(bytes)); }

StagingMemory::StagingMemory(int64_t capacity)
    : capacity_(rounded(std::clamp<int64_t>(capacity, 1, kMostCapacity), kPage)), mapping_(nullptr, Unmap{capacity_}) {}

StagingMemory::~StagingMemory() {
  for (const auto& [block, bytes] : on_heap_) operator delete[](const_cast<uint8_t*>(block), kAlignment);
}

void StagingMemory::map() {
  is_mapped_ = true;
  const auto size = static_cast<size_t>(capacity_);
  // The system allocates pages only when they are written.
  void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return;
#ifdef MADV_HUGEPAGE
  madvise(mapped, size, MADV_HUGEPAGE);
#endif
#ifdef MADV_DONTFORK
  madvise(mapped, size, MADV_DONTFORK);  // a forked process does not write, and must not keep these pages
#endif
  mapping_.reset(static_cast<uint8_t*>(mapped));
  free_.emplace(0, capacity_);
}

uint8_t* StagingMemory::take(int64_t bytes) {
  bytes = rounded(std::max<int64_t>(bytes, 1), kPage);
  if (in_use_ > 0 && bytes > capacity_ - in_use_) return nullptr;
  if (!is_mapped_) map();
  uint8_t* block = nullptr;
  if (mapping_ && bytes <= capacity_) {
    block = take_mapped(bytes);
    if (block == nullptr) return nullptr;
  } else {
    // The mapping is not in use, so its pages are returned to the system while this block exists.
    if (mapping_) madvise(mapping_.get(), static_cast<size_t>(capacity_), MADV_DONTNEED);
    std::unique_ptr<uint8_t[], Free> memory(
        static_cast<uint8_t*>(operator new[](static_cast<size_t>(bytes), kAlignment)));
    on_heap_.emplace(memory.get(), bytes);
    block = memory.release();
  }
  in_use_ += bytes;
  return block;
}

uint8_t* StagingMemory::take_mapped(int64_t bytes) {
  // The first that fits, so that pages are reused.
  const auto room =
      std::find_if(free_.begin(), free_.end(), [bytes](const auto& each) { return each.second >= bytes; });
  if (room == free_.end()) return nullptr;  // all free pieces are too small
  const auto [offset, size] = *room;
  taken_.emplace(offset, bytes);
  Rooms::node_type rest = free_.extract(room);
  if (size > bytes) {
    rest.key() = offset + bytes;
    rest.mapped() = size - bytes;
    free_.insert(std::move(rest));
  }
  return mapping_.get() + offset;
}

void StagingMemory::give_back(uint8_t* block) noexcept {
  if (const auto found = on_heap_.find(block); found != on_heap_.end()) {
    in_use_ -= found->second;
    on_heap_.erase(found);
    return operator delete[](block, kAlignment);
  }
  Rooms::node_type node = taken_.extract(block - mapping_.get());
  in_use_ -= node.mapped();
  auto room = free_.insert(std::move(node)).position;
  const auto next = std::next(room);
  if (next != free_.end() && room->first + room->second == next->first) {
    room->second += next->second;
    free_.erase(next);
  }
  if (room == free_.begin()) return;
  const auto before = std::prev(room);
  if (before->first + before->second == room->first) {
    before->second += room->second;
    free_.erase(room);
  }
}

}  // namespace opdump
