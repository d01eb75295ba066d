"""What a statement says, field by field and in words: after NIST SP 800-226 (Near et al. 2025), and what reviewers miss.

Everything here is a function of the statement alone, so a card can be written again from it, and compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dpltm.privacy.accountants import ACCOUNTANTS
from dpltm.privacy.describe import describe
from dpltm.privacy.entry import RECORD, entry_from_json
from dpltm.privacy.figures import figure
from dpltm.reports.attacker import precision


@dataclass(frozen=True)
class Field:
    """One line of a statement.

    Attributes:
        name: of the field, as the literature has it.
        value: its value, short.
        meaning: a sentence on it; empty for none.
    """

    name: str
    value: str
    meaning: str = ""


ADJACENCY = {
    "add-remove": "Neighbouring datasets differ by one {unit} more or less.",
    "replace-one": "Neighbouring datasets differ by one {unit} replaced by another. Sensitivities are doubled for it.",
}


def unit_of(body: Mapping[str, Any]) -> str:
    """Return whom the guarantee protects, in a sentence."""
    unit = body["certified"]["unit"]
    if unit == RECORD:
        return "One record. Whoever has several records is protected for each of them alone."
    return f"All records of one {unit} together."


PROVENANCE = {
    "data-free": "They depend on no records: they cost nothing.",
    "public": "They were made from records declared public: they cost nothing.",
    "dp": "They were made by a private mechanism, which is among the entries.",
    "private": "They were made from private records with no mechanism: nothing can be certified.",
}
UNKNOWN_PROVENANCE = "Where they come from is not on record here."

HARDLY = 10.0
"""From this epsilon up a guarantee says little: e^10 is about 22,000."""


def provenance_of(said: Mapping[str, Any]) -> str:
    """Where tickets come from, in a sentence: from the kind alone, whatever else a file says."""
    return PROVENANCE.get(said.get("provenance") or "", UNKNOWN_PROVENANCE)


def people(body: Mapping[str, Any]) -> str:
    """What a record is called where whole users are protected."""
    return "records" if body["certified"]["unit"] == RECORD else "persons"


FOR_SCHEMA = " for a schema"
"""What the words of a release end with that found the bounds or categories of columns."""


def percent(share: float, digits: int = 2) -> str:
    """A share as people read it, such as 91.92 %."""
    return f"{100 * share:.{digits}f} %"


def percent_up(share: float) -> str:
    """A share in percent to one digit, rounded up: a bound that is shown is never smaller than what was computed."""
    return f"{math.ceil(share * 1000 - 1e-9) / 10:g} %"


def headline(body: Mapping[str, Any]) -> str:
    """The guarantee in one sentence."""
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
    """What the guarantee means for an attacker, in sentences."""
    certified, unit = body["certified"], body["certified"]["unit"]
    if certified["adjacency"] == "replace-one":
        asks, thinks = (
            (f"which of two {unit}s was among them", f"that the one of two {unit}s was among them, and not the other")
            if unit != RECORD
            else ("which of two records was used", "that the one of two records was used, and not the other")
        )
    else:
        whose = "one record was" if unit == RECORD else f"the records of one {unit} were"
        asks, thinks = f"whether {whose} used", f"that {whose} used"
    if body["odds"] is None:
        return [f"No bound holds for an attacker who asks {asks}: he may always be right."]
    sentences = []
    for row in body["odds"]["right"]:
        prior, share = row["prior"], row["at_most"]
        sentences.append(
            f"An attacker who holds it {percent(prior, 0)} likely beforehand {thinks}, and then sees everything that was"
            f" released, is right in at most {percent_up(share)} of cases. Guessing alone gives"
            f" {percent(max(prior, 1 - prior), 0)}."
        )
    if certified["epsilon"] != "inf" and certified["epsilon"] >= HARDLY:
        sentences.append(f"An epsilon of {figure(certified['epsilon'])} is hardly a guarantee.")
    seen = ", the code and every intermediate network" if _mechanisms(body) & {"sgd"} else " and the code"
    sentences.append(f"These are bounds for the strongest attacker, who knows all other records{seen}.")
    return sentences


def odds_rows(body: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """False alarms, records found at most, and how often a yes is right at most, with priors 50 % and 10 %."""
    if body["odds"] is None:
        return []
    return [
        (
            f"{100 * row['false_alarms']:g} %",
            percent_up(row["at_most"]),
            *(percent_up(precision(row["at_most"], row["false_alarms"], prior)) for prior in (0.5, 0.1)),
        )
        for row in body["odds"]["found"]
    ]


def guarantee_fields(body: Mapping[str, Any]) -> Iterator[Field]:
    """What is guaranteed, to whom, and how it was counted."""
    certified, nominal, settings = body["certified"], body["nominal"], body["settings"]
    yield Field("certified epsilon", figure(certified["epsilon"]), "Proven, and rounded up. A smaller one is better.")
    if nominal is not None:
        claim = f"Claimed by {nominal['source']} and not proven. Shown beside the certified one, never instead of it."
        yield Field("nominal epsilon", figure(nominal["epsilon"]), claim)
    whole = f"number of {people(body)}"
    yield Field(
        "delta", f"{certified['delta']:g}",
        "What is added beside e^epsilon in the bound on the chance of every set of outcomes. It should be far below 1/n,"
        f" where n is the {whole}.",
    )  # fmt: skip
    yield Field("unit of privacy", certified["unit"], unit_of(body))
    yield Field("neighbouring relation", certified["adjacency"], ADJACENCY[certified["adjacency"]].format(**certified))
    with_versions = ", ".join(f"{name} {number}" for name, number in body["computed_with"].items())
    method = ACCOUNTANTS[certified["accountant"]].help if certified["accountant"] in ACCOUNTANTS else ""
    yield Field("accountant", f"{certified['accountant']} ({with_versions})", method)
    yield Field(
        "model of trust",
        "central",
        "Whoever trains sees the records. The guarantee is about what is released afterwards.",
    )
    yield from (Field("what may be released", *said) for said in _covered(body))
    paid = sum(entry["kind"] in ("release", "local") for entry in body["entries"])
    yield Field("releases counted", str(paid), "Each stands in the list below.")
    if body["kind"] == "run":
        yield Field("cost of tuning", *_tuning(body))
    if (budget := settings.get("budget")) is not None:
        fits = certified["epsilon"] != "inf" and certified["epsilon"] <= budget
        yield Field(
            "budget asked for", f"{budget:g}", f"The certified epsilon is {'within it' if fits else 'larger than it'}."
        )


def _mechanisms(body: Mapping[str, Any]) -> set[str]:
    return {mechanism["mechanism"] for entry in body["entries"] for mechanism in entry["mechanisms"]}


def _covered(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What may be published, by what was paid for; nothing where the figure covers no more than its entries name."""
    kinds = _mechanisms(body)
    if "search" in kinds:
        # privacy-model.md 5.7: the price rests on nobody seeing the other tries, nor how many there were
        yield "the best try alone", "The other tries, their scores and how many there were must stay secret."
    elif "sgd" in kinds:
        yield (
            "all noisy steps",
            "The figure counts every step, so intermediate networks are covered as well as the last one.",
        )


