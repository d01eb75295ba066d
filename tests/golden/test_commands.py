"""Whole commands answer with the numbers that were recorded for the same random bytes.

``commands.json`` holds them, and ``record.py`` writes it. All that differs is shown at once, by chain, command and path.
"fixed" stands before what no random byte decides (figures of privacy above all). "random" stands before what other bytes, or
the same in another order, may change with nothing wrong.
"""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from programs import ROOT, program

harness = program("tests/golden/harness.py")
HERE, OTHER = "here", "elsewhere"
PARTS = 10


@pytest.fixture
def recorded() -> dict[str, Any]:
    return json.loads(harness.RECORDED.read_text(encoding="utf-8"))


@pytest.mark.one_of(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_numbers_are_those_recorded(recorded: dict[str, Any], tmp_path: Path, part: int) -> None:
    to = tmp_path / "found.json"
    names = list(harness.cases())[part::PARTS]
    command = [sys.executable, str(ROOT / "tests/golden/record.py"), "--to", str(to), *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(to.read_text(encoding="utf-8"))
    recorded["cases"] = {name: steps for name, steps in recorded["cases"].items() if name in names}
    held = harness.differences(recorded, {case: steps_of(steps) for case, steps in found.items()})
    assert not held, "not as recorded\n\n" + harness.table(held)


def steps_of(steps: list[dict[str, Any]]) -> list[Any]:
    return [harness.Step(step["command"], step["answer"], step.get("said", "")) for step in steps]


def test_every_chain_is_recorded(recorded: dict[str, Any]) -> None:
    assert list(recorded["cases"]) == list(harness.cases())


# --- the comparison itself ---


@pytest.fixture
def replayed(recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Compares what was recorded with itself, once it was changed, as on the machine that recorded or on another."""

    def call(change: Callable[[dict[str, Any]], object], machine: str) -> list[Any]:
        monkeypatch.setattr(harness, "machine", lambda: recorded["machine"] if machine == HERE else OTHER)
        cases = copy.deepcopy(recorded["cases"])
        change(cases)
        return harness.differences(recorded, {case: steps_of(steps) for case, steps in cases.items()})

    return call


def test_nothing_changed_is_no_difference(replayed: Callable[..., list[Any]]) -> None:
    assert replayed(len, HERE) == replayed(len, OTHER) == []


def test_every_difference_is_named(replayed: Callable[..., list[Any]]) -> None:
    def change(cases: dict[str, Any]) -> None:
        run = cases["filter clip"][0]["answer"]
        run["json"]["privacy"]["certified"]["epsilon"] *= 1 - 1e-8
        run["files"]["run/model.safetensors"]["digest"] = "0"
        del cases["filter auto"][0]["answer"]["json"]["steps"]
        cases["refusals"][0]["answer"]["code"] = 0
        cases["audit"].pop()
        del cases["datasets"]

    held = replayed(change, HERE)
    assert [(one.case, one.step, one.path, one.drawn) for one in held] == [
        ("filter clip", 1, "json.privacy.certified.epsilon", False),
        ("filter clip", 1, "files.run/model.safetensors.digest", True),
        ("filter auto", 1, "json.steps", False),
        ("audit", 0, "", False),
        ("refusals", 1, "code", False),
        ("datasets", 0, "", False),
    ]
    assert all(one.path in harness.table(held) for one in held)


EPSILON, MODEL = "json.privacy.certified.epsilon", "files.run/model.safetensors"


@pytest.mark.parametrize(
    ("path", "before", "now", "where", "alike"),
    [
        (EPSILON, 1.0, 1.0 + 1e-8, HERE, False),
        (EPSILON, 1.0, 1.0 + 1e-10, HERE, True),
        (EPSILON, 1.0, "inf", OTHER, False),
        (EPSILON, 1.0, 1.001, OTHER, False),
        ("json.noise_multiplier", 1.0, 1.0005, OTHER, True),
        ("json.accuracy", 0.5, 0.503, HERE, False),
        ("json.accuracy", 0.5, 0.51, OTHER, True),
        ("json.live", 400, 401, OTHER, False),
        ("json.ok", True, 1, OTHER, False),
        ("code", 1, 2, OTHER, False),
        (f"{MODEL}.sum", 1.0, 1.01, OTHER, False),
        (f"{MODEL}.digest", "a", "b", HERE, False),
        (f"{MODEL}.digest", "a", "b", OTHER, True),
    ],
)
def test_what_is_the_same(path: str, before: Any, now: Any, where: str, alike: bool) -> None:
    assert harness.same(path, before, now, where == HERE) is alike


def test_figures_of_privacy_do_not_depend_on_random_bytes(recorded: dict[str, Any]) -> None:
    """What a release costs is known before it is drawn."""
    words = ("certified", "epsilon", "noise_multiplier", "sampling_rate", "sensitivity", "steps")
    drawn = [path for steps in recorded["cases"].values() for step in steps for path in step.get("drawn", ())]
    assert drawn
    assert [path for path in drawn if any(word in path for word in words)] == []
