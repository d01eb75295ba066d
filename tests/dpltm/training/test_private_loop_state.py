"""Loops that go on from a state: no more noisy sums than are paid for, and no noise twice, whoever loads what and when."""

import io
import itertools
import json
import multiprocessing
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dpltm
from dpltm.cli.main import run
from dpltm.errors import ArtifactError, BudgetError
from dpltm.networks.masks import Mask
from dpltm.networks.state import weights_of
from dpltm.privacy.account import Account
from dpltm.privacy.entry import Entry, Lineage
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import GaussianRelease
from dpltm.randomness.noise import FastSource, KeyedSource
from dpltm.tickets import load, open_ledger, save
from dpltm.training import descent
from dpltm.verbs import private_loop
from dpltm.verbs.private_loop import PrivateLoop
from gradient_cases import Picture
from refusals import refused
from tensors import same_tensors

DRAW = np.random.default_rng(5)
X, Y = DRAW.random((40, 4), dtype=np.float32), np.arange(40) % 3
LOSS = nn.CrossEntropyLoss(reduction="none")
STEPS = 12
OTHER = Entry("release", mechanisms=(GaussianRelease(4.0),), words="a mean")


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 3))


class Run:
    """A loop, its model and optimizer, as a process of its own would have them."""

    numbers = itertools.count(1)

    def __init__(self, ledger: Ledger, state: Any = None, lr: float = 0.3, **changes: Any) -> None:
        seed = next(self.numbers)
        sources = {"sampling": KeyedSource(bytes([seed, *range(31)])), "noise": KeyedSource(bytes([seed] * 32))}
        settings = {"batch_size": 20, "steps": STEPS, "delta": 1e-3, "epsilon": 2.0, "save_every": 4}
        x, y = changes.pop("x", X), changes.pop("y", Y)
        self.model = changes.pop("model", None) or Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.loop = PrivateLoop(self.model, LOSS, x, y, ledger=ledger, **{**settings, **sources, **changes})
        if state is not None:
            read = torch.load(io.BytesIO(state), weights_only=True)
            self.loop.load_state_dict(read["loop"])
            self.model.load_state_dict(read["model"])
            self.optimizer.load_state_dict(read["optimizer"])
            for group in self.optimizer.param_groups:
                group["lr"] = lr
        self.steps: Iterator[Any] = iter(self.loop)

    def take(self, count: int) -> list[int]:
        """Take so many steps, or as many as there are, and return their numbers."""
        numbers = []
        for step in itertools.islice(self.steps, count):
            step.backward()
            self.optimizer.step()
            numbers.append(step.number)
        return numbers

    def saved(self) -> bytes:
        parts = {"loop": self.loop.state_dict(), "model": self.model.state_dict()}
        file = io.BytesIO()
        torch.save({**parts, "optimizer": self.optimizer.state_dict()}, file)
        return file.getvalue()


class Tally(list[np.ndarray]):
    """The noise of every noisy sum of a test, wherever it was drawn."""

    def check(self, *ledgers: Ledger) -> None:
        """Naively: as many sums as there are, each with noise of its own, cost no more than the ledgers say together."""
        assert len({noise.tobytes() for noise in self}) == len(self), "one noise on two sums"
        released = [entry for ledger in ledgers for entry in ledger.account().paid]
        paid = sum(mechanism.steps for entry in released for mechanism in entry.mechanisms)
        assert len(self) <= paid, f"{len(self)} noisy sums, and {paid} are paid for"


@pytest.fixture
def tally(monkeypatch: pytest.MonkeyPatch) -> Tally:
    found, original = Tally(), descent.gaussian_mechanism

    def noisy(total: np.ndarray, std: float, source: Any, divisor: float) -> np.ndarray:
        plain = total.copy()
        released = original(total, std, source)
        found.append(released - plain)
        return released / divisor

    monkeypatch.setattr(descent, "gaussian_mechanism", noisy)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "people.jsonl"


def figure(ledger: Ledger) -> float:
    return Account(ledger.account().paid).epsilon(1e-3)


