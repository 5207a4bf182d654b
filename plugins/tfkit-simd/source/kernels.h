/* What the kernels of all instruction sets share. Strides are in numbers. */

#pragma once

#if !defined(__x86_64__) || !defined(__GNUC__) || defined(__clang__)
#error "tfkit-simd is for x86-64 and GCC"
#endif

#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TEXT(x) #x
#define OMP(words) _Pragma(TEXT(omp words))
#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))
#define PANEL 32         /* output channels */
#define MANY 128         /* panels of a head */
#define GROUP 16         /* panels of a head that are computed side by side */
#define SMALLEST 1e-30f  /* the scale of a row is at least that of this number */
#define CHUNK 262144     /* bytes of activations that are multiplied with all weights before the next */
#define LINE 16          /* numbers of a cache line */
#define FETCHED 2048     /* keys and values of the next head that are fetched early, in numbers: 16 KB, half of an L1 cache */
#define FINGERPRINT 64   /* numbers of a fingerprint */
#define PARALLEL 2000000 /* multiplications from which several threads are faster */

struct int8_product {
    const float *x;
    float *y;
    const int8_t *panels;
    const float *scales;
    const int32_t *starts;
    const float *bias;
    int64_t rows, stride, inner, outer;
};

/* Panels as in float32.h; `stride` from row to row of x. */
struct float32_product {
    const float *x;
    float *y;
    const float *panels, *bias;
    int64_t rows, stride, inner, outer;
};

/* Strides are by batch row, head and position; the last axis is contiguous. That of `added` has the live keys. */
struct attention {
    const float *query, *key, *value;
    float *output, *lse;
    const int32_t *index, *counts; /* the live keys of each batch row (live_rows 1) or of all (0), NULL if all keys are */
    const float *added;
    int64_t batch, heads, key_heads, queries, keys, width, live_rows;
    int64_t query_strides[3], key_strides[3], value_strides[3], added_strides[3];
    float scale;
};

/* Arrays (sentences, beams, vocabulary), (sentences, beams), and three of (sentences, count) for the results. */
struct beam_top_k {
    const float *logits, *totals;
    float *values, *log_probs;
    int64_t *indices;
    int64_t sentences, beams, vocabulary, count;
};

/* An operation of a recorded step (steps.h): what it does, to `data[0]` from the others, with their sizes and strides in bytes. */
enum { MAP, REDUCE, LAYER_NORM, TAKE_ROWS, LIVE_KEYS, SLOTS, PRODUCT, INT8_PRODUCT, REFINE, LISTED, ATTEND };
enum { COPY, ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, POW, NEG, ABS, RELU, SIN, COS, EXP, LOG, TANH, SIGMOID, SILU, GELU, GELU_TANH,
    ERF, SQRT, RSQRT, LT, LE, GT, GE, EQ, NE, AND, OR, NOT, WHERE };
enum { SUM, MEAN, LARGEST, ANY, ALL };
enum { FLOAT32, FLOAT64, INT64, BOOL };

struct operation {
    int64_t code, function, sizes[4], strides[4][4], types[4];
    char *data[4];
    double x;
    const char *place;    /* the number of the position that is written, or the counts of live keys */
    int64_t place_stride; /* bytes from one position to the next */
    int64_t count;        /* positions, or rows of a table */
    const char *more[3];  /* of attention: the live keys, their counts, what is added */
};

/* Greedy decoding of `batch` rows by a recorded step, which reads `ids` and `place` and writes `logits`. Arrays are by row, and
   (batch, width) of the tokens and their log-probabilities. `first` to `last` are the numbers of the tokens to find. The
   `forbidden` tokens are not selected. */
struct greedy {
    const struct operation *operations;
    int64_t count, *ids, *place;
    float *logits;
    int64_t vocabulary, batch, width, first, last, end, *tokens;
    float *log_probs;
    const int64_t *limits;
    int64_t *counts;
    uint8_t *finished;
    const int64_t *forbidden;
    int64_t forbidden_count;
};

/* A beam search by a recorded step (tfkit.plugin.RecordedBeams). Arrays are by sentence, (sentences, width) and
   (sentences, size), those of the levels (steps, sentences, width). `length` is the number of tokens before the first step of
   the search, `first` and `last` those before the first and the last step of this call. `early` is 0 for "never", 1 for True,
   2 for False. */
struct beams {
    const struct operation *operations;
    int64_t count, *ids, *place, *order;
    const float *logits;
    int64_t vocabulary, sentences, width, size, length, first, last, end, early, ranked;
    float *totals;
    const int64_t *limits;
    const float *penalties, *max_penalties;
    const int64_t *forbidden;
    int64_t forbidden_count, *level_rows, *level_tokens;
    float *level_log_probs, *scores, *finished_totals;
    int64_t *lengths;
    uint8_t *ended;
    int64_t *rows, *tokens;
    float *log_probs;
    uint8_t *status;
};

/* A row that is not finite, times the weights that the other rows use. */
static inline void in_float32(const struct int8_product *p, int64_t row, int64_t width)
{
    const float *x = p->x + row * p->stride;
    for (int64_t j = 0; j < p->outer; j++) {
        const int8_t *column = p->panels + j / PANEL * PANEL * width + j % PANEL * 4;
        float sum = 0.0f;
        for (int64_t k = 0; k < p->inner; k++)
            sum += x[k] * (column[k / 4 * 4 * PANEL + k % 4] * p->scales[j]);
        p->y[row * p->outer + j] = p->bias ? sum + p->bias[j] : sum;
    }
}

int int8_product_avx512(const struct int8_product *);
int int8_product_avx_vnni(const struct int8_product *);
int int8_product_avx2(const struct int8_product *);
int attend_avx512(const struct attention *);
int attend_avx2(const struct attention *);
int beam_top_k_avx512(const struct beam_top_k *);
int beam_top_k_avx2(const struct beam_top_k *);
void most_probable_avx512(const float *, int64_t *, int64_t, int64_t);
void most_probable_avx2(const float *, int64_t *, int64_t, int64_t);
int run_step_avx512(const struct operation *, int64_t);
int run_step_avx2(const struct operation *, int64_t);
int run_greedy_avx512(const struct greedy *);
int run_greedy_avx2(const struct greedy *);
int run_beams_avx512(const struct beams *);
int run_beams_avx2(const struct beams *);
void fingerprint_avx512(const float *, int64_t, int32_t *);
void fingerprint_avx2(const float *, int64_t, int32_t *);
void float32_product_avx512(const struct float32_product *);
void float32_product_avx2(const struct float32_product *);
