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
from dpltm.privacy.event_json import from_json
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
UNIT = {
    "record": "One record. Whoever has several records is protected for each of them alone.",
    "user": "All records of one user together.",
}


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
        return "Nothing is certified: the events in the ledger bound no epsilon."
    if certified["epsilon"] == 0:
        return "No privacy is spent: nothing here was computed from private records."
    return (
        f"Certified: ({figure(certified['epsilon'])}, {certified['delta']:g})-differential privacy for one"
        f" {certified['unit']}, {certified['adjacency']}."
    )


def meaning(body: Mapping[str, Any]) -> list[str]:
    """What the guarantee means for an attacker, in sentences."""
    whose = "one record was" if body["certified"]["unit"] == "record" else "the records of one user were"
    if body["certified"]["adjacency"] == "replace-one":
        whose = f"which of two {body['certified']['unit']}s was"
    if body["odds"] is None:
        return [f"No bound holds for an attacker who asks whether {whose} used: he may always be right."]
    sentences = []
    for row in body["odds"]["right"]:
        prior, share = row["prior"], row["at_most"]
        sentences.append(
            f"An attacker who thinks beforehand, with chance {percent(prior, 0)}, that {whose} used, and then sees"
            f" everything that was released, is right in at most {percent_up(share)} of cases. Guessing alone gives"
            f" {percent(max(prior, 1 - prior), 0)}."
        )
    sentences.append(
        "These are bounds for the strongest attacker, who knows all other records, the code and every intermediate network."
    )
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
    yield Field(
        "delta", f"{certified['delta']:g}", "The chance with which epsilon may fail; it should be far below 1/n."
    )
    yield Field("unit of privacy", certified["unit"], UNIT[certified["unit"]])
    yield Field("neighbouring relation", certified["adjacency"], ADJACENCY[certified["adjacency"]].format(**certified))
    with_versions = ", ".join(f"{name} {number}" for name, number in body["computed_with"].items())
    method = ACCOUNTANTS[certified["accountant"]].help if certified["accountant"] in ACCOUNTANTS else ""
    yield Field("accountant", f"{certified['accountant']} ({with_versions})", method)
    yield Field(
        "model of trust",
        "central",
        "Whoever trains sees the records. The guarantee is about what is released afterwards.",
    )
    yield Field(
        "what may be released", "all noisy steps",
        "The figure counts every step, so intermediate networks are covered as well as the last one.",
    )  # fmt: skip
    yield Field("releases counted", str(len(body["events"])), "Each stands in the ledger below.")
    if body["kind"] == "run":
        yield Field("cost of tuning", *_tuning(body))
    if settings.get("budget") is not None:
        yield Field(
            "budget asked for", f"{settings['budget']:g}", "Noise was calibrated so that the certified epsilon fits."
        )


def _tuning(body: Mapping[str, Any]) -> tuple[str, str]:
    kinds = [event["kind"] for event in body["events"]]
    if "search" in kinds:
        return "paid for", "A private search stands in the ledger, and the certified epsilon includes it."
    if (source := body["settings"].get("tuned_on")) is not None:
        return "0", f"Settings were searched on {source}, declared public."
    return (
        "not counted",
        "No search is on record. If settings, seeds or stopping were chosen by private scores, that is not covered.",
    )


def mechanism_fields(body: Mapping[str, Any]) -> Iterator[Field]:
    """How a training was made private."""
    said = body["settings"]
    if said.get("sampling_rate") is None:
        return
    yield Field(
        "sampling", f"Poisson, rate {said['sampling_rate']:.6g}",
        f"Each {body['certified']['unit']} enters each step by a coin of its own. The size of a batch is private.",
    )  # fmt: skip
    taken = body["outcome"].get("steps_taken")
    early = f"{taken:,} were taken, all are paid for." if isinstance(taken, int) and taken != said["steps"] else ""
    yield Field("noisy steps", f"{said['steps']:,}", early)
    yield Field("gradient filter", str(said["filter"]), "What each gradient goes through before the sum.")
    yield Field(
        "clip norm", _plain(said.get("clip_norm")), "Norm that a gradient is clipped to, where the filter clips."
    )
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
        + ("statistical, not cryptographic: predictable in principle." if said.get("noise_bits") == "fast" else
           "those of a cryptographic generator."),
    )  # fmt: skip
    if (batch := said.get("expected_batch")) is not None:
        yield Field(
            "normalisation", f"by {batch:g}",
            "The noisy sum is divided by the expected batch size, a public number, and never by the size that was drawn.",
        )  # fmt: skip
    yield Field(
        "rounding of sums", str(said.get("sums") or "covered by the bound"),
        "Norms are rounded outward. Sums are taken in float64, or in float32 chunks whose rounding is part of the bound"
        " (privacy model, section 4.4).",
    )  # fmt: skip


def record_fields(body: Mapping[str, Any]) -> Iterator[Field]:
    """Which records, and what was taken as public about them."""
    said = body["settings"]
    if said.get("records") is not None:
        yield Field("records", str(said["records"]), "")
    if said.get("public_records") is not None:
        yield Field(
            "number of records", f"{said['public_records']:,}", "The public number that rates are computed from."
        )
    if said.get("low") is not None:
        origin = said.get("bounds_origin")
        yield Field(
            "bounds of features", f"{said['low']:g} to {said['high']:g}",
            "Public; values outside saturate." + (f" Where they come from: {origin}." if origin else ""),
        )  # fmt: skip
    if said.get("provenance") is not None:
        yield Field("provenance of tickets", str(said["provenance"]), str(said.get("provenance_meaning") or ""))
    if said.get("feature_map") is not None:
        yield Field("features", str(said["feature_map"]), "Stand in front of the network.")
    if body["outcome"].get("test_records") is not None:
        yield Field(
            "test records", f"{body['outcome']['test_records']:,}",
            "Declared separate from the private records. Nothing is promised for them.",
        )  # fmt: skip


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
    """The events: number, records, and what they say."""
    events = [from_json(event) for event in body["events"]]
    return [(str(number), str(event.dataset), describe(event)) for number, event in enumerate(events, start=1)]


def _plain(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