def test_a_stop_at_the_end_of_a_block_loses_nothing(path: Path, tally: Tally) -> None:
    """In another process: with the ledger's file, and nothing else that is not saved."""
    first = Run(open_ledger(path))
    assert first.take(8) == list(range(1, 9))
    state, before = first.saved(), figure(open_ledger(path))
    second = Run(open_ledger(path), state)
    assert second.take(99) == [9, 10, 11, 12]
    assert figure(open_ledger(path)) == before == second.loop.report().certified.epsilon <= 2.0
    assert [entry.kind for entry in open_ledger(path).entries] == ["release", "drawn", "drawn", "drawn"]
    tally.check(open_ledger(path))
    assert len(tally) == STEPS
    run = second.loop.finish()
    assert run.metrics[-1]["step"] == STEPS
    save(run, path.parent / "own.run")
    assert load(path.parent / "own.run", model=Net).config["options"]["save_every"] == 4


def test_steps_that_were_handed_out_after_the_last_save_are_lost(path: Path, tally: Tally) -> None:
    """The first process dies in its third block, some of whose sums it may have shown to anybody."""
    first = Run(open_ledger(path))
    first.take(4)
    state = first.saved()
    first.take(5)
    second = Run(open_ledger(path), state, lr=3.0)  # another way than the first went
    assert second.take(99) == []
    assert len(tally) == 9
    tally.check(open_ledger(path))
    third = Run(Ledger())  # of which nobody saved, in memory
    third.take(4)
    again = Run(third.loop.ledger, third.saved())
    third.take(1)
    assert again.take(99) == [9, 10, 11, 12]


def test_two_load_one_state_and_go_on_together(path: Path, tally: Tally) -> None:
    """With other step sizes, so their weights differ: they share the steps, and none is drawn twice."""
    first = Run(open_ledger(path), steps=40)
    first.take(4)
    state = first.saved()
    two, three = (Run(open_ledger(path), state, lr=lr, steps=40) for lr in (0.1, 10.0))
    seen: list[int] = []
    for turn in range(40):
        for each in (two, three, first):
            seen += each.take(1 + turn % 3)
    assert sorted(seen) == list(range(5, 41))
    assert not torch.equal(two.model[0].weight, three.model[0].weight)
    tally.check(open_ledger(path))
    assert len(tally) == 40
    assert figure(open_ledger(path)) <= 2.0


def _in_a_process(path: Path, state: bytes, seen: Any) -> None:
    seen.put(Run(open_ledger(path), state, steps=40).take(99))


