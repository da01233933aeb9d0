// The rounds of SHA-1 (FIPS 180-4). Compiled once per instruction set, with OPDUMP_KERNELS as the namespace.
#include "hash_lanes.h"
#include "join.h"
#include "lanes.h"

namespace opdump {
namespace OPDUMP_KERNELS {
namespace {

struct Sha1 {
  static constexpr int kWords = 5;
  // The words of the schedule and the state fill the registers, so only as many lanes at a time as fit into one.
  static constexpr int kWidth = kVectorBytes / 4;

  template <class Word>
  static Word rotate(const Word& x, int shift) {
    return (x << shift) | (x >> (32 - shift));
  }

  // Words are big-endian.
  template <class Word>
  static Word swapped(const Word& x) {
    if constexpr (std::is_same_v<Word, uint32_t>) {
      return __builtin_bswap32(x);
    } else {
      const Word outer = (x << 24) | (x >> 24);
      return outer | ((x & 0xff00U) << 8) | ((x >> 8) & 0xff00U);
    }
  }

  template <int kRound, class Word>
  static Word mixed(const Word& b, const Word& c, const Word& d) {
    if constexpr (kRound < 20) {
      return (d ^ (b & (c ^ d))) + 0x5a827999U;
    } else if constexpr (kRound < 40) {
      return (b ^ c ^ d) + 0x6ed9eba1U;
    } else if constexpr (kRound < 60) {
      return ((b & c) | (d & (b | c))) + 0x8f1bbcdcU;
    } else {
      return (b ^ c ^ d) + 0xca62c1d6U;
    }
  }

  template <class Word>
  static inline void compress(Word (&state)[5], Word (&words)[16]) {
    Word a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    each<80>(OPDUMP_STEP(round) {
      constexpr int i = decltype(round)::value;
      Word& word = words[i % 16];
      if constexpr (i < 16) {
        word = swapped(word);
      } else {
        word = rotate<Word>(words[(i + 13) % 16] ^ words[(i + 8) % 16] ^ words[(i + 2) % 16] ^ word, 1);
      }
      const Word sum = rotate(a, 5) + (mixed<i>(b, c, d) + (e + word));
      e = d;
      d = c;
      c = rotate(b, 30);
      b = a;
      a = sum;
    });
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
  }
};

}  // namespace
}  // namespace OPDUMP_KERNELS

extern const HashFunctions OPDUMP_JOIN(OPDUMP_KERNELS, _sha1);
const HashFunctions OPDUMP_JOIN(OPDUMP_KERNELS, _sha1) = {OPDUMP_KERNELS::hash_lanes<OPDUMP_KERNELS::Sha1>,
                                                          OPDUMP_KERNELS::hash_single<OPDUMP_KERNELS::Sha1>};

}  // namespace opdump
