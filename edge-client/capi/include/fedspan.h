/* FedSpan's device client for C. Generated from Rust; edge-client/capi/README.md says how to use it. */

#ifndef FEDSPAN_H
#define FEDSPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A client, in the memory that fedspan_start() was given. */
typedef struct fedspan_client fedspan_client;

/* Bytes of a client without its model and its buffers: an upper bound. */
#define FEDSPAN_CLIENT_SIZE (sizeof(void *) == 4 ? 1312 : 1600)

/* Bytes of memory for a client with these sizes, as a constant; fedspan_memory_size() computes it for settings. */
#define FEDSPAN_FRAME(frame_limit) ((frame_limit) == 0 ? 256u : (frame_limit))
#define FEDSPAN_MEMORY_SIZE(features, width, outputs, frame_limit) \
  (FEDSPAN_CLIENT_SIZE + \
   4u * (3u * (width) * (outputs) + (features) * ((width) + (outputs)) + (width) * ((width) + 1u) + (outputs)) + \
   2u * FEDSPAN_FRAME(frame_limit) + FEDSPAN_FRAME(frame_limit) / 254u + 32u)


/*
 Result of a function.
 */
enum fedspan_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   Done.
   */
  FEDSPAN_OK = 0,
  /*
   A pointer is NULL, or not aligned to 8 bytes where memory is given.
   */
  FEDSPAN_NULL = 1,
  /*
   The memory is shorter than `fedspan_memory_size`.
   */
  FEDSPAN_MEMORY = 2,
  /*
   A size is 0, width is larger than features, there are more than 256 outputs, or the frame limit is out of range.
   */
  FEDSPAN_SIZE = 3,
  /*
   The settings have a key, a cipher or a function `pause`, and the library was built without the feature that it needs.
   */
  FEDSPAN_NOT_BUILT = 4,
  /*
   There is no representation: no round has brought one since the start, or a new one has arrived in part. It is not stored;
   `fedspan_set_representation` sets one that the firmware has kept.
   */
  FEDSPAN_NO_REPRESENTATION = 5,
  /*
   There is no head for the present representation.
   */
  FEDSPAN_NO_HEAD = 6,
  /*
   A length differs from the model's.
   */
  FEDSPAN_LENGTH = 7,
  /*
   A value is not finite.
   */
  FEDSPAN_NOT_FINITE = 8,
  /*
   The memory holds no client: it was never started, or has ended.
   */
  FEDSPAN_NOT_STARTED = 9,
  /*
   Two arrays overlap, or settings or key are in the memory of the client.
   */
  FEDSPAN_OVERLAP = 10,
  /*
   A prediction is not finite, because a sum overflows.
   */
  FEDSPAN_OVERFLOW = 11,
  /*
   The function `random` has failed. A later start may succeed.
   */
  FEDSPAN_RANDOM = 12,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fedspan_status fedspan_status;
#else
typedef int32_t fedspan_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Item of the storage.
 */
enum fedspan_item
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   Head and number of the last round; written once in a round.
   */
  FEDSPAN_RECORD = 0,
  /*
   Handshake numbers in use; written once in 128 connections. If it is lost, the device needs a new key.
   */
  FEDSPAN_HANDSHAKES = 1,
  /*
   Key that the server has sent, 42 bytes; written when it sends one, in a library with the feature `key-rotation` only. If it is lost, the
   device uses the key of its settings, which the server no longer accepts.
   */
  FEDSPAN_KEY = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fedspan_item fedspan_item;
#else
typedef int32_t fedspan_item;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Result of a step: the next action of the firmware.
 */
enum fedspan_state
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   Call `fedspan_step` again at once.
   */
  FEDSPAN_AGAIN = 0,
  /*
   Call `fedspan_step` again after `*wait_ms`, or earlier when bytes have arrived or more can be written.
   */
  FEDSPAN_WAIT = 1,
  /*
   The link has ended. Connect again after `*wait_ms`; the next step begins with the new link.
   */
  FEDSPAN_CLOSED = 2,
  /*
   There is no client, because it was not started or has ended, or `wait_ms` is NULL.
   */
  FEDSPAN_STOPPED = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fedspan_state fedspan_state;
