/* The operations of int8.h and attention.h with vectors of 256 bits. */

#pragma once

#include "kernels.h"

#define W 8
#define F __m256
#define I __m256i
#define SET_F _mm256_set1_ps
#define SET_I _mm256_set1_epi32
#define LOAD_F(p) _mm256_loadu_ps(p)
#define LOAD_I(p) _mm256_loadu_si256((const __m256i *)(p))
#define LANES _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)
#define LOWER(n) _mm256_cmpgt_epi32(SET_I((n) < W ? (int)(n) : W), LANES)
#define LOAD_PART(p, n) _mm256_maskload_ps(p, LOWER(n))
#define FIRST(x, n, rest) _mm256_blendv_ps(SET_F(rest), x, CAST_F(LOWER(n)))
#define STORE_F(p, x) _mm256_storeu_ps(p, x)
#define STORE_I(p, x) _mm256_storeu_si256((__m256i *)(p), x)
#define STORE_BYTES(p, x) _mm_storel_epi64((__m128i *)(p), bytes_of(x))
#define CAST_I _mm256_castps_si256
#define CAST_F _mm256_castsi256_ps
#define TO_F _mm256_cvtepi32_ps
#define ROUND _mm256_cvtps_epi32
#define ROUND_F(x) _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define ADD_I _mm256_add_epi32
#define AND_I _mm256_and_si256
#define MAX_I _mm256_max_epi32
#define SHIFT_I _mm256_slli_epi32
#define SHIFT_DOWN_I _mm256_srli_epi32
#define XOR_I _mm256_xor_si256
#define MUL_I _mm256_mullo_epi32
#define ADD_F _mm256_add_ps
#define SUB_F _mm256_sub_ps
#define MUL_F _mm256_mul_ps
#define DIV_F _mm256_div_ps
#define MAX_F _mm256_max_ps
#define FMA_F _mm256_fmadd_ps
#define ZERO_BELOW(y, x, least) _mm256_andnot_ps(_mm256_cmp_ps(x, SET_F(least), _CMP_LT_OQ), y)
#define ABOVE(x, y) (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_GT_OQ))
#define LARGEST_OF largest_of
#define SUM_OF sum_of
#define TILE 2
#define ROWS 2

INLINE __m128i bytes_of(__m256i x)
{
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    return _mm_packus_epi16(words, words);
}

INLINE float largest_of(__m256 x)
{
    __m128 most = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}

INLINE float sum_of(__m256 x)
{
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
