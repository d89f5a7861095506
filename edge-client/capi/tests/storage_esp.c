/* Test of the storage of fedspan_esp.c with NVS in memory: two clients keep their items apart. */
#include "storage.h"

#include "fedspan_esp.h"
#include "nvs.h"

static char opened[16];

static const char *path_of(const char *key) {
  static char path[64];
  snprintf(path, sizeof path, "%s/%s", opened, key);
  return path;
}

esp_err_t nvs_open(const char *name, nvs_open_mode_t mode, nvs_handle_t *handle) {
  if (mode != NVS_READWRITE || strlen(name) >= sizeof opened) return -1;
  strcpy(opened, name);
  *handle = 1;
  return ESP_OK;
}

esp_err_t nvs_get_blob(nvs_handle_t handle, const char *key, void *bytes, size_t *length) {
  const size_t index = find(path_of(key));
  if (handle != 1) return -1;
  if (index == item_count) return ESP_ERR_NVS_NOT_FOUND;
  if (items[index].length > *length) return -1;
  memcpy(bytes, items[index].bytes, *length = items[index].length);
  return ESP_OK;
}

esp_err_t nvs_set_blob(nvs_handle_t handle, const char *key, const void *bytes, size_t length) {
  if (handle != 1) return -1;
  put(path_of(key), bytes, length);
  return ESP_OK;
}

esp_err_t nvs_commit(nvs_handle_t handle) { return handle == 1 ? ESP_OK : -1; }
void nvs_close(nvs_handle_t handle) { opened[0] = handle == 1 ? '\0' : '?'; }
void esp_fill_random(void *bytes, size_t length) { memset(bytes, 1, length); }
int64_t esp_timer_get_time(void) { return 0; }

static int default_platform(fedspan_platform *platform) {
  fedspan_esp_platform(platform);
  return 0;
}

int main(void) { return test(default_platform, fedspan_esp_named_platform, "fifteen_letters"); }
