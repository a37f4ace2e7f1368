"""Kinds of values that a loader, a sampler or any other part may have in its state, and how they change by the step.

Each entry makes the value as of a step; a script that starts again has that of step 0.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import math
import pathlib
import pickle
import random
import threading
import types
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Make = Callable[[int], Any]
LARGE = 20_000
"""Elements of a tensor that counts as large everywhere."""


@dataclasses.dataclass(frozen=True)
class Value:
    """One kind."""

    name: str
    at: Make
    """The value at a step."""
    group: str
    """The row of the table in ``docs/checkpoints.md``."""
    refused: str = ""
    """Text in the error; empty: it comes back exactly."""


class Point(NamedTuple):
    x: int
    y: Any


@dataclasses.dataclass
class Record:
    count: int
    held: Any


@dataclasses.dataclass
class Begun:
    """With more than its fields."""

    seed: int

    def __post_init__(self) -> None:
        self.generator, self.drawn = random.Random(self.seed), torch.zeros(3)

    @functools.cached_property
    def lock(self) -> Any:
        """Made when it is asked for, and no state."""
        return threading.Lock()


def _begun(step: int) -> Any:
    made = Begun(3)
    for _ in range(step):
        made.drawn += made.generator.random()
    return made


@dataclasses.dataclass
class Dictionary(dict):  # type: ignore[type-arg]
    """Both; its entries are in no field."""

    count: int = 0


class Pointed(Point):
    """A named tuple that may have attributes."""


def _pointed(step: int) -> Any:
    made = Pointed(step, 0)
    made.label = "a"  # type: ignore[attr-defined]
    return {"f": made}


@dataclasses.dataclass(frozen=True)
class Frozen:
    count: int


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flag(enum.Flag):
    A = 1
    B = 2


class Mode(enum.StrEnum):
    A = "a"
    B = "b"


class Bits(enum.IntFlag):
    X = 1
    Y = 2
    Z = 4


@dataclasses.dataclass(slots=True)
class Slotted:
    count: int
    held: Any


class Kept:
    """A class with slots, some of them private."""

    __slots__ = ("__hidden", "kept")

    def keep(self, value: Any) -> None:
        self.kept, self.__hidden = value, [value]


@dataclasses.dataclass
class OnSlots(Kept):
    """With slots of another class beside its fields."""

    count: int


def _on_slots(step: int) -> Any:
    made = OnSlots(step)
    made.keep(torch.zeros(step))
    return made


class Plain:
    """An object that is its attributes."""

    def __init__(self, count: int) -> None:
        self.count, self.tensor = count, torch.arange(count)


class Own:
    """An object with a way of its own to be pickled."""

    def __reduce__(self) -> Any:
        return (Own, ())


class Scaled(Tensor):
    """Like the 8-bit state of an optimizer: whole numbers and a scale."""

    codes: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor) -> Scaled:
        made: Scaled = Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
        made.codes, made.scale = codes, scale
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["codes", "scale"], [True, torch.float32]

    @classmethod
    def __tensor_unflatten__(cls, parts: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Scaled:
        assert context == [True, torch.float32]
        return cls(parts["codes"], parts["scale"])

    @classmethod
    def __torch_dispatch__(cls, call: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if call in (torch.ops.aten.detach.default, torch.ops.aten.view.default):
            return cls(args[0].codes.detach(), args[0].scale.detach())
        raise NotImplementedError(call)

    def __repr__(self, **_: Any) -> str:
        return f"Scaled({list(self.shape)})"


def scaled(size: int, step: int) -> Scaled:
    return Scaled(torch.arange(size).add(step).to(torch.uint8), torch.tensor([step + 0.5]))


def _of_module(step: int) -> Any:
    """As an average of weights keeps it: torch's own has versions beside its entries."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(step)
    return {"shadow": model.state_dict(), "decay": 0.99}


def _workers(step: int) -> Any:
    """As a loader keeps it for each of its workers."""
    drawn, generator = np.random.default_rng(step), torch.Generator().manual_seed(step)
    return {
        f"worker_{each}": {
            "rng": generator.get_state(),
            "numpy": drawn.bit_generator.state,
            "at": (step, each),
        }
        for each in range(step)
    }


