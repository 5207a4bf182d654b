/* AVX-VNNI: products of bytes with vectors of 256 bits. */

#pragma GCC target("avx2,fma,avxvnni")

#include "vectors_256.h"

#define NAME(x) x##_avx_vnni
#define LEVELS 127
#define DOT _mm256_dpbusd_avx_epi32

#include "int8.h"
