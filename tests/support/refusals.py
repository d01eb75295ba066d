"""What a call is refused with."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dpltm.errors import ArtifactError, DpltmError, InputError


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
