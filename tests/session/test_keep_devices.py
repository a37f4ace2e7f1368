"""Groups on devices are aborted all together: by a stub with the interface of torch's ``ProcessGroupNCCL``.

No GPU is here. The stub has the methods that torch 2.13 itself calls to abort (``_abort_process_group`` in
``torch/distributed/distributed_c10d.py``: ``_get_backend``, ``_group_start``, ``abort``, ``_group_end``). That NCCL
returns from a collective then is not shown.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast.session.keep import groups, training_function

pytestmark = pytest.mark.torch


class Backend:
    """One group's backend; all write into one list what was called, in order."""

    def __init__(self, name: str, calls: list[str], *, broken: bool = False) -> None:
        self._name, self._calls, self._broken = name, calls, broken

    def _group_start(self) -> None:
        self._calls.append("start")

    def _group_end(self) -> None:
        self._calls.append("end")

    def abort(self) -> None:
        """Abort the communicator."""
        self._calls.append(f"abort {self._name}")
        if self._broken:
            raise dist.DistBackendError("NCCL error: unhandled system error")


class Plain:
    """The backend of a group of Gloo: ``abort`` does nothing."""

    def abort(self) -> None:
        """Do nothing."""


class Group:
    """A process group, with a backend for devices or without one."""

    def __init__(self, backend: Backend | Plain | None) -> None:
        self._backend = backend

    def _get_backend(self, device: torch.device) -> Backend | Plain:
        if self._backend is None:
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        return self._backend


def world(monkeypatch: pytest.MonkeyPatch, *made: Group, cuda: bool = True) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    known: Any = type("World", (), {"pg_map": dict.fromkeys(made)})()
    monkeypatch.setattr(dist.distributed_c10d, "_world", known)


def test_all_are_aborted_within_one_group_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other they would wait for each other; an error of one leaves no other, and the call is ended."""
    calls: list[str] = []
    tp, dp = Backend("tp", calls, broken=True), Backend("dp", calls)
    world(monkeypatch, Group(tp), Group(None), Group(dp))
    groups.break_off()
    assert calls == ["start", "abort tp", "abort dp", "end"]


def test_a_group_of_gloo_that_comes_first_leaves_it_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gloo has devices as well: its backend is found, and has no group call."""
    calls: list[str] = []
    world(monkeypatch, Group(Plain()), Group(Backend("tp", calls)), Group(Backend("dp", calls)))
    groups.break_off()
    assert calls == ["start", "abort tp", "abort dp", "end"]


def test_again_and_again_as_the_thread_does_that_drives_a_rank_out(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    world(monkeypatch, Group(Backend("dp", calls)))
    groups.break_off()
    groups.break_off()
    assert calls == ["start", "abort dp", "end"] * 2


def test_nothing_is_aborted_without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    world(monkeypatch, Group(Backend("dp", calls)), cuda=False)
    groups.break_off()
    world(monkeypatch, Group(None))
    groups.break_off()
    assert calls == []


class Epoch:
    """Acts of a rank as it leaves an epoch, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: str = "") -> None:
        self.done: list[str] = []
        self._error = error
        monkeypatch.setattr(groups, "break_off", lambda: self.done.append("break off"))
        monkeypatch.setattr(groups, "forget", lambda: self.done.append("forget"))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)

    def synchronize(self) -> None:
        self.done.append("synchronize")
        if self._error:
            raise RuntimeError(self._error)


def test_a_rank_has_left_when_its_gpu_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of the epoch would go on beside the next one."""
    epoch = Epoch(monkeypatch)
    training_function._leave()
    assert epoch.done == ["break off", "synchronize", "forget"]


def test_a_process_whose_gpu_failed_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its context fails at every call from then on: it ends with the GPU's error, whichever peer it lost first."""
    epoch = Epoch(monkeypatch, "CUDA error: uncorrectable ECC error encountered")
    with pytest.raises(RuntimeError, match="uncorrectable ECC"):
        training_function._leave()
    assert "forget" not in epoch.done


def test_torch_aborts_by_the_same_methods() -> None:
    """The control: where torch goes another way, the stub is not like it any more."""
    source = inspect.getsource(dist.distributed_c10d._abort_process_group)
    for called in (
        '_get_backend(torch.device("cuda"))',
        "backend._group_start()",
        ".abort()",
        "backend._group_end()",
    ):
        assert called in source
