"""Step of a BERT encoder with adapters in torch, forward and backward: the rival of
`tests/src/benchmarks/figures/encoder.rs`. Only adapters and head have gradients. Torch's own attention and normalisation, without
PEFT and transformers around them."""

import os
import time

from side import Data, need, serve

np, torch = need("numpy"), need("torch")
functional = torch.nn.functional
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
data = Data()
sizes = data.sizes
d, depth, heads, wide = (sizes[name] for name in ["hidden", "layers", "heads", "intermediate"])
tokens, sentences, rank, epsilon = (sizes[name] for name in ["tokens", "sentences", "rank", "epsilon"])


class Values:
    """Values of a file, cut into tensors one after another."""

    def __init__(self, name):
        self.rest = torch.from_numpy(data.array(name, -1))

    def cut(self, *shape):
        count = int(np.prod(shape))
        values, self.rest = self.rest[:count], self.rest[count:]
        return values.reshape(shape)

    def dense(self, inputs, outputs):
        layer = self.cut(inputs + 1, outputs)
        return layer[:-1].T.contiguous(), layer[-1].contiguous()


weights = Values("weights")
embeddings, positions = weights.cut(sizes["vocabulary"], d), weights.cut(tokens, d)
norm = weights.cut(d), weights.cut(d)
layers = [[*(weights.dense(d, d) for _ in range(4)), weights.dense(d, wide), weights.dense(wide, d)] for _ in range(depth)]
adapter = Values("adapter")
trained = lambda *shape: adapter.cut(*shape).clone().requires_grad_()
factors = [[(trained(rank, d), trained(d, rank)) for _ in range(2)] for _ in range(depth)]
head = trained(2, d), trained(2)
assert len(weights.rest) == 0 and len(adapter.rest) == 0
parameters = [factor for layer in factors for pair in layer for factor in pair] + list(head)
ids = torch.from_numpy(data.array("tokens", sentences, tokens)).long()
labels = torch.arange(sentences) % 2


def normalise(x):
    return functional.layer_norm(x, (d,), *norm, epsilon)


def adapted(x, dense, pair):
    return functional.linear(x, *dense) + sizes["scale"] * functional.linear(functional.linear(x, pair[0]), pair[1])


def split(x):
    return x.view(sentences, tokens, heads, d // heads).transpose(1, 2)


def step():
    x = normalise(embeddings[ids] + positions)
    for (query, key, value, out, up, down), (of_query, of_value) in zip(layers, factors):
        q, k, v = adapted(x, query, of_query), functional.linear(x, *key), adapted(x, value, of_value)
        mixed = functional.scaled_dot_product_attention(split(q), split(k), split(v))
        x = normalise(x + functional.linear(mixed.transpose(1, 2).reshape(sentences, tokens, d), *out))
        x = normalise(x + functional.linear(functional.gelu(functional.linear(x, *up)), *down))
    loss = functional.cross_entropy(functional.linear(x.mean(1), *head), labels)
    return torch.autograd.grad(loss, parameters)


def turn(repeats):
    begin = time.perf_counter()
    for _ in range(repeats):
        gradients = step()
    seconds = time.perf_counter() - begin
    return seconds, torch.cat([gradient.flatten() for gradient in gradients]).double().norm()


n = f"{sentences} sentences x {tokens} tokens, {depth} layers of {d}, rank {rank}"
serve(f"torch {torch.__version__}", "torch's functions, without PEFT", "f32", n, turn)
