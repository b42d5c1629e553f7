// Matrix products in bf16 for processors that multiply it (AVX512-BF16): out = x * weight^T + bias.
//
// The weight lies in panels of 16 outputs, [outputs / 16][inputs / 2][16][2], so that it is read from memory once, in
// order: at a decode's few rows that is what takes the time. A tile holds ROWS x PANELS sums in registers; the
// rows of x stay in the cache. Sums are in float. Built by cpp_build.py.

#include "cpu_vector.h"

#if defined(__AVX512BF16__) && defined(__AVX512VL__)
#include <immintrin.h>

namespace {

struct Product {
    const bf16 *x, *weight, *bias;
    bf16* out;
    int64_t num_rows, num_in, num_out;
};

constexpr int64_t AHEAD = 1024;  // bytes that are asked for before they are needed

template <int ROWS, int PANELS>
void tile(const Product& p, int64_t row, int64_t panel) {
    const bf16* x = p.x + row * p.num_in;
    const bf16* weight = p.weight + panel * 16 * p.num_in;
    __m512 sums[ROWS][PANELS];
    for (int m = 0; m < ROWS; m++)
        for (int n = 0; n < PANELS; n++)
            sums[m][n] = p.bias ? (__m512)load(p.bias + (panel + n) * 16) : _mm512_setzero_ps();
    for (int64_t k = 0; k < p.num_in; k += 2) {
        __m512bh w[PANELS];
        for (int n = 0; n < PANELS; n++) {
            const bf16* at = weight + (n * p.num_in + k) * 16;
            w[n] = (__m512bh)_mm512_loadu_si512(at);
            _mm_prefetch((const char*)at + AHEAD, _MM_HINT_T0);
        }
        for (int m = 0; m < ROWS; m++) {
            int32_t pair;
            std::memcpy(&pair, x + m * p.num_in + k, 4);
            const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
            for (int n = 0; n < PANELS; n++) sums[m][n] = _mm512_dpbf16_ps(sums[m][n], w[n], both);
        }
    }
    for (int m = 0; m < ROWS; m++)
        for (int n = 0; n < PANELS; n++) {
            const __m256bh rounded = _mm512_cvtneps_pbh(sums[m][n]);
            std::memcpy(p.out + (row + m) * p.num_out + (panel + n) * 16, &rounded, sizeof rounded);
        }
}

template <int ROWS, int PANELS>
void panels(const Product& p, int64_t panel) {
    int64_t row = 0;
    for (; row + ROWS <= p.num_rows; row += ROWS) tile<ROWS, PANELS>(p, row, panel);
    if constexpr (ROWS > 4)
        if (row + 4 <= p.num_rows) tile<4, PANELS>(p, row, panel), row += 4;
    for (; row < p.num_rows; row++) tile<1, PANELS>(p, row, panel);
}

// Few rows: two panels at a time, for twelve rows of sums. One or many rows: four panels (measured).
template <int PANELS>
void product(const Product& p, int num_threads) {
    constexpr int ROWS = PANELS == 2 ? 12 : 6;
    const int64_t count = p.num_out / 16, rest = count % PANELS;
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1)
    for (int64_t panel = 0; panel < count - rest; panel += PANELS) panels<ROWS, PANELS>(p, panel);
    for (int64_t panel = count - rest; panel < count; panel++) panels<8, 1>(p, panel);
}

}  // namespace

extern "C" int linear_works() { return 1; }

extern "C" void linear_bfloat16(const void* x, const void* weight, const void* bias, void* out, int64_t num_rows,
                                int64_t num_in, int64_t num_out, int num_threads) {
    const Product p{(const bf16*)x, (const bf16*)weight, (const bf16*)bias, (bf16*)out,
                    num_rows, num_in, num_out};
    if (num_rows > 4 && num_rows <= 16) product<2>(p, num_threads);
    else product<4>(p, num_threads);
}

#else

extern "C" int linear_works() { return 0; }
extern "C" void linear_bfloat16() {}

#endif
