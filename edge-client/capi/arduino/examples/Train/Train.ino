// Trains a linear model of 6 features with a server that is connected to the serial line, and predicts. Replace the samples, and the random
// numbers and the storage by those of your board: a device with a key needs both.
#include <FedSpanArduino.h>

constexpr uint16_t FEATURES = 6, WIDTH = 2, OUTPUTS = 1, SAMPLES = 16, FRAME_LIMIT = 256;

alignas(8) static uint8_t memory[FEDSPAN_MEMORY_SIZE(FEATURES, WIDTH, OUTPUTS, FRAME_LIMIT)];
static float x[SAMPLES * FEATURES], y[SAMPLES];
static fedspan_client *client = nullptr;
static bool hasBegun = false, isClosed = false;
static uint32_t lastStep = 0, wait = 0;

static int32_t rewindSamples(void *, uint32_t) {
  hasBegun = false;
  return 0;
}

static int32_t nextSamples(void *, fedspan_samples *samples) {
  samples->x = x;
  samples->targets = y;
  samples->classes = nullptr;
  samples->count = hasBegun ? 0 : SAMPLES;
  hasBegun = true;
  return 0;
}

static int32_t randomBytes(void *, uint8_t *bytes, size_t length) {
  for (size_t i = 0; i < length; i++) bytes[i] = static_cast<uint8_t>(random(256));
  return 0;
}

void setup() {
  Serial.begin(115200);
  fedspanStream() = &Serial;
  for (int i = 0; i < SAMPLES * FEATURES; i++) x[i] = random(-1000, 1000) / 1000.0f;
  for (int i = 0; i < SAMPLES; i++) y[i] = x[i * FEATURES] - 2 * x[i * FEATURES + 1];
  fedspan_config config = {};
  config.device = 1;  // Without a key: for a test bench whose server allows it.
  config.features = FEATURES;
  config.width = WIDTH;
  config.outputs = OUTPUTS;
  config.frame_limit = FRAME_LIMIT;
  config.platform.rewind = rewindSamples;
  config.platform.next = nextSamples;
  config.platform.random = randomBytes;
  config.platform.read = fedspanRead;
  config.platform.write = fedspanWrite;
  if (fedspan_start(memory, sizeof memory, &config, &client) != FEDSPAN_OK) Serial.println("fedspan_start: wrong settings, or no random bytes");
}

void loop() {
  // The serial line has no connection: after a link has ended, the next one begins after the time that the step names.
  const uint32_t now = static_cast<uint32_t>(millis());
  if (now - lastStep < wait && (isClosed || Serial.available() == 0)) return;
  lastStep = now;
  const fedspan_state state = fedspan_step(client, now, &wait);
  if (state == FEDSPAN_STOPPED) return;
  isClosed = state == FEDSPAN_CLOSED;
  float prediction = 0;
  if (fedspan_predict(client, x, FEATURES, &prediction, OUTPUTS) == FEDSPAN_OK) digitalWrite(LED_BUILTIN, prediction > 0);
}
