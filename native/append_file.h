// A file that records are appended to: copied into recycled buffers by the caller, hashed and written by threads of its
// own. The format is that of src/opdump/layouts/packed/record.py.
//
// Large blocks are written past the cache of the system (O_DIRECT) where that is not much slower: a copy into the cache
// costs more of the processor than all else here, and takes the cache from the program. src/opdump/sink/file_bytes.py
// does the same with files.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "staging_memory.h"

namespace opdump {

// Where the fields of a record's header are that are filled in here.
constexpr int64_t kRecordAlignment = 64;
constexpr int64_t kRecordOffsetField = 24;
constexpr int64_t kRecordElementsHash = 48;
constexpr int64_t kRecordHeaderHash = 56;

class AppendFile {
 public:
  // Writes into an open file from its beginning on; the caller closes the descriptor after `stop`. Buffers that are
  // filled, queued or being written have at most `capacity` bytes together; a record that is larger waits until it is
  // alone.
  AppendFile(int descriptor, int threads, int64_t capacity);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  enum class Outcome { kDone, kNoRoom, kBusy, kStopped };

  // Copies a record: a header of a multiple of 64 bytes, and its elements, which are padded to one. `offset` is where
  // it begins. kNoRoom and kBusy: nothing was done; `wait_for_room` and the other caller end that.
  Outcome append(const uint8_t* header, int64_t header_bytes, const uint8_t* elements, int64_t element_bytes,
                 int64_t* offset);
  // Waits until buffers came back, or for so long.
  void wait_for_room(std::chrono::milliseconds most);
  // Hands what was appended over to the threads.
  void push();
  // Whether all that was handed over is written or dropped, after waiting for that for so long at most.
  bool wait_until_empty(std::chrono::milliseconds most);
  // Ends the threads; what was handed over is written before.
  void stop();

  // The errno of the first write that failed, after which nothing is written; 0 while there was none.
  int error() const;
  int64_t bytes_appended() const;
  int64_t bytes_written() const;
  double seconds_waited() const;

 private:
  struct Record {
    int64_t at;
    bool elements_are_hashed;
  };
  struct Block {
    uint8_t* memory = nullptr;
    // Its bytes: as far from a page's beginning as `offset`, where they come into the file.
    uint8_t* begin = nullptr;
    int64_t capacity = 0;
    int64_t used = 0;
    int64_t offset = 0;
    std::vector<Record> records;
  };
  using BlockPointer = std::unique_ptr<Block>;

  BlockPointer taken_block(int64_t bytes);
  void queue_open();
  void start_thread();
  void run();
  void finish_records(Block& block) const;
  int write(const Block& block);
  bool next_goes_past_cache();
  int64_t write_past_cache(const uint8_t* bytes, int64_t count, int64_t offset);

  const int descriptor_;
  const int most_threads_;
  const int64_t block_bytes_;
  // For the thread whose turn it is to write: seconds a byte through the cache, and past it, 0 until that was tried;
  // whether the file system refuses; and when the slower way is tried again, ever later as long as it loses.
  double pace_[2] = {0, 0};
  bool is_refused_ = false;
  int since_ = 0;
  int tried_ = 0;
  int patience_;
  mutable std::mutex mutex_;
  std::mutex appending_;
  std::condition_variable work_;
  std::condition_variable room_;
  std::condition_variable turn_;
  StagingMemory memory_;
  std::deque<BlockPointer> queue_;
  BlockPointer open_;
  std::vector<std::thread> threads_;
  int64_t next_offset_ = 0;
  int64_t written_ = 0;
  int64_t next_turn_ = 0;
  int unfinished_ = 0;
  int idle_ = 0;
  int error_ = 0;
  bool stopping_ = false;
  double waited_ = 0;
};

}  // namespace opdump
