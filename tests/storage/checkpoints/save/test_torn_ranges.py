"""A save that is torn anywhere: whichever bytes are of it and which of the one before, no mixture is a shard."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.save import buffers, slot_files
from tests.agent.shards import write_shard


@pytest.fixture(scope="module")
def saves(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """The bytes of two saves into one slot."""
    folder, chosen = tmp_path_factory.mktemp("saves"), random.Random(3)
    return tuple(
        write_shard(folder, step=step, slot="a", payload=chosen.randbytes(300)).read_bytes()
        for step in (7, 8)
    )  # type: ignore[return-value]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torn") / "r0-a.shard"


def looked_at(path: Path, content: bytes, saves: tuple[bytes, ...]) -> bool:
    """Whether ``content`` is taken for a shard; fails when it is, and is neither of the saves."""
    path.write_bytes(content)
    try:
        header = buffers.verify(path)
    except CheckpointError:
        return False
    page = buffers.HEADER_BYTES
    wholes = [each for each in saves if buffers.parse_header(each[:page]) == header]
    assert wholes, f"a header that no save wrote: {header}"
    assert content[page:] == wholes[0][page:], f"a mixture was taken for step {header.step}"
    return True


def marks(content: bytes) -> list[int]:
    """Where something begins or ends in the file, and some places between."""
    header = buffers.parse_header(content[: buffers.HEADER_BYTES])
    assert header is not None
    text = content.index(b"\0", 32)
    ends = [0, 8, 16, 24, 32, text, header.meta_offset, header.payload_offset, len(content)]
    ends += [header.payload_offset + header.owned_nbytes]
    return sorted({at for end in ends for at in (end - 1, end, end + 1) if 0 <= at <= len(content)})


def torn(first: bytes, second: bytes) -> Iterator[bytes]:
    """Each beginning of the second over the first, and each range between two marks."""
    for at in range(len(first) + 1):
        yield second[:at] + first[at:]
    for begin in marks(first):
        for end in marks(first):
            if begin < end:
                yield first[:begin] + second[begin:end] + first[end:]


def test_no_torn_save_is_taken_for_one(saves: tuple[bytes, bytes], path: Path) -> None:
    """Every prefix, and every range between two places where something begins, in both orders; also cut there."""
    first, second = saves
    assert len(first) == len(second)
    contents = {*torn(first, second), *torn(second, first)}
    assert len(contents) > 500
    taken = {content for content in contents if looked_at(path, content, saves)}
    assert taken >= {first, second}
    for at in marks(first)[:-1]:
        assert not looked_at(path, first[:at], saves)


@given(st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_mixture_of_ranges_is_taken_for_a_save(
    saves: tuple[bytes, bytes], path: Path, data: st.DataObject
) -> None:
    """Any ranges of one in the other, as pages that were written back in any order would leave them."""
    first, second = data.draw(st.permutations(saves))
    content = bytearray(first)
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(begin, len(content)))
        content[begin:end] = second[begin:end]
    looked_at(path, bytes(content), saves)


def test_while_a_save_is_under_way_no_byte_of_it_is_a_shard(saves: tuple[bytes, bytes], path: Path) -> None:
    """A writer may die after any byte: the mark of its beginning is set, and nothing is taken."""
    first, second = saves
    path.write_bytes(first)
    with slot_files.create(path, len(first)) as buffer:
        buffers.begin(buffer)
        begun = bytes(buffer[: buffers.HEADER_BYTES])
    for at in range(buffers.HEADER_BYTES, len(first) + 1):
        path.write_bytes(begun + second[buffers.HEADER_BYTES : at] + first[at:])
        assert buffers.read_header(path) is None
