// A message that is being hashed, and the functions that take messages further. Compilations for several instruction
// sets include it: nothing of the standard library that makes code is used (see lanes.h).
#pragma once

#include <cstdint>

namespace opdump {

constexpr int kHashLanes = 16;
constexpr int kHashWords = 5;
constexpr int64_t kHashBlock = 64;

// A message on its way: whole blocks. `tail`, where it is not null, is the block that comes last.
struct HashMessage {
  uint32_t state[kHashWords] = {};
  const uint8_t* next = nullptr;
  int64_t blocks = 0;
  const uint8_t* tail = nullptr;
};

// Takes each of kHashLanes messages `blocks` blocks further. Entries may be null.
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
// By the instructions that a processor may have for it.
void sha1_by_instructions(HashMessage* const* messages, int count, int64_t blocks);
#endif

}  // namespace opdump
