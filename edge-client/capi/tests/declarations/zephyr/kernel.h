/* Declarations of Zephyr that fedspan_zephyr.c calls, as its documentation has them, so that it can be compiled without Zephyr. */
#include <stdint.h>
uint32_t k_uptime_get_32(void);
int32_t k_msleep(int32_t ms);