def _tuning(body: Mapping[str, Any]) -> tuple[str, str]:
    if "search" in _mechanisms(body):
        return "paid for", "A private search is among the entries, and the certified epsilon includes it."
    return (
        "not counted",
        "No search is on record. If settings, seeds or stopping were chosen by private scores, that is not covered.",
    )


_CLIPS = "Norm that {} is clipped to."
_LIMITS = {
    "normalize": "Norm that {} is scaled to, the short ones as well.",
    "auto": "Norm that {} is scaled to, the short ones as well, but for gamma.",
    "radial-tanh": "Norm that {} stays below.",
    "per-layer": "Of all layers together: each of L layers is clipped to C / sqrt(L).",
}
"""What C does in filters that do not clip to it, by name."""

_BITS = {
    "secure": "those of a cryptographic generator.",
    "fast": "statistical, not cryptographic: predictable in principle.",
}


def mechanism_fields(body: Mapping[str, Any]) -> Iterator[Field]:
    """How a training was made private."""
    said = body["settings"]
    if said.get("sampling_rate") is None:
        return
    one = "record" if body["certified"]["unit"] == RECORD else "person"
    if said["sampling_rate"] == 1:
        yield Field(
            "sampling", f"none: all {one}s, each step", "Nothing is gained by sampling: every step sees everybody."
        )
    else:
        yield Field(
            "sampling", f"Poisson, rate {said['sampling_rate']:.6g}",
            f"Each {one} enters each step by a coin of its own. The size of a batch is private.",
        )  # fmt: skip
    if said.get("per_unit") is not None:
        yield Field(
            "records of a person", f"{said['per_unit']:,} at most", "Of each person; further ones are left out."
        )
    taken = body["outcome"].get("steps_taken")
    early = f"{taken:,} were taken, all are paid for." if isinstance(taken, int) and taken != said["steps"] else ""
    yield Field("noisy steps", f"{said['steps']:,}", early)
    grouped = said.get("groups") is not None
    what = "the mean gradient of each group of records" if grouped else "each gradient"
    yield Field("gradient filter", str(said["filter"]), f"What {what} goes through before the sum.")
    if (norm := said.get("clip_norm")) is not None:
        yield Field("clip norm", f"{norm:g}", _LIMITS.get(str(said["filter"]).partition("(")[0], _CLIPS).format(what))
    else:
        yield Field("clip norm", "none", "This filter clips nothing; the sensitivity below is that of its range.")
    claimed = said.get("nominal_sensitivity")
    source = "" if claimed is None else f" The filter's source claims {claimed:.4g}."
    yield Field(
        "sensitivity of the sum", f"{said['sensitivity']:.6g}",
        f"Certified L2 bound of what a neighbour changes, over {said['live']:,} live coordinates.{source}",
    )  # fmt: skip
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
        yield Field(
            "normalisation", f"by {divisor:g}",
            f"The noisy sum is divided by the {by}, a public number, and never by the size that was drawn.",
        )  # fmt: skip
    rounded = (
        "Sums are taken in float64." if said.get("sums") == "float64" else
        "Sums are taken in float64, or in float32 chunks whose rounding is part of the bound."
    )  # fmt: skip
    yield Field(
        "rounding of sums", str(said.get("sums") or "not on record"),
        f"Norms are rounded outward. {rounded} (Privacy model, section 4.4.)",
    )  # fmt: skip


