"""Wording of a statement, section by section, in fields and sentences: after NIST SP 800-226 (Near et al. 2025).

Everything here is a function of the statement alone, so a card can be written again from it, and compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpltm.networks.skill import BINS, Skill
from dpltm.privacy.accountants import ACCOUNTANTS
from dpltm.privacy.describe import describe, figure, percent
from dpltm.privacy.entry import RECORD, TRAININGS, entry_from_json
from dpltm.reports.decision import decision
from dpltm.reports.parts import Field, Section, Table, percent_up
from dpltm.reports.statement import precision

PROVENANCE = {
    "data-free": "They depend on no records: they cost nothing.",
    "public": "They were made from records declared public: they cost nothing.",
    "dp": "They were made by a private mechanism, which is among the entries.",
    "private": "They were made from private records with no mechanism: nothing can be certified.",
}

HARDLY = 10.0
"""From this epsilon up a guarantee says little: e^10 is about 22,000."""

MOST_COLUMNS, MOST_ROWS = 12, 100
"""Classes whose confusion matrix, and whose recall and precision, a page has room for; ``result.json`` has those of more."""

GLOSSARY = (
    (
        "differential privacy",
        "What is released would have been nearly as likely without any one of those it protects.",
    ),
    (
        "epsilon, delta",
        "How nearly: no outcome is more than e^epsilon times as likely, but for a chance of about delta.",
    ),
    ("certified, nominal", "Proven by the accountant; claimed by a paper, and not proven."),
    ("entry, ledger", "One release from private records; the list of all on the same people."),
    ("gradient filter", "What limits how much one record can change a step, before noise is added."),
    ("ticket", "A small part of a network that is trained in place of the whole."),
    ("AUC", "How often it ranks one of a class above one of another; guessing has 0.5."),
)

FOR_SCHEMA = " for a schema"
"""Last words of a release that found the bounds or categories of columns."""

_TICKETS = "A lottery ticket is a small part of a network, found by training, pruning and going back to the start."
_CLIPS = "Norm that {} is clipped to."
_LIMITS = {
    "normalize": "Norm that {} is scaled to, the short ones as well.",
    "auto": "Norm that {} is scaled to, the short ones as well, but for gamma.",
    "radial-tanh": "Norm that {} stays below.",
    "per-layer": "Of all layers together: each of L layers is clipped to C / sqrt(L).",
}
"""Meaning of C in filters that do not clip to it, by name."""

_BITS = {
    "secure": "those of a cryptographic generator: AES-256, or ChaCha20 under its keys.",
    "fast": "statistical, not cryptographic: predictable in principle.",
}


def sections(body: Mapping[str, Any], costs: Sequence[str] = ()) -> list[Section]:
    """Return the sections of a statement that have anything in them."""
    entries = [entry_from_json(entry) for entry in body["entries"]]
    rows: list[tuple[str, ...]] = [(str(at), str(one.part), describe(one)) for at, one in enumerate(entries, start=1)]
    head: tuple[str, ...] = ("entry", "records", "what was done")
    if costs:
        rows, head = [(*row, cost) for row, cost in zip(rows, costs, strict=True)], (*head, "epsilon alone")
    ledger = Table("Entries behind this, in their order", head, rows, stacked=True)
    found = ("false alarms", "records found, at most", "a yes is right, at most (prior 50 %)", "the same (prior 10 %)")
    odds = Table("The best attacker", found, list(_odds(body)))
    made = [decision(body),
            Section("In plain words", _in_plain_words(body)),
            Section("What an attacker can do", meaning(body), tables=[odds] if odds.rows else ()),
            Section("The guarantee", fields=list(_guarantee(body))),
            Section("How it was made private", fields=list(_mechanism(body))),
            Section("The entries, line by line", () if rows else ["No entry on private records."],
                    tables=[ledger] if rows else ()),
            Section("The records", fields=list(_records(body))), Section("The network", fields=list(_network(body))),
            Section("What came of it", fields=list(_outcome(body))),
            Section("Made with", fields=[Field(name, str(number)) for name, number in body["versions"].items()]),
            Section("Notes", notes=body["notes"]), Section("Words", fields=list(_glossary(body)))]  # fmt: skip
    return [part for part in made if part]


def _provenance(said: Mapping[str, Any]) -> str:
    """Describe where tickets come from: from the kind alone, whatever else a file says."""
    return PROVENANCE.get(said.get("provenance") or "", "Where they come from is not on record here.")


def _people(body: Mapping[str, Any]) -> str:
    return "records" if body["certified"]["unit"] == RECORD else "persons"


def _mechanisms(body: Mapping[str, Any]) -> set[str]:
    return {mechanism["mechanism"] for entry in body["entries"] for mechanism in entry["mechanisms"]}


def _own_steps(body: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The mechanisms, by name, that the steps of its training are: those of others, such as in front of it, may differ."""
    said, same = body["settings"], ("sampling_rate", "steps", "noise_multiplier")
    steps = (one for entry in body["entries"] for one in entry["mechanisms"] if one["mechanism"] in TRAININGS)
    return {one["mechanism"]: one for one in steps if all(one[name] == said.get(name) for name in same)}


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- sentences ----------------------------------------------------------------------------------------------------------


