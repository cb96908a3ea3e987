"""Every table of a run, declared once: columns, types, units, meaning.

``docs/schema.md`` is generated from here (``python -m zeropeak.parse.schema``), the writer checks against it,
and a test fails on a column without a description. Times are ``*_ns``: int64 nanoseconds since the Unix epoch
on the run's one clock. Sizes are ``*_bytes``: int64. Null means unknown, never zero.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from zeropeak.parse.categories import CATEGORIES
from zeropeak.parse.mends import MENDS
from zeropeak.parse.table import FLAG, FLOAT, INT, TEXT, Column, Table, page

__all__ = ["BY_NAME", "CATEGORIES", "FLAG", "FLOAT", "INT", "MENDS", "TABLES", "TEXT", "Column", "Table"]


def _key(doc: str = "global rank") -> Column:
    return Column("rank", INT, doc, nullable=False)


_STEP = (
    Column("step", INT, "optimizer step, from 0; -1 before the first forward"),
    Column("micro_step", INT, "micro-step within the step (gradient accumulation), from 0"),
)
_ALIVE = (
    Column("block_id", INT, "block of memory_blocks; null for the row of allocated bytes that no block explains"),
    Column("category", TEXT, "what it was then: a category listed at the end of docs/schema.md", nullable=False),
    Column("size_bytes", INT, "its bytes", nullable=False),
    Column("module", TEXT, "as in memory_blocks"),
    Column("owner", TEXT, "as in memory_blocks: parameter, buffer or bucket name"),
    Column("stream", INT, "as in memory_blocks"),
    Column("born_event_id", INT, "as in memory_blocks: the event it was born in"),
)
_SOURCE = Column("source", TEXT, "reader that gave the row: log, nsys, kineto, snapshot or simulated")

TABLES: Final = (
    Table(
        "ranks",
        "One row a rank that left anything behind.",
        (
            _key(),
            Column("world_size", INT, "ranks of the job, captured or not"),
            Column("pid", INT, "process id on its node"),
            Column("node", INT, "index of the node, from 0 (never its name)"),
            Column("device", TEXT, "device of the allocator whose curve the tables hold: cpu, cuda:0, ..."),
            Column("device_name", TEXT, "model of the accelerator"),
            Column("device_total_bytes", INT, "memory of the accelerator"),
            Column(
                "status",
                TEXT,
                "how the rank ended: complete, failed, interrupted, out_of_memory, or cut "
                "(its log stops without an end: killed, or the machine died)",
            ),
            Column("first_ns", INT, "first time seen from this rank"),
            Column("last_ns", INT, "last time seen from this rank"),
            Column(
                "linear_wrapped",
                FLAG,
                "whether torch.nn.functional.linear was DeepSpeed's memory-efficient version during the forward passes",
            ),
            Column(
                "memory_source",
                TEXT,
                "what the memory curve of this rank rests on: kineto, snapshot, counters, "
                "simulated (nothing was measured), or null when there is none",
            ),
            Column("memory_partial", FLAG, "true when the curve misses a part of the run (cut capture, full ring)"),
        ),
        ("rank",),
    ),
    Table(
        "clocks",
        "How each source's clock was mapped to the run's clock: run_ns = source_ns + offset_ns + drift * (source_ns "
        "- reference_ns). A row of source collectives maps once more, after those of the rank's other sources: "
        "the clock of its machine contradicted that of another one and was moved so that collectives end together.",
        (
            _key(),
            Column("source", TEXT, "reader that gave the clock: log, nsys, kineto or snapshot; or collectives"),
            Column("reference_ns", INT, "time on the source's clock at which the drift term is zero"),
            Column("offset_ns", INT, "added to the source's clock"),
            Column("drift", FLOAT, "relative rate difference, seconds per second"),
            Column("shared_events", INT, "events (or collectives) seen on both clocks that the fit used"),
            Column("outliers", INT, "shared events that the fit dropped: something happened between the two readings"),
            Column("residual_ns", INT, "median absolute error of the fit over all shared events; null without a fit"),
            Column("residual_max_ns", INT, "largest absolute error of the fit over the events that it used"),
        ),
        ("rank", "source"),
    ),
    Table(
        "marks",
        "Allocator counters at fixed points: after init and after each step's forward, backward and step.",
        (
            _key(),
            *_STEP,
            Column("mark", TEXT, "init, forward, backward or step", nullable=False),
            Column("ts_ns", INT, "when"),
            Column("allocated_bytes", INT, "allocated by live tensors"),
            Column("max_allocated_bytes", INT, "highest allocated_bytes since the mark before"),
            Column(
                "lifetime_max_allocated_bytes",
                INT,
                "highest allocated_bytes since the run began: what torch.cuda.max_memory_allocated gives when nobody "
                "resets it",
            ),
            Column("reserved_bytes", INT, "held by the caching allocator; null on CPU, which has none"),
            Column("released_alive_bytes", INT, "full parameters that were released but whose storage is alive"),
            Column("released_alive_count", INT, "number of such storages"),
            Column(
                "device_used_bytes",
                INT,
                "in use on the whole device (NVML): all processes on it, their contexts, libraries and NCCL buffers",
            ),
        ),
        ("rank", "ts_ns"),
    ),
    Table(
        "phases",
        "Phases of the training loop.",
        (
            _key(),
            Column("event_id", INT, "id of the phase's event"),
            Column("phase", TEXT, "init, forward, backward, step, eval or save", nullable=False),
            *_STEP,
            Column("start_ns", INT, "begin", nullable=False),
            Column("end_ns", INT, "end; null when the capture was cut inside"),
        ),
        ("rank", "start_ns"),
    ),
    Table(
        "modules",
        "Modules of the model.",
        (
            _key(),
            Column("module_id", INT, "id within the rank; 0 is the model itself", nullable=False),
            Column("name", TEXT, "qualified name; '' is the model itself"),
            Column("class_name", TEXT, "class"),
            Column("parent_module_id", INT, "enclosing module"),
        ),
        ("rank", "module_id"),
    ),
    Table(
        "params",
        "Parameters of the model. Sizes are those of the gathered (full) parameter and of this rank's shard.",
        (
            _key(),
            Column("param_id", INT, "id within the rank", nullable=False),
            Column("name", TEXT, "qualified name"),
            Column("module_id", INT, "module that owns it"),
            Column("shape", pa.list_(INT), "full shape"),
            Column("dtype", TEXT, "torch dtype without the torch. prefix"),
            Column("numel", INT, "elements of the full parameter"),
            Column("full_bytes", INT, "bytes of the full parameter"),
            Column("shard_bytes", INT, "bytes of this rank's shard; equals full_bytes when not partitioned"),
            Column("trainable", FLAG, "requires_grad at the first forward"),
            Column("persistent", FLAG, "kept gathered at all times (param_persistence_threshold)"),
        ),
        ("rank", "param_id"),
    ),
    Table(
        "zero_events",
        "ZeRO events: what was fetched, prefetched, waited for, released, freed, gathered, reduced, and when.",
        (
            _key(),
            Column(
                "event_id",
                INT,
                "id, unique in the run; the same in NVTX payload and torch.profiler trace; for "
                "events made of another tool's ranges a number of ours",
            ),
            Column(
                "kind",
                TEXT,
                "fetch, prefetch, wait, release, free, gather, reduce, all_gather or step; null for "
                "a gather that another tool recorded when fetch and prefetch cannot be told apart",
            ),
            Column("name", TEXT, "the range's name, as the source has it"),
            Column("module_id", INT, "module that was running or letting go"),
            Column("module", TEXT, "its qualified name"),
            *_STEP,
            Column("phase", TEXT, "phase the event began in"),
            Column("thread_id", INT, "native thread id"),
            Column("stream", INT, "CUDA stream handle; null on CPU"),
            Column("start_ns", INT, "begin"),
            Column("end_ns", INT, "end; null when the capture was cut inside, equal to start_ns for free"),
            Column("allocated_before_bytes", INT, "allocated at begin"),
            Column("allocated_after_bytes", INT, "allocated at end"),
            Column("param_count", INT, "parameters involved"),
            Column("full_bytes", INT, "sum of their full sizes"),
            Column("shard_bytes", INT, "sum of their shard sizes"),
            Column("parent_event_id", INT, "enclosing event on the same thread"),
            _SOURCE,
        ),
        ("rank", "start_ns"),
    ),
    Table(
        "zero_event_params",
        "Which parameters an event moved, and where their full storage lay.",
        (
            _key(),
            Column("event_id", INT, "event", nullable=False),
            Column("param_id", INT, "parameter", nullable=False),
            Column("param", TEXT, "its qualified name"),
            Column("full_bytes", INT, "full size"),
            Column("shard_bytes", INT, "shard size"),
            Column("address", INT, "address of the full storage, when it existed at the event's end"),
            Column("storage_id", INT, "registered storage (memory_blocks.storage_id)"),
        ),
        ("rank", "event_id", "param_id"),
    ),
    Table(
        "module_ranges",
        "Forward and backward of each module, as they ran.",
        (
            _key(),
            Column("event_id", INT, "id, from the same series as zero_events", nullable=False),
            Column("module_id", INT, "module"),
            Column("module", TEXT, "its qualified name; '' is the model itself"),
            Column("direction", TEXT, "forward or backward"),
            *_STEP,
            Column("phase", TEXT, "phase it began in"),
            Column("thread_id", INT, "native thread id"),
            Column("start_ns", INT, "begin", nullable=False),
            Column("end_ns", INT, "end; null when the capture was cut inside"),
            Column("allocated_before_bytes", INT, "allocated at begin"),
            Column("allocated_after_bytes", INT, "allocated at end"),
            Column("parent_event_id", INT, "enclosing event on the same thread"),
        ),
        ("rank", "start_ns"),
    ),
    Table(
        "retained",
        "Storages that outlived their release, as found at the end of each forward, backward and step.",
        (
            _key(),
            *_STEP,
            Column("mark", TEXT, "forward, backward or step", nullable=False),
            Column("ts_ns", INT, "when it was found alive"),
            Column("param_id", INT, "parameter"),
            Column("param", TEXT, "its qualified name"),
            Column("module", TEXT, "module that owns it"),
            Column("size_bytes", INT, "bytes of the storage"),
            Column("address", INT, "its address"),
            Column("storage_id", INT, "registered storage"),
            Column("release_event_id", INT, "the free event that should have ended it"),
            Column("released_ns", INT, "when that was"),
            Column("ended_ns", INT, "when the storage really ended; null when never seen"),
            Column(
                "holder", TEXT, "what keeps it: autograd node and saved attribute; null when not searched or not found"
            ),
            Column("holder_module", TEXT, "module whose forward made that node"),
        ),
        ("rank", "ts_ns", "param_id"),
    ),
    Table(
        "delayed_frees",
        "Full parameters whose storage did not end with the release that was decided for them, one row a decision and "
        "parameter, and why. A storage that several decisions found alive has a row for each: their times overlap. "
        "Rules: zeropeak.parse.delayed_frees.",
        (
            _key(),
            Column("event_id", INT, "the release event; null when the free happened outside one"),
            Column(
                "free_event_id",
                INT,
                "the free event of this decision that dropped it from ZeRO's side; null when ZeRO itself kept it",
            ),
            *_STEP,
            Column("phase", TEXT, "phase of the decision"),
            Column("module", TEXT, "module that let go; null for the release of leftovers and of everything"),
            Column("param_id", INT, "parameter", nullable=False),
            Column("param", TEXT, "its qualified name"),
            Column("storage_id", INT, "registered storage"),
            Column(
                "size_bytes", INT, "bytes of the storage; of one that holds several parameters the parameter's own part"
            ),
            Column(
                "decided_ns",
                INT,
                "begin of the release event (of the free, outside one); for prefetched-unused whose storage ended in "
                "time the begin of its prefetch, since when it was held for nothing",
            ),
            Column("freed_ns", INT, "when the storage really ended; null when it was alive at the end of the data"),
            Column("held_ns", INT, "from decided_ns to freed_ns; to the end of the data where that is null"),
            Column("byte_seconds", FLOAT, "size_bytes times held_ns, in bytes times seconds"),
            Column(
                "cause",
                TEXT,
                "autograd-held, reuse-distance, persistence, in-use-by-module, shared-buffer, record-stream or "
                "prefetched-unused; null when it cannot be told",
            ),
            Column("holder", TEXT, "autograd node and attribute that saved it, where the search found one"),
            Column("holder_module", TEXT, "module whose forward made that node"),
            Column("until_module", TEXT, "where ZeRO kept it: the module whose later release let it go"),
        ),
        ("rank", "decided_ns", "param_id"),
    ),
    Table(
        "memory_events",
        "Every allocation and free. Running totals are recomputed from the blocks, never taken from a profiler.",
        (
            _key(),
            Column("device", TEXT, "cpu, cuda:0, ..."),
            Column("ts_ns", INT, "when", nullable=False),
            Column("action", TEXT, "alloc, free, segment_alloc, segment_free, or oom", nullable=False),
            Column("address", INT, "address"),
            Column("size_bytes", INT, "size, positive", nullable=False),
            Column("allocated_bytes", INT, "allocated on the device after the event"),
            Column("reserved_bytes", INT, "reserved on the device after the event"),
            Column("stream", INT, "CUDA stream handle"),
            Column("thread_id", INT, "native thread id"),
            Column(
                "mend",
                TEXT,
                "null for an event as recorded; else why we added it: one of the mends listed at the end of "
                "docs/schema.md",
            ),
            _SOURCE,
        ),
        ("rank", "ts_ns"),
    ),
    Table(
        "memory_samples",
        "The allocator's counters as read at the begin and end of each event, module range and phase, and at the "
        "marks; the curve of ranks whose memory_source is counters. Empty on CPU, which has no such counters.",
        (
            _key(),
            Column("ts_ns", INT, "when", nullable=False),
            Column("allocated_bytes", INT, "allocated by live tensors"),
            Column("reserved_bytes", INT, "held by the caching allocator"),
            _SOURCE,
        ),
        ("rank", "ts_ns"),
    ),
    Table(
        "memory_blocks",
        "Lifetimes of allocations.",
        (
            _key(),
            Column("block_id", INT, "id within rank", nullable=False),
            Column("device", TEXT, "cpu, cuda:0, ..."),
            Column("address", INT, "address"),
            Column("size_bytes", INT, "bytes that the allocator counts", nullable=False),
            Column("born_ns", INT, "allocation; null when before the known history"),
            Column("free_requested_ns", INT, "when the owner let go (memory_allocated falls here)"),
            Column("freed_ns", INT, "when the allocator could reuse it (after recorded streams); null while alive"),
            Column(
                "category",
                TEXT,
                "what it holds, as registered: see zeropeak.profile.labels.Stored; null when not registered",
            ),
            Column("owner", TEXT, "parameter, buffer or bucket name"),
            Column("param_id", INT, "parameter it holds"),
            Column("storage_id", INT, "registered storage"),
            Column(
                "module",
                TEXT,
                "module that owns the parameter it holds; else the innermost module that was running when it was born, "
                "in forward or backward",
            ),
            Column("released_ns", INT, "when ZeRO released it (the free event), for a full parameter"),
            Column("born_event_id", INT, "innermost event that was open on the rank when it was born"),
            Column("born_phase", TEXT, "phase it was born in"),
            Column("born_step", INT, "step it was born in"),
            Column("stream", INT, "CUDA stream handle"),
            Column(
                "mend",
                TEXT,
                "null where birth and end are as recorded; else why one of them is ours: one of the mends listed at "
                "the end of docs/schema.md",
            ),
            _SOURCE,
        ),
        ("rank", "born_ns"),
    ),
    Table(
        "collectives",
        "Communication calls with their sizes.",
        (
            _key(),
            Column(
                "name",
                TEXT,
                "operation, as the backend names it; all_gather or reduce_scatter for one that only the event log "
                "tells of",
                nullable=False,
            ),
            Column(
                "start_ns",
                INT,
                "begin: of its kernel where one was recorded, else of the launch; when its buffer was registered for "
                "one that only the event log tells of",
            ),
            Column("end_ns", INT, "end of what start_ns is the begin of; null when only the launch is known"),
            Column("launched_ns", INT, "when the host launched it; null when only its kernel was recorded"),
            Column("thread_id", INT, "native id of the thread that launched it"),
            Column("dtype", TEXT, "element type"),
            Column("in_numel", INT, "elements sent in"),
            Column("out_numel", INT, "elements received"),
            Column("in_bytes", INT, "bytes sent in"),
            Column("out_bytes", INT, "bytes received"),
            Column("group_size", INT, "ranks in the group"),
            Column("group", TEXT, "name or description of the group"),
            Column("sequence", INT, "sequence number in the group"),
            Column("in_address", INT, "address of the input"),
            Column("out_address", INT, "address of the output"),
            Column("stream", INT, "CUDA stream"),
            Column("event_id", INT, "gather or reduce that launched it"),
            _SOURCE,
        ),
        ("rank", "start_ns"),
    ),
    Table(
        "nvtx_ranges",
        "NVTX ranges and marks, and the record_function ranges of torch.profiler.",
        (
            Column("rank", INT, "global rank; null when the process is not one of the run's"),
            Column("pid", INT, "process id"),
            Column("thread_id", INT, "thread that began it"),
            Column("domain", TEXT, "NVTX domain; empty for the default one"),
            Column("category", TEXT, "NVTX category's name"),
            Column("name", TEXT, "text"),
            Column("start_ns", INT, "begin", nullable=False),
            Column("end_ns", INT, "end; null when it was never closed"),
            Column("style", TEXT, "push_pop, start_end, mark or record_function"),
            Column("event_id", INT, "our event, from the payload"),
            _SOURCE,
        ),
        ("rank", "start_ns"),
    ),
    Table(
        "kernels",
        "Work on the accelerator: kernels, copies, fills.",
        (
            _key(),
            Column("name", TEXT, "kernel or copy kind"),
            Column("category", TEXT, "kernel, memcpy or memset"),
            Column("start_ns", INT, "begin", nullable=False),
            Column("end_ns", INT, "end"),
            Column("device", INT, "device index"),
            Column("stream", INT, "stream id"),
            Column("correlation_id", INT, "links to the launch, within the process"),
            Column("size_bytes", INT, "bytes copied or filled"),
            _SOURCE,
        ),
        ("rank", "start_ns"),
    ),
    Table(
        "peaks",
        "Highest allocated memory of the run, of each step and of each phase.",
        (
            _key(),
            Column("scope", TEXT, "run, step or phase", nullable=False),
            Column("step", INT, "step; null for scope run"),
            Column("phase", TEXT, "phase; null for scopes run and step"),
            Column("ts_ns", INT, "first time the peak was reached"),
            Column("allocated_bytes", INT, "allocated at the peak"),
            Column("reserved_bytes", INT, "reserved at the peak"),
            Column(
                "allocator_peak_bytes",
                INT,
                "highest that the allocator's own counter reached in the scope, from "
                "the marks; above allocated_bytes when the curve is sampled and the peak fell between two samples",
            ),
            Column("partial", FLAG, "true when the curve does not cover the whole scope: the real peak may be higher"),
            Column("event_id", INT, "innermost ZeRO event in flight; null when none was"),
            Column("last_event_id", INT, "last ZeRO event other than event_id that had begun by then"),
            Column("module", TEXT, "innermost module that was running"),
            _SOURCE,
        ),
        ("rank", "ts_ns"),
    ),
    Table(
        "peak_composition",
        "What was alive at each peak, by category; the rows of one peak sum to its allocated_bytes.",
        (
            _key(),
            Column("scope", TEXT, "as in peaks", nullable=False),
            Column("step", INT, "as in peaks"),
            Column("phase", TEXT, "as in peaks"),
            Column("category", TEXT, "one of the categories listed at the end of docs/schema.md", nullable=False),
            Column(
                "size_bytes",
                INT,
                "bytes; unattributed can be negative when more was registered than measured",
                nullable=False,
            ),
            Column("block_count", INT, "blocks"),
        ),
        ("rank", "scope", "step", "phase", "category"),
    ),
    Table(
        "mark_composition",
        "What was alive at each mark, by category; the rows of one mark sum to its allocated_bytes.",
        (
            _key(),
            *_STEP,
            Column("mark", TEXT, "as in marks", nullable=False),
            Column("ts_ns", INT, "when"),
            Column("category", TEXT, "as in peak_composition", nullable=False),
            Column("size_bytes", INT, "as in peak_composition", nullable=False),
            Column("block_count", INT, "blocks"),
        ),
        ("rank", "ts_ns", "category"),
    ),
    Table(
        "peak_blocks",
        "Every block that was alive at each peak. The rows of one peak sum to its allocated_bytes, and those of a "
        "category to its row of peak_composition: group by module, owner or stream.",
        (
            _key(),
            Column("scope", TEXT, "as in peaks", nullable=False),
            Column("step", INT, "as in peaks"),
            Column("phase", TEXT, "as in peaks"),
            *_ALIVE,
        ),
        ("rank", "scope", "step", "phase", "block_id"),
    ),
    Table(
        "mark_blocks",
        "Every block that was alive at each mark, as peak_blocks does for the peaks.",
        (
            _key(),
            *_STEP,
            Column("mark", TEXT, "as in marks", nullable=False),
            Column("ts_ns", INT, "when"),
            *_ALIVE,
        ),
        ("rank", "ts_ns", "block_id"),
    ),
    Table(
        "saved_tensors",
        "Storages that autograd had saved when the forward of one step (holder_step in rank.json) ended, each once. "
        "They check the category activations, which is told by lifetimes: those that are no registered storage should "
        "be its blocks.",
        (
            _key(),
            *_STEP,
            Column("ts_ns", INT, "time of the mark after that forward"),
            Column("address", INT, "address of the storage"),
            Column("size_bytes", INT, "its bytes"),
            Column("storage_id", INT, "registered storage: a parameter, buffer or input that was saved as it is"),
            Column("holder", TEXT, "autograd node and attribute that saved it; the one nearest to the loss of several"),
            Column("holder_module", TEXT, "module whose forward made that node"),
            Column("block_id", INT, "block of memory_blocks that it lies in; null when none was alive there"),
            Column("category", TEXT, "category of that block at that mark"),
        ),
        ("rank", "ts_ns", "address"),
    ),
    Table(
        "import_stats",
        "What each reader read, dropped or mended.",
        (
            Column("rank", INT, "global rank; null when the file belongs to several"),
            Column("file", TEXT, "file, relative to the run directory or as named by the user"),
            _SOURCE,
            Column("what", TEXT, "what was counted, a stable identifier", nullable=False),
            Column("severity", TEXT, "info, mended, lost or error", nullable=False),
            Column("count", INT, "how many", nullable=False),
            Column("detail", TEXT, "one sentence for a person"),
        ),
        ("file", "what"),
    ),
)

BY_NAME: Final = {table.name: table for table in TABLES}


def main() -> None:
    """Print docs/schema.md."""
    print(page(TABLES, {"Categories": CATEGORIES, "Mends": MENDS}), end="")


if __name__ == "__main__":
    main()
