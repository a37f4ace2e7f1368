"""Holdfast: recovery playbooks for large training jobs, as Prefect flows.

A training script needs one name from here: :class:`holdfast.Session`. Importing it loads neither Prefect
nor scipy nor torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.session import Session

__version__ = "0.1.0"
__all__ = ["Session", "__version__"]

# An archive tool that flattens symbolic links leaves small text files where these folders should be.
_LINKED = ("flows", "tasks", "policies", "storage", "deployments")
_broken = [name for name in _LINKED if not (Path(__file__).parent / name / "__init__.py").is_file()]
if _broken:
    raise ImportError(
        f"holdfast is incomplete: {', '.join(_broken)} should be folders (symbolic links in a checkout). "
        "The archive it came from dropped its links; use `git clone` or `pip install`."
    )


def __getattr__(name: str) -> object:
    if name == "Session":
        from holdfast.session import Session  # noqa: PLC0415  (kept out of `import holdfast`)

        return Session
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
