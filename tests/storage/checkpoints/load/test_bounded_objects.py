"""Objects of a checkpoint that ask for more memory or time than their size explains, or that no save wrote."""

from __future__ import annotations

import io
import pickle
import random
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.layout import dump_object
from holdfast.storage.checkpoints.load.safe_load import load_object
from tests.child_reads import outcomes_of
from tests.session.kinds.values import ARRAYS, CONTAINERS, GENERATORS, SCALARS, TENSORS

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
ROOM_BYTES = 256 << 20
LONGEST_S = 20.0  # of a processor that may be shared; without bounds it is minutes, or no end
"""Of the processor's time, for each object."""
READS = f"""
import io, pickle, resource, sys, time, warnings
warnings.simplefilter("ignore")
import torch
from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.layout import dump_object
from holdfast.storage.checkpoints.load.safe_load import load_object
contents = pickle.loads(sys.stdin.buffer.read())
torch.set_num_threads(1)
load_object(io.BytesIO(dump_object(torch.zeros(1))), "first")  # what is imported on the way
with open("/proc/self/statm") as file:
    taken = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + {ROOM_BYTES}, resource.getrlimit(resource.RLIMIT_AS)[1]))
resource.setrlimit(resource.RLIMIT_CPU, (300, 300))
for name, content in contents.items():
    began = time.process_time()
    try:
        load_object(io.BytesIO(content), "x")
        outcome = "read"
    except CheckpointError as error:
        outcome = "refused " + str(error)[:300].replace(chr(10), " ")
    except BaseException as error:
        outcome = "raises " + type(error).__name__ + " " + str(error)[:200].replace(chr(10), " ")
    if "memory" in outcome and "more memory than" not in outcome:
        outcome = "raises " + outcome
    took = time.process_time() - began
    if took > {LONGEST_S}:
        outcome = f"raises nothing in {{took:.1f}} s"
    print(name, outcome, sep=": ", flush=True)
"""
HEAD = dump_object(None).removesuffix(pickle.dumps(None, 2) + pickle.dumps([], 2))
TAIL = pickle.dumps([], 2)


def item(value: bytes) -> bytes:
    """An item whose object is this pickle, without its header and its stop."""
    return HEAD + b"\x80\x02" + value + b"." + TAIL


def named(path: str) -> bytes:
    """The name of a module's member."""
    module, _, name = path.rpartition(".")
    return b"c" + f"{module}\n{name}\n".encode()


def number(value: int) -> bytes:
    """A number of 64 bits."""
    return b"\x8a\x09" + value.to_bytes(9, "little")


def text(value: str) -> bytes:
    """A text."""
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def tensor(elements: int, size: int) -> bytes:
    """A row of so many elements, in a storage of so many."""
    storage = (
        b"("
        + text("storage")
        + named("torch.FloatStorage")
        + text("1")
        + text("cpu")
        + number(elements)
        + b"NtQ"
    )
    row = b"K\x00" + number(size) + b"\x85K\x01\x85\x89"
    return (
        named("torch._utils._rebuild_tensor_v2")
        + b"("
        + storage
        + row
        + named("collections.OrderedDict")
        + b")RtR"
    )


