"""What stands in the report beside the answer and the figures: tables of events, weights, ranks and knobs, glossary."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from zeropeak.profile.privacy import without_folders
from zeropeak.reports import words
from zeropeak.reports.around import When, around, parameters
from zeropeak.reports.figures import style
from zeropeak.reports.findings import Finding, Verdict, retained_after_release
from zeropeak.reports.given import of_files
from zeropeak.reports.names import pattern, patterns
from zeropeak.reports.origin import run_origin_ns
from zeropeak.reports.pages import Column
from zeropeak.reports.selection import shown_ranks
from zeropeak.reports.story import read_story
from zeropeak.reports.units import count, duration, moment, offset, percent, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from zeropeak.reports.findings.holders import Group
    from zeropeak.reports.pages import Pages
    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Peak, Story

_TOP_HOLDERS: Final = 12
_DASH: Final = "-"
_MEASURED: Final = (Verdict.CONFIRMED, Verdict.PREDICTED)

_MODEL_KEYS: Final = (
    "preset",
    "class",
    "layers",
    "hidden",
    "intermediate",
    "parameters",
    "trainable_parameters",
    "lora",
    "lora_rank",
    "attention",
    "dtype",
    "gradient_checkpointing",
)
_RUN_KEYS: Final = ("world_size", "backend", "device", "steps", "seq", "micro_batch", "grad_accum")

GLOSSARY: Final = (
    (
        "fetch, prefetch",
        "An all-gather of full parameters: a fetch for the module that runs now, a prefetch for a later one.",
    ),
    ("wait", "The module waits for its gather; the full parameters exist from here on."),
    ("release, free", "A module lets go of its parameters (release); each one's full storage is dropped (free)."),
    (
        "released but alive",
        "Dropped by ZeRO, but something else (mostly autograd) still holds the storage: the bytes stay allocated.",
    ),
    (
        "kept for reuse",
        "A full parameter that is not released since it is needed again within stage3_max_reuse_distance elements.",
    ),
    (
        "allocated, reserved",
        "Held by live tensors; held by the allocator, which is more by its cache and fragmentation.",
    ),
    (
        "GiB, MiB, KiB",
        "1024 to the third, second and first power, in bytes. Knobs of DeepSpeed count elements, not bytes.",
    ),
)


def ranks_table(pages: Pages, run: Run, ranks: Sequence[int], findings: Iterable[Finding], strong: int | None) -> None:
    """One row a rank: peak, moment (of the highest sample: ≈), events, what was released but alive, verdict."""
    of_rank: defaultdict[int, list[Verdict]] = defaultdict(list)
    for finding in findings:
        of_rank[finding.rank].append(finding.verdict)
    rows = [_rank_row(run, rank, _verdicts(of_rank[rank])) for rank in ranks]
    columns = [
        Column("rank", 6, right=True),
        Column("peak", 10, right=True),
        Column("at", 13, right=True),
        Column("in", 12),
        Column("event in flight", 25),
        Column("last begun before", 27),
        Column("released but alive", 15, right=True),
        Column("findings", 13),
    ]
    pages.table(columns, rows, [index for index, rank in enumerate(ranks) if rank == strong])


def _verdicts(found: Sequence[Verdict]) -> str:
    """How many findings have the surest verdict that says something; "none" when all that is known is ruled out."""
    for verdict in (Verdict.CONFIRMED, Verdict.PREDICTED, Verdict.SUSPECTED):
        if number := found.count(verdict):
            return f"{number} {verdict.value}"
    if Verdict.RULED_OUT in found:
        return "none"
    return Verdict.UNKNOWN.value if Verdict.UNKNOWN in found else _DASH


def _rank_row(run: Run, rank: int, verdict: str) -> list[str]:
    if rank in run.missing_ranks:
        what = "no file given" if of_files(run) else "nothing captured"
        return [str(rank), _DASH, _DASH, _DASH, what, _DASH, _DASH, verdict]
    story = read_story(run, rank)
    peak = story.peak
    if peak is None:
        top = words.reserved_bytes(story)
        what = f"no curve; reserved ≤ {size(top)}" if top else "no memory curve"
        return [str(rank), _DASH, _DASH, _DASH, what, _DASH, _DASH, verdict]
    released = story.released_at_peak_bytes
    share = "" if not released else f" ({percent(released, peak.allocated_bytes)})"
    return [
        str(rank),
        ("" if story.complete else "≥ ") + size(peak.highest_bytes),
        ("≈ " if words.by_allocator(peak) else "") + moment(peak.ts_ns, run_origin_ns(run)),
        words.where(peak).replace("optimizer's ", "").replace(" of step", "") or _DASH,
        peak.in_flight.name if peak.in_flight else "none" if peak.events_told else "not recorded",
        _before(peak),
        _DASH if released is None else f"{size(released)}{share}",
        verdict,
    ]


def _before(peak: Peak) -> str:
    """The last event begun before a peak, with its phase when that is an earlier one."""
    if peak.before is None:
        return _DASH
    earlier = peak.preceding is None and peak.before.phase
    return f"{peak.before.name} ({peak.before.phase})" if earlier else peak.before.name


def events_table(pages: Pages, run: Run, story: Story) -> None:
    """Events around one rank's peak."""
    neighbours = around(story)
    if not neighbours or story.peak is None:
        return
    names = parameters(run, story.rank, [n.event for n in neighbours])
    pages.keep_together(len(neighbours))
    what = "highest sample" if story.peak.sampled else "peak"
    when = moment(story.peak.ts_ns, run_origin_ns(run))
    pages.heading(f"Rank {story.rank}: the events around its {what} at {when}", 11)
    rows = []
    for neighbour in neighbours:
        event = neighbour.event
        params = names.get(event.event_id or -1, [])
        took = (
            "never ended"
            if event.end_ns is None
            else duration(event.end_ns - event.start_ns)
            if event.end_ns > event.start_ns
            else "moment"
        )
        rows.append(
            [
                neighbour.when.value,
                offset(event.start_ns - story.peak.ts_ns),
                took,
                event.kind or "?",
                event.module or ("the model" if event.module == "" else _DASH),
                str(event.param_count if event.param_count is not None else len(params) or _DASH),
                size(event.full_bytes) if event.full_bytes is not None else _DASH,
                ", ".join(params) or _DASH,
            ]
        )
    columns = [
        Column("", 9),
        Column("begins", 10, right=True),
        Column("takes", 10, right=True),
        Column("kind", 9),
        Column("module", 30),
        Column("params", 7, right=True),
        Column("full size", 10, right=True),
        Column("parameters", 34),
    ]
    pages.table(columns, rows, [index for index, n in enumerate(neighbours) if n.when is When.IN_FLIGHT])


