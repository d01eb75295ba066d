"""What no case knows is refused, and never free: every mechanism is forgotten in turn, and new ones are made up."""

import ast
import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpltm.cli.privacy import _releases
from dpltm.errors import InputError
from dpltm.filters import make_filter
from dpltm.filters.trial import check_filter_bound
from dpltm.options.privacy import EpsilonRequest
from dpltm.privacy import accountant, describe, mechanisms
from dpltm.privacy.account import Account, as_replace_one
from dpltm.privacy.entry import HASHES, RECORD, Entry, Part, to_json
from dpltm.privacy.mechanisms import GaussianRelease, Mechanism, NoisySgd, PrivateSearch, over_two_steps, sampling_of
from dpltm.privacy.statement import as_claimed
from every_mechanism import ALLOCATED, BANDED, EVERY, SEARCH, SGD, TRUNCATED
from refusals import refused


class Nobody:
    """Stands for a class that was forgotten: there is no instance of it."""

    __match_args__ = ()


@dataclasses.dataclass(frozen=True)
class Stranger(Mechanism):
    """A new mechanism."""


@dataclasses.dataclass(frozen=True)
class NewTraining(NoisySgd):
    """A new way of training, such as truncated sampling once was."""


STRANGERS = (Stranger(), NewTraining(0.1, 10, 1.0), NewTraining(1.0, 10, 1.0))

MATCHES: tuple[tuple[Any, Callable[[Mechanism], object]], ...] = (
    (accountant, lambda mechanism: accountant.compose([mechanism])),
    (mechanisms, over_two_steps),
    (describe, describe.describe_mechanism),
)
"""Modules with a ``match`` over all mechanisms, and what comes to it."""


def forget(patched: pytest.MonkeyPatch, module: Any, name: str) -> None:
    """Take a class out of a module, and out of nothing else."""
    if module is mechanisms:
        patched.setattr(module, name, Nobody)
    else:
        patched.setattr(module, "kinds", SimpleNamespace(**{**vars(mechanisms), name: Nobody}))


