"""The GPU of a rank is that of its group, where the script names it there and sets no current one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from holdfast.session import rng

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("world", "expected"),
    [
        (SimpleNamespace(bound_device_id=torch.device("cuda", 3)), torch.device("cuda", 3)),
        (SimpleNamespace(bound_device_id=None), torch.device("cuda")),
        (None, torch.device("cuda")),
    ],
)
def test_random_state_is_taken_from_it_and_given_back_to_it(
    world: object, expected: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout draws from the device that it runs on: that of another one restores nothing of it."""
    asked: list[torch.device] = []

    def get(device: torch.device) -> torch.Tensor:
        asked.append(device)
        return torch.zeros(16, dtype=torch.uint8)

    def put(_: torch.Tensor, device: torch.device) -> None:
        asked.append(device)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", get)
    monkeypatch.setattr(torch.cuda, "set_rng_state", put)
    monkeypatch.setattr(dist.distributed_c10d, "_world", SimpleNamespace(default_pg=world))
    rng.apply(rng.capture())
    assert asked == [expected, expected]
