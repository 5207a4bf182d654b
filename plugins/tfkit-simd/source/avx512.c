/* AVX-512 with VNNI: vectors of 512 bits. */

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")

#include "kernels.h"

#define W 16
#define F __m512
#define I __m512i
#define SET_F _mm512_set1_ps
#define SET_I _mm512_set1_epi32
#define LOAD_F(p) _mm512_loadu_ps(p)
#define LOAD_I(p) _mm512_loadu_si512(p)
#define LOAD_PART(p, n) _mm512_maskz_loadu_ps((n) < W ? (__mmask16)((1u << (n)) - 1) : (__mmask16)-1, p)
#define FIRST(x, n, rest) _mm512_mask_mov_ps(SET_F(rest), (n) < W ? (__mmask16)((1u << (n)) - 1) : (__mmask16)-1, x)
#define STORE_F(p, x) _mm512_storeu_ps(p, x)
#define STORE_I(p, x) _mm512_storeu_si512(p, x)
#define STORE_BYTES(p, x) _mm_storeu_si128((__m128i *)(p), _mm512_cvtepi32_epi8(x))
#define CAST_I _mm512_castps_si512
#define CAST_F _mm512_castsi512_ps
#define TO_F _mm512_cvtepi32_ps
#define ROUND _mm512_cvtps_epi32
#define ROUND_F(x) _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define ADD_I _mm512_add_epi32
#define AND_I _mm512_and_si512
#define MAX_I _mm512_max_epi32
#define SHIFT_I _mm512_slli_epi32
#define SHIFT_DOWN_I _mm512_srli_epi32
#define XOR_I _mm512_xor_si512
#define MUL_I _mm512_mullo_epi32
#define ADD_F _mm512_add_ps
#define SUB_F _mm512_sub_ps
#define MUL_F _mm512_mul_ps
#define DIV_F _mm512_div_ps
#define MAX_F _mm512_max_ps
#define FMA_F _mm512_fmadd_ps
#define ZERO_BELOW(y, x, least) _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, SET_F(least), _CMP_LT_OQ), SET_F(0.0f))
#define ABOVE(x, y) _mm512_cmp_ps_mask(x, y, _CMP_GT_OQ)
#define LARGEST_OF _mm512_reduce_max_ps
#define SUM_OF _mm512_reduce_add_ps
#define NAME(x) x##_avx512
#define LEVELS 127
#define TILE 8
#define ROWS 4
#define DOT dot

/* The instruction itself: around _mm512_dpbusd_epi32 GCC copies every sum twice. */
INLINE __m512i dot(__m512i sum, __m512i x, __m512i w)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
}

#include "int8.h"
#include "attention.h"
#define HIGH 12 /* rows of a tile of float32.h: as many as registers hold */
#include "beams.h"
#include "float32.h"
#include "steps.h"