@pytest.mark.parametrize("example", EVERY, ids=lambda example: type(example).__name__)
def test_a_mechanism_that_is_forgotten_is_refused(example: Mechanism, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a class is taken out of one module in turn, so that no ``match`` of it has a case for the class any more."""
    name = type(example).__name__
    with monkeypatch.context() as patched:
        patched.setattr(accountant, "is_unprotected", lambda _: False)  # which does know it
        forget(patched, accountant, name)
        with pytest.raises(InputError, match=rf"does not know the mechanism {name}$"):
            accountant.compose([example])
    for module, call in MATCHES:
        if issubclass(type(example), NoisySgd) and type(example) is not NoisySgd and module is describe:
            continue  # in words it is a training with its rate, from which no figure is made
        with monkeypatch.context() as patched:
            forget(patched, module, name)
            refused(call, example)


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        (ALLOCATED, "8 steps, every record in 2 of them, drawn beforehand, Gaussian noise of 1.1"),
        (BANDED, "of one of 2 parts in turn drawn with chance 0.5, Gaussian noise of 1.5 times the sensitivity 1.3,"),
        (TRUNCATED, "8 steps, each on records drawn with chance 0.25, 40 at most, Gaussian"),
        (SEARCH, "the best of a secret number of trainings, 3.91 in the mean, each at one of 1 settings"),
    ],
)
def test_words_say_how_records_enter(mechanism: Mechanism, words: str) -> None:
    assert words in describe.describe_mechanism(mechanism)


@pytest.mark.parametrize("stranger", STRANGERS, ids=str)
def test_a_new_mechanism_is_refused_until_it_is_priced(stranger: Mechanism) -> None:
    refusing = (
        lambda mechanism: accountant.epsilon([SGD, mechanism], 1e-5),
        lambda mechanism: accountant.approximate([mechanism], 1e-5),
        lambda mechanism: accountant.filter_epsilon([mechanism], 1e-5),
        lambda mechanism: accountant.profile([mechanism]),
        lambda mechanism: to_json(Entry("release", mechanisms=(mechanism,))),
        as_replace_one,
    )
    for call in refusing:
        refused(call, stranger)


def test_a_new_training_has_no_sampling_and_no_search_until_it_is_known() -> None:
    assert refused(sampling_of, [NewTraining(0.1, 10, 1.0)]) == "`sampling`: unknown of the mechanism NewTraining"
    assert "NewTraining" in refused(accountant.epsilon, [PrivateSearch((NewTraining(0.1, 10, 1.0),), 20.0, 0.1)], 1e-5)


def test_a_search_drops_nothing_of_what_a_try_costs() -> None:
    search = PrivateSearch(SEARCH.trainings, 20.0, 0.1)
    object.__setattr__(search, "trainings", (TRUNCATED,))  # as if the search had forgotten to refuse it
    assert refused(accountant.compose, [search]) == "trainings: a search cannot price all that a TruncatedSgd costs"


def test_only_trainings_are_bases_of_mechanisms() -> None:
    with pytest.raises(TypeError, match=r"^Mine: derive mechanisms from Mechanism or NoisySgd"):

        class Mine(GaussianRelease):
            pass


# --- other dictionaries and choices that figures rest on ---


def test_a_new_relation_is_refused_until_it_is_priced() -> None:
    example = GaussianRelease(1.0)
    object.__setattr__(example, "adjacency", "zero-out")  # as if it had been added to the choices alone
    for call in (lambda: accountant.epsilon([example], 1e-5), lambda: as_replace_one(example)):
        assert refused(call).startswith("adjacency: no price is known under zero-out")


def test_a_new_release_of_the_command_line_is_not_priced_as_another():
    options = EpsilonRequest(noise_multiplier=1.0)
    object.__setattr__(options, "mechanism", "staircase")  # as if it had been added to the choices alone
    assert refused(_releases, options) == "`mechanism`: no price of staircase is known here"


def test_a_new_cut_separates_nobody() -> None:
    first, second = (Part("table", "1" * 64, (), "record", start, start + HASHES // 2) for start in (0, HASHES // 2))
    assert first.apart(second, RECORD, "add-remove")
    for part in (first, second):
        object.__setattr__(part, "cut", "doctor")
    assert not first.apart(second, RECORD, "add-remove")


def test_a_new_kind_of_entry_is_paid_for() -> None:
    entry = Entry("release", mechanisms=(GaussianRelease(1.0),), id="1" * 64, home="2" * 64)
    alone = Account.of([entry]).epsilon(1e-5)
    object.__setattr__(entry, "kind", "lent")
    assert Account.of([entry]).epsilon(1e-5) == alone > 1


def test_a_filter_of_a_new_kind_is_refused() -> None:
    class Strange:
        def __getattr__(self, name: str) -> Any:
            return "row-wise" if name == "kind" else getattr(make_filter("clip"), name)

        def __str__(self) -> str:
            return "strange"

    with pytest.raises(InputError, match=r"^`filter`: strange: is of an unknown kind 'row-wise'$"):
        check_filter_bound(Strange())  # type: ignore[arg-type]


def test_losses_that_nobody_told_of_understate_nothing() -> None:
    """A new loss adds up by its own distribution and divergences; what is quicker than these knows of it or gives up."""

    @dataclasses.dataclass(frozen=True)
    class NewLoss(accountant.privacy_loss.GaussianLoss):
        pass

    @dataclasses.dataclass(frozen=True)
    class FailingLoss(accountant.privacy_loss.LaplaceLoss):
        delta: float

    for loss in (NewLoss(1.0), FailingLoss(1.0, 1e-6)):
        assert accountant.Composition(Counter([loss]), 0.0, 0.0, 0.0).pure_epsilon == math.inf
    assert accountant.bounded_epsilon(NewLoss(1.0)) == math.inf
    assert accountant._mu(object()) == 0.0  # type: ignore[arg-type]  # then its own epsilon is added


def test_every_module_that_chooses_by_mechanism_is_tried_here() -> None:
    """A ``match`` in another module of accounting belongs into ``MATCHES``; ``statement`` only leaves claims out."""
    folder = Path(accountant.__file__).parent
    choosing = {
        path.stem
        for path in folder.glob("*.py")
        if any(isinstance(node, ast.Match) for node in ast.walk(ast.parse(path.read_text())))
    }
    assert choosing == {*(module.__name__.split(".")[-1] for module, _ in MATCHES), "statement"}
    assert as_claimed(STRANGERS[0]) is STRANGERS[0]
