/* A recorded decoding step: operations on tensors whose places and shapes stay, one after another, for one instruction set.

   Every operation is a row of a table of integers (kernels.h, struct operation), which ../tfkit_simd/steps.py writes. */

INLINE double NAME(number)(const char *p, int64_t type)
{
    switch (type) {
    case FLOAT32:
        return *(const float *)p;
    case FLOAT64:
        return *(const double *)p;
    case INT64:
        return (double)*(const int64_t *)p;
    default:
        return *(const uint8_t *)p;
    }
}

INLINE void NAME(put)(char *p, int64_t type, double x)
{
    switch (type) {
    case FLOAT32:
        *(float *)p = (float)x;
        break;
    case FLOAT64:
        *(double *)p = x;
        break;
    case INT64:
        *(int64_t *)p = (int64_t)x;
        break;
    default:
        *(uint8_t *)p = x != 0.0;
    }
}

/* One element in double precision, which holds every float32, bool and position. */
INLINE double NAME(element)(int64_t function, double a, double b, double c)
{
    switch (function) {
    case COPY: return a;
    case ADD: return a + b;
    case SUB: return a - b;
    case MUL: return a * b;
    case DIV: return a / b;
    case MAXIMUM: return a > b || a != a ? a : b;
    case MINIMUM: return a < b || a != a ? a : b;
    case POW: return pow(a, b);
    case NEG: return -a;
    case ABS: return fabs(a);
    case SIN: return sin(a);
    case COS: return cos(a);
    case EXP: return exp(a);
    case LOG: return log(a);
    case TANH: return tanh(a);
    case SIGMOID: return 1.0 / (1.0 + exp(-a));
    case SILU: return a / (1.0 + exp(-a));
    case GELU: return 0.5 * a * (1.0 + erf(a * M_SQRT1_2));
    case GELU_TANH: return 0.5 * a * (1.0 + tanh(M_2_SQRTPI * M_SQRT1_2 * (a + 0.044715 * a * a * a)));
    case ERF: return erf(a);
    case SQRT: return sqrt(a);
    case RSQRT: return 1.0 / sqrt(a);
    case LT: return a < b;
    case LE: return a <= b;
    case GT: return a > b;
    case GE: return a >= b;
    case EQ: return a == b;
    case NE: return a != b;
    case AND: return a != 0.0 && b != 0.0;
    case OR: return a != 0.0 || b != 0.0;
    case NOT: return a == 0.0;
    default: return a != 0.0 ? b : c; /* WHERE */
    }
}

/* A row of float32: out and, where their step is 1, a and b lie side by side. 0 if the function has no vectors. */
static int NAME(vectors)(int64_t function, float *out, const float *a, int64_t step_a, const float *b, int64_t step_b, int64_t n)
{
    const F zero = SET_F(0.0f);
#define ROW(expression) \
    for (int64_t i = 0; i < n; i += W) { \
        const int64_t left = n - i; \
        const F x = step_a ? (left < W ? LOAD_PART(a + i, left) : LOAD_F(a + i)) : SET_F(*a); \
        const F y = step_b ? (left < W ? LOAD_PART(b + i, left) : LOAD_F(b + i)) : SET_F(*b); \
        const F z = expression; \
        (void)y; \
        if (left < W) { \
            float part[W]; \
            STORE_F(part, z); \
            memcpy(out + i, part, left * sizeof(float)); \
        } else \
            STORE_F(out + i, z); \
    } \
    return 1;
    switch (function) {
    case COPY: ROW(x)
    case ADD: ROW(ADD_F(x, y))
    case SUB: ROW(SUB_F(x, y))
    case MUL: ROW(MUL_F(x, y))
    case DIV: ROW(DIV_F(x, y))
    case NEG: ROW(SUB_F(zero, x))
    case RELU: ROW(MAX_F(zero, x)) /* of NaN the second */
    }
#undef ROW
    return 0;
}

