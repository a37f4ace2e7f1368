"""Whether an exception only reports that a peer is gone. Imported by the fork server, so that no rank waits for it."""

from __future__ import annotations

import traceback

from holdfast.policies.classify import last_words
from holdfast.policies.classify.patterns import Match


def behind(error: Exception) -> BaseException | None:
    """Return the exception by which a rank lost a peer, if that explains ``error``; None: its cause is elsewhere.

    It is ``error``, or what that was raised from, or while handling, or a member of a group: a script may raise in its
    own handler of the loss. As in the evidence of a rank's end, another known cause outweighs a lost peer.
    """
    known = _known(error)
    if known is not None:
        return error if known.pattern.cascade else None
    found = [(each, match) for each in _chain(error) if (match := _known(each))]
    if not found or any(not match.pattern.cascade for _, match in found):
        return None
    return found[-1][0]


def _known(error: BaseException) -> Match | None:
    text = "".join(traceback.format_exception_only(error))
    words = {"error_type": type(error).__name__, "message": str(error), "traceback": text}
    return last_words.match_exception(words)


def _chain(error: BaseException) -> list[BaseException]:
    """Return what a traceback of ``error`` would show, the newest first."""
    chain, left, seen = list[BaseException](), [error], set[int]()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        chain.append(each)
        before = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
        left += [before] if before else []
        left += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
    return chain


behind(
    RuntimeError("gloo: Connection closed by peer")
)  # reads the patterns, and compiles what such errors need
