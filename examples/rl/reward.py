"""The reward worker: rates actions."""

import threading

from common import best_actions, packed, serve, unpacked


def rewards(request: bytes) -> bytes:
    states, actions = unpacked(request)
    return packed((best_actions(states) == actions).float())


serve(rewards)
threading.Event().wait()
