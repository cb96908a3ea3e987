"""Most of the peak is activations: what forward keeps for backward. No ZeRO knob changes that, checkpointing does.

Whether the run checkpoints is measured: a module whose forward runs again inside a backward was recomputed. DeepSpeed's
config section ``activation_checkpointing`` does nothing by itself; it only sets how a model that calls
``deepspeed.checkpointing`` does it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from zeropeak.reports.findings.checkpointing import layers_at_peak
from zeropeak.reports.findings.finding import Evidence, Expected, Finding
from zeropeak.reports.findings.judging import judge, ruled_out, sure, unattributed_peak, unknown
from zeropeak.reports.story import UNATTRIBUTED, read_story
from zeropeak.reports.units import count, percent, size

if TYPE_CHECKING:
    from zeropeak.reports.findings.checkpointing import Layers
    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Peak

ID: Final = "activations-dominate"
TITLE: Final = "Activations are most of the peak"
MOST: Final = 0.5
"""Share of the peak from which activations dominate: more than all else together, so whatever ZeRO's knobs do, less
than half of the peak is theirs to lower."""
NONE: Final = "no-checkpointing"
NOT_ENOUGH: Final = "in-spite-of-checkpointing"
_ACTIVATIONS: Final = "activations"
_SECTION: Final = "activation_checkpointing"


def find(run: Run) -> list[Finding]:
    """One finding a rank, missing ranks included."""
    return judge(run, ID, of_rank)


def of_rank(run: Run, blank: Finding) -> Finding:
    """The finding on one rank, filled in from a blank one."""
    story = read_story(run, blank.rank)
    if unsaid := unattributed_peak(run, blank, story):
        return unsaid
    assert story.peak is not None
    parts = {part.category: part.size_bytes for part in story.composition}
    total, most = story.peak.highest_bytes, parts.get(_ACTIVATIONS, 0)
    # What the highest sample did not see of the allocator's maximum may be anything, as may what has no owner.
    open_ = max(parts.get(UNATTRIBUTED, 0), 0) + total - story.peak.allocated_bytes
    evidence = [_evidence(blank.rank, story.peak, most, open_)]
    text = f"{size(most)} of the peak of {size(total)} are activations ({percent(most, total)})"
    if most <= MOST * total < most + open_:
        begin = f"{text}, and " if most else "Of the peak "
        return unknown(
            blank,
            f"{begin}{size(open_)} ({percent(open_, total)}) have no owner, so whether most of it is activations is "
            "not known.",
            "Capture with `zeropeak torch`, whose memory history has every block.",
        )
    if not most and story.peak.sampled:
        text = f"At most {size(open_)} ({percent(open_, total)}) of the peak of {size(total)} can be activations"
        return replace(
            ruled_out(blank, f"{text}: so much has no owner, as blocks were not recorded.", 0, evidence), bytes=None
        )
    if most <= MOST * total:
        rest = f"; at most {size(most + open_)} with what is not attributed" if open_ > most // 100 else ""
        return ruled_out(blank, f"{text}{rest}.", most, evidence)
    again = _recomputed(run, blank.rank)
    told = _told(run)
    on = bool(again) or (again is None and told is True)
    if not on and again is None and told is None:
        return replace(
            blank,
            verdict=sure(blank),
            bytes=most,
            allocated_bytes=total,
            headline=f"{text}. Whether the run checkpoints is not known: no module ranges.",
            advice=f"If it does not checkpoint yet: {_checkpointing(layers_at_peak(run, blank.rank), story.peak)}",
            evidence=evidence,
        )
    cause = NOT_ENOUGH if on else NONE
    layers = layers_at_peak(run, blank.rank)
    return replace(
        blank,
        verdict=sure(blank),
        bytes=most,
        step=story.peak.step,
        cause=cause,
        allocated_bytes=total,
        headline=f"{text}, {_how(again, on)}. {_section(run) if not on else ''}".strip(),
        expected=[] if on else _expected(layers, story.peak),
        advice=_less_each() if on else _checkpointing(layers, story.peak),
        modules=layers.names,
        evidence=[*evidence, *_again_evidence(blank.rank, again)],
    )


def _recomputed(run: Run, rank: int) -> Counter[str] | None:
    """Modules whose forward ran inside a backward, with how often; None when no module ranges tell."""
    ranges = run.arrow("module_ranges", rank, ["module", "direction", "phase"])
    if not pc.any(pc.equal(ranges["phase"], "backward")).as_py():
        return None
    chosen = pc.and_(pc.equal(ranges["phase"], "backward"), pc.equal(ranges["direction"], "forward"))
    return Counter(name or "" for name in ranges.filter(chosen)["module"].to_pylist())


def _told(run: Run) -> bool | None:
    """What the manifest says of Hugging Face's checkpointing."""
    said = (run.manifest.get("model") or {}).get("gradient_checkpointing")
    return said if isinstance(said, bool) else None


def _how(again: Counter[str] | None, on: bool) -> str:
    if again:
        return f"although {count(sum(again.values()), 'forward')} of modules ran again inside backward (checkpointing)"
    if on:
        return "although the model checkpoints"
    return "and no module's forward runs again inside backward: nothing is checkpointed"


def _section(run: Run) -> str:
    section = (run.manifest.get("ds_config") or {}).get(_SECTION)
    if not isinstance(section, dict) or not section:
        return ""
    return (
        f"The config's section {_SECTION} has no effect here: it only sets how a model that calls "
        "deepspeed.checkpointing does it, and this one does not."
    )


def _checkpointing(layers: Layers, peak: Peak) -> str:
    text = (
        "Call model.gradient_checkpointing_enable() (Hugging Face; here --gradient-checkpointing), or wrap the layers "
        "in deepspeed.checkpointing.checkpoint"
    )
    saved = layers.saved_bytes
    if saved is None:
        return f"{text}. It costs one more forward."
    then = size(peak.highest_bytes - saved)
    return (
        f"{text}: expect about {size(saved)} less at the peak ({size(peak.highest_bytes)} to {then}), for one more "
        f"forward; {layers.sentence()}."
    )


def _expected(layers: Layers, peak: Peak) -> list[Expected]:
    saved = layers.saved_bytes
    if saved is None:
        return []
    return [Expected("peak", None, peak.highest_bytes, peak.highest_bytes - saved, peak.sampled)]


def _less_each() -> str:
    return (
        "Lower the micro-batch or the sequence length, checkpoint more of the model (its head and loss too), or split "
        "the sequence over ranks."
    )


def _evidence(rank: int, peak: Peak, most: int, open_: int) -> Evidence:
    row = {
        "rank": rank,
        "ts_ns": peak.ts_ns,
        "peak_bytes": peak.highest_bytes,
        "activations_bytes": most,
        "not_attributed_bytes": open_,
    }
    where = {"rank": rank, "scope": "run", "category": _ACTIVATIONS}
    return Evidence("peak_composition", where, [row], "activations at the run's peak")


def _again_evidence(rank: int, again: Counter[str] | None) -> list[Evidence]:
    if again is None:
        return []
    where = {"rank": rank, "phase": "backward", "direction": "forward"}
    rows = [{"rank": rank, "module": name, "count": number} for name, number in again.most_common(5)]
    return [Evidence("module_ranges", where, rows, f"{sum(again.values())} forwards inside a backward: recomputation")]
