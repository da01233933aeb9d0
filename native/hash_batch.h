// MD5 (RFC 1321) and SHA-1 (FIPS 180-4) of many messages at once, each in a lane of its own.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "hash_message.h"

namespace opdump {

// How the messages of a hash are taken further.
struct HashWays {
  HashFunctions functions;
  size_t worth_lanes;     // a lane costs as much as a message by itself where fewer than so many are filled
  HashFew few = nullptr;  // in the place of `single` where it is to be had
};

struct Hash {
  int words;
  bool big_endian;
  uint32_t initial[kHashWords];
  HashWays (*ways)(bool with_instructions);
};

extern const Hash kMd5;
extern const Hash kSha1;

// Copies of messages, which are hashed when there are enough of them to fill the lanes, or too many bytes to keep.
class HashBatch {
 public:
  // Holds no more than `capacity` bytes of messages, and one buffer more. `with_instructions`: those for a hash are
  // used where the processor has them.
  HashBatch(const Hash& hash, int64_t capacity, bool with_instructions)
      : hash_(hash), capacity_(capacity), with_instructions_(with_instructions) {}
  HashBatch(const HashBatch&) = delete;
  HashBatch& operator=(const HashBatch&) = delete;
  ~HashBatch();

  // Where so many bytes are to be copied to.
  uint8_t* space(int64_t bytes);
  // Makes messages of them, when they are there: one, or one of each `slice` bytes, a multiple of kHashBlock. The
  // number of the first.
  size_t added(int64_t slice);
  // How many messages are worth hashing without others.
  int64_t worth_together() const;
  // Hashes whole slices at once, where they lie; the number of the first.
  size_t hash_slices(const uint8_t* bytes, int64_t slices, int64_t slice);
  // A few bytes, at once. Hexadecimal.
  std::string hash(const std::string& bytes) const;

  // Whether there is enough to hash, so that the copies are still near.
  bool is_full() const { return held_ > capacity_ || pending_.size() >= kWorthHashing; }
  // Hashes as long as all lanes are filled; to the end where too many bytes are held.
  void advance();
  // Hexadecimal.
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
    Buffer* buffer = nullptr;  // null where the bytes are not ours
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
  std::map<int64_t, std::array<uint8_t, kHashBlock>> tails_;  // by the bytes of a slice
  std::vector<std::vector<uint8_t*>> free_;                   // by size class
};

}  // namespace opdump
