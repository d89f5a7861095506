/* Uses a trained model in C99, without any library: reads representation.npy (d x k) and scale.npy, if there is one, from a directory
 * of `fedspan-aggregator export` (or `model` of `fedspan-sim run --out`), and a head from an npy file of shape (k, classes) or
 * (clients, k, classes). Each line of standard input has d - 1 features, separated by commas; a constant 1 follows. Prints the number
 * of the predicted class for each line.
 *
 *     cc -std=c99 use_model.c -o use_model
 *     ./use_model results head.npy 0 < rows.csv
 *
 * A firmware does the same with fixed arrays: z = B^T ((x - shift) * factor), scores = W^T z.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_VALUES 100000000

struct array {
    size_t rank, shape[3];
    double *values;
};

static void fail(const char *path, const char *reason) {
    fprintf(stderr, "use_model: %s: %s\n", path, reason);
    exit(1);
}

/* Reads an array of f64 in C order; `optional` files may be missing. */
static struct array read_npy(const char *path, int optional) {
    struct array array = {0, {1, 1, 1}, NULL};
    unsigned char start[10];
    char header[1024];
    FILE *file = fopen(path, "rb");
    if (!file) {
        if (optional) {
            return array;
        }
        fail(path, "cannot be opened");
    }
    if (fread(start, 1, 10, file) != 10 || memcmp(start, "\x93NUMPY", 6) != 0 || start[6] != 1) {
        fail(path, "no npy file of version 1");
    }
    size_t length = start[8] + 256u * start[9];
    if (length >= sizeof header || fread(header, 1, length, file) != length) {
        fail(path, "its header is cut off or too long");
    }
    header[length] = '\0';
    if (!strstr(header, "'<f8'") || !strstr(header, "'fortran_order': False")) {
        fail(path, "found another type or order, allowed: f64 in C order");
    }
    char *at = strstr(header, "'shape': (");
    if (!at) {
        fail(path, "its header has no shape");
    }
    size_t count = 1;
    for (at += strlen("'shape': ("); *at != ')' && array.rank < 3; array.rank++) {
        array.shape[array.rank] = strtoul(at, &at, 10);
        if (array.shape[array.rank] > MOST_VALUES || (count *= array.shape[array.rank]) > MOST_VALUES) {
            fail(path, "it is too large");
        }
        at += strspn(at, ", ");
    }
    if (count == 0) {
        fail(path, "it is empty");
    }
    array.values = malloc(count * sizeof *array.values);
    if (!array.values || fread(array.values, sizeof *array.values, count, file) != count) {
        fail(path, "its values are cut off");
    }
    fclose(file);
    return array;
}

int main(int argc, char **argv) {
    char path[4096], line[1 << 16];
    if (argc != 4) {
        fprintf(stderr, "usage: use_model DIRECTORY HEADS.npy CLIENT < rows.csv\n");
        return 2;
    }
    snprintf(path, sizeof path, "%s/representation.npy", argv[1]);
    /* Without this file heads act on all features ("learned-prior", "local-only"). */
    struct array basis = read_npy(path, 1);
    FILE *directory = basis.values ? NULL : fopen(argv[1], "rb");
    if (!basis.values && !directory) {
        fail(argv[1], "cannot be opened");
    }
    if (directory) {
        fclose(directory);
    }
    snprintf(path, sizeof path, "%s/scale.npy", argv[1]);
    struct array scale = read_npy(path, 1);
    struct array heads = read_npy(argv[2], 0);
    size_t client = strtoul(argv[3], NULL, 10), clients = heads.rank == 3 ? heads.shape[0] : 1;
    size_t classes = heads.shape[heads.rank - 1], k = heads.rank < 2 ? 0 : heads.shape[heads.rank - 2];
    size_t d = basis.values ? basis.shape[0] : k;
    if (heads.rank < 2 || (basis.values && (basis.rank != 2 || basis.shape[1] != k)) || client >= clients) {
        fail(argv[2], "its heads do not fit the representation, or it has no such client");
    }
    if (scale.values && (scale.shape[0] != 2 || scale.shape[1] != d)) {
        fail(path, "its shape is not 2 x d");
    }
    const double *head = heads.values + client * k * classes;
    double *z = malloc(k * sizeof *z), *scores = malloc(classes * sizeof *scores);
    if (!z || !scores) {
        fail("memory", "not enough");
    }
    for (unsigned long number = 1; fgets(line, sizeof line, stdin); number++) {
        char *at = line;
        if (!strchr(line, '\n') && !feof(stdin)) {
            fprintf(stderr, "use_model: line %lu: longer than %lu characters\n", number, (unsigned long)sizeof line - 2);
            return 1;
        }
        memset(z, 0, k * sizeof *z);
        memset(scores, 0, classes * sizeof *scores);
        for (size_t i = 0; i < d; i++) {
            double x = 1.0;
            if (i + 1 < d) {
                char *end;
                x = strtod(at, &end);
                if (end == at) {
                    fprintf(stderr, "use_model: line %lu: feature %lu is missing or no number\n", number, (unsigned long)i + 1);
                    return 1;
                }
                at = end + (*end == ',');
                if (i + 2 == d && at[strspn(at, " \t\r\n")] != '\0') {
                    fprintf(stderr, "use_model: line %lu: more than %lu features\n", number, (unsigned long)i + 1);
                    return 1;
                }
            }
            if (scale.values) {
                x = (x - scale.values[i]) * scale.values[d + i];
            }
            if (!basis.values) {
                z[i] = x;
                continue;
            }
            for (size_t j = 0; j < k; j++) {
                z[j] += basis.values[i * k + j] * x;
            }
        }
        size_t best = 0;
        for (size_t c = 0; c < classes; c++) {
            for (size_t j = 0; j < k; j++) {
                scores[c] += head[j * classes + c] * z[j];
            }
            best = scores[c] > scores[best] ? c : best;
        }
        printf("%lu\n", (unsigned long)best);
    }
    free(basis.values);
    free(scale.values);
    free(heads.values);
    free(z);
    free(scores);
    return 0;
}
