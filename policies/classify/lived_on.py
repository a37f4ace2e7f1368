"""Lines of a log after which its rank lived on: progress, and errors that are tried again or passed over. Pure."""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,32}[A-Za-z]")
_PROGRESS = re.compile(
    r"(?<![A-Za-z])(?:step|iter(?:ation)?|epoch|batch)(?![A-Za-z]).{0,20}?\d.{0,120}?"
    r"(?<![A-Za-z])(?:loss|lr|learning[ _]rate|tokens|grad[ _]?norm|it/s|s/it|elapsed)(?![A-Za-z./])"
    r"|\d/\d{1,12} \[[\d:]{4,12}<.{1,24}(?:it/s|s/it)\b"
    r"|\d/\d{1,12}\b.{0,80}?(?<![A-Za-z])loss(?![A-Za-z])['\"]?.{0,3}\d"
    r"|(?<![A-Za-z])loss['\"]?[:=] ?['\"]?\d[\d.e+-]{0,16}\b.{0,160}?"
    r"(?<![A-Za-z])(?:step|iter(?:ation)?|epoch)['\"]?[:=] ?\d|\[(?:step|batch|iter)=\d{1,12}/\d",
    re.IGNORECASE,
)
_BAR = re.compile(r"(\d{1,12})/(\d{1,12}) \[[\d:]{4,12}<")
"""Of a progress bar (tqdm): steps done, and all."""
_AGAIN = re.compile(
    r"\bretry(?:ing)?\b(?! ?(?:count|limit|attempts?)? ?exce)|\bretried\b|\bwill (?:retry|be retried|try again)\b"
    r"|\btrying again\b|\bbacking off\b|\battempt (?P<this>\d{1,4})(?: ?/ ?| of )(?!(?P=this)\b)\d{1,4}"
    r"|\bfall(?:ing|s)? back\b|\bskipp(?:ed|ing)\b"
    r"|\bignor(?:ed|ing)\b|(?<!not be )\brecovered\b|\bcontinuing\b|\bnon-fatal\b"
    r"|\bwandb: (?:WARNING|Network error)|\bWARNING\b(?!\(error\))",
    re.IGNORECASE,
)
_GIVEN_UP = re.compile(
    r"max(?:imum)?(?: number of)? (?:retries|retry|attempts)|retr(?:y|ies) (?:\w+ )?(?:exceeded|exhausted)"
    r"|giving up|gave up|\b(?:not|no|never|won't|without) (?:be )?(?:retry|retried|retrying)\b"
    r"|after \d{1,4} (?:retries|attempts|tries)|no more retries"
    r"|\ball (?:\d{1,4} )?(?:retry attempts|retries|attempts) failed",
    re.IGNORECASE,
)


def plain(text: str) -> str:
    """Return the text without colours."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def recent(log: str) -> str:
    """Return the end of a log, from the last line that reports progress, without colours.

    A progress bar is drawn once more when its loop ends, also by an exception that is printed already: the same number
    of steps is no progress.
    """
    lines = plain(log).splitlines(keepends=True)
    last, done = 0, dict[str, str]()
    for index, line in enumerate(lines):
        if not _PROGRESS.search(line[:1000]):
            continue
        bar = _BAR.search(line[:1000])
        if bar is None or done.get(bar[2]) != bar[1]:
            last = index
        if bar is not None:
            done[bar[2]] = bar[1]
    return "".join(lines[last:])


def handled(line: str) -> bool:
    """Return whether the line announces a retry, or that the program continues without."""
    found = _AGAIN.search(line[:2000])
    return found is not None and not _GIVEN_UP.search(line[:2000])
