/* Items in memory, and a test of two clients that store in them: shared by the tests of the packages. */
#include <stdio.h>
#include <string.h>

#include "fedspan.h"

enum { ITEMS = 16 };

/* Items, each with the path under which it is stored. */
static struct {
  char path[64];
  uint8_t bytes[64];
  size_t length;
} items[ITEMS];
static size_t item_count;

/* Index of an item; item_count if there is none of this path. */
static size_t find(const char *path) {
  size_t index = 0;
  while (index < item_count && strcmp(items[index].path, path) != 0) index++;
  return index;
}

static void put(const char *path, const void *bytes, size_t length) {
  const size_t index = find(path);
  if (index == item_count) strcpy(items[item_count++].path, path);
  memcpy(items[index].bytes, bytes, length);
  items[index].length = length;
}

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) return fprintf(stderr, "line %d: %s\n", __LINE__, #condition), 1; \
  } while (0)

/* Saves the items of a client, and returns 0 if they are loaded again, and stored under paths below this name. */
static int stores_below(const fedspan_platform *platform, const char *name, uint8_t content) {
  for (fedspan_item item = FEDSPAN_RECORD; item <= FEDSPAN_KEY; item++) {
    const uint8_t saved[3] = {content, (uint8_t)item, 7};
    uint8_t loaded[3] = {0};
    const char *names[] = {"record", "handshakes", "key"};
    char path[64];
    CHECK(platform->load(platform->context, item, loaded, sizeof loaded) == 0);
    CHECK(platform->save(platform->context, item, saved, sizeof saved) == 0);
    CHECK(platform->load(platform->context, item, loaded, sizeof loaded) == 3);
    CHECK(memcmp(saved, loaded, sizeof saved) == 0);
    CHECK(platform->load(platform->context, item, loaded, 2) < 0);
    snprintf(path, sizeof path, "%s/%s", name, names[item]);
    CHECK(find(path) < item_count);
  }
  return 0;
}

/* Returns 0 if a client still has the items that `stores_below` has saved. */
static int keeps(const fedspan_platform *platform, uint8_t content) {
  for (fedspan_item item = FEDSPAN_RECORD; item <= FEDSPAN_KEY; item++) {
    uint8_t loaded[3] = {0};
    CHECK(platform->load(platform->context, item, loaded, sizeof loaded) == 3);
    CHECK(loaded[0] == content && loaded[1] == item);
  }
  return 0;
}

/* Contexts of two clients, which begin with the name of their storage. */
struct device {
  const char *name;
  int socket;
};

/* Tests a package by its two functions. */
static int test(int (*default_platform)(fedspan_platform *), int (*named_platform)(fedspan_platform *), const char *longest) {
  struct device devices[] = {{"second", 2}, {longest, 3}};
  fedspan_platform first = {0}, second = {.context = &devices[0]}, third = {.context = &devices[1]};
  CHECK(default_platform(&first) == 0 && named_platform(&second) == 0 && named_platform(&third) == 0);
  CHECK(stores_below(&first, "fedspan", 1) == 0);
  CHECK(stores_below(&second, "second", 2) == 0);
  CHECK(stores_below(&third, longest, 3) == 0);
  CHECK(item_count == 9 && keeps(&first, 1) == 0 && keeps(&second, 2) == 0 && keeps(&third, 3) == 0);
  char too_long[64];
  snprintf(too_long, sizeof too_long, "%sx", longest);
  const char *wrong[] = {NULL, "", too_long};
  for (size_t index = 0; index < 3; index++) {
    struct device device = {.name = wrong[index]};
    fedspan_platform platform = {.context = &device};
    CHECK(named_platform(&platform) < 0 && platform.random == NULL && platform.load == NULL);
  }
  fedspan_platform without = {0};
  CHECK(named_platform(&without) < 0 && without.save == NULL);
  return 0;
}
