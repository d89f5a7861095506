/* Functions of the platform for ESP-IDF: random numbers, storage and time. Link and samples are the application's. */
#ifndef FEDSPAN_ESP_H
#define FEDSPAN_ESP_H

#include "fedspan.h"

/* Sets random, load and save of the platform. The application has called nvs_flash_init(), and has started the radio or the entropy source,
   without which esp_fill_random() is not random. */
void fedspan_esp_platform(fedspan_platform *platform);

/* Milliseconds since the start, for fedspan_step. */
uint64_t fedspan_esp_now(void);

#endif
