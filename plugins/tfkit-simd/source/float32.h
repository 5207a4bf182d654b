/* y_rj = b_j + sum_k x_rk w_jk, for one instruction set; see int8.h for the macros.

   Weights lie in panels of WIDTH output channels: [panel][inner][WIDTH], zeros behind the last channel. The sum of each y_rj is
   computed in the order of k, so a row has the same bits alone and in a batch. */

#define WIDTH (2 * W)       /* output channels of a panel */
#define BLOCK 1024          /* input features, whose part of a panel stays in the L2 cache */
#define TOGETHER (20 * HIGH) /* rows, whose features stay there while all panels are read */

/* `rows` rows, `inner` of their features, times a panel. Meanwhile the next `lines` cache lines of weights are fetched: with few
   rows the processor does not fetch them early enough. */
INLINE void NAME(rows_by_panel)(
    const int rows, const float *x, int64_t stride, const float *panel, const float *start, int64_t start_stride, float *y,
    int64_t y_stride, int64_t inner, const float *next, int64_t lines)
{
    F sums[HIGH][2];
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
        for (int c = 0; c < 2; c++)
            sums[r][c] = LOAD_F(start + r * start_stride + c * W);
    for (int64_t k = 0; k < inner; k++) {
        if (k < lines)
            __builtin_prefetch(next + k * LINE);
        const F w0 = LOAD_F(panel + k * WIDTH), w1 = LOAD_F(panel + k * WIDTH + W);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const F number = SET_F(x[r * stride + k]);
            sums[r][0] = FMA_F(number, w0, sums[r][0]);
            sums[r][1] = FMA_F(number, w1, sums[r][1]);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
        for (int c = 0; c < 2; c++)
            STORE_F(y + r * y_stride + c * W, sums[r][c]);
}

/* Some rows, the features from `k` on, times a panel. The sums start with the bias, or with those of the features before. */
static void NAME(block_by_panel)(const struct float32_product *p, int64_t row, int64_t rows, int64_t k, int64_t panel)
{
    const int64_t inner = p->inner - k < BLOCK ? p->inner - k : BLOCK, channel = panel * WIDTH;
    const int64_t channels = p->outer - channel < WIDTH ? p->outer - channel : WIDTH;
    const int64_t each = (inner * WIDTH / LINE + (rows + HIGH - 1) / HIGH - 1) / ((rows + HIGH - 1) / HIGH);
    const float *weights = p->panels + channel * p->inner + k * WIDTH, *next = weights + WIDTH * p->inner;
    float bias[WIDTH] = {0}, part[HIGH * WIDTH];
    if (p->bias)
        memcpy(bias, p->bias + channel, channels * sizeof(float));
    for (int64_t r = 0; r < rows; r += HIGH, next += each * LINE) {
        const int64_t here = rows - r < HIGH ? rows - r : HIGH;
        const float *x = p->x + (row + r) * p->stride + k;
        float *y = p->y + (row + r) * p->outer + channel, *to = channels < WIDTH ? part : y;
        const int64_t to_stride = channels < WIDTH ? WIDTH : p->outer;
        const float *start = k ? to : bias;
        const int64_t start_stride = k ? to_stride : 0;
        if (channels < WIDTH && k)
            for (int64_t i = 0; i < here; i++)
                memcpy(part + i * WIDTH, y + i * p->outer, channels * sizeof(float));
        switch (here) {
#define CASE(n) \
    case n: \
        NAME(rows_by_panel)(n, x, p->stride, weights, start, start_stride, to, to_stride, inner, next, each); \
        break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if HIGH > 6
            CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
#undef CASE
        }
        if (channels < WIDTH)
            for (int64_t i = 0; i < here; i++)
                memcpy(y + i * p->outer, part + i * WIDTH, channels * sizeof(float));
    }
}

void NAME(float32_product)(const struct float32_product *p)
{
    const int64_t panels = (p->outer + WIDTH - 1) / WIDTH;
    OMP(parallel if (p->rows * p->inner * p->outer >= PARALLEL))
    {
        const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
        for (int64_t row = 0; row < p->rows; row += TOGETHER)
            for (int64_t k = 0; k == 0 || k < p->inner; k += BLOCK) /* without features the sums are the bias */
                for (int64_t panel = panels * thread / threads; panel < panels * (thread + 1) / threads; panel++)
                    NAME(block_by_panel)(p, row, p->rows - row < TOGETHER ? p->rows - row : TOGETHER, k, panel);
    }
}

/* FINGERPRINT numbers, of which number n of x changes number n % FINGERPRINT: h <- (h ^ bits) * odd, then h ^ (h >> 15). Both steps are
   reversible, so a change of one number is always seen. The shift brings high bits down: without it, two changes of signs would
   cancel. */
void NAME(fingerprint)(const float *x, int64_t count, int32_t *lanes)
{
    I sums[FINGERPRINT / W];
    UNROLL
    for (int i = 0; i < FINGERPRINT / W; i++)
        sums[i] = SET_I(0);
    for (int64_t start = 0; start < count; start += FINGERPRINT)
        UNROLL
        for (int i = 0; i < FINGERPRINT / W; i++) {
            const int64_t at = start + i * W, left = count - at;
            const F part = left >= W ? LOAD_F(x + at) : left > 0 ? LOAD_PART(x + at, left) : SET_F(0.0f);
            const I product = MUL_I(XOR_I(sums[i], CAST_I(part)), SET_I(0x2c1b3c6d));
            sums[i] = XOR_I(product, SHIFT_DOWN_I(product, 15));
        }
    UNROLL
    for (int i = 0; i < FINGERPRINT / W; i++)
        STORE_I(lanes + i * W, sums[i]);
}

#undef WIDTH
#undef BLOCK
#undef TOGETHER
