"""``dpltm train``: phase 3, trains the winner under differential privacy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli.common import (
    NETWORKS,
    PER_USER,
    figure,
    free_name,
    records,
    tensors,
)
from dpltm.cli.console import Console
from dpltm.cli.features import FeatureOptions, inputs, tells_of
from dpltm.cli.options import Call, option, recorded
from dpltm.cli.train_plan import Plan, Start, check_options, find_start, make_plan
from dpltm.privacy.accountants import ACCOUNTANTS

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from dpltm.data import Augmentation
    from dpltm.privacy.events import Event, GaussianEvent
    from dpltm.privacy.ledger import Ledger
    from dpltm.privacy.report import PrivacyReport
    from dpltm.training import NoisyGradients


MEANT = 1000
"""Records at a time when their mean is taken."""

OTHERS = "other releases from these records add up: name one --ledger for all of them to have them counted"


@dataclass(frozen=True)
class TrainOptions(FeatureOptions):
    """Phase 3: train a ticket under differential privacy (DP-SGD on its live coordinates).

    SET trains the winner of its last selection, SET@ROUND the ticket of that round, --dense the whole network.
    --epsilon is the whole budget: what the ledger already holds for these records is part of it.
    """

    ticket: str | None = option(None, "Ticket set to train from.", metavar="SET[@ROUND]", argument=True)
    dense: bool = option(False, "Train the whole network: that of SET, or of --model.")
    model: str | None = option(None, "Network for --dense without SET.", metavar=NETWORKS, shown="mlp:300,100")
    filter: str = option(
        "clip",
        "Gradient filter; tanh clips before unless --no-pre-clip, tanh-clip after.",
        choices=("clip", "per-layer", "tanh", "tanh-clip", "radial-tanh", "auto", "normalize", "sigmoid"),
    )
    clip_norm: float = option(1.0, "Norm C that a gradient comes out with at most; R of clip-then-tanh.", metavar="C")
    tanh_scale: float = option(1.0, "Vertical range c of tanh and sigmoid.", metavar="c")
    tanh_range: float = option(1.0, "Horizontal range k of tanh, radial-tanh and sigmoid.", metavar="k")
    no_pre_clip: bool = option(False, "tanh as printed in its paper, with no clipping before it.")
    epsilon: float | None = option(
        None, "Whole budget: noise is calibrated so that the certified epsilon fits.", metavar="E"
    )
    noise_multiplier: float | None = option(None, "Noise over sensitivity, instead of --epsilon.", metavar="S")
    delta: float = option(1e-5, "Delta of the guarantee; below 1/n.", metavar="D")
    epochs: float | None = option(None, "Expected passes over the records.", metavar="N", shown="15")
    steps: int | None = option(None, "Noisy steps, instead of --epochs.", metavar="T")
    batch_size: float | None = option(
        None,
        "Expected batch size; each record enters with probability N/records.",
        metavar="N",
        shown="1600, at most records/4",
    )
    lr: float | None = option(
        None, "Step size.", metavar="X", shown="by optimizer: sgd 1, momentum 0.1, adam 0.002, adagrad 0.05"
    )
    optimizer: str = option(
        "sgd", "Optimizer; all have the same guarantee.", choices=("sgd", "momentum", "adam", "adagrad")
    )
    schedule: str = option(
        "constant", "Step size over the run: constant, or down to zero.", choices=("constant", "linear", "cosine")
    )
    average: str = option(
        "none",
        "The run ends with the last weights, or with an exponential or polynomial average of all, at no cost.",
        choices=("none", "ema", "poly"),
    )
    accountant: str = option(
        "pld",
        "Accountant of the certified figure, and of the budget; clt adds its approximation as nominal, and satisfies none.",
        choices=ACCOUNTANTS.keys(),
    )
    budget_stop: bool = option(
        False, "With --noise-multiplier and --epsilon: end before the step that would exceed the budget."
    )
    eval_private: float | None = option(
        None, "Measure accuracy on the private records instead of the test split, for this epsilon.", metavar="E"
    )
    stop_at: float | None = option(None, "End once accuracy, measured ten times in a run, reaches this.", metavar="X")
    augment: str = option(
        "none",
        "Average each record's gradient over fixed copies of an image, before the filter: at no cost but time.",
        choices=("none", "flip", "shift", "shift-flip"),
    )
    centre: float | None = option(
        None, "Centre features at their noisy mean, for this part of the budget; 0.05 often pays.", metavar="F"
    )
    tuned_on: str | None = option(
        None, "Public records that the settings were searched on, as dpltm tune writes it.", metavar="TEXT"
    )
    adjacency: str = option("add-remove", "Neighbouring relation.", choices=("add-remove", "replace-one"))
    unit: str = option(
        "record", "What is protected: one record, or of ratings all that one user gave.", choices=("record", "user")
    )
    per_user: int | None = option(
        None,
        "Most ratings of a user that count at --unit user; the rest is left out.",
        metavar="K",
        shown=str(PER_USER),
    )
    noise: str = option(
        "secure",
        "secure: cryptographic bits; fast: statistical bits; nominal: as much noise as the tanh paper would add.",
        choices=("secure", "fast", "nominal"),
    )
    device: str = option("cpu", "Where the network trains; the noise is drawn on the CPU.", choices=("cpu", "cuda"))
    precision: str = option(
        "float32",
        "Of the passes through the network; norms, sums and noise are as before, and so is the bound.",
        choices=("float32", "bfloat16"),
    )
    compile: bool = option(False, "Compile the element-wise filter (tanh, sigmoid): slower to start, faster to run.")
    physical_batch: int | None = option(
        None, "Most records in the network at once, whatever the batch size.", metavar="N", shown="what takes 128 MiB"
    )
    seed: int = option(0, "Decides starting weights of --dense; never the noise or the sampling.", metavar="N")
    out: str | None = option(None, "Folder to write.", metavar="DIR", shown="NAME.run")
    ledger: str | None = option(
        None, "Ledger file.", metavar="FILE", shown="SET/ledger.jsonl, or DIR/ledger.jsonl for --dense"
    )
    dry_run: bool = option(False, "Check everything and print the noise and the epsilon it would spend.")


def command(options: TrainOptions, call: Call) -> None:
    """Runs ``dpltm train`` and prints its answer."""
    console = Console(call.json, call.quiet)
    body = run(options, console)
    console.result(body, lambda rich: _show(rich, body))


def run(options: TrainOptions, console: Console) -> dict[str, Any]:
    """Plans, enters the event, trains, writes the run; returns the JSON answer.

    Raises:
        DpltmError: bad input or too small a budget, before any budget is spent.
    """
    from dpltm.tickets.files import check_free, new_folder
    from dpltm.tickets.ledger_file import open_ledger

    check_options(options)
    start = find_start(options, console)
    out = Path(options.out) if options.out else _default_out(options, start)
    check_free(out)
    shared = _shared_ledger(options, start)
    # read once: what it holds now is what is planned on
    ledger = None if shared is None else open_ledger(shared, links=options.ledger is not None)
    before = () if ledger is None else ledger.events
    plan = make_plan(options, start, before, console)
    if options.dry_run:
        return _dry_run(plan, before, options)
    if options.compile:
        console.say("compiling the filter")
    prepared = _prepare(plan, options, console)
    own = free_name(str(out), ".ledger.jsonl")  # in sight from the start: whatever ends the run, what it entered stays
    with new_folder(out) as folder:
        ledger = ledger or open_ledger(own)
        for event in (*plan.lineage, plan.event):
            ledger.append(event)
        if plan.centre is not None:
            plan = _centred(plan, plan.centre, options, console)
            prepared = _prepare(plan, options, console)
        seconds, metrics = _train(plan, prepared, ledger, options, console)
        privacy = _privacy(plan, ledger.events, options, metrics[-1]["step"])
        body = _answer(plan, out, seconds, metrics, privacy)  # of which the run keeps what may be published
        _write(folder, plan, options, metrics, ledger, body)
    if shared is None:
        own.unlink()  # the run holds its copy now
    console.say(f"wrote {out}")
    return body


def _prepare(plan: Plan, options: TrainOptions, console: Console) -> NoisyGradients:
    """The training before its first draw: what cannot be trained is refused here, and nothing is spent yet."""
    from dpltm.noise import FastSource, SecureSource
    from dpltm.training import NoisyGradients, cross_entropy, mean_cross_entropy, user_cross_entropy

    model = plan.start.model.to(options.device)
    if plan.dataset.test is not None and not plan.evaluations:
        inputs(plan.dataset.test, plan.dataset, console)  # features that cannot be had are missed now
    if plan.centre is not None:
        inputs(plan.dataset.train, plan.dataset, console)
    augment: Augmentation = options.augment  # type: ignore[assignment]
    source = records(plan.dataset.train, plan.dataset, options.device, console, augment)
    loss = cross_entropy if augment == "none" else mean_cross_entropy
    loss = loss if plan.dataset.unit == "record" else user_cross_entropy
    noise = FastSource() if options.noise == "fast" else SecureSource()
    return NoisyGradients(model, plan.start.mask, loss, source, plan.config, sampling=SecureSource(), noise=noise)


def _centred(plan: Plan, event: GaussianEvent, options: TrainOptions, console: Console) -> Plan:
    """The plan with features centred at their mean, which is released here. The event is on disk already."""
    import numpy as np
    import torch

    from dpltm.features.centre import release_mean
    from dpltm.noise import FastSource, SecureSource

    found, x = plan.dataset.feature_map, inputs(plan.dataset.train, plan.dataset, console)
    assert found is not None
    rows = (torch.from_numpy(np.array(x[start : start + MEANT])) for start in range(0, len(x), MEANT))
    noise = FastSource() if options.noise == "fast" else SecureSource()
    centre = release_mean(rows, found.features, plan.dataset.records, event.mechanism.noise_std, noise)
    return replace(plan, dataset=replace(plan.dataset, feature_map=found.at(centre)))


def _train(
    plan: Plan, prepared: NoisyGradients, ledger: Ledger, options: TrainOptions, console: Console
) -> tuple[float, list[dict[str, Any]]]:
    """Trains in place; returns seconds and what was noted on the way. The events are on disk already."""
    from dpltm.privacy.accountants import certified_by
    from dpltm.privacy.odometer import Odometer
    from dpltm.privacy.parts import OnRecord
    from dpltm.privacy.report import json_figure
    from dpltm.training import descend

    mechanism = plan.event.mechanism
    steps, metrics = mechanism.steps, []
    earlier = OnRecord(plan.records, ledger.touching(plan.records)[:-1])  # all but this training
    score, error = _score(plan, options.device, console), _rating_error(plan, options.device, console)
    odometer = Odometer(earlier, mechanism, options.delta, certified_by(options.accountant))
    with console.progress("training under DP", steps) as step:

        def progress(done: int) -> bool:
            spent = odometer.after(done)
            note = f"epsilon so far {figure(spent)}"
            measured = None
            if done in odometer.steps:
                measured = score(done == steps)
                metrics.append({"step": done, "epsilon": json_figure(spent), "accuracy": measured})
                note += "" if measured is None else f", accuracy {measured:.2%}"
                if error is not None:
                    off = error()
                    metrics[-1]["rmse"] = json_figure(off)
                    note += f", rmse {off:.4g}"
            step(done, note)
            return options.stop_at is not None and measured is not None and measured >= options.stop_at

        began = time.perf_counter()
        descend(prepared, progress)
        plan.start.model.to("cpu")
        return time.perf_counter() - began, metrics


def _score(plan: Plan, device: str, console: Console) -> Callable[[bool], float | None]:
    """What measures accuracy at a checkpoint; its argument says whether it is the last.

    On the private records it releases a noisy count, at every checkpoint or at the last alone: each with the noise of the
    event that the plan made for it, which is on disk, and of no other. None of them is left where none is paid for.
    """
    from dpltm.generation import accuracy, count_correct
    from dpltm.noise import SecureSource, two_sided_geometric

    model = plan.start.model
    if plan.evaluations:
        x, y = tensors(plan.dataset.train, plan.dataset, device, console)
        events = iter(plan.evaluations)

        def release(last: bool) -> float | None:
            if not last and len(plan.evaluations) == 1:
                return None
            event = next(events)
            count = count_correct(model, x, y) + two_sided_geometric(SecureSource(), event.mechanism.epsilon)
            return min(max(count / plan.dataset.records, 0.0), 1.0)

        return release
    if plan.dataset.test is None:
        return lambda _: None
    test = tensors(plan.dataset.test, plan.dataset, device, console)
    return lambda _: accuracy(model, *test)


def _rating_error(plan: Plan, device: str, console: Console) -> Callable[[], float] | None:
    """What measures by how many stars the network is wrong on the test split; None where there are no ratings there."""
    from dpltm.evaluation import root_mean_squared_error

    if not plan.dataset.rated or plan.dataset.test is None or plan.evaluations:
        return None
    test = tensors(plan.dataset.test, plan.dataset, device, console)
    return lambda: root_mean_squared_error(plan.start.model, *test)


def _privacy(plan: Plan, held: tuple[Event, ...], options: TrainOptions, taken: int) -> PrivacyReport:
    """The report on the records that were trained on, from all that the ledger holds."""
    from dpltm.privacy.events import TrainingEvent
    from dpltm.privacy.ledger import touching
    from dpltm.privacy.report import report

    notes, events, mechanism = list(plan.notes), touching(held, plan.records), plan.event.mechanism
    trained = sum(isinstance(event, TrainingEvent) for event in events)
    if trained > 1:
        notes.append(
            f"{trained} training runs on these records are in the ledger; epsilon covers all of them together"
        )
    if taken < mechanism.steps:
        notes.append(
            f"--stop-at ended training after {taken} of {mechanism.steps} steps; the ledger keeps all of them"
        )
    if options.ledger is None:
        notes.append(OTHERS)
    if plan.evaluations:
        notes.append(
            f"accuracy is that on the training records, with noise; its epsilon of {options.eval_private:g} is included"
        )
    elif plan.dataset.test is not None:
        notes.append("accuracy is measured on the test split, which is declared separate from the private records")
    if plan.centre is not None:
        notes.append(
            f"features are centred at their noisy mean, released for {100 * (options.centre or 0):g} % of the budget"
        )
    if options.noise == "fast":
        notes.append("--noise fast draws noise from a generator that is not cryptographic")
    if options.noise == "nominal":
        notes.append(
            "--noise nominal adds as much noise as the paper would; the certified epsilon is what that is worth"
        )
    return report(events, options.delta, mechanism.adjacency, notes, options.accountant, mechanism.unit, held)


def _answer(
    plan: Plan, out: Path, seconds: float, metrics: list[dict[str, Any]], privacy: PrivacyReport
) -> dict[str, Any]:
    return {
        "run": str(out),
        **_facts(plan),
        "steps_taken": metrics[-1]["step"],
        "seconds": seconds,
        "accuracy": metrics[-1]["accuracy"],
        **({"rmse": metrics[-1]["rmse"]} if "rmse" in metrics[-1] else {}),
        "privacy": privacy.to_json(),
    }


def _facts(plan: Plan) -> dict[str, Any]:
    """The public facts of a training that both an answer and a dry run give."""
    tickets, event, mechanism = plan.start.tickets, plan.event, plan.event.mechanism
    return {
        "ticket_set": None if tickets is None else tickets.label,
        "round": plan.start.round,
        "steps": mechanism.steps,
        "sampling_rate": mechanism.sampling_rate,
        "noise_multiplier": mechanism.noise_multiplier,
        "noise_std": plan.config.noise_std,
        "filter": event.filter,
        "sensitivity": mechanism.sensitivity,
        "live": event.live,
        "density": plan.start.mask.density,
        "optimizer": plan.config.optimizer,
        "lr": plan.config.lr,
        "schedule": plan.config.schedule,
        "average": plan.config.average,
        "centre": None if plan.centre is None else {"noise_multiplier": plan.centre.mechanism.noise_multiplier},
        "augment": plan.augment,
        "features": None if plan.dataset.feature_map is None else plan.dataset.feature_map.text,
    }


def _dry_run(plan: Plan, before: tuple[Event, ...], options: TrainOptions) -> dict[str, Any]:
    events = (*before, *plan.lineage, plan.event)
    return {
        "dry_run": True,
        **_facts(plan),
        "privacy": _privacy(plan, events, options, plan.event.mechanism.steps).to_json(),
    }


def _write(
    folder: Path,
    plan: Plan,
    options: TrainOptions,
    metrics: list[dict[str, Any]],
    ledger: Ledger,
    body: dict[str, Any],
) -> None:
    """Writes the run into its staging folder, with a copy of the ledger's events on these records."""
    from dpltm.privacy.event_json import ref_to_json
    from dpltm.tickets.files import write_json
    from dpltm.tickets.ledger_file import copy_events
    from dpltm.tickets.published import published
    from dpltm.tickets.run import write_run

    spec, tickets = plan.start.spec, plan.start.tickets
    config = {
        "model": spec.text,
        "features": spec.features,
        "classes": spec.classes,
        "bounds": list(plan.dataset.bounds),
        "records": ref_to_json(plan.records),
        "unit": plan.event.mechanism.unit,
        "ticket_set_id": None if tickets is None else tickets.id,
        "round": plan.start.round,
        "expected_batch": plan.config.expected_batch,
        "options": recorded(options),
        "resolved": published(_facts(plan)),
    }
    write_run(folder, config, plan.start.model, plan.start.mask, metrics, plan.dataset.feature_map)
    told = (plan.records, *plan.sources)
    copy_events(
        folder / "ledger.jsonl",
        (
            event
            for event in ledger.events
            if any(event.dataset.may_overlap(ref) for ref in told) or tells_of(event, plan.dataset.feature_map)
        ),
    )
    write_json(folder / "result.json", published(body))


def _shared_ledger(options: TrainOptions, start: Start) -> Path | None:
    """The ledger that outlives the run: the one that was named, or the ticket set's; None for the run's own."""
    if options.ledger is not None:
        return Path(options.ledger)
    from dpltm.tickets.store import is_bundled

    if start.tickets is None or options.dense or is_bundled(start.tickets.path):
        return None
    return start.tickets.ledger_path


def _default_out(options: TrainOptions, start: Start) -> Path:
    name = "dense" if options.dense else f"round{start.round}"
    stem = (
        Path(options.dataset or "data").stem
        if start.tickets is None
        else start.tickets.path.name.removesuffix(".tickets")
    )
    return free_name(f"{stem}-{name}", ".run")


def _show(rich: RichConsole, body: dict[str, Any]) -> None:
    from dpltm.cli.show import show_pairs, show_privacy

    show_pairs(
        rich,
        "would train" if body.get("dry_run") else f"trained {body['run']}",
        {k: round(v) if k == "seconds" else v for k, v in body.items() if k not in ("run", "dry_run")},
    )
    show_privacy(rich, body["privacy"])
