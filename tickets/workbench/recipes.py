"""Reads a recipe from a TOML document: the form of its tables, what they mean together, and what records say of them.

All that is wrong is told at once, in each of the three rounds.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from dpltm.errors import DpltmError, InputError
from dpltm.experiments import LATENT_STAGES, SHARED_WITH_SEARCH, Arm, Recipe, Section
from dpltm.gone import instead
from dpltm.local import latent as latent_options
from dpltm.networks import model_spec
from dpltm.options import resolve, section_problems
from dpltm.options.data import DataOptions, data_options
from dpltm.options.generate import GenerateRequest
from dpltm.options.select import SelectRequest, reads_no_records
from dpltm.options.tickets import TransferRequest
from dpltm.options.train import TrainRequest
from dpltm.options.tune import TuneRequest
from dpltm.privacy.entry import Part
from dpltm.privacy.ledger import Ledger
from dpltm.records.dataset import Dataset
from dpltm.records.units import at_unit
from dpltm.tickets.files import read_toml
from dpltm.tickets.workbench import latent
from dpltm.training.least_squares import NEEDS_FEATURES
from dpltm.verbs import generate, select, train, transfer, tune

MAX_SEEDS, MAX_ARMS = 1000, 1000
"""More is taken for a slip of the finger."""


@dataclass(frozen=True)
class Command:
    """One command whose options a recipe holds.

    Attributes:
        decided: keys that a recipe decides itself, beside ``DECIDED``: by its seeds, or since an arm's search is for its
            own training.
        beside: key of its tables that names a set, and is no option.
    """

    request: type[Any]
    check: Callable[[Any], object]
    decided: frozenset[str] = frozenset()
    beside: str | None = None


def _check_training(request: TrainRequest) -> None:
    train.check_options(request)
    if request.ticket is not None and request.model is not None:
        raise InputError("`model`: the ticket set decides the network; leave `model` out")


def _nothing_more(request: object) -> None:
    """Its options say all by themselves."""


DECIDED = frozenset({"ledger", "population", "out", "dry-run", "name", "threads", "set", "ticket", "dense", "lineage",
                     "scheme", "messages"})  # fmt: skip
"""Keys that a recipe decides itself: by its arms."""

_SEED = frozenset({"seed"})

COMMANDS: Mapping[str, Command] = {
    "train": Command(TrainRequest, _check_training, _SEED),
    "select": Command(SelectRequest, select.check_options),
    "tune": Command(TuneRequest, tune.check_request, frozenset(SHARED_WITH_SEARCH) - {"model"}, "tickets"),
    "generate": Command(GenerateRequest, generate.check_options),
    "transfer": Command(TransferRequest, _nothing_more, _SEED, "from"),
    "latent scheme": Command(latent_options.SchemeRequest, latent.answer_of),
    "latent encode": Command(latent_options.EncodeRequest, _nothing_more),
    "latent train": Command(latent_options.TrainRequest, latent.check_server_options, _SEED),
}
"""By name."""

SHARED = ("train", "select", "tune")
"""Commands whose options all arms can share."""

REMEMBERED = ("model", "features")
"""Options that ticket sets remember: where a table that all arms share says one, it is for arms without a set."""

EXCLUSIVE = (("epochs", "steps"), ("epsilon", "noise-multiplier"))
"""One of each: where a table overrides another, the one it names takes the other's place."""

TRAINING_KEYS = ("iterations", "batch-size", "lr", "rewind")
"""Options that --quick sets only on ticket sets that something is trained for."""

_LAYER = {**dict(zip(SHARED, SHARED, strict=True)), "latent": {stage: f"latent {stage}" for stage in LATENT_STAGES}}
"""Tables that the document, its arms and --quick have alike."""

_ARM = {
    "name": str,
    "paper": (int, float, str),
    "tickets": str,
    "round": (int, str),
    "against": str,
    "note": str,
    **_LAYER,
}

_VARIED = (*SHARED, *(f"latent.{stage}" for stage in LATENT_STAGES))
"""Tables whose options may vary."""

_ROW = {**_ARM, "group": str, "varied": (int, float, str, bool)}

