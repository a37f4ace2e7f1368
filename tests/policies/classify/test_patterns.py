"""The registries of log patterns."""

from __future__ import annotations

import re
import re._constants as constants  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import SettingsError
from holdfast.policies.classify.patterns import (
    KERNEL_LOG_FILE,
    MAX_LINE,
    RANK_LOG_FILE,
    Pattern,
    printable,
    registry,
)
from tests.policies.alternatives import samples

RANK = registry(RANK_LOG_FILE)
ALL = [pattern for file in (KERNEL_LOG_FILE, RANK_LOG_FILE) for pattern in registry(file).patterns]

LINES = [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "cuda_out_of_memory"),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda_illegal_access"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "cuda_ecc"),
    ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "cuda_ecc"),
    ("RuntimeError: CUDA error: unspecified launch failure", "cuda_hardware"),
    ("RuntimeError: CUDA error: device-side assert triggered", "cuda_assert"),
    ("torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "cuda_lost"),
    ("RuntimeError: No CUDA GPUs are available", "gpu_missing"),
    (
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0])",
        "checkpoint_unloadable",
    ),
    (
        "holdfast.errors.CheckpointError: model.layers.0.weight: saved with another shape",
        "checkpoint_unloadable",
    ),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`", "cublas_error"),
    ("RuntimeError: CUDA error: invalid device ordinal", "gpu_missing"),
    ("RuntimeError: CUDA error: invalid configuration argument", "cuda_misused"),
    ("RuntimeError: CUDA error: invalid device context", "cuda_error"),
    (
        "[rank3]:[E1121 ProcessGroupNCCL.cpp:685] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=81, OpType=ALLREDUCE, NumelIn=1) ran for 600000 milliseconds before timing out.",
        "nccl_watchdog_timeout",
    ),
    (
        "Exception (either an error or timeout) detected by watchdog at work: 81, last enqueued: 82",
        "nccl_watchdog_exception",
    ),
    ("To avoid data inconsistency, we are taking the entire process down.", "nccl_abort"),
    ("RuntimeError: NCCL communicator was aborted on rank 3.", "nccl_abort"),
    (
        "node3:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.7<4711> with status=12 opcode=0",
        "rdma_retry_exceeded",
    ),
    ("node3:1:2 [0] NCCL WARN Call to ibv_modify_qp failed with error Connection timed out", "rdma_device"),
    ("ib_iface.c:1138 UCX  ERROR ibv_create_cq(cqe=256) failed: Connection timed out", "rdma_device"),
    ("ib_mlx5.c:93   UCX  ERROR mlx5dv_create_cq(cqe=4608) failed: Operation canceled", "rdma_device"),
    (
        "ib_iface.c:1138 UCX  ERROR ibv_create_cq(cqe=256) failed: Cannot allocate memory",
        "host_out_of_memory",
    ),
    ("Failed to modify QP to RTR: Connection timed out", "rdma_device"),
    (
        "ib_mlx5_log.c:177  Local QP operation on mlx5_0:1/IB (synd 0x2 vend 0x68 hw_synd 0/17)",
        "rdma_completion",
    ),
    (
        "init_worker(38): ucx function returned with failed status(ucx_init.c 38 init_worker Input/output error)",
        "mpi_fabric",
    ),
    ("AssertionError: tensor([[0.1250, nan, 1.5000]], device='cuda:0')", "not_finite_tensor"),
    (
        "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header",
        "numpy_mismatch",
    ),
    (
        "RuntimeError: module compiled against ABI version 0x1000009 but this version of numpy is 0x2000000",
        "numpy_mismatch",
    ),
    ("ImportError: numpy.core.multiarray failed to import", "numpy_mismatch"),
    ("ImportError: numpy._core.umath failed to import (auto-generated because", "numpy_mismatch"),
    (
        "ValueError: Error initializing torch.distributed using env:// rendezvous: "
        "environment variable MASTER_ADDR expected, but not set",
        "rank_untold",
    ),
    ("torch.distributed.DistBackendError: ncclRemoteError: A call failed", "nccl_peer_gone"),
    ("ncclUnhandledCudaError: Call to CUDA function failed.", "nccl_cuda"),
    ("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2033", "gloo_peer_lost"),
    ("Timed out waiting 1800000ms for recv operation to complete", "gloo_timeout"),
    ("[W1121 TCPStore.cpp:125] recvValue failed on SocketImpl(fd=3): failed to recv", "store_lost"),
    ("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.", "data_loader_killed"),
    ("RuntimeError: DataLoader worker (pid(s) 4711, 4712) exited unexpectedly", "data_loader_killed"),
    ("OSError: [Errno 12] Cannot allocate memory", "host_out_of_memory"),
    ("RuntimeError: unable to write to file </torch_4711_1_0>", "shared_memory_full"),
    ("OSError: [Errno 28] No space left on device", "disk_full"),
    ("OSError: [Errno 5] Input/output error: '/data/x'", "disk_error"),
    ("OSError: [Errno 116] Stale file handle", "mount_lost"),
    (
        'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "x"',
        "object_store",
    ),
    (
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries",
        "service_unavailable",
    ),
    ("wandb: ERROR CommError: Network error", "tracker_lost"),
    ("Fatal Python error: Segmentation fault", "segmentation_fault"),
    ("step 12 loss = nan", "not_finite"),
]


@pytest.mark.parametrize(("line", "name"), LINES)
def test_lines_are_recognised(line: str, name: str) -> None:
    """As PyTorch, NCCL, gloo and CUDA print them."""
    found = RANK.match(line)
    assert found is not None
    assert found.pattern.name == name


@pytest.mark.parametrize(
    "line",
    [
        "step 4 loss 2.31",
        "loading checkpoint shards",
        "CUDA_VISIBLE_DEVICES=0,1",
        "inference of nanometers",
        "the key pair was read; Connection refused is for others",
        "",
    ],
)
def test_ordinary_lines_mean_nothing(line: str) -> None:
    """Nothing is read into them."""
    assert RANK.match(line) is None


def test_evidence_comes_from_named_groups() -> None:
    """Sequence number and operation of the collective."""
    found = RANK.match(
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=81, OpType=ALLREDUCE, x)"
    )
    assert found is not None
    assert found.groups == {"seq": "81", "op": "ALLREDUCE"}


@pytest.mark.parametrize("pattern", ALL, ids=lambda pattern: pattern.name)
def test_no_expression_can_run_away(pattern: Pattern) -> None:
    """No unbounded repetition inside another, so that no line takes more than linear time per start."""

    def walk(node: Any, inside: bool) -> None:
        for code, argument in node:
            repeat = code in (constants.MAX_REPEAT, constants.MIN_REPEAT)
            endless = repeat and argument[1] == constants.MAXREPEAT
            assert not (endless and inside), pattern.regex
            below = [part for part in _parts(argument) if isinstance(part, parser.SubPattern)]
            for part in below:
                walk(part, inside or endless)

    walk(parser.parse(pattern.regex), False)


def _parts(argument: Any) -> list[Any]:
    if isinstance(argument, parser.SubPattern):
        return [argument]
    if isinstance(argument, list | tuple):
        return [found for part in argument for found in _parts(part)]
    return []


@pytest.mark.parametrize("pattern", ALL, ids=lambda pattern: pattern.name)
def test_hints_are_in_every_example(pattern: Pattern) -> None:
    """A hint is a plain word, not an expression."""
    assert all(hint and not re.search(r"\\[dws]", hint) for hint in pattern.hints)


@pytest.mark.parametrize("pattern", ALL, ids=lambda pattern: pattern.name)
def test_no_hint_hides_an_alternative(pattern: Pattern) -> None:
    """Whatever way the expression matches, one of its hints is there: else the line is never looked at."""
    texts = samples(pattern.regex)
    assert texts
    assert [text for text in texts if not any(hint in text for hint in pattern.hints)] == []


def test_a_hint_that_hides_an_alternative_is_seen() -> None:
    """The control."""
    hidden = Pattern(
        name="mount", regex="Stale (?:NFS )?file handle|gone", hints=("Stale file handle", "gone")
    )
    assert [text for text in samples(hidden.regex) if not any(hint in text for hint in hidden.hints)] == [
        "Stale NFS file handle"
    ]


@given(st.text(max_size=3000))
def test_any_text_is_only_data(text: str) -> None:
    """Matched or not: evidence is bounded and printable."""
    for found in RANK.matches(text + "\nCUDA error: " + text):
        assert len(found.line) <= 1000
        assert found.line.isprintable()
        assert all(value.isprintable() and len(value) <= 300 for value in found.groups.values())
    assert printable(text).isprintable()


def test_long_lines_are_cut_before_they_are_matched() -> None:
    """Megabytes without a newline."""
    assert RANK.match("x" * MAX_LINE + " CUDA out of memory") is None
    assert RANK.match("CUDA out of memory" + "x" * (4 << 20)) is not None


@pytest.mark.parametrize(
    "text",
    [
        "patterns: 5",
        "version: 1\nsource: s\ndate: d\npatterns:\n  - {name: a, hints: [x], regex: '('}",
        "- x",
        "{",
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, text: str) -> None:
    """With its path."""
    path = tmp_path / "patterns.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"patterns\.yaml"):
        registry(path)
