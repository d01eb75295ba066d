"""What a recipe came to: one row an arm, with what the paper says, the interval over seeds, and certified beside nominal."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli import train
from dpltm.cli.common import figure
from dpltm.cli.console import Console
from dpltm.cli.recipe import Arm, Member, Recipe, grouped, provenance, train_options
from dpltm.cli.recipe_account import together
from dpltm.replicates import Summary, paired, summary
from dpltm.tickets.sweep_files import DIED
from dpltm.tickets.sweep_plot import Line, draw, over_steps

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from dpltm.tickets.sweep_files import SweepFolder

Results = tuple[tuple[Member, dict[str, Any] | None], ...]
"""Every member with what it came to, None where it is not finished."""

ROOMY = 110
"""Characters of a line below which a table leaves out what results.md has as well."""

WIDE = 160
"""Characters of a line where nobody's terminal says how many there are."""

NOT_RUN = "not run"

NOT_MEASURED = "finished, without what the recipe measures"

MOST_NAMES = 2
"""Rows that a note is about beyond which they are only counted."""

CORES = 2
"""Cores that minutes are counted on."""

MINUTES = f"min: minutes of {CORES} cores for all seeds of a row, without what rows share (tickets, searches)"
"""Said where they are: on the terminal of whoever made the sweep."""


def answer(recipe: Recipe, folder: SweepFolder) -> dict[str, Any]:
    """The JSON answer, from what members left in the folder."""
    results = tuple((member, folder.result(member.label)) for member in recipe.members)
    values = {arm.name: _values(recipe, arm, results) for arm in recipe.arms}
    rows = [_row(arm, results, values, folder) for arm in recipe.arms]
    return {
        "recipe": recipe.title,
        "source": recipe.source,
        "config": str(recipe.path),
        "out": str(folder.root),
        "quick": recipe.quick,
        "measure": recipe.measure,
        "seeds": list(range(recipe.seeds)),
        "finished": sum(result is not None for _, result in results),
        "members": len(results),
        "arms": rows,
        "notes": [*recipe.notes, *_notes(recipe), *_terms_note(rows), *_caveats(rows)],
        "privacy": together(recipe, folder),
    }


def finish(recipe: Recipe, folder: SweepFolder) -> dict[str, Any]:
    """The answer, written as ``results.json``, ``results.md`` and, where the recipe asks for one, ``figure.png``."""
    body = answer(recipe, folder)
    lines = _lines(recipe, body, folder)
    body["figure"] = str(folder.root / "figure.png") if lines else None
    shared = _shared(recipe, body)
    folder.write_text("results.json", json.dumps(shared, indent=1, allow_nan=False) + "\n")
    folder.write_text("results.md", markdown(shared))
    if lines and recipe.figure is not None:
        steps = recipe.figure["over"] == "steps"
        draw(
            folder.root / "figure.png", lines, title=recipe.title, x=recipe.figure.get("x", "steps" if steps else "value"),
            measure=recipe.measure, steps=steps, log=recipe.figure.get("log", False),
        )  # fmt: skip
    return body


def _shared(recipe: Recipe, body: dict[str, Any]) -> dict[str, Any]:
    """The answer as the folder keeps it: without durations and folders, and without what members said when they failed."""
    from dpltm.tickets.published import published

    label = {(member.arm.name, member.seed): member.label for member in recipe.members}

    def hole(arm: str, said: dict[str, Any]) -> dict[str, Any]:
        known = said["why"] in (NOT_RUN, NOT_MEASURED, DIED)
        why = said["why"] if known else f"it failed; failed/{label[arm, said['seed']]}.json says why"
        return {"seed": said["seed"], "why": why}

    rows = [
        {**published(row), "missing": [hole(row["name"], said) for said in row["missing"]]} for row in body["arms"]
    ]
    return {**published(body), "arms": rows, "notes": [note for note in body["notes"] if note != MINUTES]}


def _lines(recipe: Recipe, body: dict[str, Any], folder: SweepFolder) -> list[Line]:
    """The lines of the recipe's figure, from what is finished."""
    if recipe.figure is None:
        return []
    rows = {row["name"]: row for row in body["arms"]}
    if recipe.figure["over"] == "steps":
        runs = {arm.name: _runs(recipe, arm, folder) for arm in recipe.arms}
        found = [
            over_steps(name, paths, recipe.measure, figure(rows[name]["privacy"]["certified"]["epsilon"]))
            for name, paths in runs.items()
            if paths
        ]
        return [line for line in found if line is not None]
    lines = []
    for name, arms in grouped(recipe.arms):
        points = [(arm.varied, rows[arm.name]) for arm in arms if isinstance(arm.varied, (int, float))]
        points = [(x, row) for x, row in points if row["mean"] is not None]
        if not points:
            continue
        half = [row["interval"] or 0.0 for _, row in points]
        mean = [row["mean"] for _, row in points]
        low, high = ([m + sign * h for m, h in zip(mean, half, strict=True)] for sign in (-1, 1))
        epsilon = [float(row["privacy"]["certified"]["epsilon"]) for _, row in points]
        ends = dict.fromkeys(figure(pick(epsilon)) for pick in (min, max))
        title = f"{name} (certified epsilon {' to '.join(ends)})"
        lines.append(Line(title, [float(x) for x, _ in points], mean, low, high, epsilon))
    return lines


