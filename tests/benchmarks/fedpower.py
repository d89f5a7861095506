"""FedPower's iterations on all rows in numpy, without noise: the rival of `tests/src/benchmarks/figures/fedpower.rs`.

blocks  the iterations as they are, on blocks of rows that stay in a cache between the two products; the fastest form that was found
gram    the matrix X^T X once, and iterations on it: fewer operations, since d is only so many times r as there are iterations
"""

import time

from side import Data, need, numpy_version, serve

np = need("numpy")
data = Data()
clients, rows, d, k, r, iterations = (data.sizes[name] for name in ["clients", "rows", "d", "k", "r", "iterations"])
start, truth = data.array("z", d, r), data.array("truth", d, k).astype("f8")
BLOCK = 2000  # rows

whole = [data.array(f"x-{client}", rows, d) for client in range(clients)]
blocks = [block for client in whole for block in np.split(client, range(BLOCK, rows, BLOCK))]
products, sums = np.empty((r, BLOCK), "f4"), np.empty((r, d), "f4")


def of_blocks():
    def multiply(z):
        total = np.zeros((r, d), "f4")
        z = np.ascontiguousarray(z.T)
        for block in blocks:
            part = products[:, : len(block)]
            np.matmul(z, block.T, out=part)
            np.matmul(part, block, out=sums)
            np.add(total, sums, out=total)
        return total.T

    return multiply


def of_gram():
    gram = np.zeros((d, d), "f4")
    for client in whole:
        gram += client.T @ client
    return lambda z: gram @ z


prepare = data.pick({"blocks": of_blocks, "gram": of_gram})


def turn(repeats):
    begin = time.perf_counter()
    for _ in range(repeats):
        z, multiply = start, prepare()
        for _ in range(iterations):
            z = np.linalg.qr(multiply(z))[0]
    seconds = time.perf_counter() - begin
    z = z.astype("f8")
    return seconds, np.linalg.norm(truth - z @ (z.T @ truth), 2)


n = f"{clients} clients x {rows} rows x {d}, r {r}, {iterations} iterations"
serve(numpy_version(), f"{data.form}, without noise", "f32", n, turn)
