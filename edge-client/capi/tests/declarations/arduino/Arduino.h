// Declarations of Arduino's core that the library and its sketch call, so that they can be compiled without it.
#include <stddef.h>
#include <stdint.h>
#define LED_BUILTIN 13
class Stream {
 public:
  virtual int available() = 0;
  virtual int read() = 0;
  virtual int availableForWrite() { return 0; }
  virtual size_t write(const uint8_t *buffer, size_t size) = 0;
};
class HardwareSerial : public Stream {
 public:
  void begin(unsigned long baud);
  int available() override;
  int read() override;
  size_t println(const char *text);
  size_t write(const uint8_t *buffer, size_t size) override;
};
extern HardwareSerial Serial;
unsigned long millis();
long random(long below);
long random(long from, long below);
void digitalWrite(uint8_t pin, uint8_t value);
