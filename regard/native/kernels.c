/* What PyTorch has no kernel for, each one call without Python in between.

   Everything here has a slow twin in Python, written with PyTorch from the formula, which is what runs where
   this file was not compiled; tests/test_native.py compares them. Steps are strides, in numbers if nothing else is
   said; what is last stands one after the other. */

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define MOST 512 /* keys of a query at most; as in __init__.py */
#define LANES 16 /* numbers that are computed at once */
#define PIECE 64 /* words that are passed over together if the best of them is not good enough */

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4)));
typedef float four __attribute__((vector_size(16), aligned(4)));
typedef int32_t places __attribute__((vector_size(4 * LANES)));

/* e^x for x <= 0, but for the last bit or two: 2^n e^r with |r| <= ln 2 / 2. By fmaf, which, unlike sums, a
   compiler does not rearrange. */
INLINE float power(float x)
{
    float z = x < -88.0f ? -88.0f : x, n = rintf(z * 1.44269504f);
    float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, z)), p = 1.98756915e-4f;
    p = fmaf(p, r, 1.39819995e-3f);
    p = fmaf(p, r, 8.33345190e-3f);
    p = fmaf(p, r, 4.16657960e-2f);
    p = fmaf(p, r, 1.66666655e-1f);
    p = fmaf(p, r, 5.00000012e-1f);
    union { float number; uint32_t bits; } y = {.number = 1.0f + fmaf(p, r * r, r)};
    y.bits += (uint32_t)(int32_t)n << 23;
    return x < -87.0f ? 0.0f : y.number;
}

INLINE float largest(const float *x, long count)
{
    float most = -INFINITY;
#pragma omp simd reduction(max : most)
    for (long i = 0; i < count; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* sum e^(x - most) */
INLINE float total_power(const float *x, long count, float most)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < count; i++) sum += power(x[i] - most);
    return sum;
}

INLINE lanes larger(lanes a, lanes b)
{
    places mine = a > b; /* -1 where it is so, else 0 */
    return (lanes)(((places)a & mine) | ((places)b & ~mine));
}

/* The lanes, so many places further. */
INLINE lanes turned(lanes x, int32_t by)
{
    const places first = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return __builtin_shuffle(x, first + by);
}

/* The sums of four. */
INLINE four totals(lanes a, lanes b, lanes c, lanes d)
{
    const places low = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}, high = low + 8;
    const places even = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27}, odd = even + 4;
    lanes ab = __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
    lanes cd = __builtin_shuffle(c, d, low) + __builtin_shuffle(c, d, high);
    lanes each = __builtin_shuffle(ab, cd, even) + __builtin_shuffle(ab, cd, odd); /* four of a, of b, of c, of d */
    const places two = {2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13};
    const places one = {1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14};
    each += __builtin_shuffle(each, two);
    each += __builtin_shuffle(each, one);
    const places first = {0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12};
    each = __builtin_shuffle(each, first);
    return *(four *)&each;
}

/* Where the keys stand that a query sees. */
INLINE long seen(const uint8_t *allow, long keys, int32_t *place)
{
    long count = 0;
    for (long m = 0; m < keys; m++) {
        place[count] = (int32_t)m;
        count += allow == NULL || allow[m];
    }
    return count;
}

/* One query of each of some heads, and the keys and values that they look at. */
struct Heads {
    const float *q[4], *k[4], *v[4];
    float *y[4];
    long next_k, next_v; /* from one key to the next */
};

/* y = sum_m softmax_m(scale q . k_m) v_m over the keys at `place`; nothing where there is none. Weights of four heads
   stand side by side, those of four keys in a vector. */
INLINE void read_four(struct Heads at, const int32_t *place, long count, float scale, long size, long wide)
{
    lanes w[MOST / 4], most = {0}, sum = {0};
    most -= INFINITY;
    long whole = (count + 3) / 4;
    if (whole) w[whole - 1] = most;
    for (long n = 0; n < count; n++) {
        lanes s[4] = {0};
        for (long h = 0; h < 4; h++)
            for (long i = 0; i < size; i += LANES)
                s[h] += *(const lanes *)(at.q[h] + i) * *(const lanes *)(at.k[h] + place[n] * at.next_k + i);
        *((four *)w + n) = scale * totals(s[0], s[1], s[2], s[3]);
    }
    for (long n = 0; n < whole; n++) most = larger(most, w[n]);
    most = larger(most, turned(most, 8));
    most = larger(most, turned(most, 4));
    for (long n = 0; n < whole; n++) {
        float *one = (float *)&w[n];
#pragma omp simd
        for (long i = 0; i < LANES; i++) one[i] = power(one[i] - most[i]);
        sum += w[n];
    }
    sum += turned(sum, 8);
    sum += turned(sum, 4);
    for (long start = 0; start < wide; start += LANES) {
        lanes y[4] = {0};
        for (long n = 0; n < count; n++)
            for (long h = 0; h < 4; h++)
                y[h] += ((float *)w)[4 * n + h] * *(const lanes *)(at.v[h] + place[n] * at.next_v + start);
        for (long h = 0; h < 4; h++) *(lanes *)(at.y[h] + start) = count ? y[h] / sum[h] : y[h];
    }
}

