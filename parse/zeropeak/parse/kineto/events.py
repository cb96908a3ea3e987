"""Typed decoding of trace events: only what fills a table becomes an object with values, the rest is counted."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw, Struct, field

from zeropeak.parse.kineto.packets import MEMORY, OUT_OF_MEMORY
from zeropeak.profile.labels import RECORD_PREFIX

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

    from zeropeak.parse.kineto.packets import Packets

Loose = int | float | str | bool | None
"""A scalar of whatever type the file has, so that a surprise in one value does not stop the decoding of a chunk."""

NO_TEXT: Final = Raw(b"")
COMMS_NAME: Final = "record_param_comms"

MAX_LABELS: Final = 100
"""Categories counted by name; a file with more is odd, and the rest are counted together."""


# Fields are in the order in which kineto writes them: msgspec looks for a key from the last match onwards.
class MemoryArgs(Struct, gc=False):
    """Arguments of a ``[memory]`` event."""

    reserved: Loose = field(name="Total Reserved", default=None)
    allocated: Loose = field(name="Total Allocated", default=None)
    size: Loose = field(name="Bytes", default=None)
    device_id: Loose = field(name="Device Id", default=None)
    device_type: Loose = field(name="Device Type", default=None)
    address: Loose = field(name="Addr", default=None)


class Memory(Struct, gc=False):
    """An allocation, a free, or (``[OutOfMemory]``) a refusal."""

    name: Loose = None
    pid: Loose = None
    tid: Loose = None
    ts: Raw = NO_TEXT
    args: MemoryArgs | None = None


class CollectiveArgs(Struct, gc=False):
    """What NCCL's kernels and ``record_param_comms`` say about their collective."""

    external: Loose = field(name="External id", default=None)
    collective: Loose = field(name="Collective name", default=None)
    in_numel: Loose = field(name="In msg nelems", default=None)
    out_numel: Loose = field(name="Out msg nelems", default=None)
    group_size: Loose = field(name="Group size", default=None)
    dtype: Loose = None
    group: Loose = field(name="Process Group Name", default=None)
    group_description: Loose = field(name="Process Group Description", default=None)
    sequence: Loose = field(name="Seq", default=None)
    in_address: Loose = field(name="Input Tensors start", default=None)
    out_address: Loose = field(name="Output Tensors start", default=None)


class KernelArgs(CollectiveArgs, gc=False):
    """Arguments of device activity."""

    device: Loose = None
    stream: Loose = None
    correlation: Loose = None
    size: Loose = field(name="bytes", default=None)


class OpArgs(CollectiveArgs, gc=False):
    """Arguments of ``record_param_comms``, and of our own ranges."""

    event_id: Loose = None


class RangeArgs(Struct, gc=False):
    """The argument of an annotation that we read: our own event's id."""

    event_id: Loose = None


class Kernel(Struct, gc=False):
    """A kernel, copy or fill."""

    name: Loose = None
    pid: Loose = None
    tid: Loose = None
    ts: Raw = NO_TEXT
    dur: Raw = NO_TEXT
    args: KernelArgs | None = None


class Range(Struct, gc=False):
    """A ``record_function`` range, or its mirror on the device."""

    name: Loose = None
    pid: Loose = None
    tid: Loose = None
    ts: Raw = NO_TEXT
    dur: Raw = NO_TEXT
    args: RangeArgs | None = None


class Op(Struct, gc=False):
    """An operator. Few are kept, so its arguments stay undecoded until it is."""

    name: str = ""
    pid: Loose = None
    tid: Loose = None
    ts: Raw = NO_TEXT
    dur: Raw = NO_TEXT
    args: Raw = NO_TEXT


class _Head(Struct, gc=False):
    ph: Loose = None
    cat: Loose = None


class _NoArgs(Struct, gc=False):
    name: Loose = None
    pid: Loose = None
    tid: Loose = None
    ts: Raw = NO_TEXT
    dur: Raw = NO_TEXT


Kept = type[Memory] | type[Kernel] | type[Range] | type[Op]

KEPT: Final[dict[str, Kept]] = {
    "cpu_instant_event": Memory,
    "kernel": Kernel,
    "gpu_memcpy": Kernel,
    "gpu_memset": Kernel,
    "user_annotation": Range,
    "gpu_user_annotation": Range,
    "cpu_op": Op,
    # as torch 1.8 to 1.11 wrote them
    "Kernel": Kernel,
    "Memcpy": Kernel,
    "Memset": Kernel,
    "Operator": Op,
}
"""Categories that fill tables."""

_FREQUENT: Final = ("cuda_runtime", "ac2g", "fwdbwd", "cuda_driver", "overhead", "python_function", "Trace")
"""Other categories expected in any trace; more are learned from the file."""

_INVALID: Final = (msgspec.DecodeError, RecursionError)

_head = msgspec.json.Decoder(_Head).decode
_no_args = msgspec.json.Decoder(_NoArgs).decode
_op_args = msgspec.json.Decoder(OpArgs | None).decode
_texts = msgspec.json.Decoder(list[Raw]).decode
_kept = {kind: msgspec.json.Decoder(kind).decode for kind in (Memory, Kernel, Range, Op)}