def zipped(value: Any) -> bytes:
    """An object as stock torch writes it."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def doubled(levels: int) -> bytes:
    """A tuple that holds the next one twice, so many levels deep."""
    return b")" + b"q\x01h\x01\x86" * levels


LARGE = 1 << 40
BOMBS: dict[str, bytes] = {
    "memo of gigabytes": item(b"Nr" + struct.pack("<I", 1 << 30)),
    "memo of terabytes, in text": item(b"Np%d\n" % LARGE),
    "an array as long as it says": HEAD + b"\x80\x05\x96" + struct.pack("<Q", 1 << 33) + b"." + TAIL,
    "bytearray(n)": item(named("builtins.bytearray") + number(1 << 33) + b"\x85R"),
    "bytes(n)": item(named("builtins.bytes") + number(1 << 33) + b"\x85R"),
    "set(range(n))": item(named("builtins.set") + named("builtins.range") + number(1 << 33) + b"\x85R\x85R"),
    "frozenset(range(n))": item(
        named("builtins.frozenset") + named("builtins.range") + number(1 << 33) + b"\x85R\x85R"
    ),
    "Counter(range(n))": item(
        named("collections.Counter") + named("builtins.range") + number(1 << 33) + b"\x85R\x85R"
    ),
    "encodings of names": item(named("_codecs.encode") + text("é" * 400_000) + text("punycode") + b"\x86R"),
    "a key that hashes for hours": item(b"}" + doubled(60) + b"Ns"),
    "a set whose element hashes for hours": item(named("builtins.set") + b"]" + doubled(60) + b"a\x85R"),
    "a NumPy type that lacks two of its facts": item(
        named("numpy.dtype")
        + text("u8")
        + b"\x89\x88\x87R(K\x03"
        + text("<")
        + b"N"
        + b"J\xff\xff\xff\xff" * 2
        + b"K\0tb"
    ),
    "lists in lists": item(b"]" * 200_000 + b"a" * 199_999),
    "tuples in tuples, as a key": item(b"})" + b"\x85" * 1_000_000 + b"Ns"),
    "a huge number, in text": item(b"L" + b"9" * 4_000_000 + b"L\n"),
    "a huge number, hashed again and again": item(
        b"\x8b"
        + struct.pack("<I", 1_000_000)
        + b"\x7f" * 1_000_000
        + b"q\x010}("
        + b"h\x01N" * 300_000
        + b"u"
    ),
    "marks without end": item(b"(" * 1_000_000),
    "a storage of terabytes": item(tensor(LARGE, 1)),
    "a tensor beyond its storage": item(tensor(1, LARGE)),
    "a tensor of n": item(named("torch.FloatTensor") + number(LARGE) + b"\x85R"),
    "a storage of n": item(named("torch.storage.UntypedStorage") + number(LARGE) + b"\x85R"),
    "an array of n": item(
        named("numpy.core.multiarray._reconstruct")
        + named("numpy.ndarray")
        + number(LARGE)
        + b"\x85C\x01b\x87R"
    ),
    "an array of n, new": item(named("numpy.ndarray") + number(LARGE) + b"\x85\x81"),
    "a number of n bytes": item(
        named("numpy.core.multiarray.scalar") + named("numpy.dtype") + text("V1000000000") + b"\x85R\x85R"
    ),
    "a generator of a seed": item(
        named("numpy.random._mt19937.MT19937")
        + b"\x8b"
        + struct.pack("<I", 400_000)
        + b"\x7f" * 400_000
        + b"\x85R"
    ),
    "an array of objects": item(named("numpy.dtype") + text("O8") + b"\x89\x88\x87R"),
}


CONTROLS = ("memo of gigabytes", "bytearray(n)", "a storage of terabytes")


def test_control_stock_readers_do_what_they_ask() -> None:
    """Or the test of bombs would show nothing."""
    stock = """
def stock(content, _):
    stream = io.BytesIO(content)
    try:
        for _ in range(4):
            pickle.Unpickler(stream).load()
    except pickle.UnpicklingError:
        pass  # names, of which the stock one does not know that they are torch's
    with torch.serialization.safe_globals([bytearray]):
        torch.load(io.BytesIO(content), weights_only=True)
