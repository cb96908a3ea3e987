"""Compressed, cut, empty and oversized files, and files that are no traces."""

import gzip
import json
import lzma
import re
from pathlib import Path

import pyarrow as pa
import pytest

from zeropeak.parse.kineto import reader as kineto
from zeropeak.parse.kineto import unpack as kineto_bytes
from zeropeak.parse.sink import MemorySink
from zeropeak.profile.errors import TraceError

EVENTS = [
    {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": n + 1, "dur": 1, "args": {"correlation": n}}
    for n in range(3000)
]
TRACE = json.dumps({"baseTimeNanoseconds": 0, "traceEvents": EVENTS}).encode()
PACKED = {"gz": gzip.compress(TRACE), "xz": lzma.compress(TRACE), "zst": pa.compress(TRACE, "zstd", asbytes=True)}


def read(path: Path, data: bytes, **limits: int) -> tuple[int, bool, dict[str, int]]:
    path.write_bytes(data)
    sink = MemorySink()
    source = kineto.read(path, sink, **limits)  # type: ignore[arg-type]
    rows = sink.table("kernels").num_rows
    return rows, source.partial, {what: line.count for what, line in sink.counts.items() if "." not in what}


@pytest.mark.parametrize("packing", PACKED)
def test_compressed_traces_are_told_by_content(tmp_path: Path, packing: str) -> None:
    assert read(tmp_path / "trace.json", PACKED[packing]) == (3000, False, {"events": 3000})


@pytest.mark.parametrize("packing", ["gz", "xz"])
def test_several_compressed_streams_are_one_text(tmp_path: Path, packing: str) -> None:
    pack = gzip.compress if packing == "gz" else lzma.compress
    assert read(tmp_path / "t", pack(TRACE[:5000]) + pack(TRACE[5000:]))[0] == 3000


@pytest.mark.parametrize("packing", PACKED)
def test_a_cut_stream_gives_what_is_whole(tmp_path: Path, packing: str) -> None:
    data = PACKED[packing]
    rows, partial, counts = read(tmp_path / "t", data[: len(data) * 2 // 3])
    assert rows <= 3000
    assert (partial, counts["stream_damaged"]) == (True, 1)
    if packing != "zst":
        assert rows > 500


def test_a_damaged_stream_gives_what_comes_before_the_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_bytes, "OUTPUT_BYTES", 4096)
    data = bytearray(PACKED["gz"])
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(range(40))
    rows, partial, counts = read(tmp_path / "t", bytes(data))
    assert 300 < rows < 3000
    assert (partial, counts["stream_damaged"]) == (True, 1)


@pytest.mark.parametrize("packing", ["gz", "xz"])
def test_garbage_after_the_stream_is_counted(tmp_path: Path, packing: str) -> None:
    rows, partial, counts = read(tmp_path / "t", PACKED[packing] + b"garbage")
    assert (rows, partial, counts["stream_trailing_bytes"]) == (3000, False, 7)


def test_garbage_after_the_trace_is_counted(tmp_path: Path) -> None:
    assert read(tmp_path / "t", TRACE + b"\n\0\0\0") == (3000, False, {"events": 3000, "trailing_bytes": 3})


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (gzip.compress(b""), "the file is empty"),
        (gzip.compress(TRACE)[:12], "the file is empty (compressed stream cut"),
        (b"SQLite format 3\0", "not JSON"),
        (b"\x80\x04.", "not JSON"),
        (b"[[-1, 1, 37888, 7], [-1, 1, 512, 7]]", "a memory timeline"),
        (b"[1, 2]", "a JSON list, but not of events"),
        (b'[{"a": 1}, {"a": 2}]', "a JSON list of objects without ph or cat"),
        (b'{"schema": "1.0.1", "nodes": [{"name": "x"}]}', "an execution trace"),
        (b'{"segments": [], "device_traces": []}', "a memory snapshot as JSON"),
        (b'{"a": {"traceEvents": [{"ph": "X"}]}}', "JSON without traceEvents"),
        (b'{"traceEvents": null}', "traceEvents is not a list"),
        (b'{"schemaVersion": 1, "deviceProp', "cut or damaged before its first event"),
    ],
)
def test_what_is_no_trace_is_refused_by_name(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=re.escape(problem)) as caught:
        kineto.read(path, MemorySink())
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_the_decompressed_size_has_a_limit(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="more than 100,000 bytes decompressed; pass a larger max_bytes"):
        read(tmp_path / "t", PACKED["gz"], max_bytes=100_000)


def test_a_compression_bomb_is_refused_early(tmp_path: Path) -> None:
    bomb = gzip.compress(b'{"traceEvents":[' + b" " * (80 << 20), 1)
    with pytest.raises(TraceError, match="expands to more than 100 times its size, as no trace does"):
        read(tmp_path / "t", bomb, max_ratio=100)
    assert read(tmp_path / "t", bomb, max_ratio=10_000)[0] == 0


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(PACKED["gz"])
    seen: list[tuple[int, int]] = []
    kineto.read(path, MemorySink(), progress=lambda done, size: seen.append((done, size)))
    assert seen[-1] == (len(PACKED["gz"]), len(PACKED["gz"]))
