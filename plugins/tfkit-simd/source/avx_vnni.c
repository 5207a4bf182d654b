/* AVX-VNNI: products of bytes with vectors of 256 bits. */

#pragma GCC target("avx2,fma,avxvnni")

#include "vectors_256.h"

#define NAME(x) x##_avx_vnni
#define LEVELS 127
#define DOT dot

/* The instruction itself: around _mm256_dpbusd_avx_epi32 GCC copies every sum twice. */
INLINE __m256i dot(__m256i sum, __m256i x, __m256i w)
{
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(x), "x"(w));
    return sum;
}

#include "int8.h"
