"""Holdfast: recovery playbooks for large training jobs, as Prefect flows.

A training script needs :class:`holdfast.Session` from here. Importing this loads neither Prefect
nor scipy nor torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.savepoints import Savepoints
    from holdfast.session import Part, Session, run
    from holdfast.storage.checkpoints.format.flat import flat_shards

__version__ = "0.1.0"
__all__ = ["Part", "Savepoints", "Session", "__version__", "flat_shards", "run"]

# An archive tool that flattens symbolic links leaves small text files where these folders should be.
_LINKED = ("flows", "tasks", "policies", "storage", "deployments")
_broken = [name for name in _LINKED if not (Path(__file__).parent / name / "__init__.py").is_file()]
if _broken:
    raise ImportError(
        f"holdfast is incomplete: {', '.join(_broken)} should be folders (symbolic links in a checkout). "
        "The archive it came from dropped its links; use `git clone` or `pip install`."
    )


def __getattr__(name: str) -> object:
    if name in ("Part", "Session", "run"):
        from holdfast import session  # noqa: PLC0415  (kept out of `import holdfast`)

        return getattr(session, name)
    if name == "Savepoints":
        from holdfast.savepoints import Savepoints  # noqa: PLC0415  (as above)

        return Savepoints
    if name == "flat_shards":
        from holdfast.storage.checkpoints.format.flat import flat_shards  # noqa: PLC0415  (imports torch)

        return flat_shards
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