def _runs(recipe: Recipe, arm: Arm, folder: SweepFolder) -> list[Path]:
    mine = [member.label for member in recipe.members if member.arm is arm]
    return [folder.member(label) / "run" for label in mine if folder.result(label) is not None]


def plan(recipe: Recipe, root: Path, console: Console) -> dict[str, Any]:
    """What would be done: every arm, with the epsilon that it would spend, as far as that does not wait for its tickets."""
    with console.progress("what it would spend", len(recipe.arms)) as step:
        spent = []
        for arm in recipe.arms:
            spent.append(_would_spend(arm, str(recipe.path)))
            step(len(spent))
    return {
        "dry_run": True,
        "recipe": recipe.title,
        "source": recipe.source,
        "out": str(root),
        "quick": recipe.quick,
        "seeds": list(range(recipe.seeds)),
        "members": len(recipe.members),
        "tickets": sorted(recipe.tickets),
        "arms": [
            {
                "name": arm.name,
                "paper": arm.paper,
                "tickets": arm.tickets,
                "dataset": arm.train.get("dataset") if arm.latent is None else arm.latent["encode"].get("dataset"),
                "epsilon": arm.train.get("epsilon") if arm.latent is None else arm.latent["scheme"].get("epsilon"),
                "noise_multiplier": arm.train.get("noise-multiplier"),
                "privacy": privacy,
                "at_most": _at_most(recipe, arm),
            }
            for arm, privacy in zip(recipe.arms, spent, strict=True)
        ],
    }


def _at_most(recipe: Recipe, arm: Arm) -> str:
    """What can be said of an arm's certified epsilon before its tickets are made."""
    if arm.tickets is not None and provenance(recipe.tickets, arm.tickets) == "private":
        return "inf"
    epsilon = arm.train.get("epsilon")
    if arm.latent is not None:
        kept = arm.latent["scheme"].get("protocol", "codebook") == "codebook"
        return f"at most {arm.latent['scheme']['epsilon']:g}" if kept else "more than asked for"
    certain = epsilon is not None and arm.train.get("noise") != "nominal"
    return f"at most {epsilon:g}" if certain else "-"


def _would_spend(arm: Arm, source: str) -> dict[str, Any] | None:
    """Certified and nominal epsilon of one training of the whole network; None where tickets or a search come first."""
    if arm.latent is not None or arm.tickets is not None or arm.tune is not None:
        return None
    options = train_options({**arm.train, "dense": True, "dry-run": True}, source)
    found: dict[str, Any] = train.run(options, Console(quiet=True))["privacy"]
    return found


def show_plan(rich: RichConsole, body: dict[str, Any]) -> None:
    """The same for people."""
    from rich.table import Table

    head = ("arm", "paper", "tickets", "dataset", "epsilon asked for", "noise multiplier", "certified epsilon")
    table = Table(*head, title=f"would run {body['recipe']} in {body['out']}", title_justify="left")
    for row in body["arms"]:
        keys = ("name", "paper", "tickets", "dataset", "epsilon", "noise_multiplier")
        certified = row["at_most"] if row["privacy"] is None else figure(row["privacy"]["certified"]["epsilon"])
        table.add_row(*("-" if row[key] is None else str(row[key]) for key in keys), certified)
    rich.print(table)
    rich.print(f"{body['members']} trainings: {len(body['arms'])} arms, {len(body['seeds'])} seeds")


def _values(recipe: Recipe, arm: Arm, results: Results) -> dict[int, float]:
    """What the arm is measured by, by seed."""
    found = {}
    for member, result in results:
        if member.arm is arm and result is not None:
            value = result["train"].get(recipe.measure)
            if value is not None:
                found[member.seed] = float(value)
    return found


