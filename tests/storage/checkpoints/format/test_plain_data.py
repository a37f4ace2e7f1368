"""Plain data of any size is one node of a tree: the same value comes back, and the cost does not go by its parts."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import TensorProperties, TensorStorageMetadata

from holdfast.errors import CheckpointError
from holdfast.session.others import alike
from holdfast.storage.checkpoints.format import plain_data
from holdfast.storage.checkpoints.format.decoder import Decoder, decode
from holdfast.storage.checkpoints.format.encoder import MOST_DEPTH, Encoder
from holdfast.storage.checkpoints.format.layout import dump_object
from holdfast.storage.checkpoints.format.plain_pickle import dump_plain
from holdfast.storage.checkpoints.format.structure import Node, refs
from holdfast.storage.checkpoints.load.findings import Findings
from holdfast.storage.checkpoints.load.prove_tree import prove_tree
from holdfast.storage.checkpoints.load.safe_load import load_object
from tests.session.kinds.compare import difference
from tests.session.kinds.strategies import keys, scalars, values

pytestmark = pytest.mark.torch

_SETTINGS = settings(max_examples=100, deadline=None)


def _plain(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.lists(inner, min_size=1, max_size=2).map(lambda each: [each, each]),
        inner.map(lambda each: {"a": each, "b": [(each,), each]}),
    )


plain = st.recursive(scalars, _plain, max_leaves=12)
mixed = st.one_of(
    plain, st.lists(st.one_of(plain, values), max_size=4), st.dictionaries(keys, values, max_size=3)
)


def _encoder(*, whole: bool = True, most_plain: int = 512) -> Encoder:
    return Encoder(lambda path, tensor: None, most_plain=most_plain, whole=whole)


def _back(node: Any) -> Any:
    return decode(load_object(io.BytesIO(dump_object(node)), "structure/0.x"), {})


def _stock(value: bytes) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


@_SETTINGS
@given(value=mixed, most_plain=st.sampled_from([3, 512]))
def test_whole_and_by_parts_are_the_same(value: Any, most_plain: int) -> None:
    """The restored value, and the names for stock torch, are those of a tree with a node for each container."""
    whole, parts = _encoder(most_plain=most_plain), _encoder(whole=False, most_plain=most_plain)
    one, other = whole.part("x", value), parts.part("x", value)
    assert not difference(value, _back(one))
    assert not difference(_back(other), _back(one))
    assert list(whole.stock.values) == list(parts.stock.values)
    assert whole.paths == parts.paths
    assert whole.stock.many is parts.stock.many


@_SETTINGS
@given(value=plain)
def test_plain_data_is_written_as_torch_writes_it(value: Any) -> None:
    """Byte for byte, unless something is not plain to pickle."""
    written = dump_plain(value)
    assert written is None or written == _stock(value)


@pytest.mark.parametrize(
    "value", [{1}, 1j, bytearray(b"a"), int, len, torch.zeros(1), Counter("a"), torch.float32]
)
def test_what_is_not_plain_is_left_to_torch(value: Any) -> None:
    """Anything that pickle makes by a call."""
    assert dump_plain([0, value]) is None
    assert dump_object([0, value])


def test_shared_lists_stay_shared() -> None:
    """Within plain data, between it and a state with tensors, and over several levels."""
    shared: list[Any] = [1, (2,)]
    state = {"a": shared, "b": {"c": [shared, shared]}, "d": [torch.ones(2), shared], "e": [[1, (2,)]]}
    back = _back(_encoder().part("x", state))
    assert back["a"] is back["b"]["c"][0] is back["b"]["c"][1] is back["d"][1]
    assert back["e"][0] == back["a"]
    assert back["e"][0] is not back["a"]


def test_values_that_look_like_nodes_are_values() -> None:
    """A tuple of the user's that begins as a reference does is neither looked up nor decoded."""
    state = {"a": [("@ref", "model.weight", "cpu", None), ("tuple", [1]), ("@same", "a", "b"), ("@plain", 1)]}
    node = load_object(io.BytesIO(dump_object(_encoder().part("x", state))), "structure/0.x")
    assert list(refs(node)) == []
    assert decode(node, {}) == state


@pytest.mark.parametrize("beside", [[], [0] * 1000, [torch.ones(1)]])
def test_what_contains_itself_is_refused(beside: list[Any]) -> None:
    """With its path, through lists, tuples and dictionaries."""
    ring: list[Any] = [*beside]
    ring.append({"x": (ring,)})
    with pytest.raises(CheckpointError, match=r"'s\.a\.\d+\.x\.0': it contains itself"):
        _encoder().part("s", {"a": ring})


