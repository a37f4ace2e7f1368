"""Pickles of a few bytes that want hours or gigabytes, and all plain data that pickle writes."""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import bounded_pickle
from holdfast.agent.diagnostics import flight
from holdfast.bounded_pickle import MaliciousPickleError
from tests.child_reads import outcomes_of

ROOM_BYTES = 1 << 30
READS = f"""
import pickle, resource, sys
from holdfast.agent.diagnostics import flight
resource.setrlimit(resource.RLIMIT_AS, ({ROOM_BYTES}, resource.getrlimit(resource.RLIMIT_AS)[1]))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for name, content in pickle.loads(sys.stdin.buffer.read()).items():
    print(name, end=": ", flush=True)
    try:
        print(flight.summarise(0, flight.load(content)))
    except flight.MaliciousPickleError as error:
        print("refused:", str(error)[:300])
"""

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**120), 2**120)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(-(2**60), 2**60), inner)
    ),
    max_leaves=30,
)


@given(plain, st.sampled_from([3, 4, 5]))
def test_plain_data_is_read_as_pickle_reads_it(value: Any, protocol: int) -> None:
    """Of every protocol that has an operation for each kind of it (older ones make bytes by a call)."""
    assert repr(bounded_pickle.load(pickle.dumps(value, protocol))) == repr(value)


def test_one_object_in_two_places_stays_one() -> None:
    """As in every pickle."""
    shared = [1]
    one, other = bounded_pickle.load(pickle.dumps([shared, shared]))
    assert one is other


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(content: bytes) -> None:
    """Whatever they are."""
    try:
        bounded_pickle.load(content)
    except MaliciousPickleError:
        return


def recording(inner: bytes) -> bytes:
    """A recording whose one entry has ``inner`` as the name of its operation."""
    name = b"X\x0e\0\0\0profiling_name"
    return b"\x80\x02}X\x07\0\0\0entries](}" + name + inner + b"saes."


def doubled(levels: int) -> bytes:
    """A tuple that holds the next one twice, so many levels deep: small in memory, endless to walk through."""
    return b")" + b"q\x01h\x01\x86" * levels


def colliding(number: int) -> bytes:
    """A dictionary whose keys all have the hash 0: its time grows with the square of their number."""
    prime = (1 << 61) - 1
    keys = (b"\x8a\x0b" + (each * prime).to_bytes(11, "little") + b"N" for each in range(1, number))
    return b"}(" + b"".join(keys) + b"u"


def colliding_one_by_one(number: int) -> bytes:
    """As many keys in a row at first, so that the dictionary never doubles while the others come, each by itself."""
    prime = (1 << 61) - 1
    row = b"".join(b"J" + struct.pack("<i", each) + b"N" for each in range(number))
    keys = (b"\x8a\x0b" + (each * prime).to_bytes(11, "little") + b"Ns" for each in range(1, number))
    return b"}(" + row + b"u" + b"".join(keys)


BOMBS: dict[str, bytes] = {
    "memo of gigabytes": recording(b"Nr" + struct.pack("<I", 150_000_000)),
    "memo of gigabytes, in text": recording(b"Np150000000\n"),
    "tuples that double, to be printed": recording(doubled(60)),
    "a key that hashes for hours": b"\x80\x02}" + doubled(60) + b"Ns.",
    "an array as long as it says": b"\x80\x05\x96" + struct.pack("<Q", 1 << 33) + b".",
    "bytes as long as they say": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 33) + b".",
    "a huge integer": recording(b"\x8b" + struct.pack("<I", 4_000_000) + b"\x7f" * 4_000_000),
    "a huge integer, in text": recording(b"I" + b"9" * 4_000_000 + b"\n"),
    "lists in lists": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
    "tuples in tuples": b"\x80\x02)" + b"\x85" * 200_000 + b".",
    "a list in itself": b"\x80\x02]q\x00h\x00a.",
    "lists in lists, from the outside": b"\x80\x02]q\x00" + b"0h\x00]q\x01a0h\x01]q\x00a" * 100_000 + b".",
    "two lists in each other": b"\x80\x02]q\x00(]q\x01h\x00ae.",
    "keys of one hash": recording(colliding(300_000)),
    "keys of one hash, one by one": recording(colliding_one_by_one(1 << 18)),
    "marks without end": b"\x80\x02" + b"(" * 3_000_000,
}


def test_bombs_are_refused_or_read_in_bounds() -> None:
    """In a process with little memory and time, where the stock unpickler (or what printed its result) fails."""
    outcomes = outcomes_of(READS, BOMBS, timeout_s=120)
    assert outcomes.keys() == BOMBS.keys()
    assert [
        name for name, line in outcomes.items() if line != "[]" and not line.startswith("refused: ")
    ] == []


@pytest.mark.parametrize("which", ["memo of gigabytes", "an array as long as it says"])
def test_control_the_stock_unpickler_does_what_they_ask(which: str) -> None:
    """Or the test above would show nothing."""
    script = f"""
import io, pickle, resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({ROOM_BYTES}, resource.getrlimit(resource.RLIMIT_AS)[1]))
try:
    pickle.Unpickler(io.BytesIO(sys.stdin.buffer.read())).load()
except MemoryError:
    sys.exit(9)
"""
    done = subprocess.run([sys.executable, "-c", script], input=BOMBS[which], check=False, timeout=60)
    assert done.returncode == 9


def test_too_many_operations_are_refused() -> None:
    """The bound is on what is done, not on bytes alone."""
    with pytest.raises(MaliciousPickleError, match="more than 10 operations"):
        bounded_pickle.load(pickle.dumps(list(range(20))), max_operations=10)


def test_many_keys_are_read() -> None:
    """Numbers in a row, and the same ones in many dictionaries, were not chosen to have one hash."""
    for value in (
        dict.fromkeys(range(5000)),
        [dict.fromkeys(range(100), 1)] * 200,
        {0.5 * n: n for n in range(999)},
    ):
        assert bounded_pickle.load(pickle.dumps(value)) == value


def test_members_are_numbers_and_nothing_is_evaluated() -> None:
    """Brackets without end end no parser."""
    config = {"0": {"ranks": "[" * 100_000}, "1": {"ranks": "[0, 1]"}, "2": {"ranks": "[__import__('os')]"}}
    found = flight.load(
        pickle.dumps({"entries": [], "pg_config": config, "pg_status": {name: {} for name in config}})
    )
    assert [record.ranks for record in flight.summarise(0, found)] == [(), (0, 1), ()]
