"""The training epoch of the program `epochs` (tests/src/bin) in numpy: the same network, data, batches and steps.

Prints numpy's version and the mean cross-entropy after one epoch. Then reads lines from standard input, each with a
number of epochs, runs them and prints the seconds they took.
"""

import sys
import time

import numpy as np

SIZES = [784, 128, 64, 10]
IMAGES, BATCH = 80, 10
STEP_SIZE, MOMENTUM = np.float32(0.1), np.float32(0.5)


def numbers(count, state):
    values = np.empty(count, np.float32)
    for place in range(count):
        state = (state * 1_664_525 + 1_013_904_223) % 2**32
        values[place] = (state >> 8) / 8_388_608.0 - 1.0
    return values


shapes = list(zip(SIZES, SIZES[1:]))
weights = [
    numbers(i * o, depth + 1).reshape(i, o) * np.float32(1 / np.sqrt(np.float32(i)))
    for depth, (i, o) in enumerate(shapes)
]
biases = [np.zeros(o, np.float32) for o in SIZES[1:]]
x = numbers(IMAGES * SIZES[0], 4).reshape(IMAGES, SIZES[0])
classes = np.arange(IMAGES) % SIZES[-1]

parameters = [array for pair in zip(weights, biases) for array in pair]
gradients = [np.empty_like(p) for p in parameters]
velocities = [np.zeros_like(p) for p in parameters]
activations = [np.empty((BATCH, o), np.float32) for o in SIZES[1:]]
deltas = [np.empty((BATCH, o), np.float32) for o in SIZES[1:-1]]
rows = np.arange(BATCH)


def forward(x):
    for depth, out in enumerate(activations):
        np.matmul(x, weights[depth], out=out)
        out += biases[depth]
        if depth + 1 < len(activations):
            np.maximum(out, 0, out=out)
        x = out
    return x


def epoch():
    for first in range(0, IMAGES, BATCH):
        batch, own = x[first : first + BATCH], classes[first : first + BATCH]
        errors = forward(batch)
        errors -= errors.max(axis=1, keepdims=True)
        np.exp(errors, out=errors)
        errors /= errors.sum(axis=1, keepdims=True)
        errors[rows, own] -= 1
        errors *= np.float32(1 / BATCH)
        for depth in reversed(range(len(weights))):
            inputs = activations[depth - 1] if depth else batch
            np.matmul(inputs.T, errors, out=gradients[2 * depth])
            np.sum(errors, axis=0, out=gradients[2 * depth + 1])
            if depth:
                below = deltas[depth - 1]
                np.matmul(errors, weights[depth].T, out=below)
                below *= inputs > 0
                errors = below
        for p, g, v in zip(parameters, gradients, velocities):
            v *= MOMENTUM
            v += g
            np.multiply(v, STEP_SIZE, out=g)
            p -= g


def loss():
    total = 0.0
    for first in range(0, IMAGES, BATCH):
        logits = forward(x[first : first + BATCH]).astype(np.float64)
        own = logits[rows, classes[first : first + BATCH]]
        total += np.sum(np.log(np.sum(np.exp(logits), axis=1)) - own)
    return total / IMAGES


epoch()
print(f"numpy {np.__version__}")
print(loss(), flush=True)
for line in sys.stdin:
    count = int(line)
    start = time.perf_counter()
    for _ in range(count):
        epoch()
    print(time.perf_counter() - start, flush=True)
