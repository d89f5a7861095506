#include "fedspan_esp.h"

#include <string.h>

#include "esp_random.h"
#include "esp_timer.h"
#include "nvs.h"

enum { NAME_MAX_LENGTH = 15 };

static const char *key_of(fedspan_item item) {
  return item == FEDSPAN_RECORD ? "record" : item == FEDSPAN_HANDSHAKES ? "handshakes" : "key";
}

static int32_t load_from(const char *name, fedspan_item item, uint8_t *bytes, size_t length) {
  nvs_handle_t handle;
  esp_err_t error = nvs_open(name, NVS_READWRITE, &handle);
  if (error != ESP_OK) return -1;
  error = nvs_get_blob(handle, key_of(item), bytes, &length);
  nvs_close(handle);
  if (error == ESP_ERR_NVS_NOT_FOUND) return 0;
  return error == ESP_OK ? (int32_t)length : -1;
}

static int32_t save_to(const char *name, fedspan_item item, const uint8_t *bytes, size_t length) {
  nvs_handle_t handle;
  if (nvs_open(name, NVS_READWRITE, &handle) != ESP_OK) return -1;
  esp_err_t error = nvs_set_blob(handle, key_of(item), bytes, length);
  if (error == ESP_OK) error = nvs_commit(handle);
  nvs_close(handle);
  return error == ESP_OK ? 0 : -1;
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
  return load_from(((const fedspan_esp_storage *)context)->name, item, bytes, length);
}

static int32_t save_named(void *context, fedspan_item item, const uint8_t *bytes, size_t length) {
  return save_to(((const fedspan_esp_storage *)context)->name, item, bytes, length);
}

static int32_t random_bytes(void *context, uint8_t *bytes, size_t length) {
  (void)context;
  esp_fill_random(bytes, length); /* It cannot fail. */
  return 0;
}

void fedspan_esp_platform(fedspan_platform *platform) {
  platform->random = random_bytes;
  platform->load = load;
  platform->save = save;
}

int fedspan_esp_named_platform(fedspan_platform *platform) {
  const fedspan_esp_storage *storage = platform->context;
  if (storage == NULL || storage->name == NULL) return -1;
  if (storage->name[0] == '\0' || strlen(storage->name) > NAME_MAX_LENGTH) return -1;
  platform->random = random_bytes;
  platform->load = load_named;
  platform->save = save_named;
  return 0;
}

uint32_t fedspan_esp_now(void) { return (uint32_t)(esp_timer_get_time() / 1000); }