/* The same for one head of any size. */
INLINE void read_one(struct Heads at, const int32_t *place, long count, float scale, long size, long wide)
{
    const float *q = at.q[0];
    float w[MOST], *y = at.y[0];
    for (long n = 0; n < count; n++) {
        const float *k = at.k[0] + place[n] * at.next_k;
        float s = 0.0f;
#pragma omp simd reduction(+ : s)
        for (long i = 0; i < size; i++) s += q[i] * k[i];
        w[n] = scale * s;
    }
    const float most = largest(w, count), sum = total_power(w, count, most);
    memset(y, 0, (size_t)wide * sizeof(float));
    for (long n = 0; n < count; n++) {
        const float *v = at.v[0] + place[n] * at.next_v, part = power(w[n] - most) / sum;
#pragma omp simd
        for (long i = 0; i < wide; i++) y[i] += part * v[i];
    }
}

/* The attention of many rows that ask little each: q (B, H, L, size), k (B, G, M, size), v (B, G, M, wide),
   allow (B, H, L, M) or NULL, y (B, L, H, wide). The last axis of each is one number after the other. */
void attend_few(const float *q, const float *k, const float *v, const uint8_t *allow, float *y, float scale,
                long B, long H, long G, long L, long M, long size, long wide, const long q_step[3],
                const long k_step[3], const long v_step[3], const long allow_step[3])
{
    const int alike = !allow || !allow_step[1]; /* all heads see the same keys */
    const long together = alike && H % 4 == 0 && size % LANES == 0 && wide % LANES == 0 ? 4 : 1;
#pragma omp parallel for
    for (long b = 0; b < B; b++) {
        int32_t place[MOST + 1];
        for (long l = 0; l < L; l++)
            for (long h = 0; h < H; h += together) {
                const uint8_t *mine = allow ? allow + b * allow_step[0] + h * allow_step[1] + l * allow_step[2] : NULL;
                long count = seen(mine, M, place);
                struct Heads at = {.next_k = k_step[2], .next_v = v_step[2]};
                for (long n = 0; n < together; n++) {
                    long g = (h + n) * G / H;
                    at.q[n] = q + b * q_step[0] + (h + n) * q_step[1] + l * q_step[2];
                    at.k[n] = k + b * k_step[0] + g * k_step[1];
                    at.v[n] = v + b * v_step[0] + g * v_step[1];
                    at.y[n] = y + ((b * L + l) * H + h + n) * wide;
                }
                if (together == 4 && size == 32 && wide == 32)
                    read_four(at, place, count, scale, 32, 32);
                else if (together == 4)
                    read_four(at, place, count, scale, size, wide);
                else
                    read_one(at, place, count, scale, size, wide);
            }
    }
}

INLINE float total(lanes x)
{
    float sum = 0.0f;
    for (long i = 0; i < LANES; i++) sum += x[i];
    return sum;
}

/* y[n] = x . w[n] + bias[n] for one row x and N rows of W, each `size` long. Each thread reads a share of W from its
   first number to its last: rows side by side are brought from memory a fifth slower. */
void row_times(const float *x, const float *w, const float *bias, float *y, long N, long size)
{
    const long even = size - size % (4 * LANES);
#pragma omp parallel for schedule(static)
    for (long n = 0; n < N; n++) {
        const float *row = w + n * size;
        lanes s[4] = {0};
        for (long i = 0; i < even; i += 4 * LANES)
            for (long j = 0; j < 4; j++)
                s[j] += *(const lanes *)(x + i + j * LANES) * *(const lanes *)(row + i + j * LANES);
        float sum = bias ? bias[n] : 0.0f;
        for (long i = even; i < size; i++) sum += x[i] * row[i];
        y[n] = sum + total((s[0] + s[1]) + (s[2] + s[3]));
    }
}

