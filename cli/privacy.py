"""``dpltm privacy``: the accountant on its own: what settings cost, what a budget allows, and what an attacker can do."""

from __future__ import annotations

import contextlib
import math
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole

from dpltm.cli.console import answering
from dpltm.cli.ledgers import read_book
from dpltm.cli.show import Cell, show_answer, show_table, show_wrote, shown
from dpltm.errors import BudgetError, InputError
from dpltm.options.privacy import (
    MAX_RELEASES,
    PLAIN,
    CurveRequest,
    EpsilonRequest,
    NoiseRequest,
    ReleaseOptions,
    SettingOptions,
)
from dpltm.privacy import gdp
from dpltm.privacy.account import Planned
from dpltm.privacy.accountant import approximate, central_limit_mu, epsilon
from dpltm.privacy.accountants import ACCOUNTANTS, CERTIFIED, DEFAULT, check_certifies
from dpltm.privacy.calibration import TOLERANCE, calibrate_noise, slack_noise
from dpltm.privacy.checks import MAX_STEPS, participations_of, steps_of
from dpltm.privacy.describe import figure, guarantee, percent
from dpltm.privacy.mechanisms import (
    Adjacency,
    AllocatedSgd,
    LaplaceRelease,
    Mechanism,
    NoisySgd,
    RandomizedResponse,
    Selection,
)
from dpltm.privacy.statement import SEARCH_NOTE, compare_central_limit, json_figure
from dpltm.privacy.trade_off import SHOWN, curves, curves_of_account, sentence
from dpltm.progress import Progress
from dpltm.tickets.charts import new_picture, trade_off, write_charts


