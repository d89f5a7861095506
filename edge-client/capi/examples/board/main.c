/* A device in C: trains in a campaign, then predicts its own test samples. The emulated boards run it against the real server
   (edge-client/boards, program c_client); on a board of yours, replace the functions of board.h. */
#include "board.h"

enum { FEATURES = 20, WIDTH = 2, OUTPUTS = 1, FRAME_LIMIT = 256 };

/* All memory of the client. */
static _Alignas(8) uint8_t memory[FEDSPAN_MEMORY_SIZE(FEATURES, WIDTH, OUTPUTS, FRAME_LIMIT)];

static fedspan_client *start(void) {
  fedspan_config config = {
      .device = board_device(),
      .key = board_key(),
      .features = FEATURES,
      .width = WIDTH,
      .outputs = OUTPUTS,
      .frame_limit = FRAME_LIMIT,
      .leave_when_fitted = true,
      .platform = {
          .rewind = board_rewind,
          .next = board_next,
          .random = board_random,
          .load = board_load,
          .save = board_save,
          .read = board_read,
          .write = board_write,
      },
  };
  fedspan_client *client;
  fedspan_status status = fedspan_start(memory, sizeof memory, &config, &client);
  if (status != FEDSPAN_OK) board_fail("fedspan_start", status);
  return client;
}

static void train(fedspan_client *client) {
  board_connect();
  while (!fedspan_is_fitted(client)) {
    uint32_t wait, now = board_now();
    switch (fedspan_step(client, now, &wait)) {
    case FEDSPAN_WAIT:
      board_wait(wait);
      break;
    case FEDSPAN_CLOSED:
      if (fedspan_is_fitted(client)) return;
      for (uint32_t passed; (passed = board_now() - now) < wait;) board_wait(wait - passed);
      board_connect();
      break;
    }
  }
}

void c_main(void) {
  fedspan_client *client = start();
  train(client);
  float squares = 0, target, prediction;
  uint32_t tested = 0;
  for (const float *x; (x = board_test(&target)) != NULL; tested++) {
    fedspan_status status = fedspan_predict(client, x, FEATURES, &prediction, OUTPUTS);
    if (status != FEDSPAN_OK) board_fail("fedspan_predict", status);
    squares += (prediction - target) * (prediction - target);
  }
  board_report(client, squares, tested);
}
