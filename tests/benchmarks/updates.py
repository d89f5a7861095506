"""FedRep's updates on linear models in numpy, batched over clients: the rival of `tests/src/benchmarks/figures/updates.rs`.

einsum        one einsum for each formula
batched       one product for all clients where they share a factor, LAPACK for the heads, preallocated; the fastest form
              that was found for k of 4 and more
clients-last  the clients are the last axis, so that everything of size k is a sum over long rows; the fastest form for k = 2
"""

import time

from side import Data, need, numpy_version, serve

np = need("numpy")
data = Data()
n, d, k, m, c, rounds = (data.sizes[name] for name in ["clients", "d", "k", "samples", "outputs", "rounds"])
step_size = np.float32(data.sizes["step_size"])
x, y, start = data.array("x", n, m, d), data.array("y", n, m, c), data.array("b", d, k)
scale = step_size / np.float32(m * n)


def einsum():
    def heads(b):
        z = np.einsum("nmd,dk->nmk", x, b, optimize=True)
        gram = np.einsum("nmk,nml->nkl", z, z, optimize=True)
        return z, np.linalg.solve(gram, np.einsum("nmk,nmc->nkc", z, y, optimize=True))

    def gradient(b):
        z, w = heads(b)
        r = np.einsum("nmk,nkc->nmc", z, w, optimize=True) - y
        return np.einsum("nmd,nmc,nkc->dk", x, r, w, optimize=True)

    return heads, gradient


def batched():
    rows = x.reshape(n * m, d)
    z, gram, right = np.empty((n, m, k), "f4"), np.empty((n, k, k), "f4"), np.empty((n, k, c), "f4")
    r, u = np.empty((n, m, c), "f4"), np.empty((n, c, d), "f4")
    zt, rt = z.transpose(0, 2, 1), r.transpose(0, 2, 1)

    def heads(b):
        np.matmul(rows, b, out=z.reshape(n * m, k))
        np.matmul(zt, z, out=gram)
        np.matmul(zt, y, out=right)
        # For several outputs, the inverse and a product are faster than LAPACK's solution.
        return z, np.linalg.solve(gram, right) if c == 1 else np.linalg.inv(gram) @ right

    def gradient(b):
        _, w = heads(b)
        np.matmul(z, w, out=r)
        np.subtract(r, y, out=r)
        np.matmul(rt, x, out=u)
        heads_in_rows = np.ascontiguousarray(w.transpose(0, 2, 1)).reshape(n * c, k)
        return u.reshape(n * c, d).T @ heads_in_rows

    return heads, gradient


def clients_last():
    columns = np.ascontiguousarray(x.transpose(2, 1, 0)).reshape(d, m * n)
    targets = np.ascontiguousarray(y.transpose(2, 1, 0))
    z, v, r = np.empty((k, m, n), "f4"), np.empty((k, m, n), "f4"), np.empty((c, m, n), "f4")
    gram, w, part = np.empty((k, k, n), "f4"), np.empty((k, c, n), "f4"), np.empty((m, n), "f4")

    def cholesky():
        for j in range(k):
            for t in range(j):
                gram[j:, j] -= gram[j:, t] * gram[j, t]
            gram[j:, j] /= np.sqrt(gram[j, j])
        for j in range(k):
            for t in range(j):
                w[j] -= gram[j, t] * w[t]
            w[j] /= gram[j, j]
        for j in reversed(range(k)):
            for t in range(j + 1, k):
                w[j] -= gram[t, j] * w[t]
            w[j] /= gram[j, j]

    def heads(b):
        np.matmul(np.ascontiguousarray(b.T), columns, out=z.reshape(k, m * n))
        for i in range(k):
            np.einsum("jmn,mn->jn", z[: i + 1], z[i], out=gram[i, : i + 1])
            np.einsum("mn,cmn->cn", z[i], targets, out=w[i])
        cholesky()
        return z.transpose(2, 1, 0), w.transpose(2, 0, 1)

    def gradient(b):
        heads(b)
        for o in range(c):
            np.multiply(z[0], w[0, o], out=r[o])
            for i in range(1, k):
                np.multiply(z[i], w[i, o], out=part)
                np.add(r[o], part, out=r[o])
        np.subtract(r, targets, out=r)
        for i in range(k):
            np.multiply(r[0], w[i, 0], out=v[i])
            for o in range(1, c):
                np.multiply(r[o], w[i, o], out=part)
                np.add(v[i], part, out=v[i])
        return columns @ v.reshape(k, m * n).T

    return heads, gradient


heads, gradient = data.pick({"einsum": einsum, "batched": batched, "clients-last": clients_last})()


def turn(repeats):
    seconds = 0.0
    for _ in range(repeats):
        begin = time.perf_counter()
        b = start
        for _ in range(rounds):
            b = np.linalg.qr(b - scale * gradient(b))[0]
        z, w = heads(b)
        seconds += time.perf_counter() - begin
        loss = np.sum((z @ w - y) ** 2, dtype=np.float64) / (2 * m * n)
    return seconds, loss


serve(
    numpy_version(),
    data.form,
    str(x.dtype).replace("float", "f"),
    f"{x.shape[0]} clients x {x.shape[1]} samples x {x.shape[2]}, k {start.shape[1]}, outputs {y.shape[2]}, {rounds} rounds",
    turn,
)