/* 0 if the position that is written lies outside of the tensor. */
static int NAME(map)(const struct operation *o)
{
    char *out = o->data[0], *a = o->data[1], *b = o->data[2], *c = o->data[3];
    const int64_t *n = o->sizes, *so = o->strides[0], *sa = o->strides[1], *sb = o->strides[2], *sc = o->strides[3];
    const int floats = o->types[0] == FLOAT32 && o->types[1] == FLOAT32 && (!b || o->types[2] == FLOAT32) && !c;
    const int64_t width = sizeof(float), step_a = sa[3] / width, step_b = sb[3] / width;
    const int in_rows = floats && (so[3] == width || n[3] == 1) && (step_a == 0 || step_a == 1) && (step_b == 0 || step_b == 1);
    const int64_t size = o->types[0] == BOOL ? 1 : o->types[0] == FLOAT32 ? sizeof(float) : sizeof(int64_t);
    const int moved = o->function == COPY && o->types[0] == o->types[1] && so[3] == size && sa[3] == size;
    if (o->place) { /* the position at which a cache is written */
        const int64_t position = *(const int64_t *)o->place;
        if (position < 0 || position >= o->count)
            return 0;
        out += position * o->place_stride;
    }
    for (int64_t i = 0; i < n[0]; i++)
        for (int64_t j = 0; j < n[1]; j++)
            for (int64_t k = 0; k < n[2]; k++) {
                char *to = out + i * so[0] + j * so[1] + k * so[2];
                const char *x = a + i * sa[0] + j * sa[1] + k * sa[2];
                const char *y = b ? b + i * sb[0] + j * sb[1] + k * sb[2] : x;
                const char *z = c ? c + i * sc[0] + j * sc[1] + k * sc[2] : x;
                if (moved) {
                    memcpy(to, x, n[3] * so[3]);
                    continue;
                }
                if (in_rows && NAME(vectors)(o->function, (float *)to, (const float *)x, step_a, (const float *)y,
                                             b ? step_b : step_a, n[3]))
                    continue;
                if (floats && o->function == RELU) {
                    for (int64_t l = 0; l < n[3]; l++) {
                        const float value = *(const float *)(x + l * sa[3]);
                        *(float *)(to + l * so[3]) = value < 0.0f ? 0.0f : value;
                    }
                    continue;
                }
                for (int64_t l = 0; l < n[3]; l++)
                    NAME(put)(to + l * so[3], o->types[0], NAME(element)(o->function, NAME(number)(x + l * sa[3], o->types[1]),
                        b ? NAME(number)(y + l * sb[3], o->types[2]) : 0.0, c ? NAME(number)(z + l * sc[3], o->types[3]) : 0.0));
            }
    return 1;
}

/* Over the last axis: sums, means, the largest, or whether any or all are true. */
static void NAME(reduce)(const struct operation *o)
{
    const int64_t *n = o->sizes, *so = o->strides[0], *sa = o->strides[1];
    for (int64_t i = 0; i < n[0]; i++)
        for (int64_t j = 0; j < n[1]; j++)
            for (int64_t k = 0; k < n[2]; k++) {
                const char *x = o->data[1] + i * sa[0] + j * sa[1] + k * sa[2];
                double sum = o->function == LARGEST ? -INFINITY : o->function == ALL;
                for (int64_t l = 0; l < n[3]; l++) {
                    const double value = NAME(number)(x + l * sa[3], o->types[1]);
                    if (o->function == ANY)
                        sum = sum != 0.0 || value != 0.0;
                    else if (o->function == ALL)
                        sum = sum != 0.0 && value != 0.0;
                    else if (o->function == LARGEST)
                        sum = value > sum || value != value ? value : sum;
                    else
                        sum += value;
                }
                NAME(put)(o->data[0] + i * so[0] + j * so[1] + k * so[2], o->types[0], o->function == MEAN ? sum / n[3] : sum);
            }
}