for name, content"""
    reads = READS.replace("load_object(io.BytesIO(content), ", "stock(content, ").replace(
        "\nfor name, content", stock, 1
    )
    outcomes = outcomes_of(reads, {name: BOMBS[name] for name in CONTROLS}, timeout_s=300)
    assert {name: line.split()[0] for name, line in outcomes.items()} == dict.fromkeys(CONTROLS, "raises")


def _kinds() -> Mapping[str, Any]:
    return TENSORS | CONTAINERS | SCALARS | GENERATORS | ARRAYS


def readable() -> dict[str, bytes]:
    """Values that torch reads by itself, or with our names, of all kinds in the documentation, in both formats."""
    found = {}
    for name, at in _kinds().items():
        for form, write in (("stream", dump_object), ("zip", zipped)):
            try:
                content = write(at(3))
            except Exception:  # a class or a function that pickle refuses
                continue
            if len(content) < 20_000:
                found[f"{name} ({form})"] = content
    return found


def mutated(contents: Mapping[str, bytes], number: int, seed: int) -> dict[str, bytes]:
    """So many objects with bytes changed, cut out, doubled, or put from one into another; and random bytes."""
    drawn, names, made = random.Random(seed), sorted(contents), {}
    for each in range(number):
        content = bytearray(contents[drawn.choice(names)])
        for _ in range(drawn.randint(1, 4)):
            at = drawn.randrange(len(content) + 1)
            length = drawn.choice((1, 1, 2, 4, 30))
            way = drawn.randrange(5)
            if way == 0:
                content[at : at + 1] = bytes([drawn.randrange(256)])
            elif way == 1:
                del content[at : at + length]
            elif way == 2:
                content[at:at] = content[at : at + length] * drawn.randint(1, 3)
            elif way == 3:
                other = contents[drawn.choice(names)]
                start = drawn.randrange(len(other))
                content[at : at + length] = other[start : start + length]
            else:
                content[at:at] = drawn.choice(
                    (b"r\xff\xff\xff\x7f", b"R", b"\x81", b"b", b"\x8a\x06\0\0\0\0\0\1", b"h\x01", b"Q")
                )
        made[f"mutated {seed}/{each}"] = bytes(content)
    for each in range(number // 10):
        made[f"random {seed}/{each}"] = HEAD * drawn.randrange(2) + drawn.randbytes(drawn.randrange(300))
    return made


def test_what_no_writer_made_ends_soon_and_in_little_memory() -> None:
    """Bombs, mutated objects and random bytes are read, or refused with an error of ours; bombs are refused."""
    contents = BOMBS | mutated(readable(), 1500, seed=1)
    outcomes = outcomes_of(READS, contents, timeout_s=600)
    assert outcomes.keys() == contents.keys()
    assert {name: line for name, line in outcomes.items() if line.startswith("raises")} == {}
    assert {name: outcomes[name] for name in BOMBS if not outcomes[name].startswith("refused x: ")} == {}


def test_what_torch_would_make_of_unread_memory_is_refused() -> None:
    """Torch makes a nested tensor of a stream before it reads the sizes in it; an archive is read first."""
    value = torch.nested.nested_tensor([torch.ones(3), torch.ones(2)])
    with pytest.raises(CheckpointError, match="one-stream format"):
        load_object(io.BytesIO(dump_object({"in": [value]})), "x")
    loaded = load_object(io.BytesIO(zipped({"in": [value]})), "x")["in"][0]
    assert [each.tolist() for each in loaded.unbind()] == [[1, 1, 1], [1, 1]]


def _by_chance(content: bytes) -> bool:
    """Whether stock torch's outcome is one: it depends on memory that was not read."""
    return not content.startswith(b"PK") and b"_rebuild_nested_tensor" in content


def test_what_torch_reads_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind in the documentation is judged as without the bounds."""
    module = "holdfast.storage.checkpoints.load.safe_load.require_bounded"
    outcomes: list[dict[str, str]] = []
    # Once: some kinds are of another length each time, and those that are too long are left out.
    contents = {name: content for name, content in readable().items() if not _by_chance(content)}
    for bounded in (True, False):
        if not bounded:
            monkeypatch.setattr(module, lambda *_: None)
        read = {}
        for name, content in contents.items():
            try:
                read[name] = type(load_object(io.BytesIO(content), "x")).__name__
            except CheckpointError as error:
                read[name] = "refused: not trusted" if "not trusted" in str(error) else "refused"
        outcomes.append(read)
    assert [
        (name, one, outcomes[1][name]) for name, one in outcomes[0].items() if one != outcomes[1][name]
    ] == []
    assert sum(not line.startswith("refused") for line in outcomes[0].values()) > 100


@pytest.mark.parametrize(
    "value",
    [
        10**5000,
        {(1, ("a", frozenset({2}))): {1.5: [complex(1, 2)]}},
        {"large": list(range(20_000)), "row": {n: (n, str(n)) for n in range(5000)}},
        [np.random.RandomState(3).get_state(), torch.zeros(2, 3).expand(4, 2, 3)],
    ],
    ids=["digits", "keys", "many", "arrays"],
)
def test_ordinary_objects_are_read(value: Any) -> None:
    """Also long ones."""
    loaded = load_object(io.BytesIO(dump_object(value)), "x")
    assert pickle.dumps(loaded) == pickle.dumps(value) or str(loaded) == str(value)
