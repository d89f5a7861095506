/* Test of fedspan_zephyr.c with settings in memory: two clients keep their items apart, and a kernel without entropy ends in an error. */
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

/* Number of calls that fail, and milliseconds that were slept. */
static int failing_calls, slept;

int sys_csrand_get(void *bytes, size_t length) {
  memset(bytes, 1, length);
  return failing_calls > 0 ? failing_calls--, -5 : 0;
}

int32_t k_msleep(int32_t milliseconds) { return slept += milliseconds, 0; }
uint32_t k_uptime_get_32(void) { return 0; }

/* Returns 0 if random bytes are awaited for a limited time. */
static int random_ends(void) {
  fedspan_platform platform = {0};
  uint8_t bytes[16];
  CHECK(fedspan_zephyr_platform(&platform) == 0);
  CHECK(platform.random(NULL, bytes, sizeof bytes) == 0 && slept == 0);
  failing_calls = 4;
  CHECK(platform.random(NULL, bytes, sizeof bytes) == 0 && slept == 80);
  failing_calls = 1000;
  CHECK(platform.random(NULL, bytes, sizeof bytes) == -5 && slept == 160 && failing_calls == 995);
  return 0;
}

int main(void) {
  return random_ends() || test(fedspan_zephyr_platform, fedspan_zephyr_named_platform, "thirty_two_letter_in_a_long_name");
}