_DOCUMENT = {
    "recipe": {"title": str, "source": str, "seeds": int, "notes": list},
    "figure": {"over": str, "x": str, "log": bool, "apart": str},
    "quick": {"seeds": int, "round": int, "tickets": "generate", **_LAYER},
    **_LAYER,
}
"""Form of a document but for its sets and arms: of each key the type or types of its value, its table, or its command."""

_PLAIN = ", with nothing in it but finite numbers, texts, booleans, lists and tables"


def read_recipe(document: Section, path: Path, *, seeds: int | None = None, quick: bool = False) -> Recipe:
    """Return the recipe in a parsed TOML document. InputError names all that is wrong by itself; or else all contradictions.

    Args:
        seeds: None for its own number.
    """
    check_no_problems(path, list(_wrong_form(document)))
    head, over = document.get("recipe", {}), document.get("quick", {}) if quick else {}
    arms = []
    for body in document["arm"]:
        rows = list(_rows(body))
        arms += [_arm(row, document, over) for row in (rows[:1] if quick else rows)]
    recipe = Recipe(
        path,
        head.get("title", ""),
        head.get("source", ""),
        tuple(head.get("notes", ())),
        tuple(arms),
        {name: _quick_set(section, over.get("tickets", {})) for name, section in document.get("tickets", {}).items()},
        seeds if seeds is not None else over.get("seeds", head.get("seeds", 5)),
        {"over": "steps", **document["figure"]} if "figure" in document else None,
        quick,
    )
    problems = list(_wrong_together(recipe))
    if quick and not over:
        problems.append("[quick]: missing; say what `quick` does, such as [quick.train] steps = 20")
    check_no_problems(path, problems)
    quoted = (replace(arm, against=_compared(arm, recipe), paper=_printed(arm.paper, path)) for arm in recipe.arms)
    return replace(recipe, arms=tuple(quoted))


def _printed(paper: Any, path: Path) -> Any:
    """Return a figure; of a text SOURCE.LINE.FIGURE the one of that name in ``sources.toml`` beside the recipe."""
    if not isinstance(paper, str):
        return paper
    figure: Any = read_toml(path.with_name("sources.toml"))
    for key in paper.split("."):
        figure = figure.get(key) if isinstance(figure, dict) else None
    if type(figure) not in (int, float):
        raise InputError(f"`config` {path}: paper: {paper!r:.80} names no figure of sources.toml beside it")
    return figure


def check_no_problems(path: Path, problems: list[str]) -> None:
    """Raise InputError with all of them, if there are any."""
    distinct = list(dict.fromkeys(problems))
    if len(distinct) == 1:
        raise InputError(f"`config` {path}: {distinct[0]}")
    if distinct:
        listed = "; ".join(f"({number}) {problem}" for number, problem in enumerate(distinct, 1))
        raise InputError(f"`config` {path}: {len(distinct)} problems: {listed}")


# --- the form of tables, keys and values ------------------------------------------------------------------------------


def _wrong_form(document: Section) -> Iterator[str]:
    arms, sets = document.get("arm"), document.get("tickets", {})
    if not (arms and isinstance(arms, list) and all(isinstance(body, dict) for body in arms)):
        yield '[[arm]]: missing; say what is trained, as in [[arm]] name = "dense"'
        return
    known = {**_DOCUMENT, "arm": None, "tickets": None}
    for key, value in document.items():
        if key not in known:
            yield f"{key!r}: unknown; known: {', '.join(known)}"
        elif known[key] is not None:
            yield from _wrong(f"[{key}]", value, known[key])
    if not isinstance(sets, dict):
        yield '[tickets]: must be a table of sets, as in [tickets.NAME] dataset = "digits"'
        return
    for name, section in sets.items():
        carried = isinstance(section, dict) and "from" in section
        yield from _wrong(f"[tickets.{name}]", section, "transfer" if carried else "generate")
        if carried and section["from"] not in [*sets]:
            yield f"[tickets.{name}] from: {section['from']!r:.80} is not the name of a set; known: {', '.join(sets)}"
    for number, body in enumerate(arms, 1):
        where = f"[[arm]] {body.get('name', number)!r}"
        problems, rows = list(_wrong(where, body, {**_ARM, "paper": (int, float, str, list), "vary": dict})), []
        if "name" not in body:
            problems.append(f"{where}: has no name")
        try:
            rows = [] if problems else list(_rows(body))
        except InputError as error:
            problems = [f"{where} {error}"]
        yield from problems
        for row in rows:
            yield from _wrong(where, row, _ROW)
            if "latent" in row and {*SHARED, "tickets", "round"} & row.keys():
                yield f"{where} an arm is of dpltm latent, or of dpltm train; not of both"