#else
typedef int32_t fedspan_state;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Algorithm that seals the frames of a device with a key.
 */
enum fedspan_cipher
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   ChaCha20-Poly1305.
   */
  FEDSPAN_CHACHA20_POLY1305 = 0,
  /*
   AES-128-CCM, in a library with the feature `aes-ccm`.
   */
  FEDSPAN_AES_128_CCM = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fedspan_cipher fedspan_cipher;
#else
typedef int32_t fedspan_cipher;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Times in milliseconds after which a client repeats a message, connects again, or gives up a write; 0 for the default. A link on which a
 message and its answer take longer than a second needs longer ones.
 */
typedef struct fedspan_timers {
  /*
   Time without progress after which a hello is repeated, or missing parts of a message are requested: 0 for 2000.
   */
  uint32_t ask_again_ms;
  /*
   Time without an acknowledgement after which an update is sent again: 0 for 10000.
   */
  uint32_t resend_ms;
  /*
   First delay of a reconnect, which doubles with each attempt: 0 for 500.
   */
  uint32_t reconnect_ms;
  /*
   Longest delay of a reconnect: 0 for 60000.
   */
  uint32_t reconnect_max_ms;
  /*
   Longest time for which the link may accept no byte of a frame; the link then ends: 0 for 10000.
   */
  uint32_t write_ms;
} fedspan_timers;

/*
 Samples that a call of `next` returns. All arrays must stay valid and unchanged until the next call of a function of the
 platform.
 */
typedef struct fedspan_samples {
  /*
   Features, `features` values for each sample.
   */
  const float *x;
  /*
   Targets of a regression, `outputs` values for each sample; NULL for classes.
   */
  const float *targets;
  /*
   Classes, one byte below `outputs` for each sample; NULL for a regression.
   */
  const uint8_t *classes;
  /*
   Number of samples: multiples of four are fastest. 0 ends the pass.
   */
  uint32_t count;
} fedspan_samples;

/*
 Functions of the firmware. They are called from within `fedspan_start`, `fedspan_step` and `fedspan_end` only, must return, and
 must not call a function of this client. `context` is the first argument of each.
 */
typedef struct fedspan_platform {
  /*
   First argument of each function.
   */
  void *context;
  /*
   Starts a pass over the samples of a round; every pass of a round has the same samples in the same order. Returns 0, or
   another number if the samples cannot be read.
   */
  int32_t (*rewind)(void *context, uint32_t round);
  /*
   Writes the next samples of the pass to `*samples`, which has been cleared. Returns 0, or another number if the samples cannot be
   read: the round is then declined.
   */
  int32_t (*next)(void *context, struct fedspan_samples *samples);
  /*
   Fills bytes from a cryptographic random number generator. Returns 0, or another number if there are no random bytes now: the
   client then sends nothing over the present link, which ends, and asks again for the next one. Must not wait for long.
   */
  int32_t (*random)(void *context, uint8_t *bytes, size_t length);
  /*
   Reads an item, at most `length` bytes. Returns its length, 0 if it was never written, a negative number if reading fails.
   NULL, together with `save`, if nothing is stored: for tests, because a device with a key must store its handshakes.
   */
  int32_t (*load)(void *context, fedspan_item item, uint8_t *bytes, size_t length);
  /*
   Writes an item. Returns 0 once it is stored; power may then fail at any time. A write that is cut off leaves the old item. For an item
   that the firmware does not know, return another number: the client does without it.
   */
  int32_t (*save)(void *context, fedspan_item item, const uint8_t *bytes, size_t length);
  /*
   Reads bytes that have arrived. Returns their number, 0 if there are none yet, a negative number if the link is lost.
   */
  int32_t (*read)(void *context, uint8_t *bytes, size_t length);
  /*
   Writes some of the bytes. Returns their number, 0 if none can be written yet, a negative number if the link is lost.
   */
  int32_t (*write)(void *context, const uint8_t *bytes, size_t length);
  /*
   Feeds a watchdog, or lets a radio work, during a computation: see `pause_quota`. Is also called from within `fedspan_predict` and
   `fedspan_set_representation`. NULL for no pauses.
   */
  void (*pause)(void *context);
} fedspan_platform;