def _row(
    arm: Arm,
    results: Results,
    values: dict[str, dict[int, float]],
    folder: SweepFolder,
) -> dict[str, Any]:
    mine = {member.seed: (member, result) for member, result in results if member.arm is arm}
    done = {seed: result for seed, (_, result) in mine.items() if result is not None}
    missing = [
        {"seed": seed, "why": folder.failure(member.label) or (NOT_RUN if result is None else NOT_MEASURED)}
        for seed, (member, result) in mine.items()
        if seed not in values[arm.name]
    ]
    trained = [result["train"] for result in done.values()]
    first: dict[str, Any] = trained[0] if trained else {}
    own = values[arm.name]
    work = [
        seconds for member, result in mine.values() if result and (seconds := folder.work(member.label)) is not None
    ]
    return {
        "name": arm.name,
        "group": arm.group,
        "varied": arm.varied,
        "note": arm.note,
        "paper": arm.paper,
        "values": {str(seed): value for seed, value in own.items()},
        **_numbers(summary(list(own.values()))),
        "difference": None
        if arm.against is None
        else {"to": arm.against, **_numbers(paired(own, values[arm.against]))},
        "missing": missing,
        "rounds": {str(seed): result["train"].get("round") for seed, result in done.items()},
        "live": _ends([body["live"] for body in trained if body.get("live") is not None]),
        "density": _mean([body["density"] for body in trained if body.get("density") is not None]),
        "steps": first.get("steps"),
        "noise_multiplier": first.get("noise_multiplier"),
        "lr": first.get("lr"),
        "privacy": _largest([body["privacy"] for body in trained]),
        "minutes": round(sum(work) / 60 / CORES) if work else None,
    }


def _numbers(found: Summary) -> dict[str, Any]:
    """A summary as JSON, which has no nan."""
    parts = {"count": found.count, "mean": found.mean, "sd": found.sd, "interval": found.half}
    return {name: None if isinstance(part, float) and math.isnan(part) else part for name, part in parts.items()}