@pytest.mark.parametrize("over", [0, 1])
def test_depth_has_the_same_bound_whole_and_by_parts(over: int) -> None:
    """The deepest state that is taken, and one more level."""
    value: Any = [0]
    for _ in range(MOST_DEPTH + over):
        value = [value]
    for encoder in (_encoder(), _encoder(whole=False)):
        if over:
            with pytest.raises(CheckpointError, match="nested too deeply"):
                encoder.part("s", value)
        else:
            encoder.part("s", value)


def test_depth_counts_along_the_longest_way() -> None:
    """A list that lies near the top and at the bottom as well."""
    deep: Any = [0]
    for _ in range(MOST_DEPTH):
        deep = [deep]
    with pytest.raises(CheckpointError, match="nested too deeply"):
        _encoder().part("s", {"a": deep, "b": [[deep[0]]]})


def test_trees_of_before_are_read() -> None:
    """Lists as lists, tuples by their tag."""
    node = {"a": [1, ("tuple", [2, ("dict", [[3, "x"]])])], "b": ("@opaque", 5)}
    assert decode(node, {}) == {"a": [1, (2, {3: "x"})], "b": 5}


MANY = {
    "dictionaries": lambda n: [{"i": i, "word": f"w{i}"} for i in range(n)],
    "tuples": lambda n: [(i, i + 1) for i in range(n)],
    "the same tuple": lambda n: [(1, 2)] * n,
    "numbers": lambda n: list(range(n)),
    "a table": lambda n: {f"w{i}": i * 0.5 for i in range(n)},
    "buffers": lambda n: [[i] * 8 for i in range(n)],
    "shared, doubled at each level": lambda n: _doubled(n.bit_length() * 3),
}


def _doubled(levels: int) -> Any:
    made: Any = [1]
    for _ in range(levels):
        made = [made, made]
    return made


@pytest.mark.parametrize("kind", MANY)
def test_cost_does_not_go_by_the_number_of_parts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many looks of Python at a hundred times as many values; saved and read again."""
    counts: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def count(*args: Any, **named: Any) -> Any:
            counts[name] += 1
            return call(*args, **named)

        monkeypatch.setattr(owner, name, count)

    counted(Encoder, "encode")
    counted(Decoder, "value")
    counted(plain_data, "_inside")
    found = []
    for number in (100, 10_000):
        counts.clear()
        state = {"held": MANY[kind](number)}
        back = _back(_encoder(most_plain=8).part("x", state))
        assert kind.startswith("shared") or back == state
        found.append(dict(counts))
    assert found[0]["encode"] == found[1]["encode"] == found[0]["value"] == found[1]["value"] == 1
    assert max(each["_inside"] for each in found) < 100


def test_plain_data_beside_tensors_is_one_node() -> None:
    """Only the containers that hold a tensor themselves are taken apart."""
    state = [{"number": each, "plain": [(1, 2), [3]], "tensor": torch.tensor(each)} for each in range(50)]
    node = _encoder().part("x", state)
    assert not difference(state, _back(node))
    assert all(each["plain"][0] == "@plain" for each in node)


def test_what_a_tree_has_in_several_places_is_looked_at_once() -> None:
    """It doubles with each level: a walk of all places would not end."""
    assert [*refs(_tree())] == [("weight", "cpu", None)]
    weight = TensorStorageMetadata(TensorProperties(), torch.Size([2]), [])
    found = Findings(None)
    prove_tree("structure/0.x", [_tree(), ("tuple", 5)], {"weight": weight}, found)
    assert [each.path for each in found.problems] == ["x"]


def test_trees_of_two_ranks_are_compared_once_wherever_they_double() -> None:
    """Also where one rank has two equal containers in place of one."""
    assert alike(_tree(), _tree())
    assert not alike(_tree(), _tree("bias"))
    one: Node = [1, {"a": 2}]
    assert alike([one, one], [[1, {"a": 2}], [1, {"a": 2}]])
    assert not alike([one, one], [[1, {"a": 2}], [1, {"a": 3}]])


def _tree(name: str = "weight") -> Node:
    made: Node = [("@ref", name, "cpu", None)]
    for _ in range(60):
        made = [made, {"again": made}]
    return made