/* (x - mean) / sqrt(variance + epsilon) w + b of rows of n numbers; w and b may be missing. */
static void NAME(layer_norm)(const struct operation *o)
{
    const int64_t rows = o->sizes[0], n = o->sizes[1];
    const float *weight = (const float *)o->data[2], *bias = (const float *)o->data[3];
    for (int64_t row = 0; row < rows; row++) {
        const float *x = (const float *)o->data[1] + row * n;
        float *y = (float *)o->data[0] + row * n;
        F sum = SET_F(0.0f), squares = SET_F(0.0f);
        for (int64_t i = 0; i < n; i += W)
            sum = ADD_F(sum, LOAD_PART(x + i, n - i));
        const F mean = SET_F(SUM_OF(sum) / n);
        for (int64_t i = 0; i < n; i += W) {
            const F away = FIRST(SUB_F(LOAD_PART(x + i, n - i), mean), n - i, 0.0f);
            squares = FMA_F(away, away, squares);
        }
        const F factor = SET_F(1.0f / sqrtf(SUM_OF(squares) / n + (float)o->x));
        for (int64_t i = 0; i < n; i += W) {
            const int64_t left = n - i;
            F z = MUL_F(SUB_F(LOAD_PART(x + i, left), mean), factor);
            z = weight ? MUL_F(z, LOAD_PART(weight + i, left)) : z;
            z = bias ? ADD_F(z, LOAD_PART(bias + i, left)) : z;
            float part[W];
            STORE_F(part, z);
            memcpy(y + i, part, (left < W ? left : W) * sizeof(float));
        }
    }
}

/* Which keys a row sees (B,H,1,K): their indices, then their number; and what is added to the scores of these (B,H,1,K), where
   heads see other keys or there is a bias. */
static void NAME(live_keys)(const struct operation *o)
{
    const int64_t B = o->sizes[0], H = o->sizes[1], K = o->sizes[3];
    const int64_t *seen = o->strides[1], *add = o->strides[2];
    int32_t *index = (int32_t *)o->data[0], *counts = (int32_t *)o->place;
    float *added = (float *)o->data[3];
    for (int64_t b = 0; b < B; b++) {
        int32_t *row = index + b * K, count = 0;
        for (int64_t j = 0; j < K; j++) {
            int any = o->data[1] == NULL;
            for (int64_t h = 0; h < H && !any; h++)
                any = *(uint8_t *)(o->data[1] + b * seen[0] + h * seen[1] + j * seen[3]);
            if (any)
                row[count++] = (int32_t)j;
        }
        counts[b] = count;
        for (int64_t h = 0; added && h < H; h++)
            for (int64_t k = 0; k < count; k++) {
                const int visible = !o->data[1] || *(uint8_t *)(o->data[1] + b * seen[0] + h * seen[1] + row[k] * seen[3]);
                const char *bias = o->data[2] ? o->data[2] + b * add[0] + h * add[1] + row[k] * add[3] : NULL;
                added[(b * H + h) * K + k] = !visible ? -INFINITY : bias ? (float)NAME(number)(bias, o->types[2]) : 0.0f;
            }
    }
}

/* Where the live keys of every row lie: `slots` (B,K) of their indices (R,K), and their numbers. 0 if there is no such slot. */
static int NAME(slots_of)(const struct operation *o)
{
    const int64_t B = o->sizes[0], R = o->sizes[1], K = o->sizes[2];
    const int32_t *index = (const int32_t *)o->data[1], *counts = (const int32_t *)o->more[0];
    const int64_t *slots = (const int64_t *)o->data[2];
    int32_t *found = (int32_t *)o->data[0], *found_counts = (int32_t *)o->more[1];
    for (int64_t b = 0; b < B; b++) {
        const int64_t row = R > 1 ? b : 0;
        found_counts[b] = counts[row];
        for (int64_t k = 0; k < counts[row]; k++) {
            const int64_t slot = slots[b * K + index[row * K + k]];
            if (slot < 0 || slot >= o->count)
                return 0;
            found[b * K + k] = (int32_t)slot;
        }
    }
    return 1;
}

