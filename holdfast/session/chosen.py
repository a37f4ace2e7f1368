"""The parts of a state that come from another checkpoint, under their names there.

What the model has must be there with its shape and type, and what is there under the name of a part must be in the
model: a start that takes less than it seems to is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

from holdfast.errors import CheckpointError
from holdfast.models.start_from import StartFrom
from holdfast.session.known import Known
from holdfast.session.modules import ModulePart
from holdfast.session.optimizers import OptimizerPart
from holdfast.session.others import OtherPart
from holdfast.session.state import StateTree
from holdfast.storage.checkpoints.format.structure import Node
from holdfast.storage.checkpoints.load.exchange import Exchange


class Chosen(StateTree):
    """The state of a job whose parts have the names that they have in the source."""

    def __init__(self, state: Mapping[str, Any], rank: int, source: StartFrom) -> None:
        """Rename the parts of ``state`` that ``source`` takes.

        Raises:
            CheckpointError: the state has no such part.
        """
        parts = source.parts
        if parts is not None and (unknown := sorted(parts.keys() - state.keys())):
            raise CheckpointError(
                f"start_from.parts: {unknown[0]!r}: the state given to Session.restore() has no such part (it has "
                f"{', '.join(sorted(state)) or 'none'})"
            )
        names = {each: each if parts is None else parts.get(each, f"left out {each}") for each in state}
        super().__init__({names[each]: part for each, part in state.items()}, rank)
        self._source = source
        self.stateless: dict[str, tuple[str, str]] = {}
        """Names that torch makes up for parameters of whose state the source has nothing: optimizer and parameter."""
        self._groups: dict[str, dict[str, int]] = {}
        """By optimizer, the group of each parameter, as stock torch names it."""
        self._taken = {names[each] for each in (state if parts is None else parts)} - self.dropped
        # Weights alone begin another training: which of them it trains is for its script to say.
        goes_on = parts is None or not self._taken.isdisjoint(self._optimizers)
        for module in self._modules.values():
            module.thaws = goes_on

    def modules(self) -> Iterator[tuple[str, ModulePart]]:
        """Yield the modules that are taken, by name."""
        return (each for each in super().modules() if each[0] in self._taken)

    def optimizers(self) -> Iterator[tuple[str, OptimizerPart]]:
        """Yield the optimizers that are taken, by name."""
        return (each for each in super().optimizers() if each[0] in self._taken)

    def others(self) -> Iterator[tuple[str, OtherPart]]:
        """Yield the other parts that are taken, by name."""
        return (each for each in super().others() if each[0] in self._taken)

    def nested(self) -> dict[str, Any]:
        """Return what is taken as stock torch sees it; to ask the other optimizers for their state would change it."""
        nested: dict[str, Any] = {name: get_model_state_dict(each.module) for name, each in self.modules()}
        for name, each in self.optimizers():
            nested[name] = get_optimizer_state_dict(each.module, each.optimizer)
        return nested | {name: each.value.state_dict() for name, each in self.others()}

    def want(self, known: Known, trees: Mapping[str, Node], source: int) -> None:
        """Make room for the parts that are taken.

        Raises:
            CheckpointError: one is missing or does not fit; names the path.
        """
        for name, module in self.modules():
            for key, value in module.state().items():
                if known.has(f"{name}.{key}"):
                    self._require_fit(known.metadata, f"{name}.{key}", value)
        super().want(known, trees, source)

    def _check_parts(self, saved: Mapping[str, str]) -> None:
        if self._source.parts is None:
            super()._check_parts(saved)
            return
        now = self._parts_node()["parts"]
        self._absent = now.keys() - (self._taken & saved.keys())
        for name in sorted(self._taken):
            if name not in saved and name not in self._lenient:
                raise CheckpointError(
                    f"start_from.parts: {self._source.title} has no part {name!r} (it has {', '.join(sorted(saved))})"
                )
            if name in saved and now[name] != saved[name]:
                raise CheckpointError(
                    f"start_from.parts: {self._source.title} has {name!r} as {saved[name]}, this job as {now[name]}"
                )

    def found_in(self, metadata: Metadata, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a checkpoint without trees has of ``wanted``, by the names there. Collective.

        Raises:
            CheckpointError: something is missing, does not fit, or is there and not wanted; on every rank.
        """
        saved, exchange = metadata.state_dict_metadata, Exchange(alone=False)
        found = {there(name): value for name, value in wanted.items() if there(name) in saved}
        self.stateless = self._without_state(saved, wanted)
        self._groups = {
            part: _groups(part, wanted) for part, _ in self.optimizers() if part not in self._lenient
        }
        with exchange.together(self._source.title):
            for name, value in wanted.items():
                if there(name) in saved:
                    self._require_fit(metadata, there(name), value)
                elif name in self.stateless:
                    continue  # of a parameter without a gradient so far, if its optimizer had it: see require_grouped
                elif not name.startswith(tuple(f"{part}." for part in self._lenient)):
                    raise CheckpointError(self._missing(name, saved))
            for part in self._groups:
                self._require_no_more_groups(part, saved)
        self._require_all_taken(metadata, found, exchange)
        return found

    def _without_state(
        self, saved: Mapping[str, Any], wanted: Mapping[str, Any]
    ) -> dict[str, tuple[str, str]]:
        """Return the names of the state of parameters of which the source has none, not one item."""
        known = {name.rpartition(".")[0] for name in saved}
        return {
            name: (part, owner.removeprefix(f"{part}.state."))
            for part, _ in self.optimizers()
            if part not in self._lenient
            for name in wanted
            if name.startswith(f"{part}.state.")
            and (owner := name.rpartition(".")[0])
            and there(owner) not in known
        }

    def _require_no_more_groups(self, part: str, saved: Mapping[str, Any]) -> None:
        begin, here = f"{there(part)}.param_groups.".removeprefix("."), {*self._groups[part].values()}
        numbers = {each.removeprefix(begin).partition(".")[0] for each in saved if each.startswith(begin)}
        if here and (
            more := sorted(int(each) for each in numbers if each.isdecimal() and int(each) not in here)
        ):
            raise CheckpointError(
                f"{begin}{more[0]}: {self._source.title} has it, and the optimizer {part!r} does not. Give it the "
                "groups that it has there, or leave the optimizer out of start_from.parts"
            )

    def require_grouped(self, loaded: Mapping[str, Any]) -> None:
        """Refuse a parameter that is in another group there; or in none, without a state: no gradient explains that.

        Groups have numbers in a checkpoint of stock torch: their options would go to other parameters.

        Collective: the state of a parameter may be missing on one rank only.

        Raises:
            CheckpointError: names the first such item; on every rank.
        """
        with Exchange(alone=False).together(self._source.title):
            theirs = {part: _groups(there(part), loaded) for part in self._groups}
            for name, (part, owner) in self.stateless.items():
                if owner not in theirs[part]:
                    raise CheckpointError(self._missing(name))
            for part, groups in self._groups.items():
                for name, number in groups.items():
                    if theirs[part].get(name, number) != number:
                        raise CheckpointError(
                            f"{part}.param_groups.{number}: {self._source.title} has {name!r} in group "
                            f"{theirs[part][name]}, the optimizer in group {number}. Give the optimizer its groups in "
                            "the order that they have there"
                        )

    def _missing(self, name: str, saved: Mapping[str, Any] | None = None) -> str:
        beginnings = f" (it has {_beginnings(saved)})" if saved is not None else ""
        return (
            f"{there(name)}: the state has it, and {self._source.title} does not{beginnings}. Name the parts as they "
            "are there (start_from.parts), or give holdfast.Part(..., strict=False) to leave it as it is"
        )

    def _require_all_taken(self, metadata: Metadata, found: Mapping[str, Any], exchange: Exchange) -> None:
        """Refuse a source whose module has more than all ranks' models together."""
        strict = tuple(f"{name}." for name, _ in self.modules() if name not in self._lenient)
        theirs = {
            name
            for name, each in metadata.state_dict_metadata.items()
            if isinstance(each, TensorStorageMetadata) and (name.startswith(strict) or "." in strict)
        }
        if not exchange.any(bool(left := theirs - found.keys())):
            return
        if lost := left.difference(*exchange.everywhere(set(found))):
            raise CheckpointError(
                f"{min(lost)}: {self._source.title} has it, and the model does not ({len(lost)} such names). Give "
                "holdfast.Part(..., strict=False) to leave it out"
            )

    def _require_fit(self, metadata: Metadata, name: str, value: Any) -> None:
        saved = metadata.state_dict_metadata.get(name)
        if not isinstance(saved, TensorStorageMetadata) or not isinstance(value, Tensor):
            return
        size, dtype = saved.size, saved.properties.dtype
        if value.shape != size or value.dtype != dtype:
            raise CheckpointError(
                f"{name}: {self._source.title} has a tensor {list(size)} of {dtype}, the state one "
                f"{list(value.shape)} of {value.dtype}"
            )


def there(name: str) -> str:
    """Return the item's name in the source: a part whose name there is empty has its items at the top."""
    return name.removeprefix(".")


def _groups(part: str, items: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of the group that each parameter is in, of an optimizer's flat items."""
    begin = f"{part}.param_groups." if part else "param_groups."
    return {
        each: int(number)
        for name, value in items.items()
        if name.startswith(begin)
        and name.endswith(".params")
        and isinstance(value, list)
        and (number := name.removeprefix(begin).removesuffix(".params")).isdecimal()
        for each in value
    }


def _beginnings(names: Mapping[str, Any]) -> str:
    """Return the first parts of names, a few, for an error."""
    found = sorted({name.partition(".")[0] for name in names})
    return ", ".join(found[:8]) + (" ..." if len(found) > 8 else "")
