/* output_i = sum_j p_ij v_j / sum_j p_ij,   p_ij = exp(scale q_i k_j + added_ij - m_i),   m_i the largest score of row i,

   for one instruction set; see int8.h for the macros. Rows i are the queries of all query heads of one key head. Keys that no
   query sees are not read. The sums of a row do not depend on the rows beside it. */

/* The sums of the lanes of W vectors, as one vector. */
INLINE F NAME(sums)(F *v)
{
#if W == 16
    const I low[4] = {
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
        _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
        _mm512_setr_epi32(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
        _mm512_setr_epi32(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)};
    const I high[4] = {
        _mm512_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31),
        _mm512_setr_epi32(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31),
        _mm512_setr_epi32(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31),
        _mm512_setr_epi32(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)};
#define PAIR(level, a, b) \
    ADD_F(_mm512_permutex2var_ps(a, low[level], b), _mm512_permutex2var_ps(a, high[level], b))
    UNROLL
    for (int level = 0; level < 4; level++)
        UNROLL
        for (int i = 0; i < 8 >> level; i++)
            v[i] = PAIR(level, v[i], v[i + (8 >> level)]);
    return v[0];
#undef PAIR
#else
    F a = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    F b = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
    return ADD_F(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
#endif
}

/* e^x for x <= 0, with an error of at most 2 units in the last place; 0 below -87.3. NaN stays NaN. */
INLINE F NAME(exponential)(F x)
{
    x = MAX_F(SET_F(-104.0f), x); /* of a NaN the second operand is returned */
    const F n = ROUND_F(MUL_F(x, SET_F(1.44269504088896341f)));
    F r = FMA_F(n, SET_F(-0.693359375f), x); /* ln 2 in two parts */
    r = FMA_F(n, SET_F(2.12194440e-4f), r);
    F y = SET_F(1.9875691500e-4f);
    y = FMA_F(y, r, SET_F(1.3981999507e-3f));
    y = FMA_F(y, r, SET_F(8.3334519073e-3f));
    y = FMA_F(y, r, SET_F(4.1665795894e-2f));
    y = FMA_F(y, r, SET_F(1.6666665459e-1f));
    y = FMA_F(y, r, SET_F(5.0000001201e-1f));
    y = ADD_F(FMA_F(y, MUL_F(r, r), r), SET_F(1.0f));
    y = MUL_F(y, CAST_F(SHIFT_I(ADD_I(ROUND(n), SET_I(127)), 23)));
    return ZERO_BELOW(y, x, -87.33654f);
}

/* `rows` rows of one key head. `scores` holds rows x padded floats, `padded` a multiple of W. */
INLINE void NAME(rows)(
    const int rows, const int chunks, const struct attention *a, int64_t b, int64_t g, int64_t first, float *scores)
{
    const int64_t queries = a->queries, group = a->heads / a->key_heads, width = chunks * W;
    const int64_t live = a->counts ? a->counts[b * a->live_rows] : a->keys, padded = (live + W - 1) / W * W;
    const int32_t *index = a->index ? a->index + b * a->live_rows * a->keys : NULL;
    const float *key = a->key + b * a->key_strides[0] + g * a->key_strides[1];
    const float *value = a->value + b * a->value_strides[0] + g * a->value_strides[1];
    const float *query[ROWS], *added[ROWS];
    float *output[ROWS];
    F most[ROWS], sum[ROWS];
    float total[ROWS];
    UNROLL
    for (int r = 0; r < rows; r++) {
        const int64_t h = g * group + (first + r) / queries, i = (first + r) % queries;
        query[r] = a->query + b * a->query_strides[0] + h * a->query_strides[1] + i * a->query_strides[2];
        added[r] = a->added ? a->added + b * a->added_strides[0] + h * a->added_strides[1] + i * a->added_strides[2] : NULL;
        output[r] = a->output + ((b * queries + i) * a->heads + h) * width;
        most[r] = SET_F(-INFINITY);
        sum[r] = SET_F(0.0f);
    }
    for (int64_t j = 0; j < live; j += W) {
        F dots[ROWS][W];
        UNROLL
        for (int lane = 0; lane < W; lane++) {
            /* Lanes behind the last key repeat it; they are hidden below. */
            const int64_t at = j + lane < live ? j + lane : live - 1;
            const float *k = key + (index ? index[at] : at) * a->key_strides[2];
            UNROLL
            for (int r = 0; r < rows; r++)
                dots[r][lane] = MUL_F(LOAD_F(query[r]), LOAD_F(k));
            UNROLL
            for (int c = 1; c < chunks; c++) {
                const F part = LOAD_F(k + c * W);
                UNROLL
                for (int r = 0; r < rows; r++)
                    dots[r][lane] = FMA_F(LOAD_F(query[r] + c * W), part, dots[r][lane]);
            }
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            F score = MUL_F(NAME(sums)(dots[r]), SET_F(a->scale));
            if (added[r])
                score = ADD_F(score, LOAD_PART(added[r] + j, live - j));
            score = FIRST(score, live - j, -INFINITY);
            STORE_F(scores + r * padded + j, score);
            most[r] = MAX_F(most[r], score);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        const float largest = LARGEST_OF(most[r]);
        const F level = SET_F(largest == -INFINITY ? 0.0f : largest); /* of a row that sees no key every p is 0 */
        for (int64_t j = 0; j < padded; j += W) {
            const F p = NAME(exponential)(SUB_F(LOAD_F(scores + r * padded + j), level));
            STORE_F(scores + r * padded + j, p);
            sum[r] = ADD_F(sum[r], p);
        }
        total[r] = SUM_OF(sum[r]);
        if (a->lse) {
            const int64_t h = g * group + (first + r) / queries, i = (first + r) % queries;
            a->lse[(b * a->heads + h) * queries + i] = total[r] == 0.0f ? -INFINITY : largest + logf(total[r]);
        }
    }
    for (int start = 0; start < chunks; start += 4) { /* up to four vectors of every output at a time */
        F found[ROWS][4];
        const int columns = chunks - start < 4 ? chunks - start : 4;
        UNROLL
        for (int r = 0; r < rows; r++)
            UNROLL
            for (int c = 0; c < 4; c++)
                found[r][c] = SET_F(0.0f);
        for (int64_t j = 0; j < live; j++) {
            const float *v = value + (index ? index[j] : j) * a->value_strides[2] + start * W;
            F part[4] = {SET_F(0.0f), SET_F(0.0f), SET_F(0.0f), SET_F(0.0f)};
            UNROLL
            for (int c = 0; c < columns; c++)
                part[c] = LOAD_F(v + c * W);
            UNROLL
            for (int r = 0; r < rows; r++) {
                const F p = SET_F(scores[r * padded + j]);
                UNROLL
                for (int c = 0; c < columns; c++)
                    found[r][c] = FMA_F(p, part[c], found[r][c]);
            }
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            const F by = SET_F(total[r] == 0.0f ? 1.0f : total[r]);
            UNROLL
            for (int c = 0; c < columns; c++)
                STORE_F(output[r] + (start + c) * W, DIV_F(found[r][c], by));
        }
    }
}

INLINE void NAME(head)(
    const int chunks, const struct attention *a, int64_t b, int64_t g, float *scores)
{
    const int64_t rows = a->heads / a->key_heads * a->queries;
    for (int64_t first = 0; first < rows; first += ROWS)
        switch (rows - first) {
        case 1: NAME(rows)(1, chunks, a, b, g, first, scores); break;
#if ROWS > 2
        case 2: NAME(rows)(2, chunks, a, b, g, first, scores); break;
        case 3: NAME(rows)(3, chunks, a, b, g, first, scores); break;
#endif
        default: NAME(rows)(ROWS, chunks, a, b, g, first, scores);
        }
}

/* Asks the memory for the first keys and values of a head, at most FETCHED numbers of each. A cache has a short piece of memory
   for every head, and the processor does not foresee where the next piece begins. Long pieces it reads ahead by itself. */
INLINE void NAME(fetch)(const struct attention *a, int64_t b, int64_t g)
{
    const int64_t live = a->counts ? a->counts[b * a->live_rows] : a->keys, most = FETCHED / a->width;
    if (live > 2 * most)
        return;
    const int32_t *index = a->index ? a->index + b * a->live_rows * a->keys : NULL;
    const float *key = a->key + b * a->key_strides[0] + g * a->key_strides[1];
    const float *value = a->value + b * a->value_strides[0] + g * a->value_strides[1];
    for (int64_t j = 0; j < live && j < most; j++) {
        const int64_t at = index ? index[j] : j;
        for (int64_t c = 0; c < a->width; c += LINE) {
            __builtin_prefetch(key + at * a->key_strides[2] + c);
            __builtin_prefetch(value + at * a->value_strides[2] + c);
        }
    }
}

int NAME(attend)(const struct attention *a)
{
    const int64_t work = a->batch * a->key_heads, padded = (a->keys + W - 1) / W * W;
    const int large = work * a->heads / a->key_heads * a->queries * a->keys * a->width >= PARALLEL;
    float *buffers = malloc((large ? omp_get_max_threads() : 1) * ROWS * padded * sizeof(float));
    if (!buffers)
        return 0;
    OMP(parallel for schedule(static) if (large))
    for (int64_t at = 0; at < work; at++) {
        const int64_t b = at / a->key_heads, g = at % a->key_heads;
        float *scores = buffers + (large ? omp_get_thread_num() : 0) * ROWS * padded;
        if (at + 1 < work)
            NAME(fetch)(a, (at + 1) / a->key_heads, (at + 1) % a->key_heads);
        switch (a->width / W) {
        case 32 / W: NAME(head)(32 / W, a, b, g, scores); break;
        case 64 / W: NAME(head)(64 / W, a, b, g, scores); break;
        case 128 / W: NAME(head)(128 / W, a, b, g, scores); break;
        default: NAME(head)((int)(a->width / W), a, b, g, scores);
        }
    }
    free(buffers);
    return 1;
}
