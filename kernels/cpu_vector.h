// Sixteen numbers at a time, for the kernels in C++: in one register, or in as many as the processor needs.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

struct bf16 {
    uint16_t bits;
};

typedef float f16 __attribute__((vector_size(64)));
typedef float f8 __attribute__((vector_size(32)));
typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i16 __attribute__((vector_size(64)));
typedef uint32_t u16 __attribute__((vector_size(64)));
typedef uint16_t half16 __attribute__((vector_size(32)));

inline f16 load(const float* x) {
    f16 out;
    std::memcpy(&out, x, sizeof out);
    return out;
}

inline f16 load(const bf16* x) {
    half16 bits;
    std::memcpy(&bits, x, sizeof bits);
    return (f16)(__builtin_convertvector(bits, u16) << 16);
}

inline void store(float* x, f16 values) { std::memcpy(x, &values, sizeof values); }

inline void store(bf16* x, f16 values) {  // to the nearest, ties to even
    const u16 bits = (u16)values;
    const half16 out = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, half16);
    std::memcpy(x, &out, sizeof out);
}

inline float sum(f16 x) {
    f8 low, high;
    std::memcpy(&low, &x, 32);
    std::memcpy(&high, (const char*)&x + 32, 32);
    low += high;
    f4 a, b;
    std::memcpy(&a, &low, 16);
    std::memcpy(&b, (const char*)&low + 16, 16);
    a += b;
    return (a[0] + a[1]) + (a[2] + a[3]);
}

// exp(x) to one part in ten million: 2^n * e^f with |f| <= ln 2 / 2, e^f by a polynomial (Cephes).
inline f16 exp(f16 x) {
    x = x < -87.0f ? f16{} - 87.0f : x;
    x = x > 88.0f ? f16{} + 88.0f : x;
    const f16 round = f16{} + 12582912.0f;  // 1.5 * 2^23: with it added, only a whole number is left
    const f16 n = (x * 1.44269504f + round) - round;
    const f16 f = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
    f16 p = f * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * f * f + f + 1.0f;
    return p * (f16)((__builtin_convertvector(n, i16) + 127) << 23);
}

}  // namespace
