// MD5 (RFC 1321) and SHA-1 (FIPS 180-4) of many messages at once, one per lane.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "hash_message.h"

namespace opdump {

// The functions that process the messages of a hash.
struct HashWays {
  HashFunctions functions;
  size_t worth_lanes;     // with fewer filled lanes, hashing messages one by one is at least as fast
  HashFew few = nullptr;  // replaces `single` if available
};

struct Hash {
  int words;
  bool big_endian;
  uint32_t initial[kHashWords];
  HashWays (*ways)(bool with_instructions);
};

extern const Hash kMd5;
extern const Hash kSha1;

// Copies of messages, which are hashed once they fill the lanes or take too much memory.
class HashBatch {
 public:
  // Holds at most `capacity` bytes of messages and one more buffer. `with_instructions`: use the processor's
  // instructions for a hash if it has them.
  HashBatch(const Hash& hash, int64_t capacity, bool with_instructions)
      : hash_(hash), capacity_(capacity), with_instructions_(with_instructions) {}
  HashBatch(const HashBatch&) = delete;
  HashBatch& operator=(const HashBatch&) = delete;
  ~HashBatch();

  // Memory into which the caller copies `bytes` bytes.
  uint8_t* space(int64_t bytes);
  // Makes messages of the copied bytes: one, or one per `slice` bytes, a multiple of kHashBlock. Returns the number of
  // the first.
  size_t added(int64_t slice);
  // The number of messages that are worth hashing without others.
  int64_t worth_together() const;
  // Hashes whole slices in place, at once. Returns the number of the first.
  size_t hash_slices(const uint8_t* bytes, int64_t slices, int64_t slice);
  // The hexadecimal hash of a few bytes, computed at once.
  std::string hash(const std::string& bytes) const;

  // Whether there is enough to hash while the copies are still in the cache.
  bool is_full() const { return held_ > capacity_ || pending_.size() >= kWorthHashing; }
  // Hashes as long as all lanes are filled, and everything if too many bytes are held.
  void advance();
  // The hexadecimal digest of a message.
  std::string digest(size_t number);
  void clear();

 private:
  struct Buffer {
    uint8_t* memory = nullptr;
    int size_class = 0;
    int64_t bytes = 0;
    int64_t padded = 0;
    int64_t unfinished = 0;  // messages
  };
  struct Held {
    HashMessage message;
    Buffer* buffer = nullptr;  // null if the bytes are not a copy
  };
  static constexpr size_t kWorthHashing = 4 * kHashLanes;

  Held& new_message(const uint8_t* next, int64_t blocks, const uint8_t* tail);
  const uint8_t* tail_of(int64_t slice);
  void give_back(Buffer& buffer);
  void finish(size_t keep);
  void run_shared(const std::vector<HashMessage*>& messages, size_t keep) const;
  void run(const HashWays& ways, std::vector<HashMessage*>& waiting, size_t keep) const;
  std::string text(const HashMessage& message) const;

  const Hash& hash_;
  int64_t capacity_;
  bool with_instructions_;
  int64_t held_ = 0;
  std::deque<Held> messages_;
  std::deque<Buffer> buffers_;
  std::vector<Held*> pending_;
  std::map<int64_t, std::array<uint8_t, kHashBlock>> tails_;  // by the size of a slice
  std::vector<std::vector<uint8_t*>> free_;                   // by size class
};

}  // namespace opdump