def epsilon_of(options: EpsilonRequest, _: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm privacy epsilon``: what a training, or other releases, cost by every accountant."""
    mechanisms, facts = _described(options)
    training = mechanisms[-1]
    figures = {name: epsilon(mechanisms, options.delta, name) for name in CERTIFIED}
    body = {**facts, **{name: json_figure(value) for name, value in figures.items()}, "notes": [SEARCH_NOTE]}
    if options.mechanism in PLAIN:
        return body
    assert isinstance(training, NoisySgd)
    nominal = {name: approximate(mechanisms, options.delta, name) for name in ACCOUNTANTS if name not in CERTIFIED}
    mu, allocated = central_limit_mu([training]), isinstance(training, AllocatedSgd)
    notes = [compare_central_limit(nominal["clt"], figures[DEFAULT]), *_relation_notes(training), SEARCH_NOTE]
    body |= {name: json_figure(value) for name, value in nominal.items()}
    allowed = None if allocated else _nominal(slack_noise(training, options.delta), "for ma's epsilon")
    return {**body, "mu": "inf" if mu is None else json_figure(mu), "nominal": allowed, "notes": notes}


def _nominal(noise_multiplier: float, terms: str) -> dict[str, Any]:
    source = f"GDP Equations 7 and 8: what the central limit theorem would allow {terms}; it promises nothing"
    return {"noise_multiplier": noise_multiplier, "source": source}


def _described(options: ReleaseOptions) -> tuple[tuple[Mechanism, ...], dict[str, Any]]:
    """Mechanisms that the options describe, a training last, and what is told of them."""
    if options.mechanism in PLAIN:
        mechanisms = _releases(options)
        facts = {name: getattr(options, name) for name in ("mechanism", "noise_multiplier", "eps1", "group", "delta")}
        facts["categories"] = options.categories if options.mechanism == "randomized-response" else None
        return mechanisms, {**facts, "steps": options.steps or 1, "adjacency": mechanisms[0].adjacency}
    for name, whose in (("categories", "randomized-response"), ("group", ", ".join(PLAIN))):
        _leave_out(options, f"goes with `mechanism` {whose}", name)
    training, draw = _training(options, _needed(options, "noise_multiplier", "the noise over the sensitivity"))
    return (*draw, training), _setting(training, options)


_SAMPLING = ("sampling_rate", "sampling", "epochs")
DEFAULTS = {"categories": 2, "group": 1, "mechanism": "exponential"}


def _leave_out(options: SettingOptions, why: str, *names: str) -> None:
    for name in names:
        if getattr(options, name) != DEFAULTS.get(name):
            raise InputError(f"`{name}`: {why}; leave it out")


def _needed(options: ReleaseOptions, name: str, what: str) -> float:
    if (value := getattr(options, name)) is None:
        raise InputError(f"`{name}` is missing: {what}, such as 1.1")
    return float(value)


def _releases(options: ReleaseOptions) -> tuple[Mechanism, ...]:
    """Releases of all records of a group: sensitivities add up, by the triangle inequality, and so do responses."""
    name, group, steps = options.mechanism, options.group, options.steps or 1
    response = name == "randomized-response"
    decides, *others = ("eps1", "noise_multiplier") if response else ("noise_multiplier", "eps1", "categories")
    _leave_out(options, f"does not go with `mechanism` {name}", *_SAMPLING, *others)
    value = _needed(options, decides, "the epsilon of one answer" if response else "the noise over the sensitivity")
    count = steps * group if response else steps
    if count > MAX_RELEASES:
        raise InputError(f"`steps`, `group`: more than {MAX_RELEASES:,} releases; ask for fewer")
    adjacency: Adjacency = options.adjacency  # type: ignore[assignment]
    if response:
        return (RandomizedResponse(value, options.categories),) * count
    if name == "laplace":
        return (LaplaceRelease(value, float(group), adjacency=adjacency),) * count
    if name == "gaussian":
        return (NoisySgd(1.0, count, value / group, adjacency=adjacency),)
    raise InputError(f"`mechanism`: no price of {name} is known here")


def noise_of(options: NoiseRequest, _: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm privacy noise``: the least noise that a budget allows."""
    check_certifies(options.accountant)
    plan, draw = _training(options, noise=1.0)
    try:
        training = calibrate_noise(options.epsilon, options.delta, plan, Planned.after(*draw), options.accountant)
    except BudgetError:
        alone = epsilon(draw, options.delta, options.accountant)
        raise BudgetError(
            f"`epsilon`, `eps1`: the draw alone costs {figure(alone)} of {options.epsilon:g}, which leaves too little for"
            " the training; raise `epsilon` or lower `eps1`"
        ) from None
    spent = epsilon((*draw, training), options.delta, options.accountant)
    notes = _relation_notes(training)
    if spent < options.epsilon * (1 - TOLERANCE):
        notes.append("not all of the budget is used: the search ends at the least noise that is tried")
    left = options.epsilon - (options.eps1 or 0.0)
    nominal = None
    if left > 0 and not isinstance(training, AllocatedSgd):
        mu, replaced = gdp.mu(left, options.delta), training.adjacency == "replace-one"
        noise = gdp.clt_noise(mu, training.sampling_rate, training.steps, replace_one=replaced)
        nominal = _nominal(noise, "for this budget")
    facts = {"epsilon": spent, "budget": options.epsilon, "accountant": options.accountant}
    return {**_setting(training, options), **facts, "nominal": nominal, "notes": notes}


def curve_of(options: CurveRequest, _: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm privacy curve``; a picture is drawn where one was asked for."""
    picture = new_picture(options.plot)
    if options.ledger is None:
        mechanisms, facts = _described(options)
        unit, adjacency = "record", mechanisms[-1].adjacency
        words = {name.replace("_", " "): value for name, value in facts.items() if value is not None}
        title = ", ".join(f"{name} {shown(name, value)}" for name, value in words.items())
        priced, at_delta = curves(mechanisms), epsilon(mechanisms, options.delta)
    else:
        names = ("noise_multiplier", *_SAMPLING, "steps", "eps1", "categories", "group", "mechanism")
        _leave_out(options, "the `ledger` holds the settings", *names)
        account = read_book(Path(options.ledger)).account()
        unit, adjacency = account.unit, account.adjacency or "add-remove"
        title, priced = f"everything in {options.ledger}", curves_of_account(account)
        at_delta = account.epsilon(options.delta)
    if picture is not None:
        write_charts(picture, [trade_off(priced)], title)
    misses = priced.misses_at(0.05)
    nominal = None
    if priced.misses_gdp is not None:
        mu = json_figure(priced.mu or 0.0)
        nominal = {"mu": mu, "beta": priced.misses_gdp.tolist(), "source": ACCOUNTANTS["clt"].source}
    return {
        "of": title,
        "certified": {
            "epsilon": priced.epsilons.tolist(), "delta": priced.deltas.tolist(),
            "alpha": priced.false_alarms.tolist(), "beta": priced.misses.tolist(),
        },
        "nominal": nominal, "misses_at_5_percent": misses,
        "sentence": sentence(misses, adjacency=adjacency, unit=unit),
        "epsilon_at_delta": at_delta, "delta": options.delta, "plot": options.plot,
    }  # fmt: skip


def _training(options: SettingOptions, noise: float) -> tuple[NoisySgd, tuple[Selection, ...]]:
    """The training that the options describe, with so much noise, and the draw before it."""
    adjacency: Adjacency = options.adjacency  # type: ignore[assignment]
    participations = participations_of(options.sampling)
    if participations is None:
        rate = _rate(options.sampling_rate)
        training = NoisySgd(rate, _steps(options, rate), noise, adjacency=adjacency)
    else:
        _leave_out(options, "follows from `sampling` allocation and `steps`", "sampling_rate", "epochs")
        steps = _steps(options, 1.0)
        rate = participations / steps
        training = AllocatedSgd(rate, steps, noise, participations=participations, adjacency=adjacency)
    if (eps1 := options.eps1) is None:
        return training, ()
    how: Any = options.mechanism
    return training, (Selection(eps1, eps1, how, adaptive=False, adjacency=adjacency),)


def _rate(text: str | None) -> float:
    """A sampling rate from a number or a fraction."""
    above, _, below = (text or "").partition("/")
    rate = 0.0
    with contextlib.suppress(ValueError, ZeroDivisionError):
        rate = float(above) / float(below or 1)
    if not 0 < rate <= 1:
        stated = " is missing:" if text is None else f": {text} is not"
        raise InputError(f"`sampling_rate`{stated} the chance of a record to enter a step, such as 256/60000")
    return rate


def _steps(options: SettingOptions, rate: float) -> int:
    if (options.steps is None) == (options.epochs is None):
        raise InputError("`steps` or `epochs`: give one of them")
    steps = options.steps or steps_of(options.epochs or 0.0, rate)
    if steps > MAX_STEPS:
        raise InputError(f"`epochs`: more than {MAX_STEPS:,} steps; ask for fewer")
    return steps


def _relation_notes(training: NoisySgd) -> list[str]:
    noise = training.noise_multiplier
    doubled = (
        f"under replace-one the sensitivity is doubled, so noise multiplier {noise:.4g} is as much noise as {2 * noise:.4g}"
        " under add-remove"
    )
    return [] if training.adjacency == "add-remove" else [doubled]


def _setting(training: NoisySgd, options: SettingOptions) -> dict[str, Any]:
    return {
        "noise_multiplier": training.noise_multiplier, "sampling_rate": training.sampling_rate, "steps": training.steps,
        "delta": options.delta, "adjacency": training.adjacency, "eps1": options.eps1,
        **({"participations": training.participations} if isinstance(training, AllocatedSgd) else {}),
    }  # fmt: skip


def show_noise(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the answer of ``dpltm privacy noise``: noise that is rounded down would not do."""
    show_answer(f"noise multiplier = {figure(body['noise_multiplier'], 6)}", rich, body)


def show_curve(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the answer of ``dpltm privacy curve``."""
    certified, nominal = body["certified"], body["nominal"]
    rich.print(body["sentence"], style="bold")
    rich.print(guarantee({"epsilon": body["epsilon_at_delta"], "delta": body["delta"]}))
    columns: dict[str, Cell] = {
        "false alarms": lambda place: percent(certified["alpha"][place]),
        "misses, at least": lambda place: percent(math.floor(certified["beta"][place] * 1e4) / 1e4),
        "G_mu (nominal)": lambda place: "" if nominal is None else percent(nominal["beta"][place]),
    }
    show_table(rich, map(certified["alpha"].index, SHOWN), columns, body["of"])
    show_wrote(rich, body, "plot")


epsilon_command = answering(epsilon_of, partial(show_answer, "epsilon by every accountant"))
noise_command = answering(noise_of, show_noise)
curve_command = answering(curve_of, show_curve)
