"""Kinds of trainings under the layouts of large jobs: what of each may come back under another one, and how they are
laid out.

Every kind that is not named here comes back exactly, to any layout and number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.optim import Optimizer

from tests.session.kinds.habits import Shadow
from tests.session.kinds.optimizers import OfItsPart
from tests.session.kinds.training import State, Training
from tests.session.kinds.trainings import TRAININGS

_OBJECT = (
    r"optimizer\.state\.\S*: it holds tensors in an object of a class of its own, .* Restore with the layout"
)
_PART = (
    r"optimizer\.state\.\S*: it was made of a rank's part of the parameter, .* Restore at the number of ranks"
)
_NUMBER = r"optimizer\.state\.\S*\.best: it differs from rank to rank \(\S+ on rank 0, \S+ on rank 1\)"
REFUSED: dict[str, dict[str, str]] = {
    # A matrix for all of the gradient, in an object; of a part, what it gives is not summed over the ranks yet.
    "optimizer: galore": {"divided": _OBJECT, "elsewhere": _PART},
    # Norms of gradients, which are not summed over the ranks yet.
    "optimizer: history": {"elsewhere": _PART},
    "optimizer of its part of parameters: plain": {"elsewhere": _PART},
    "optimizer of its part of parameters: plain, at once": {"elsewhere": _PART},
    "optimizer of its part of parameters: class": {"elsewhere": _PART},
    # The norm of a rank's part of the gradient, as a plain number.
    "optimizer: scalar": {"resized": _NUMBER},
}
"""Text in the error: where a parameter was whole and is divided now, where ranks have other parts of it, and
where there is another number of ranks."""

_EVERYWHERE = ("fsdp", "hsdp", "tp", "tp_fsdp")
UNTRAINED: dict[str, tuple[str, ...]] = {
    "optimizer: AdamW, fused": ("tp", "tp_fsdp"),
    "optimizer: Adafactor": _EVERYWHERE,
    "optimizer: Rprop": _EVERYWHERE,
    # torch flattens no parameter whose rows are divided twice, and adds to none in place what it has gathered.
    "optimizer: LBFGS": ("tp_fsdp",),
    "optimizer: LBFGS, line search": ("tp_fsdp",),
    "optimizer: Muon": ("tp_fsdp",),
    "optimizer: galore": ("tp_fsdp",),
    "optimizer: SparseAdam beside AdamW": ("fsdp", "hsdp", "tp_fsdp"),
    "experts without a gradient: Adafactor": _EVERYWHERE,
    "experts without a gradient: AdamW, fused": ("tp_fsdp",),
    "module: old spectral norm": ("tp", "tp_fsdp"),
    "module: parameters of many types": ("fsdp", "hsdp", "tp_fsdp"),
    "odd parameters and buffers": ("fsdp", "hsdp", "tp_fsdp"),
    "two networks in turn": ("fsdp", "hsdp", "tp_fsdp"),
    # They take what lies beside a distributed parameter for this rank's part: of all of it, it is distributed as well.
    "optimizer of its part of parameters: plain": ("from ddp",),
    "optimizer of its part of parameters: class": ("from ddp",),
}
"""Layouts under which torch itself cannot train a kind, without any save."""


def move(saved: str, loaded: str, *, same_size: bool = True) -> str:
    """The move of the parts of parameters."""
    if saved == "ddp":
        return "alike" if loaded == "ddp" else "divided"
    alike = saved == loaded or {saved, loaded} <= {"fsdp", "tp"}
    return "alike" if same_size and alike else "elsewhere"


def kinds(saved: str, loaded: str, *, same_size: bool = True) -> tuple[list[Training], dict[str, str]]:
    """The kinds that torch can train under both layouts and that come back exactly; those to be refused, and how."""
    layouts = {saved, loaded, f"from {saved}"}
    able = [
        each for each in TRAININGS if not each.refused and layouts.isdisjoint(UNTRAINED.get(each.name, ()))
    ]
    how = move(saved, loaded, same_size=same_size)
    hows = (how,) if same_size else (how, "resized")
    reasons = {each.name: [REFUSED.get(each.name, {}).get(how) for how in hows] for each in able}
    refused = {name: next(filter(None, some)) for name, some in reasons.items() if any(some)}
    return [each for each in able if each.name not in refused], refused


@cache
def _mesh(shape: tuple[int, ...], names: tuple[str, ...]) -> Any:
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def _alone(_: nn.Module) -> None:
    """Every rank has everything."""


def _shard(module: nn.Module, mesh: Any) -> None:
    """By FSDP2, which takes no parameter without a dimension, and no whole numbers."""
    left = {each for each in module.parameters() if not each.dim() or not each.is_floating_point()}
    fully_shard(module, mesh=mesh, ignored_params=left)


def _fsdp(module: nn.Module) -> None:
    """Sharded over all ranks."""
    _shard(module, _mesh((dist.get_world_size(),), ("shard",)))


def _hsdp(module: nn.Module) -> None:
    """Sharded over pairs, replicated over the pairs."""
    _shard(module, _mesh((dist.get_world_size() // 2, 2), ("replicate", "shard")))


def _split(module: nn.Module, mesh: Any) -> None:
    tied: dict[int, list[tuple[nn.Module, str]]] = {}
    before = list(module.parameters())
    for owner in module.modules():
        for name, each in owner.named_parameters(recurse=False):
            tied.setdefault(id(each), []).append((owner, name))
    assert len(tied) == len(before)
    for each in list(module.modules()):
        if type(each) is nn.Linear and each.out_features % mesh.size() == 0:
            parallelize_module(each, mesh, ColwiseParallel(output_layouts=Replicate()))
    for (first, name), *others in tied.values():
        for owner, other in others:
            setattr(owner, other, getattr(first, name))


def _tp(module: nn.Module) -> None:
    """Outputs of linear layers over all ranks."""
    _split(module, _mesh((dist.get_world_size(),), ("tp",)))


def _tp_fsdp(module: nn.Module) -> None:
    """Outputs of linear layers over pairs, sharded over the pairs."""
    mesh = _mesh((dist.get_world_size() // 2, 2), ("dp", "tp"))
    _split(module, mesh["tp"])
    _shard(module, mesh["dp"])


LAYOUTS: dict[str, Callable[[nn.Module], None]] = {
    "ddp": _alone,
    "fsdp": _fsdp,
    "hsdp": _hsdp,
    "tp": _tp,
    "tp_fsdp": _tp_fsdp,
}


def laid_out(kind: Training, layout: str) -> State:
    """The fresh objects of a kind, its modules divided as a script does it before it makes its optimizers."""
    state = kind.make()
    then: dict[int, tuple[Tensor, Tensor]] = {}
    for module in _once(state.values(), nn.Module):
        held = getattr(module, "_orig_mod", module)
        before = dict(held.named_parameters(remove_duplicate=False))
        LAYOUTS[layout](held)
        after = dict(held.named_parameters(remove_duplicate=False))
        then |= {id(each): (each, after[name]) for name, each in before.items()}
    for optimizer in _once(state.values(), Optimizer):
        for group in optimizer.param_groups:
            group["params"][:] = [then[id(each)][1] for each in group["params"]]
        for old in list(optimizer.state):
            new, values = then[id(old)][1], optimizer.state.pop(old)
            optimizer.state[new] = {key: _like(each, old, new) for key, each in values.items()}
        if isinstance(optimizer, OfItsPart):
            optimizer.begin()
    if "shadow" in state:
        state["shadow"] = Shadow(state["model"])
    if "masters" in state:
        weights = [each.detach().float().clone() for each in state["model"].parameters()]
        state["masters"].values["weights"] = weights
    return state


def _once(parts: Iterable[Any], kind: type[Any]) -> list[Any]:
    return [*{id(each): each for each in parts if isinstance(each, kind)}.values()]


def _like(value: Any, old: Any, new: Any) -> Any:
    """State that an optimizer made of a parameter at once, for the parameter as it is laid out.

    Each rank takes its own part: torch scatters no rows that are divided twice, and unevenly (``_StridedShard``).
    """
    if isinstance(value, Tensor) and value.shape == old.shape and isinstance(new, DTensor):
        return distribute_tensor(value, new.device_mesh, new.placements, src_data_rank=None)
    return value


def whole(value: Any) -> Any:  # noqa: PLR0911  (a case per kind)
    """``value`` with its distributed tensors put together; what is of a class of its own in parts. Collective."""
    if isinstance(value, DTensor) and type(value._local_tensor) in (Tensor, nn.Parameter):
        return value.full_tensor().detach().clone()
    if isinstance(value, Tensor) and hasattr(value, "__tensor_flatten__"):
        held = value._local_tensor if isinstance(value, DTensor) else value
        return tuple(whole(getattr(held, name)) for name in held.__tensor_flatten__()[0])  # type: ignore[attr-defined]
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: whole(each) for key, each in value.items()}
    if type(value) is list or type(value) is tuple:
        return type(value)(whole(each) for each in value)
    if type(value).__module__.startswith("tests.") and hasattr(value, "__dict__"):
        return whole(vars(value))
    return value
