// FedSpan for Arduino: the interface to C, and links over a Stream such as Serial.
#ifndef FEDSPAN_ARDUINO_H
#define FEDSPAN_ARDUINO_H

#include <Arduino.h>

#include "fedspan.h"

// Stream of the link, which the sketch sets before it starts a client.
inline Stream *&fedspanStream() {
  static Stream *stream = nullptr;
  return stream;
}

// Functions `read` and `write` of the platform over the stream.
inline int32_t fedspanRead(void *, uint8_t *bytes, size_t length) {
  size_t count = 0;
  while (count < length && fedspanStream()->available() > 0) bytes[count++] = static_cast<uint8_t>(fedspanStream()->read());
  return static_cast<int32_t>(count);
}

// Some cores do not say how much room there is and return 0. A few bytes are written then, which may wait until they are sent.
inline int32_t fedspanWrite(void *, const uint8_t *bytes, size_t length) {
  const int known = fedspanStream()->availableForWrite();
  const size_t room = known > 0 ? static_cast<size_t>(known) : 16;
  return static_cast<int32_t>(fedspanStream()->write(bytes, length < room ? length : room));
}

#endif
