#include "staging_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>

namespace opdump {

namespace {

constexpr int64_t kPage = 4096;

int64_t rounded(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

constexpr std::align_val_t kAlignment{kPage};

}  // namespace

void StagingMemory::Unmap::operator()(uint8_t* memory) const { munmap(memory, static_cast<size_t>(bytes)); }

StagingMemory::StagingMemory(int64_t capacity)
    : capacity_(rounded(std::max<int64_t>(capacity, 1), kPage)), mapping_(nullptr, Unmap{capacity_}) {}

StagingMemory::~StagingMemory() {
  for (const auto& [block, bytes] : taken_) {
    if (bytes > capacity_ || !mapping_) operator delete[](const_cast<uint8_t*>(block), kAlignment);
  }
}

uint8_t* StagingMemory::take(int64_t bytes) {
  bytes = rounded(std::max<int64_t>(bytes, 1), kPage);
  if (in_use_ > 0 && in_use_ + bytes > capacity_) return nullptr;
  if (!is_mapped_) {
    is_mapped_ = true;
    // Pages are taken as they are written to.
    void* mapped = mmap(nullptr, static_cast<size_t>(capacity_), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped != MAP_FAILED) {
#ifdef MADV_HUGEPAGE
      madvise(mapped, static_cast<size_t>(capacity_), MADV_HUGEPAGE);
#endif
      mapping_.reset(static_cast<uint8_t*>(mapped));
      free_.emplace(0, capacity_);
    }
  }
  uint8_t* block = nullptr;
  if (mapping_ && bytes <= capacity_) {
    // The first that fits: what was used before is used again.
    const auto fits = [bytes](const auto& room) { return room.second >= bytes; };
    const auto room = std::find_if(free_.begin(), free_.end(), fits);
    if (room == free_.end()) return nullptr;  // in pieces that are too small
    const auto [offset, size] = *room;
    free_.erase(room);
    if (size > bytes) free_.emplace(offset + bytes, size - bytes);
    block = mapping_.get() + offset;
  } else {
    block = static_cast<uint8_t*>(operator new[](static_cast<size_t>(bytes), kAlignment));
  }
  taken_.emplace(block, bytes);
  in_use_ += bytes;
  return block;
}

void StagingMemory::give_back(uint8_t* block) {
  const auto found = taken_.find(block);
  const int64_t bytes = found->second;
  taken_.erase(found);
  in_use_ -= bytes;
  if (!mapping_ || bytes > capacity_) return operator delete[](block, kAlignment);
  auto room = free_.emplace(block - mapping_.get(), bytes).first;
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