/* held . w for bytes without a sign and with one. */
#ifdef __AVX512F__
#define BYTES __attribute__((target("avx512vnni"))) /* who calls it asks whether the processor has it */
BYTES static int64_t dot_of_bytes(const uint8_t *held, const int8_t *w, long size)
{
    const long even = size - size % 128;
    __m512i s[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (long i = 0; i < even; i += 128)
        for (long j = 0; j < 2; j++)
            s[j] = _mm512_dpbusd_epi32(s[j], _mm512_loadu_si512(held + i + 64 * j), _mm512_loadu_si512(w + i + 64 * j));
    int64_t sum = _mm512_reduce_add_epi32(_mm512_add_epi32(s[0], s[1]));
    for (long i = even; i < size; i++) sum += (int32_t)held[i] * w[i];
    return sum;
}
#else
static int64_t dot_of_bytes(const uint8_t *held, const int8_t *w, long size)
{
    int32_t sum = 0;
    for (long i = 0; i < size; i++) sum += (int32_t)held[i] * w[i];
    return sum;
}
#endif

/* The same for numbers of a byte: y[n] = s scale[n] (round(x / s) . w[n]) + bias[n],  s = max |x| / 127.
   What x becomes is written to `held` from 1 to 255, with 128 for zero: the processor multiplies a byte without a sign
   by one with a sign. total[n] is the sum of w[n], by which what was added to x is taken away again. */
void row_of_bytes(const float *x, const int8_t *w, const float *scale, const int64_t *total, const float *bias,
                  float *y, uint8_t *held, long N, long size)
{
    float most = 0.0f;
    int none = 0; /* whether something is no number: then nothing of y is */
    for (long i = 0; i < size; i++) {
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        none |= x[i] != x[i];
    }
    const float step = none ? NAN : fmaxf(most * (1.0f / 127.0f), 1e-30f);
    for (long i = 0; i < size; i++) held[i] = none ? 128 : (uint8_t)(x[i] / step + 128.5f);
#pragma omp parallel for schedule(static)
    for (long n = 0; n < N; n++) {
        float sum = (float)(dot_of_bytes(held, w + n * size, size) - 128 * total[n]);
        y[n] = sum * scale[n] * step + (bias ? bias[n] : 0.0f);
    }
}

#ifdef __AVX512F__
#define TALL 12 /* rows of x that are multiplied at once: 12 x 2 sums and 2 pieces of W fill 26 of 32 registers */
#else
#define TALL 3
#endif
#define WIDE 2 /* pieces of W that are multiplied at once */

/* y[r] = x[r] W^T + bias for `tall` rows of x and WIDE * LANES rows of W, of which the first `count` are real. */
INLINE void tile(const long tall, const float *x, const float *w, const float *bias, float *y, long count, long N,
                 long size)
{
    lanes s[TALL][WIDE];
#pragma GCC unroll 12
    for (long r = 0; r < tall; r++)
        for (long c = 0; c < WIDE; c++) s[r][c] = (lanes){0};
    for (long i = 0; i < size; i++, w += WIDE * LANES) {
        const lanes first = *(const lanes *)w, second = *(const lanes *)(w + LANES);
#pragma GCC unroll 12
        for (long r = 0; r < tall; r++) {
            s[r][0] += x[r * size + i] * first;
            s[r][1] += x[r * size + i] * second;
        }
    }
    float added[WIDE * LANES] = {0};
    if (bias) memcpy(added, bias, (size_t)count * sizeof(float));
#pragma GCC unroll 12
    for (long r = 0; r < tall; r++)
        for (long c = 0; c < WIDE; c++) {
            lanes sum = s[r][c] + *(const lanes *)(added + c * LANES);
            long real = count - c * LANES < LANES ? count - c * LANES : LANES;
            if (real == LANES)
                *(lanes *)(y + r * N + c * LANES) = sum;
            else if (real > 0)
                memcpy(y + r * N + c * LANES, &sum, (size_t)real * sizeof(float));
        }
}

/* y = x W^T + bias for several rows. W stands in panels of WIDE * LANES rows, column by column, the last one filled
   up with zeros: a panel is near while all rows of x pass by. */
void rows_times(const float *x, const float *panels, const float *bias, float *y, long rows, long N, long size)
{
    const long width = WIDE * LANES, share = 16 * TALL;
#pragma omp parallel for collapse(2) if (rows * N * size >= 1 << 20)
    for (long start = 0; start < rows; start += share)
        for (long n = 0; n < N; n += width) {
            const long count = N - n < width ? N - n : width, end = start + share < rows ? start + share : rows;
            const float *w = panels + n * size, *more = bias ? bias + n : NULL;
            long r = start;
            for (; r + TALL <= end; r += TALL) tile(TALL, x + r * size, w, more, y + r * N + n, count, N, size);
            for (; r + TALL / 3 <= end; r += TALL / 3)
                tile(TALL / 3, x + r * size, w, more, y + r * N + n, count, N, size);
            for (; r < end; r++) tile(1, x + r * size, w, more, y + r * N + n, count, N, size);
        }
}

/* y = (x - mean) / sqrt(mean((x - mean)^2) + eps) weight + bias, row by row; without the mean if not `centred`. */
void norm_rows(const float *x, const float *weight, const float *bias, float *y, float eps, long rows, long size,
               long centred)
{
#pragma omp parallel for if (rows * size >= 1 << 15)
    for (long n = 0; n < rows; n++) {
        const float *from = x + n * size;
        float *to = y + n * size, mean = 0.0f, square = 0.0f;
        if (centred) {
#pragma omp simd reduction(+ : mean)
            for (long i = 0; i < size; i++) mean += from[i];
            mean /= (float)size;
        }
#pragma omp simd reduction(+ : square)
        for (long i = 0; i < size; i++) square += (from[i] - mean) * (from[i] - mean);
        const float factor = 1.0f / sqrtf(square / (float)size + eps);
        if (bias)
            for (long i = 0; i < size; i++) to[i] = (from[i] - mean) * factor * weight[i] + bias[i];
        else
            for (long i = 0; i < size; i++) to[i] = (from[i] - mean) * factor * weight[i];
    }
}

/* room[b, g, place[b, n]] = new[b, n, g]: `size` bytes each, and steps in bytes. */
void place_rows(char *room, const char *new, const int64_t *place, long B, long N, long G, long size,
                const long room_step[3], const long new_step[3])
{
#pragma omp parallel for if (B * N * G * size >= 1 << 17)
    for (long b = 0; b < B; b++)
        for (long n = 0; n < N; n++)
            for (long g = 0; g < G; g++)
                memcpy(room + b * room_step[0] + g * room_step[1] + place[b * N + n] * room_step[2],
                       new + b * new_step[0] + n * new_step[1] + g * new_step[2], (size_t)size);
}

/* room[to[n], g] = room[from[n], g]: the first `size` bytes of each, and steps in bytes. */
void move_rows(char *room, const int64_t *to, const int64_t *from, long N, long G, long size, const long step[3])
{
#pragma omp parallel for if (N * G * size >= 1 << 17)
    for (long n = 0; n < N; n++)
        for (long g = 0; g < G; g++)
            memcpy(room + to[n] * step[0] + g * step[1], room + from[n] * step[0] + g * step[1], (size_t)size);
}

/* Of sentence b with N hypotheses, the `count` best of log softmax(logits) + alive over N and V: log p, which
   hypothesis and which word, best first, the first of those that are alike. `barred` (or NULL): who may not
   take the word `end`. Places that nobody takes are -inf. */
void best_words(const float *logits, const double *alive, const uint8_t *barred, long end, long B, long N, long V,
                long count, double *logp, int64_t *parent, int64_t *word)
{
#pragma omp parallel for
    for (long b = 0; b < B; b++) {
        double *found = logp + b * count;
        int64_t *from = parent + b * count, *what = word + b * count;
        for (long c = 0; c < count; c++) found[c] = -INFINITY, from[c] = what[c] = 0;
        for (long n = 0; n < N; n++) {
            const float *x = logits + (b * N + n) * V;
            const float most = largest(x, V), over = logf(total_power(x, V, most));
            const double before = alive[b * N + n];
            for (long start = 0; start < V; start += PIECE) {
                long stop = start + PIECE < V ? start + PIECE : V;
                if (!((double)(largest(x + start, stop - start) - most - over) + before > found[count - 1])) continue;
                for (long i = start; i < stop; i++) {
                    double here = (double)(x[i] - most - over) + before;
                    if (!(here > found[count - 1]) || (barred && barred[b] && i == end)) continue;
                    long c = count - 1;
                    for (; c > 0 && here > found[c - 1]; c--)
                        found[c] = found[c - 1], from[c] = from[c - 1], what[c] = what[c - 1];
                    found[c] = here, from[c] = n, what[c] = i;
                }
            }
        }
    }
}
