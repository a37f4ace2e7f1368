"""A rank with an interpreter of its own: its job sets variables that are read when Python or a library is loaded.

Ranks are forked from a process that loaded both before it knew the job. There ``PYTHONPATH`` or ``TORCH_LOGS`` would
come too late, without a word. Such a rank's process is kept and executes Python once more, with the job's environment:
seconds more at each start, which jobs without such variables do not pay.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

ENV_ORDER = "HOLDFAST_RANK_ORDER"
"""The order of what to run, for the new interpreter; the script does not find it."""
_AT_LOAD = re.compile(
    "LD_|DYLD_|MALLOC_|GLIBC_TUNABLES$|PYTHON|(OMP|KMP|GOMP|MKL|OPENBLAS|NUMEXPR|BLIS)_"
    "|TORCHDYNAMO_|TORCHINDUCTOR_|TORCH_(LOGS|TRACE|COMPILE|DISTRIBUTED_DEBUG|CPP_LOG_LEVEL|SHOW_CPP_STACKTRACES"
    "|ALLOW_TF32|BLAS_PREFER|USE_|DEVICE_BACKEND)|PYTORCH_(JIT|NVML)"
)
_LATER = re.compile(
    # Applied to each rank anyway, read when they are needed, or of no effect on what a script computes.
    "(OMP_NUM_THREADS|TORCHINDUCTOR_CACHE_DIR|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE|PYTHONPYCACHEPREFIX"
    "|PYTHONNOUSERSITE)$"
)
_OF_ALLOCATOR = re.compile(r"PYTORCH_(CUDA_|HIP_)?ALLOC_CONF$")
_CHOSEN_AT_LOAD = "backend:"
"""The one of its options by which torch chooses the allocator itself; it refuses to go on with another one later."""
_MAIN = "from holdfast.agent.ranks import rank_main; rank_main.main()"


def needed(wanted: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Return the variables of ``wanted`` that only a new interpreter goes by, ``present`` being this one's."""
    return sorted(
        name for name, value in wanted.items() if _comes_too_late(name, value) and present.get(name) != value
    )


def _comes_too_late(name: str, value: str) -> bool:
    if _OF_ALLOCATOR.match(name):
        return _CHOSEN_AT_LOAD in value.replace(" ", "")
    return _AT_LOAD.match(name) is not None and _LATER.match(name) is None


def lost_cuda() -> bool:
    """Return whether a module that the fork server loaded asked for the GPUs there: torch refuses them in a fork then.

    None that is loaded without a setting does (``preload``); others, of a site's own choice, may.
    """
    of_torch = getattr(sys.modules.get("torch"), "_C", None)
    refused = getattr(of_torch, "_cuda_isInBadFork", None)
    return refused is not None and bool(refused())


def enter(order: Mapping[str, Any]) -> NoReturn:
    """Become a new interpreter that runs the order; it has the same pid, parent, priority and control group."""
    names = {**os.environ, **order["env"]}
    text = json.dumps({**order, "env": {}})
    os.execve(sys.executable, [sys.executable, "-P", "-c", _MAIN], {**names, ENV_ORDER: text})


def taken_order() -> dict[str, Any]:
    """Take the order that this interpreter was executed for; its environment is the interpreter's."""
    order = json.loads(os.environ.pop(ENV_ORDER))
    return {**order, "args": tuple(order["args"]), "env": dict(os.environ)}