/* Rows of a table. 0 if there is no such row. */
static int NAME(take_rows)(const struct operation *o)
{
    const int64_t *index = (const int64_t *)o->data[2];
    for (int64_t i = 0; i < o->sizes[0]; i++) {
        if (index[i] < 0 || index[i] >= o->count)
            return 0;
        memcpy(o->data[0] + i * o->sizes[1], o->data[1] + index[i] * o->strides[1][0], o->sizes[1]);
    }
    return 1;
}

/* The `most` largest logits of each row, once more as x W^T + b in float32. 0 if there is no memory. */
static int NAME(refine)(const struct operation *o)
{
    const int64_t rows = o->sizes[0], vocabulary = o->sizes[1], inner = o->sizes[2];
    const int64_t most = o->sizes[3] < vocabulary ? o->sizes[3] : vocabulary, blocks = (vocabulary + SPAN - 1) / SPAN;
    const float *weight = (const float *)o->data[2], *bias = (const float *)o->data[3];
    char *memory = malloc(most * (sizeof(int64_t) + sizeof(float)) + blocks * sizeof(float));
    if (!memory)
        return 0;
    int64_t *chosen = (int64_t *)memory;
    float *largest = (float *)(chosen + most), *maxima = largest + most;
    for (int64_t row = 0; row < rows; row++) {
        float *logits = (float *)o->data[0] + row * vocabulary;
        const float *x = (const float *)o->data[1] + row * inner;
        int64_t count = 0;
        NAME(block_maxima)(logits, vocabulary, maxima);
        for (int64_t start = 0; start < vocabulary; start += SPAN) {
            if (count == most && !(maxima[start / SPAN] > largest[most - 1]))
                continue;
            for (int64_t v = start; v < vocabulary && v < start + SPAN; v++) {
                if (count == most && !(logits[v] > largest[most - 1]))
                    continue;
                int64_t at = count < most ? count++ : most - 1;
                for (; at > 0 && largest[at - 1] < logits[v]; at--) {
                    largest[at] = largest[at - 1];
                    chosen[at] = chosen[at - 1];
                }
                largest[at] = logits[v];
                chosen[at] = v;
            }
        }
        for (int64_t i = 0; i < count; i++) {
            const float *w = weight + chosen[i] * inner;
            F sum = SET_F(0.0f);
            for (int64_t k = 0; k < inner; k += W)
                sum = FMA_F(LOAD_PART(x + k, inner - k), LOAD_PART(w + k, inner - k), sum);
            logits[chosen[i]] = SUM_OF(sum) + (bias ? bias[chosen[i]] : 0.0f);
        }
    }
    free(memory);
    return 1;
}

/* Logits x W^T + b of the ids in a list, which `sizes[3]` rows share; -inf where an id is below 0. 0 if there is no such id. The sum
   of a logit does not depend on the others. */
static int NAME(listed)(const struct operation *o)
{
    const int64_t rows = o->sizes[0], ids = o->sizes[1], inner = o->sizes[2], together = o->sizes[3];
    const float *weight = (const float *)o->data[2], *bias = (const float *)o->data[3];
    for (int64_t first = 0; first < rows; first += together)
        for (int64_t at = 0; at < ids; at += W) {
            const int64_t *list = (const int64_t *)o->more[0] + first / together * ids + at, here = ids - at < W ? ids - at : W;
            const float *w[W];
            float added[W];
            for (int64_t lane = 0; lane < W; lane++) {
                const int64_t id = lane < here ? list[lane] : -1;
                if (id >= o->count)
                    return 0;
                w[lane] = weight + (id < 0 ? 0 : id) * inner;
                added[lane] = id < 0 ? -INFINITY : bias ? bias[id] : 0.0f;
            }
            for (int64_t row = first; row < first + together; row++) {
                const float *x = (const float *)o->data[1] + row * inner;
                F dots[W];
                for (int lane = 0; lane < W; lane++) {
                    F sum = SET_F(0.0f);
                    int64_t k = 0;
                    for (; k + W <= inner; k += W)
                        sum = FMA_F(LOAD_F(x + k), LOAD_F(w[lane] + k), sum);
                    dots[lane] = k < inner ? FMA_F(LOAD_PART(x + k, inner - k), LOAD_PART(w[lane] + k, inner - k), sum) : sum;
                }
                float part[W];
                STORE_F(part, ADD_F(NAME(sums)(dots), LOAD_F(added)));
                memcpy((float *)o->data[0] + row * ids + at, part, here * sizeof(float));
            }
        }
    return 1;
}

