// Decode attention on a CPU: one new token a sequence, its keys and values read where they lie, nothing gathered.
//
// Built by cpp_build.py for the machine that it runs on. A piece of work is one sequence and some of its KV heads.
// It goes through the blocks twice, once for the scores and once for the weighted sum, TILE tokens at a time, so that
// a tile is in the cache for all heads; the query heads of a KV head go together, so that a key is loaded once.
// All arithmetic is in float, whatever the KV cache holds.

#include <algorithm>
#include <vector>

#include "cpu_vector.h"

namespace {

constexpr int64_t TILE = 16;

// Scores to weights that sum to 1. The row has room for `padded` >= `length` floats, a multiple of 16.
inline void softmax(float* row, int64_t length, int64_t padded) {
    const float best = *std::max_element(row, row + length);
    std::fill(row + length, row + padded, best);
    f16 total{};
    for (int64_t at = 0; at < padded; at += 16) {
        const f16 weight = exp(load(row + at) - best);
        store(row + at, weight);
        total += weight;
    }
    const float norm = 1 / (sum(total) - float(padded - length));
    for (int64_t at = 0; at < padded; at++) row[at] *= norm;
}

// scores[g][i] += query[g] . keys[i], over WIDE * 16 dimensions, for GROUP query heads.
template <int GROUP, int WIDE, typename T>
void add_scores(float* scores, int64_t score_stride, const float* query, int64_t dim, const T* keys, int64_t slot_stride,
                int64_t number) {
    f16 q[GROUP][WIDE];
    for (int g = 0; g < GROUP; g++)
        for (int w = 0; w < WIDE; w++) q[g][w] = load(query + g * dim + w * 16);
    for (int64_t i = 0; i < number; i++) {
        f16 dots[GROUP] = {};
        for (int w = 0; w < WIDE; w++) {
            const f16 k = load(keys + i * slot_stride + w * 16);
            for (int g = 0; g < GROUP; g++) dots[g] += k * q[g][w];
        }
        for (int g = 0; g < GROUP; g++) scores[g * score_stride + i] += sum(dots[g]);
    }
}

// sums[g] += weights[g][i] * values[i], over WIDE * 16 dimensions, for GROUP query heads.
template <int GROUP, int WIDE, typename T>
void add_values(float* weights, int64_t weight_stride, float* sums, int64_t dim, const T* values, int64_t slot_stride,
                int64_t number) {
    f16 out[GROUP][WIDE];
    for (int g = 0; g < GROUP; g++)
        for (int w = 0; w < WIDE; w++) out[g][w] = load(sums + g * dim + w * 16);
    for (int64_t i = 0; i < number; i++)
        for (int w = 0; w < WIDE; w++) {
            const f16 v = load(values + i * slot_stride + w * 16);
            for (int g = 0; g < GROUP; g++) out[g][w] += v * weights[g * weight_stride + i];
        }
    for (int g = 0; g < GROUP; g++)
        for (int w = 0; w < WIDE; w++) store(sums + g * dim + w * 16, out[g][w]);
}

// One tile of one pass, for any group and any head size that is a multiple of 16.
template <typename T, bool SCORES>
void one_tile(float* scores, int64_t stride, float* rows, int64_t group, int64_t dim, const T* tile, int64_t slot_stride,
              int64_t number) {
    const auto part = [&]<int GROUP, int WIDE>(int64_t g, int64_t d) {
        constexpr auto add = [] {
            if constexpr (SCORES) return [](auto... x) { add_scores<GROUP, WIDE, T>(x...); };
            else return [](auto... x) { add_values<GROUP, WIDE, T>(x...); };
        }();
        add(scores + g * stride, stride, rows + g * dim + d, dim, tile + d, slot_stride, number);
    };
    const auto heads = [&]<int GROUP>(int64_t g) {
        int64_t d = 0;
        for (; d + 64 <= dim; d += 64) part.template operator()<GROUP, 4>(g, d);
        for (; d < dim; d += 16) part.template operator()<GROUP, 1>(g, d);
    };
    for (int64_t g = 0; g < group;) {
        const int64_t left = group - g;
        if (left >= 4) heads.template operator()<4>(g), g += 4;
        else if (left == 3) heads.template operator()<3>(g), g += 3;
        else if (left == 2) heads.template operator()<2>(g), g += 2;
        else heads.template operator()<1>(g), g += 1;
    }
}

// Ask for a tile's rows ahead of their use: blocks lie anywhere in memory.
inline void prefetch(const void* start, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch((const char*)start + at);
}

// The caches of one layer and the shapes of a batch.
template <typename T>
struct Layer {
    const T *k_cache, *v_cache;
    int64_t num_kv_heads, group, dim, block_size;
    float scale;
};

// One pass over a sequence's cached tokens, for KV heads first .. first + count - 1.
template <bool SCORES, typename T>
void pass(const Layer<T>& layer, const T* cache, const int32_t* table, int64_t context, int64_t first, int64_t count,
          float* scores, int64_t stride, float* rows) {
    const int64_t slot_stride = layer.num_kv_heads * layer.dim;
    const auto address = [&](int64_t at) {
        const int64_t block = at / layer.block_size;
        return cache + (table[block] * layer.block_size + at % layer.block_size) * slot_stride + first * layer.dim;
    };
    for (int64_t at = 0; at < context;) {
        const int64_t in_block = layer.block_size - at % layer.block_size;
        const int64_t number = std::min({TILE, in_block, context - at});
        const T* tile = address(at);
        if (at + number < context) prefetch(address(at + number), number * slot_stride * int64_t(sizeof(T)));
        for (int64_t head = 0; head < count; head++) {
            const int64_t row = head * layer.group;
            one_tile<T, SCORES>(scores + row * stride + at, stride, rows + row * layer.dim, layer.group, layer.dim,
                                tile + head * layer.dim, slot_stride, number);
        }
        at += number;
    }
}

template <typename T>
void attend(const Layer<T>& layer, const T* query, T* out, const int32_t* table, int64_t context, int64_t first,
            int64_t count, std::vector<float>& scratch) {
    const int64_t rows = count * layer.group, padded = (context + 15) / 16 * 16, size = rows * layer.dim;
    scratch.resize(rows * padded + size);
    float* scores = scratch.data();           // [rows, padded]
    float* sums = scores + rows * padded;     // [rows, dim]: first the queries, then the result
    std::fill(scores, sums, 0.0f);
    for (int64_t i = 0; i < size; i += 16) store(sums + i, load(query + i) * layer.scale);
    pass<true>(layer, layer.k_cache, table, context, first, count, scores, padded, sums);
    for (int64_t row = 0; row < rows; row++) softmax(scores + row * padded, context, padded);
    std::fill(sums, sums + size, 0.0f);
    pass<false>(layer, layer.v_cache, table, context, first, count, scores, padded, sums);
    for (int64_t i = 0; i < size; i += 16) store(out + i, load(sums + i));
}

template <typename T>
void decode(const T* query, const Layer<T>& layer, T* out, const int32_t* tables, const int32_t* lens,
            int64_t num_seqs, int64_t table_stride, int num_threads) {
    const int64_t count = num_seqs >= num_threads ? layer.num_kv_heads : 1, parts = layer.num_kv_heads / count;
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
    {
        std::vector<float> scratch;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < num_seqs * parts; i++) {
            const int64_t seq = i / parts, first = i % parts * count;
            const int64_t at = (seq * layer.num_kv_heads + first) * layer.group * layer.dim;
            attend(layer, query + at, out + at, tables + seq * table_stride, lens[seq], first, count, scratch);
        }
    }
}

}  // namespace

#define DECODE(name, T)                                                                                            \
    extern "C" void name(const void* query, const void* k_cache, const void* v_cache, void* out,                   \
                         const int32_t* tables, const int32_t* lens, int64_t num_seqs, int64_t table_stride,       \
                         int64_t num_kv_heads, int64_t group, int64_t dim, int64_t block_size, float scale,        \
                         int num_threads) {                                                                        \
        const Layer<T> layer{(const T*)k_cache, (const T*)v_cache, num_kv_heads, group, dim, block_size, scale};   \
        decode((const T*)query, layer, (T*)out, tables, lens, num_seqs, table_stride, num_threads);                \
    }

DECODE(decode_float32, float)
DECODE(decode_bfloat16, bf16)
