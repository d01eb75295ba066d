"""What a call is refused with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from dpltm.errors import ArtifactError, DpltmError, InputError
from dpltm.privacy.old_ledger import Ledger


def refused(call: Callable[..., object], *arguments: Any, kind: type[DpltmError] = InputError, **options: Any) -> str:
    """The message of the refusal that the call ends in: one printable line, of the right kind."""
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1000
    return message


told = partial(refused, kind=ArtifactError)
"""The same of what lies on disk."""


def refused_after_it_ran(run: Callable[[Any], object], plan: Any) -> None:
    """A plan that has run is refused: as it is, on another ledger, and with all that it holds copied."""
    assert refused(run, plan) == "`ledger`: something was entered since this was planned; plan again"
    other = replace(plan, ledger=Ledger(registry=plan.ledger.registry))
    assert refused(run, other) == "`ledger`: another one than this was planned on; plan again"
    assert refused(copy.deepcopy, plan) == "`plan`: it cannot be copied, since it runs once; plan again"
