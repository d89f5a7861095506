"""Update of a client that trains a network, in torch: the rival of `tests/src/benchmarks/figures/networks.rs`. The number of
threads is that of OMP_NUM_THREADS. `torch.compile` was slower for dense networks and LeNet-5, and failed for the LSTM."""

import os
import time

from side import Data, need, serve

np, torch = need("numpy"), need("torch")
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
data = Data()
sizes = data.sizes
kind, side, images, batch, widths = (sizes[name] for name in ["kind", "side", "images", "batch", "widths"])
weights = torch.from_numpy(data.array("weights", -1))
classes = torch.arange(images) % sizes["classes"]
x = torch.from_numpy(data.array("x", images, side, side))


class LastOfLstm(torch.nn.LSTM):
    """An LSTM that returns the hidden state after the last step, with one bias."""

    def __init__(self, channels, cells):
        super().__init__(channels, cells, batch_first=True)
        self.bias_hh_l0.requires_grad_(False).zero_()

    def forward(self, x):
        return super().forward(x)[1][0][0]


class Flatten(torch.nn.Module):
    """Values of an image in our order: pixel by pixel, the channels of a pixel together."""

    def forward(self, x):
        return x.permute(0, 2, 3, 1).flatten(1)


def dense():
    modules = []
    for i, o in zip(widths, widths[1:]):
        modules += [torch.nn.Linear(i, o), torch.nn.ReLU()]
    return modules[:-1]


def make():
    if kind == "mlp":
        return x.flatten(1), dense()
    if kind == "lstm":
        return x, [LastOfLstm(side, sizes["cells"]), *dense()]
    filters = sizes["filters"]
    # A ReLU after the pool computes the same as one before it, on a quarter of the values.
    pooled = lambda channels: [torch.nn.Conv2d(channels, filters, 5), torch.nn.MaxPool2d(2), torch.nn.ReLU()]
    return x[:, None], [*pooled(1), *pooled(filters), Flatten(), *dense()]


def load(module, values):
    """Sets the parameters of a module from our layer; returns the values behind it."""

    def cut(rows, columns):
        return values[: rows * columns].reshape(rows, columns), values[rows * columns :]

    with torch.no_grad():
        if isinstance(module, torch.nn.Linear):
            layer, rest = cut(module.in_features + 1, module.out_features)
            module.weight.copy_(layer[:-1].T)
            module.bias.copy_(layer[-1])
        elif isinstance(module, torch.nn.Conv2d):
            (rows, columns), channels = module.kernel_size, module.in_channels
            layer, rest = cut(rows * columns * channels + 1, module.out_channels)
            module.weight.copy_(layer[:-1].T.reshape(-1, rows, columns, channels).permute(0, 3, 1, 2))
            module.bias.copy_(layer[-1])
        elif isinstance(module, torch.nn.LSTM):
            channels, cells = module.input_size, module.hidden_size
            layer, rest = cut(channels + cells + 1, 4 * cells)
            module.weight_ih_l0.copy_(layer[:channels].T)
            module.weight_hh_l0.copy_(layer[channels:-1].T)
            module.bias_ih_l0.copy_(layer[-1])
        else:
            rest = values
    return rest


inputs, modules = make()
rest = weights
for module in modules:
    rest = load(module, rest)
assert len(rest) == 0, f"{len(rest)} weights are left"
model = torch.nn.Sequential(*modules)
if data.form == "channels last":
    model, inputs = model.to(memory_format=torch.channels_last), inputs.to(memory_format=torch.channels_last)
parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
broadcast = [parameter.detach().clone() for parameter in parameters]


def update():
    with torch.no_grad():
        torch._foreach_copy_(parameters, broadcast)
    optimizer = torch.optim.SGD(parameters, sizes["step_size"], sizes["momentum"], fused=True)
    for first in range(0, images, batch):
        optimizer.zero_grad()
        logits = model(inputs[first : first + batch])
        torch.nn.functional.cross_entropy(logits, classes[first : first + batch]).backward()
        optimizer.step()


def turn(repeats):
    begin = time.perf_counter()
    for _ in range(repeats):
        update()
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        return seconds, torch.nn.functional.cross_entropy(model(inputs).double(), classes)


n = f"{kind} of {len(weights)} weights, {images} images of {side} x {side}, batches of {batch}"
serve(f"torch {torch.__version__}", f"{data.form}, fused SGD", "f32", n, turn)
