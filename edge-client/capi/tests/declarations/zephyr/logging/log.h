#include <stdio.h>
#define LOG_LEVEL_INF 3
#define LOG_MODULE_REGISTER(name, level) enum { log_level_of_##name = level }
#define LOG_ERR(...) (printf(__VA_ARGS__), puts(""))
