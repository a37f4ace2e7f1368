"""A parameter server: a part of the parameters, and the step that each gradient makes in it.

It starts empty. The trainer sends it the newest values that it has seen, after a restart too.
"""

from typing import Any

from common import serve
from torch import Tensor

RATE = 0.01
held: dict[str, Tensor] = {}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    if "values" in request:
        held["values"] = request["values"]
    elif "gradient" in request and held:
        held["values"] -= RATE * request["gradient"]
    return {"values": held.get("values")}


serve(answer)