def _ends(values: list[int]) -> list[int] | None:
    """The least and the most of them."""
    return [min(values), max(values)] if values else None


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _largest(reports: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Of the guarantees of an arm's members, each for one release, the weakest."""
    if not reports:
        return None
    return max(reports, key=lambda body: float(body["certified"]["epsilon"]))


def _notes(recipe: Recipe) -> list[str]:
    over = f"means over {recipe.seeds} seeds with 95 % intervals (Student's t)" if recipe.seeds > 1 else "one seed"
    return [
        f"{over}, given what was searched once for all; every epsilon is that of one release, the last one that of all",
        "settings that the recipe fixes were chosen by people who had seen results on these datasets; what dpltm tune"
        " searched, it searched on public records; choosing among the rows by their accuracy is a search as well",
        MINUTES,
    ]


def _terms(privacy: dict[str, Any]) -> str:
    """What a certified epsilon is to be read with (PRIVACY.md section 1)."""
    return "delta {delta:g}, {adjacency}, unit {unit}".format(**privacy["certified"])


def _caveats(rows: list[dict[str, Any]]) -> list[str]:
    """What the rows' own guarantees are to be read with."""
    from dpltm.privacy.report import SEARCH_NOTE

    said: dict[str, list[str]] = {}
    for row in rows:
        for note in () if row["privacy"] is None else dict.fromkeys(row["privacy"]["notes"]):
            if note not in (train.OTHERS, SEARCH_NOTE):  # said of all together
                said.setdefault(note, []).append(row["name"])
    return [_about(names, len(rows)) + note for note, names in said.items()]


def _about(names: list[str], rows: int) -> str:
    """Which rows a note is about; nothing where it is all of them."""
    if len(names) == rows:
        return ""
    return f"{len(names)} of {rows} rows: " if len(names) > MOST_NAMES else f"{' and '.join(map(repr, names))}: "


def _all_terms(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(_terms(row["privacy"]) for row in rows if row["privacy"] is not None))


def _terms_note(rows: list[dict[str, Any]]) -> list[str]:
    """Where rows agree on it, it is said once; else in each."""
    found = _all_terms(rows)
    return [f"certified epsilon: {found[0]}"] if len(found) == 1 else []


def percent(value: float | None, measure: str, digits: int = 2) -> str:
    """An accuracy in percent, an RMSE as it is."""
    if value is None:
        return "-"
    return f"{100 * value:.{digits}f}" if measure == "accuracy" else f"{value:.{digits + 1}f}"


def with_interval(row: dict[str, Any], measure: str) -> str:
    """``97.38 ± 0.18``, or what there is of it."""
    mean = percent(row["mean"], measure)
    return mean if row["interval"] is None else f"{mean} ± {percent(row['interval'], measure)}"


def cells(row: dict[str, Any], body: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table, for people."""
    measure, privacy = body["measure"], row["privacy"]
    certified = "-" if privacy is None else figure(privacy["certified"]["epsilon"])
    nominal = "-" if privacy is None or privacy["nominal"] is None else figure(privacy["nominal"]["epsilon"])
    if privacy is not None and len(_all_terms(body["arms"])) > 1:
        certified += f" ({_terms(privacy)})"
    count = f"{row['count']}/{len(body['seeds'])}" + (" HOLE" if row["missing"] else "")
    change = "" if row["difference"] is None else _change(row["difference"], measure, row["count"])
    paper = "-" if row["paper"] is None else f"{row['paper']:g}"
    live = "-" if row["live"] is None else " to ".join(dict.fromkeys(f"{count:,}" for count in row["live"]))
    return (
        row["name"], paper, with_interval(row, measure), percent(row["sd"], measure), change, count, certified, nominal,
        live, *(() if "minutes" not in row else ("-" if row["minutes"] is None else f"{row['minutes'] or '<1'}",)),
    )  # fmt: skip


def _change(difference: dict[str, Any], measure: str, count: int) -> str:
    """The paired difference; with the number of pairs, where the row has more members."""
    if difference["mean"] is None:
        return "-"
    sign = "+" if difference["mean"] >= 0 else ""
    pairs = "" if difference["count"] == count else f" ({difference['count']} pairs)"
    return f"{sign}{with_interval(difference, measure)}{pairs}"


def columns(body: dict[str, Any]) -> tuple[str, ...]:
    measure = "accuracy, %" if body["measure"] == "accuracy" else "RMSE"
    timed = ("min",) if any("minutes" in row for row in body["arms"]) else ()
    return ("arm", "paper", measure, "sd", "less control", "seeds", "certified epsilon", "nominal", "live", *timed)


def markdown(body: dict[str, Any]) -> str:
    """The table for a document, with what it needs to be read alone."""
    lines = [f"## {body['recipe']}", "", body["source"], "", f"    dpltm run --config {body['config']}", ""]
    head = columns(body)
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_one_line(cell) for cell in cells(row, body)) + " |" for row in body["arms"]]
    holes = [(row["name"], hole) for row in body["arms"] for hole in row["missing"]]
    lines += ["", *(f"- HOLE: {name}, seed {hole['seed']}: {hole['why']}" for name, hole in holes)]
    lines += [f"- {row['name']}: {row['note']}" for row in body["arms"] if row["note"]]
    lines += [f"- {note}" for note in body["notes"]]
    lines += [f"- {note}" for note in _of_all(body)]
    lines.append(f"- all together: certified epsilon {_whole(body)}")
    return "\n".join(lines) + "\n"


def _one_line(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")


def _of_all(body: dict[str, Any]) -> list[str]:
    """What is to be said of all together, and was not said of a row."""
    return [note for note in body["privacy"]["notes"][1:] if not any(said.endswith(note) for said in body["notes"])]


def _whole(body: dict[str, Any]) -> str:
    """The epsilon of all together with its terms; a dash where nothing was released."""
    privacy = body["privacy"]
    value = "-" if float(privacy["certified"]["epsilon"]) == 0 else figure(privacy["certified"]["epsilon"])
    return f"{value} ({_terms(privacy)})"


def show(rich: RichConsole, body: dict[str, Any]) -> None:
    """The table on the terminal."""
    from rich.table import Table

    from dpltm.cli.show import show_notes

    quick = " (quick version: says that it works, and no more)" if body["quick"] else ""
    if not rich.is_terminal:
        rich.width = WIDE
    table = Table(title=f"{body['recipe']}{quick}", title_justify="left")
    rows = [cells(row, body) for row in body["arms"]]
    head = columns(body)
    shown = [at for at in range(len(head)) if at == 0 or any(row[at] not in ("", "-") for row in rows)]
    if rich.width < ROOMY:
        shown = [at for at in shown if head[at] not in ("sd", "live", "min")]
    for at in shown:
        table.add_column(head[at], overflow="fold", min_width=10 if at == 0 else None)
    for row in rows:
        table.add_row(*(row[at] for at in shown))
    rich.print(table)
    for row in body["arms"]:
        for hole in row["missing"]:
            rich.print(f"hole: {row['name']}, seed {hole['seed']}: {hole['why']}", style="bold")
        if row["note"]:
            rich.print(f"- {row['name']}: {row['note']}", style="dim")
    show_notes(rich, body)
    for note in _of_all(body):
        rich.print(f"- {note}", style="dim")
    rich.print(f"all together: certified epsilon = {_whole(body)}", style="bold")
    rich.print(f"wrote {body['out']}/results.json, results.md" + (", figure.png" if body.get("figure") else ""))