def _wrong(where: str, value: Any, form: Any) -> Iterator[str]:
    """Yield what is wrong with the form of a value: of a table, of the options of a command, or of one of some types."""
    if isinstance(form, (dict, str)) and not isinstance(value, dict):
        yield f"{where}: must be a table"
    elif isinstance(form, dict):
        for key, part in value.items():
            if key not in form:
                reason = instead(f"{where} {key}")
                yield f"{where} {key}{reason}" if reason else f"{where} {key!r}: unknown; known: {', '.join(form)}"
            else:
                yield from _wrong(f"{where} {key}", part, form[key])
    elif isinstance(form, str):
        command, options = COMMANDS[form], {}
        for key, part in value.items():
            if key == command.beside:
                yield from _wrong(f"{where} {key}", part, str)
            elif key.replace("_", "-") in DECIDED | command.decided:
                yield f"{where} {key}: decided by the recipe; leave it out"
            elif not _is_plain(part):
                yield f"{where} {key}: {part!r:.80} is not allowed here{_PLAIN}"
            else:
                options[key] = part
        yield from (f"{where} {problem}" for problem in section_problems(command.request, options))
    else:
        types = form if isinstance(form, tuple) else (form,)
        if type(value) not in types or not (type(value) is dict or _is_plain(value)):
            yield f"{where}: {value!r:.80} must be of type {' or '.join(kind.__name__ for kind in types)}{_PLAIN}"


def _is_plain(value: object) -> bool:
    """Tell whether a value from TOML can be written as JSON: no date, no nan, no infinity."""
    if isinstance(value, (dict, list)):
        return all(_is_plain(part) for part in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value))


def _rows(body: Section) -> Iterator[dict[str, Any]]:
    """Yield one table for each of the values that vary, whose lists run side by side; named by the first of them."""
    plain = {key: value for key, value in body.items() if key != "vary"}
    if "vary" not in body:
        yield plain
        return
    lists = {key: values if isinstance(values, list) else [values] for key, values in body["vary"].items()}
    if wrong := [key for key in lists if key.rpartition(".")[0] not in _VARIED]:
        raise InputError(f"vary: {wrong[0]!r} is not of the form {'.KEY, '.join(_VARIED)}.KEY")
    if isinstance(body.get("paper"), list):
        lists["paper"] = body["paper"]
    sizes = {len(values) for values in lists.values()}
    if len(sizes) != 1 or not 1 <= max(sizes) <= MAX_ARMS:
        raise InputError(f"vary: lists, and paper if it is one, must be of one length, from 1 to {MAX_ARMS:,}")
    what = next(iter(lists)).rpartition(".")[2]
    for values in zip(*lists.values(), strict=True):
        row = copy.deepcopy(plain)
        for key, value in zip(lists, values, strict=True):
            *tables, name = key.split(".")
            table = row
            for part in tables:
                table = table.setdefault(part, {})
            table[name] = value
        yield row | {"name": f"{body['name']}, {what} {values[0]}", "group": body["name"], "varied": values[0]}


# --- arms and sets ----------------------------------------------------------------------------------------------------


