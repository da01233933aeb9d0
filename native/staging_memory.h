// Memory for data that waits for the disk: blocks of any size from one mapping, which is filled from its beginning and
// kept. Each step then uses the same pages, and only the first causes page faults.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

namespace opdump {

class StagingMemory {
 public:
  explicit StagingMemory(int64_t capacity);
  ~StagingMemory();
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  // Takes a block, aligned to pages of 4 KiB; null if there is not enough room. A block larger than the capacity is
  // available only while no other is taken. Throws std::bad_alloc if the system has no memory.
  uint8_t* take(int64_t bytes);
  void give_back(uint8_t* block) noexcept;

 private:
  struct Unmap {
    int64_t bytes;
    void operator()(uint8_t* memory) const;
  };
  using Rooms = std::map<int64_t, int64_t>;

  void map();
  uint8_t* take_mapped(int64_t bytes);

  const int64_t capacity_;
  // Null until the first block, and if this much cannot be mapped; all blocks then come from the heap.
  std::unique_ptr<uint8_t, Unmap> mapping_;
  bool is_mapped_ = false;
  int64_t in_use_ = 0;
  // Sizes by offset in the mapping. Nodes move from one map to the other, so that giving back allocates nothing.
  Rooms free_;
  Rooms taken_;
  std::map<const uint8_t*, int64_t> on_heap_;
};

}  // namespace opdump
