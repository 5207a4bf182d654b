/* The largest of t_j + log softmax(x_j)_v over the beams j of a sentence and the tokens v, of equal ones the lower index first,

   for one instruction set; see int8.h for the macros. Most logits are read twice: for the largest of their block, and for the
   sum of exponentials. Only blocks whose largest logit would be selected are searched. Greedy decoding needs no exponentials. */

#define SPAN 128

/* The largest logit of every block, and of all. NaN may be lost here, but not in the sum of exponentials. */
static float NAME(block_maxima)(const float *x, int64_t vocabulary, float *maxima)
{
    F all = SET_F(-INFINITY);
    for (int64_t start = 0; start < vocabulary; start += SPAN) {
        F most = SET_F(-INFINITY);
        if (start + SPAN <= vocabulary)
            UNROLL
            for (int v = 0; v < SPAN; v += W)
                most = MAX_F(most, LOAD_F(x + start + v));
        else
            for (int64_t v = start; v < vocabulary; v += W)
                most = MAX_F(most, FIRST(LOAD_PART(x + v, vocabulary - v), vocabulary - v, -INFINITY));
        maxima[start / SPAN] = LARGEST_OF(most);
        all = MAX_F(all, most);
    }
    return LARGEST_OF(all);
}

static float NAME(sum_of_exponentials)(const float *x, int64_t vocabulary, float largest)
{
    const F level = SET_F(largest);
    F sums[4] = {SET_F(0.0f), SET_F(0.0f), SET_F(0.0f), SET_F(0.0f)};
    int64_t v = 0;
    for (; v + 4 * W <= vocabulary; v += 4 * W)
        UNROLL
        for (int i = 0; i < 4; i++)
            sums[i] = ADD_F(sums[i], NAME(exponential)(SUB_F(LOAD_F(x + v + i * W), level)));
    for (; v < vocabulary; v += W) {
        const F rest = FIRST(LOAD_PART(x + v, vocabulary - v), vocabulary - v, -INFINITY);
        sums[0] = ADD_F(sums[0], NAME(exponential)(SUB_F(rest, level)));
    }
    return SUM_OF(ADD_F(ADD_F(sums[0], sums[1]), ADD_F(sums[2], sums[3])));
}

/* Insert a value behind those that are as large. */
static void NAME(insert)(const struct beam_top_k *a, int64_t sentence, float value, int64_t index, float log_prob)
{
    int64_t at = a->count - 1;
    float *values = a->values + sentence * a->count, *log_probs = a->log_probs + sentence * a->count;
    int64_t *indices = a->indices + sentence * a->count;
    for (; at > 0 && !(values[at - 1] >= value); at--) {
        values[at] = values[at - 1];
        indices[at] = indices[at - 1];
        log_probs[at] = log_probs[at - 1];
    }
    values[at] = value;
    indices[at] = index;
    log_probs[at] = log_prob;
}

static void NAME(sentence)(const struct beam_top_k *a, int64_t sentence, float *maxima)
{
    const int64_t vocabulary = a->vocabulary, count = a->count;
    float *values = a->values + sentence * count, *worst = values + count - 1;
    for (int64_t i = 0; i < count; i++) {
        values[i] = a->log_probs[sentence * count + i] = -INFINITY;
        a->indices[sentence * count + i] = 0;
    }
    for (int64_t j = 0; j < a->beams; j++) {
        const float *x = a->logits + (sentence * a->beams + j) * vocabulary, total = a->totals[sentence * a->beams + j];
        const float largest = NAME(block_maxima)(x, vocabulary, maxima);
        const float log_sum = logf(NAME(sum_of_exponentials)(x, vocabulary, largest));
        if (isnan(log_sum + total)) {
            NAME(insert)(a, sentence, NAN, j * vocabulary, NAN);
            return;
        }
        for (int64_t start = 0; start < vocabulary; start += SPAN) {
            if (!(maxima[start / SPAN] - largest - log_sum + total > *worst)) /* rounding is monotone */
                continue;
            for (int64_t first = start; first < vocabulary && first < start + SPAN; first += W) {
                F log_probs = FIRST(LOAD_PART(x + first, vocabulary - first), vocabulary - first, -INFINITY);
                log_probs = SUB_F(SUB_F(log_probs, SET_F(largest)), SET_F(log_sum));
                const F sums = ADD_F(log_probs, SET_F(total));
                unsigned above = ABOVE(sums, SET_F(*worst));
                if (!above)
                    continue;
                float value[W], log_prob[W];
                STORE_F(value, sums);
                STORE_F(log_prob, log_probs);
                for (; above; above &= above - 1) {
                    const int lane = __builtin_ctz(above);
                    if (value[lane] > *worst)
                        NAME(insert)(a, sentence, value[lane], j * vocabulary + first + lane, log_prob[lane]);
                }
            }
        }
    }
}

int NAME(beam_top_k)(const struct beam_top_k *a)
{
    const int64_t blocks = (a->vocabulary + SPAN - 1) / SPAN;
    const int large = a->sentences * a->beams * a->vocabulary >= PARALLEL / 8;
    float *buffers = malloc((large ? omp_get_max_threads() : 1) * blocks * sizeof(float));
    if (!buffers)
        return 0;
    OMP(parallel for schedule(static) if (large))
    for (int64_t sentence = 0; sentence < a->sentences; sentence++)
        NAME(sentence)(a, sentence, buffers + (large ? omp_get_thread_num() : 0) * blocks);
    free(buffers);
    return 1;
}

/* The index of the largest number, of equal ones the lowest; with NaN the index of the first NaN. */
static int64_t NAME(most_probable_of)(const float *x, int64_t vocabulary)
{
    float largest = -INFINITY;
    int64_t found = 0;
    I bits = SET_I(0); /* the largest magnitude, in bits: that of NaN is above that of infinity */
    for (int64_t start = 0; start < vocabulary; start += SPAN) {
        F most = SET_F(-INFINITY);
        for (int64_t v = start; v < vocabulary && v < start + SPAN; v += W) {
            const F part = vocabulary - v < W ? FIRST(LOAD_PART(x + v, vocabulary - v), vocabulary - v, -INFINITY) : LOAD_F(x + v);
            bits = MAX_I(bits, AND_I(CAST_I(part), SET_I(0x7fffffff)));
            most = MAX_F(most, part);
        }
        const float here = LARGEST_OF(most);
        if (here > largest) {
            largest = here;
            found = start;
        }
    }
    int32_t magnitudes[W];
    STORE_I(magnitudes, bits);
    for (int i = 0; i < W; i++)
        if (magnitudes[i] > 0x7f800000)
            for (found = 0; !isnan(x[found]); found++)
                ;
    while (x[found] < largest)
        found++;
    return found;
}

void NAME(most_probable)(const float *logits, int64_t *indices, int64_t rows, int64_t vocabulary)
{
    OMP(parallel for schedule(static) if (rows * vocabulary >= PARALLEL / 8))
    for (int64_t row = 0; row < rows; row++)
        indices[row] = NAME(most_probable_of)(logits + row * vocabulary, vocabulary);
}