class Events:
    """Takes the events of a trace: keeps rows, counts the rest.

    Args:
        packets: takes what fills tables.
        counts: takes ``events`` (all that were read), ``events.<category>`` and the mends.
    """

    def __init__(self, packets: Packets, counts: Counter[str]) -> None:
        self._packets, self._counts = packets, counts
        self._labels: dict[type, str] = {}
        self._known: set[str] = set()
        self._categories: dict[type, str] = {}
        for category in (*KEPT, *_FREQUENT):
            self._learn(category)
        self._decode = self._decoder()
        self._waiting: dict[str, list[Any]] = {}
        self.phases = 0
        """Events that have a ``ph`` or a category, as any trace event does."""

    def attempt(self, array: memoryview) -> bool:
        """Take all events of a JSON array; False, having taken none, when it is not valid JSON.

        What is kept refers to the array's memory until :meth:`settle`.
        """
        try:
            events = self._decode(array)
        except msgspec.ValidationError:
            return self._attempt_each(array)
        except _INVALID:
            return False
        self._counts["events"] += len(events)
        self.phases += len(events)
        found: dict[Any, list[Any]] = defaultdict(list)
        for one in events:  # the hottest line
            found[type(one)].append(one)
        for kind, some in found.items():
            self._counts[self._labels[kind]] += len(some)
            category = self._categories.get(kind)
            if category is not None:
                self._wait(category, some if KEPT[category] is not Op else [one for one in some if _is_kept(one.name)])
        return True

    def single(self, text: bytes) -> bool:
        """Take one event, mending it if need be; False, having counted nothing, when it cannot be read."""
        if text[:1] != b"{":
            return False
        mends: Sequence[str] = ()
        try:
            head, category, event = self._one(text)
        except _INVALID:
            from zeropeak.parse.kineto.mend import mend  # not above: starting up is a part of the time to beat

            mended = mend(text)
            if mended is None:
                return False
            text, mends = mended
            try:
                head, category, event = self._one(text)
            except _INVALID:
                return False
        self._counts["events_mended"] += bool(mends)
        for what in mends:
            self._counts[f"mended_{what}"] += 1
        self._counts["events"] += 1
        self._counts[self._label(head.cat if isinstance(head.cat, str) else None)] += 1
        self.phases += bool(category) or head.ph is not None
        if event is not None:
            self._wait(category, [event])
        return True

    def settle(self) -> None:
        """Turn what was kept into packets."""
        for category, events in self._waiting.items():
            kind = KEPT[category]
            if kind is Memory:
                self._packets.memory(events)
            elif kind is Kernel:
                self._packets.kernels(events, category)
            elif kind is Range:
                self._packets.ranges(events, [one.args for one in events], category)
            else:
                self._packets.ops(events, [self._op_arguments(one.args) for one in events])
        self._waiting.clear()
        self._packets.hand_on()

    def _op_arguments(self, text: Raw) -> OpArgs | None:
        try:
            return _op_args(text) if text != NO_TEXT else None
        except _INVALID:
            self._counts["args_unreadable"] += 1
            return None

    def _attempt_each(self, array: memoryview) -> bool:
        try:
            texts = _texts(array)
        except _INVALID:
            return False
        for text in texts:
            if not self.single(bytes(text)):
                self._counts["events_dropped"] += 1
        return True

    def _wait(self, category: str, events: list[Any]) -> None:
        if events:
            self._waiting.setdefault(category, []).extend(events)

    def _one(self, text: bytes) -> tuple[_Head, str, Any]:
        """Head, the category that it is taken for and, if it is kept, the event."""
        head = _head(text)
        category = head.cat if isinstance(head.cat, str) else ""
        if head.cat is None and (MEMORY.encode() in text or OUT_OF_MEMORY.encode() in text):
            category = "cpu_instant_event"  # torch 1.8 and 1.9 gave these no category
        kind = KEPT.get(category)
        if kind is None:
            return head, category, None
        try:
            event: Any = _kept[kind](text)
        except msgspec.ValidationError:
            bare = _no_args(text)
            event = kind()
            for name in set(kind.__struct_fields__) & set(_NoArgs.__struct_fields__):
                setattr(event, name, getattr(bare, name))
            if kind is Op and not isinstance(bare.name, str):
                event.name = ""
            self._counts["args_unreadable"] += 1
        if kind is Op and not _is_kept(event.name):
            event = None
        return head, category, event

    def _label(self, category: str | None) -> str:
        label = "events.none" if category is None else f"events.{category}"
        if category is None or label in self._known:
            return label
        if len(self._known) >= MAX_LABELS:
            return "events.other"
        self._learn(category)
        self._decode = self._decoder()
        return label

    def _learn(self, category: str) -> None:
        """Make a struct type for a category: msgspec picks it by the value of ``cat``."""
        base = KEPT.get(category)
        kind = msgspec.defstruct(
            f"Event{len(self._known)}", [], bases=(base,) if base else None, tag_field="cat", tag=category, gc=False
        )
        self._labels[kind] = f"events.{category}"
        self._known.add(f"events.{category}")
        if base:
            self._categories[kind] = category

    def _decoder(self) -> Callable[[memoryview], list[Any]]:
        kinds: Any = None
        for kind in self._labels:
            kinds = kind if kinds is None else kinds | kind
        return msgspec.json.Decoder(list[kinds]).decode


def _is_kept(name: str) -> bool:
    """Whether an operator of this name fills a table; few do."""
    return name == COMMS_NAME or name.startswith(RECORD_PREFIX)