def record_fields(body: Mapping[str, Any]) -> Iterator[Field]:
    """Which records, and what was taken as public about them."""
    said = body["settings"]
    if said.get("records") is not None:
        yield Field("records", str(said["records"]), "")
    if said.get("public_records") is not None:
        yield Field(
            f"number of {people(body)}",
            f"{said['public_records']:,}",
            "The public number that rates are computed from.",
        )
    if said.get("low") is not None:
        yield Field("bounds of features", f"{said['low']:g} to {said['high']:g}", _bounds(body))
    if said.get("ticket_set") is not None or said.get("provenance") is not None:
        yield Field("provenance of tickets", str(said.get("provenance") or "not on record"), provenance_of(said))
    if said.get("feature_map") is not None:
        yield Field("features", str(said["feature_map"]), "Stand in front of the network.")
    if body["outcome"].get("test_records") is not None:
        yield Field(
            "test records", f"{body['outcome']['test_records']:,}",
            "Declared separate from the private records. Nothing is promised for them.",
        )  # fmt: skip


def _bounds(body: Mapping[str, Any]) -> str:
    """Where the bounds of features come from: of a schema that was found in private records, its release."""
    found = [
        str(number) for number, entry in enumerate(body["entries"], start=1)
        if str(entry.get("words", "")).endswith(FOR_SCHEMA)
    ]  # fmt: skip
    if found:
        numbers = f"{'entries' if len(found) > 1 else 'entry'} {', '.join(found)}"
        return f"Of columns found under differential privacy ({numbers}). Values outside saturate."
    origin = body["settings"].get("bounds_origin")
    return "Public; values outside saturate." + (f" Where they come from: {origin}." if origin else "")


def network_fields(body: Mapping[str, Any]) -> Iterator[Field]:
    """The network, and what was made of the noisy sums: post-processing, at no cost."""
    said = body["settings"]
    for name, key in (("network", "model"), ("classes", "classes"), ("criterion", "criterion"), ("round", "round"),
                      ("optimizer", "optimizer"), ("step size", "lr"), ("schedule", "schedule"), ("average", "average"),
                      ("augmentation", "augment"), ("precision", "precision")):  # fmt: skip
        if said.get(key) is not None and said[key] != "none":
            yield Field(name, _plain(said[key]))
    for name, key in (("parameters", "parameters"), ("live coordinates", "live")):
        if said.get(key) is not None:
            yield Field(name, f"{said[key]:,}")
    if said.get("density") is not None:
        yield Field("density", percent(said["density"]), "Share of the weights that are live; biases do not count.")


def outcome_fields(body: Mapping[str, Any]) -> Iterator[Field]:
    """What came of it."""
    got = body["outcome"]
    if got.get("accuracy") is not None:
        bar = f"{percent(got['low'])} to {percent(got['high'])}" if got.get("low") is not None else ""
        yield Field("accuracy", percent(got["accuracy"]), str(got.get("accuracy_of") or ""))
        if bar:
            yield Field(
                "95 % interval",
                bar,
                "Wilson's, over test records. The chance of the noise is not in it; seeds show that.",
            )
    if got.get("rmse") is not None:
        yield Field("RMSE", _plain(got["rmse"]))
    if got.get("audit_lower_bound") is not None:
        yield Field(
            "audit: epsilon is at least", f"{got['audit_lower_bound']:.3g}",
            f"By {got['audit_canaries']:,} made-up records that attacked the training, at"
            f" {percent(got['audit_confidence'], 0)} confidence. A bound above the certified epsilon would tell of a bug.",
        )  # fmt: skip


def ledger_rows(body: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the entries: number, records, and what they say."""
    entries = [entry_from_json(entry) for entry in body["entries"]]
    return [(str(number), str(entry.part), describe(entry)) for number, entry in enumerate(entries, start=1)]


def _plain(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
