"""Names of machines: given once each, counted in a ConfigMap."""

from __future__ import annotations

import re

from holdfast.drivers.kubernetes import bodies
from holdfast.drivers.kubernetes.api import Api, ConflictError, Object, patiently
from holdfast.errors import SettingsError, UnknownError

_NAME = re.compile(r"(?:(?P<group>[a-z0-9](?:[a-z0-9-]{0,40}[a-z0-9])?)-)?m(?P<number>\d+)")
_GROUP = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
_RACE_S = 30.0


class MachineNames:
    """The ConfigMap ``holdfast-machines``; several processes may take names at once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{api.namespace}/configmaps/{bodies.ROSTER}"

    def read(self) -> Object:
        """Return the ConfigMap.

        Raises:
            SettingsError: it is not there.
        """
        try:
            return self._api.get(self._path)
        except UnknownError:
            raise SettingsError(
                f"namespace {self._api.namespace!r} has no ConfigMap {bodies.ROSTER!r}: apply "
                "deployments/kubernetes there, or name another namespace in HOLDFAST_KUBERNETES_NAMESPACE."
            ) from None

    def add(self, n: int, group: str) -> tuple[list[str], Object]:
        """Take ``n`` names that were never used; return them with the roster that owns the machines."""
        if group and not _GROUP.fullmatch(group):
            raise SettingsError(
                f"provision: group = {group!r}, expected small letters, digits and '-', at most 42."
            )

        def once() -> tuple[int, Object]:
            roster = self.read()
            first = number(roster)
            version = roster["metadata"]["resourceVersion"]
            return first, self._api.patch(self._path, bodies.taken_numbers(first, n, version))

        first, roster = patiently(once, ConflictError, timeout_s=_RACE_S)
        prefix = f"{group}-" if group else ""
        return [f"{prefix}m{number}" for number in range(first, first + n)], roster

    def ever_had(self, name: str) -> bool:
        """Return whether a machine of this name was ever made."""
        match = _NAME.fullmatch(name)
        return match is not None and int(match["number"]) < number(self.read())


def number(roster: Object) -> int:
    """Return the next free number."""
    value = (roster.get("data") or {}).get("next", "0")
    try:
        return int(value)
    except ValueError:
        raise SettingsError(
            f"ConfigMap {bodies.ROSTER!r}: next = {value!r}, expected the next free number."
        ) from None