/*
 Settings of a client. Set all bytes to zero first, so that fields of later versions keep their defaults.
 */
typedef struct fedspan_config {
  /*
   Identity of the device, unique in the fleet.
   */
  uint64_t device;
  /*
   Key of the device, 32 bytes, which are copied; NULL for frames that are not encrypted, for tests only.
   */
  const uint8_t *key;
  /*
   Epoch of the key, as `fedspan-aggregator keys` prints it; 0 for a first key.
   */
  uint16_t key_epoch;
  /*
   Number d of features of a sample.
   */
  uint16_t features;
  /*
   Number k of columns of the representation, at most d.
   */
  uint16_t width;
  /*
   Number C of outputs: of the targets of a regression, or of classes; at most 256.
   */
  uint16_t outputs;
  /*
   Largest frame that can be received, in bytes: 128 to 16384; 0 for 256.
   */
  uint16_t frame_limit;
  /*
   1 to close the link once the final head is fitted and acknowledged, 0 to stay connected.
   */
  uint8_t leave_when_fitted;
  /*
   Algorithm that seals frames, a `fedspan_cipher`: 0 for ChaCha20-Poly1305.
   */
  uint8_t cipher;
  /*
   Time in milliseconds between two wake-ups of a device that sleeps between rounds; 0 to stay connected. The device closes the
   link after one round, or after `sleep_wait_ms` without a round, and connects again at the time that the server has named for
   the next round, or after this time.
   */
  uint32_t sleep_ms;
  /*
   Time in milliseconds for which a device that sleeps waits for a round: 0 for 2000. If the server takes longer to open a round,
   the device never trains, and `counters.unasked` grows.
   */
  uint32_t sleep_wait_ms;
  /*
   Times of retries.
   */
  struct fedspan_timers timers;
  /*
   Largest number of multiply-accumulates between two calls of `platform.pause` during a computation: 0 for 1000. One takes about 350
   cycles on a Cortex-M0 and 5 on a Cortex-M4F. Results are the same bits for any number.
   */
  uint32_t pause_quota;
  /*
   Functions of the firmware. They are copied; what `context` points to must live as long as the client.
   */
  struct fedspan_platform platform;
} fedspan_config;

/*
 Numbers of events since the start. They stop at the largest number.
 */
typedef struct fedspan_counters {
  /*
   Rounds whose update was counted by the server.
   */
  uint32_t counted;
  /*
   Rounds whose update arrived too late.
   */
  uint32_t late;
  /*
   Rounds whose update was rejected.
   */
  uint32_t rejected;
  /*
   Rounds that the device declined.
   */
  uint32_t declined;
  /*
   Rounds that were closed before the device had answered.
   */
  uint32_t closed;
  /*
   Links that the device left because no round opened in time.
   */
  uint32_t unasked;
  /*
   Messages that could not be decoded.
   */
  uint32_t malformed;
  /*
   Messages that were not expected.
   */
  uint32_t unexpected;
  /*
   Requests for parts of a message that were lost.
   */
  uint32_t asked_again;
  /*
   Sealed frames that were replayed, forged, or not expected.
   */
  uint32_t unopened;
  /*
   Messages without a seal on a link that has a key. If the device never takes part and this grows, the server may have refused it
   for a reason that it cannot prove to the device: see `fedspan_refusal`.
   */
  uint32_t unsealed;
  /*
   Times that the clock has gone back.
   */
  uint32_t clock_jumps;
  /*
   Failures of the storage.
   */
  uint32_t storage;
  /*
   Samples that `next` could not read or has described wrongly. The round is then declined.
   */
  uint32_t unread;
  /*
   Calls of `random` that have failed. Each one ends a link.
   */
  uint32_t random;
} fedspan_counters;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Starts a client in `memory`, which must be aligned to 8 bytes, and belongs to the client until `fedspan_end`: settings and key must
 not be in it. Reads the stored items, and connects to nothing yet. `*client` becomes the client, or NULL if an error is returned.

 # Safety
 `memory` has `size` bytes, `config` points to settings, and `client` to a pointer; or they are NULL.
 */
