// The small operations between the matrices of a transformer, each in one pass over its numbers. As in PyTorch, all
// arithmetic is in float, and results are rounded to the weights' type where the model rounds them.

#include <cmath>

#include "cpu_vector.h"

namespace {

template <typename T>
inline f16 rounded(f16 x) {
    T out[16];
    store(out, x);
    return load(out);
}

// out = x / root mean square(x) * weight, for each row; dim is a multiple of 16.
template <typename T>
void rms_norm(const T* x, const T* weight, T* out, int64_t rows, int64_t dim, float eps) {
    for (int64_t row = 0; row < rows; row++, x += dim, out += dim) {
        f16 squares{};
        for (int64_t d = 0; d < dim; d += 16) {
            const f16 values = load(x + d);
            squares += values * values;
        }
        const float scale = 1 / std::sqrt(sum(squares) / float(dim) + eps);
        for (int64_t d = 0; d < dim; d += 16) store(out + d, rounded<T>(load(x + d) * scale) * load(weight + d));
    }
}

// out = silu(gate) * up, where each row holds gate and up after one another; dim is a multiple of 16.
template <typename T>
void silu_and_mul(const T* gate_up, T* out, int64_t rows, int64_t dim) {
    for (int64_t row = 0; row < rows; row++, gate_up += 2 * dim, out += dim)
        for (int64_t d = 0; d < dim; d += 16) {
            const f16 gate = load(gate_up + d);
            store(out + d, rounded<T>(gate / (exp(-gate) + 1.0f)) * load(gate_up + dim + d));
        }
}

// Each head's two halves turned against each other by its token's angles; half is a multiple of 16.
template <typename T>
void rotate(const T* x, const T* cos, const T* sin, T* out, int64_t tokens, int64_t heads, int64_t half,
            int64_t token_stride) {
    for (int64_t token = 0; token < tokens; token++, x += token_stride, cos += half, sin += half)
        for (int64_t head = 0; head < heads; head++, out += 2 * half)
            for (int64_t d = 0; d < half; d += 16) {
                const T* at = x + head * 2 * half + d;
                const f16 a = load(at), b = load(at + half), c = load(cos + d), s = load(sin + d);
                store(out + d, a * c - b * s);
                store(out + half + d, b * c + a * s);
            }
}

}  // namespace

#define OPERATIONS(suffix, T)                                                                                        \
    extern "C" void rms_norm_##suffix(const void* x, const void* weight, void* out, int64_t rows, int64_t dim,       \
                                      float eps) {                                                                   \
        rms_norm((const T*)x, (const T*)weight, (T*)out, rows, dim, eps);                                            \
    }                                                                                                                \
    extern "C" void silu_and_mul_##suffix(const void* gate_up, void* out, int64_t rows, int64_t dim) {               \
        silu_and_mul((const T*)gate_up, (T*)out, rows, dim);                                                         \
    }                                                                                                                \
    extern "C" void rotate_##suffix(const void* x, const void* cos, const void* sin, void* out, int64_t tokens,      \
                                    int64_t heads, int64_t half, int64_t token_stride) {                             \
        rotate((const T*)x, (const T*)cos, (const T*)sin, (T*)out, tokens, heads, half, token_stride);               \
    }

OPERATIONS(float32, float)
OPERATIONS(bfloat16, bf16)