def retained_table(pages: Pages, run: Run, findings: Iterable[Finding]) -> None:
    """Released weights that were alive, by name and holder, at the mark that the finding is about."""
    found = [f for f in findings if f.id == retained_after_release.ID and f.verdict in _MEASURED and f.bytes]
    where = next((e.where for f in found[:1] for e in f.evidence if e.table == "retained"), None)
    if where is None:
        return
    groups = retained_after_release.held_at(run, found[0].rank, where)
    alike = [f.rank for f in found if f.bytes == found[0].bytes]
    others = f" ({shown_ranks(alike)} alike)" if len(alike) > 1 else ""
    title = f"Rank {found[0].rank}: released weights alive after the {where['mark']} of step {where['step']}{others}"
    columns = [
        Column("weights", 42),
        Column("count", 7, right=True),
        Column("bytes", 10, right=True),
        Column("share", 8, right=True),
        Column("held by", 32),
        Column("made in the forward of", 38),
        Column("alive for", 22, right=True),
    ]
    rows = _retained_rows(groups)
    pages.keep_together(len(rows))
    pages.heading(title, 11)
    pages.table(columns, rows)


def _retained_rows(groups: Sequence[Group]) -> list[list[str]]:
    total = sum(g.size_bytes for g in groups)
    lines: list[tuple[int, list[str]]] = []
    for g in groups:
        by_name: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in g.rows:
            by_name[pattern(row["param"] or "?")].append(row)
        for name, rows in by_name.items():
            bytes_ = sum(row["size_bytes"] or 0 for row in rows)
            modules = patterns((row["holder_module"] or "the model", 1) for row in rows)
            cells = [
                name if len(rows) > 1 else rows[0]["param"] or "?",
                f"{len(rows):,}",
                size(bytes_),
                percent(bytes_, total),
                g.holder or "not found",
                modules[0][0] if g.holder else _DASH,
                _lifetimes(rows),
            ]
            lines.append((bytes_, cells))
    lines.sort(key=lambda line: -line[0])
    rest = [bytes_ for bytes_, _ in lines[_TOP_HOLDERS:]]
    shown = [cells for _, cells in lines[:_TOP_HOLDERS]]
    if rest:
        shown.append(
            [count(len(rest), "smaller group"), _DASH, size(sum(rest)), percent(sum(rest), total), *[_DASH] * 3]
        )
    return shown


