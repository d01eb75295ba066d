"""The errors that dpltm raises on purpose, one small tree.

Every message is one line and names the culprit (an option, a file, a field), its value, what was expected and
what to do about it. The command line maps each class to an exit code; see ``exit_code``.
"""

from __future__ import annotations


class DpltmError(Exception):
    """Root of the tree. ``exit_code`` is what the command line returns for it."""

    exit_code = 1


class InputError(DpltmError):
    """Bad usage or bad input: an option, a file or a record is not what it must be."""

    exit_code = 2


class DataError(InputError):
    """A dataset cannot be found, read or used as it is."""


class ArtifactError(InputError):
    """A ticket set, run or ledger on disk is not what it claims to be."""


class CalibrationError(InputError):
    """No noise level reaches the asked epsilon."""


class BudgetError(DpltmError):
    """The privacy budget does not allow what was asked."""


def first_line(error: Exception) -> str:
    """What somebody else's error says, short enough for a message of one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
