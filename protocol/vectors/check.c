/* Reads the golden vectors by the rules of SPEC.md alone. C99 and libc.
   cc -std=c99 check.c -o check && ./check */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

#define REQUIRE(x) \
    do { if (!(x)) { printf("%s:%d: %s\n", __FILE__, __LINE__, #x); exit(1); } } while (0)

/* SPEC 3: CRC-32C. Start with 0; may be continued over several pieces. */
static uint32_t crc32c(uint32_t crc, const uint8_t *p, size_t n)
{
    for (crc = ~crc; n > 0; n--) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

/* SPEC 2: undoes COBS; returns the length of the plain frame. */
static size_t uncobs(const uint8_t *in, size_t n, uint8_t *out, size_t room)
{
    size_t i = 0, len = 0;
    REQUIRE(n >= 2 && in[n - 1] == 0);
    while (i < n - 1) {
        size_t code = in[i++];
        REQUIRE(code != 0 && i + code - 1 <= n - 1);
        for (size_t k = 1; k < code; k++) {
            REQUIRE(in[i] != 0 && len < room);
            out[len++] = in[i++];
        }
        if (code != 0xFF && i < n - 1) {
            REQUIRE(len < room);
            out[len++] = 0;
        }
    }
    return len;
}

/* SPEC 4: a reader over the message bytes. */
static const uint8_t *at, *end;

static uint64_t varint(unsigned bits)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < bits; shift += 7) {
        REQUIRE(at < end);
        REQUIRE(bits - shift >= 7 || (*at & 0x7F) >> (bits - shift) == 0);
        value |= (uint64_t)(*at & 0x7F) << shift;
        if (*at++ < 0x80) return value;
    }
    REQUIRE(!"varint too long");
    return 0;
}

static uint8_t byte(void)
{
    REQUIRE(at < end);
    return *at++;
}

static float f32(void)
{
    REQUIRE(end - at >= 4);
    uint32_t bits = (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
    float value;
    memcpy(&value, &bits, 4);
    at += 4;
    return value;
}

/* Opens one vector: at..end is then message and body. */
static uint8_t plain[4096];

static void open_frame(const uint8_t *wire, size_t n)
{
    size_t len = uncobs(wire, n, plain, sizeof plain);
    REQUIRE(len >= 5 && plain[0] == 0x10);
    uint32_t check = crc32c(0, plain, len - 4);
    at = plain + len - 4;
    for (int i = 0; i < 4; i++) REQUIRE(at[i] == (uint8_t)(check >> 8 * i));
    end = at;
    at = plain + 1;
}

/* Compares fields of the given bytes (1 = raw byte, 2, 4, 8 = varint) with unsigned long long values. */
static void expect(const char *fields, ...)
{
    va_list values;
    for (va_start(values, fields); *fields; fields++) {
        uint64_t got = *fields == '1' ? byte() : varint(8u * (unsigned)(*fields - '0'));
        REQUIRE(got == va_arg(values, unsigned long long));
    }
    va_end(values);
}

int main(void)
{
    uint32_t schema = 0;
    float b[40];

    REQUIRE(crc32c(0, (const uint8_t *)"123456789", 9) == 0xE3069283u);
    for (size_t v = 0; v < sizeof fedspan_vectors / sizeof *fedspan_vectors; v++) {
        open_frame(fedspan_vectors[v].bytes, fedspan_vectors[v].length);
        if (strcmp(fedspan_vectors[v].name, "to_server_hello") != 0 && !strstr(fedspan_vectors[v].name, "_private_use_") &&
            !strstr(fedspan_vectors[v].name, "_learned_prior_") &&
            strcmp(fedspan_vectors[v].name, "to_device_next_round") != 0 &&
            strcmp(fedspan_vectors[v].name, "to_device_announced") != 0 &&
            strcmp(fedspan_vectors[v].name, "to_device_new_key") != 0 &&
            strcmp(fedspan_vectors[v].name, "to_server_report") != 0 &&
            strcmp(fedspan_vectors[v].name, "to_server_update_gradient_i8_top_k") != 0)
            schema = crc32c(schema, at, (size_t)(end - at));
    }
    REQUIRE(schema == FEDSPAN_SCHEMA_HASH);

    open_frame(to_server_hello, sizeof to_server_hello);
    expect("4248", 0ull, 2ull, 0ull + FEDSPAN_SCHEMA_HASH, 0x0123456789ABCDEFull); /* tag, version, schema, device */
    expect("24222", 256ull, 0ull, 20ull, 2ull, 1ull);  /* frame limit, Linear, d, k, C */
    expect("2214144", 3ull, 2ull, 7ull, 0ull, 2ull, 40ull, 42ull); /* tasks, roles, encodings, F32, sizes */
    expect("4", 0ull); /* no noise */
    REQUIRE(at == end);

    open_frame(to_server_hello_private, sizeof to_server_hello_private);
    expect("4248", 0ull, 2ull, 0x01020304ull, 0x0123456789ABCDEFull);
    expect("24222", 256ull, 0ull, 20ull, 2ull, 1ull);
    expect("2214144", 32ull, 8ull, 7ull, 0ull, 2ull, 40ull, 80ull); /* FedPower, Subspace */
    expect("4488", 1ull, 1ull << 21, 10ull << 21, 3ull << 21); /* Gaussian: release, budget, spent */
    REQUIRE(at == end);

    open_frame(to_device_round_open_fed_power, sizeof to_device_round_open_fed_power);
    expect("442424444", 2ull, 7ull, 1ull, 5ull, 2ull, 0ull, 1ull, 0ull, 1ull); /* FedPower: 2, Features, both, F32; one */
    expect("44222", 3ull, 0ull, 20ull, 2ull, 0ull); /* tensor: Subspace, F32, 20 x 2, in the body */
    at += 160;
    REQUIRE(at == end);

    open_frame(to_device_round_open_feature_sums, sizeof to_device_round_open_feature_sums);
    expect("442422", 2ull, 7ull, 1ull, 10ull, 3ull, 2ull); /* RoundOpen, round, stage, FeatureSums: 2 from 3 */
    expect("4", 0ull); /* no tensors */
    REQUIRE(at == end);

    open_frame(to_device_private_use_13, sizeof to_device_private_use_13);
    expect("44244", 2ull, 7ull, 1ull, 13ull, 1ull); /* RoundOpen, round, stage, Private13, uploaded as F16 */
    REQUIRE(f32() == 0.5f && f32() == 3.0f && f32() == -1.0f && f32() > 0.0f && f32() > 3.4e38f);
    expect("444222", 1ull, 0ull, 0ull, 4ull, 2ull, 0ull); /* one tensor: Representation, F32, 4 x 2, in the body */
    at += 32;
    REQUIRE(at == end);

    open_frame(to_server_update_feature_sums, sizeof to_server_update_feature_sums);
    expect("44244", 1ull, 7ull, 1ull, 3ull, 0ull); /* Update, round, stage, 3 samples, 0 skipped */
    expect("444222", 1ull, 8ull, 0ull, 2ull, 8ull, 0ull); /* one tensor: FeatureSums, F32, 2 x 8, in the body */
    static const float samples[2][3] = {{1013.25f, 1008.5f, 1017.0f}, {-2.0f, 0.5f, -0.25f}};
    for (int j = 0; j < 2; j++) {
        int exponent = (int)f32(); /* SPEC 5, FeatureSums */
        double unit = 1.0, sum = 0.0, squares = 0.0, limb;
        for (int i = exponent; i < 0; i++) unit /= 2.0;
        for (int i = 0; i < 3; i++) {
            sum += (double)samples[j][i];
            squares += (double)samples[j][i] * (double)samples[j][i];
        }
        limb = 1.0;
        for (int i = 0; i < 3; i++, limb *= 4194304.0) sum -= (double)f32() * limb * unit;
        limb = 1.0;
        for (int i = 0; i < 4; i++, limb *= 4194304.0) squares -= (double)f32() * limb * unit * unit;
        REQUIRE(sum == 0.0 && squares == 0.0);
    }
    REQUIRE(at == end);

    open_frame(to_device_ack_rejected_norm, sizeof to_device_ack_rejected_norm);
    expect("44244", 5ull, 7ull, 1ull, 3ull, 4ull); /* Ack, round, stage, Rejected, NormOverBound */
    REQUIRE(f32() == 12.5f && f32() == 10.0f && at == end);

    open_frame(to_device_round_open_f32, sizeof to_device_round_open_f32);
    expect("4424", 2ull, 7ull, 1ull, 0ull); /* RoundOpen, round, stage, FedRep */
    REQUIRE(f32() == 0.25f);
    expect("4", 0ull); /* LeastSquares */
    REQUIRE(f32() == 0.0f);
    expect("44", 0ull, 0ull); /* upload Gradient, as F32 */
    expect("444222", 1ull, 0ull, 0ull, 20ull, 2ull, 0ull); /* one tensor: Representation, F32, 20 x 2, in the body */
    for (int i = 0; i < 40; i++) b[i] = f32();
    REQUIRE(at == end);

    open_frame(to_device_round_open_i8, sizeof to_device_round_open_i8);
    expect("442442", 2ull, 7ull, 1ull, 1ull, 1ull, 10ull); /* RoundOpen, round, stage, FitHead, Gradient, steps */
    REQUIRE(f32() == 0.5f);
    expect("444222", 1ull, 0ull, 2ull, 20ull, 2ull, 0ull);
    for (int i = 0; i < 40; i += 32) {
        float scale = f32();
        for (int k = i; k < 40 && k < i + 32; k++) {
            int q = byte();
            b[k] = scale * (float)(q < 128 ? q : q - 256);
        }
    }
    REQUIRE(at == end);
    end = (at = representation_i8_decoded) + sizeof representation_i8_decoded;
    for (int i = 0; i < 40; i++) REQUIRE(f32() == b[i]);

    /* SPEC 13: magic, version, length, device, epoch, key, check; no entries. */
    static const uint8_t fixed[] = {'F', 'S', 'P', 'V', 1, 0, 54, 0, 0xEF, 0xCD, 0xAB, 0x89, 0x67, 0x45, 0x23, 1, 3, 2};
    REQUIRE(sizeof provision_record == 54 && memcmp(provision_record, fixed, sizeof fixed) == 0);
    for (int i = 0; i < 32; i++) REQUIRE(provision_record[18 + i] == 0x40 + i);
    uint32_t crc = crc32c(0, provision_record, 50);
    for (int i = 0; i < 4; i++) REQUIRE(provision_record[50 + i] == (uint8_t)(crc >> 8 * i));

    /* The same with an entry: tag 1, 30 bytes: square of the multiplier, budget, rows, slot, clip, iterations. */
    static const uint8_t entry[] = {1, 30, 0, 1, 2, 3, 4, 5, 0, 0, 32, 33, 34, 35, 36, 37, 38, 39,
                                    0xe8, 3, 0, 0, 0xdc, 5, 0, 0, 0, 0, 0x40, 0x3f, 3, 0};
    REQUIRE(sizeof provision_with_noise == 86 && provision_with_noise[6] == 86 && provision_with_noise[7] == 0);
    REQUIRE(memcmp(provision_with_noise, provision_record, 6) == 0);
    REQUIRE(memcmp(provision_with_noise + 8, provision_record + 8, 42) == 0);
    REQUIRE(memcmp(provision_with_noise + 50, entry, sizeof entry) == 0);
    crc = crc32c(0, provision_with_noise, 82);
    for (int i = 0; i < 4; i++) REQUIRE(provision_with_noise[82 + i] == (uint8_t)(crc >> 8 * i));
    printf("OK\n");
    return 0;
}
