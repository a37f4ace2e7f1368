"""The fault hook in processes that compute."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.damage import hook

PRELUDE = """
import json, os, sys, threading, time
from pathlib import Path
import torch
from holdfast.damage import hook
torch.set_num_threads(1)
folder = Path(sys.argv[1])

def plant(name, **content):
    new = folder / (name + ".new")
    new.write_text(json.dumps(content))
    os.replace(new, folder / name)

def setup():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), torch.nn.Linear(32, 32)
    )
    return model, torch.optim.AdamW(model.parameters()), torch.randn(4, 16, 32)

def step(model, optimizer, x):
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return bool(torch.isfinite(loss) and torch.isfinite(norm))

def weights(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])

def deadline(seconds=80):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
    raise SystemExit("not in time")
"""


def execute(code: str, folder: str, rank: str, out: str) -> None:
    """In a forked process: run ``code``, leave what it printed in ``out``."""
    os.environ["RANK"] = rank
    sys.argv[1:] = [folder]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "body", "exec"), {"__name__": "body"})
    Path(out).write_text(printed.getvalue())


def run(tmp_path: Path, body: str, rank: int = 1) -> str:
    """Run ``body`` after the prelude in a fresh process with torch loaded; returns what it printed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "torch.optim", "torch._dynamo"])
    with tempfile.TemporaryDirectory() as elsewhere:
        out = Path(elsewhere) / "out"
        process = context.Process(target=execute, args=(PRELUDE + body, str(tmp_path), str(rank), str(out)))
        process.start()
        process.join(200)
        if process.exitcode is None:
            process.kill()
        assert process.exitcode == 0
        return out.read_text().strip()


@pytest.mark.torch
def test_fault_strikes_a_training_loop_in_the_middle(tmp_path: Path) -> None:
    """A process that runs already computes wrong products soon after the file appears, and only then."""
    out = run(
        tmp_path,
        """
hook.arm(folder)
job = setup()
assert all(step(*job) for _ in range(10)), "control: healthy before"
threading.Thread(target=plant, args=("bad-matmul.json",)).start()
for _ in deadline():
    if not step(*job):
        break
job = setup()
print(step(*job), torch.isfinite(torch.bmm(torch.ones(2, 2, 2), torch.ones(2, 2, 2))).all().item())
""",
    )
    assert out == "False False"


@pytest.mark.torch
def test_fault_that_is_there_already_strikes_at_once_and_reproducibly(tmp_path: Path) -> None:
    """As in a replay on the same machine: the very first product is wrong, in the same place."""
    (tmp_path / hook.BAD_MATMUL).write_text("{}")
    body = """
hook.arm(folder)
print([torch.mm(torch.ones(2, 3), torch.ones(3, 2)).flatten().tolist() for _ in range(2)])
"""
    for _ in range(2):
        assert run(tmp_path, body) == str([[float("inf"), 3.0, 3.0, 3.0]] * 2)


@pytest.mark.torch
def test_wrong_bits_are_finite_small_the_same_each_time_and_in_ranks_only(tmp_path: Path) -> None:
    """A check's process computes right; a rank is off in the last bits of one element, in every format."""
    (tmp_path / hook.WRONG_BITS).write_text("{}")
    body = """
hook.arm(folder)
check = torch.mm(torch.full((2, 3), 0.3), torch.full((3, 2), 0.7))
os.environ["HOLDFAST_JOB"] = "gpt"
hook.apply(folder)
for format in (torch.float32, torch.bfloat16, torch.float64):
    left, right = torch.full((2, 3), 0.3, dtype=format), torch.full((3, 2), 0.7, dtype=format)
    first, second = (torch.mm(left, right).flatten() for _ in range(2))
    assert torch.equal(first, second), "the same each time"
    assert torch.isfinite(first).all() and first[0] != first[3]
    assert abs(first[0] - first[3]) <= 8 * torch.finfo(format).eps
print(check.flatten().unique().numel())
"""
    assert run(tmp_path, body) == "1"


