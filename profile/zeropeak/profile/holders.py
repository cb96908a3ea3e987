"""What autograd holds: a walk over its graph, storages told apart by identity.

Reading a saved tensor that has an unpack hook would re-run forward (non-reentrant checkpointing), so such saves are
skipped and counted. The walk happens in one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Holder(NamedTuple):
    """A node that saved a tensor, e.g. ``AddmmBackward0._saved_mat2`` made in forward of module 7."""

    name: str
    module_id: int | None


class SequenceSpans:
    """Which module's forward made an autograd node, by the node's sequence number.

    PyTorch numbers nodes in order of creation on a thread; a module's forward covers a span of numbers.
    """

    def __init__(self) -> None:
        self._open: list[tuple[int, int | None]] = []
        self._spans: list[tuple[int, int, int | None]] = []

    def enter(self, module_id: int | None) -> None:
        """A module's forward begins."""
        self._open.append((_sequence_number(), module_id))

    def leave(self, module_id: int | None) -> None:
        """A module's forward ends; modules that were left open inside end with it."""
        while self._open:
            start, opened = self._open.pop()
            self._spans.append((start, _sequence_number(), opened))
            if opened == module_id:
                return

    def module_of(self, number: int) -> int | None:
        """Innermost module whose span holds ``number``: spans are stored innermost first."""
        return next((module for start, end, module in self._spans if start <= number < end), None)


class Save(NamedTuple):
    """A tensor that an autograd node saved: ``key`` is its storage's C++ address."""

    key: int
    address: int
    size_bytes: int
    holder: Holder


def find_saves(outputs: object, spans: SequenceSpans, address: Callable[[Any], int]) -> tuple[list[Save], int]:
    """All storages that the graph saved, each once: by the node that the walk from the outputs met first.

    Args:
        outputs: what the model returned: tensors, or containers and dataclasses of them.
        spans: spans of the forward that made the graph.
        address: gives a storage's address.

    Returns:
        The saves, and how many were skipped because reading them would run a hook.
    """
    found: dict[int, Save] = {}
    skipped = 0
    seen: set[object] = set()
    stack = [tensor.grad_fn for tensor in tensors(outputs) if tensor.grad_fn is not None]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        for attribute, raw in _raw_saves(node):
            if getattr(raw, "unpack_hook", None) is not None:
                skipped += 1
                continue
            tensor = raw.data
            if tensor is None:
                continue
            storage = tensor.untyped_storage()
            key, size_bytes = storage._cdata, storage.nbytes()
            if size_bytes and key not in found:
                holder = Holder(f"{_node_name(node)}.{attribute}", spans.module_of(node._sequence_nr()))
                found[key] = Save(key, address(storage), size_bytes, holder)
            del storage, tensor
        stack.extend(following for following, _ in node.next_functions if following is not None)
    return list(found.values()), skipped


def _raw_saves(node: Any) -> Iterator[tuple[str, Any]]:
    for attribute in dir(node):
        if not attribute.startswith("_raw_saved"):
            continue
        saved = getattr(node, attribute)
        name = attribute.removeprefix("_raw") if attribute != "_raw_saved_tensors" else "saved_tensors"
        if isinstance(saved, tuple):
            yield from ((f"{name}[{index}]", one) for index, one in enumerate(saved))
        else:
            yield name, saved


def _node_name(node: Any) -> str:
    name: str = node.name()
    return name.rsplit("::", 1)[-1]


def tensors(value: object) -> Iterator[Any]:
    """The tensors in a value, its lists, tuples and dictionaries."""
    from torch import Tensor

    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors(one)


def _sequence_number() -> int:
    from torch._C import _autograd

    number: int = _autograd._get_sequence_nr()
    return number
