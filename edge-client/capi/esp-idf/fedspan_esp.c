#include "fedspan_esp.h"

#include "esp_random.h"
#include "esp_timer.h"
#include "nvs.h"

static const char *key_of(fedspan_item item) { return item == FEDSPAN_RECORD ? "record" : "handshakes"; }

static int32_t load(void *context, fedspan_item item, uint8_t *bytes, size_t length) {
  nvs_handle_t handle;
  (void)context;
  esp_err_t error = nvs_open("fedspan", NVS_READWRITE, &handle);
  if (error != ESP_OK) return -1;
  error = nvs_get_blob(handle, key_of(item), bytes, &length);
  nvs_close(handle);
  if (error == ESP_ERR_NVS_NOT_FOUND) return 0;
  return error == ESP_OK ? (int32_t)length : -1;
}

static int32_t save(void *context, fedspan_item item, const uint8_t *bytes, size_t length) {
  nvs_handle_t handle;
  (void)context;
  if (nvs_open("fedspan", NVS_READWRITE, &handle) != ESP_OK) return -1;
  esp_err_t error = nvs_set_blob(handle, key_of(item), bytes, length);
  if (error == ESP_OK) error = nvs_commit(handle);
  nvs_close(handle);
  return error == ESP_OK ? 0 : -1;
}

static void random_bytes(void *context, uint8_t *bytes, size_t length) {
  (void)context;
  esp_fill_random(bytes, length);
}

void fedspan_esp_platform(fedspan_platform *platform) {
  platform->random = random_bytes;
  platform->load = load;
  platform->save = save;
}

uint64_t fedspan_esp_now(void) { return (uint64_t)(esp_timer_get_time() / 1000); }
