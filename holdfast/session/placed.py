"""State that an optimizer keeps beside a parameter, where the parameter's layout is another one than it was.

A distributed tensor loads into any layout. Beside a parameter that was whole, all of its state was: when the parameter
is distributed now, its state has to be as well, or torch refuses the next step ("got mixed torch.Tensor and DTensor").
What was made of a rank's part of a parameter fits that part alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from holdfast.errors import CheckpointError
from holdfast.storage.checkpoints.format.places import Path, dotted
from holdfast.storage.checkpoints.format.structure import OWN, Node, tagged
from holdfast.storage.checkpoints.format.tensor_facts import attributes_of, part_facts

_OPENED = frozenset(("tuple", "dict"))
"""Tags of what :func:`placed` looks into."""
_PLACED = frozenset(("@ref", "@same", "@raw", "@layout", "@plain"))
_TENSORS = frozenset(("@ref", "@same", "@raw", "@layout"))


def is_of_a_part(node: Node) -> bool:
    """Return whether a parameter's state fits this rank's part of the parameter alone."""
    return any(tag == "@local" or (tag == "@ref" and each[1].startswith(OWN)) for tag, each in tagged(node))


def require_same_part(node: Node, param: Tensor, path: str, part: Any) -> None:
    """Ensure that state that was made of a part of a parameter comes to a rank that has this part.

    Args:
        node: the state's tree.
        param: the parameter as it is now.
        path: of the state.
        part: size and offset of the part at that time; None: it was made of no part.

    Raises:
        CheckpointError: the rank has another part; names the path.
    """
    if part is None and not is_of_a_part(node):
        return
    if isinstance(param, DTensor) and part is not None and part_facts(param) == tuple(map(tuple, part)):
        return
    raise CheckpointError(
        f"{path}: it was made of a rank's part of the parameter, and this rank has another part now. Restore at the "
        "number of ranks and with the layout that saved it"
    )


def require_open(node: Node, path: str, fits: Callable[[str], bool]) -> None:
    """Ensure that the state of a parameter that was whole, and is distributed now, can be distributed as well.

    Args:
        node: the state's tree.
        path: of the state.
        fits: whether an item has the parameter's form, or a single element.

    Raises:
        CheckpointError: another tensor is inside of an object of a class of its own; names its path.
    """
    for at, each in _closed(node, path, set()):
        inside = [(tag, found) for tag, found in tagged(each) if tag in _TENSORS]
        if any(tag != "@ref" or not fits(found[1]) for tag, found in inside) or (
            inside and each[0] != "@subclass"
        ):
            raise CheckpointError(
                f"{at}: it holds tensors in an object of a class of its own, and was saved beside all of its "
                "parameter, of which each rank has a part now. Restore with the layout that saved it"
            )


def _closed(node: Node, path: str, seen: set[int]) -> Iterator[tuple[str, Node]]:
    """Yield the nodes that :func:`placed` does not look into, with their paths."""
    if not isinstance(node, dict | list | tuple) or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, tuple):
        if node[0] in _OPENED:
            yield from _closed(node[1], path, seen)
        elif node[0] not in _PLACED:
            yield path, node
        return
    for key, each in node.items() if isinstance(node, dict) else enumerate(node):
        yield from _closed(each, f"{path}.{key}", seen)


def placed(value: Any, param: Tensor, live: Any = None) -> Any:
    """Return state of a parameter that was whole for ``param``, which is distributed now.

    Tensors of its form are placed as it is, others are on each rank; a tensor without a dimension, which torch combines
    with any, stays as it is. What the fresh optimizer has as a plain tensor is one again (``live``, its state): all of
    it, or this rank's part.
    """
    if not isinstance(param, DTensor):
        return value

    def place(tensor: Tensor, path: Path) -> Tensor:
        held = _at(live, path)
        plain = type(held) is Tensor
        if not tensor.dim() or (plain and type(tensor) is Tensor and held.shape == tensor.shape):
            return tensor
        made = tensor if isinstance(tensor, DTensor) else _distributed(tensor, param)
        mine = made.to_local()
        return mine.clone() if plain and held.shape == mine.shape else made

    return _each(value, place)


def _at(value: Any, path: Path) -> Any:
    """Return what lies at ``path`` inside of dictionaries and lists; None where there is nothing."""
    for key in path:
        try:
            value = value[key]
        except (TypeError, LookupError):
            return None
    return value


def divided(value: Any, live: Mapping[str, DTensor], path: Path) -> Any:
    """Return what is at ``path`` of an object's state, with tensors that were whole placed as the ``live`` ones are.

    An average of weights that lies in a list, say, made of a model that is sharded now.
    """

    def place(tensor: Tensor, at: Path) -> Tensor:
        held = live.get(dotted(at))
        if held is None or tensor.shape != held.shape or isinstance(tensor, DTensor):
            return tensor
        return _distributed(tensor, held)

    return _each(value, place, path) if live else value


def _each(value: Any, place: Callable[[Tensor, Path], Tensor], path: Path = ()) -> Any:
    """Return ``value`` with its tensors replaced; containers without any are the same ones."""
    if type(value) in (Tensor, DTensor):  # one of a class of its own has placed what it consists of
        return place(value, path)
    if type(value) is dict:
        made: Any = {key: _each(each, place, (*path, key)) for key, each in value.items()}
        return made if any(made[key] is not each for key, each in value.items()) else value
    if type(value) is list or type(value) is tuple:
        made = [_each(each, place, (*path, at)) for at, each in enumerate(value)]
        changed = any(one is not other for one, other in zip(made, value, strict=True))
        return type(value)(made) if changed else value
    return value


def _distributed(value: Tensor, param: DTensor) -> DTensor:
    made = _divided(value, param)
    vars(made).update(attributes_of(value))
    return made


def _divided(value: Tensor, param: DTensor) -> DTensor:
    if value.shape == param.shape:
        return distribute_tensor(value, param.device_mesh, param.placements, src_data_rank=None)
    everywhere = [Replicate() for _ in range(param.device_mesh.ndim)]
    return DTensor.from_local(value, param.device_mesh, everywhere, run_check=False)
