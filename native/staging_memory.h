// Memory for what waits for a disk: blocks of any size out of one mapping, which is touched from its beginning on and
// kept. What a program stages in each step is in the same pages then, and costs no page faults but the first time.
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

  // A block, aligned to pages of 4 KB; null where there is no room beside those that are taken. One that is larger
  // than the capacity is to be had while no other is taken. Throws std::bad_alloc where the system has no memory.
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
  // Null until the first block, and where so much cannot be mapped: all blocks are the heap's then.
  std::unique_ptr<uint8_t, Unmap> mapping_;
  bool is_mapped_ = false;
  int64_t in_use_ = 0;
  // Bytes by their offset in the mapping. A node goes from one to the other: to give back allocates nothing.
  Rooms free_;
  Rooms taken_;
  std::map<const uint8_t*, int64_t> on_heap_;
};

}  // namespace opdump
