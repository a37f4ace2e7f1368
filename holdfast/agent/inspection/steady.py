"""Alerts from signs: one when a thing has become bad, after as many bad looks in a row as its sign requires."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.agent.inspection.base import MachineCheck, Sign
from holdfast.models.alert import Alert, Finding
from holdfast.models.alert_kinds.kind import AtALook


class Steady:
    """A :class:`~holdfast.agent.inspection.base.Detector` made of a check."""

    def __init__(
        self,
        machine: str,
        check: MachineCheck,
        interval_s: float,
        *,
        blocking: bool = False,
        again_s: float = 0.0,
        on_command: bool = True,
        look_soon: Callable[[], list[Sign]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = check.name
        self.interval_s = interval_s
        self.blocking = blocking
        self._machine = machine
        self._check = check
        self._clock = clock
        self._again_s = again_s
        self._on_command = on_command
        """Whether :meth:`inspect` looks: a recovery must not wait for what lies outside the machine."""
        self._look_soon = look_soon or check.look
        """How :meth:`inspect` looks."""
        self._bad: dict[str, tuple[int, float]] = {}  # key -> bad looks in a row, time of the first
        self._reported_at: dict[str, float] = {}
        self._pending: list[Alert] = []

    def poll(self) -> list[Alert]:
        """Return alerts for what became bad, and again for what stays bad where that is evidence."""
        now = self._clock()
        bad = {sign.key: sign for sign in self._check.look() if not sign.ok}
        self._bad = {key: self._again(key, now) for key in bad}
        due = [self._alert(sign, self._bad[key][1], now) for key, sign in bad.items() if self._due(sign, now)]
        self._reported_at = {key: at for key, at in self._reported_at.items() if key in bad}
        pending, self._pending = self._pending, []
        return pending + due

    def inspect(self) -> list[Finding]:
        """Return every sign; one that has to last, or lies outside the machine, is reported but not a failure.

        A look sees a change once: what it saw and may fire at once is kept for the next poll.
        """
        if not self._on_command:
            return []
        signs, now = self._look_soon(), self._clock()
        for sign in signs:
            if not sign.ok and sign.misses == 1 and sign.key not in self._bad:
                self._bad[sign.key], self._reported_at[sign.key] = (1, now), now
                self._pending.append(self._alert(sign, now, now))
        return [
            Finding(
                check=sign.kind.value,
                machine=self._machine,
                ok=sign.ok or not _held_against(sign),
                sure=sign.sure and not sign.ok,
                detail=sign.detail,
            )
            for sign in signs
        ]

    def _again(self, key: str, now: float) -> tuple[int, float]:
        looks, since = self._bad.get(key, (0, now))
        return looks + 1, since

    def _due(self, sign: Sign, now: float) -> bool:
        looks = self._bad[sign.key][0]
        again = sign.kind.row.repeats and now - self._reported_at.get(sign.key, now) >= self._again_s
        due = looks == sign.misses or (looks > sign.misses and again)
        if due:
            self._reported_at[sign.key] = now
        return due

    def _alert(self, sign: Sign, since: float, now: float) -> Alert:
        evidence = {"detail": sign.detail, **sign.evidence}
        evidence |= {
            name: value
            for name, value in (("device", sign.device), ("value", sign.value), ("limit", sign.limit))
            if value not in (None, "")
        }
        episode = now if sign.kind.row.repeats else since
        return Alert(
            kind=sign.kind,
            machine=self._machine,
            at=now,
            fingerprint=f"{sign.key}:{self._machine}:{episode:.3f}"[:300],
            evidence=evidence,
        )


def _held_against(sign: Sign) -> bool:
    """Return whether an inspection, which looks once, counts a bad sign as a failure of the machine."""
    if sign.evidence.get("harmless") is True:
        return False
    at_a_look = sign.kind.row.at_a_look
    return at_a_look is AtALook.ALWAYS or (at_a_look is AtALook.IMMEDIATE and sign.misses == 1)