def _filled(kind: Any, entries: Any) -> Any:
    return kind(entries)


def _default(step: int) -> Any:
    made: Any = collections.defaultdict(list)
    for each in range(step):
        made[each].append(torch.tensor(each))
    return made


def _advanced(generator: Any, step: int) -> Any:
    for _ in range(step):
        generator.random()
    return generator


def _torch_generator(step: int) -> torch.Generator:
    made = torch.Generator().manual_seed(7)
    torch.rand(step, generator=made)
    return made


def _bytes_io(step: int) -> io.BytesIO:
    made = io.BytesIO(b"0123456789" * (step + 1))
    made.seek(step)
    return made


def _recipe(step: int) -> Any:
    """As TransformerEngine stores its FP8 recipe: pickled into bytes, as a tensor of them."""
    history = {"amax": [0.5] * step, "scale": step}
    return torch.frombuffer(bytearray(pickle.dumps(history)), dtype=torch.uint8).clone()


def _shared(step: int) -> Any:
    whole = torch.arange(12.0) + step
    return {"whole": whole, "head": whole[:4], "tail": whole[6:]}


def _shared_large(step: int) -> Any:
    """Views before and after the whole, some small; one more has the same elements in another order."""
    whole = torch.arange(LARGE * 1.0) + step
    return {
        "head": whole[:4],
        "tail": whole[LARGE // 2 :],
        "whole": whole,
        "matrix": whole.view(-1, 100).t(),
        "bytes": whole.view(torch.uint8)[3:9],
    }


def _noted(tensor: Tensor, step: int) -> Tensor:
    """With attributes of the script's, one of them a tensor with an attribute."""
    noted: Any = tensor
    noted.label, noted.more = f"a{step}", [torch.zeros(step)]
    noted.more[0].scale = step
    return tensor


def _conjugated(size: int) -> Make:
    """Views of one memory, of which some are conjugated or negated."""

    def make(step: int) -> Any:
        one = torch.complex(torch.arange(size * 1.0), torch.arange(size * 1.0) + step)
        other = torch.complex(torch.ones(size), torch.zeros(size) + step)
        return {
            "one": one,
            "conj": one.conj(),
            "imag": one.imag,
            "negated": one.conj().imag,
            "half": other[size // 2 :].conj(),
            "other": other,
            "other negated": [other.conj().imag],
        }

    return make


def _conjugated_pair(step: int) -> Any:
    one = torch.complex(torch.ones(LARGE), torch.zeros(LARGE) + step + 1)
    return [one, one.conj()]


def _negated_pair(step: int) -> Any:
    one = torch.complex(torch.ones(LARGE), torch.zeros(LARGE) + step + 1)
    return [one.imag, one.conj().imag]


def _same_twice(size: int) -> Make:
    def make(step: int) -> Any:
        one = torch.arange(size) + step
        return {"a": one, "b": [one]}

    return make


def _one_twice(make: Make) -> Make:
    """A container or object with a tensor in it, in two places at two depths, and an equal one beside it."""

    def made(step: int) -> Any:
        one = make(step)
        return {"a": one, "b": [1, {"c": one}], "other": make(step)}

    return made


def _inside_of_each_other(step: int) -> Any:
    inner = [torch.zeros(2) + step]
    outer = {"inner": inner, "again": (inner,)}
    return [outer, inner, outer, collections.deque([outer], 2)]


def _windows(step: int) -> Any:
    """Arrays of one memory: one of another type, one that cannot be written, and one of an array that is not there."""
    whole, days = np.arange(10) + step, np.array(["2026-01-01", "2026-01-02"], dtype="M8[s]")
    last = whole[6:]
    last.flags.writeable = False
    absent = np.asfortranarray(np.arange(6.0).reshape(2, 3) + step)
    return {
        "head": whole[:4],
        "last": last,
        "whole": whole,
        "bytes": whole.view(np.uint8)[3:9],
        "backwards": [whole[::-2]],
        "first column": absent[:, 0],
        "row": absent[1],
        "days": days,
        "day": days[1:],
    }


def _aligned(step: int) -> Any:
    inner = np.dtype([("flag", "?"), ("count", "<i8")], align=True)
    made = np.zeros(3, np.dtype([("mark", "i1"), ("in", inner, (2,)), ("end", "<f4")], align=True))
    made["in"]["count"] = step
    return [made, made[0].copy(), made["in"].copy()]


def _odd_types(step: int) -> Any:
    """Fields that overlap or have titles, types with a note of their own, records."""
    overlapping = np.dtype({"names": ["all", "low"], "formats": ["<u4", "<u2"], "offsets": [0, 0]})
    records = np.rec.array([(step, 2.0)], dtype=[("a", "i4"), ("b", "f4")])
    return [
        np.full(3, step, "<u4").view(overlapping),
        np.zeros(2, np.dtype([(("title", "name"), "i1")])),
        np.arange(step, dtype=np.dtype("i4", metadata={"unit": "m", "at": [1, "a"]})),
        records[0],
        np.asarray(records),
    ]


def _orders(step: int) -> Any:
    """Arrays whose axes lie in memory in another order, also with gaps."""
    whole = np.arange(24.0).reshape(2, 3, 4) + step
    return [
        whole.transpose(2, 0, 1).copy(order="K"),
        whole.transpose(1, 0, 2).copy(order="K"),
        whole[:, :, ::2].T.copy(order="K")[:, ::2],
    ]


def _frozen_array(step: int) -> Any:
    made = np.arange(5) + step
    made.flags.writeable = False
    return made


def _one_bit_generator(step: int) -> Any:
    bits = np.random.PCG64(3)
    first, second = np.random.Generator(bits), np.random.Generator(bits)
    return {"a": _advanced(first, step), "b": second, "bits": bits}


def _both_memories(step: int) -> Any:
    made = np.arange(9) + step
    return {"t": torch.from_numpy(made)[2:], "f": made}


def _structured(step: int) -> Any:
    made = np.zeros(3, dtype=[("id", "<i4"), ("weight", "<f8"), ("name", "U5")])
    made["id"] = step
    return made


def _deep(step: int) -> Any:
    value: Any = step
    for _ in range(40):
        value = {"in": [value]}
    return value


def _cycle(step: int) -> Any:
    made: list[Any] = [step]
    made.append(made)
    return made


def _generator_object(step: int) -> Any:
    return (each for each in range(step))


_floats = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_eights = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_whole = (torch.int8, torch.int16, torch.int32, torch.int64)
_unsigned = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
_complex = (torch.complex64, torch.complex128, torch.complex32)


def _dtypes(kinds: Any, size: int) -> Make:
    return lambda n: {str(each): (torch.arange(size) % 50 + n).to(torch.float32).to(each) for each in kinds}


def _e8m0(n: int) -> Tensor:
    return torch.full((9,), 120 + n, dtype=torch.uint8).view(torch.float8_e8m0fnu)


TENSORS: dict[str, Make] = {
    "tokens that grow": lambda n: torch.arange(n * 7),
    "tokens that grow, large": lambda n: torch.arange(LARGE + n * 7),
    "tokens that shrink": lambda n: torch.arange(LARGE - n * 3000),
    "tokens of another rank": lambda n: torch.zeros((2,) * (n + 1)),
    "small becomes large": lambda n: torch.zeros(5 if n < 3 else LARGE) + n,
    "large becomes small": lambda n: torch.zeros(LARGE if n < 3 else 5) + n,
    "type changes": lambda n: torch.arange(5) if n < 3 else torch.tensor([7.5, n]),
    "type changes, large": lambda n: (torch.zeros(LARGE) + 7.5).to(torch.int64 if n < 3 else torch.float64),
    "None becomes tensor": lambda n: None if n < 2 else torch.arange(n),
    "None becomes tensor, large": lambda n: None if n < 2 else torch.full((LARGE,), n),
    "tensor becomes None": lambda n: torch.arange(3) if n < 2 else None,
    "large tensor becomes None": lambda n: torch.zeros(LARGE) if n < 3 else None,
    "tensor becomes dict": lambda n: torch.zeros(LARGE) if n < 3 else {"a": torch.zeros(LARGE)},
    "dict becomes tensor": lambda n: {"a": torch.zeros(LARGE)} if n < 3 else torch.zeros(LARGE),
    "number becomes tensor": lambda n: n if n < 3 else torch.tensor(n),
    "floats": _dtypes(_floats, 9),
    "floats, large": _dtypes(_floats, LARGE),
    "8-bit floats": _dtypes(_eights, 9),
    "8-bit floats, large": _dtypes(_eights, 70_000),
    "8-bit scales": _e8m0,
    "integers": _dtypes(_whole, 9),
    "unsigned integers": _dtypes(_unsigned, 9),
    "unsigned integers, large": _dtypes(_unsigned, LARGE),
    "booleans": lambda n: torch.arange(9) % 2 == n % 2,
    "complex tensors": _dtypes(_complex, 9),
    "complex tensors, large": _dtypes(_complex, LARGE),
    "no dimension": lambda n: torch.tensor(n + 0.5),
    "empty": lambda n: torch.empty(0, n, 3),
    "expanded": lambda n: torch.tensor([1.0 + n]).expand(4, 5),
    "expanded, large": lambda n: torch.full((1, 1), 1.0 + n).expand(300, 300),
    "transposed": lambda n: (torch.arange(12.0) + n).view(3, 4).t(),
    "transposed, large": lambda n: (torch.arange(LARGE * 1.0) + n).view(-1, 100).t(),
    "every second": lambda n: (torch.arange(LARGE * 2) + n)[::2],
    "channels last": lambda n: (torch.zeros(2, 3, 4, 5) + n).to(memory_format=torch.channels_last),
    "conjugated": lambda n: torch.complex(torch.arange(4.0), torch.arange(4.0) + n).conj(),
    "conjugated, large": lambda n: torch.complex(torch.ones(LARGE), torch.zeros(LARGE) + n).conj(),
    "negated view": lambda n: torch.complex(torch.arange(4.0), torch.arange(4.0) + n).conj().imag,
    "not a number": lambda n: torch.tensor([math.nan, math.inf, -math.inf, -0.0, n]),
    "not a number, with its payload": lambda n: [
        torch.tensor([0x7FC00001, 0x7F800001, 0x7FC12345 + n], dtype=torch.int32).view(torch.float32),
        (torch.zeros(LARGE, dtype=torch.int16) + 0x7E01 + n).view(torch.float16),
        torch.tensor([0x7FC1, 0x7F81], dtype=torch.int16).view(torch.bfloat16),
    ],
    "backwards and overlapping": lambda n: [
        (torch.arange(LARGE) + n).flip(0),
        (torch.arange(10.0) + n).as_strided((4, 4), (1, 1)),
        (torch.arange(4.0) + n).view(4, 1).expand(4, 300),
    ],
    "no dimension, every type": lambda n: [
        torch.tensor(n % 2 == 0),
        torch.tensor(n, dtype=torch.int8),
        torch.tensor(n + 1j, dtype=torch.complex32),
        torch.empty(n, 0, dtype=torch.bool).t(),
    ],
    "sparse COO": lambda n: torch.sparse_coo_tensor([[0, n]], [1.0, n], (9,)),
    "sparse CSR": lambda n: (torch.eye(4) * (n + 1)).to_sparse_csr(),
    "sparse CSC": lambda n: (torch.eye(4) * (n + 1)).to_sparse_csc(),
    "sparse BSR": lambda n: (torch.eye(4) * (n + 1)).to_sparse_bsr((2, 2)),
    "quantized": lambda n: torch.quantize_per_tensor(torch.arange(4.0) + n, 0.5, 1, torch.qint8),
    "nested": lambda n: torch.nested.nested_tensor([torch.ones(n), torch.ones(2)]),
    "nested, needs a gradient": lambda n: [
        torch.nested.nested_tensor([torch.ones(n), torch.ones(2)], requires_grad=True),
        torch.nn.Parameter(torch.nested.nested_tensor([torch.ones(n)]), requires_grad=False),
    ],
    "nested, nothing in it": lambda n: torch.nested.nested_tensor([], dtype=torch.float64),
    "nested, jagged": lambda n: torch.nested.nested_tensor(
        [torch.ones(n + 1), torch.ones(2)], layout=torch.jagged
    ),
    "subclass": lambda n: scaled(100, n),
    "subclass, large": lambda n: scaled(80_000, n),
    "subclass appears": lambda n: None if n < 2 else scaled(80_000, n),
    "parameter": lambda n: torch.nn.Parameter(torch.zeros(3) + n),
    "parameter, large, frozen": lambda n: torch.nn.Parameter(torch.zeros(LARGE) + n, requires_grad=False),
    "needs a gradient": lambda n: (torch.zeros(3) + n).requires_grad_(),
    "with attributes": lambda n: _noted(torch.zeros(3) + n, n),
    "with attributes, large": lambda n: _noted(torch.zeros(LARGE) + n, n),
    "with attributes, parameters": lambda n: [
        _noted(torch.nn.Parameter(torch.zeros(3) + n), n),
        _noted(torch.nn.Parameter(torch.zeros(LARGE) + n, requires_grad=False), n),
    ],
    "with attributes that come and go": lambda n: _noted(torch.zeros(3), n) if n % 2 else torch.zeros(3),
    "with attributes, twice": _one_twice(lambda n: _noted(torch.zeros(3) + n, n)),
    "one parameter twice": _one_twice(lambda n: torch.nn.Parameter(torch.zeros(3) + n)),
    "one sparse tensor twice": _one_twice(lambda n: (torch.eye(4) * (n + 1)).to_sparse_csr()),
    "one subclass twice": _one_twice(lambda n: scaled(100, n)),
    "conjugated beside what it is of": _conjugated(8),
    "conjugated beside what it is of, large": _conjugated(LARGE),
    "conjugated, and the same elements": _conjugated_pair,
    "negated, and the same elements": _negated_pair,
    "the same tensor twice": _same_twice(5),
    "the same large tensor twice": _same_twice(LARGE),
    "views of one memory": _shared,
    "views of one memory, large": _shared_large,
    "FP8 recipe": _recipe,
    "a small part of much memory": lambda n: (torch.zeros(LARGE) + n)[5:8],
    "large beside its growing neighbour": lambda n: [torch.zeros(LARGE) + n, torch.zeros(LARGE + n)],
}
CONTAINERS: dict[str, Make] = {
    "list of tensors that grows": lambda n: [torch.arange(each) for each in range(n)],
    "list of large tensors that grows": lambda n: [torch.zeros(LARGE) + each for each in range(n)],
    "list that empties": lambda n: [torch.zeros(LARGE)] * (3 - min(n, 3)),
    "list of dicts that grows": lambda n: [{"t": torch.tensor(each), "k": each} for each in range(n)],
    "dict gains keys": lambda n: {f"k{each}": each for each in range(n)},
    "dict loses keys": lambda n: {f"k{each}": torch.zeros(LARGE) for each in range(9 - n)},
    "dict changes its order": lambda n: {f"k{(each * n) % 5}": each for each in range(5)},
    "dict becomes list": lambda n: {"a": torch.zeros(LARGE)} if n < 3 else [torch.zeros(LARGE)],
    "empty dict, list, tuple": lambda n: {"d": {}, "l": [], "t": (), "in": [{}, [], ()]},
    "integer keys": lambda n: {n: "a", 7: {3: n}},
    "integer keys beside tensors": lambda n: {0: torch.zeros(2) + n, 1: torch.zeros(LARGE) + n, "0": n},
    "keys of many types": lambda n: {
        1.5: n,
        None: 1,
        True: torch.ones(2),
        (1, "a"): torch.zeros(LARGE),
        b"x": n,
        frozenset({1}): 3,
    },
    "integer and text key that look alike": lambda n: {1: torch.zeros(LARGE) + n, "1": torch.ones(LARGE) + n},
    "keys with a dot": lambda n: {"a.b": n, "c.d": torch.zeros(LARGE) + n},
    "keys that collide": lambda n: {"a.b": torch.zeros(LARGE) + n, "a": {"b": torch.ones(LARGE) + n}},
    "keys that collide, plain": lambda n: {"a.b": n, "a": {"b": -n}},
    "empty and odd keys": lambda n: {"": n, ".": torch.zeros(LARGE) + n, "/": 2, "a/b": 3, "@ref": 4, " ": 5},
    "names of the format itself": lambda n: {"structure/0": n, "rng/0": [n], "own/0.x": torch.zeros(LARGE)},
    "tuples that look like the format": lambda n: [("@ref", "x", "cpu", None), ("@raw", n), ("tuple", [n])],
    "unicode keys": lambda n: {"ключ": n, "鍵": torch.zeros(LARGE) + n, "🗝": "é", "e\u0301": 1},
    "deque": lambda n: collections.deque([torch.zeros(each) for each in range(n)], maxlen=2),
    "deque without a bound": lambda n: collections.deque(range(n)),
    "deque of large tensors": lambda n: collections.deque([torch.zeros(LARGE) + e for e in range(n)], 2),
    "namedtuple": lambda n: Point(n, torch.zeros(n)),
    "namedtuple with a large tensor": lambda n: Point(n, torch.zeros(LARGE) + n),
    "dataclass": lambda n: Record(n, [torch.zeros(n)]),
    "frozen dataclass": Frozen,
    "dataclass with more than its fields": _begun,
    "dataclass on a class with slots": _on_slots,
    "dataclass with a large tensor": lambda n: Record(n, torch.zeros(LARGE) + n),
    "enum": lambda n: [Colour.RED if n < 3 else Colour.BLUE, Level.HIGH, Flag.A | Flag.B],
    "Counter": lambda n: _filled(collections.Counter, {"a": n, 3: 1}),
    "defaultdict": _default,
    "OrderedDict": lambda n: _filled(collections.OrderedDict, [("b", n), ("@ref", torch.zeros(n))]),
    "OrderedDict of large tensors": lambda n: collections.OrderedDict(b=torch.zeros(LARGE) + n, a=n),
    "sets": lambda n: [set(range(n)), frozenset({"a", n}), {1, "a", None}, set()],
    "tuples": lambda n: (n, (torch.zeros(n), [(1,)])),
    "tuple with a large tensor": lambda n: (n, torch.zeros(LARGE) + n),
    "nested deeply": _deep,
    "argparse.Namespace": lambda n: argparse.Namespace(lr=1e-3 * n, layers=[n], **{"data dir": "x"}),
    "SimpleNamespace": lambda n: types.SimpleNamespace(a=n, b=torch.zeros(n)),
    "object of plain attributes": Plain,
    "state dictionary of a module": _of_module,
    "dataclass with slots": lambda n: Slotted(n, torch.zeros(n)),
    "dataclass with slots, large": lambda n: Slotted(n, torch.zeros(LARGE) + n),
    "enum keys": lambda n: {
        Colour.RED: n,
        Colour.BLUE: torch.zeros(LARGE) + n,
        Mode.A: {"in": n},
        (Mode.A, n): 1,
    },
    "enums of text and of flags": lambda n: [Mode.A, {"b": Mode.B}, Bits.X | Bits.Z if n < 3 else Bits(0)],
    "not a number as a key": lambda n: {math.nan: n, -0.0: torch.zeros(LARGE) + n},
    "states of workers": _workers,
    "keys of thousands of digits": lambda n: {10**5000 + n: n, (1, 10**5000): [torch.zeros(n)]},
    "set of numbers of thousands of digits": lambda n: {10**5000 + n, "a"},
    "very large dict": lambda n: {f"sample/{each}": (each, n) for each in range(5_000)},
    "very large dict of tensors": lambda n: {each: torch.tensor(each + n) for each in range(500)},
    "torch.Size": lambda n: torch.Size([n, 2]),
    "the same list twice": lambda n: [[n]] * 2,
    "one list of tensors twice": _one_twice(lambda n: [torch.zeros(2) + n, n]),
    "one list of large tensors twice": _one_twice(lambda n: [torch.zeros(LARGE) + n]),
    "one dict of tensors twice": _one_twice(lambda n: {"t": torch.zeros(2) + n, n: 1}),
    "one deque twice": _one_twice(lambda n: collections.deque([torch.zeros(2) + n], 3)),
    "one OrderedDict twice": _one_twice(lambda n: collections.OrderedDict(n=torch.zeros(2) + n)),
    "one set twice": _one_twice(lambda n: {n, "a"}),
    "one dataclass twice": _one_twice(lambda n: Record(n, torch.zeros(2) + n)),
    "one dataclass with slots twice": _one_twice(lambda n: Slotted(n, torch.zeros(2) + n)),
    "one object of attributes twice": _one_twice(Plain),
    "containers inside of each other twice": _inside_of_each_other,
}
SCALARS: dict[str, Make] = {
    "numbers": lambda n: [n, -n, 2**200 + n, n + 0.1, True, None, complex(1, n)],
    "odd floats": lambda n: [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e308],
    "number changes its type": lambda n: n if n < 3 else n + 0.5,
    "text": lambda n: ["é🙂\x00\n" * n, "", "\ud800"],
    "text of a MiB": lambda n: f"{n}" * (1 << 20),
    "bytes that grow": lambda n: b"\x00\xff" * n,
    "bytes that empty": lambda n: b"\x00\xff" * (3 - min(n, 3)),
    "bytes of a MiB": lambda n: bytes([n]) * (1 << 20),
    "bytearray": bytearray,
    "BytesIO": _bytes_io,
    "dates": lambda n: [
        datetime.datetime(2026, 1, 1 + n, tzinfo=datetime.UTC),
        datetime.datetime(2026, 1, 1 + n, fold=1),
        datetime.date(2026, 1, 1 + n),
        datetime.time(n),
        datetime.timedelta(days=-n, microseconds=1),
        datetime.timezone(datetime.timedelta(hours=n)),
        datetime.timezone(datetime.timedelta(hours=n), "of its own"),
        datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=n), "CET")),
        datetime.time(n, fold=1, tzinfo=datetime.timezone(datetime.timedelta(0), "GMT")),
    ],
    "Decimal and Fraction": lambda n: [decimal.Decimal("1.10") * n, fractions.Fraction(n, 3)],
    "paths": lambda n: [pathlib.Path("/data") / str(n), pathlib.PurePosixPath("a")],
    "range and slice": lambda n: [range(0, n, 2), slice(None, n), slice(1, 2, 3)],
    "UUID": lambda n: uuid.UUID(int=n),
    "torch types and devices": lambda n: [torch.bfloat16, torch.device("cpu"), ...],
}