fedspan_status fedspan_start(uint8_t *memory,
                             size_t size,
                             const struct fedspan_config *config,
                             fedspan_client **client);

/*
 Ends a client and overwrites its keys. The memory then belongs to the caller.

 # Safety
 `client` is NULL or came from `fedspan_start`, and is not used by another thread.
 */
void fedspan_end(fedspan_client *client);

/*
 Does one step of a client over a link that is connected: handles at most one event, reads or writes some bytes, or computes one
 round. `now_ms` is a counter of milliseconds of 32 bits, which wraps; of a longer one pass the low 32 bits. It may jump or go back.
 Writes to `*wait_ms` the milliseconds from `now_ms` to the next step, at most 2^30, which are 12 days: a device that would wait longer does
 a step then, or connects.

 # Safety
 `client` is NULL or came from `fedspan_start`, and is not used by another thread; `wait_ms` points to a number.
 */
fedspan_state fedspan_step(fedspan_client *client,
                           uint32_t now_ms,
                           uint32_t *wait_ms);

/*
 Computes the prediction of the personal model for one sample: `outputs` values, of which for classes the largest is that of the
 predicted class. May be called between any two steps. The arrays must not overlap.

 # Safety
 `client` is NULL or came from `fedspan_start`, and is not used by another thread; `x` has `features` values and `out` has
 `outputs`.
 */
fedspan_status fedspan_predict(fedspan_client *client,
                               const float *x,
                               size_t features,
                               float *out,
                               size_t outputs);

/*
 Copies the representation, `features * width` values by rows, to `out`, so that the firmware can keep it over a reset. It changes
 with each round.

 # Safety
 `client` is NULL or came from `fedspan_start`, and is not used by another thread; `out` has `length` values.
 */
fedspan_status fedspan_get_representation(fedspan_client *client,
                                          float *out,
                                          size_t length);

/*
 Sets the representation to values from `fedspan_get_representation`. If they are those for which the stored head was fitted, the
 device can predict without a server.

 # Safety
 `client` is NULL or came from `fedspan_start`, and is not used by another thread; `values` has `length` values.
 */
fedspan_status fedspan_set_representation(fedspan_client *client,
                                          const float *values,
                                          size_t length);

/*
 Returns true once the final head is fitted and the server has acknowledged it.

 # Safety
 `client` is NULL or came from `fedspan_start`.
 */
bool fedspan_is_fitted(fedspan_client *client);

/*
 Returns a number that changes whenever a round has given the model a new head.

 # Safety
 `client` is NULL or came from `fedspan_start`.
 */
uint32_t fedspan_head_version(fedspan_client *client);

/*
 Returns the number of the last round that the device has finished.

 # Safety
 `client` is NULL or came from `fedspan_start`.
 */
uint32_t fedspan_last_round(fedspan_client *client);

/*
 Returns why the server has refused the device, which connecting again does not change: 0 if it has not, 1 another version of the
 protocol, 2 another build of it, 3 another model, 4 a missing capability, 5 an unknown device or key, 6 the frame limit, 7 a
 missing key, 8 a server without keys. A device with a key accepts only reasons that the server has sealed, and with a version or build of
 its own it cannot seal: the results are 3, 4 and 6. For the other reasons the result stays 0, the device tries again, and
 `counters.unsealed` grows. The client in Rust can know 1 and 2 by the feature `reports`.

 # Safety
 `client` is NULL or came from `fedspan_start`.
 */
uint32_t fedspan_refusal(fedspan_client *client);

/*
 Writes the counters to `*counters`.

 # Safety
 `client` is NULL or came from `fedspan_start`; `counters` is NULL or points to counters.
 */
fedspan_status fedspan_get_counters(fedspan_client *client, struct fedspan_counters *counters);

/*
 Returns the bytes of memory that a client with these settings needs; 0 if the settings are NULL or their sizes are not allowed.
 The macro `FEDSPAN_MEMORY_SIZE` is never less.

 # Safety
 `config` is NULL, or points to settings.
 */
size_t fedspan_memory_size(const struct fedspan_config *config);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FEDSPAN_H */