/* 1; 0 if there is no memory, -1 if an index is outside of its tensor. */
int NAME(run_step)(const struct operation *o, int64_t count)
{
    for (int64_t i = 0; i < count; i++, o++)
        switch (o->code) {
        case MAP:
            if (!NAME(map)(o))
                return -1;
            break;
        case REDUCE:
            NAME(reduce)(o);
            break;
        case LAYER_NORM:
            NAME(layer_norm)(o);
            break;
        case TAKE_ROWS:
            if (!NAME(take_rows)(o))
                return -1;
            break;
        case LIVE_KEYS:
            NAME(live_keys)(o);
            break;
        case SLOTS:
            if (!NAME(slots_of)(o))
                return -1;
            break;
        case PRODUCT: {
            const struct float32_product p = {(const float *)o->data[1], (float *)o->data[0], (const float *)o->data[2],
                (const float *)o->data[3], o->sizes[0], o->sizes[1], o->sizes[2], o->sizes[3]};
            NAME(float32_product)(&p);
            break;
        }
        case INT8_PRODUCT: {
            const struct int8_product p = {(const float *)o->data[1], (float *)o->data[0], (const int8_t *)o->data[2],
                (const float *)o->more[0], (const int32_t *)o->more[1], (const float *)o->data[3], o->sizes[0], o->sizes[1],
                o->sizes[2], o->sizes[3]};
            const int done = o->function == 0 ? int8_product_avx2(&p) : o->function == 1 ? int8_product_avx_vnni(&p)
                                                                                       : int8_product_avx512(&p);
            if (!done)
                return 0;
            break;
        }
        case REFINE:
            if (!NAME(refine)(o))
                return 0;
            break;
        case LISTED:
            if (!NAME(listed)(o))
                return -1;
            break;
        default: { /* ATTEND: `sizes` has B, H, G, K, `types` D, whether rows have live keys of their own, and Q */
            const int64_t *s = o->sizes, added = o->more[2] ? s[3] : 0;
            const struct attention a = {(const float *)o->data[1], (const float *)o->data[2], (const float *)o->data[3],
                (float *)o->data[0], NULL, (const int32_t *)o->more[0], (const int32_t *)o->more[1], (const float *)o->more[2],
                s[0], s[1], s[2], o->types[3], s[3], o->types[0], o->types[1],
                {o->strides[1][0], o->strides[1][1], o->strides[1][2]}, {o->strides[2][0], o->strides[2][1], o->strides[2][2]},
                {o->strides[3][0], o->strides[3][1], o->strides[3][2]},
                {o->types[2] ? s[1] * added : 0, added, 0}, (float)o->x};
            if (!NAME(attend)(&a))
                return 0;
        }
        }
    return 1;
}

/* The most probable token of a row that is not forbidden, NaN before all others; and its log-probability among all. */
INLINE int64_t NAME(select)(const struct greedy *g, float *x, float *log_prob)
{
    int64_t token = NAME(most_probable_of)(x, g->vocabulary);
    const float largest = x[token], log_sum = logf(NAME(sum_of_exponentials)(x, g->vocabulary, largest));
    for (int64_t i = 0; i < g->forbidden_count; i++)
        if (g->forbidden[i] == token && !isnan(largest)) {
            for (int64_t j = 0; j < g->forbidden_count; j++)
                x[g->forbidden[j]] = -INFINITY;
            token = NAME(most_probable_of)(x, g->vocabulary);
            break;
        }
    *log_prob = x[token] - largest - log_sum;
    return token;
}

