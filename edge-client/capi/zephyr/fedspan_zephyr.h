/* Functions of the platform for Zephyr: random numbers, storage and time. Link and samples are the application's. */
#ifndef FEDSPAN_ZEPHYR_H
#define FEDSPAN_ZEPHYR_H

#include "fedspan.h"

/* Sets random, load and save of the platform, and starts the settings subsystem, whose backend (NVS, ZMS) keeps the items. Returns 0, or
   a negative error number. */
int fedspan_zephyr_platform(fedspan_platform *platform);

/* Milliseconds since the start, for fedspan_step. */
uint64_t fedspan_zephyr_now(void);

#endif
