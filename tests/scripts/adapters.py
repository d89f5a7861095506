"""Checks that numpy and PEFT read what `adapter average` writes: python3 tests/scripts/adapters.py target/release/fedspan-aggregator

Needs numpy and safetensors: writes clients' adapters, averages them and compares the result with numpy's mean. If torch and peft are
installed, PEFT makes the clients and must load the mean, and the interference that `adapter check` prints must match PEFT's own updates,
with ranks and alphas of modules, stacks of experts and counters. Prints a line if they are not installed.
Exit: 0 all agree, 1 something differs.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

RANK, D_IN, D_OUT, SAMPLES = 4, 48, 20, [3, 1, 2]
MODULES = ["base_model.model.layers.0.q_proj", "base_model.model.layers.1.q_proj"]


def average(program, folder, clients, output):
    command = [program, "adapter", "average", "--round", "up", "--base", str(folder / "base"), *clients]
    command += ["--samples", ",".join(map(str, SAMPLES)), "-o", str(folder / output)]
    subprocess.run(command, check=True)


def expected(values):
    mean = sum(w * v.astype(np.float64) for w, v in zip(SAMPLES, values)) / sum(SAMPLES)
    return mean.astype(values[0].dtype)


def compare_with_numpy(program, folder, dtype):
    random = np.random.default_rng(7)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": ["q_proj"]}
    adapters = []
    for name in ["base", "0", "1", "2"]:
        tensors = dict(adapters[0]) if adapters else {}
        for module in MODULES:
            if not adapters:
                tensors[f"{module}.lora_A.weight"] = random.normal(size=(RANK, D_IN)).astype(dtype)
            tensors[f"{module}.lora_B.weight"] = random.normal(size=(D_OUT, RANK)).astype(dtype)
        tensors["base_model.model.score.weight"] = random.normal(size=(2, D_OUT)).astype(dtype)
        tensors["base_model.model.norm.num_batches_tracked"] = np.array(random.integers(9), np.int64)
        adapters.append(tensors)
        (folder / name).mkdir()
        save_file(tensors, folder / name / "adapter_model.safetensors", {"format": "pt"})
        (folder / name / "adapter_config.json").write_text(json.dumps(config))
    average(program, folder, [str(folder / str(client)) for client in range(3)], "next")
    found = load_file(folder / "next" / "adapter_model.safetensors")
    assert found.keys() == adapters[0].keys()
    for name, value in found.items():
        frozen = "lora_A" in name
        clients = [client[name] for client in adapters[1:]]
        wanted = adapters[0][name] if frozen else max(clients) if "batches" in name else expected(clients)
        # numpy rounds its sums in f64, which changes the last bit now and then.
        assert value.dtype == wanted.dtype and value.shape == wanted.shape
        assert np.abs(value - wanted).max() <= (0 if frozen or "batches" in name else np.spacing(np.abs(wanted).max()))
    assert json.loads((folder / "next" / "adapter_config.json").read_text()) == config


def compare_with_peft(program, folder):
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model

    def network():
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(D_IN, D_OUT), torch.nn.Linear(D_OUT, 2))

    config = LoraConfig(r=RANK, lora_alpha=8, target_modules=["0"], modules_to_save=["1"])
    model = get_peft_model(network(), config)
    model.save_pretrained(folder / "base")
    for client in range(3):
        model = PeftModel.from_pretrained(network(), folder / "base", is_trainable=True)
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                parameter.data.normal_()
        model.save_pretrained(folder / str(client))
    average(program, folder, [str(folder / str(client)) for client in range(3)], "next")
    files = [load_file(folder / str(name) / "adapter_model.safetensors") for name in [0, 1, 2, "next"]]
    model = PeftModel.from_pretrained(network(), folder / "next")
    with torch.no_grad():
        x = torch.randn(5, D_IN)
        factors = [next(v for n, v in files[3].items() if f"lora_{letter}" in n) for letter in "AB"]
        hidden = network()[0](x) + 2.0 * x @ torch.from_numpy(factors[0]).T @ torch.from_numpy(factors[1]).T
        head = [next(v for n, v in files[3].items() if n.endswith(end)) for end in ("1.weight", "1.bias")]
        wanted = hidden @ torch.from_numpy(head[0]).T + torch.from_numpy(head[1])
        assert torch.allclose(model(x), wanted, atol=1e-4)
    for name, value in files[3].items():
        mean = expected([file[name] for file in files[:3]])
        assert np.allclose(value, mean, atol=1e-6), name


def peft_models():
    """Networks whose updates depend on more than r and alpha: name, class, settings of LoRA."""
    import torch
    from torch import nn

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_up_proj = nn.Parameter(torch.randn(3, 10, 12))
            self.down_proj = nn.Parameter(torch.randn(3, 6, 10))

        def forward(self, x):
            hidden = torch.einsum("bi,eio->beo", x, self.gate_up_proj)
            return torch.einsum("bei,eio->bo", torch.relu(hidden[..., :6]) * hidden[..., 6:], self.down_proj)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.q_proj, self.v_proj = nn.Linear(10, 10), nn.Linear(10, 10)
            self.experts, self.norm = Experts(), nn.BatchNorm1d(10)

        def forward(self, x):
            return self.norm(self.experts(self.v_proj(torch.relu(self.q_proj(x)))))

    both = {"target_modules": ["q_proj", "v_proj"], "r": 2, "lora_alpha": 4}
    experts = {"target_parameters": ["experts.gate_up_proj", "experts.down_proj"], "lora_dropout": 0.0}
    for name, settings in [
        ("ranks", {**both, "rank_pattern": {"v_proj": 6}}),
        ("ranks and alphas, by the root", {**both, "rank_pattern": {"^v_proj": 6}, "alpha_pattern": {"q.*": 1}, "use_rslora": True}),
        ("experts", {**both, **experts}),
        ("experts of other ranks", {**both, **experts, "rank_pattern": {"experts.down_proj": 1, "v_proj": 3}}),
        ("batch normalization", {**both, "modules_to_save": ["norm"]}),
    ]:
        yield name, Network, settings


def peft_updates(model):
    """PEFT's updates of all modules, concatenated."""
    import torch
    from peft.tuners.lora import LoraLayer

    with torch.no_grad():
        layers = [layer for _, layer in sorted(model.named_modules(), key=lambda at: at[0]) if isinstance(layer, LoraLayer)]
        return np.concatenate([layer.get_delta_weight("default").double().numpy().ravel() for layer in layers])


