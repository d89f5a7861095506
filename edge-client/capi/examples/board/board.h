/* What the emulated boards offer to a program in C. The functions with a context have the signatures of fedspan_platform. */
#ifndef BOARD_H
#define BOARD_H

#include "fedspan.h"

/* Number of the device, and its key: NULL on a test bench without keys. */
uint64_t board_device(void);
const uint8_t *board_key(void);

/* Milliseconds since the start, modulo 2^32; sleep for some milliseconds, or until the next byte; connect to the server. */
uint32_t board_now(void);
void board_wait(uint32_t milliseconds);
void board_connect(void);

/* Samples in flash, random numbers, storage and link. */
int32_t board_rewind(void *context, uint32_t round);
int32_t board_next(void *context, fedspan_samples *samples);
int32_t board_random(void *context, uint8_t *bytes, size_t length);
int32_t board_load(void *context, fedspan_item item, uint8_t *bytes, size_t length);
int32_t board_save(void *context, fedspan_item item, const uint8_t *bytes, size_t length);
int32_t board_read(void *context, uint8_t *bytes, size_t length);
int32_t board_write(void *context, const uint8_t *bytes, size_t length);

/* Next sample of the test set and its target; NULL after the last. */
const float *board_test(float *target);

/* Ends the program: with an error, or with the results of a client. */
_Noreturn void board_fail(const char *what, int32_t status);
_Noreturn void board_report(fedspan_client *client, float squared_error, uint32_t tested);

#endif
