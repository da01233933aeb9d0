// Hashes with blocks of 64 bytes and a state of 32-bit words (MD5, SHA-1), one message in each of sixteen lanes.
// Included by one file per hash, which is compiled once per instruction set. The hash is a structure:
//   kWords                     32-bit words of the state
//   kWidth                     lanes that it computes at a time
//   compress(state, words)     advances the state by one block; Word is uint32_t or a vector of kWidth of them
#pragma once

#include <cstdint>
#include <cstring>

#include "hash_message.h"

namespace opdump {
namespace OPDUMP_KERNELS {

template <int kWidth>
struct HashVector {
  // The compiler maps it to one or more registers.
  using Type __attribute__((vector_size(4 * kWidth))) = uint32_t;
};

// Word k of the block of each lane, in lane order: four lanes and four words at a time.
inline void transpose(const uint8_t* const (&blocks)[kHashLanes], uint32_t (&words)[16][kHashLanes]) {
  using Quad = HashVector<4>::Type;
  for (int lane = 0; lane < kHashLanes; lane += 4) {
    for (int word = 0; word < 16; word += 4) {
      Quad row[4];
      for (int i = 0; i < 4; ++i) std::memcpy(&row[i], blocks[lane + i] + 4 * word, sizeof(Quad));
      const Quad low0 = __builtin_shuffle(row[0], row[1], Quad{0, 4, 1, 5});
      const Quad low1 = __builtin_shuffle(row[2], row[3], Quad{0, 4, 1, 5});
      const Quad high0 = __builtin_shuffle(row[0], row[1], Quad{2, 6, 3, 7});
      const Quad high1 = __builtin_shuffle(row[2], row[3], Quad{2, 6, 3, 7});
      const Quad column[4] = {
          __builtin_shuffle(low0, low1, Quad{0, 1, 4, 5}), __builtin_shuffle(low0, low1, Quad{2, 3, 6, 7}),
          __builtin_shuffle(high0, high1, Quad{0, 1, 4, 5}), __builtin_shuffle(high0, high1, Quad{2, 3, 6, 7})};
      for (int i = 0; i < 4; ++i) std::memcpy(&words[word + i][lane], &column[i], sizeof(Quad));
    }
  }
}

template <class Hash>
void hash_lanes(HashMessage* const (&messages)[kHashLanes], int64_t count) {
  using Vector = typename HashVector<Hash::kWidth>::Type;
  constexpr int kGroups = kHashLanes / Hash::kWidth;
  const uint8_t* next[kHashLanes];
  alignas(64) uint32_t states[Hash::kWords][kHashLanes] = {};
  const HashMessage* any = nullptr;
  for (const HashMessage* each : messages) any = any == nullptr ? each : any;
  if (any == nullptr) return;
  for (int lane = 0; lane < kHashLanes; ++lane) {
    const HashMessage* each = messages[lane] == nullptr ? any : messages[lane];
    next[lane] = each->next;
    for (int i = 0; i < Hash::kWords; ++i) states[i][lane] = each->state[i];
  }
  Vector state[kGroups][Hash::kWords];
  for (int group = 0; group < kGroups; ++group) {
    for (int i = 0; i < Hash::kWords; ++i) {
      std::memcpy(&state[group][i], &states[i][group * Hash::kWidth], sizeof(Vector));
    }
  }
  alignas(64) uint32_t words[16][kHashLanes];
  for (int64_t block = 0; block < count; ++block) {
    transpose(next, words);
    for (int group = 0; group < kGroups; ++group) {
      Vector loaded[16];
      for (int i = 0; i < 16; ++i) std::memcpy(&loaded[i], &words[i][group * Hash::kWidth], sizeof(Vector));
      Hash::compress(state[group], loaded);
    }
    for (const uint8_t*& each : next) each += kHashBlock;
  }
  for (int group = 0; group < kGroups; ++group) {
    for (int i = 0; i < Hash::kWords; ++i) {
      std::memcpy(&states[i][group * Hash::kWidth], &state[group][i], sizeof(Vector));
    }
  }
  for (int lane = 0; lane < kHashLanes; ++lane) {
    if (messages[lane] == nullptr) continue;
    messages[lane]->next = next[lane];
    messages[lane]->blocks -= count;
    for (int i = 0; i < Hash::kWords; ++i) messages[lane]->state[i] = states[i][lane];
  }
}

template <class Hash>
void hash_single(HashMessage& message, int64_t count) {
  uint32_t words[16];
  uint32_t state[Hash::kWords];
  std::memcpy(state, message.state, sizeof state);
  for (int64_t block = 0; block < count; ++block, message.next += kHashBlock) {
    std::memcpy(words, message.next, sizeof words);
    Hash::compress(state, words);
  }
  std::memcpy(message.state, state, sizeof state);
  message.blocks -= count;
}

}  // namespace OPDUMP_KERNELS
}  // namespace opdump
