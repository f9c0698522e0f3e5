// Threads that run the chunks of one parallel loop at a time.
//
// Chunks are handed out by a counter, so a thread that the system has descheduled costs at most the chunk it
// holds. What a chunk computes never depends on who runs it: results are the same for any number of threads.
// Workers spin for a moment after each loop, since the next kernel of a step follows within microseconds, and
// then sleep on a futex.
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace tessera {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class Pool {
 public:
  using Body = void (*)(void* context, int64_t chunk);


  // The pool of this process. A forked child gets a fresh one: threads do not survive fork.
  static Pool& instance() {
    if (!current_) {
      pthread_once(&fork_handler_, [] { pthread_atfork(nullptr, nullptr, [] { current_ = nullptr; }); });
      current_ = new Pool;
      current_->set_threads(threads_);
    }
    return *current_;
  }

  // Threads for the loops to come, the calling one included. Threads once started stay, asleep.
  void set_threads(int count) {
    std::lock_guard<std::mutex> lock(busy_);
    while (workers_ < count - 1) {
      const int index = ++workers_;
      std::thread([this, index] { work(index); }).detach();
    }
    active_.store(count - 1, std::memory_order_relaxed);
    threads_ = count;
  }

  int threads() const { return active_.load(std::memory_order_relaxed) + 1; }

  // Runs body(context, i) for i in 0..chunks-1. A second caller at the same time runs its loop alone.
  void run(int64_t chunks, Body body, void* context) {
    std::unique_lock<std::mutex> lock(busy_, std::try_to_lock);
    if (chunks <= 1 || !lock || active_.load(std::memory_order_relaxed) == 0) {
      for (int64_t i = 0; i < chunks; ++i) body(context, i);
      return;
    }
    body_ = body;
    context_ = context;
    done_.store(0, std::memory_order_relaxed);
    ticket_.store(static_cast<uint64_t>(chunks) << kBits, std::memory_order_seq_cst);
    wake_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) futex(FUTEX_WAKE_PRIVATE, INT_MAX);
    while (claim()) {
    }
    for (int spin = 0; done_.load(std::memory_order_acquire) != chunks; ++spin) {
      pause();
      if (spin >= kSpins) std::this_thread::yield();
    }
  }

 private:
  static constexpr int kBits = 32;
  static constexpr uint64_t kNext = (1ull << kBits) - 1;
  static constexpr int kSpins = 4000;

  // One word holds the number of chunks and the next one, so that a claim sees both of the same loop, even
  // when a new loop has begun meanwhile. Late threads may push `next` past the end, by one each.
  bool claim() {
    const uint64_t seen = ticket_.load(std::memory_order_acquire);
    if ((seen & kNext) >= seen >> kBits) return false;
    const uint64_t mine = ticket_.fetch_add(1, std::memory_order_acq_rel);
    const uint64_t chunk = mine & kNext;
    if (chunk >= mine >> kBits) return false;
    body_(context_, static_cast<int64_t>(chunk));  // stable: this loop cannot end before the line below
    done_.fetch_add(1, std::memory_order_release);
    return true;
  }

  void work(int index) {
    for (;;) {
      const uint32_t wake = wake_.load(std::memory_order_seq_cst);
      bool idle = true;
      if (index <= active_.load(std::memory_order_relaxed)) {
        for (int spin = 0; spin < kSpins; ++spin) {
          if (claim()) {
            idle = false;
            break;
          }
          pause();
        }
      }
      if (!idle) continue;
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      futex(FUTEX_WAIT_PRIVATE, wake);  // returns at once if a loop came after `wake` was read
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

  void futex(int operation, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&wake_), operation, value, nullptr, nullptr, 0);
  }

  static inline Pool* current_ = nullptr;
  static inline int threads_ = 1;
  static inline pthread_once_t fork_handler_ = PTHREAD_ONCE_INIT;

  std::mutex busy_;
  std::atomic<int> active_{0};
  int workers_ = 0;
  Body body_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int64_t> done_{0};
  alignas(64) std::atomic<uint32_t> wake_{0};
  std::atomic<int> sleepers_{0};
};

template <class F>
void parallel_for(int64_t chunks, const F& body) {
  const auto call = [](void* context, int64_t i) { (*static_cast<const F*>(context))(i); };
  Pool::instance().run(chunks, call, const_cast<F*>(&body));
}

// Scratch memory of the calling thread, 64-byte aligned, grown on demand and kept. One buffer per `Slot`.
template <int Slot, class T>
T* scratch(int64_t count) {
  struct Buffer {
    void* data = nullptr;
    size_t bytes = 0;
    ~Buffer() { free(data); }
  };
  static thread_local Buffer buffer;
  const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
  if (bytes > buffer.bytes) {
    free(buffer.data);
    buffer.data = aligned_alloc(64, bytes);
    buffer.bytes = bytes;
  }
  return static_cast<T*>(buffer.data);
}

}  // namespace tessera