def _with_children(generator: np.random.Generator, count: int) -> np.random.Generator:
    generator.spawn(count)
    return generator


def _gaussian(state: np.random.RandomState, count: int) -> np.random.RandomState:
    state.standard_normal(count)
    return state


GENERATORS: dict[str, Make] = {
    "random.Random": lambda n: _advanced(random.Random(3), n),
    "one random.Random twice": _one_twice(lambda n: _advanced(random.Random(3), n)),
    "numpy Generator": lambda n: _advanced(np.random.default_rng(3), n),
    "numpy Generator, other bits": lambda n: _advanced(np.random.Generator(np.random.MT19937(3)), n),
    "numpy Philox": lambda n: _advanced(np.random.Generator(np.random.Philox(3)), n),
    "numpy Generators of one bit generator": _one_bit_generator,
    "numpy Generator with children": lambda n: _with_children(np.random.default_rng(3), n),
    "numpy RandomState": lambda n: _advanced(np.random.RandomState(3), n),
    "numpy RandomState after a Gaussian": lambda n: np.random.RandomState(n).get_state(),
    "torch.Generator": _torch_generator,
    "numpy RandomState, other bits": lambda n: _gaussian(np.random.RandomState(np.random.PCG64(3)), n),
}
ARRAYS: dict[str, Make] = {
    "numpy arrays": lambda n: {
        each: (np.arange(9) + n).astype(each) for each in "?bBhHiIlLqQefdgFDG" if each not in "gG"
    },
    "numpy arrays of any length": lambda n: np.arange(n * 3),
    "numpy array, large": lambda n: np.arange(LARGE) + n,
    "numpy structured": _structured,
    "numpy without a dimension": np.array,
    "numpy Fortran order": lambda n: np.asfortranarray(np.arange(6.0).reshape(2, 3) + n),
    "numpy text and dates": lambda n: [np.array(["a" * n, "b"]), np.array(["2026-01-01"], dtype="M8[s]")],
    "numpy big endian": lambda n: np.arange(4, dtype=">i4") + np.array(n, dtype=">i4"),
    "numpy scalars": lambda n: [np.float32(n + 0.1), np.int8(n), np.bool_(True), np.float64(0.1)],
    "numpy, aligned fields": _aligned,
    "numpy, odd types": _odd_types,
    "numpy, axes in another order": _orders,
    "numpy strided": lambda n: (np.arange(20) + n)[::2],
    "numpy empty": lambda n: np.empty((0, n)),
    "one numpy array twice": _one_twice(lambda n: np.arange(3) + n),
    "numpy read-only": _frozen_array,
    "numpy arrays of one memory": _windows,
}