/* The most probable tokens, until every row has its end token or as many tokens as its limit: 1, or 2 if `last` comes before.
   Otherwise as run_step. A row that has ended is computed on, and not read. */
int NAME(run_greedy)(const struct greedy *g)
{
    for (int64_t step = g->first;; step++) {
        int64_t open = 0;
        for (int64_t row = 0; row < g->batch; row++)
            if (!g->finished[row] && step < g->limits[row]) {
                g->ids[row] = g->tokens[row * g->width + step - 1];
                open++;
            }
        if (!open)
            return 1;
        if (step == g->last)
            return 2;
        const int done = NAME(run_step)(g->operations, g->count);
        if (done != 1)
            return done;
        ++*g->place;
        for (int64_t row = 0; row < g->batch; row++) {
            if (g->finished[row] || step >= g->limits[row])
                continue;
            const int64_t at = row * g->width + step;
            const int64_t token = NAME(select)(g, g->logits + row * g->vocabulary, g->log_probs + at);
            g->tokens[at] = token;
            if (token == g->end) {
                g->finished[row] = 1;
                g->counts[row] = step + 1;
            }
        }
    }
}

/* Insert a hypothesis of sentence s into its finished ones, behind those that are as good. */
static void NAME(finish)(const struct beams *b, int64_t s, float score, float total, int64_t length, int ended, int64_t row,
                         int64_t token, float log_prob)
{
    const int64_t start = s * b->size;
    int64_t at = b->size;
    for (; at > 0; at--) {
        const int64_t before = start + at - 1;
        const int missing = b->scores[before] == -INFINITY, cut = !b->ranked && !missing && !b->ended[before];
        const int last = !b->ranked && !ended; /* unfinished hypotheses come after finished ones */
        if (!missing && (cut != last ? last : b->scores[before] >= score))
            break;
    }
    if (at == b->size)
        return;
    for (int64_t i = start + b->size - 1; i > start + at; i--) {
        b->scores[i] = b->scores[i - 1];
        b->finished_totals[i] = b->finished_totals[i - 1];
        b->lengths[i] = b->lengths[i - 1];
        b->ended[i] = b->ended[i - 1];
        b->rows[i] = b->rows[i - 1];
        b->tokens[i] = b->tokens[i - 1];
        b->log_probs[i] = b->log_probs[i - 1];
    }
    const int64_t i = start + at;
    b->scores[i] = score;
    b->finished_totals[i] = total;
    b->lengths[i] = length;
    b->ended[i] = ended;
    b->rows[i] = row;
    b->tokens[i] = token;
    b->log_probs[i] = log_prob;
}

/* Whether the finished hypotheses of a sentence suffice; `live` is the largest total of its live ones. */
static int NAME(suffices)(const struct beams *b, int64_t s, float live, int64_t length)
{
    const float worst = b->scores[(s + 1) * b->size - 1];
    if (b->early == 0)
        return worst >= live / b->max_penalties[s];
    return worst > -INFINITY && (b->early == 1 || worst >= live / b->penalties[length]);
}

