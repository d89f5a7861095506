/* Functions of the platform for Zephyr: random numbers, storage and time. Link and samples are the application's. */
#ifndef FEDSPAN_ZEPHYR_H
#define FEDSPAN_ZEPHYR_H

#include "fedspan.h"

/* First member of the context of each client in a firmware with several: the name in the settings below which the items of the client are stored,
   1 to 32 characters. */
typedef struct {
  const char *name;
} fedspan_zephyr_storage;

/* Sets random, load and save of the platform, and starts the settings subsystem, whose backend (NVS, ZMS) keeps the items below "fedspan":
   for one client in a firmware. Returns 0, or a negative error number. If the kernel has no random bytes, random tries five times in 80 ms, logs the
   error and returns it; fedspan_start then fails, and a link ends before its first byte. */
int fedspan_zephyr_platform(fedspan_platform *platform);

/* The same for one of several clients: platform->context points to a fedspan_zephyr_storage, or to a structure that begins with one, whose name
   no other client has. Returns -EINVAL, and sets nothing, if there is no context or the name has no allowed length. */
int fedspan_zephyr_named_platform(fedspan_platform *platform);

/* Milliseconds since the start, modulo 2^32, for fedspan_step. */
uint32_t fedspan_zephyr_now(void);

#endif
