#include "append_file.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "xxh3.h"

namespace opdump {

namespace {

// Small records share a block of so many bytes; one write for all of them.
constexpr int64_t kBlockBytes = int64_t{1} << 20;

int64_t padded(int64_t bytes) { return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment; }

// Sizes of blocks are few, so that one that comes back fits the next tensor of about its size.
int64_t size_class(int64_t bytes) {
  int64_t size = kBlockBytes;
  while (size < bytes) size += size / 2 / kBlockBytes * kBlockBytes + kBlockBytes;
  return size;
}

void store64(uint8_t* at, uint64_t value) {
  for (int i = 0; i < 8; ++i) at[i] = static_cast<uint8_t>(value >> (8 * i));
}

uint64_t load64(const uint8_t* at) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= uint64_t{at[i]} << (8 * i);
  return value;
}

uint32_t load32(const uint8_t* at) {
  return uint32_t{at[0]} | uint32_t{at[1]} << 8 | uint32_t{at[2]} << 16 | uint32_t{at[3]} << 24;
}

}  // namespace

AppendFile::AppendFile(int descriptor, int threads, int64_t capacity)
    : descriptor_(descriptor), most_threads_(std::max(threads, 1)), capacity_(capacity) {}

AppendFile::~AppendFile() { stop(); }

AppendFile::Outcome AppendFile::append(const uint8_t* header, int64_t header_bytes, const uint8_t* elements,
                                       int64_t element_bytes, int64_t* offset) {
  const std::unique_lock appending(appending_, std::try_to_lock);
  if (!appending.owns_lock()) return Outcome::kBusy;
  const int64_t body = padded(element_bytes);
  const int64_t bytes = header_bytes + body;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || error_ != 0) return Outcome::kStopped;
    if (open_ && open_->used + bytes > open_->capacity) queue_open();
    if (!open_) {
      open_ = taken_block(bytes);
      if (!open_) return Outcome::kNoRoom;
      open_->offset = next_offset_;
    }
    next_offset_ += bytes;
  }
  // Nobody else touches the open block: `push` waits for `appending_`, too.
  Block& block = *open_;
  uint8_t* at = block.memory.get() + block.used;
  *offset = block.offset + block.used;
  std::memcpy(at, header, header_bytes);
  store64(at + kRecordOffsetField, static_cast<uint64_t>(*offset));
  if (element_bytes > 0) std::memcpy(at + header_bytes, elements, element_bytes);
  std::memset(at + header_bytes + element_bytes, 0, body - element_bytes);
  block.records.push_back(block.used);
  block.used += bytes;
  if (block.used > block.capacity / 4 * 3) {
    const std::lock_guard lock(mutex_);
    queue_open();
  }
  return Outcome::kDone;
}

AppendFile::BlockPointer AppendFile::taken_block(int64_t bytes) {
  const int64_t size = size_class(bytes);
  if (in_use_ > 0 && in_use_ + size > capacity_) return nullptr;
  const auto fits = [&](const BlockPointer& block) { return block->capacity == size; };
  const auto found = std::find_if(free_.begin(), free_.end(), fits);
  BlockPointer block;
  if (found != free_.end()) {
    block = std::move(*found);
    free_.erase(found);
    kept_ -= size;
  } else {
    // What is kept for later and what is in use have no more than the capacity together, the oldest goes first.
    while (!free_.empty() && in_use_ + kept_ + size > capacity_) {
      kept_ -= free_.front()->capacity;
      free_.erase(free_.begin());
    }
    block = std::make_unique<Block>();
    block->memory.reset(new uint8_t[size]);
    block->capacity = size;
  }
  in_use_ += size;
  return block;
}

void AppendFile::give_back(BlockPointer block) {
  in_use_ -= block->capacity;
  if (in_use_ + kept_ + block->capacity <= capacity_) {
    block->used = 0;
    block->records.clear();
    kept_ += block->capacity;
    free_.push_back(std::move(block));
  }
}

void AppendFile::queue_open() {
  if (!open_) return;
  if (open_->used == 0) return give_back(std::move(open_));
  queue_.push_back(std::move(open_));
  ++unfinished_;
  if (idle_ == 0 && static_cast<int>(threads_.size()) < most_threads_) start_thread();
  work_.notify_one();
}

void AppendFile::start_thread() {
  try {
    threads_.emplace_back([this] { run(); });
  } catch (const std::system_error&) {
    // No more threads to be had: those that run do the work. Without any, that is the failure.
    if (threads_.empty()) {
      error_ = EAGAIN;
      unfinished_ -= static_cast<int>(queue_.size());
      for (BlockPointer& block : queue_) in_use_ -= block->capacity;
      queue_.clear();
    }
  }
}

void AppendFile::wait_for_room(std::chrono::milliseconds most) {
  const auto began = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  if (unfinished_ > 0 && error_ == 0) room_.wait_for(lock, most);
  waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

void AppendFile::push() {
  const std::lock_guard appending(appending_);
  const std::lock_guard lock(mutex_);
  queue_open();
}

bool AppendFile::wait_until_empty(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  return room_.wait_for(lock, most, [&] { return unfinished_ == 0; });
}

void AppendFile::stop() {
  push();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    work_.notify_all();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

int AppendFile::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

int64_t AppendFile::bytes_appended() const {
  const std::lock_guard lock(mutex_);
  return next_offset_;
}

int64_t AppendFile::bytes_written() const {
  const std::lock_guard lock(mutex_);
  return written_;
}

double AppendFile::seconds_waited() const {
  const std::lock_guard lock(mutex_);
  return waited_;
}

void AppendFile::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    while (queue_.empty() && !stopping_) {
      ++idle_;
      work_.wait(lock);
      --idle_;
    }
    if (queue_.empty()) return;
    BlockPointer block = std::move(queue_.front());
    queue_.pop_front();
    bool failed = error_ != 0;
    lock.unlock();
    if (!failed) finish_records(*block);
    lock.lock();
    // Blocks reach the file in their order: what is there is whole up to its end, wherever the process was killed.
    turn_.wait(lock, [&] { return next_turn_ == block->offset; });
    failed = error_ != 0;
    lock.unlock();
    const int error = failed ? 0 : write(*block);
    lock.lock();
    if (error != 0) error_ = error;
    if (!failed && error == 0) written_ += block->used;
    next_turn_ += block->used;
    --unfinished_;
    give_back(std::move(block));
    turn_.notify_all();
    room_.notify_all();
  }
}

void AppendFile::finish_records(Block& block) const {
  for (size_t i = 0; i < block.records.size(); ++i) {
    uint8_t* header = block.memory.get() + block.records[i];
    const int64_t header_bytes = load32(header + 8);
    const auto element_bytes = static_cast<int64_t>(load64(header + 16));
    store64(header + kRecordElementsHash, xxh3_128(header + header_bytes, element_bytes).low);
    store64(header + kRecordHeaderHash, xxh3_128(header, header_bytes).low);
  }
}

int AppendFile::write(const Block& block) const {
  const uint8_t* at = block.memory.get();
  int64_t left = block.used;
  int64_t offset = block.offset;
  while (left > 0) {
    const ssize_t done = pwrite(descriptor_, at, static_cast<size_t>(left), offset);
    if (done < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    if (done == 0) return EIO;
    at += done;
    offset += done;
    left -= done;
  }
  return 0;
}

}  // namespace opdump
