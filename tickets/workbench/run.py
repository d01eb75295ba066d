"""``dpltm run`` and ``dpltm demo``: a recipe; or three stages from one file, planned before the first begins, and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from dpltm.errors import InputError, as_flags
from dpltm.networks import names_code
from dpltm.options import recorded
from dpltm.options.data import DataOptions
from dpltm.options.network import beside
from dpltm.options.run import DemoRequest, RunRequest
from dpltm.options.select import reads_no_records
from dpltm.privacy.ledger import Ledger, Store
from dpltm.privacy.release import price
from dpltm.progress import SILENT, Progress
from dpltm.records.dataset import Dataset
from dpltm.tickets import files
from dpltm.tickets.checkpoint_files import remove_ended
from dpltm.tickets.feature_files import services
from dpltm.tickets.ledger_file import BESIDE, ledger_of
from dpltm.tickets.workbench.code import own_of
from dpltm.tickets.workbench.recipes import Stages, at, check_options, digest, draw_options, stand_in
from dpltm.tickets.workbench.records import open_dataset
from dpltm.tickets.workbench.stages import generate, select, train
from dpltm.tickets.workbench.sweep import AGAIN, opened, remove, run_recipe
from dpltm.training.artifacts import starting_point
from dpltm.verbs import generate as generation
from dpltm.verbs import select as selection
from dpltm.verbs import train as training

DEMO: Mapping[str, Any] = {
    "generate": {"dataset": "digits", "subset": "0.0:0.5", "provenance": "public", "rounds": 10, "iterations": 250,
                 "batch-size": 64, "threads": 1, "name": "digits"},
    "select": {"score": "additive"},
    "train": {"dataset": "digits", "subset": "0.5:1.0", "filter": "tanh"},
}  # fmt: skip
"""The three stages of ``dpltm demo``."""

STAGES: Mapping[str, Callable[[Any, Progress], dict[str, Any]]] = {
    "generate": generate, "select": select, "train": train,
}  # fmt: skip
"""In their order, on files; the epsilon of each includes what the ledger holds already."""

DECIDED = ("seed", "eps1", "epsilon", "delta")
"""Keys of [run] in the place of those of the stages."""


def run_file(path: Path, options: RunRequest, progress: Progress) -> dict[str, Any]:
    """Run a recipe or three stages, or price it with ``dry_run``; return the answer. All is checked first."""
    document = files.read_toml(path)
    several = bool({"recipe", "arm"} & document.keys())
    for flag in ("epsilon", "delta", "split", "seed") if several else ("seeds", "quick", "jobs", "scheduler"):
        if getattr(options, flag) != getattr(RunRequest, flag):
            kind = "a recipe says it for each of its arms" if several else f"of a recipe, and {path} has no [recipe]"
            raise InputError(f"`{flag}`: {kind}; leave it out")
    return (run_recipe if several else run_stages)(document, path, options, progress)


def demo(options: DemoRequest, out: Path, progress: Progress) -> dict[str, Any]:
    """Run the three stages on the digits inside scikit-learn; return the answer of ``dpltm run``."""
    torch.set_num_threads(1)  # networks this small gain nothing from more, and lose much on a machine that is busy
    progress.say("digits: half of the records are the public source of tickets, the other half are the private data")
    run_options = RunRequest(
        epsilon=options.epsilon, delta=options.delta, seed=options.seed, out=str(out), ledger=str(out / BESIDE)
    )
    return run_stages(DEMO, out, run_options, progress)


def run_stages(document: Mapping[str, Any], path: Path, options: RunRequest, progress: Progress) -> dict[str, Any]:
    """Run the stages that an interrupted attempt did not end; what can be refused is, before the first begins."""
    root = Path(options.out or "dpltm-run")
    places = {"ticket_set": root / "tickets", "run": root / "run"}
    requests = read_stages(document, path, options, root)
    if options.dry_run or not (root / "recipe.json").exists():
        if not files.only_being_written(root / "recipe.json"):
            files.check_free(root)
        plan = plan_stages(requests, open_dataset)
    if options.dry_run:
        return as_flags({"dry_run": True, "out": str(root), **plan})
    title = f"three stages {digest([recorded(request) for request in requests.values()])[:16]}"
    with opened(root, title, parts=()) as begun:
        if begun:
            progress.say(f"{root}: {AGAIN}")
        if not (root / "generate.json").exists():  # or what is there is of an attempt that died, without an answer
            remove(places["ticket_set"])
        answers = dict[str, Any]()
        for name, make in STAGES.items():
            kept = places["run"] / "result.json" if name == "train" else root / f"{name}.json"
            if kept.exists():
                answers[name] = files.parse_json(kept, files.read_bytes(kept, files.MAX_JSON))
            else:
                answers[name] = make(requests[name], progress)
            if not kept.exists():  # which may hold revealed scores
                files.write_json(kept, files.published(answers[name]), mode=0o600)
            answers[name] |= {key: str(place) for key, place in places.items() if key in answers[name]}
        for place in places.values():
            remove_ended(place)
    return {"out": str(root), **answers, "privacy": answers["train"]["privacy"]}


def read_stages(document: Mapping[str, Any], path: Path, options: RunRequest, root: Path) -> dict[str, Any]:
    """Return the requests of the stages of a parsed TOML document; unknown tables and decided keys are refused."""
    with at(f"`config` {path}:"):
        if "generate" not in document:
            raise InputError(
                f"no table [generate]; a file of one stage is for its command: dpltm train `config` {path}"
            )
        file = Stages.model_validate(document)
        making, drawing, learning = (beside(section, path) for section in (file.generate, file.select, file.train))
        tickets, account = str(root / "tickets"), {"ledger": options.ledger, "population": options.population}
        model = making.get("model")
        common = {"delta": options.delta, **({"model": model} if names_code(model) else {})}  # which no set holds
        spent = {**account, "eps1": round(options.epsilon * (1 - options.split), 12)}
        of_draw = {} if reads_no_records(drawing) else spent
        of_training = {"ticket": tickets, "out": str(root / "run"), "epsilon": options.epsilon}
        starts = {
            "generate": (making, {"seed": options.seed, "out": tickets, **common, **account}),
            "select": (draw_options(drawing, learning), {"set": tickets, **common, **of_draw}),
            "train": (learning, {**of_training, **common, **account}),
        }
        return {name: check_options(name, *start, DECIDED) for name, start in starts.items()}


def plan_stages(requests: Mapping[str, Any], load: Callable[[DataOptions], Dataset]) -> dict[str, Any]:
    """Return what the stages would spend, planned on a copy of their ledger with a stand-in for the set; refuse what any
    of them would, before hours of generation."""
    making, drawing, learning = requests.values()
    private = load(learning)
    book, watching = ledger_of(learning.dataset, learning, private.noun).book, services(SILENT)
    ledger = Ledger(unit=private.noun, store=Store(book))
    with at("[generate]"):
        model = own_of(making.model, making)
        generated = generation.plan(load(making), making, ledger, watching, model=model)
        tickets = stand_in(generated, ledger.declare_once(*generated.entries))
    with at("[select]"):
        if drawing.rule == "mechanism":
            ledger.declare(selection.plan(tickets, load(drawing), drawing, ledger, watching).entry)
        elif (provenance := generated.provenance) != "public":
            raise InputError(f"`rule`: {drawing.rule} needs public accuracies, and [generate] says {provenance}")
    with at("[train]"):
        # whichever wins: the sparsest has least room for an audit, and the densest may cost most
        for round in (len(tickets.body.tickets) - 1, 1):
            start, records = starting_point(tickets, private, learning, round=round)
            planned = training.plan(training.settle(start, records, learning, ledger, watching), ledger.book)
            price(planned, ledger.book)
        planned.rehearse()
    return {
        "tickets_from": making.dataset,
        "private_records": learning.dataset,
        "rounds": making.rounds,
        "eps1": drawing.eps1,
        "privacy": training.stated(planned).to_json(),
    }
