"""Update of a client that trains a dense network, in numpy with preallocated arrays: the rival of
`tests/src/benchmarks/figures/networks.rs`."""

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
broadcast = np.split(data.array("weights", -1), np.cumsum([i * o for i, o in shapes])[:-1])
broadcast = [layer.reshape(shape) for layer, shape in zip(broadcast, shapes)]
layers = [layer.copy() for layer in broadcast]
gradients = [np.empty_like(layer) for layer in layers]
velocities = [np.empty_like(layer) for layer in layers]
activations = [np.empty((batch, o), "f4") for o in widths[1:]]
deltas = [np.empty((batch, o), "f4") for o in widths[1:-1]]
rows = np.arange(batch)


def forward(x):
    for depth, out in enumerate(activations):
        np.matmul(x, layers[depth][:-1], out=out)
        out += layers[depth][-1]
        if depth + 1 < len(activations):
            np.maximum(out, 0, out=out)
        x = out
    return x


def update():
    for layer, start, velocity in zip(layers, broadcast, velocities):
        layer[:] = start
        velocity.fill(0)
    for first in range(0, images, batch):
        own = x[first : first + batch]
        errors = forward(own)
        errors -= errors.max(axis=1, keepdims=True)
        np.exp(errors, out=errors)
        errors /= errors.sum(axis=1, keepdims=True)
        errors[rows, classes[first : first + batch]] -= 1
        errors *= np.float32(1 / batch)
        for depth in reversed(range(len(layers))):
            inputs = activations[depth - 1] if depth else own
            np.matmul(inputs.T, errors, out=gradients[depth][:-1])
            np.sum(errors, axis=0, out=gradients[depth][-1])
            if depth:
                below = deltas[depth - 1]
                np.matmul(errors, layers[depth][:-1].T, out=below)
                below *= inputs > 0
                errors = below
        for layer, gradient, velocity in zip(layers, gradients, velocities):
            velocity *= momentum
            velocity += gradient
            np.multiply(velocity, step_size, out=gradient)
            layer -= gradient


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


weights = sum(layer.size for layer in layers)
side = sizes["side"]
n = f"{sizes['kind']} of {weights} weights, {images} images of {side} x {side}, batches of {batch}"
serve(numpy_version(), "preallocated", "f32", n, turn)
