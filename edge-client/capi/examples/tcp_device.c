/* A device over TCP: trains a linear model of 20 features on its own samples, with an encrypted link. edge-client/capi/README.md has the
   commands that build it. Its arguments are the port of a server, the number of the device and its key in hexadecimal digits; then a folder for
   what it stores, and "aes" to seal its frames with AES-128-CCM. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "fedspan.h"

enum { D = 20, K = 2, OUTPUTS = 1, SAMPLES = 20 };

static float x[SAMPLES * D], y[SAMPLES];
static int socket_fd = -1, has_begun;
static const char *folder; /* NULL to store nothing: for tests, because a device with a key must store its handshakes. */
static _Alignas(8) uint8_t memory[FEDSPAN_MEMORY_SIZE(D, K, OUTPUTS, 256)];

static int32_t rewind_samples(void *context, uint32_t round) { (void)context, (void)round; return has_begun = 0; }
static int32_t next_samples(void *context, fedspan_samples *samples) {
  (void)context;
  *samples = (fedspan_samples){.x = x, .targets = y, .count = has_begun++ ? 0 : SAMPLES};
  return 0;
}
static int32_t random_bytes(void *context, uint8_t *bytes, size_t length) {
  (void)context;
  return getrandom(bytes, length, 0) == (ssize_t)length ? 0 : -1;
}
static int32_t or_nothing_yet(ssize_t count) { return count > 0 ? (int32_t)count : count < 0 && errno == EAGAIN ? 0 : -1; }
static int32_t read_link(void *context, uint8_t *bytes, size_t length) {
  (void)context;
  return or_nothing_yet(recv(socket_fd, bytes, length, MSG_DONTWAIT));
}
static int32_t write_link(void *context, const uint8_t *bytes, size_t length) {
  (void)context;
  return or_nothing_yet(send(socket_fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL));
}
enum { PATH_SIZE = 4096 };
static void path_of(char *path, const char *device, fedspan_item item, const char *end) {
  static const char *const names[] = {"record", "handshakes", "key"};
  snprintf(path, PATH_SIZE, "%s/%s.%s%s", folder, device, names[item], end);
}
static int32_t load_item(void *device, fedspan_item item, uint8_t *bytes, size_t length) {
  char path[PATH_SIZE];
  path_of(path, device, item, "");
  FILE *file = fopen(path, "rb");
  if (file == NULL) return errno == ENOENT ? 0 : -1;
  const size_t count = fread(bytes, 1, length, file);
  const int has_failed = ferror(file);
  return fclose(file) != 0 || has_failed ? -1 : (int32_t)count;
}
static int32_t save_item(void *device, fedspan_item item, const uint8_t *bytes, size_t length) {
  char path[PATH_SIZE], new_path[PATH_SIZE];
  path_of(path, device, item, "");
  path_of(new_path, device, item, ".new");
  FILE *file = fopen(new_path, "wb");
  if (file == NULL) return -1;
  int has_failed = fwrite(bytes, 1, length, file) != length;
  has_failed |= fflush(file) != 0 || fsync(fileno(file)) != 0;
  has_failed |= fclose(file) != 0;
  /* The new file takes the place of the old one at once, and the folder is on disk, so that power may fail at any time. */
  if (has_failed || rename(new_path, path) != 0) return -1;
  const int directory = open(folder, O_RDONLY);
  if (directory < 0) return -1;
  has_failed = fsync(directory) != 0;
  return close(directory) != 0 || has_failed ? -1 : 0;
}
static uint32_t now_ms(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint32_t)time.tv_sec * 1000 + (uint32_t)time.tv_nsec / 1000000; /* Modulo 2^32, as the counter of a chip. */
}
static void connect_to(int port) {
  struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (socket_fd >= 0) close(socket_fd);
  socket_fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(socket_fd, (struct sockaddr *)&server, sizeof server) != 0) perror("connect");
}

int main(int argc, char **argv) {
  if (argc < 4 || argc > 6 || strlen(argv[3]) != 64 || (argc > 5 && strcmp(argv[5], "aes") != 0)) return fprintf(stderr, "usage: tcp_device PORT DEVICE KEY [FOLDER [aes]]\n"), 2;
  uint8_t key[32];
  for (int i = 0; i < 32; i++) sscanf(argv[3] + 2 * i, "%2hhx", &key[i]);
  srand((unsigned)atoi(argv[2]));
  for (int i = 0; i < SAMPLES; i++) {
    for (int j = 0; j < D; j++) x[i * D + j] = (float)rand() / (float)RAND_MAX - 0.5f;
    y[i] = 2 * x[i * D] - x[i * D + 1]; /* Put your own samples here. */
  }
  fedspan_config config = {.device = (uint64_t)atoll(argv[2]), .key = key, .features = D, .width = K, .outputs = OUTPUTS,
                           .leave_when_fitted = true,
                           .platform = {.rewind = rewind_samples, .next = next_samples, .random = random_bytes,
                                        .read = read_link, .write = write_link}};
  if (argc > 4) folder = argv[4], config.platform.context = argv[2], config.platform.load = load_item, config.platform.save = save_item;
  if (argc > 5) config.cipher = FEDSPAN_AES_128_CCM;
  fedspan_client *client;
  fedspan_status status = fedspan_start(memory, sizeof memory, &config, &client);
  if (status != FEDSPAN_OK) return fprintf(stderr, "fedspan_start: %d\n", status), 1;
  connect_to(atoi(argv[1]));
  while (!fedspan_is_fitted(client)) {
    uint32_t wait;
    fedspan_state state = fedspan_step(client, now_ms(), &wait);
    struct pollfd ready = {.fd = socket_fd, .events = POLLIN};
    if (state == FEDSPAN_WAIT) poll(&ready, 1, wait > 1000 ? 1000 : (int)wait);
    if (fedspan_refusal(client) != 0) return fprintf(stderr, "refused: reason %u of fedspan_refusal\n", fedspan_refusal(client)), 1;
    if (state == FEDSPAN_CLOSED && !fedspan_is_fitted(client)) poll(NULL, 0, (int)wait), connect_to(atoi(argv[1]));
  }
  float prediction;
  status = fedspan_predict(client, x, D, &prediction, OUTPUTS);
  printf("device %s: %u rounds, status %d, prediction %.3f of %.3f\n", argv[2], fedspan_last_round(client), status, prediction, y[0]);
  fedspan_end(client);
  return 0;
}
