#include "pool.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

namespace opdump {
namespace {

// More threads gain nothing: the memory bus is saturated with fewer.
constexpr int kMostThreads = 16;

int usable_processors() {
#if defined(__linux__)
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof usable, &usable) == 0) return CPU_COUNT(&usable);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

int clamp_threads(int count) { return count < 1 ? 1 : count > kMostThreads ? kMostThreads : count; }

std::atomic<int>& wanted_threads() {
  static std::atomic<int> count{clamp_threads(usable_processors())};
  return count;
}

struct Work {
  void (*task)(void* context, int64_t index);
  void* context;
  int64_t tasks;
  std::atomic<int64_t> next{0};

  void run() {
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < tasks;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      task(context, i);
    }
  }
};

class Pool {
 public:
  void run(Work& work, int helpers) {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      while (started_ < helpers) {
        try {
          std::thread([this] { serve(); }).detach();
        } catch (const std::exception&) {
          break;  // no more threads or memory: the existing threads and the caller do the work
        }
        ++started_;
      }
      work_ = &work;
      places_ = helpers;
    }
    wake_.notify_all();
    work.run();
    std::unique_lock<std::mutex> hold(mutex_);
    work_ = nullptr;  // a helper that wakes up later finds no work, and is not waited for
    left_.wait(hold, [this] { return working_ == 0; });
  }

  std::mutex callers;

 private:
  void serve() {
    std::unique_lock<std::mutex> hold(mutex_);
    for (;;) {
      wake_.wait(hold, [this] { return work_ != nullptr && places_ > 0; });
      Work* work = work_;
      --places_;
      ++working_;
      hold.unlock();
      work->run();
      hold.lock();
      if (--working_ == 0) left_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable left_;
  Work* work_ = nullptr;
  int places_ = 0;
  int working_ = 0;
  int started_ = 0;
};

// Never destroyed: its threads sleep on it until the process ends. A forked child inherits the object without its
// threads, and perhaps with locked mutexes, so it does not touch the parent's pool and makes its own.
struct PoolOfProcess {
  pid_t process;
  Pool pool;
};

Pool& pool_of_this_process() {
  static std::atomic<PoolOfProcess*> current{nullptr};
  const pid_t process = getpid();
  PoolOfProcess* found = current.load(std::memory_order_acquire);
  while (found == nullptr || found->process != process) {
    PoolOfProcess* made = new PoolOfProcess{process, {}};
    if (current.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return made->pool;
    delete made;
  }
  return found->pool;
}

}  // namespace

int threads() { return wanted_threads().load(std::memory_order_relaxed); }

void set_threads(int count) { wanted_threads().store(clamp_threads(count), std::memory_order_relaxed); }

void run_parallel(void (*task)(void* context, int64_t index), void* context, int64_t tasks) {
  Work work{task, context, tasks};
  const int64_t helpers = (tasks < threads() ? tasks : threads()) - 1;
  if (helpers > 0) {
    Pool& pool = pool_of_this_process();
    std::unique_lock<std::mutex> mine(pool.callers, std::try_to_lock);
    if (mine.owns_lock()) {
      pool.run(work, static_cast<int>(helpers));
      return;
    }
  }
  work.run();
}

}  // namespace opdump