def test_two_processes_load_one_state_at_the_same_time(path: Path) -> None:
    first = Run(open_ledger(path), steps=40)
    first.take(4)
    fork, state = multiprocessing.get_context("fork"), first.saved()
    seen = fork.Queue()
    processes = [fork.Process(target=_in_a_process, args=(path, state, seen)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [seen.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert sorted(found[0] + found[1]) == list(range(5, 41))


@pytest.mark.parametrize(
    ("beside", "said"),
    [([], "it was copied, and both copies went on"), ([OTHER], "both copies handed out the same steps")],
)
def test_a_ledger_that_was_copied_is_found_out(
    path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch, beside: list[Entry], said: str
) -> None:
    """On this machine, as soon as one copy goes on; elsewhere when the two meet. No noise is that of another sum."""
    first = Run(open_ledger(path))
    first.take(4)
    state, copies = first.saved(), list[Path]()
    for name in ("one", "other"):
        copies.append(path.parent / name / path.name)
        copies[-1].parent.mkdir()
        for file in path.parent.glob("people.*"):
            shutil.copy(file, copies[-1].parent)

    def gone_on(copy: Path) -> Lineage:
        run = Run(open_ledger(copy), state)
        assert run.take(99) == list(range(5, 13))
        return run.loop.finish().lineage

    one = gone_on(copies[0])
    assert "or an older copy" in refused(gone_on, copies[1], kind=ArtifactError)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(path.parent / "elsewhere"))
    open_ledger(copies[1]).declare(*beside)
    other = gone_on(copies[1])
    assert len({noise.tobytes() for noise in tally}) == len(tally) == 20
    with pytest.raises(ArtifactError, match=said):
        one | other
    assert "it is an older copy" in refused(open_ledger(copies[1]).account, one, kind=ArtifactError)


@pytest.mark.parametrize("bug", ["a block twice", "one key"])
def test_planted_bugs_are_caught(path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    first = Run(open_ledger(path))
    first.take(4)
    state = first.saved()
    if bug == "a block twice":
        blocks = iter([1, 2, 1, 2, None, None])
        monkeypatch.setattr(private_loop, "hand_out", lambda *_: next(blocks))
    else:
        monkeypatch.setattr(Run, "numbers", itertools.repeat(7))
    two, three = Run(open_ledger(path), state, lr=0.1), Run(open_ledger(path), state, lr=1.0)
    two.take(4)
    three.take(4)
    two.take(4)
    three.take(4)
    with pytest.raises(AssertionError, match="are paid for" if bug == "a block twice" else "one noise on two sums"):
        tally.check(open_ledger(path))


def test_a_loop_that_begins_anew_pays_for_it() -> None:
    """With the budget of the first it is refused as it begins; without one it pays, and the figure is of both."""
    ledger = Ledger()
    first = Run(ledger)
    first.take(4)
    refused(Run, ledger, kind=BudgetError)
    refused(made, ledger, save_every=None, kind=BudgetError)
    refused(made, ledger, X + 0.5, kind=BudgetError)  # of other records, whose state none is
    assert len(ledger.account().paid) == 1
    second = Run(ledger, epsilon=None, noise_multiplier=2.0)
    assert second.take(99) == list(range(1, 13))
    assert len(ledger.account().paid) == 2


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"x": X + 0.5}, "other settings or records"),
        ({"y": Y[::-1].copy()}, "other settings or records"),
        ({"batch_size": 10}, "`batch_size`"),
        ({"save_every": 2}, "`save_every`"),
        ({"steps": 6}, "`steps`"),
        ({"filter": dpltm.filters.Clip(2.0)}, "`filter`"),
        ({"model": nn.Sequential(nn.Linear(4, 3, bias=False))}, "`model`"),
        ({"audit": 6}, "`audit`"),
        ({"lineage": Ledger().lineage(*Ledger().declare(OTHER))}, "`lineage`"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_loop_that_differs_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    stated = {"epsilon": None, "noise_multiplier": 1.0}
    first = Run(Ledger(), **stated)
    first.take(4)
    state = first.saved()
    message = refused(Run, first.loop.ledger, state, **stated, **changes)
    assert message.startswith("checkpoint: an interrupted attempt was begun ")
    assert named in message
    assert "or begin again without it" in message
    assert [entry.kind for entry in first.loop.ledger.entries] == ["release", "drawn"]


def made(ledger: Ledger, x: np.ndarray = X, **changes: Any) -> PrivateLoop:
    """A loop alike that of a ``Run``."""
    settings = {"batch_size": 20, "steps": STEPS, "delta": 1e-3, "epsilon": 2.0, "save_every": 4}
    sources = {"sampling": KeyedSource(), "noise": KeyedSource()}
    return PrivateLoop(Net(), LOSS, x, Y, ledger=ledger, **{**settings, **sources, **changes})


def test_bits_that_are_not_those_of_the_entry_are_refused() -> None:
    stated = {"epsilon": None, "noise_multiplier": 2.0}
    loop = made(Ledger(), sampling=None, noise=None, **stated)
    next(iter(loop)).backward()
    other = made(loop.ledger, sampling=None, noise=FastSource(0), **stated)
    assert "`noise` was" in refused(other.load_state_dict, loop.state_dict())
    assert loop.mechanism.bits == "secure"


def test_what_is_refused() -> None:
    said = "`state_dict`: only a loop that has `save_every` and has begun has one"
    assert refused(made(Ledger()).state_dict) == said
    first = Run(Ledger())
    first.take(4)
    state = first.loop.state_dict()
    goes = "`state_dict`: goes into a loop that has `save_every` and has not begun"
    assert refused(first.loop.load_state_dict, state) == goes
    plain = made(Ledger(), save_every=None)
    assert refused(plain.load_state_dict, state) == goes
    list(plain)
    assert refused(plain.state_dict) == said
    loop = made(first.loop.ledger)
    for broken in ({}, {**state, "of": 3}, "state", None):
        damaged = "checkpoint: damaged, or of another version; begin again without it: `fresh`, or remove it"
        assert refused(loop.load_state_dict, broken, kind=ArtifactError) == damaged
    other = {**state, "id": first.loop.ledger.declare(OTHER)[0].id}
    for strange in (other, {**state, "id": "00"}):
        refused(loop.load_state_dict, strange)
    loop.load_state_dict(state)
    assert refused(iter, loop) == "model: its weights are not those that the state was saved with; load these as well"
    assert [entry.kind for entry in first.loop.ledger.entries] == ["release", "drawn", "release"]
    for save_every in (0, -1, 2.5, True):
        refused(made, Ledger(), save_every=save_every)


def test_an_audit_goes_on_with_its_coins() -> None:
    ledger = Ledger()
    settings = {"epsilon": None, "noise_multiplier": 0.3, "audit": 6, "batch_size": 40}
    first = Run(ledger, **settings)
    first.take(8)
    observed = first.loop.gradients.canaries.observations
    second = Run(ledger, first.saved(), **settings)
    assert np.array_equal(second.loop.gradients.canaries.observations.included, observed.included)
    assert np.array_equal(second.loop.gradients.canaries.observations.scores, observed.scores)
    second.take(99)
    assert not np.array_equal(second.loop.gradients.canaries.observations.scores, observed.scores)
    assert second.loop.audit().facts["canaries"] == 6


def test_a_state_tells_no_noise() -> None:
    """Whoever has it, and all that is released, knows no bit of a source of random numbers."""
    first = Run(Ledger())
    first.take(4)
    said = repr(first.loop.state_dict())
    for source in (first.loop.settings.noise, first.loop.settings.sampling):
        assert isinstance(source, KeyedSource)
        assert source.state.partition(":")[2] not in said


# --- a loop that has ended, as a run: on disk and back, and what it refuses ---

PICTURES = np.random.default_rng(2)
IMAGES, LABELS = PICTURES.random((60, 3, 6, 6), dtype=np.float32), np.arange(60) % 3
TEXTS = PICTURES.integers(0, 12, (60, 5))
TERMS = {"batch_size": 20, "steps": 4, "delta": 1e-3, "epsilon": 2.0}


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
    test, labels = PICTURES.random((30, 3, 6, 6), dtype=np.float32), np.arange(30) % 3
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
    assert same_tensors(again.mask, made.mask)
    assert again.mask.frozen == {"conv.bias"}
    assert again.mask.live == made.config["resolved"]["live"] == sum(int(one.sum()) for one in live.values()) - 4


def test_the_range_of_records_must_be_that_of_the_loop():
    """The loop gave bytes as they are: a run scales them, so it says what the model took instead."""
    images = (255 * IMAGES).astype(np.uint8)
    loop = looped(Picture(), images)
    said = "`bounds`, `inputs`: a run scales records by `bounds` (0, 255)"
    assert refused(loop.finish, bounds=(0, 255)).startswith(said)
    made = loop.finish(bounds=(0, 255), inputs=lambda x: 255 * x)
    with torch.no_grad():
        wanted = loop.model.eval()(torch.from_numpy(images).float())
    assert np.allclose(dpltm.predict(made, images).outputs, wanted, atol=1e-4)


def test_what_a_run_refuses():
    loop = looped(Picture(), ends=False)
    assert refused(loop.finish).startswith("`finish`: the loop has not ended here (1 of 4 gradients were taken)")
    model = Picture()
    loop = looped(model)
    with torch.no_grad():
        model.head.bias.add_(1)
    assert "(4 of 4 gradients were taken), or the weights of `model` were changed since" in refused(loop.finish)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(108, 1))
    x = torch.from_numpy(IMAGES)
    one = PrivateLoop(flat, lambda outputs, _: outputs[:, 0] ** 2, x, LABELS, ledger=dpltm.Ledger(), **TERMS)
    optimizer = torch.optim.SGD(flat.parameters(), lr=0.1)
    for step in one:
        step.backward()
        optimizer.step()
    assert "a run is of two classes and more" in refused(one.finish)
