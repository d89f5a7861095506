#include "fedspan_zephyr.h"

#include <errno.h>
#include <string.h>
#include <zephyr/kernel.h>
#include <zephyr/logging/log.h>
#include <zephyr/random/random.h>
#include <zephyr/settings/settings.h>

LOG_MODULE_REGISTER(fedspan, LOG_LEVEL_INF);

/* Longest name, number of attempts to get random bytes, and milliseconds between two. */
enum { NAME_MAX_LENGTH = 32, RANDOM_ATTEMPTS = 5, RANDOM_DELAY = 20 };

/* Path of an item in the settings. */
struct path {
  char text[NAME_MAX_LENGTH + sizeof "/handshakes"];
};

static struct path path_of(const char *name, fedspan_item item) {
  struct path path;
  strcpy(path.text, name);
  strcat(path.text, item == FEDSPAN_RECORD ? "/record" : item == FEDSPAN_HANDSHAKES ? "/handshakes" : "/key");
  return path;
}

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

static int32_t load_from(const char *name, fedspan_item item, uint8_t *bytes, size_t length) {
  struct reading reading = {.bytes = bytes, .length = length, .result = 0};
  const struct path path = path_of(name, item);
  int error = settings_load_subtree_direct(path.text, read_item, &reading);
  return error < 0 ? error : reading.result;
}

static int32_t save_to(const char *name, fedspan_item item, const uint8_t *bytes, size_t length) {
  const struct path path = path_of(name, item);
  return settings_save_one(path.text, bytes, length);
}

static int32_t load(void *context, fedspan_item item, uint8_t *bytes, size_t length) {
  (void)context;
  return load_from("fedspan", item, bytes, length);
}

static int32_t save(void *context, fedspan_item item, const uint8_t *bytes, size_t length) {
  (void)context;
  return save_to("fedspan", item, bytes, length);
}

static int32_t load_named(void *context, fedspan_item item, uint8_t *bytes, size_t length) {
  return load_from(((const fedspan_zephyr_storage *)context)->name, item, bytes, length);
}

static int32_t save_named(void *context, fedspan_item item, const uint8_t *bytes, size_t length) {
  return save_to(((const fedspan_zephyr_storage *)context)->name, item, bytes, length);
}

static int32_t random_bytes(void *context, uint8_t *bytes, size_t length) {
  (void)context;
  int error = 0;
  for (int attempt = 0; attempt < RANDOM_ATTEMPTS; attempt++) {
    if (attempt > 0) k_msleep(RANDOM_DELAY);
    error = sys_csrand_get(bytes, length);
    if (error == 0) return 0;
  }
  LOG_ERR("no random bytes after %d attempts: error %d", RANDOM_ATTEMPTS, error);
  return error;
}

int fedspan_zephyr_platform(fedspan_platform *platform) {
  platform->random = random_bytes;
  platform->load = load;
  platform->save = save;
  return settings_subsys_init();
}

int fedspan_zephyr_named_platform(fedspan_platform *platform) {
  const fedspan_zephyr_storage *storage = platform->context;
  if (storage == NULL || storage->name == NULL) return -EINVAL;
  if (storage->name[0] == '\0' || strlen(storage->name) > NAME_MAX_LENGTH) return -EINVAL;
  platform->random = random_bytes;
  platform->load = load_named;
  platform->save = save_named;
  return settings_subsys_init();
}

uint32_t fedspan_zephyr_now(void) { return k_uptime_get_32(); }
