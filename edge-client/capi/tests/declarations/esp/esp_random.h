/* Declarations of ESP-IDF that fedspan_esp.c calls, as its documentation has them, so that it can be compiled without ESP-IDF. */
#include <stddef.h>
void esp_fill_random(void *buf, size_t len);
