"""How full the gradient buckets of a rank get, and how often they are reduced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse import lookup
from zeropeak.parse.lookup import Lookup
from zeropeak.profile.labels import Kind
from zeropeak.reports.columns import ints
from zeropeak.reports.findings.finding import Evidence

if TYPE_CHECKING:
    from zeropeak.reports.run import Run

_TOP_ROWS: Final = 5


@dataclass(frozen=True)
class Fill:
    """What goes into a bucket.

    Attributes:
        most_numel: elements of the fullest reduction; when none was seen, of all gradients together.
        reductions: number of reductions in the busiest step; None when none was seen.
        evidence: the largest of them.
    """

    most_numel: int
    reductions: int | None
    evidence: Evidence | None


def read_fill(run: Run, rank: int) -> Fill | None:
    """Elements of the reductions; None when neither they nor the parameters are known."""
    params = run.arrow("params", rank, ["param_id", "numel", "trainable"])
    numel = ints(params, "numel", 0)
    events = run.arrow("zero_events", rank, ["event_id", "kind", "step", "param_count", "full_bytes"])
    events = events.filter(pc.equal(events["kind"], Kind.REDUCE.value))
    members = run.arrow("zero_event_params", rank, ["event_id", "param_id"])
    members = members.filter(pc.is_in(members["event_id"], events["event_id"].combine_chunks()))
    if not members.num_rows:
        trained = int(numel[pc.fill_null(params["trainable"], False).to_numpy()].sum())
        return Fill(trained, None, None) if trained else None
    row = lookup.ints(Lookup(params["param_id"]).find(members["param_id"]))
    event = lookup.ints(Lookup(events["event_id"]).find(members["event_id"]))
    elements = np.zeros(events.num_rows, np.int64)
    np.add.at(elements, event[row >= 0], numel[row[row >= 0]])
    top = np.argsort(-elements, kind="stable")[:_TOP_ROWS]
    rows = events.take(pa.array(top)).to_pylist()
    shown = [{"rank": rank, **one, "numel": int(elements[at])} for one, at in zip(rows, top, strict=True)]
    where = {"rank": rank, "kind": Kind.REDUCE.value}
    steps = ints(events, "step")
    busiest = int(np.unique(steps, return_counts=True)[1].max())
    return Fill(int(elements.max()), busiest, Evidence("zero_events", where, shown, "the fullest reductions"))