def _lifetimes(rows: Sequence[dict[str, Any]]) -> str:
    """From the release to the storage's end."""
    lasted = [row["ended_ns"] - row["released_ns"] for row in rows if None not in (row["ended_ns"], row["released_ns"])]
    if not lasted:
        return "no end seen"
    low, high = duration(min(lasted)), duration(max(lasted))
    return low if low == high else f"{low} to {high}"


def knobs(pages: Pages, run: Run) -> None:
    """The config as DeepSpeed got it, with what was changed, and the versions."""
    manifest = run.manifest
    pages.heading("Knobs and versions of this run", keep_in=1.5)
    versions = ", ".join(f"{name} {version}" for name, version in (manifest.get("versions") or {}).items() if version)
    if versions:
        pages.paragraph(versions, "Versions")
    if manifest.get("model"):
        pages.paragraph(_model(manifest), "Model")
    rows, strong = _knob_rows(run)
    columns = [
        Column("knob (sizes in elements, not bytes)", 44),
        Column("value", 20),
        Column("in the config as given", 20),
        Column("why it differs", 36),
    ]
    if rows:
        pages.table(columns, rows, strong, bold=False)
    else:
        pages.paragraph(
            "No file holds the DeepSpeed config." if of_files(run) else "The run's manifest holds no DeepSpeed config."
        )
    defaults = _defaults(run)
    if defaults:
        pages.paragraph(", ".join(defaults), "Defaults", size=style.SIZE_SMALL)


def _knob_rows(run: Run) -> tuple[list[list[str]], list[int]]:
    """Rows (knob, value, as given, why it differs), and the indexes of those that were changed."""
    changes = {str(change.get("key")): change for change in run.manifest.get("config_changes") or []}
    rows: list[list[str]] = []
    strong: list[int] = []
    config = dict(_flat(run.manifest.get("ds_config") or {}))
    for key in [*config, *(key for key in changes if key not in config)]:
        change = changes.get(key)
        value = config[key] if key in config else changes[key].get("to")
        if change is None:
            rows.append([key, _value(value), "the same", _DASH])
        else:
            before = change.get("from")
            strong.append(len(rows))
            given = "absent" if before is None else _value(before)
            rows.append([key, _value(value), given, str(change.get("why", "changed"))])
    return rows, strong


def _defaults(run: Run) -> list[str]:
    """ZeRO knobs that the config does not name, as DeepSpeed resolved them."""
    resolved = run.rank_facts(run.rank_ids[0]).get("zero") or {} if run.rank_ids else {}
    config = _flat(run.manifest.get("ds_config") or {})
    given = {part.removeprefix("stage3_") for key, _ in config for part in key.split(".")}
    return [
        f"{key} {_value(value)}"
        for key, value in sorted(resolved.items())
        if key.removeprefix("stage3_") not in given and value is not None
    ]


def glossary(pages: Pages) -> None:
    """What the report's words mean."""
    pages.keep_together(len(GLOSSARY))
    pages.heading("Words", 11)
    for word, meaning in GLOSSARY:
        pages.paragraph(f"{word}: {meaning}", mark="•")


def _model(manifest: Mapping[str, Any]) -> str:
    model = manifest["model"]
    named = {key.replace("_", " "): model.get(key) for key in _MODEL_KEYS}
    named |= {key.replace("_", " "): manifest.get(key) for key in _RUN_KEYS}
    return ", ".join(f"{key} {_value(value)}" for key, value in named.items() if value is not None)


def _flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _value(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e18:
        value = int(value)
    if isinstance(value, int):
        return f"{value:,}"
    return without_folders(value if isinstance(value, str) else json.dumps(value))
