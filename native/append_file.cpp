#include "append_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "xxh3.h"

namespace opdump {

namespace {

// Records share blocks of this size, each with one write; smaller if an eighth of the capacity is less.
constexpr int64_t kBlockBytes = int64_t{1} << 23;
constexpr int64_t kLeastBlockBytes = int64_t{1} << 16;
// Writes past the cache begin and end at multiples of this, in memory and in the file.
constexpr int64_t kPage = 4096;
// Smaller writes are faster through the cache.
constexpr int64_t kLeastPastCache = int64_t{1} << 18;
// The cache is used only if it is faster by more than this factor.
constexpr double kWorth = 4;
// The other way is tried again after this many blocks.
constexpr int kPatience = 16;
constexpr int kMostPatience = 256;
// The first blocks alternate between both ways, before one is chosen.
constexpr int kFirstTries = 4;

int64_t padded(int64_t bytes) { return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment; }

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
    : descriptor_(descriptor),
      most_threads_(std::max(threads, 1)),
      block_bytes_(std::clamp(capacity / 8, kLeastBlockBytes, kBlockBytes)),
      patience_(kPatience),
      memory_(capacity) {}

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
    }
    std::vector<Record>& records = open_->records;
    if (records.size() == records.capacity()) records.reserve(2 * records.size() + 16);  // only this may throw
    next_offset_ += bytes;
  }
  // No other thread touches the open block: `push` waits for `appending_`, too.
  Block& block = *open_;
  uint8_t* at = block.begin + block.used;
  *offset = block.offset + block.used;
  std::memcpy(at, header, header_bytes);
  store64(at + kRecordOffsetField, static_cast<uint64_t>(*offset));
  const bool is_large = element_bytes >= kLeastPastCache;
  if (is_large) {
    store64(at + kRecordElementsHash, xxh3_128_copied(elements, element_bytes, at + header_bytes).low);
  } else if (element_bytes > 0) {
    std::memcpy(at + header_bytes, elements, element_bytes);
  }
  std::memset(at + header_bytes + element_bytes, 0, body - element_bytes);
  block.records.push_back({block.used, is_large});
  block.used += bytes;
  if (block.used > block.capacity / 4 * 3) {
    const std::lock_guard lock(mutex_);
    queue_open();
  }
  return Outcome::kDone;
}

AppendFile::BlockPointer AppendFile::taken_block(int64_t bytes) {
  auto block = std::make_unique<Block>();
  block->capacity = std::max(bytes, block_bytes_);
  block->offset = next_offset_;
  block->memory = memory_.take(block->capacity + kPage);
  if (block->memory == nullptr) return nullptr;
  block->begin = block->memory + block->offset % kPage;
  return block;
}

void AppendFile::queue_open() {
  if (!open_) return;
  if (open_->used == 0) {
    memory_.give_back(open_->memory);
    return open_.reset();
  }
  queue_.push_back(std::move(open_));
  ++unfinished_;
  if (idle_ == 0 && static_cast<int>(threads_.size()) < most_threads_) start_thread();
  work_.notify_one();
}

void AppendFile::start_thread() {
  try {
    threads_.emplace_back([this] { run(); });
  } catch (const std::exception&) {
    // No more threads, or no memory for one: the running threads do the work. It is an error only if there are none.
    if (!threads_.empty()) return;
    error_ = EAGAIN;
    unfinished_ -= static_cast<int>(queue_.size());
    for (const BlockPointer& block : queue_) {
      next_turn_ += block->used;
      memory_.give_back(block->memory);
    }
    queue_.clear();
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
    // Blocks are written in order, so that the file has no gaps, wherever the process is killed.
    turn_.wait(lock, [&] { return next_turn_ == block->offset; });
    failed = error_ != 0;
    lock.unlock();
    const int error = failed ? 0 : write(*block);
    lock.lock();
    if (error != 0) error_ = error;
    if (!failed && error == 0) written_ += block->used;
    next_turn_ += block->used;
    --unfinished_;
    memory_.give_back(block->memory);
    turn_.notify_all();
    room_.notify_all();
  }
}

void AppendFile::finish_records(Block& block) const {
  for (const Record& record : block.records) {
    uint8_t* header = block.begin + record.at;
    const int64_t header_bytes = load32(header + 8);
    const auto element_bytes = static_cast<int64_t>(load64(header + 16));
    if (!record.elements_are_hashed) {
      store64(header + kRecordElementsHash, xxh3_128(header + header_bytes, element_bytes).low);
    }
    store64(header + kRecordHeaderHash, xxh3_128(header, header_bytes).low);
  }
}

int AppendFile::write(const Block& block) {
  const int64_t before = (kPage - block.offset % kPage) % kPage;
  const int64_t middle = (block.used - before) / kPage * kPage;
  const bool is_large = middle >= kLeastPastCache && !is_refused_;
  const bool goes_past = is_large && next_goes_past_cache();
  const auto began = std::chrono::steady_clock::now();
  int64_t written = 0;
  const auto write_up_to = [&](int64_t end) {
    while (written < end) {
      const auto left = static_cast<size_t>(end - written);
      const ssize_t done = pwrite(descriptor_, block.begin + written, left, block.offset + written);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return done < 0 ? errno : EIO;
      written += done;
    }
    return 0;
  };
  if (goes_past) {
    if (const int error = write_up_to(before)) return error;
    const int64_t done = write_past_cache(block.begin + before, middle, block.offset + before);
    is_refused_ = done == 0;
    written += done;
  }
  const int error = write_up_to(block.used);
  if (is_large) {
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    double& pace = pace_[goes_past];
    pace = pace == 0 ? took / block.used : (pace + took / block.used) / 2;
  }
  return error;
}

bool AppendFile::next_goes_past_cache() {
  if (tried_ < kFirstTries) return tried_++ % 2 == 0;
  const bool is_past = pace_[1] <= kWorth * pace_[0];
  if (++since_ < patience_) return is_past;
  since_ = 0;
  patience_ = std::min(2 * patience_, kMostPatience);
  return !is_past;
}

// Returns the number of bytes written; the caller writes the rest through the cache, which reports any error.
int64_t AppendFile::write_past_cache([[maybe_unused]] const uint8_t* bytes, [[maybe_unused]] int64_t count,
                                     [[maybe_unused]] int64_t offset) {
  int64_t written = 0;
#ifdef O_DIRECT
  const int flags = fcntl(descriptor_, F_GETFL);
  if (flags < 0 || fcntl(descriptor_, F_SETFL, flags | O_DIRECT) != 0) return 0;
  while (written < count && written % kPage == 0) {
    const ssize_t done = pwrite(descriptor_, bytes + written, static_cast<size_t>(count - written), offset + written);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) break;
    written += done;
  }
  fcntl(descriptor_, F_SETFL, flags);
#endif
  return written;
}

}  // namespace opdump