def _arm(body: Section, document: Section, over: Section) -> Arm:
    """Return the arm of a row, with the options of all arms under its own, and those of --quick over them."""
    options = dict[str, Any]()
    for command in SHARED:
        shared, quick = document.get(command, {}), over.get(command, {})
        if "tickets" in body:
            shared, quick = ({k: v for k, v in part.items() if k not in REMEMBERED} for part in (shared, quick))
        elif command == "tune":
            quick = {key: value for key, value in quick.items() if key != "rounds"}
        if command == "train" or command in body:
            options[command] = override(override(shared, body.get(command, {})), quick)
    if "latent" in body:
        layers = [tables.get("latent", {}) for tables in (document, body, over)]
        shared, own, quick = ([layer.get(stage, {}) for stage in LATENT_STAGES] for layer in layers)
        options["latent"] = dict(zip(LATENT_STAGES, map(override, map(override, shared, own), quick), strict=True))
    number = body.get("round")
    if isinstance(number, int):
        number = over.get("round", number)
    elif number is None and "tickets" in body and "select" not in body:
        number = "tuned"
    rest: dict[str, Any] = {key: body.get(key) for key in ("varied", "paper", "tickets", "against", "note")}
    return Arm(name=body["name"], group=body.get("group", body["name"]), round=number, **options, **rest)


def override(under: Section, over: Section) -> dict[str, Any]:
    """``under`` with the options of ``over`` in place; of options that exclude each other, the one in ``over`` stays."""
    given = {key.replace("_", "-"): value for key, value in over.items()}
    gone = {key for pair in EXCLUSIVE for key in pair if any(other in given for other in pair)}
    rest = {name: value for key, value in under.items() if (name := key.replace("_", "-")) not in gone}
    return rest | given


def _quick_set(section: Section, over: Section) -> Section:
    """Return a set with what --quick overrides, as far as that means anything for it."""
    if "from" in section:
        return override(section, {key: over[key] for key in ("dataset", "subset") if key in over})
    untrained = section.get("provenance") == "data-free"
    return override(section, {key: over[key] for key in over if not (untrained and key in TRAINING_KEYS)})


def _compared(arm: Arm, recipe: Recipe) -> str | None:
    """Return the full name of the arm that one is compared with: of a group, the row with the same value."""
    others = (other for other in recipe.arms if other is not arm and arm.against in (other.name, other.group))
    return next((other.name for other in others if arm.against == other.name or arm.varied == other.varied), None)


# --- what they mean together ------------------------------------------------------------------------------------------


def _wrong_together(recipe: Recipe) -> Iterator[str]:
    """Yield what contradicts another table, and what a command refuses of its options."""
    if not 1 <= recipe.seeds <= MAX_SEEDS:
        yield f"seeds: {recipe.seeds} is not from 1 to {MAX_SEEDS}"
    if not recipe.title:
        yield "[recipe] title: missing; say what the experiment is"
    if len(recipe.arms) > MAX_ARMS:
        yield f"[[arm]]: {len(recipe.arms):,} of them, more than {MAX_ARMS:,}"
    counted = Counter(arm.name for arm in recipe.arms)
    yield from (f"[[arm]] {name!r}: named twice" for name, times in counted.items() if times > 1)
    yield from _wrong_figure(recipe)
    for name, section in recipe.tickets.items():
        if len(recipe.chain(name)) > len(recipe.tickets):
            yield f"[tickets.{name}] from: goes round in a circle"
        yield from (
            f"[tickets.{name}] {problem}"
            for problem in _refused("transfer" if "from" in section else "generate", section)
        )
    for arm in recipe.arms:
        yield from (f"[[arm]] {arm.name!r} {problem}" for problem in _wrong_arm(arm, recipe))
        if arm.against is not None and _compared(arm, recipe) is None and not recipe.quick:  # which leaves rows out
            yield f"[[arm]] {arm.name!r} against: no arm {arm.against!r}"


def _wrong_figure(recipe: Recipe) -> Iterator[str]:
    figure = recipe.figure or {"over": "steps"}
    over, apart = figure["over"], figure.get("apart")
    if over not in ("steps", "values"):
        yield f"[figure] over: {over!r} is not one of steps, values"
    if over == "values" and not any(arm.varied is not None for arm in recipe.arms):
        yield "[figure] over: no arm has vary, so there are no values"
    if apart is not None and (over, apart) != ("steps", "dataset"):
        yield '[figure] apart: there is "dataset" alone, where the figure is over steps'


