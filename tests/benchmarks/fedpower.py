"""FedPower's iterations on all rows in numpy, without noise: the rival of `tests/src/benchmarks/figures/fedpower.rs`. The
rows are visited in blocks that stay in a cache between the two products, which is the fastest form that was found."""

import time

from side import Data, need, numpy_version, serve

np = need("numpy")
data = Data()
clients, rows, d, k, r, iterations = (data.sizes[name] for name in ["clients", "rows", "d", "k", "r", "iterations"])
start, truth = data.array("z", d, r), data.array("truth", d, k).astype("f8")
BLOCK = 2000  # rows

blocks = [
    block
    for client in range(clients)
    for block in np.split(data.array(f"x-{client}", rows, d), range(BLOCK, rows, BLOCK))
]
products = np.empty((BLOCK, r), "f4")


def iterate(z):
    total = np.zeros((r, d), "f4")
    for block in blocks:
        part = products[: len(block)]
        np.matmul(block, z, out=part)
        total += part.T @ block
    return np.linalg.qr(total.T)[0]


def turn(repeats):
    begin = time.perf_counter()
    for _ in range(repeats):
        z = start
        for _ in range(iterations):
            z = iterate(z)
    seconds = time.perf_counter() - begin
    z = z.astype("f8")
    return seconds, np.linalg.norm(truth - z @ (z.T @ truth), 2)


n = f"{clients} clients x {rows} rows x {d}, r {r}, {iterations} iterations"
serve(numpy_version(), f"without noise, blocks of {BLOCK} rows", "f32", n, turn)
