// Threads that share the chunks of one large tensor. Not OpenMP: its spinning barriers stall for whole scheduler slices
// when another process holds a core.
#pragma once

#include <cstdint>

namespace opdump {

// The number of threads that work on a large tensor, including the caller; initially the number of usable processors.
int threads();
void set_threads(int count);

// Calls task(context, i) once for every i < tasks, on this thread and on as many of the pool's as wake up in time, and
// returns when all calls have. If the pool is busy with another caller's tasks, this thread does all of its own.
void run_parallel(void (*task)(void* context, int64_t index), void* context, int64_t tasks);

}  // namespace opdump
