#include "fedspan_zephyr.h"

#include <errno.h>
#include <zephyr/kernel.h>
#include <zephyr/random/random.h>
#include <zephyr/settings/settings.h>

/* Names of the items in the settings. */
static const char *name_of(fedspan_item item) { return item == FEDSPAN_RECORD ? "fedspan/record" : "fedspan/handshakes"; }

/* An item that is being read. */
struct reading {
  uint8_t *bytes;
  size_t length;
  int32_t result;
};

static int read_item(const char *key, size_t length, settings_read_cb read, void *argument, void *parameter) {
  struct reading *reading = parameter;
  if (key != NULL && key[0] != '\0') return 0; /* Another item below this name. */
  if (length > reading->length) return reading->result = -EMSGSIZE;
  reading->result = (int32_t)read(argument, reading->bytes, length);
  return 0;
}

static int32_t load(void *context, fedspan_item item, uint8_t *bytes, size_t length) {
  struct reading reading = {.bytes = bytes, .length = length, .result = 0};
  int error = settings_load_subtree_direct(name_of(item), read_item, &reading);
  (void)context;
  return error < 0 ? error : reading.result;
}

static int32_t save(void *context, fedspan_item item, const uint8_t *bytes, size_t length) {
  (void)context;
  return settings_save_one(name_of(item), bytes, length);
}

static void random_bytes(void *context, uint8_t *bytes, size_t length) {
  (void)context;
  /* Without entropy a device must not greet a server: it waits. */
  while (sys_csrand_get(bytes, length) != 0) k_msleep(100);
}

int fedspan_zephyr_platform(fedspan_platform *platform) {
  platform->random = random_bytes;
  platform->load = load;
  platform->save = save;
  return settings_subsys_init();
}

uint64_t fedspan_zephyr_now(void) { return (uint64_t)k_uptime_get(); }
