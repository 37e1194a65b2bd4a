"""What the operating system said of a connection that failed, below what libraries made of it."""

from __future__ import annotations


def system_words(error: object) -> str:
    """The system's own words, where it had any; else the error's."""
    cause = error if isinstance(error, BaseException) else None
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error)