def _wrong_arm(arm: Arm, recipe: Recipe) -> Iterator[str]:
    if arm.latent is not None:
        for stage, section in arm.latent.items():
            yield from (f"latent.{stage}: {problem}" for problem in _refused(f"latent {stage}", section))
        return
    searched, search = arm.search
    named = {"tickets": arm.tickets, "tune tickets": (arm.tune or {}).get("tickets")}
    for place, name in named.items():
        if name is not None and name not in recipe.tickets:
            yield f"{place}: no set {name!r:.80}; known: {', '.join(recipe.tickets) or 'none'}"
    if arm.tickets is None and not (arm.round is None and arm.select is None):
        yield "a round, or a draw, is of tickets; name a set, or leave it out"
    elif (arm.round is not None and arm.select is not None) or (arm.round == "tuned" and arm.tune is None):
        yield f"give one of round and select: which ticket of {arm.tickets} is trained"
    if isinstance(arm.round, str) and arm.round not in ("random", "tuned"):
        yield f"round: {arm.round!r} is neither a number nor random"
    tried = [("round", arm.tickets, arm.round)] if isinstance(arm.round, int) else []
    tried += [
        ("tune rounds", searched, int(part)) for part in str(search.get("rounds", "")).split(",") if part.isdecimal()
    ]
    for place, name, number in tried:
        if name is not None and name in recipe.tickets:
            rounds = recipe.chain(name)[-1].get("rounds", GenerateRequest().rounds)
            if not 0 <= number <= rounds:
                yield f"{place}: {number} is none of the rounds of {name}"
    start: dict[str, Any] = {"dense": True} if arm.tickets is None else {"ticket": "SET@1"}
    yield from (f"train: {problem}" for problem in _refused("train", arm.train, **start))
    if arm.tickets is None and "centre" in arm.train and arm.train.get("features") in (None, "none"):
        yield f"train: `centre`: {NEEDS_FEATURES}"
    if arm.select is not None:
        yield from (f"select: {problem}" for problem in _wrong_draw(arm, arm.select, recipe))
    if arm.tune is not None and "epsilon" not in arm.train:
        yield "tune: searches under a budget; give train an epsilon"
    elif arm.tune is not None:
        start = {} if searched is None else {"set": "SET"}
        yield from (f"tune: {problem}" for problem in _refused("tune", search, **start))


def _wrong_draw(arm: Arm, select: Section, recipe: Recipe) -> Iterator[str]:
    yield from _refused("select", arm.draw)
    spent, budget = select.get("eps1"), arm.train.get("epsilon")
    if select.get("reveal") and budget is not None:
        yield "`reveal`: releases scores with no protection, so no budget holds; leave it out"
    if spent is not None and budget is not None and 0 < budget <= spent:
        yield f"`eps1`: {spent:g} leaves nothing of the budget {budget:g}"
    known = arm.tickets is not None and arm.tickets in recipe.tickets
    if reads_no_records(select) and known and recipe.provenance(str(arm.tickets)) != "public":
        yield f"`rule`: smallest-within needs public accuracies, and {arm.tickets} is no public set"


def _refused(name: str, section: Section, **given: Any) -> list[str]:
    """Return the first thing that a command refuses of its options, if any; what the recipe will give it is there."""
    command = COMMANDS[name]
    needed = {item.name: "X" for item in fields(command.request) if item.metadata["required"] and item.name in DECIDED}
    options = {key: value for key, value in section.items() if key != command.beside}
    try:
        command.check(resolve(command.request, {**needed, **given}, options))
    except DpltmError as error:
        return [str(error)]
    return []


# --- what the records at hand say of them -----------------------------------------------------------------------------

Load = Callable[[DataOptions], Dataset]
"""Reads the records that options name."""


