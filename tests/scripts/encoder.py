"""An encoder with adapters in torch and PEFT, for comparison with `fedspan-sim encoder` (sim/ENCODER.md).

    python3 tests/scripts/encoder.py tiny DIR                 makes the fixture sim/tests/encoder/tiny
    python3 tests/scripts/encoder.py check WEIGHTS OUT FILE...  PEFT loads OUT/adapter and computes OUT/predictions.csv

Needs torch, transformers, peft, safetensors. Exit: 0 all agree, 1 a difference.
"""

import csv
import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, BertTokenizerFast

TEXTS = [
    "The food was good, and the people were kind!",
    "a bad film",
    "Not good; 12 bad days of rain.",
]
LABELS = [1, 0, 0]
# Difficult texts for a tokenizer.
ODD = [
    "",
    "   \t\n ",
    "Caf\u00e9 na\u00efve \u00c5ngstr\u00f6m",
    "e\u0301a\u0300 joined, decomposed",
    "no\u00adsoft\u200bhyphens\ufeff\u0000\ufffd",
    "\u4f60\u597d film\u4eba",
    "a_b-c.d/e'f\"g''h",
    "\u201cquoted\u201d \u2014 dash\u2026 \u20ac5 \u00a35 $5 5% ^x` ~y",
    "good\u00a0film\u3000bad\u2028day",
    "x" * 100 + " " + "x" * 101,
    "\u0130STANBUL \u00dfharp \u039f\u03a3 \u01c5",
    "\U0001f600 smile \u0915\u094d\u0937\u093f",
    "goodness badly daysfilm raining",
]


class Classifier(torch.nn.Module):
    """BERT with mean pooling over tokens and a linear head."""

    def __init__(self, bert):
        super().__init__()
        self.bert = bert
        self.classifier = torch.nn.Linear(bert.config.hidden_size, 2)

    def forward(self, input_ids, attention_mask):
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return self.classifier((hidden * mask).sum(1) / mask.sum(1))


def vocabulary():
    marks = list("!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~") + ["\u201c", "\u201d", "\u2014", "\u2026", "\u4f60", "\u4eba", "\u20ac"]
    letters = list("abcdefghijklmnopqrstuvwxyz0123456789")
    words = "the food was good and people were kind a bad film not days of rain day cafe smile ##ness ##ly ##ing ##film ##s"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *marks, *letters, *["##" + c for c in letters], *words.split()]
    return list(dict.fromkeys(tokens))


def tiny(folder):
    torch.manual_seed(8)
    folder = Path(folder)
    (folder / "adapter").mkdir(parents=True, exist_ok=True)
    vocab = vocabulary()
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
    config = BertConfig(
        vocab_size=len(vocab), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=40, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
    bert = BertModel(config, add_pooling_layer=False)
    for name, value in bert.named_parameters():
        # Larger than usual initial weights, so that softmax and GELU work in their nonlinear range.
        value.data += 0.15 * torch.randn_like(value)
    save_file({n: v.contiguous() for n, v in bert.state_dict().items() if v.is_floating_point()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({key: getattr(config, key) for key in [
        "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
        "max_position_embeddings", "type_vocab_size", "layer_norm_eps", "hidden_act"]}, indent=2) + "\n")
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"), do_lower_case=True)
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["query", "value"], modules_to_save=["classifier"])
    model = get_peft_model(Classifier(bert), lora)
    for name, value in model.named_parameters():
        if "lora_B" in name:
            value.data = 0.1 * torch.randn_like(value)
    model.save_pretrained(folder / "adapter")
    for extra in (folder / "adapter").glob("README*"):
        extra.unlink()
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=24, return_tensors="pt")
    inputs = (batch["input_ids"], batch["attention_mask"])
    labels = torch.tensor(LABELS)
    model.eval()
    trained = [(n, v) for n, v in model.named_parameters() if v.requires_grad]
    optimizer = torch.optim.AdamW([v for _, v in trained], lr=1e-2, weight_decay=0.01)
    losses, gradients = [], {}
    for step in range(4):
        optimizer.zero_grad()
        logits = model(*inputs)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        if step == 0:
            first = logits.tolist()
            for name, value in trained:
                key = name.replace(".default", "").replace("modules_to_save.", "")
                gradients[key] = value.grad.clone()
        losses.append(loss.item())
        optimizer.step()
    save_file(gradients, folder / "gradients.safetensors")
    encode = lambda text: tokenizer(text, truncation=True, max_length=24)["input_ids"]
    (folder / "expected.json").write_text(json.dumps({
        "versions": {"torch": torch.__version__, "peft": __import__("peft").__version__,
                     "transformers": __import__("transformers").__version__},
        "texts": TEXTS, "labels": LABELS, "logits": first, "losses": losses,
        "tokens": [[text, encode(text)] for text in TEXTS + ODD],
    }, indent=1) + "\n")


def check(weights, out, files):
    bert = BertModel.from_pretrained(weights, add_pooling_layer=False, local_files_only=True)
    model = PeftModel.from_pretrained(Classifier(bert), Path(out) / "adapter").eval()
    tokenizer = BertTokenizerFast.from_pretrained(weights, local_files_only=True)
    texts = {}
    for number, file in enumerate(files):
        for line in Path(file).read_text(encoding="utf-8").splitlines():
            if line.strip():
                name, _, text = line.split("\t", 2)
                texts[number, name] = text
    most = json.loads((Path(out) / "summary.json").read_text())["tokens"]
    worst, right, rows = 0.0, 0, list(csv.DictReader((Path(out) / "predictions.csv").open()))
    with torch.no_grad():
        for row in rows:
            text = texts[int(row["file"]), row["id"]]
            batch = tokenizer(text, truncation=True, max_length=most, return_tensors="pt")
            logits = model(batch["input_ids"], batch["attention_mask"])[0]
            ours = torch.tensor([float(row["negative"]), float(row["positive"])])
            worst = max(worst, (logits - ours).abs().max().item())
            right += int(logits.argmax().item() == int(row["label"]))
    print(f"PEFT: {len(rows)} sentences, accuracy {right / len(rows):.4f}, logits differ by at most {worst:.1e}")
    return 0 if rows and worst < 1e-3 else 1


def main():
    match sys.argv[1:]:
        case ["tiny", folder]:
            tiny(folder)
        case ["check", weights, out, *files] if files:
            return check(weights, out, files)
        case _:
            print(__doc__)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
