"""``dpltm privacy``: the accountant on its own: what settings cost, what a budget allows, and what an attacker can do."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole

from dpltm.cli.console import answering
from dpltm.cli.ledgers import read_book
from dpltm.cli.show import Cell, show_notes, show_table, show_wrote
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
from dpltm.privacy.trade_off import SHOWN, Curves, curves, curves_of_account, sentence
from dpltm.progress import Progress
from dpltm.tickets.charts import new_picture, trade_off, write_charts


def epsilon_of(options: EpsilonRequest, _: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm privacy epsilon``: what a training costs, by every accountant."""
    if options.mechanism in PLAIN:
        return _of_releases(options)
    training, draw = _training(options)
    mechanisms = (*draw, training)
    figures = {name: epsilon(mechanisms, options.delta, name) for name in CERTIFIED}
    figures |= {name: approximate(mechanisms, options.delta, name) for name in ACCOUNTANTS if name not in CERTIFIED}
    notes = [compare_central_limit(figures["clt"], figures[DEFAULT]), *_relation_notes(training), SEARCH_NOTE]
    return {
        **_setting(training, options),
        **{name: json_figure(value) for name, value in figures.items()},
        "mu": "inf" if (mu := central_limit_mu([training])) is None else json_figure(mu),
        "nominal": None
        if isinstance(training, AllocatedSgd)
        else _nominal(slack_noise(training, options.delta), "for ma's epsilon"),
        "notes": notes,
    }


def _nominal(noise_multiplier: float, terms: str) -> dict[str, Any]:
    source = (
        f"GDP Equations 7 and 8: the noise that the central limit theorem would allow {terms}; it promises nothing"
    )
    return {"noise_multiplier": noise_multiplier, "source": source}


def _of_releases(options: EpsilonRequest) -> dict[str, Any]:
    """Return the same of releases from all records, for all records of a group together."""
    mechanisms = _releases(options)
    names = ("mechanism", "noise_multiplier", "eps1", "group", "delta")
    return {
        **{name: getattr(options, name) for name in names},
        "categories": options.categories if options.mechanism == "randomized-response" else None,
        "steps": options.steps or 1,
        "adjacency": mechanisms[0].adjacency,
        **{name: json_figure(epsilon(mechanisms, options.delta, name)) for name in CERTIFIED},
        "notes": [SEARCH_NOTE],
    }


_SAMPLING = ("sampling_rate", "sampling", "epochs")


def _leave_out(options: SettingOptions, why: str, *names: str) -> None:
    """Raise InputError for options that have no meaning beside others."""
    for name in names:
        if getattr(options, name) != {"categories": 2, "group": 1}.get(name):
            raise InputError(f"`{name}`: {why}; leave it out")


def _releases(options: ReleaseOptions) -> list[Mechanism]:
    """Return releases in place of a training, as they concern all records of a group together.

    The sensitivity of a release grows with the group, by the triangle inequality. Of randomised responses each
    record of the group gives one.
    """
    name = options.mechanism
    count = options.steps or 1
    group = options.group
    response = name == "randomized-response"
    decides, *others = ("eps1", "noise_multiplier") if response else ("noise_multiplier", "eps1", "categories")
    _leave_out(options, f"does not go with `mechanism` {name}", *_SAMPLING, *others)
    value = getattr(options, decides)
    if value is None:
        raise InputError(
            f"`{decides}` is missing: {'the epsilon of one answer' if response else 'the noise'}, such as 1.1"
        )
    if count * (group if response else 1) > MAX_RELEASES:
        raise InputError(f"`steps`, `group`: more than {MAX_RELEASES:,} releases; ask for fewer")
    adjacency: Adjacency = options.adjacency  # type: ignore[assignment]
    if response:
        return [RandomizedResponse(value, options.categories)] * (count * group)
    if name == "laplace":
        return [LaplaceRelease(value, float(group), adjacency=adjacency)] * count
    if name == "gaussian":
        return [NoisySgd(1.0, count, value / group, adjacency=adjacency)]
    raise InputError(f"`mechanism`: no price of {name} is known here")