/* The step of a sentence after its logits. `best` has room for its candidates and `order` for 2 `width` of them. */
static void NAME(extend)(const struct beams *b, int64_t s, int64_t length, const struct beam_top_k *best, float *maxima, int64_t *order)
{
    const int64_t k = b->width, V = b->vocabulary, first = s * k;
    int64_t allowed = 0, forbidden = 0, live = 0, stored = 0;
    int64_t *behind = order + 2 * k;
    NAME(sentence)(best, 0, maxima);
    for (int64_t c = 0; c < best->count && allowed < 2 * k; c++) {
        int found = 0;
        for (int64_t i = 0; i < b->forbidden_count && !isnan(best->values[c]); i++)
            found |= b->forbidden[i] == best->indices[c] % V;
        if (!found)
            order[allowed++] = c;
        else if (forbidden < 2 * k)
            behind[forbidden++] = c;
    }
    for (int64_t i = 0; allowed + i < 2 * k; i++) { /* forbidden ones, which count as -inf */
        best->values[behind[i]] = -INFINITY;
        order[allowed + i] = behind[i];
    }
    const float most = best->values[order[0]];
    if (b->forbidden_count && most == -INFINITY && b->scores[s * b->size] == -INFINITY) {
        b->status[s] = 3;
        return;
    }
    if (!(most < INFINITY)) {
        b->status[s] = 2;
        return;
    }
    const int last = length == b->limits[s];
    for (int64_t i = 0; i < k; i++) {
        const int64_t c = order[i], token = best->indices[c] % V;
        const float total = best->values[c];
        if ((last || token == b->end) && total > -INFINITY) {
            NAME(finish)(b, s, total / b->penalties[length], total, length, token == b->end, first + best->indices[c] / V, token,
                         best->log_probs[c]);
            stored |= !i;
        }
    }
    int64_t *kept = behind; /* the candidates that stay live: those that do not end come first */
    for (int64_t i = 0; i < 2 * k && live < k; i++)
        if (best->indices[order[i]] % V != b->end)
            kept[live++] = order[i];
    const int64_t open = live;
    for (int64_t i = 0; i < 2 * k && live < k; i++)
        if (best->indices[order[i]] % V == b->end)
            kept[live++] = order[i];
    if (last || (k == 1 && stored) || NAME(suffices)(b, s, open ? best->values[kept[0]] : -INFINITY, length)) {
        b->status[s] = 1;
        for (int64_t j = 0; j < k; j++)
            b->order[first + j] = first + j;
        return;
    }
    const int64_t level = (length - b->length - 1) * b->sentences * k + first;
    for (int64_t j = 0; j < k; j++) {
        const int64_t c = kept[j], index = best->indices[c];
        b->totals[first + j] = j < open ? best->values[c] : -INFINITY;
        b->order[first + j] = b->level_rows[level + j] = first + index / V;
        b->ids[first + j] = b->level_tokens[level + j] = index % V;
        b->level_log_probs[level + j] = best->log_probs[c];
    }
}

/* 1 once every sentence is complete or one has failed, 2 if `last` comes before. Otherwise as run_step. */
int NAME(run_beams)(const struct beams *b)
{
    const int64_t k = b->width, candidates = (2 + b->forbidden_count) * k, blocks = (b->vocabulary + SPAN - 1) / SPAN;
    const int64_t size = candidates * (2 * sizeof(float) + sizeof(int64_t)) + 4 * k * sizeof(int64_t) + blocks * sizeof(float);
    const int large = b->sentences * k * b->vocabulary >= PARALLEL / 8;
    const int64_t aligned = (size + 63) / 64 * 64;
    char *memory = malloc((large ? omp_get_max_threads() : 1) * aligned);
    if (!memory)
        return 0;
    int done = 1;
    for (int64_t length = b->first;; length++) {
        int64_t open = 0, failed = 0;
        for (int64_t s = 0; s < b->sentences; s++) {
            open += b->status[s] == 0;
            failed += b->status[s] > 1;
        }
        if (!open || failed)
            break;
        if (length == b->last) {
            done = 2;
            break;
        }
        done = NAME(run_step)(b->operations, b->count);
        if (done != 1)
            break;
        ++*b->place;
        OMP(parallel for schedule(static) if (large))
        for (int64_t s = 0; s < b->sentences; s++) {
            if (b->status[s])
                continue;
            char *mine = memory + (large ? omp_get_thread_num() : 0) * aligned;
            int64_t *indices = (int64_t *)mine, *order = indices + candidates;
            float *values = (float *)(order + 4 * k), *log_probs = values + candidates;
            const struct beam_top_k best = {b->logits + s * k * b->vocabulary, b->totals + s * k, values, log_probs, indices, 1, k,
                b->vocabulary, candidates};
            NAME(extend)(b, s, length + 1, &best, log_probs + candidates, order);
        }
    }
    free(memory);
    return done;
}

#undef SPAN
