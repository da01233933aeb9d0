// Appends records to a file: the caller copies them into recycled buffers, and threads of the file hash and write them.
// The format is that of src/opdump/layouts/packed.py.
//
// Large blocks are written past the system's page cache (O_DIRECT) if that is not much slower: copying into the cache
// takes more processor time than everything else here, and displaces the program's data from the cache.
// src/opdump/sink/directory.py does the same for single files.
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

// The positions of the header fields that are filled in here.
constexpr int64_t kRecordAlignment = 64;
constexpr int64_t kRecordOffsetField = 24;
constexpr int64_t kRecordElementsHash = 48;
constexpr int64_t kRecordHeaderHash = 56;

class AppendFile {
 public:
  // Writes into an open file from its beginning; the caller closes the descriptor after `stop`. Buffers that are
  // filled, queued or being written have at most `capacity` bytes in total; a larger record waits until there is no
  // other.
  AppendFile(int descriptor, int threads, int64_t capacity);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  enum class Outcome { kDone, kNoRoom, kBusy, kStopped };

  // Copies a record: a header, whose size is a multiple of 64 bytes, and its elements, which are padded to one. Sets
  // `offset` to its beginning. kNoRoom, kBusy: nothing was done; retry after `wait_for_room`, or when the other caller
  // has finished.
  Outcome append(const uint8_t* header, int64_t header_bytes, const uint8_t* elements, int64_t element_bytes,
                 int64_t* offset);
  // Waits until buffers are free, but at most this long.
  void wait_for_room(std::chrono::milliseconds most);
  // Passes the appended records to the threads.
  void push();
  // Waits, at most this long, until all passed records are written or dropped; returns whether they are.
  bool wait_until_empty(std::chrono::milliseconds most);
  // Ends the threads, after they have written all passed records.
  void stop();

  // The errno of the first failed write, after which nothing more is written; 0 without one.
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
    // Its bytes; the distance from the beginning of a page is that of `offset`, their position in the file (O_DIRECT).
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
  // Only for the thread whose turn it is to write: seconds per byte through the cache and past it (0 until tried);
  // whether the file system refuses O_DIRECT; and when to try the slower way again, at growing intervals.
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
