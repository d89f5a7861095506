/* The QR of SPEC.md, section 7: the same bits as the golden vector. C99, libc and sqrtf.
   cc -std=c99 -ffp-contract=off check_qr.c -lm -o check_qr && ./check_qr */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "vectors.h"

/* Column i times column j; b is row-major, rows x cols. From the first row to the last, in float. */
static float dot(const float *b, int rows, int cols, int i, int j)
{
    float sum = 0;
    for (int r = 0; r < rows; r++) sum = sum + b[r * cols + i] * b[r * cols + j];
    return sum;
}

/* Returns -1, or the column that depends on those before it. */
static int orthonormalise(float *b, int rows, int cols)
{
    for (int j = 0; j < cols; j++) {
        float before = dot(b, rows, cols, j, j), after;
        for (int pass = 0; pass < 2; pass++) {
            for (int i = 0; i < j; i++) {
                float r = dot(b, rows, cols, i, j);
                for (int k = 0; k < rows; k++) b[k * cols + j] -= r * b[k * cols + i];
            }
        }
        after = dot(b, rows, cols, j, j);
        if (!(after > before * 1e-12f && isfinite(after) && after >= 1.17549435e-38f)) return j;
        for (int k = 0; k < rows; k++) b[k * cols + j] /= sqrtf(after);
    }
    return -1;
}

static void load(float *b, const uint8_t *bytes, int n)
{
    for (int i = 0; i < n; i++, bytes += 4) {
        uint32_t bits = (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
                        (uint32_t)bytes[3] << 24;
        memcpy(&b[i], &bits, 4);
    }
}

int main(void)
{
    float b[40], expected[40];
    load(b, representation_i8_decoded, 40);
    load(expected, representation_i8_orthonormal, 40);
    int column = orthonormalise(b, 20, 2);
    if (column >= 0 || memcmp(b, expected, sizeof b) != 0) {
        printf("the QR has other bits (column %d)\n", column);
        return 1;
    }
    (void)fedspan_vectors;
    (void)provision_record;
    printf("OK\n");
    return 0;
}
