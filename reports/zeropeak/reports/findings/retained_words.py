"""The sentences of the finding retained-after-release: what is alive, what holds it, what to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from zeropeak.reports import setting
from zeropeak.reports.findings.holders import Cause, Group
from zeropeak.reports.names import patterns
from zeropeak.reports.units import count, percent, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeropeak.reports.findings.saving import Saving


@dataclass(frozen=True)
class Held:
    """What is alive at the first mark where anything is, and at the worst one.

    Attributes:
        mark: row of ``marks``.
        size_bytes: what surely outlived it.
        count: number of such storages.
        apart_bytes: counted by the mark, but without a holder and gone within moments.
        worst_bytes: most at any moment of the run.
        groups: storages by cause and holder, most bytes first.
        at_first_forward: the mark is the one after the first forward.
        saving: of the run's peak, without the storages that the knob would free.
    """

    mark: dict[str, Any]
    size_bytes: int
    count: int
    apart_bytes: int
    worst_bytes: int
    groups: Sequence[Group]
    at_first_forward: bool
    saving: Saving | None
    later: Later | None = None


@dataclass(frozen=True)
class Later:
    """What the forwards of later steps retain, less since weights are kept for reuse.

    Attributes:
        step: first of them.
        always: the later ones retain the same.
        less_bytes, less_count: kept for reuse instead of released.
    """

    step: int
    always: bool
    size_bytes: int
    count: int
    less_bytes: int
    less_count: int

    def sentence(self) -> str:
        """For the headline."""
        when = f"from step {self.step} on" if self.always else f"in step {self.step}"
        weights = f" in {count(self.count, 'weight')}" if self.count else ""
        less = f" ({count(self.less_count, 'weight')})" if self.less_count > 0 else ""
        return (
            f"{when} {size(self.size_bytes)}{weights}, since {size(self.less_bytes)}{less} is kept for reuse "
            "(stage3_max_reuse_distance) instead of released"
        )


def _where(mark: dict[str, Any]) -> str:
    return f"after the {mark['mark']} of step {mark['step']}"


def headline(facts: Held) -> str:
    """How much, when, and how much of all that was allocated."""
    mark = facts.mark
    bytes_, allocated = facts.size_bytes, mark["allocated_bytes"]
    share = f", {percent(bytes_, allocated)} of what was allocated" if allocated else ""
    when = "After the first forward" if facts.at_first_forward else _where(mark).capitalize()
    weights = f" in {count(facts.count, 'weight')}" if facts.count else ""
    text = f"{when} {size(bytes_)}{weights} had been released by ZeRO and were still alive{share}"
    if facts.worst_bytes > bytes_:
        text += f"; {size(facts.worst_bytes)} at the worst moment of the run"
    if facts.later is not None:
        text += f"; {facts.later.sentence()}"
    if facts.apart_bytes:
        text += f"; {size(facts.apart_bytes)} more may have been on their way out (no holder, gone within moments)"
    return f"{text}."


def notes(facts: Held) -> list[str]:
    """One sentence a cause: its holders, then why."""
    by_cause: dict[tuple[Cause | None, bool], list[str]] = {}
    for g in facts.groups:
        where = "" if g.holder_step in {None, facts.mark["step"]} else f" (searched in step {g.holder_step})"
        holder = g.holder or "a holder that was not found"
        what = f"{size(g.size_bytes)} in {count(len(g.rows), 'weight')} by {holder}{where}"
        by_cause.setdefault((g.cause, g.holder is None), []).append(what)
    notes = [
        f"{', '.join(held)}: {'suspected, ' if guess and cause else ''}{_CAUSES[cause]}."
        for (cause, guess), held in by_cause.items()
    ]
    return notes or ["The table of retained storages is empty, so neither the weights nor their holder are known."]


_CAUSES: Final = {
    Cause.LINEAR_OFF: "memory_efficient_linear is false, so plain F.linear lets autograd save a view of each weight",
    Cause.NOT_INSTALLED: "memory_efficient_linear is true, but F.linear was not wrapped during forward",
    Cause.OTHER_OP: "F.linear's wrapper does not reach this op, which saved the weight for its backward",
    None: "the run does not say whether F.linear was wrapped, so the cause is open",
}


def advice(facts: Held, versions: Mapping[str, Any]) -> str:
    """What to change for each cause, and what that saves by this run's own numbers."""
    by_cause: dict[Cause | None, int] = {}
    for g in facts.groups:
        by_cause[g.cause] = by_cause.get(g.cause, 0) + g.size_bytes
    named = {g.cause for g in facts.groups if g.holder}
    parts = []
    for cause, bytes_ in sorted(by_cause.items(), key=lambda item: -item[1]):
        guess = "" if cause in named or cause is None else "Suspected cause, the holder was not found: "
        parts.append(guess + _advice_for(cause, bytes_, facts, versions))
    return " ".join(parts) or "Capture again with the holder search on, to learn what keeps them."


def _advice_for(cause: Cause | None, bytes_: int, facts: Held, versions: Mapping[str, Any]) -> str:
    if cause is Cause.OTHER_OP:
        g = next(g for g in facts.groups if g.cause is cause)
        modules = patterns((row["holder_module"] or row["module"] or "?", row["size_bytes"] or 0) for row in g.rows)
        op = f"the op behind {g.holder}" if g.holder else "the op that saves it"
        return (
            f"In {modules[0][0]}, call torch.nn.functional.linear on the parameter itself instead of {op}: its "
            f"memory-efficient version saves the parameter, not a view; {size(bytes_)} less {_where(facts.mark)}."
        )
    if cause is Cause.LINEAR_OFF:
        return f"Set {setting.LINEAR_KNOB} to true: {_saved(bytes_, facts)}."
    if cause is Cause.NOT_INSTALLED:
        version = versions.get("deepspeed")
        here = f" (this run: {version})" if version else ""
        return (
            f"Keep {setting.LINEAR_KNOB} true and build the model under deepspeed.zero.Init, or use DeepSpeed 0.19.4 "
            f"or newer{here}, where deepspeed.initialize alone wraps F.linear: {_saved(bytes_, facts)}."
        )
    return f"Capture with zeropeak's hooks to learn what holds {size(bytes_)}."


def _saved(bytes_: int, facts: Held) -> str:
    allocated = facts.mark["allocated_bytes"]
    after = "the first forward" if facts.at_first_forward else _where(facts.mark).removeprefix("after ")
    to = f" ({size(allocated)} to {size(allocated - bytes_)})" if allocated is not None else ""
    text = f"expect {size(bytes_)} less after {after}{to}"
    if facts.saving is None:
        return f"{text}; the saving at the peak is unknown, there is no memory curve"
    return f"{text} and {facts.saving.words}"
