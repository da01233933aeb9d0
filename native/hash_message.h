// A message that is being hashed, and the functions that advance messages. Compilations for several instruction sets
// include it, so nothing of the standard library that generates code is used (see lanes.h).
#pragma once

#include <cstdint>

namespace opdump {

constexpr int kHashLanes = 16;
constexpr int kHashWords = 5;
constexpr int64_t kHashBlock = 64;

// The remaining whole blocks of a message. `tail`, if not null, is the last block.
struct HashMessage {
  uint32_t state[kHashWords] = {};
  const uint8_t* next = nullptr;
  int64_t blocks = 0;
  const uint8_t* tail = nullptr;
};

// Advances each of kHashLanes messages by `blocks` blocks. Entries may be null.
using HashLanes = void (*)(HashMessage* const (&lanes)[kHashLanes], int64_t blocks);
// The same for one message, faster than a single lane.
using HashSingle = void (*)(HashMessage& message, int64_t blocks);
// The same for some messages, 1 to kHashFew.
constexpr int kHashFew = 4;
using HashFew = void (*)(HashMessage* const* messages, int count, int64_t blocks);

struct HashFunctions {
  HashLanes lanes;
  HashSingle single;
};

#if defined(OPDUMP_X86_KERNELS)
// With the processor's instructions for SHA-1, if it has them.
void sha1_by_instructions(HashMessage* const* messages, int count, int64_t blocks);
#endif

}  // namespace opdump
