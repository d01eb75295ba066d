"""What messages of LATENT cost the records that they are of, with all that the ledger holds."""

from __future__ import annotations

from dataclasses import replace

from dpltm.local.bit_strings import BitStrings
from dpltm.local.scheme import Scheme
from dpltm.privacy.events import DatasetRef, Event, TrainingEvent
from dpltm.privacy.report import report
from dpltm.privacy.statement import Nominal, PrivacyReport


def encoding_report(
    scheme: Scheme, records: DatasetRef, held: tuple[Event, ...], delta: float, notes: list[str]
) -> PrivacyReport:
    """Both figures for the records.

    Args:
        scheme: of the messages.
        records: that they are of.
        held: what the ledger holds then, the release last.
        delta: in (0, 1).
        notes: sentences to add.

    Raises:
        InputError: releases that no figure can be given for.
    """
    touching = [event for event in held if event.dataset.may_overlap(records)]
    privacy = report(touching, delta, "replace-one", notes, held=held)
    if not any(isinstance(event, TrainingEvent) for event in touching):
        privacy = replace(privacy, certified=replace(privacy.certified, sampling="none"))
    if len(touching) == 1 and isinstance(scheme.answer, BitStrings):
        source = f"{scheme.answer.protocol}, as LATENT and its sources define it"
        privacy = replace(privacy, nominal=Nominal(scheme.answer.nominal, 0.0, source))
    return privacy