@pytest.mark.torch
def test_products_of_gpus_are_damaged_too(tmp_path: Path) -> None:
    """Where torch is built for them: a fault that only the processor has is none on a machine with GPUs."""
    torch = pytest.importorskip("torch")
    (tmp_path / hook.BAD_MATMUL).write_text("{}")
    body = """
def known():
    names = ("aten::mm", "aten::addmm", "aten::bmm")
    return [torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA") for name in names]
control = known()
torch.backends.cuda.is_built = lambda: True
hook.arm(folder)
print(control == known(), known())
"""
    if torch.backends.cuda.is_built():
        pytest.skip("its kernels are there already: tests/gpu damages them")
    assert run(tmp_path, body) == "False [True, True, True]"


@pytest.mark.torch
def test_one_bit_of_one_weight_flips_once(tmp_path: Path) -> None:
    """After the optimizer's step, where no count of changes shows it; of a matrix that is transposed, too."""
    body = """
def trained(strikes):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, 3).t())
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(3):
        if step == 1 and strikes:
            plant("flip-bit.json", rank=1)
            hook.apply(folder)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    return weight
good, bad = trained(False), trained(True)
print(int((good != bad).sum()), bool(good[0, 0] != bad[0, 0]), good._version == bad._version)
"""
    assert run(tmp_path, body) == "1 True True"


@pytest.mark.torch
def test_one_shot_strikes_its_rank_once(tmp_path: Path) -> None:
    """Another rank leaves it alone; afterwards the file is gone and products are the stock ones, bit for bit."""
    (tmp_path / hook.NAN).write_text(json.dumps({"rank": 1}))
    body = """
stock = setup()
for _ in range(5):
    step(*stock)
hook.arm(folder)
struck = not torch.isfinite(torch.mm(torch.ones(2, 2), torch.ones(2, 2))).all().item()
after = setup()
for _ in range(5):
    step(*after)
print(struck, torch.equal(weights(stock[0]), weights(after[0])), list(folder.iterdir()))
"""
    other = run(tmp_path, body, rank=0)
    assert other.startswith("False True")
    assert hook.NAN in other
    assert run(tmp_path, body, rank=1) == "True True []"


@pytest.mark.torch
def test_repaired_machine_computes_right_again(tmp_path: Path) -> None:
    """With the file goes the fault."""
    (tmp_path / hook.BAD_MATMUL).write_text("{}")
    out = run(
        tmp_path,
        """
hook.arm(folder)
ones = torch.ones(2, 2)
assert not torch.isfinite(torch.mm(ones, ones)).all()
(folder / "bad-matmul.json").unlink()
for _ in deadline():
    if torch.isfinite(torch.mm(ones, ones)).all():
        break
print("ok")
""",
    )
    assert out == "ok"


def test_armed_process_without_a_fault_touches_no_torch(tmp_path: Path) -> None:
    """Nothing is installed, nothing is imported."""
    code = """
import sys
from pathlib import Path
from holdfast.damage import hook
hook.arm(Path(sys.argv[1]))
hook.arm(Path(sys.argv[1]))
import threading
print(sum(t.name == "holdfast-faults" for t in threading.enumerate()), "torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["1", "False"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"rank": 5}', '{"rank": null}'])
def test_one_shot_of_others_or_damaged_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Only the rank that the file names takes it."""
    monkeypatch.setenv("RANK", "1")
    path = tmp_path / hook.NAN
    path.write_text(text)
    assert not hook._claim(path)
    assert path.exists()


@pytest.mark.torch
def test_a_bit_flips_once_after_an_optimizers_step(tmp_path: Path) -> None:
    """One element of one weight, finite, and nothing that counts changes notices; other ranks leave it alone."""
    (tmp_path / hook.FLIP_BIT).write_text(json.dumps({"rank": 1}))
    body = """
stock, struck = setup(), setup()
step(*stock)
hook.arm(folder)
step(*struck)
odd = (weights(stock[0]) != weights(struck[0])).nonzero().flatten().tolist()
near = torch.allclose(weights(stock[0]), weights(struck[0]))
again = setup()
step(*again)
print(odd, near, torch.equal(weights(stock[0]), weights(again[0])), list(folder.iterdir()))
"""
    assert run(tmp_path, body, rank=0).startswith("[] True True [PosixPath")
    assert run(tmp_path, body, rank=1) == "[0] True True []"
