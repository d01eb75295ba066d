"""What the file of an owner does when it is run: ``dpltm latent encode`` by the one scheme that it holds, without torch."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields
from fractions import Fraction
from typing import Any, NoReturn

from dpltm.errors import DpltmError, InputError, in_flags
from dpltm.local.channels import rounded_up
from dpltm.local.scheme import Scheme
from dpltm.options.latent import EncodeRequest
from dpltm.options.sections import resolve, value_type
from dpltm.privacy.budgets import is_paid
from dpltm.privacy.events import DatasetRef, Event, GuaranteeEvent
from dpltm.privacy.figures import figure
from dpltm.privacy.parts import touching
from dpltm.privacy.statement import SEARCH_NOTE, Certified, PrivacyReport
from dpltm.stages.progress import SILENT
from dpltm.tickets.owner_scheme import owner_scheme
from dpltm.tickets.workbench.encode import encode_records

SUMMARY = """\
Randomise your records where they are, by the scheme that this file holds; what is written may leave the machine.

Encoding a record again is another release of it: name one --ledger for all of them to have that counted."""

MISSING = {
    "dpltm.privacy.accountant": (
        "--ledger: a budget is set on these records; encode with dpltm latent encode, which can check it"
    ),
    "sklearn": "--dataset: no file of that name is at hand; give a .npz or .csv file",
}
"""What is told where something is needed that is not here."""

INTERRUPTED = "interrupted; what the ledger entered stays entered"


def run_owner(arguments: Sequence[str]) -> tuple[int, str]:
    """Runs one command line; gives its exit code, and what is to be printed: the answer, or one line about an error."""
    try:
        request, as_json = _parsed(arguments)
        body = encode_records(request, owner_scheme, SILENT, price=summed)
        return 0, json.dumps(body, indent=1) if as_json else _shown(body)
    except DpltmError as error:
        return error.exit_code, _error(in_flags(str(error)))
    except KeyboardInterrupt:
        return 130, _error(INTERRUPTED)
    except ModuleNotFoundError as error:
        return 2, _error(MISSING.get(error.name or "", f"{error.name} is missing; encode with dpltm latent encode"))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return 2, _error(f"{place}{error.strerror or error}; check the path and the disk")
    except Exception as error:
        return 1, _error(f"internal error: {type(error).__name__}: {error}; report it")


def summed(
    scheme: Scheme, records: DatasetRef, held: tuple[Event, ...], delta: float, notes: list[str]
) -> PrivacyReport:
    """What messages cost their records: epsilons of guarantees without delta add up, which no accountant is needed for.

    Arguments as :func:`dpltm.stages.latent_report.encoding_report`.

    Raises:
        InputError: the ledger holds other releases from them.
    """
    del scheme, delta
    paid = [event for event in touching(held, records) if is_paid(event)]
    pure = [event.mechanism for event in paid if isinstance(event, GuaranteeEvent)]
    known = [one.epsilon for one in pure if one.adjacency == "replace-one" and one.delta == 0 and one.unit == "record"]
    if len(known) < len(paid):
        raise InputError(
            "`ledger`: it holds releases from these records that this file cannot add up; encode with dpltm latent encode"
        )
    total = rounded_up(sum(map(Fraction, known), Fraction()))
    return PrivacyReport(Certified(total, 0.0, "sum", "replace-one", "record", "none"), None, (*notes, SEARCH_NOTE))


class _Parser(argparse.ArgumentParser):
    """One whose refusals are one line."""

    def error(self, message: str) -> NoReturn:
        """Raises InputError."""
        raise InputError(f"{message}; --help lists the options")


def _parsed(arguments: Sequence[str]) -> tuple[EncodeRequest, bool]:
    """The request, whose options are those of ``dpltm latent encode``, and whether the answer is to be JSON."""
    parser = _Parser(description=SUMMARY, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    for item in fields(EncodeRequest):
        kind, flag = value_type(item), "--" + item.name.replace("_", "-")
        if item.metadata["argument"]:
            continue  # the scheme is here
        help = in_flags(item.metadata["help"]).replace("%", "%%")
        if kind is bool:
            parser.add_argument(flag, action="store_true", default=None, help=help)
        else:
            parser.add_argument(flag, type=kind, metavar=item.metadata["metavar"], help=help)
    given = vars(parser.parse_args(arguments))
    as_json = given.pop("json")
    return resolve(EncodeRequest, {**given, "scheme": "this file"}, {}, None), as_json


def _shown(body: dict[str, Any]) -> str:
    certified, together = body["certified"], body["privacy"]["certified"]["epsilon"]
    done = "would encode" if body.get("dry_run") else f"wrote {body['messages']}:"
    return "\n".join(
        [
            f"{done} {body['records']} messages of {body['record_bytes']} bytes, by scheme {body['id'][:8]}",
            f"certified local epsilon of a record = {figure(certified, 7)} (replace-one, delta = 0)",
            f"with all that the ledger holds of these records: {figure(together, 7)}",
            *(f"- {note}" for note in body["privacy"]["notes"]),
        ]
    )


def _error(message: str) -> str:
    return "error: " + " ".join(message.split())
