"""Update of a client that trains a dense network, in numpy: the rival of `tests/src/benchmarks/figures/networks.rs`. All arrays are
preallocated, all layers are in one buffer, and the step size is a factor of the errors, which is the fastest form that was found."""

import time

from side import Data, need, numpy_version, serve

np = need("numpy")
data = Data()
sizes = data.sizes
widths, images, batch = sizes["widths"], sizes["images"], sizes["batch"]
step_size, momentum = np.float32(sizes["step_size"]), np.float32(sizes["momentum"])
x = data.array("x", images, widths[0])
classes = np.arange(images) % sizes["classes"]

shapes = [(i + 1, o) for i, o in zip(widths, widths[1:])]
broadcast = data.array("weights", -1)
weights, gradient, velocity = (np.empty_like(broadcast) for _ in range(3))


def layers_of(values):
    parts = np.split(values, np.cumsum([i * o for i, o in shapes])[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes)]


layers, gradients = layers_of(weights), layers_of(gradient)
activations = [np.empty((batch, o), "f4") for o in widths[1:]]
deltas = [np.empty((batch, o), "f4") for o in widths[1:-1]]
masks = [np.empty((batch, o), bool) for o in widths[1:-1]]
one_hot = np.eye(widths[-1], dtype="f4")[classes]
rows = np.arange(batch)


def forward(x):
    for depth, out in enumerate(activations):
        np.matmul(x, layers[depth][:-1], out=out)
        np.add(out, layers[depth][-1], out=out)
        if depth + 1 < len(activations):
            np.maximum(out, 0, out=out)
        x = out
    return x


def update():
    weights[:] = broadcast
    velocity.fill(0)
    for first in range(0, images, batch):
        own = x[first : first + batch]
        errors = forward(own)
        np.subtract(errors, errors.max(axis=1, keepdims=True), out=errors)
        np.exp(errors, out=errors)
        np.divide(errors, np.add.reduce(errors, axis=1, keepdims=True), out=errors)
        np.subtract(errors, one_hot[first : first + batch], out=errors)
        np.multiply(errors, step_size / np.float32(batch), out=errors)
        for depth in reversed(range(len(layers))):
            inputs = activations[depth - 1] if depth else own
            np.matmul(inputs.T, errors, out=gradients[depth][:-1])
            np.add.reduce(errors, axis=0, out=gradients[depth][-1])
            if depth:
                below, mask = deltas[depth - 1], masks[depth - 1]
                np.matmul(errors, layers[depth][:-1].T, out=below)
                np.greater(inputs, 0, out=mask)
                np.multiply(below, mask, out=below)
                errors = below
        np.multiply(velocity, momentum, out=velocity)
        np.add(velocity, gradient, out=velocity)
        np.subtract(weights, velocity, out=weights)


def loss():
    total = 0.0
    for first in range(0, images, batch):
        logits = forward(x[first : first + batch]).astype("f8")
        own = logits[rows, classes[first : first + batch]]
        total += np.sum(np.log(np.sum(np.exp(logits), axis=1)) - own)
    return total / images


def turn(repeats):
    begin = time.perf_counter()
    for _ in range(repeats):
        update()
    return time.perf_counter() - begin, loss()


side = sizes["side"]
n = f"{sizes['kind']} of {weights.size} weights, {images} images of {side} x {side}, batches of {batch}"
serve(numpy_version(), data.form, "f32", n, turn)