def noise_of(options: NoiseRequest, _: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm privacy noise``: the least noise that a budget allows."""
    if options.epsilon is None:
        raise InputError("`epsilon` is missing: the whole budget, such as 1")
    check_certifies(options.accountant)
    plan, draw = _mechanisms(options, noise=1.0)
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
    return {
        **_setting(training, options),
        "epsilon": spent,
        "budget": options.epsilon,
        "accountant": options.accountant,
        "nominal": nominal,
        "notes": notes,
    }


def curve_of(options: CurveRequest, _: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm privacy curve``; a picture is drawn where one was asked for."""
    picture = new_picture(options.plot)
    title, adjacency, unit, priced, at_delta = _curves(options)
    if picture is not None:
        write_charts(picture, [trade_off(priced)], title)
    misses = priced.misses_at(0.05)
    nominal = None
    if priced.misses_gdp is not None:
        mu = json_figure(priced.mu or 0.0)
        source = ACCOUNTANTS["clt"].source
        nominal = {"mu": mu, "beta": priced.misses_gdp.tolist(), "source": source}
    return {
        "of": title,
        "certified": {
            "epsilon": priced.epsilons.tolist(), "delta": priced.deltas.tolist(),
            "alpha": priced.false_alarms.tolist(), "beta": priced.misses.tolist(),
        },
        "nominal": nominal,
        "misses_at_5_percent": misses,
        "sentence": sentence(misses, adjacency=adjacency, unit=unit),
        "epsilon_at_delta": at_delta,
        "delta": options.delta,
        "plot": options.plot,
    }  # fmt: skip


def _curves(options: CurveRequest) -> tuple[str, Adjacency, str, Curves, float]:
    """Title, relation, unit, curves, and epsilon at delta: of what the options describe, or of the ledger that they name."""
    released = options.mechanism in PLAIN
    if options.ledger is None:
        if released:
            priced = tuple(_releases(options))
            title = _title(vars(options) | {"steps": options.steps or 1})
        else:
            sgd, draw = _training(options)
            title = _title(_setting(sgd, options))
            priced = (*draw, sgd)
        return title, priced[-1].adjacency, "record", curves(priced), epsilon(priced, options.delta)
    names = ("noise_multiplier", *_SAMPLING, "steps", "eps1", "categories", "group")
    _leave_out(options, "the `ledger` holds the settings", *names, *(["mechanism"] * released))
    account = read_book(Path(options.ledger)).account()
    title = f"everything in {options.ledger}"
    relation = account.adjacency or "add-remove"
    return title, relation, account.unit, curves_of_account(account), account.epsilon(options.delta)


def _mechanisms(options: SettingOptions, noise: float) -> tuple[NoisySgd, tuple[Selection, ...]]:
    """Return the training that the options describe, with so much noise, and the draw before it."""
    participations = participations_of(options.sampling)
    if participations is not None:
        _leave_out(options, "follows from `sampling` allocation and `steps`", "sampling_rate", "epochs")
    rate = 1.0 if participations is not None else _rate(options.sampling_rate)
    steps = _steps(options, rate)
    adjacency: Adjacency = options.adjacency  # type: ignore[assignment]
    training = NoisySgd(rate, steps, noise, adjacency=adjacency)
    if participations is not None:
        rate = participations / steps
        training = AllocatedSgd(rate, steps, noise, participations=participations, adjacency=adjacency)
    if (eps1 := options.eps1) is None:
        return training, ()
    how: Any = options.mechanism
    return training, (Selection(eps1, eps1, how, adaptive=False, adjacency=adjacency),)


def _training(options: ReleaseOptions) -> tuple[NoisySgd, tuple[Selection, ...]]:
    """Return the same with the noise that is stated; other releases have options of their own."""
    for name, whose in (("categories", "randomized-response"), ("group", ", ".join(PLAIN))):
        _leave_out(options, f"goes with `mechanism` {whose}", name)
    if options.noise_multiplier is None:
        raise InputError("`noise_multiplier` is missing: the noise over the sensitivity, such as 1.1")
    return _mechanisms(options, options.noise_multiplier)


def _rate(text: str | None) -> float:
    """Return a sampling rate from a number or a fraction."""
    above, _, below = (text or "").partition("/")
    rate = 0.0
    with contextlib.suppress(ValueError, ZeroDivisionError):
        rate = float(above) / float(below or 1)
    if not 0 < rate <= 1:
        raise InputError(f"`sampling_rate`: {text} is not the chance of a record to enter a step, such as 256/60000")
    return rate


def _steps(options: SettingOptions, rate: float) -> int:
    if (options.steps is None) == (options.epochs is None):
        raise InputError("`steps` or `epochs`: give one of them")
    steps = options.steps or steps_of(options.epochs or 0.0, rate)
    if steps > MAX_STEPS:
        raise InputError(f"`epochs`: more than {MAX_STEPS:,} steps; ask for fewer")
    return steps


def _relation_notes(training: NoisySgd) -> list[str]:
    if training.adjacency == "add-remove":
        return []
    noise = training.noise_multiplier
    return [
        f"under replace-one the sensitivity is doubled, so noise multiplier {noise:.4g} is as much noise as {2 * noise:.4g}"
        " under add-remove"
    ]


def _setting(training: NoisySgd, options: SettingOptions) -> dict[str, Any]:
    return {
        "noise_multiplier": training.noise_multiplier,
        "sampling_rate": training.sampling_rate,
        "steps": training.steps,
        "delta": options.delta,
        "adjacency": training.adjacency,
        "eps1": options.eps1,
        **({"participations": training.participations} if isinstance(training, AllocatedSgd) else {}),
    }


def show_epsilon(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the answer of ``dpltm privacy epsilon``."""
    names = sorted((name for name in ACCOUNTANTS if name in body), key=lambda name: name not in CERTIFIED)
    columns: dict[str, Cell] = {
        "accountant": str,
        "epsilon": lambda name: figure(body[name]),
        "what it is": lambda name: ACCOUNTANTS[name].help,
    }
    show_table(rich, names, columns, _title(body))
    if "mu" in body:
        rich.print(f"mu = {figure(body['mu'])}", style="dim")
    _show_nominal_noise(rich, body)
    show_notes(rich, body)


def show_noise(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the answer of ``dpltm privacy noise``."""
    rich.print(f"noise multiplier = {figure(body['noise_multiplier'], 6)}", style="bold")
    spent = f"{figure(body['epsilon'])} of {body['budget']:g} (accountant {body['accountant']})"
    rich.print(f"certified epsilon = {spent}; {_title(body)}")
    _show_nominal_noise(rich, body)
    show_notes(rich, body)


def _title(body: dict[str, Any]) -> str:
    """Return in a line what is priced: a training, or other releases in its place."""
    if body.get("noise_multiplier") is None:
        text = f"epsilon {body['eps1']:g} an answer, {body['categories']:,} categories"
    else:
        text = f"noise multiplier {body['noise_multiplier']:.4g}"
    if "group" in body:
        times = "" if body["steps"] == 1 else f", {body['steps']:,} times"
        group = "" if body["group"] == 1 else f", for groups of {body['group']:,}"
        return f"{body['mechanism']}, {text}{times}{group}, delta {body['delta']:g}, {body['adjacency']}"
    draw = "" if body["eps1"] is None else f", after a draw at eps1 {body['eps1']:g}"
    sampled = f"sampling rate {body['sampling_rate']:.4g}, {body['steps']:,} steps"
    if "participations" in body:
        sampled = f"every record in {body['participations']:,} of {body['steps']:,} steps"
    return f"{text}, {sampled}, delta {body['delta']:g}, {body['adjacency']}{draw}"


def _show_nominal_noise(rich: RichConsole, body: dict[str, Any]) -> None:
    if (nominal := body.get("nominal")) is not None:
        rich.print(f"nominal noise multiplier = {nominal['noise_multiplier']:.4g} ({nominal['source']})", style="dim")


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


epsilon_command = answering(epsilon_of, show_epsilon)
noise_command = answering(noise_of, show_noise)
curve_command = answering(curve_of, show_curve)