def _with_function(step: int) -> Any:
    made: Any = torch.zeros(2)
    made.hook = lambda: step
    return {"f": [made]}


REFUSED: dict[str, tuple[Make, str]] = {
    "lambda": (lambda n: {"f": [lambda: n]}, "extra.value.f.0"),
    "open file": (lambda n: {"f": open("/dev/null")}, "extra.value.f"),  # noqa: SIM115
    "lock": (lambda n: {"f": threading.Lock()}, "extra.value.f"),
    "generator": (lambda n: {"f": _generator_object(n)}, "extra.value.f"),
    "thread": (lambda n: {"f": threading.Thread()}, "extra.value.f"),
    "module": (lambda n: {"f": math}, "extra.value.f"),
    "function": (lambda n: {"f": difference_of}, "extra.value.f"),
    "own way to be pickled": (lambda n: {"f": Own()}, "extra.value.f"),
    "class made in a function": (lambda n: {"f": collections.namedtuple("Local", "a")(n)}, "extra.value.f"),
    "itself": (_cycle, "extra.value"),
    "attribute of a tensor": (_with_function, "extra.value.f.0.hook"),
    "meta tensor": (lambda n: {"f": torch.empty(3, device="meta")}, "extra.value.f"),
    "dataclass that is a dictionary": (lambda n: {"f": Dictionary(n)}, "extra.value.f"),
    "namedtuple with attributes": (_pointed, "extra.value.f"),
    "tensors as keys": (lambda n: {"f": {torch.zeros(2): n}}, "extra.value.f"),
    "parameters as keys": (lambda n: {"f": {torch.nn.Parameter(torch.zeros(LARGE)): n}}, "extra.value.f"),
    "set of tensors": (lambda n: {"f": {torch.zeros(2), torch.ones(2)}}, "extra.value.f"),
    "array in the memory of a tensor": (_both_memories, "extra.value.f"),
    "numpy objects": (lambda n: {"f": np.array([n, "a"], dtype=object)}, "extra.value.f"),
    "defaultdict of a lambda": (
        lambda n: {"f": collections.defaultdict(lambda: n)},
        "extra.value.f",
    ),
}


def difference_of() -> None:
    """A function of the script."""


GROUPS: dict[str, dict[str, Make]] = {
    "tensors": TENSORS,
    "containers": CONTAINERS,
    "plain values": SCALARS,
    "random generators": GENERATORS,
    "numpy": ARRAYS,
}
VALUES = [Value(name, at, group) for group, kinds in GROUPS.items() for name, at in kinds.items()] + [
    Value(name, at, "refused", refused) for name, (at, refused) in REFUSED.items()
]


class Holder:
    """A part of the state whose value is another one at every step."""

    def __init__(self, at: Make) -> None:
        self.at = at
        self.value = at(0)

    def advance(self, step: int) -> None:
        self.value = self.at(step)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]
