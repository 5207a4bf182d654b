/* y_rj = s_r s'_j sum_k q_rk q'_jk + b_j, for one instruction set. Included once for each, with these macros:

   NAME(x)      the name of a function for this instruction set
   W            numbers of 32 bits in a vector
   F, I         a vector of float, of int32
   LEVELS       the largest integer of an activation
   DOT(a, x, w) adds to each int32 of a the products of four bytes of x (unsigned) and w (signed)

   Weights lie in panels of 32 output channels: [panel][inner / 4][32][4], zeros behind the last channel and feature. Activations
   are unsigned bytes q + LEVELS + 1. `starts` holds -(LEVELS + 1) sum_k q'_jk, so that the sum starts with this. Sums of
   integers are exact: their order does not matter, and a row has the same bits alone and in a batch. */

#define COLUMNS (PANEL / W) /* vectors in a panel */

/* A row as bytes. Returns its scale; NaN if a number is not finite. */
static float NAME(quantise)(const float *x, int64_t inner, uint8_t *bytes)
{
    I most = SET_I(0);
    int32_t largest = 0;
    int64_t k = 0;
    for (; k + W <= inner; k += W) /* as integers, absolute values have the order of their size, NaN behind infinity */
        most = MAX_I(most, AND_I(CAST_I(LOAD_F(x + k)), SET_I(0x7fffffff)));
    int32_t lanes[W];
    STORE_I(lanes, most);
    for (int lane = 0; lane < W; lane++)
        if (lanes[lane] > largest)
            largest = lanes[lane];
    for (; k < inner; k++) {
        int32_t bits;
        memcpy(&bits, x + k, 4);
        bits &= 0x7fffffff;
        if (bits > largest)
            largest = bits;
    }
    if (largest >= 0x7f800000)
        return NAN;
    float size;
    memcpy(&size, &largest, 4);
    const float scale = (size < SMALLEST ? SMALLEST : size) / LEVELS;
    for (k = 0; k + W <= inner; k += W)
        STORE_BYTES(bytes + k, ADD_I(ROUND(DIV_F(LOAD_F(x + k), SET_F(scale))), SET_I(LEVELS + 1)));
    for (; k < inner; k++)
        bytes[k] = (uint8_t)(lrintf(x[k] / scale) + LEVELS + 1);
    for (; k % 4; k++)
        bytes[k] = 0;
    return scale;
}

/* `rows` rows times one panel. With few rows, `streams` sums side by side hide the latency of an instruction. Meanwhile the next
   `lines` pairs of cache lines of weights are fetched, as in float32.h. */
INLINE void NAME(tile)(
    const int rows, const int streams, const struct int8_product *p, const uint8_t *bytes, int64_t width, const float *row_scales,
    int64_t first, int64_t panel, const int8_t *next, int64_t lines)
{
    I sums[TILE][4][COLUMNS];
    const int64_t fours = width / 4;
    const int8_t *weights = p->panels + panel * PANEL * width;
    const int64_t channel = panel * PANEL;
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
        for (int c = 0; c < COLUMNS; c++) {
            sums[r][0][c] = LOAD_I(p->starts + channel + c * W);
            UNROLL
            for (int s = 1; s < streams; s++)
                sums[r][s][c] = SET_I(0);
        }
    int64_t four = 0;
    for (; four + streams <= fours; four += streams) {
        UNROLL
        for (int s = 0; s < streams; s++) {
            if (four + s < lines) {
                __builtin_prefetch(next + (four + s) * 128);
                __builtin_prefetch(next + (four + s) * 128 + 64);
            }
            I w[COLUMNS];
            UNROLL
            for (int c = 0; c < COLUMNS; c++)
                w[c] = LOAD_I((const int32_t *)(weights + (four + s) * 4 * PANEL) + c * W);
            UNROLL
            for (int r = 0; r < rows; r++) {
                int32_t quad;
                memcpy(&quad, bytes + r * width + (four + s) * 4, 4);
                const I x = SET_I(quad);
                UNROLL
                for (int c = 0; c < COLUMNS; c++)
                    sums[r][s][c] = DOT(sums[r][s][c], x, w[c]);
            }
        }
    }
    for (; four < fours; four++)
        UNROLL
        for (int r = 0; r < rows; r++) {
            int32_t quad;
            memcpy(&quad, bytes + r * width + four * 4, 4);
            UNROLL
            for (int c = 0; c < COLUMNS; c++)
                sums[r][0][c] = DOT(sums[r][0][c], SET_I(quad), LOAD_I((const int32_t *)(weights + four * 4 * PANEL) + c * W));
        }
    UNROLL
    for (int r = 0; r < rows; r++) {
        float *y = p->y + (first + r) * p->outer + channel;
        const F row = SET_F(row_scales[r]);
        UNROLL
        for (int c = 0; c < COLUMNS; c++) {
            I sum = sums[r][0][c];
            UNROLL
            for (int s = 1; s < streams; s++)
                sum = ADD_I(sum, sums[r][s][c]);
            const F found = MUL_F(MUL_F(TO_F(sum), LOAD_F(p->scales + channel + c * W)), row);
            if (channel + (c + 1) * W <= p->outer)
                STORE_F(y + c * W, p->bias ? ADD_F(found, LOAD_F(p->bias + channel + c * W)) : found);
            else {
                float lanes[W];
                STORE_F(lanes, found);
                for (int lane = 0; channel + c * W + lane < p->outer; lane++)
                    y[c * W + lane] = p->bias ? lanes[lane] + p->bias[channel + c * W + lane] : lanes[lane];
            }
        }
    }
}

