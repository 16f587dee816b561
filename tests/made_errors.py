"""Calls that end in an error for the user."""

import pytest

from finpod.errors import InputError


def refused(match, call, *arguments, error=InputError, about=..., **named):
    """The error of one line that a call must end in: `match` is found in it, and it is about the argument `about`."""
    with pytest.raises(error, match=match or None) as raised:
        call(*arguments, **named)
    assert "\n" not in str(raised.value)
    assert about in (..., raised.value.argument)
    return raised.value


def refusal(call, *arguments, **named):
    """The text of that error."""
    return str(refused("", call, *arguments, **named))
