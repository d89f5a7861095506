/* Functions of the platform for ESP-IDF: random numbers, storage and time. Link and samples are the application's. */
#ifndef FEDSPAN_ESP_H
#define FEDSPAN_ESP_H

#include "fedspan.h"

/* First member of the context of each client in a firmware with several: the namespace of NVS in which the items of the client are stored, 1
   to 15 characters. */
typedef struct {
  const char *name;
} fedspan_esp_storage;

/* Sets random, load and save of the platform, whose items are in the namespace "fedspan": for one client in a firmware. The application
   has called nvs_flash_init(), and has started the radio or the entropy source, without which esp_fill_random() is not random. */
void fedspan_esp_platform(fedspan_platform *platform);

/* The same for one of several clients: platform->context points to a fedspan_esp_storage, or to a structure that begins with one, whose name no other
   client has. Returns 0; or -1, and sets nothing, if there is no context or the name has no allowed length. */
int fedspan_esp_named_platform(fedspan_platform *platform);

/* Milliseconds since the start, modulo 2^32, for fedspan_step. */
uint32_t fedspan_esp_now(void);

#endif
