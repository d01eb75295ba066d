"""Schemes of local privacy as JSON, read and written without torch (docs/formats.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dpltm.errors import ArtifactError, DpltmError
from dpltm.local.bit_strings import BitStrings
from dpltm.local.codebook import Codebook
from dpltm.local.encoding import FixedPoint
from dpltm.local.scheme import RecordMap, Scheme
from dpltm.privacy.event_json import ref_to_json
from dpltm.tickets.identity import read_ref

FORMAT, SCHEMA = "dpltm-scheme", 1

KEYS = {"format", "schema", "id", "nominal", "certified", "answer", "public", "feature_map"}


def scheme_json(scheme: Scheme, feature_map: dict[str, Any] | None) -> dict[str, Any]:
    """All of a scheme but its tensors.

    Args:
        scheme: to write.
        feature_map: of it, as JSON.
    """
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "id": scheme.id,
        "nominal": scheme.answer.nominal,
        "certified": scheme.answer.certified,
        "answer": {"kind": _kind(scheme.answer), **asdict(scheme.answer)},
        "public": None if scheme.public is None else ref_to_json(scheme.public),
        "feature_map": feature_map,
    }


def scheme_from_json(
    where: Path, body: Mapping[str, Any], feature_map: RecordMap, statistics: Mapping[str, np.ndarray]
) -> Scheme:
    """The scheme, checked against its id.

    Args:
        where: the file, for messages.
        body: what :func:`scheme_json` gave, with its keys.
        feature_map: that it has.
        statistics: ``mean`` and ``deviation`` of its features.

    Raises:
        ArtifactError: it was changed.
    """
    try:
        public = None if body["public"] is None else read_ref(body["public"])
        scheme = Scheme(feature_map, statistics["mean"], statistics["deviation"], _answer(body["answer"]), public)
        if scheme.id != body["id"]:
            raise ArtifactError(f"{where}: the id does not match; it is damaged or was changed")
        said, held = (body["nominal"], body["certified"]), (scheme.answer.nominal, scheme.answer.certified)
        if not all(math.isclose(one, other, rel_tol=1e-9) for one, other in zip(said, held, strict=True)):
            raise ArtifactError(f"{where}: nominal or certified is not what the answer comes to; it was changed")
    except ArtifactError:
        raise
    except (DpltmError, KeyError, TypeError, ValueError, AttributeError, OverflowError, ArithmeticError):
        raise ArtifactError(f"{where}: answer is not the description of what is sent") from None
    return scheme


def _kind(answer: BitStrings | Codebook) -> str:
    return "bit-strings" if isinstance(answer, BitStrings) else "codebook"


def _answer(body: Mapping[str, Any]) -> BitStrings | Codebook:
    rest = {key: value for key, value in body.items() if key != "kind"}
    match body["kind"]:
        case "bit-strings":
            return BitStrings(**{**rest, "form": FixedPoint(**rest["form"])})
        case "codebook":
            return Codebook(**rest)
    raise ValueError("kind")
