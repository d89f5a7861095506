/* Test of the storage of fedspan_zephyr.c with settings in memory: two clients keep their items apart. */
#include "storage.h"

#include "fedspan_zephyr.h"
#include <zephyr/settings/settings.h>

static ssize_t read_item_at(void *index, void *bytes, size_t length) {
  memcpy(bytes, items[*(size_t *)index].bytes, length);
  return (ssize_t)length;
}

int settings_load_subtree_direct(const char *subtree, settings_load_direct_cb callback, void *parameter) {
  size_t index = find(subtree);
  return index == item_count ? 0 : callback(NULL, items[index].length, read_item_at, &index, parameter);
}

int settings_save_one(const char *name, const void *bytes, size_t length) {
  put(name, bytes, length);
  return 0;
}

int settings_subsys_init(void) { return 0; }
int sys_csrand_get(void *bytes, size_t length) { return memset(bytes, 1, length) == NULL; }
int32_t k_msleep(int32_t milliseconds) { return milliseconds; }
int64_t k_uptime_get(void) { return 0; }

int main(void) { return test(fedspan_zephyr_platform, fedspan_zephyr_named_platform, "thirty_two_letter_in_a_long_name"); }
