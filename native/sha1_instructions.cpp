// SHA-1 with the processor's own instructions (x86: SHA-NI), several messages at a time: each instruction waits for the
// previous one, and those of other messages fill the waiting time. Only this file is compiled for these instructions.
#include <immintrin.h>

#include <cstring>

#include "hash_message.h"

namespace opdump {
namespace {

// The state of one message: a to d are in one register, e in the upper quarter of another.
struct Chain {
  __m128i abcd;
  __m128i e;
  __m128i words[4];  // of the schedule, four per register
};

// Four rounds, group `kGroup` of twenty. The first four groups use the words of the block, the others derived words.
template <int kGroup>
inline __attribute__((always_inline)) void four_rounds(Chain& chain, __m128i first_e) {
  __m128i& words = chain.words[kGroup % 4];
  if constexpr (kGroup >= 4) {
    words = _mm_sha1msg1_epu32(words, chain.words[(kGroup + 1) % 4]);
    words = _mm_xor_si128(words, chain.words[(kGroup + 2) % 4]);
    words = _mm_sha1msg2_epu32(words, chain.words[(kGroup + 3) % 4]);
  }
  const __m128i added = kGroup == 0 ? _mm_add_epi32(first_e, words) : _mm_sha1nexte_epu32(chain.e, words);
  chain.e = chain.abcd;
  chain.abcd = _mm_sha1rnds4_epu32(chain.abcd, added, kGroup / 5);
}

template <int kCount, int kGroup = 0>
inline __attribute__((always_inline)) void all_rounds(Chain (&chains)[kCount], const __m128i (&first_e)[kCount]) {
  if constexpr (kGroup < 20) {
    for (int i = 0; i < kCount; ++i) four_rounds<kGroup>(chains[i], first_e[i]);
    all_rounds<kCount, kGroup + 1>(chains, first_e);
  }
}

template <int kCount>
void hash(HashMessage* const* messages, int64_t blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f);
  constexpr int kReversed = 0x1b;
  __m128i abcd[kCount], e[kCount];
  const uint8_t* next[kCount];
  for (int i = 0; i < kCount; ++i) {
    std::memcpy(&abcd[i], messages[i]->state, sizeof abcd[i]);
    abcd[i] = _mm_shuffle_epi32(abcd[i], kReversed);
    e[i] = _mm_set_epi32(static_cast<int>(messages[i]->state[4]), 0, 0, 0);
    next[i] = messages[i]->next;
  }
  for (int64_t block = 0; block < blocks; ++block) {
    Chain chains[kCount];
    for (int i = 0; i < kCount; ++i) {
      chains[i].abcd = abcd[i];
      chains[i].e = _mm_setzero_si128();
      for (__m128i& words : chains[i].words) {
        std::memcpy(&words, next[i], sizeof words);
        words = _mm_shuffle_epi8(words, big_endian);
        next[i] += sizeof words;
      }
    }
    all_rounds(chains, e);
    for (int i = 0; i < kCount; ++i) {
      abcd[i] = _mm_add_epi32(abcd[i], chains[i].abcd);
      e[i] = _mm_sha1nexte_epu32(chains[i].e, e[i]);
    }
  }
  for (int i = 0; i < kCount; ++i) {
    abcd[i] = _mm_shuffle_epi32(abcd[i], kReversed);
    std::memcpy(messages[i]->state, &abcd[i], sizeof abcd[i]);
    messages[i]->state[4] = static_cast<uint32_t>(_mm_extract_epi32(e[i], 3));
    messages[i]->next = next[i];
    messages[i]->blocks -= blocks;
  }
}

}  // namespace

void sha1_by_instructions(HashMessage* const* messages, int count, int64_t blocks) {
  switch (count) {
    case 1: return hash<1>(messages, blocks);
    case 2: return hash<2>(messages, blocks);
    case 3: return hash<3>(messages, blocks);
    default: return hash<4>(messages, blocks);
  }
}

}  // namespace opdump
