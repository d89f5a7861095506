"""Client of `fedspan-aggregator adapter serve` that trains with torch and peft.

  pip install torch transformers peft
  python3 peft_client.py --init base                           # a new adapter for round 1; then start the server
  python3 peft_client.py http://127.0.0.1:4480 anton           # server and token; run every client in its own process

Without --model a tiny random transformer learns the bytes of --text, by default of this file, to demonstrate the rounds.
"""
import argparse, http.client, itertools, json, pathlib, sys, time, urllib.error, urllib.request
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load, save
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM


def base_model(path):
    if path:
        return AutoModelForCausalLM.from_pretrained(path)
    torch.manual_seed(1)  # the same frozen weights in all clients
    return LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                        num_attention_heads=4, max_position_embeddings=64))


def send(args, path, body=None):
    """Returns body and headers of a response. The body is None for 403 and 409, when the round goes on without this update.
    Retries while the server is unreachable or fails."""
    request = urllib.request.Request(args.server + path, data=body, method="PUT" if body else "GET")
    request.add_header("Authorization", "Bearer " + args.token)
    for attempt in range(600):
        try:
            with urllib.request.urlopen(request, timeout=700) as response:
                return response.read(), response.headers
        except urllib.error.HTTPError as error:
            print(f"{error.code}: {error.read().decode().strip()}", file=sys.stderr)
            if error.code < 500 and error.code not in (408, 429):
                return (None, error.headers) if error.code in (403, 409) else sys.exit(1)
        except (OSError, http.client.HTTPException) as error:  # such as a body that breaks off
            print(f"{args.server}: {error}", file=sys.stderr)
        time.sleep(min(attempt, 10))
    sys.exit(1)


def batches(args):
    """Batches of 8 windows of 32 tokens, drawn from the text."""
    text = pathlib.Path(args.text).read_bytes()
    tokens = torch.tensor(AutoTokenizer.from_pretrained(args.model)(text.decode()).input_ids if args.model else list(text))
    draw = torch.Generator().manual_seed(sum(args.token.encode()))  # different in every client
    while True:
        starts = torch.randint(len(tokens) - 32, (8,), generator=draw)
        yield torch.stack([tokens[start:start + 32] for start in starts])


def train(args, model, frozen, data):
    """Trains the adapter except for the frozen factor, and returns the mean loss."""
    for name, weight in model.named_parameters():
        weight.requires_grad_(("lora_" in name or "modules_to_save" in name) and frozen not in name)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=args.rate, weight_decay=0)
    total = 0
    for tokens in itertools.islice(data, args.steps):
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad(), loss.backward(), optimizer.step()
        total += loss.item() / args.steps
    return total


def run_rounds(args):
    config = LoraConfig(**json.loads(send(args, "/adapter/adapter_config.json")[0]))
    model, data, current, done = get_peft_model(base_model(args.model), config), batches(args), None, 0
    while True:
        state = json.loads(send(args, f"/round?after={done}&wait=60")[0])
        if current != state["adapter"]:  # a client with the previous adapter gets only the changed tensors
            adapter, head = send(args, "/adapter/adapter_model.safetensors" + ("" if current is None else f"?since={current}"))
            set_peft_model_state_dict(model, load(adapter))
            current = int(head["fedspan-round"])
        if state["finished"]:
            return
        # A round that was answered before asks again if the update was damaged on the server's disk.
        if state["asked"] and not state["counted"] and state["round"] == current + 1:
            frozen = {"up": "lora_A", "down": "lora_B"}.get(state["trains"], "-")
            loss = train(args, model, frozen, data)
            body = save({name: weight for name, weight in get_peft_model_state_dict(model).items() if frozen not in name})
            send(args, f"/round/{state['round']}/adapter_model.safetensors?samples={8 * args.steps}", body)
            print(f"round {state['round']} ({state['trains']}): loss {loss:.3f}, {len(body)} bytes", flush=True)
        done = state["round"]


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("server", nargs="?"), parser.add_argument("token", nargs="?")
for option, default in [("--init", ""), ("--model", ""), ("--text", __file__), ("--steps", 20), ("--rate", 1e-2)]:
    parser.add_argument(option, default=default, type=type(default), help=f"default: {default or 'none'}")
args = parser.parse_args()
if args.init:
    layers = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
    get_peft_model(base_model(args.model), layers).save_pretrained(args.init)
elif args.token:
    run_rounds(args)
else:
    parser.error("SERVER and TOKEN, or --init DIRECTORY")
