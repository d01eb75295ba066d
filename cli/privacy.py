"""``dpltm privacy epsilon / noise / curve / ledger / budget``: the accountant on its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli.common import (
    LARGEST_NOISE,
    MOST_STEPS,
    check_delta_alone,
    check_epsilon,
    figure,
    steps_of,
)
from dpltm.cli.console import Console
from dpltm.cli.options import Call, option
from dpltm.errors import BudgetError, InputError
from dpltm.privacy.accountants import ACCOUNTANTS, CERTIFIED, DEFAULT, check_certifies
from dpltm.privacy.mechanisms import Adjacency, NoisySgd, Selection, Unit

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from dpltm.privacy.trade_off import Curves


@dataclass(frozen=True)
class SettingOptions:
    """The public settings of a training, as the accountant sees them."""

    noise_multiplier: float | None = option(
        None, "Noise over sensitivity (under replace-one: over the doubled one).", metavar="S"
    )
    sampling_rate: str | None = option(
        None, "Chance of each record to enter a step, as 0.01 or 256/60000.", metavar="Q"
    )
    steps: int | None = option(None, "Number of noisy steps.", metavar="T")
    epochs: float | None = option(None, "Expected passes over the records, instead of --steps.", metavar="N")
    delta: float = option(1e-5, "Delta of the guarantee.", metavar="D")
    eps1: float | None = option(None, "Epsilon of a draw of tickets before the training.", metavar="E")
    mechanism: str = option("exponential", "How that draw is made.", choices=("exponential", "permute-and-flip"))
    adjacency: str = option("add-remove", "Neighbouring relation.", choices=("add-remove", "replace-one"))


@dataclass(frozen=True)
class EpsilonOptions(SettingOptions):
    """What a training costs, by every accountant.

    pld is the certified figure; rdp and ma are certified too, and looser. clt is an approximation that promises nothing.
    """


@dataclass(frozen=True)
class NoiseOptions(SettingOptions):
    """What a budget allows: the least noise, the most steps, or the largest sampling rate.

    Give --epsilon and two of --noise-multiplier, --sampling-rate and --steps; the third is found. The certified epsilon of
    what is found is at most --epsilon, and within 0.1 % of it where whole steps and sensible settings allow.
    """

    epsilon: float | None = option(None, "Whole budget, a draw (--eps1) included.", metavar="E")
    accountant: str = option(
        "pld", "Accountant to calibrate by; clt can satisfy no budget.", choices=ACCOUNTANTS.keys()
    )


@dataclass(frozen=True)
class CurveOptions(SettingOptions):
    """What an attacker can do: the trade-off between false alarms and misses, and delta against epsilon.

    For the settings of one training, or for everything in a ledger.
    """

    ledger: str | None = option(None, "Ledger file, instead of settings.", metavar="FILE")
    dataset: str | None = option(None, "Only with --ledger: name of the dataset.", metavar="NAME")
    csv: str | None = option(None, "File to write the curves to.", metavar="FILE.csv")
    plot: str | None = option(None, "Picture to write.", metavar="FILE.png|.svg|.pdf")


def epsilon_command(options: EpsilonOptions, call: Call) -> None:
    """Runs ``dpltm privacy epsilon`` and prints its answer."""
    from dpltm.privacy.accountant import approximate, central_limit_mu, epsilon
    from dpltm.privacy.calibration import slack_noise
    from dpltm.privacy.report import SEARCH_NOTE, compare_central_limit, json_figure

    training, draw = _mechanisms(options, find=None)
    mechanisms = (*draw, training)
    figures = {name: epsilon(mechanisms, options.delta, name) for name in CERTIFIED}
    figures |= {name: approximate(mechanisms, options.delta, name) for name in ACCOUNTANTS if name not in CERTIFIED}
    notes = [compare_central_limit(figures["clt"], figures[DEFAULT]), *_relation_notes(training), SEARCH_NOTE]
    body = {
        **_setting(training, options),
        **{name: json_figure(value) for name, value in figures.items()},
        "mu": "inf" if (mu := central_limit_mu([training])) is None else json_figure(mu),
        "nominal": {
            "noise_multiplier": slack_noise(training, options.delta),
            "source": "GDP Equations 7 and 8: the noise that the central limit theorem would allow for ma's epsilon",
        },
        "notes": notes,
    }
    Console(call.json, call.quiet).result(body, lambda rich: _show_epsilon(rich, body))


def noise_command(options: NoiseOptions, call: Call) -> None:
    """Runs ``dpltm privacy noise`` and prints its answer."""
    from dpltm.privacy import gdp
    from dpltm.privacy.accountant import epsilon
    from dpltm.privacy.calibration import TOLERANCE, calibrate_noise, calibrate_rate, calibrate_steps

    if options.epsilon is None:
        raise InputError("--epsilon is missing: the whole budget, such as 1")
    check_epsilon("--epsilon", options.epsilon)
    check_certifies(options.accountant)
    given = {
        "noise_multiplier": options.noise_multiplier,
        "sampling_rate": options.sampling_rate,
        "steps": options.steps if options.steps is not None else options.epochs,
    }
    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        raise InputError(
            "--noise-multiplier, --sampling-rate, --steps: give two of them; the third is what the budget allows"
        )
    plan, draw = _mechanisms(options, find=missing[0])
    calibrate = {
        "noise_multiplier": calibrate_noise, "sampling_rate": calibrate_rate, "steps": calibrate_steps,
    }[missing[0]]  # fmt: skip
    try:
        training = calibrate(options.epsilon, options.delta, plan, draw, options.accountant)
    except BudgetError:
        alone = epsilon(draw, options.delta, options.accountant)
        raise BudgetError(
            f"--epsilon, --eps1: the draw alone costs {alone:.4g} of {options.epsilon:g}, which leaves too little for the"
            " training; raise --epsilon or lower --eps1"
        ) from None
    spent = epsilon((*draw, training), options.delta, options.accountant)
    notes = _relation_notes(training)
    if spent < options.epsilon * (1 - TOLERANCE):
        notes.append("not all of the budget is used: the search ends at a limit of its range, or steps are whole")
    left = options.epsilon - (options.eps1 or 0.0)
    nominal = None
    if missing[0] == "noise_multiplier" and left > 0:
        mu = gdp.mu(left, options.delta)
        nominal = {
            "noise_multiplier": gdp.clt_noise(
                mu, training.sampling_rate, training.steps, replace_one=training.adjacency == "replace-one"
            ),
            "source": "GDP Equations 7 and 8: the noise that the central limit theorem would allow; it promises nothing",
        }
    body = {
        "found": missing[0],
        **_setting(training, options),
        "epsilon": spent,
        "budget": options.epsilon,
        "accountant": options.accountant,
        "nominal": nominal,
        "notes": notes,
    }
    Console(call.json, call.quiet).result(body, lambda rich: _show_noise(rich, body))


def curve_command(options: CurveOptions, call: Call) -> None:
    """Runs ``dpltm privacy curve``, writes what was asked for and prints its answer."""
    from dpltm.privacy.report import json_figure
    from dpltm.privacy.trade_off import sentence
    from dpltm.tickets.curve_files import check_plot, write_csv, write_plot
    from dpltm.tickets.files import check_free, check_writable

    asked = _asked_curve(options)
    for flag, name in (("--csv", options.csv), ("--plot", options.plot)):
        if name is not None:
            if not name:
                raise InputError(f"{flag}: an empty name; name a file to write")
            check_free(Path(name))
            check_writable(Path(name))
    if options.plot:
        check_plot(Path(options.plot))
        if options.plot == options.csv:
            raise InputError("--csv, --plot: name two different files")
    curves, epsilon = asked.price(options.delta)
    if options.csv:
        write_csv(Path(options.csv), curves)
    if options.plot:
        write_plot(Path(options.plot), curves, asked.title)
    misses = curves.misses_at(0.05)
    nominal = None
    if curves.misses_gdp is not None:
        nominal = {
            "mu": json_figure(curves.mu or 0.0),
            "beta": curves.misses_gdp.tolist(),
            "source": ACCOUNTANTS["clt"].source,
        }
    body = {
        "of": asked.title,
        "certified": {
            "epsilon": curves.epsilons.tolist(), "delta": curves.deltas.tolist(),
            "alpha": curves.false_alarms.tolist(), "beta": curves.misses.tolist(),
        },
        "nominal": nominal,
        "misses_at_5_percent": misses,
        "sentence": sentence(misses, adjacency=asked.adjacency, unit=asked.unit),
        "epsilon_at_delta": epsilon,
        "delta": options.delta,
        "csv": options.csv,
        "plot": options.plot,
    }  # fmt: skip
    Console(call.json, call.quiet).result(body, lambda rich: _show_curve(rich, body))


@dataclass(frozen=True)
class _Asked:
    """What a curve is asked of.

    Attributes:
        title: what to call it.
        adjacency, unit: what it is stated for.
        price: from delta to the curves, and epsilon at it.
    """

    title: str
    adjacency: Adjacency
    unit: Unit
    price: Callable[[float], tuple[Curves, float]]


def _asked_curve(options: CurveOptions) -> _Asked:
    """The mechanisms that the options describe, or the events of the ledger that they name."""
    if options.ledger is not None:
        return _asked_ledger(options, options.ledger)
    if options.dataset is not None:
        raise InputError("--dataset: picks records out of a --ledger; name one, or leave --dataset out")
    from dpltm.privacy.accountant import epsilon
    from dpltm.privacy.trade_off import curves

    sgd, draw = _mechanisms(options, find=None)
    setting = f"noise multiplier {sgd.noise_multiplier:g}, rate {sgd.sampling_rate:.4g}, {sgd.steps:,} steps"
    title = setting + (f", after a draw at {options.eps1:g}" if draw else "")
    both = (*draw, sgd)
    return _Asked(title, sgd.adjacency, sgd.unit, lambda delta: (curves(both), epsilon(both, delta)))


def _asked_ledger(options: CurveOptions, ledger: str) -> _Asked:
    for flag, value in (
        ("--noise-multiplier", options.noise_multiplier), ("--sampling-rate", options.sampling_rate),
        ("--steps", options.steps), ("--epochs", options.epochs), ("--eps1", options.eps1),
    ):  # fmt: skip
        if value is not None:
            raise InputError(f"{flag}: the --ledger holds the settings; leave {flag} out")
    from dpltm.cli.privacy_ledger import read_ledger
    from dpltm.privacy.parts import mechanisms_of, stated_relations, total_epsilon
    from dpltm.privacy.privacy_unit import unit_of
    from dpltm.privacy.trade_off import curves_of_events

    events = read_ledger(Path(ledger), options.dataset)
    relations = stated_relations(events)
    if len(set(relations)) > 1:
        raise InputError(
            f"--ledger: {ledger} holds releases under add-remove and under replace-one, which have no common curve;"
            " pick records with --dataset"
        )
    return _Asked(
        options.dataset or Path(ledger).name,
        next(iter(relations), "add-remove"),
        unit_of(mechanisms_of(events)),
        lambda delta: (curves_of_events(events), total_epsilon(events, delta)),
    )


def _mechanisms(options: SettingOptions, find: str | None) -> tuple[NoisySgd, tuple[Selection, ...]]:
    """The training that the options describe, and the draw before it; what is to be found is filled with 1."""
    check_delta_alone(options.delta)
    rate = 1.0 if find == "sampling_rate" else _rate(options.sampling_rate)
    steps = 1 if find == "steps" else _steps(options, rate)
    noise = 1.0
    if find != "noise_multiplier":
        if options.noise_multiplier is None:
            raise InputError("--noise-multiplier is missing: the noise over the sensitivity, such as 1.1")
        noise = options.noise_multiplier
        if not 0 < noise <= LARGEST_NOISE:
            raise InputError(f"--noise-multiplier: {noise:g} is not a positive number up to {LARGEST_NOISE:g}")
    check_epsilon("--eps1", options.eps1)
    adjacency: Adjacency = options.adjacency  # type: ignore[assignment]
    training = NoisySgd(rate, steps, noise, adjacency=adjacency)
    if options.eps1 is None:
        return training, ()
    eps1, how = options.eps1, options.mechanism
    draw = Selection(eps1, eps1, how, adaptive=False, adjacency=adjacency)  # type: ignore[arg-type]
    return training, (draw,)


def _rate(text: str | None) -> float:
    """A sampling rate from ``0.01`` or ``256/60000``."""
    if text is None:
        raise InputError("--sampling-rate is missing: the chance of each record to enter a step, such as 256/60000")
    top, _, bottom = text.partition("/")
    try:
        above, below = float(top), float(bottom) if bottom else 1.0
        rate = above / below if above > 0 and below > 0 else 0.0
    except ValueError:
        raise InputError(
            f"--sampling-rate: {text!r} is not a number or a fraction, such as 0.01 or 256/60000"
        ) from None
    if not 0 < rate <= 1:
        raise InputError(f"--sampling-rate: {text} is not above 0 and at most 1")
    return rate


def _steps(options: SettingOptions, rate: float) -> int:
    if (options.steps is None) == (options.epochs is None):
        raise InputError("--steps or --epochs: give one of them")
    if options.steps is not None:
        steps = options.steps
        if steps < 1:
            raise InputError(f"--steps: {steps} is not a positive whole number")
    else:
        epochs = options.epochs or 0.0
        if not 0 < epochs < math.inf:
            raise InputError(f"--epochs: {epochs:g} is not a positive number")
        steps = steps_of(epochs, rate)
    if steps > MOST_STEPS:
        raise InputError(f"--steps, --epochs: more than {MOST_STEPS:,} steps; ask for fewer")
    return steps


def _relation_notes(training: NoisySgd) -> list[str]:
    """What a reader who compares relations must know."""
    if training.adjacency == "add-remove":
        return []
    same = replace(training, adjacency="add-remove", noise_multiplier=2 * training.noise_multiplier)
    return [
        f"under replace-one the sensitivity is doubled, so noise multiplier {training.noise_multiplier:.4g} is as much noise"
        f" as {same.noise_multiplier:.4g} under add-remove"
    ]


def _setting(training: NoisySgd, options: SettingOptions) -> dict[str, Any]:
    return {
        "noise_multiplier": training.noise_multiplier,
        "sampling_rate": training.sampling_rate,
        "steps": training.steps,
        "delta": options.delta,
        "adjacency": training.adjacency,
        "eps1": options.eps1,
    }


def _show_epsilon(rich: RichConsole, body: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("accountant", "epsilon", "what it is", title=_title(body), title_justify="left")
    for name in sorted(ACCOUNTANTS, key=lambda name: name not in CERTIFIED):
        accountant = ACCOUNTANTS[name]
        limit = f", mu = {figure(body['mu'])}" if name == "clt" else ""
        style = "bold" if name == DEFAULT else None if accountant.certifies else "dim"
        table.add_row(name, figure(body[name]), accountant.help + limit, style=style)
    rich.print(table)
    _show_nominal_noise(rich, body)
    _show_notes(rich, body)


def _show_noise(rich: RichConsole, body: dict[str, Any]) -> None:
    found = body["found"].replace("_", " ")
    value = body[body["found"]]
    rich.print(f"{found} = {value if isinstance(value, int) else format(value, '.6g')}", style="bold")
    rich.print(
        f"certified epsilon = {figure(body['epsilon'])} of {body['budget']:g} (accountant {body['accountant']});"
        f" {_title(body)}"
    )
    _show_nominal_noise(rich, body)
    _show_notes(rich, body)


def _title(body: dict[str, Any]) -> str:
    draw = "" if body["eps1"] is None else f", after a draw at eps1 {body['eps1']:g}"
    return (
        f"noise multiplier {body['noise_multiplier']:.4g}, sampling rate {body['sampling_rate']:.4g}, {body['steps']:,}"
        f" steps, delta {body['delta']:g}, {body['adjacency']}{draw}"
    )


def _show_nominal_noise(rich: RichConsole, body: dict[str, Any]) -> None:
    if body["nominal"] is not None:
        rich.print(
            f"nominal noise multiplier = {body['nominal']['noise_multiplier']:.4g} ({body['nominal']['source']})",
            style="dim",
        )


def _show_notes(rich: RichConsole, body: dict[str, Any]) -> None:
    from dpltm.cli.show import show_notes

    show_notes(rich, body)


def _show_curve(rich: RichConsole, body: dict[str, Any]) -> None:
    from rich.table import Table

    from dpltm.privacy.trade_off import SHOWN

    certified, nominal = body["certified"], body["nominal"]
    rich.print(body["sentence"], style="bold")
    rich.print(f"certified epsilon = {figure(body['epsilon_at_delta'])} at delta {body['delta']:g}")
    table = Table("false alarms", "misses, at least", "G_mu (nominal)", title=body["of"], title_justify="left")
    for alpha in SHOWN:
        place = certified["alpha"].index(alpha)
        gdp = "" if nominal is None else f"{nominal['beta'][place]:.2%}"
        misses = math.floor(certified["beta"][place] * 1e4) / 1e4
        table.add_row(f"{alpha:.1%}", f"{misses:.2%}", gdp)
    rich.print(table)
    for name in ("csv", "plot"):
        if body[name]:
            rich.print(f"wrote {body[name]}")
