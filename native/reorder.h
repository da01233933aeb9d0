// Copies elements from one order in memory to another: transpositions, blocks of channels and back.
//
// copy_strided_pointer and widen_codes of src/opdump/kernels/reference.py, the numpy twin of this file, are the
// specification.
#pragma once

#include <cstdint>

namespace opdump {

// Copies shape[0] * shape[1] * ... elements of `item` bytes (1, 2, 4, 8 or 16). Strides are in bytes and of any sign.
// Elements of the destination must not overlap each other or the source. Alignment is not required.
void reorder(const void* source, void* destination, int64_t item, int dimensions, const int64_t* shape,
             const int64_t* source_strides, const int64_t* destination_strides);

// out[i] = table[codes[i]].
void widen_codes(const uint8_t* codes, int64_t count, const float* table, float* out);

}  // namespace opdump
