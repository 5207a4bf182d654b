/* AVX2 and FMA: vectors of 256 bits. */

#pragma GCC target("avx2,fma")

#include "vectors_256.h"

#define NAME(x) x##_avx2
#define LEVELS 63
#define DOT dot

/* Two products are added in 16 bits: 2 * 127 * 127 fits, with 63 levels of activations. */
INLINE __m256i dot(__m256i sum, __m256i x, __m256i w)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, w), _mm256_set1_epi16(1)));
}

#include "int8.h"
#include "attention.h"
#define HIGH 6 /* rows of a tile of float32.h: as many as registers hold */
#include "beams.h"
#include "float32.h"
#include "steps.h"