def _glossary(body: Mapping[str, Any]) -> Iterator[Field]:
    told = {"ticket": body["settings"].get("ticket_set"), "AUC": body["outcome"].get("auc")}
    yield from (Field(name, meaning) for name, meaning in GLOSSARY if told.get(name, True) is not None)


def headline(body: Mapping[str, Any]) -> str:
    """Return the guarantee in one sentence."""
    certified = body["certified"]
    if certified["epsilon"] == "inf":
        return "Nothing is certified: the entries bound no epsilon."
    if certified["epsilon"] == 0:
        return "No privacy is spent: nothing here was computed from private records."
    return (
        f"Certified: ({figure(certified['epsilon'])}, {certified['delta']:g})-differential privacy for one"
        f" {certified['unit']}, {certified['adjacency']}."
    )


def meaning(body: Mapping[str, Any]) -> list[str]:
    """Return what the guarantee means for an attacker, in sentences."""
    certified, unit = body["certified"], body["certified"]["unit"]
    if certified["adjacency"] == "replace-one":
        was = "was used" if unit == RECORD else "was among them"
        asks, thinks = f"which of two {unit}s {was}", f"that the one of two {unit}s {was}, and not the other"
    else:
        whose = "one record was" if unit == RECORD else f"the records of one {unit} were"
        asks, thinks = f"whether {whose} used", f"that {whose} used"
    if body["odds"] is None:
        return [f"No bound holds for an attacker who asks {asks}: he may always be right."]
    sentences = [
        f"Suppose that an attacker thinks it {percent(row['prior'], 0)} likely {thinks}. Once everything was released, he"
        f" guesses right in at most {percent_up(row['at_most'])} of cases; before, in"
        f" {percent(max(row['prior'], 1 - row['prior']), 0)}."
        for row in body["odds"]["right"]
    ]
    if certified["epsilon"] != "inf" and certified["epsilon"] >= HARDLY:
        sentences.append(f"An epsilon of {figure(certified['epsilon'])} is hardly a guarantee.")
    seen = ", the code and every intermediate network" if _mechanisms(body) & TRAININGS else " and the code"
    return [*sentences, f"These are bounds for the strongest attacker, who knows all other records{seen}."]


