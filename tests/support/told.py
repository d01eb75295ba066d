"""What a call is refused with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dpltm.errors import ArtifactError, DpltmError


def told(call: Callable[..., object], *arguments: Any, kind: type[DpltmError] = ArtifactError, **named: Any) -> str:
    """The message of the refusal, which must be one printable line."""
    with pytest.raises(kind) as caught:
        call(*arguments, **named)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1000
    return message
