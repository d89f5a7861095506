/* Section 12 of SPEC.md in C99 and libc, written from that text and the RFCs: opens the sealed vectors, seals
   them again to the same bytes, and refuses the forged one.
   cc -std=c99 check_sealed.c -o check_sealed && ./check_sealed

   The first half may be copied into a device. It is written to be read; where speed or side channels of the core
   matter, take audited primitives instead and keep the composition. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

/* ---- SHA-256 (FIPS 180-4, section 6.2) ---- */

struct sha256 { uint32_t h[8]; uint8_t block[64]; uint64_t length; };

static const uint32_t ROUND[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t right(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void sha256_block(uint32_t h[8], const uint8_t *p)
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = right(w[i - 15], 7) ^ right(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = right(w[i - 2], 17) ^ right(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = right(v[4], 6) ^ right(v[4], 11) ^ right(v[4], 25);
        uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + ROUND[i] + w[i];
        uint32_t s0 = right(v[0], 2) ^ right(v[0], 13) ^ right(v[0], 22);
        uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}

static void sha256_start(struct sha256 *s)
{
    static const uint32_t first[8] = {
        0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
    };
    memcpy(s->h, first, sizeof first);
    s->length = 0;
}

static void sha256_add(struct sha256 *s, const uint8_t *p, size_t n)
{
    while (n-- > 0) {
        s->block[s->length++ % 64] = *p++;
        if (s->length % 64 == 0) sha256_block(s->h, s->block);
    }
}

static void sha256_end(struct sha256 *s, uint8_t out[32])
{
    static const uint8_t one = 0x80, zero = 0;
    uint64_t bits = s->length * 8;
    uint8_t length[8];
    sha256_add(s, &one, 1);
    while (s->length % 64 != 56) sha256_add(s, &zero, 1);
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(s, length, 8);
    for (int i = 0; i < 32; i++) out[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

/* ---- HMAC (RFC 2104) of up to three pieces, and HKDF (RFC 5869) ---- */

struct piece { const uint8_t *bytes; size_t n; };

static void hmac(const uint8_t *key, size_t key_n, const struct piece *pieces, int count, uint8_t out[32])
{
    struct sha256 s;
    uint8_t block[64] = {0}, inner[32];
    if (key_n > 64) {
        sha256_start(&s);
        sha256_add(&s, key, key_n);
        sha256_end(&s, block);
    } else if (key_n > 0) {
        memcpy(block, key, key_n);
    }
    for (int i = 0; i < 64; i++) block[i] ^= 0x36;
    sha256_start(&s);
    sha256_add(&s, block, 64);
    for (int i = 0; i < count; i++) sha256_add(&s, pieces[i].bytes, pieces[i].n);
    sha256_end(&s, inner);
    for (int i = 0; i < 64; i++) block[i] ^= 0x36 ^ 0x5c;
    sha256_start(&s);
    sha256_add(&s, block, 64);
    sha256_add(&s, inner, 32);
    sha256_end(&s, out);
}

static void extract(const uint8_t *salt, size_t salt_n, const uint8_t *key, size_t n, uint8_t prk[32])
{
    struct piece piece = {key, n};
    hmac(salt, salt_n, &piece, 1, prk);
}

static void expand(const uint8_t prk[32], const uint8_t *info, size_t n, uint8_t *out, size_t length)
{
    uint8_t t[32], number = 1;
    for (size_t done = 0; done < length; done += 32, number++) {
        struct piece pieces[3] = {{t, done == 0 ? 0 : 32}, {info, n}, {&number, 1}};
        hmac(prk, 32, pieces, 3, t);
        memcpy(out + done, t, length - done < 32 ? length - done : 32);
    }
}

/* ---- ChaCha20 (RFC 8439, sections 2.3 and 2.4) ---- */

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void quarter(uint32_t *x, int a, int b, int c, int d)
{
    x[a] += x[b]; x[d] = right(x[d] ^ x[a], 16);
    x[c] += x[d]; x[b] = right(x[b] ^ x[c], 20);
    x[a] += x[b]; x[d] = right(x[d] ^ x[a], 24);
    x[c] += x[d]; x[b] = right(x[b] ^ x[c], 25);
}

static void chacha20_block(const uint8_t key[32], uint32_t block, const uint8_t nonce[12], uint8_t out[64])
{
    uint32_t start[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574}, x[16];
    for (int i = 0; i < 8; i++) start[4 + i] = get32(key + 4 * i);
    start[12] = block;
    for (int i = 0; i < 3; i++) start[13 + i] = get32(nonce + 4 * i);
    memcpy(x, start, sizeof x);
    for (int i = 0; i < 10; i++) {
        quarter(x, 0, 4, 8, 12); quarter(x, 1, 5, 9, 13); quarter(x, 2, 6, 10, 14); quarter(x, 3, 7, 11, 15);
        quarter(x, 0, 5, 10, 15); quarter(x, 1, 6, 11, 12); quarter(x, 2, 7, 8, 13); quarter(x, 3, 4, 9, 14);
    }
    for (int i = 0; i < 64; i++) out[i] = (uint8_t)((x[i / 4] + start[i / 4]) >> 8 * (i % 4));
}

static void chacha20(const uint8_t key[32], uint32_t block, const uint8_t nonce[12], uint8_t *text, size_t n)
{
    uint8_t stream[64];
    for (size_t i = 0; i < n; i++) {
        if (i % 64 == 0) chacha20_block(key, block++, nonce, stream);
        text[i] ^= stream[i % 64];
    }
}

/* ---- Poly1305 (RFC 8439, section 2.5): five limbs of 26 bits, so that products fit 64 bits ---- */

struct poly1305 { uint32_t r[5], h[5], s[4]; };

static void poly1305_start(struct poly1305 *p, const uint8_t key[32])
{
    uint8_t r[16];
    memcpy(r, key, 16);
    for (int i = 3; i < 16; i += 4) r[i] &= 15;
    for (int i = 4; i < 16; i += 4) r[i] &= 252;
    p->r[0] = get32(r) & 0x3ffffff;
    p->r[1] = get32(r + 3) >> 2 & 0x3ffffff;
    p->r[2] = get32(r + 6) >> 4 & 0x3ffffff;
    p->r[3] = get32(r + 9) >> 6 & 0x3ffffff;
    p->r[4] = get32(r + 12) >> 8;
    memset(p->h, 0, sizeof p->h);
    for (int i = 0; i < 4; i++) p->s[i] = get32(key + 16 + 4 * i);
}

/* h = (h + block + 2^128) * r mod 2^130 - 5, not quite reduced. */
static void poly1305_block(struct poly1305 *p, const uint8_t block[16])
{
    uint64_t d[5], carry = 0;
    p->h[0] += get32(block) & 0x3ffffff;
    p->h[1] += get32(block + 3) >> 2 & 0x3ffffff;
    p->h[2] += get32(block + 6) >> 4 & 0x3ffffff;
    p->h[3] += get32(block + 9) >> 6 & 0x3ffffff;
    p->h[4] += get32(block + 12) >> 8 | 1u << 24;
    for (int i = 0; i < 5; i++) {
        d[i] = 0;
        for (int j = 0; j < 5; j++) /* 2^130 is 5 */
            d[i] += (uint64_t)p->h[j] * (j <= i ? p->r[i - j] : 5 * p->r[5 + i - j]);
    }
    for (int i = 0; i < 5; i++) {
        d[i] += carry;
        carry = d[i] >> 26;
        p->h[i] = (uint32_t)d[i] & 0x3ffffff;
    }
    carry = p->h[0] + carry * 5;
    p->h[0] = (uint32_t)carry & 0x3ffffff;
    p->h[1] += (uint32_t)(carry >> 26);
}

/* The bytes, filled up with zeros to whole blocks (section 2.8). */
static void poly1305_padded(struct poly1305 *p, const uint8_t *bytes, size_t n)
{
    while (n > 0) {
        uint8_t block[16] = {0};
        size_t now = n < 16 ? n : 16;
        memcpy(block, bytes, now);
        poly1305_block(p, block);
        bytes += now;
        n -= now;
    }
}

static void poly1305_end(struct poly1305 *p, uint8_t tag[16])
{
    uint32_t g[5], carry, less;
    for (int turn = 0; turn < 2; turn++) { /* now every limb has 26 bits */
        carry = 0;
        for (int i = 0; i < 5; i++) {
            p->h[i] += carry;
            carry = p->h[i] >> 26;
            p->h[i] &= 0x3ffffff;
        }
        p->h[0] += 5 * carry;
    }
    carry = 5; /* g = h + 5 - 2^130: it is h mod 2^130 - 5, unless it is below zero */
    for (int i = 0; i < 5; i++) {
        g[i] = p->h[i] + carry;
        carry = g[i] >> 26;
        g[i] &= 0x3ffffff;
    }
    less = carry - 1; /* all ones if h is the smaller one */
    for (int i = 0; i < 5; i++) p->h[i] = (p->h[i] & less) | (g[i] & ~less);
    uint32_t words[4] = {
        p->h[0] | p->h[1] << 26, p->h[1] >> 6 | p->h[2] << 20,
        p->h[2] >> 12 | p->h[3] << 14, p->h[3] >> 18 | p->h[4] << 8,
    };
    uint64_t sum = 0;
    for (int i = 0; i < 4; i++) {
        sum = (sum >> 32) + words[i] + p->s[i];
        for (int k = 0; k < 4; k++) tag[4 * i + k] = (uint8_t)(sum >> 8 * k);
    }
}

/* ---- ChaCha20-Poly1305 (RFC 8439, section 2.8) ---- */

static void authenticate(const uint8_t key[32], const uint8_t nonce[12], const uint8_t *head, size_t head_n,
                         const uint8_t *secret, size_t n, uint8_t tag[16])
{
    struct poly1305 p;
    uint8_t first[64], lengths[16];
    chacha20_block(key, 0, nonce, first);
    poly1305_start(&p, first);
    poly1305_padded(&p, head, head_n);
    poly1305_padded(&p, secret, n);
    for (int i = 0; i < 8; i++) {
        lengths[i] = (uint8_t)((uint64_t)head_n >> 8 * i);
        lengths[8 + i] = (uint8_t)((uint64_t)n >> 8 * i);
    }
    poly1305_padded(&p, lengths, 16);
    poly1305_end(&p, tag);
}

static void encrypt(const uint8_t key[32], const uint8_t nonce[12], const uint8_t *head, size_t head_n,
                    uint8_t *text, size_t n, uint8_t tag[16])
{
    chacha20(key, 1, nonce, text, n);
    authenticate(key, nonce, head, head_n, text, n, tag);
}

/* 0 if the tag is right; else -1, and the text is as it was. */
static int decrypt(const uint8_t key[32], const uint8_t nonce[12], const uint8_t *head, size_t head_n,
                   uint8_t *text, size_t n, const uint8_t tag[16])
{
    uint8_t right_tag[16], different = 0;
    authenticate(key, nonce, head, head_n, text, n, right_tag);
    for (int i = 0; i < 16; i++) different |= tag[i] ^ right_tag[i]; /* as long for every tag */
    if (different) return -1;
    chacha20(key, 1, nonce, text, n);
    return 0;
}

/* ---- SPEC 12, handshake: the keys of the two directions ---- */

/* hello: message and body as they travel, between header and CRC. */
static void derive(const uint8_t key[32], const uint8_t *hello, size_t n, const uint8_t server_nonce[16],
                   uint8_t transcript[32], uint8_t up[32], uint8_t down[32])
{
    struct sha256 s;
    uint8_t prk[32], info[9 + 16], both[64];
    sha256_start(&s);
    sha256_add(&s, hello, n);
    sha256_end(&s, transcript);
    extract(transcript, 32, key, 32, prk);
    memcpy(info, "fedspan 1", 9);
    memcpy(info + 9, server_nonce, 16);
    expand(prk, info, sizeof info, both, sizeof both);
    memcpy(up, both, 32);
    memcpy(down, both + 32, 32);
}

/* ---- SPEC 12, sealed frames: what a receiver remembers of one direction ---- */

struct window { int any; uint64_t largest, seen; }; /* bit i of seen: largest - i was accepted */

static int is_new(const struct window *w, uint64_t counter)
{
    if (counter == UINT64_MAX) return 0;
    if (!w->any || counter > w->largest) return 1;
    return w->largest - counter < 64 && !(w->seen >> (w->largest - counter) & 1);
}

static void accept(struct window *w, uint64_t counter)
{
    if (!w->any || counter > w->largest) {
        uint64_t step = w->any ? counter - w->largest : 64;
        w->seen = (step < 64 ? w->seen << step : 0) | 1;
        w->largest = counter;
        w->any = 1;
    } else {
        w->seen |= (uint64_t)1 << (w->largest - counter);
    }
}

enum { REPLAYED = -1, FORGED = -2, SHAPELESS = -3 };

/* Opens the n plain bytes of a frame with header 0x11 or 0x12, in place. *message points to the message, whose
   length is returned; or REPLAYED, FORGED, SHAPELESS, and the frame is all zeros. */
static int open_sealed(const uint8_t key[32], struct window *w, uint8_t *frame, size_t n, uint8_t **message)
{
    uint8_t nonce[12] = {0};
    uint64_t counter = 0; /* the answer's, which does not carry it */
    size_t head = n > 0 && frame[0] == 0x12 ? 17 : 9;
    int why = SHAPELESS;
    if (n >= head + 16 && (frame[0] == 0x11 || frame[0] == 0x12)) {
        if (frame[0] == 0x11) {
            memcpy(nonce + 4, frame + 1, 8);
            for (int i = 0; i < 8; i++) counter |= (uint64_t)frame[1 + i] << 8 * i;
        }
        if (!is_new(w, counter)) why = REPLAYED;
        else if (decrypt(key, nonce, frame, head, frame + head, n - head - 16, frame + n - 16) != 0) why = FORGED;
        else why = 0;
    }
    if (why != 0) {
        memset(frame, 0, n);
        return why;
    }
    accept(w, counter);
    *message = frame + head;
    return (int)(n - head - 16);
}

/* Seals a message of n bytes with this counter; returns the plain length. frame has n + 25 bytes, or n + 33 if
   answer is not NULL: then it is the server's nonce, and the counter is 0. */
static size_t seal(const uint8_t key[32], uint64_t counter, const uint8_t *answer, const uint8_t *message, size_t n,
                   uint8_t *frame)
{
    uint8_t nonce[12] = {0};
    size_t head = answer ? 17 : 9;
    for (int i = 0; i < 8; i++) nonce[4 + i] = (uint8_t)(counter >> 8 * i);
    frame[0] = answer ? 0x12 : 0x11;
    memcpy(frame + 1, answer ? answer : nonce + 4, head - 1);
    memcpy(frame + head, message, n);
    encrypt(key, nonce, frame, head, frame + head, n, frame + head + n);
    return head + n + 16;
}

/* ---- SPEC 12, short seals: the tag of 8 bytes, computed from the one of 16 ---- */

static void shorten(const uint8_t key[32], const uint8_t nonce[12], const uint8_t tag[16], uint8_t short_tag[8])
{
    uint8_t first[64], stream[64];
    uint32_t block = 0;
    chacha20_block(key, 0, nonce, first);
    for (int i = 0; i < 4; i++) block |= (uint32_t)tag[12 + i] << 8 * i;
    chacha20_block(first + 32, block, tag, stream);
    memcpy(short_tag, stream, 8);
}

/* ---- AES-128, one block (FIPS 197). Its table of bytes is computed, not listed. ---- */

static uint8_t times2(uint8_t x) { return (uint8_t)(x << 1 ^ (x >> 7) * 0x1b); }

static uint8_t substitute(uint8_t x)
{
    uint8_t inverse = x, power = x;
    for (int i = 0; i < 6; i++) { /* x^254 by squares: inverse = inverse^2 x */
        uint8_t both[2] = {0, 0}, a = inverse, b = inverse;
        for (int bit = 0; bit < 8; bit++, a = times2(a), b >>= 1) if (b & 1) both[0] ^= a;
        a = both[0];
        b = power;
        for (int bit = 0; bit < 8; bit++, a = times2(a), b >>= 1) if (b & 1) both[1] ^= a;
        inverse = both[1];
    }
    uint8_t square = 0, a = inverse, b = inverse;
    for (int bit = 0; bit < 8; bit++, a = times2(a), b >>= 1) if (b & 1) square ^= a;
    uint8_t y = square;
    for (int i = 1; i < 5; i++) y ^= (uint8_t)(square << i | square >> (8 - i));
    return y ^ 0x63;
}

static void aes128(const uint8_t key[16], uint8_t block[16])
{
    uint8_t round_key[16], constant = 1, rows[16];
    memcpy(round_key, key, 16);
    for (int i = 0; i < 16; i++) block[i] ^= round_key[i];
    for (int round = 1; round <= 10; round++, constant = times2(constant)) {
        for (int i = 0; i < 4; i++) round_key[i] ^= substitute(round_key[12 + (i + 1) % 4]);
        round_key[0] ^= constant;
        for (int i = 4; i < 16; i++) round_key[i] ^= round_key[i - 4];
        for (int i = 0; i < 16; i++) rows[i] = substitute(block[(i + 4 * (i % 4)) % 16]);
        for (int i = 0; i < 16; i++) {
            const uint8_t *column = rows + i / 4 * 4;
            uint8_t a = column[i % 4], b = column[(i + 1) % 4], c = column[(i + 2) % 4], d = column[(i + 3) % 4];
            block[i] = (round < 10 ? (uint8_t)(times2(a) ^ times2(b) ^ b ^ c ^ d) : a) ^ round_key[i];
        }
    }
}

/* ---- SPEC 12, AES-128-CCM with tags of 16 or 8 bytes (RFC 3610, L = 3). head_n is between 1 and 0xfeff. ---- */

static void ccm_start(uint8_t block[16], uint8_t flags, const uint8_t nonce[12], uint32_t number)
{
    block[0] = flags;
    memcpy(block + 1, nonce, 12);
    for (int i = 0; i < 3; i++) block[13 + i] = (uint8_t)(number >> 8 * (2 - i));
}

static void ccm_encrypt(const uint8_t key[16], const uint8_t nonce[12], const uint8_t *head, size_t head_n, uint8_t *text,
                        size_t n, uint8_t *tag, int tag_n)
{
    uint8_t mac[16], pad[16];
    ccm_start(mac, (uint8_t)(64 + (tag_n - 2) / 2 * 8 + 2), nonce, (uint32_t)n);
    aes128(key, mac);
    mac[0] ^= (uint8_t)(head_n >> 8);
    mac[1] ^= (uint8_t)head_n;
    for (size_t i = 0; i < head_n; i++) {
        mac[(i + 2) % 16] ^= head[i];
        if ((i + 2) % 16 == 15) aes128(key, mac);
    }
    if ((head_n + 2) % 16 != 0) aes128(key, mac);
    for (size_t i = 0; i < n; i++) {
        mac[i % 16] ^= text[i];
        if (i % 16 == 15 || i + 1 == n) aes128(key, mac);
    }
    ccm_start(pad, 2, nonce, 0);
    aes128(key, pad);
    for (int i = 0; i < tag_n; i++) tag[i] = mac[i] ^ pad[i];
    for (size_t i = 0; i < n; i++) {
        if (i % 16 == 0) {
            ccm_start(pad, 2, nonce, (uint32_t)(i / 16 + 1));
            aes128(key, pad);
        }
        text[i] ^= pad[i % 16];
    }
}

/* ==== From here on: checks ==== */

#define REQUIRE(x) \
    do { if (!(x)) { printf("%s:%d: %s\n", __FILE__, __LINE__, #x); exit(1); } } while (0)

/* Bytes of a string of hex digits; returns their number. */
static size_t hex(const char *digits, uint8_t *out)
{
    size_t n = 0;
    for (unsigned byte; sscanf(digits, "%2x", &byte) == 1; digits += 2) out[n++] = (uint8_t)byte;
    return n;
}

static int is_hex(const uint8_t *bytes, size_t n, const char *digits)
{
    uint8_t expected[256];
    return hex(digits, expected) == n && memcmp(bytes, expected, n) == 0;
}

/* RFC 8439, appendix A.3, 5 to 11: where limbs carry and where h is near 2^130 - 5. */
#define ZERO "00000000000000000000000000000000"
#define ONES "ffffffffffffffffffffffffffffffff"
static const struct { const char *key, *text, *tag; } edges[] = {
    {"02000000000000000000000000000000" ZERO, ONES, "03000000000000000000000000000000"},
    {"02000000000000000000000000000000" ONES, "02000000000000000000000000000000", "03000000000000000000000000000000"},
    {"01000000000000000000000000000000" ZERO,
     ONES "f0ffffffffffffffffffffffffffffff" "11000000000000000000000000000000",
     "05000000000000000000000000000000"},
    {"01000000000000000000000000000000" ZERO,
     ONES "fbfefefefefefefefefefefefefefefe" "01010101010101010101010101010101", ZERO},
    {"02000000000000000000000000000000" ZERO, "fdffffffffffffffffffffffffffffff",
     "faffffffffffffffffffffffffffffff"},
    {"01000000000000000400000000000000" ZERO,
     "e33594d7505e43b90000000000000000" "3394d7505e4379cd0100000000000000" ZERO "01000000000000000000000000000000",
     "14000000000000005500000000000000"},
    {"01000000000000000400000000000000" ZERO,
     "e33594d7505e43b90000000000000000" "3394d7505e4379cd0100000000000000" ZERO,
     "13000000000000000000000000000000"},
};

/* FIPS 180-4's example; RFC 4231, case 6; RFC 5869, appendix A.1 to A.3; RFC 8439, sections 2.3.2 and 2.8.2. */
static void check_primitives(void)
{
    static const char sunscreen[] = "Ladies and Gentlemen of the class of '99: If I could offer you "
                                    "only one tip for the future, sunscreen would be it.";
    struct sha256 s;
    struct poly1305 p;
    uint8_t a[256], b[256], c[256], out[256], nonce[12];
    size_t n;

    sha256_start(&s);
    sha256_add(&s, (const uint8_t *)"abc", 3);
    sha256_end(&s, out);
    REQUIRE(is_hex(out, 32, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));

    memset(a, 0xaa, 131);
    struct piece text = {(const uint8_t *)"Test Using Larger Than Block-Size Key - Hash Key First", 54};
    hmac(a, 131, &text, 1, out);
    REQUIRE(is_hex(out, 32, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"));

    memset(a, 0x0b, 22);
    n = hex("000102030405060708090a0b0c", b);
    extract(b, n, a, 22, out);
    REQUIRE(is_hex(out, 32, "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5"));
    n = hex("f0f1f2f3f4f5f6f7f8f9", b);
    expand(out, b, n, c, 42);
    REQUIRE(is_hex(c, 42, "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"));

    for (int i = 0; i < 80; i++) a[i] = (uint8_t)i, b[i] = (uint8_t)(0x60 + i), c[i] = (uint8_t)(0xb0 + i);
    extract(b, 80, a, 80, out);
    REQUIRE(is_hex(out, 32, "06a6b88c5853361a06104c9ceb35b45cef760014904671014a193f40c15fc244"));
    expand(out, c, 80, a, 82);
    REQUIRE(is_hex(a, 82, "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e0"
                          "9da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87"));

    memset(a, 0x0b, 22);
    extract(NULL, 0, a, 22, out);
    REQUIRE(is_hex(out, 32, "19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04"));
    expand(out, NULL, 0, c, 42);
    REQUIRE(is_hex(c, 42, "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"));

    for (int i = 0; i < 32; i++) a[i] = (uint8_t)i;
    hex("000000090000004a00000000", nonce);
    chacha20_block(a, 1, nonce, out);
    REQUIRE(is_hex(out, 64, "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
                            "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"));

    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        hex(edges[i].key, a);
        n = hex(edges[i].text, b);
        poly1305_start(&p, a);
        poly1305_padded(&p, b, n);
        poly1305_end(&p, out);
        REQUIRE(is_hex(out, 16, edges[i].tag));
    }

    for (int i = 0; i < 32; i++) a[i] = (uint8_t)(0x80 + i);
    hex("070000004041424344454647", nonce);
    n = hex("50515253c0c1c2c3c4c5c6c7", b);
    memcpy(c, sunscreen, 114);
    encrypt(a, nonce, b, n, c, 114, out);
    REQUIRE(is_hex(c, 114, "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b"
                           "1a71de0a9e060b2905d6a5b67ecd3b3692ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc"
                           "3ff4def08e4b7a9de576d26586cec64b6116"));
    REQUIRE(is_hex(out, 16, "1ae10b594f09e26a7e902ecbd0600691"));
    out[15] ^= 1;
    REQUIRE(decrypt(a, nonce, b, n, c, 114, out) == -1 && c[0] == 0xd3);
    out[15] ^= 1;
    REQUIRE(decrypt(a, nonce, b, n, c, 114, out) == 0 && memcmp(c, sunscreen, 114) == 0);

    /* FIPS 197, appendix C.1; NIST SP 800-38C, appendix C, example 3. */
    for (int i = 0; i < 16; i++) a[i] = (uint8_t)i, b[i] = (uint8_t)(0x11 * i);
    aes128(a, b);
    REQUIRE(is_hex(b, 16, "69c4e0d86a7b0430d8cdb78070b4c55a"));
    for (int i = 0; i < 24; i++) a[i] = (uint8_t)(0x40 + i), b[i] = (uint8_t)i, c[i] = (uint8_t)(0x20 + i);
    hex("101112131415161718191a1b", nonce);
    ccm_encrypt(a, nonce, b, 20, c, 24, out, 8);
    REQUIRE(is_hex(c, 24, "e3b201a9f5b71a7a9b1ceaeccd97e70b6176aad9a4428aa5") && is_hex(out, 8, "484392fbc1b09951"));
}

static void check_window(void)
{
    struct window w = {0};
    REQUIRE(is_new(&w, 0) && is_new(&w, UINT64_MAX - 1) && !is_new(&w, UINT64_MAX));
    accept(&w, 5);
    REQUIRE(is_new(&w, 0) && !is_new(&w, 5) && is_new(&w, 6));
    accept(&w, 68);
    REQUIRE(!is_new(&w, 5) && is_new(&w, 6) && !is_new(&w, 4)); /* 5 was accepted, 4 is 64 behind */
    accept(&w, 6);
    REQUIRE(!is_new(&w, 6) && is_new(&w, 7));
    accept(&w, 69);
    REQUIRE(!is_new(&w, 68) && !is_new(&w, 5));
    accept(&w, UINT64_MAX - 1);
    REQUIRE(is_new(&w, UINT64_MAX - 2) && !is_new(&w, 69) && !is_new(&w, UINT64_MAX));
}

/* SPEC 2. */
static size_t uncobs(const uint8_t *in, size_t n, uint8_t *out)
{
    size_t i = 0, length = 0;
    REQUIRE(n >= 2 && in[--n] == 0);
    while (i < n) {
        size_t code = in[i++];
        REQUIRE(code != 0 && i + code - 1 <= n);
        memcpy(out + length, in + i, code - 1);
        length += code - 1;
        i += code - 1;
        if (code != 255 && i < n) out[length++] = 0;
    }
    return length;
}

static uint8_t frame[512], again[512];

/* One frame after the handshake opens to the message of a plain vector, and that sealed gives the frame. */
static void exchange(const uint8_t key[32], struct window *w, uint64_t counter, const uint8_t *sealed, size_t n,
                     const uint8_t *plain, size_t plain_n)
{
    static uint8_t expected[512];
    uint8_t *message;
    size_t expected_n = uncobs(plain, plain_n, expected) - 5; /* header and CRC */
    size_t length = uncobs(sealed, n, frame);
    REQUIRE(open_sealed(key, w, frame, length, &message) == (int)expected_n);
    REQUIRE(memcmp(message, expected + 1, expected_n) == 0);
    REQUIRE(seal(key, counter, NULL, expected + 1, expected_n, again) == length);
    REQUIRE(uncobs(sealed, n, frame) == length && memcmp(frame, again, length) == 0);
    REQUIRE(open_sealed(key, w, frame, length, &message) == REPLAYED && frame[0] == 0 && frame[length - 1] == 0);
}

int main(void)
{
    uint8_t key[32], transcript[32], up[32], down[32], hello[512], *message;
    struct window from_server = {0}, from_device = {0}, unused;
    size_t n, hello_n;

    check_primitives();
    check_window();
    for (int i = 0; i < 32; i++) key[i] = (uint8_t)i;

    /* Hello: header and CRC as without keys; the last 26 bytes before the CRC are the greeting. */
    hello_n = uncobs(sealed_hello, sizeof sealed_hello, hello) - 5;
    n = uncobs(to_server_hello, sizeof to_server_hello, frame) - 5;
    REQUIRE(hello[0] == 0x10 && hello_n == n + 26 && memcmp(hello + 1, frame + 1, n) == 0);
    REQUIRE(is_hex(hello + 1 + n, 26, "0000" "0807060504030201" "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"));

    /* Answer: 0x12, nonce, Welcome, tag. */
    n = uncobs(sealed_answer, sizeof sealed_answer, frame);
    REQUIRE(frame[0] == 0x12);
    derive(key, hello + 1, hello_n, frame + 1, transcript, up, down);
    REQUIRE(memcmp(sealed_keys, transcript, 32) == 0);
    REQUIRE(memcmp(sealed_keys + 32, up, 32) == 0 && memcmp(sealed_keys + 64, down, 32) == 0);
    REQUIRE(uncobs(to_device_welcome, sizeof to_device_welcome, again) == n - 33 + 5);
    memmove(hello, again + 1, n - 33);
    REQUIRE(seal(down, 0, frame + 1, hello, n - 33, again) == n && memcmp(again, frame, n) == 0);
    REQUIRE(open_sealed(down, &from_server, frame, n, &message) == (int)n - 33);
    REQUIRE(memcmp(message, hello, n - 33) == 0);

    /* The frames after it; the forged one has the counter of Ack and comes before it. */
    exchange(up, &from_device, 0, sealed_alive, sizeof sealed_alive, to_server_alive, sizeof to_server_alive);
    exchange(down, &from_server, 1, sealed_round_open, sizeof sealed_round_open, to_device_round_open_f32,
             sizeof to_device_round_open_f32);
    exchange(up, &from_device, 1, sealed_update, sizeof sealed_update, to_server_update_gradient_f32,
             sizeof to_server_update_gradient_f32);
    n = uncobs(sealed_forged, sizeof sealed_forged, frame);
    REQUIRE(open_sealed(down, &from_server, frame, n, &message) == FORGED);
    for (size_t i = 0; i < n; i++) REQUIRE(frame[i] == 0);
    exchange(down, &from_server, 2, sealed_ack, sizeof sealed_ack, to_device_ack_counted,
             sizeof to_device_ack_counted);

    /* The update in the other forms: seal the message of the plain vector again. */
    n = uncobs(to_server_update_gradient_f32, sizeof to_server_update_gradient_f32, hello) - 5;
    for (int form = 1; form < 4; form++) {
        static const struct { const uint8_t *bytes; size_t n; } forms[] = {
            {NULL, 0},
            {sealed_update_short, sizeof sealed_update_short},
            {sealed_update_aes_ccm, sizeof sealed_update_aes_ccm},
            {sealed_update_aes_ccm_short, sizeof sealed_update_aes_ccm_short},
        };
        uint8_t nonce[12] = {0, 0, 0, 0, 1}, tag[16];
        int is_short = form & 1, is_aes = form & 2;
        size_t head = is_short ? 3 : 9, tag_n = is_short ? 8 : 16;
        memset(again, 0, sizeof again);
        again[0] = is_short ? 0x13 : 0x11;
        again[1] = 1;
        memcpy(again + head, hello + 1, n);
        if (is_aes) ccm_encrypt(up, nonce, again, head, again + head, n, again + head + n, (int)tag_n);
        else {
            encrypt(up, nonce, again, head, again + head, n, tag);
            shorten(up, nonce, tag, again + head + n);
        }
        REQUIRE(uncobs(forms[form].bytes, forms[form].n, frame) == head + n + tag_n);
        REQUIRE(memcmp(frame, again, head + n + tag_n) == 0);
    }

    /* Every bit of the acknowledgement counts, and so does its direction. */
    n = uncobs(sealed_ack, sizeof sealed_ack, again);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        memset(&unused, 0, sizeof unused);
        memcpy(frame, again, n);
        frame[bit / 8] ^= (uint8_t)(1 << bit % 8);
        REQUIRE(open_sealed(down, &unused, frame, n, &message) < 0 && !unused.any);
    }
    memcpy(frame, again, n);
    REQUIRE(open_sealed(up, &from_device, frame, n, &message) == FORGED);
    for (size_t short_n = 0; short_n < 25; short_n++) {
        memcpy(frame, again, n);
        REQUIRE(open_sealed(down, &from_server, frame, short_n, &message) == SHAPELESS);
    }
    printf("OK\n");
    return 0;
}
