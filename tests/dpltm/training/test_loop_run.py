"""A loop that has ended, as a run: on disk and back, what it is read by, and what it refuses."""

import json
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dpltm
from dpltm.cli.main import run
from dpltm.networks.masks import Mask
from dpltm.networks.state import weights_of
from dpltm.privacy.account import Account
from dpltm.randomness.noise import FastSource
from dpltm.tickets import load, save
from dpltm.verbs.private_loop import PrivateLoop
from gradient_cases import Picture
from refusals import refused

DRAW = np.random.default_rng(2)
IMAGES, LABELS = DRAW.random((60, 3, 6, 6), dtype=np.float32), np.arange(60) % 3
TEXTS = DRAW.integers(0, 12, (60, 5))
TERMS = {"batch_size": 20, "steps": 4, "delta": 1e-3, "epsilon": 2.0}
LOSS = nn.CrossEntropyLoss(reduction="none")


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(12, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x).mean(1))


def looped(model: nn.Module, x: Any = IMAGES, ends: bool = True, **changes: Any) -> PrivateLoop:
    """A loop that ran, at a ledger of its own; with everything seeded."""
    settings = {**TERMS, "ledger": dpltm.Ledger(), "sampling": FastSource(0), "noise": FastSource(1), **changes}
    loop = PrivateLoop(model, LOSS, x, LABELS, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in loop:
        step.backward()
        optimizer.step()
        if not ends:
            break
    return loop


def printed(*arguments: object) -> dict[str, Any]:
    with redirect_stdout(StringIO()) as out:
        assert run([*map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def test_it_is_kept_and_read_like_any_run(tmp_path, monkeypatch):
    torch.manual_seed(0)
    model = Picture()
    loop = looped(model, audit=20)
    made = loop.finish()
    assert made.privacy.certified == loop.report().certified
    assert made.entry == loop.entry
    assert made.entry in made.lineage.entries
    saved = save(made, tmp_path / "run")
    assert saved.path == tmp_path / "run"
    again = load(tmp_path / "run", model=Picture)
    assert Account(again.lineage.entries).epsilon(1e-3) == made.privacy.certified.epsilon
    assert all(torch.equal(value, weights_of(model)[name]) for name, value in weights_of(again.model).items())
    assert np.array_equal(again.observations.scores, made.observations.scores)
    model.eval()
    with torch.no_grad():
        wanted = model(torch.from_numpy(IMAGES))
    assert np.allclose(dpltm.predict(again, IMAGES).outputs, wanted, atol=1e-5)
    test, labels = DRAW.random((30, 3, 6, 6), dtype=np.float32), np.arange(30) % 3
    with torch.no_grad():
        right = model(torch.from_numpy(test)).argmax(1) == torch.from_numpy(labels)
    assert dpltm.evaluate(again, test, labels).accuracy == pytest.approx(float(right.float().mean()))

    # at the terminal, without the code
    certified = made.privacy.certified.epsilon
    monkeypatch.chdir(tmp_path)
    page = printed("report", "run")
    assert page["privacy"]["certified"]["epsilon"] == pytest.approx(certified)
    assert printed("privacy", "check", page["report"])["problems"] == []
    assert printed("audit", "run")["certified"] == pytest.approx(certified)
    save(looped(Picture()).finish(), tmp_path / "other")
    rows = printed("compare", "run", "other")["rows"]
    assert [row["certified"] for row in rows] == [pytest.approx(certified), pytest.approx(certified)]
    assert {row["state"] for row in rows} == {"finished"}


def test_words(tmp_path):
    model = Text()
    loop = looped(model, TEXTS)
    assert refused(loop.finish).startswith("`words` is missing")
    save(loop.finish(words=12), tmp_path / "run")
    again = load(tmp_path / "run", model=Text)
    assert again.spec.tables == (12,)
    with torch.no_grad():
        assert np.allclose(dpltm.predict(again, TEXTS).outputs, model(torch.from_numpy(TEXTS)), atol=1e-6)


def test_a_ticket_brings_mask_and_lineage(tmp_path):
    first = looped(Picture()).finish()
    model = Picture()
    model.load_state_dict(first.model.state_dict())
    model.conv.bias.requires_grad_(False)
    live = {name: torch.rand(value.shape) < 0.5 if value.ndim >= 2 else torch.ones_like(value, dtype=torch.bool)
            for name, value in model.named_parameters()}  # fmt: skip
    made = looped(model, mask=Mask(live), lineage=first.lineage, ledger=first.ledger, epsilon=4.0)
    made = made.finish()
    assert {*first.lineage.entries} < {*made.lineage.entries}
    assert made.network.start_provenance == "lineage"
    assert made.privacy.certified.epsilon > first.privacy.certified.epsilon
    save(made, tmp_path / "run")
    again = load(tmp_path / "run")
    assert again.mask.same_as(made.mask)
    assert again.mask.frozen == {"conv.bias"}
    assert again.mask.live == made.config["resolved"]["live"] == sum(int(one.sum()) for one in live.values()) - 4


def test_the_range_of_records_must_be_that_of_the_loop():
    """The loop gave bytes as they are: a run scales them, so it says what the model took instead."""
    images = (255 * IMAGES).astype(np.uint8)
    loop = looped(Picture(), images)
    assert refused(loop.finish, bounds=(0, 255)).startswith(
        "`bounds`, `inputs`: a run scales records by `bounds` (0, 255)"
    )
    made = loop.finish(bounds=(0, 255), inputs=lambda x: 255 * x)
    with torch.no_grad():
        wanted = loop.model.eval()(torch.from_numpy(images).float())
    assert np.allclose(dpltm.predict(made, images).outputs, wanted, atol=1e-4)


def test_what_is_refused():
    loop = looped(Picture(), ends=False)
    said = "`finish`: the loop has not ended (1 of 4 gradients were taken); iterate to its end"
    assert refused(loop.finish) == said
    model = Picture()
    loop = looped(model)
    with torch.no_grad():
        model.head.bias.add_(1)
    assert refused(loop.finish).startswith("`model`: its weights are not those")
    flat = nn.Sequential(nn.Flatten(), nn.Linear(108, 1))
    x = torch.from_numpy(IMAGES)
    one = PrivateLoop(flat, lambda outputs, _: outputs[:, 0] ** 2, x, LABELS, ledger=dpltm.Ledger(), **TERMS)
    optimizer = torch.optim.SGD(flat.parameters(), lr=0.1)
    for step in one:
        step.backward()
        optimizer.step()
    assert "a run is of two classes and more" in refused(one.finish)
