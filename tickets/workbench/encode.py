"""Records of an owner, encoded: ``dpltm latent encode``, and the file that ``dpltm latent owner`` writes, without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.local.scheme import Scheme
from dpltm.options.latent import EncodeRequest
from dpltm.records import DatasetCache, catalogue
from dpltm.stages.latent_owner import FULL_REPORT, Price, encode, plan_encoding
from dpltm.stages.progress import Progress
from dpltm.tickets.files import check_free, check_writable
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.message_files import write_messages
from dpltm.tickets.room import SMALL, check_room
from dpltm.tickets.workbench.records import open_dataset


def encode_records(
    request: EncodeRequest,
    scheme_of: Callable[[], Scheme],
    progress: Progress,
    dataset_cache: DatasetCache | None = None,
    price: Price = FULL_REPORT,
) -> dict[str, Any]:
    """Enters the release, randomises the records, and writes the messages.

    Args:
        request: what was asked for.
        scheme_of: reads the scheme.
        progress: who watches.
        dataset_cache: datasets that were read already; None to read them anew.
        price: says what the release costs.

    Returns:
        The answer of ``dpltm latent encode``.

    Raises:
        DpltmError: bad input, before any budget is spent.
    """
    out = Path(request.out or "")
    check_free(out)
    check_writable(out)
    path = Path(request.ledger or f"{out}.ledger.jsonl")
    if path.absolute() == out.absolute():
        raise InputError("`ledger`: the messages go there; name another file")
    scheme = scheme_of()
    dataset = open_dataset(_with_known_classes(request, scheme), for_training=False, dataset_cache=dataset_cache)
    ledger = open_ledger(path, remember=not request.dry_run)
    plan = plan_encoding(scheme, dataset, request, ledger, label=request.scheme or "", price=price)
    if not request.dry_run:
        check_room(out, len(dataset.train) * scheme.answer.record_bytes + SMALL, path)
        write_messages(out, scheme, len(dataset.train), encode(plan, progress))
        progress.say(f"wrote {out}")
    return as_flags(
        {
            **({"dry_run": True} if request.dry_run else {}),
            "messages": str(out),
            "records": len(dataset.train),
            **scheme_facts(scheme),
            "saturated": None,  # a key that scripts know; the count is a function of the records that nothing pays for
            "privacy": plan.privacy.to_json(),
        }
    )


def scheme_facts(scheme: Scheme) -> dict[str, Any]:
    """What answers say of a scheme."""
    answer = scheme.answer
    return {
        "id": scheme.id,
        "features": scheme.feature_map.text,
        "values": answer.values,
        "classes": answer.classes,
        "protocol": answer.protocol,
        "epsilon": answer.epsilon,
        **answer.facts,
        "record_bytes": answer.record_bytes,
        "nominal": answer.nominal,
        "certified": answer.certified,
    }


def _with_known_classes(request: EncodeRequest, scheme: Scheme) -> EncodeRequest:
    """Of a file of the owner's, the scheme knows how many classes there are."""
    if request.classes is None and catalogue().get(request.dataset or "") is None:
        return replace(request, classes=scheme.answer.classes)
    return request
