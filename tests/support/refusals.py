"""What a call is refused with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dpltm.errors import InputError


def refused(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The message of the InputError that the call ends in, one line."""
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message