def _odds(body: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for row in () if body["odds"] is None else body["odds"]["found"]:
        alarms, found = row["false_alarms"], row["at_most"]
        right = (percent_up(precision(found, alarms, prior)) for prior in (0.5, 0.1))
        yield f"{100 * alarms:g} %", percent_up(found), *right


def _in_plain_words(body: Mapping[str, Any]) -> list[str]:
    """Return a few sentences for somebody who knows neither tickets nor differential privacy."""
    said, certified = body["settings"], body["certified"]
    if body["kind"] == "sweep":
        lines = [
            f"An experiment: {said['finished']} of {said['members']} trainings in {said['arms']} rows have ended. Each has"
            " its own guarantee, for the case that it alone is released. The figure here is for all of them together."
        ]
    elif body["kind"] == "tickets":
        made = "no records at all" if said.get("records") is None else f"the records {said['records']}"
        lines = [
            f"A set of {said['rounds']} lottery tickets of a network ({said['model']}), made from {made} by"
            f" {said['criterion']} pruning. {_TICKETS} {_provenance(said)}"
        ]
    elif said.get("steps") is None:
        lines = ["A training under differential privacy, of which not everything is known here."]
    else:
        lines = list(_of_training(body))
    if certified["epsilon"] == "inf":
        cost = "Something was made from private records without protection, so nothing can be certified for them."
    elif certified["epsilon"] == 0:
        cost = "No private record was touched, so it may be released without a thought for privacy."
    else:
        little = " So large an epsilon is hardly a guarantee." if certified["epsilon"] >= HARDLY else ""
        cost = (
            f"This costs epsilon {figure(certified['epsilon'])} at delta {certified['delta']:g}: for all that it was made"
            f" of, the entries below. What else was released about the same people is not in this figure.{little}"
        )
    return [*lines, cost]


def _of_training(body: Mapping[str, Any]) -> Iterator[str]:
    said, who = body["settings"], _people(body)
    part = "" if said.get("density") in (None, 1.0) else f", of whose weights {percent(said['density'])} are live,"
    network = f"A network ({said['model']}){part}" if said.get("model") else f"A network{part}"
    took = (
        f"all {who}"
        if said.get("sampling_rate") == 1 and "banded-sgd" not in _own_steps(body)
        else f"a random part of the {who}"
    )
    each = "each group of them" if said.get("groups") is not None else "each of them"
    yield (
        f"{network} was trained on the records {said['records'] or said['dataset']} in {said['steps']:,} steps. Each step"
        f" took {took}, limited what {each} could contribute, and added random noise to the sum."
    )
    if said.get("per_unit") is not None:
        yield f"A person may have several records; {said['per_unit']:,} of each person were used at most."
    if said.get("ticket_set") is not None:
        yield f"It started from a ticket, round {said.get('round')} of a set. {_TICKETS} {_provenance(said)}"
    kinds, released = _mechanisms(body), dict[str, None]()
    if "search" in kinds and said.get("tries") is not None:
        yield (
            f"It is the best of a secret number of trainings, {said['tries']:.3g} in the mean, each at one of"
            f" {said.get('tried')} settings drawn at random. The figure pays for all of them."
        )
    for entry in body["entries"]:
        own = {mechanism["mechanism"] for mechanism in entry["mechanisms"]}
        if own & {"gaussian", "laplace"} and not own & TRAININGS:
            released[str(entry["words"])] = None
    if released:
        yield f"Released with noise of their own, and counted as well: {', '.join(released)}."
    if "selection" in kinds:
        yield "The ticket was drawn at random, better ones with a larger chance, so the choice is private too."


# --- fields -------------------------------------------------------------------------------------------------------------


def _guarantee(body: Mapping[str, Any]) -> Iterator[Field]:
    certified, nominal, kinds, unit = body["certified"], body["nominal"], _mechanisms(body), body["certified"]["unit"]
    yield Field("certified epsilon", figure(certified["epsilon"]), "Proven, and rounded up. A smaller one is better.")
    if nominal is not None:
        claim = f"Claimed by {nominal['source']} and not proven. Shown beside the certified one, never instead of it."
        yield Field("nominal epsilon", figure(nominal["epsilon"]), claim)
    yield Field(
        "delta", f"{certified['delta']:g}",
        f"For any outcomes, their chance with one {unit} is at most e^epsilon times that without, plus delta. It should be"
        f" far below 1/n, where n is the number of {_people(body)}.",
    )  # fmt: skip
    alone = "One record. Whoever has several records is protected for each of them alone."
    yield Field("unit of privacy", unit, alone if unit == RECORD else f"All records of one {unit} together.")
    differ = (
        f"Neighbouring datasets differ by one {unit} more or less." if certified["adjacency"] == "add-remove" else
        f"Neighbouring datasets differ by one {unit} replaced by another. Sensitivities are doubled for it."
    )  # fmt: skip
    yield Field("neighbouring relation", certified["adjacency"], differ)
    with_versions = ", ".join(f"{name} {number}" for name, number in body["computed_with"].items())
    method = ACCOUNTANTS[certified["accountant"]].help if certified["accountant"] in ACCOUNTANTS else ""
    yield Field("accountant", f"{certified['accountant']} ({with_versions})", method)
    trust = "Whoever trains sees the records. The guarantee is about what is released afterwards."
    yield Field("model of trust", "central", trust)
    if (
        "search" in kinds
    ):  # privacy-model.md 5.7: its price rests on nobody seeing the other tries, nor how many there were
        secret = "The other tries, their scores and how many there were must stay secret."
        yield Field("what may be released", "the best try alone", secret)
    elif kinds & TRAININGS:
        covered = "The figure counts every step, so intermediate networks are covered as well as the last one."
        yield Field("what may be released", "all noisy steps", covered)
    paid = sum(entry["kind"] in ("release", "local") for entry in body["entries"])
    yield Field("releases counted", str(paid), "Each stands in the list below.")
    if body["kind"] == "run":
        yield (
            Field("cost of tuning", "paid for", "A private search is among the entries; the certified epsilon includes it.")
            if "search" in kinds else
            Field("cost of tuning", "not counted", "No search is on record. If settings, seeds or stopping were chosen by"
                  " private scores, that is not covered.")
        )  # fmt: skip
    if (budget := body["settings"].get("budget")) is not None:
        within = certified["epsilon"] != "inf" and certified["epsilon"] <= budget
        stands = "within it" if within else "larger than it"
        yield Field("budget asked for", f"{budget:g}", f"The certified epsilon is {stands}.")


def _mechanism(body: Mapping[str, Any]) -> Iterator[Field]:
    said, taken = body["settings"], body["outcome"].get("steps_taken")
    if said.get("sampling_rate") is None:
        return
    one = "record" if body["certified"]["unit"] == RECORD else "person"
    if "banded-sgd" in _own_steps(body):
        turns = (
            "By a hash of its own each record is in one part. Parts take turns; in a step of its part it enters by a"
        )
        turns += " coin. Noise is correlated over as many steps as there are parts."
        yield Field("sampling", f"cyclic Poisson, rate {said['sampling_rate']:.6g}", turns)
    elif said["sampling_rate"] == 1:
        everybody = "Nothing is gained by sampling: every step sees everybody."
        yield Field("sampling", f"none: all {one}s, each step", everybody)
    elif "allocated-sgd" in _own_steps(body):
        times = round(said["sampling_rate"] * said["steps"])
        before = f"In which steps a {one} takes part was drawn before the first, and is secret: {times:,} in all."
        yield Field("sampling", f"random allocation, {times:,} of {said['steps']:,} steps", before)
    elif (cut := _own_steps(body).get("truncated-sgd")) is not None:
        coin = f"Each {one} enters each step by a coin of its own. Where too many do, some are left out at random;"
        limit = f"rate {said['sampling_rate']:.6g}, {cut['truncated_batch_size']:,} {one}s at most"
        yield Field("sampling", f"truncated Poisson, {limit}", f"{coin} what that costs is part of delta.")
    else:
        coin = f"Each {one} enters each step by a coin of its own. The size of a batch is private."
        yield Field("sampling", f"Poisson, rate {said['sampling_rate']:.6g}", coin)
    if said.get("per_unit") is not None:
        yield Field(
            "records of a person", f"{said['per_unit']:,} at most", "Of each person; further ones are left out."
        )
    early = f"{taken:,} were taken, all are paid for." if isinstance(taken, int) and taken != said["steps"] else ""
    yield Field("noisy steps", f"{said['steps']:,}", early)
    grouped = said.get("groups") is not None
    what = "the mean gradient of each group of records" if grouped else "each gradient"
    yield Field("gradient filter", str(said["filter"]), f"What {what} goes through before the sum.")
    if (norm := said.get("clip_norm")) is not None:
        does = _LIMITS.get(str(said["filter"]).partition("(")[0], _CLIPS)
        moves = "quantile=" in str(said["filter"])
        meaning = does.format(what) + (
            " It follows a quantile of norms, by counts that share the noise." if moves else ""
        )
        yield Field("clip norm", f"{norm:g} at first" if moves else f"{norm:g}", meaning)
    else:
        yield Field("clip norm", "none", "This filter clips nothing; the sensitivity below is that of its range.")
    claimed = said.get("nominal_sensitivity")
    source = "" if claimed is None else f" The filter's source claims {claimed:.4g}."
    bound = f"Certified L2 bound of what a neighbour changes, over {said['live']:,} live coordinates.{source}"
    yield Field("sensitivity of the sum", f"{said['sensitivity']:.6g}", bound)
    yield Field(
        "noise multiplier", f"{said['noise_multiplier']:.6g}", "Standard deviation of the noise over sensitivity."
    )
    yield Field(
        "noise", f"Gaussian, standard deviation {said['noise_std']:.6g}",
        "Added to the sum on every live coordinate, rounded to a grid after it was added. Its bits are "
        + _BITS.get(said.get("noise_bits") or "", "of a generator that is not on record."),
    )  # fmt: skip
    if (divisor := said.get("divisor")) is not None:
        by = "number of groups of a step" if grouped else "expected batch size"
        public = f"The noisy sum is divided by the {by}, a public number, and never by the size that was drawn."
        yield Field("normalisation", f"by {divisor:g}", public)
    rounded = "" if said.get("sums") == "float64" else ", or in float32 chunks whose rounding is part of the bound"
    outward = f"Norms are rounded outward. Sums are taken in float64{rounded}. (Privacy model, section 4.4.)"
    yield Field("rounding of sums", str(said.get("sums") or "not on record"), outward)


def _records(body: Mapping[str, Any]) -> Iterator[Field]:
    said, tested = body["settings"], body["outcome"].get("test_records")
    if said.get("records") is not None:
        yield Field("records", str(said["records"]))
    if said.get("public_records") is not None:
        public = "The public number that rates are computed from."
        yield Field(f"number of {_people(body)}", f"{said['public_records']:,}", public)
    if said.get("low") is not None:
        found = [
            str(number) for number, entry in enumerate(body["entries"], start=1)
            if str(entry.get("words", "")).endswith(FOR_SCHEMA)
        ]  # fmt: skip
        origin = f" Where they come from: {said['bounds_origin']}." if said.get("bounds_origin") else ""
        whence = f"Public; values outside saturate.{origin}"
        if found:
            entries = f"{'entries' if len(found) > 1 else 'entry'} {', '.join(found)}"
            whence = f"Of columns found under differential privacy ({entries}). Values outside saturate."
        yield Field("bounds of features", f"{said['low']:g} to {said['high']:g}", whence)
    if said.get("ticket_set") is not None or said.get("provenance") is not None:
        yield Field("provenance of tickets", str(said.get("provenance") or "not on record"), _provenance(said))
    if said.get("feature_map") is not None:
        yield Field("features", str(said["feature_map"]), "Stand in front of the network.")
    if tested is not None:
        apart = "Declared separate from the private records. Nothing is promised for them."
        yield Field("test records", f"{tested:,}", apart)


def _network(body: Mapping[str, Any]) -> Iterator[Field]:
    """Yield the network, and what was made of the noisy sums: post-processing, at no cost."""
    said = body["settings"]
    for name, key in (("network", "model"), ("classes", "classes"), ("criterion", "criterion"), ("round", "round"),
                      ("optimizer", "optimizer"), ("step size", "lr"), ("schedule", "schedule"), ("average", "average"),
                      ("augmentation", "augment"), ("precision", "precision")):  # fmt: skip
        if said.get(key) not in (None, "none"):
            yield Field(name, _plain(said[key]))
    for name, key in (("parameters", "parameters"), ("live coordinates", "live")):
        if said.get(key) is not None:
            yield Field(name, f"{said[key]:,}")
    if said.get("density") is not None:
        yield Field("density", percent(said["density"]), "Share of the weights that are live; biases do not count.")
    if said.get("weights") is not None:
        whose = (
            "SHA-256 of weights and mask. All figures here are of this network; dpltm privacy check RUN compares it."
        )
        yield Field("weights", str(said["weights"]), whose)


def _auc(got: Mapping[str, Any]) -> tuple[str, str]:
    if got.get("auc") is None:
        return "none", "All test records are of one class."
    ends = f"95 %: {got['auc_low']:.3f} to {got['auc_high']:.3f}"
    return (
        f"{got['auc']:.3f}",
        f"Chance that a record of a class is ranked above one of another; guessing has 0.5. {ends}.",
    )


def _outcome(body: Mapping[str, Any]) -> Iterator[Field]:
    got = body["outcome"]
    if got.get("accuracy") is not None:
        yield Field("accuracy", percent(got["accuracy"]), str(got.get("accuracy_of") or ""))
        if got.get("low") is not None:
            wilson = (
                "Wilson's, over test records as if each were another person's: with several of one it is too narrow. The"
                " chance of the noise is not in it; seeds show that."
            )
            yield Field("95 % interval", f"{percent(got['low'])} to {percent(got['high'])}", wilson)
    if got.get("majority") is not None:
        always = f"Accuracy of always saying the most frequent class of the test split, {got['majority']}."
        yield Field("majority", percent(got["majority_accuracy"]), always)
        mean = "Mean over classes of the share of its records that are found (recall)."
        yield Field("balanced accuracy", percent(got["balanced_accuracy"]), mean)
        yield Field("AUC", *_auc(got))
        apart = "Mean distance between the chances that it states and how often they come true, in ten bins."
        yield Field("calibration error", f"{got['calibration_error']:.3f}", apart)
    if got.get("rmse") is not None:
        yield Field("RMSE", _plain(got["rmse"]))
    if got.get("audit_lower_bound") is not None:
        attacked = (
            f"By {got['audit_canaries']:,} made-up records that attacked the training, at"
            f" {percent(got['audit_confidence'], 0)} confidence. A bound above the certified epsilon would tell of a bug."
        )
        yield Field("audit: epsilon is at least", f"{got['audit_lower_bound']:.3g}", attacked)


def skill_tables(skill: Skill) -> Iterator[Table]:
    """Yield recall and precision by class, the confusion matrix, and calibration."""
    rows = [
        (one.name, f"{one.records:,}", _share(one.recall), _share(one.precision)) for one in skill.classes[:MOST_ROWS]
    ]
    yield Table("Class by class, on the test split", ("class", "test records", "recall", "precision"), rows)
    if skill.groups:
        judged = [
            (
                one.name,
                f"{one.records:,}",
                "-" if one.auc is None else "{:.3f} ({:.3f} to {:.3f})".format(*one.auc),
                _share(None if one.accuracy is None else one.accuracy.value),
                _share(one.majority_accuracy),
            )
            for one in skill.groups[:MOST_ROWS]
        ]
        yield Table(
            "Subgroups of the test split", ("group", "test records", "AUC (95 %)", "accuracy", "majority"), judged
        )
    names = [one.name for one in skill.classes]
    if skill.confusion is not None and len(names) <= MOST_COLUMNS:
        counts = [(name, *(f"{cell:,}" for cell in row)) for name, row in zip(names, skill.confusion, strict=True)]
        yield Table(
            "Test records by their class (rows) and by what the model says",
            ("class", *(f"says {name}" for name in names)),
            counts,
        )
    if skill.points:
        points = [
            (
                f"{one.threshold:g}",
                _share(one.recall),
                _share(one.precision),
                _share(one.specificity),
                f"{one.named:,}",
            )
            for one in skill.points
        ]
        head = (f"chance of {names[1]} from", "found (sensitivity)", "right when named (positive predictive value)",
                "others left alone (specificity)", "named")  # fmt: skip
        title = (
            f"Where to draw the line for {names[1]}; chosen on these test records, so a little better than on others"
        )
        yield Table(title, head, points, stacked=True)
    said = f"chance of {names[1]}" if len(names) == 2 else "chance of the class it says"
    came = f"share of {names[1]}" if len(names) == 2 else "share right"
    binned = [
        (f"{place / BINS:.1f} to {(place + 1) / BINS:.1f}", f"{one.records:,}", _share(one.chance), _share(one.share))
        for place, one in enumerate(skill.bins)
        if one.records
    ]
    yield Table("Calibration: do its chances come true?", ("bin", "test records", f"mean {said}", came), binned)


def _share(share: float | None) -> str:
    return "-" if share is None else percent(share)
