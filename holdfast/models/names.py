"""Names that come from outside and end up in paths, object keys, URLs and command lines: one strict type for each.

Every model that carries one has these types, so a name that could leave its folder is refused wherever it enters. Two
things hold for all: the first character is a letter or digit (so no option, no hidden file, no ``..``), and the rest
are few (so no separators, spaces, control characters or letters that look like others).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

_JOB = "[a-z0-9][a-z0-9-]{0,62}"
_PLAIN = "[A-Za-z0-9][A-Za-z0-9._-]"
_MACHINE = f"{_PLAIN}{{0,62}}"

JobName = Annotated[str, Field(pattern=f"^{_JOB}$")]
"""Of a job: part of bucket keys, host names and labels."""
RunName = Annotated[str, Field(pattern=f"^{_JOB}(~[a-z0-9][a-z0-9_-]{{0,62}})?$")]
"""Of what an agent runs: a job, or beside it a replay or check (``<job>~<what>``)."""
MachineName = Annotated[str, Field(pattern=f"^{_MACHINE}$")]
"""Of a machine: a folder on it, a node or pod, a label."""
MachineOrNone = Annotated[str, Field(pattern=f"^({_MACHINE})?$")]
"""As :data:`MachineName`; empty: none."""
Version = Annotated[str, Field(pattern=f"^{_PLAIN}{{0,63}}$")]
"""Of a job's code: the folder of its checkout, part of its archive's key."""
VersionOrNone = Annotated[str, Field(pattern=f"^({_PLAIN}{{0,63}})?$")]
"""As :data:`Version`; empty: none."""
IncidentId = Annotated[str, Field(pattern=f"^{_PLAIN}{{0,99}}$")]
"""Of an incident: ``<job>-<number>``."""
Incarnation = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._:@-]{0,255})?$")]
"""Of a machine: the agent's life, and the engine's unit; empty: none is named."""
Rank = Annotated[int, Field(ge=0, lt=2**31)]
"""Of a process of a job."""


def _inside(key: str) -> str:
    if any(part in ("", ".", "..") for part in key.split("/")[:-1]) or key.rpartition("/")[2] in (".", ".."):
        raise ValueError("it has an empty part, '.' or '..' between its slashes")
    return key


ObjectKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._~/=-]{0,1023}$"), AfterValidator(_inside)]
"""Key, or prefix, of objects in the bucket."""
KeyOrNone = Annotated[
    str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._~/=-]{0,1023})?$"), AfterValidator(_inside)
]
"""As :data:`ObjectKey`; empty: none."""
