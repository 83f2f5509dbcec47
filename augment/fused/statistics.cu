// What an operation must know of the whole image, for images that are counted as they lie in memory: not warped or
// coloured beforehand, at most flipped and looked up. `statistics._statistics` gives the same numbers for any image.
//
// One block of threads takes a share of an image's pixels. Three 16-byte loads are 16 pixels of an image whose values
// are in one piece; of any other, and for what is left at its end, pixels are read byte by byte. Histograms are counted
// in shared memory, one per warp, and added up once.

typedef unsigned char Level;
typedef unsigned int Word;
typedef unsigned long long Count;

constexpr int WARPS = 8, THREADS = 32 * WARPS, COUNTS = 770;
enum Kind { CONTRAST, AUTOCONTRAST, EQUALIZE };

struct Tally {
    Word sum;              // of L: fewer than 2^24 pixels a thread
    Word least[3], most[3];
    Word* bins;            // of this warp, [3][256]
};

template <Kind KIND, bool LOOKS>
__device__ __forceinline__ void add(Tally& tally, const Level* lut, Word red, Word green, Word blue) {
    if (LOOKS) {
        red = lut[red], green = lut[256 + green], blue = lut[512 + blue];
    }
    if (KIND == CONTRAST) {
        tally.sum += (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
    } else if (KIND == AUTOCONTRAST) {
        tally.least[0] = min(tally.least[0], red), tally.most[0] = max(tally.most[0], red);
        tally.least[1] = min(tally.least[1], green), tally.most[1] = max(tally.most[1], green);
        tally.least[2] = min(tally.least[2], blue), tally.most[2] = max(tally.most[2], blue);
    } else {
        atomicAdd(tally.bins + red, 1u);
        atomicAdd(tally.bins + 256 + green, 1u);
        atomicAdd(tally.bins + 512 + blue, 1u);
    }
}

template <Kind KIND, bool LOOKS>
__device__ __forceinline__ void count(
    Tally& tally, const Level* __restrict__ image, const Level* lut, long long s_c, long long s_h, long long s_w,
    int pixels, int width, int groups, int first, int step) {
#pragma unroll 1
    for (int group = first; group < groups; group += step) {
        const uint4* words = reinterpret_cast<const uint4*>(image) + 3ll * group;
        const uint4 a = words[0], b = words[1], c = words[2];
        const Word taken[12] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
#pragma unroll
        for (int value = 0; value < 48; value += 3) {
            add<KIND, LOOKS>(
                tally, lut, taken[value / 4] >> (value % 4 * 8) & 255,
                taken[(value + 1) / 4] >> ((value + 1) % 4 * 8) & 255,
                taken[(value + 2) / 4] >> ((value + 2) % 4 * 8) & 255);
        }
    }
#pragma unroll 1
    for (int pixel = 16 * groups + first; pixel < pixels; pixel += step) {
        const Level* here = image + pixel / width * s_h + pixel % width * s_w;
        add<KIND, LOOKS>(tally, lut, here[0], here[s_c], here[2 * s_c]);
    }
}

__device__ Word summed(Word value) {
    for (int far = 16; far; far /= 2) value += __shfl_xor_sync(0xffffffffu, value, far);
    return value;
}

__device__ Word greatest(Word value) {
    for (int far = 16; far; far /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, far));
    return value;
}

// counts [B, 770], zeros beforehand: the histograms; or for autocontrast 255 - the least and the greatest level, as the
// first two entries of each channel; and the sum of L. `kinds` and `rows` are columns of the plan's words: the number
// of the operation, and which image a block works on. `luts` is null where nothing is looked up. `groups`: how many
// times 16 pixels are read in words.
extern "C" __global__ void __launch_bounds__(THREADS) statistics(
    Count* counts, const Level* images, long long s_n, long long s_c, long long s_h, long long s_w, const int* kinds,
    const int* rows, int words, const Level* luts, int luts_step, int pixels, int width, int groups, int blocks,
    int contrast, int equalize) {
    __shared__ Word bins[WARPS * 768];
    const int row = rows[(long long)(blockIdx.x / blocks) * words], kind = kinds[(long long)row * words];
    const int thread = threadIdx.x, first = blockIdx.x % blocks * THREADS + thread, step = blocks * THREADS;
    const Level* image = images + row * s_n;
    const Level* lut = luts + (long long)row * luts_step;
    Tally tally = {0, {255, 255, 255}, {0, 0, 0}, bins + thread / 32 * 768};
    counts += (long long)row * COUNTS;
    const bool leads = thread % 32 == 0;
#define COUNT(KIND)                                                                                                \
    if (luts)                                                                                                      \
        count<KIND, true>(tally, image, lut, s_c, s_h, s_w, pixels, width, groups, first, step);                   \
    else                                                                                                           \
        count<KIND, false>(tally, image, lut, s_c, s_h, s_w, pixels, width, groups, first, step)
    if (kind == contrast) {
        COUNT(CONTRAST);
        const Word sum = summed(tally.sum);
        if (leads) atomicAdd(counts + 768, (Count)sum);
    } else if (kind == equalize) {
#pragma unroll
        for (int part = 0; part < WARPS * 768; part += THREADS) bins[part + thread] = 0;
        __syncthreads();
        COUNT(EQUALIZE);
        __syncthreads();
#pragma unroll
        for (int part = 0; part < 768; part += THREADS) {
            Word found = 0;
            for (int warp = 0; warp < WARPS; warp++) found += bins[warp * 768 + part + thread];
            if (found) atomicAdd(counts + part + thread, (Count)found);
        }
    } else {
        COUNT(AUTOCONTRAST);
        for (int channel = 0; channel < 3; channel++) {
            const Word low = greatest(255 - tally.least[channel]), high = greatest(tally.most[channel]);
            if (leads) atomicMax(counts + channel * 256, (Count)low), atomicMax(counts + channel * 256 + 1, (Count)high);
        }
    }
}
