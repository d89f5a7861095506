/* Prints sizes and offsets of the header's structures, which a test compares with those of the library. */
#include <stdio.h>

#include "fedspan.h"

#define FIELD(structure, field) printf(#structure "." #field " %zu\n", offsetof(structure, field))

int main(void) {
  printf("fedspan_config %zu\n", sizeof(fedspan_config));
  FIELD(fedspan_config, device);
  FIELD(fedspan_config, key);
  FIELD(fedspan_config, key_epoch);
  FIELD(fedspan_config, outputs);
  FIELD(fedspan_config, frame_limit);
  FIELD(fedspan_config, leave_when_fitted);
  FIELD(fedspan_config, cipher);
  FIELD(fedspan_config, sleep_ms);
  FIELD(fedspan_config, sleep_wait_ms);
  FIELD(fedspan_config, timers);
  FIELD(fedspan_config, pause_quota);
  FIELD(fedspan_config, platform);
  printf("fedspan_platform %zu\n", sizeof(fedspan_platform));
  FIELD(fedspan_platform, random);
  FIELD(fedspan_platform, write);
  FIELD(fedspan_platform, pause);
  printf("fedspan_timers %zu\n", sizeof(fedspan_timers));
  FIELD(fedspan_timers, write_ms);
  printf("fedspan_samples %zu\n", sizeof(fedspan_samples));
  FIELD(fedspan_samples, count);
  printf("fedspan_counters %zu\n", sizeof(fedspan_counters));
  printf("fedspan_status %zu\n", sizeof(fedspan_status));
  printf("fedspan_state %zu\n", sizeof(fedspan_state));
  return 0;
}