def check_ready(recipe: Recipe, load: Load, ledger: Ledger) -> dict[str, Part]:
    """Read every dataset, check that networks fit, and return each arm's part by name; refuse with all that is missing."""
    records = _Records(recipe, load)
    public, private, units = dict[str, Part](), dict[str, Part](), dict[str, None]()
    for name, section in recipe.tickets.items():
        where, carried = f"[tickets.{name}]", "from" in section
        section = section if carried else {"dataset": "digits", **section}
        dataset = records.read(section, where)
        if dataset is not None and section.get("mode") == "drop-projection":
            records.check_projection(recipe.chain(name)[1], dataset, where)
        if dataset is None or carried:
            continue
        records.check_fit(resolve(GenerateRequest, {}, section, str(recipe.path)), dataset, where)
        if recipe.provenance(name) == "public":
            public[where] = ledger.part(dataset)
    for arm in recipe.arms:
        where = f"[[arm]] {arm.name!r}"
        if arm.latent is not None:
            records.read(arm.latent["encode"], f"{where} latent.encode")
            continue
        dataset = records.read(arm.train, f"{where} train")
        if dataset is not None:
            request = resolve(TrainRequest, {"dense": True}, arm.train, str(recipe.path))
            if arm.tickets is None:
                records.check_fit(request, dataset, f"{where} train")
            with records.noting(f"{where} train"):
                dataset = at_unit(dataset, request.per_unit)
                train.sampling_of(request, dataset)
            private[arm.name] = ledger.part(dataset)
            units[dataset.unit] = None
            records.problems += [f"{where} train {problem}" for problem in _unsuitable(dataset, units)]
        if arm.tune is not None and (searched := records.read(arm.tune, f"{where} tune")) is not None:
            public[f"{where} tune"] = ledger.part(searched)
    for where, part in public.items():  # all have one ledger
        shared = next(((name, other) for name, other in private.items() if part.overlaps(other)), None)
        if shared is not None:
            records.problems.append(
                f"{where} `dataset`: {part} is declared public and shares records with {shared[1]}, which [[arm]]"
                f" {shared[0]!r} trains on; give them different `subset` or `dataset`, or make two recipes of it"
            )
    check_no_problems(recipe.path, records.problems)
    return private


def _unsuitable(dataset: Dataset, units: Mapping[str, None]) -> Iterator[str]:
    """Yield why no row can be made of the records of an arm; ``units`` are those of all arms up to it."""
    if len(units) > 1:
        yield f"`unit`: one ledger protects one {' or one '.join(sorted(units))}; make two recipes"
    if dataset.test is None:
        yield f"`dataset`: {dataset.name} has no test records, by which its row is measured"


class _Records:
    """The records of a recipe, each read once, and what is wrong with them."""

    def __init__(self, recipe: Recipe, load: Load) -> None:
        self.recipe, self.load, self.problems = recipe, load, list[str]()
        self.loaded, self.absent = dict[str, Dataset | None](), set[str]()

    @contextlib.contextmanager
    def noting(self, where: str) -> Iterator[None]:
        """Note a refusal within the block, rather than stop at it."""
        try:
            yield
        except DpltmError as error:
            self.problems.append(f"{where} {error}")

    def read(self, section: Section, where: str) -> Dataset | None:
        """Return the dataset that a section names; None, noted once, where it cannot be had."""
        options = data_options(section)
        key, source = repr(sorted(options.items())), str(section.get("dataset"))
        if key not in self.loaded and source not in self.absent:
            self.loaded[key] = None
            try:
                self.loaded[key] = self.load(resolve(DataOptions, {}, options, str(self.recipe.path)))
            except DpltmError as error:
                self.problems.append(f"{where} {error}")
                if not (isinstance(error, InputError) and error.option):  # it is not the options: nothing can be had
                    self.absent.add(source)
        return self.loaded.get(key)

    def check_fit(self, request: GenerateRequest | TrainRequest, dataset: Dataset, where: str) -> None:
        """Note where a network does not take the records as they are, or is too small for the rounds of a generation."""
        if request.features not in (None, "none"):
            return
        with self.noting(where):
            spec = model_spec(request.model or "mlp:300,100", dataset)
            if isinstance(request, GenerateRequest):
                generate.check_schedule(request, spec)

    def check_projection(self, source: Section, dataset: Dataset, where: str) -> None:
        """Note where what is behind a projection will not fit these records, as far as it is known before it is made."""
        public = None if "from" in source else self.read({"dataset": "digits", **source}, where)
        request = resolve(GenerateRequest, {}, source, str(self.recipe.path))
        if public is not None and request.features in (None, "none"):
            with self.noting(where):
                spec = model_spec(request.model or "mlp:300,100", public)
                transfer.without_projection(spec, dataset.features, dataset.classes)
