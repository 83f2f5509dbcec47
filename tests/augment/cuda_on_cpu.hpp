// CUDA C++ on one thread of a CPU: the threads of a block are fibers that take turns. Each runs up to its next barrier
// or exchange, so what lacks a barrier sees its neighbours' memory too early or too late, always in the same order.
#include <ucontext.h>

#include <algorithm>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static
#define __restrict__

struct alignas(16) uint4 { unsigned x, y, z, w; };
struct Place { unsigned x; };
static Place threadIdx, blockIdx;
using std::max;
using std::min;

constexpr unsigned FIBERS = 256, STACK = 1 << 16;
static ucontext_t scheduler, fibers[FIBERS];
static unsigned exchanged[FIBERS];

inline void __syncthreads() { swapcontext(&fibers[threadIdx.x], &scheduler); }

inline unsigned __shfl_xor_sync(unsigned, unsigned value, int far) {
    exchanged[threadIdx.x] = value;
    __syncthreads();
    const unsigned got = exchanged[threadIdx.x ^ far];
    __syncthreads();
    return got;
}

template <class T>
inline T atomicAdd(T* place, T value) { return *place += value, *place - value; }

template <class T>
inline T atomicMax(T* place, T value) { return std::exchange(*place, max(*place, value)); }

static void (*body)();
static unsigned ended;

static void begin() {
    body();
    ended++;
}

// Run a kernel, given as a function without arguments, in so many blocks. False if threads disagree about barriers.
static bool run_blocks(unsigned blocks, void (*kernel)()) {
    static std::vector<char> stacks(FIBERS * STACK);
    body = kernel;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        for (unsigned i = 0; i < FIBERS; i++) {
            getcontext(&fibers[i]);
            fibers[i].uc_stack = {&stacks[i * STACK], 0, STACK};
            fibers[i].uc_link = &scheduler;
            makecontext(&fibers[i], begin, 0);
        }
        for (ended = 0; ended == 0;) {
            for (threadIdx.x = 0; threadIdx.x < FIBERS; threadIdx.x++) swapcontext(&scheduler, &fibers[threadIdx.x]);
        }
        if (ended != FIBERS) return false;
    }
    return true;
}