def compare_interference(program, folder, network, settings):
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model

    get_peft_model(network(), LoraConfig(**settings)).save_pretrained(folder / "base")
    own = []
    for client in range(3):
        model = PeftModel.from_pretrained(network(), folder / "base", is_trainable=True)
        torch.manual_seed(client + 7)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data.normal_()
        for _ in range(2 * client + 1):
            model(torch.randn(5, 10))  # advances the batch counters of saved modules
        model.save_pretrained(folder / str(client))
        own.append(peft_updates(model))
    names = [str(folder / name) for name in ["base", "0", "1", "2"]]
    weights = ["--samples", ",".join(map(str, SAMPLES))]
    output = ["-o", str(folder / "next")]
    subprocess.run([program, "adapter", "average", "--plain", "--base", *names, *weights, *output], check=True)
    check = [program, "adapter", "check", "--format", "json", "--base", *names, *weights]
    found = json.loads(subprocess.run(check, check=True, stdout=subprocess.PIPE).stdout)
    model = PeftModel.from_pretrained(network(), folder / "next")
    mean = sum(w * own for w, own in zip(SAMPLES, own)) / sum(SAMPLES)
    wanted = np.linalg.norm(mean - peft_updates(model)) / np.linalg.norm(mean)
    assert wanted > 0.1 and abs(found["interference"] - wanted) < 1e-5, (found["interference"], wanted)
    counters = [value for name, value in model.state_dict().items() if "modules_to_save" in name and "batches" in name]
    assert all(value.dtype == torch.int64 and value.shape == () and value == 5 for value in counters), counters
    assert bool(counters) == ("modules_to_save" in settings)


def main():
    program = str(Path(sys.argv[1]).resolve())
    for dtype in [np.float32, np.float16]:
        with tempfile.TemporaryDirectory() as folder:
            compare_with_numpy(program, Path(folder), dtype)
    print("numpy and safetensors: the mean agrees")
    try:
        import peft  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        print(f"not checked with PEFT: {error}")
        return
    with tempfile.TemporaryDirectory() as folder:
        compare_with_peft(program, Path(folder))
    print("PEFT: loads the mean and computes with it")
    for name, network, settings in peft_models():
        with tempfile.TemporaryDirectory() as folder:
            compare_interference(program, Path(folder), network, settings)
        print(f"PEFT: the interference agrees with {name}")


if __name__ == "__main__":
    main()