static void NAME(tiles)(
    const struct int8_product *p, const uint8_t *bytes, int64_t width, const float *row_scales, int64_t rows, int64_t first,
    int64_t panel, const int8_t *next, int64_t lines)
{
    switch (rows) {
    case 1: NAME(tile)(1, 4, p, bytes, width, row_scales, first, panel, next, lines); break;
    case 2: NAME(tile)(2, 2, p, bytes, width, row_scales, first, panel, next, lines); break;
#if TILE > 3
    case 3: NAME(tile)(3, 2, p, bytes, width, row_scales, first, panel, next, lines); break;
    case 4: NAME(tile)(4, 1, p, bytes, width, row_scales, first, panel, next, lines); break;
    case 5: NAME(tile)(5, 1, p, bytes, width, row_scales, first, panel, next, lines); break;
    case 6: NAME(tile)(6, 1, p, bytes, width, row_scales, first, panel, next, lines); break;
    case 7: NAME(tile)(7, 1, p, bytes, width, row_scales, first, panel, next, lines); break;
#endif
    default: NAME(tile)(TILE, 1, p, bytes, width, row_scales, first, panel, next, lines);
    }
}

int NAME(int8_product)(const struct int8_product *p)
{
    const int64_t width = (p->inner + 3) / 4 * 4, panels = (p->outer + PANEL - 1) / PANEL;
    const int64_t group = panels < MANY ? 1 : GROUP; /* panels side by side: each row is written in long pieces */
    int64_t most = CHUNK / width / 8 * 8; /* rows whose bytes stay in the cache */
    most = most < 8 ? 8 : most < p->rows ? most : p->rows;
    uint8_t *bytes = malloc(most * width);
    float *scales = malloc(most * sizeof(float));
    const int found = bytes && scales;
    for (int64_t start = 0; found && start < p->rows; start += most) {
        const int64_t rows = p->rows - start < most ? p->rows - start : most;
        const int large = rows * p->inner * p->outer >= PARALLEL;
        const int64_t lines = (width * PANEL / 128 + (rows + TILE - 1) / TILE - 1) / ((rows + TILE - 1) / TILE); /* for each tile */
        OMP(parallel if (large))
        {
            OMP(for schedule(static))
            for (int64_t r = 0; r < rows; r++)
                scales[r] = NAME(quantise)(p->x + (start + r) * p->stride, p->inner, bytes + r * width);
            OMP(for schedule(static))
            for (int64_t start_panel = 0; start_panel < panels; start_panel += group)
                for (int64_t r = 0; r < rows; r += TILE)
                    for (int64_t panel = start_panel; panel < panels && panel < start_panel + group; panel++)
                        NAME(tiles)(
                            p, bytes + r * width, width, scales + r, rows - r, start + r, panel,
                            p->panels + (panel + group) * PANEL * width + r / TILE * lines * 128, lines);
        }
        for (int64_t r = 0; r < rows; r++)
            if (isnan(scales[r]))
                in_float32(p, start + r, width);
    }
    free(bytes);
    free(scales);
    return found;
}

#undef COLUMNS
