"""Cuts of captures on GPUs, the fixtures in ``tests/data/captures``: small files that become run directories again.

A cut is one file ``<name>.cut.xz``: a line of JSON that says which files and columns there are, then the columns. Two
thirds of the bytes of a capture are rows of integers that a general compressor does poorly on; columns of differences
or of indices, one byte plane after the other, take less than half of what the same files take as a .tar.xz.
``tests/cut_capture.py`` makes them.
"""

from __future__ import annotations

import gzip
import json
import lzma
import pickle
import sqlite3
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Ints = np.ndarray[Any, np.dtype[np.int64]]
    Rows = dict[str, list[Any]]
    """Columns of a table by name, all of one length."""

NOTHING: Final = -(1 << 63)
"""In place of a value that is not there; no capture has it."""

_FILTERS: Final = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]


class Packer:
    """Collects columns, and the JSON that says what they are."""

    def __init__(self) -> None:
        self._blobs: list[bytes] = []

    def rows(self, columns: Rows) -> dict[str, Any]:
        """Add a table; returns what :func:`unpack_rows` needs to know."""
        return {name: self._column(values) for name, values in columns.items()}

    def write(self, path: Path, about: dict[str, Any]) -> None:
        """Write the file."""
        plain = json.dumps(about, separators=(",", ":")).encode() + b"\n" + b"".join(self._blobs)
        path.write_bytes(lzma.compress(plain, lzma.FORMAT_XZ, filters=_FILTERS))

    def _column(self, values: list[Any]) -> dict[str, Any]:
        if all(type(value) is int or value is None for value in values):
            return self._ints([NOTHING if value is None else value for value in values])
        thousandths = [round(value * 1000) for value in values if type(value) is float]
        if len(thousandths) == len(values) and [value / 1000 for value in thousandths] == values:
            return {"thousandths": self._ints(thousandths)}
        texts = [json.dumps(value, separators=(",", ":")) for value in values]
        known = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        return {"texts": [json.loads(text) for text in known], "of": self._ints([known[text] for text in texts])}

    def _ints(self, values: list[int]) -> dict[str, Any]:
        array = np.array(values, np.int64)
        distinct, index = np.unique(array, return_inverse=True)
        ways = {"plain": [array], "steps": [np.diff(array, prepend=0)], "index": [np.diff(distinct, prepend=0), index]}
        packed = {way: [_planes(part) for part in parts] for way, parts in ways.items()}
        best = min(packed, key=lambda way: sum(len(lzma.compress(blob, preset=6)) for blob in packed[way]))
        self._blobs += packed[best]
        return {"way": best, "counts": [len(part) for part in ways[best]]}


def _planes(values: Ints) -> bytes:
    """The lowest byte of every value, then the next one, ..."""
    return np.ascontiguousarray(values.astype("<i8")).view(np.uint8).reshape(-1, 8).T.tobytes()


class Unpacker:
    """Reads what :class:`Packer` wrote, in the same order."""

    def __init__(self, path: Path) -> None:
        first, _, self._rest = lzma.decompress(path.read_bytes()).partition(b"\n")
        self.about: dict[str, Any] = json.loads(first)

    def rows(self, about: dict[str, Any]) -> Rows:
        """The next table."""
        return {name: self._column(column) for name, column in about.items()}

    def _column(self, about: dict[str, Any]) -> list[Any]:
        if "thousandths" in about:
            return [value / 1000 for value in self._ints(about["thousandths"])]
        if "texts" in about:
            return [about["texts"][number] for number in self._ints(about["of"])]
        return [None if value == NOTHING else value for value in self._ints(about)]

    def _ints(self, about: dict[str, Any]) -> list[int]:
        parts = [self._part(count) for count in about["counts"]]
        values: Ints = parts[0] if about["way"] == "plain" else np.cumsum(parts[0])
        numbers: list[int] = (values[parts[1]] if about["way"] == "index" else values).tolist()
        return numbers

    def _part(self, count: int) -> Ints:
        blob, self._rest = self._rest[: 8 * count], self._rest[8 * count :]
        planes = np.frombuffer(blob, np.uint8).reshape(8, count).T
        return np.ascontiguousarray(planes).view("<i8").reshape(-1).astype(np.int64)


def pack(folder: Path, path: Path) -> None:
    """Make one file of a run directory: Arrow streams, nsys exports, snapshots, torch.profiler traces and JSON."""
    packer, files = Packer(), {}
    for one in sorted(folder.rglob("*")):
        if one.is_file():
            files[str(one.relative_to(folder))] = _PACK["".join(one.suffixes)](one, packer)
    packer.write(path, files)


def unpack(path: Path, folder: Path) -> Path:
    """Make the run directory again, in a new folder; returns that."""
    unpacker = Unpacker(path)
    for name, about in unpacker.about.items():
        out = folder / name
        out.parent.mkdir(parents=True, exist_ok=True)
        _UNPACK["".join(out.suffixes)](about, unpacker, out)
    return folder


def _pack_json(path: Path, packer: Packer) -> Any:
    return json.loads(path.read_text())


def _unpack_json(about: Any, unpacker: Unpacker, out: Path) -> None:
    out.write_text(json.dumps(about, indent=1))


def _pack_stream(path: Path, packer: Packer) -> Any:
    rows = pa.ipc.open_stream(path.read_bytes()).read_all()
    columns = {name: rows[name].to_pylist() for name in rows.column_names}
    return {"schema": rows.schema.serialize().to_pybytes().hex(), "rows": packer.rows(columns)}


def _unpack_stream(about: Any, unpacker: Unpacker, out: Path) -> None:
    schema = pa.ipc.read_schema(pa.BufferReader(bytes.fromhex(about["schema"])))
    rows = pa.table(unpacker.rows(about["rows"]), schema)
    with pa.OSFile(str(out), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        stream.write_table(rows)


def _pack_export(path: Path, packer: Packer) -> Any:
    tables = []
    with sqlite3.connect(path) as export:
        for name, sql in export.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall():
            cursor = export.execute(f"SELECT * FROM {name}")
            names, rows = [column[0] for column in cursor.description], cursor.fetchall()
            columns = {column: [row[place] for row in rows] for place, column in enumerate(names)}
            tables.append({"name": name, "sql": sql, "rows": packer.rows(columns)})
    export.close()
    return tables


def _unpack_export(about: Any, unpacker: Unpacker, out: Path) -> None:
    with sqlite3.connect(out) as export:
        for table in about:
            columns = unpacker.rows(table["rows"])
            export.execute(table["sql"])
            rows = zip(*columns.values(), strict=True)
            export.executemany(f"INSERT INTO {table['name']} VALUES ({', '.join('?' * len(columns))})", rows)
    export.close()


def _pack_snapshot(path: Path, packer: Packer) -> Any:
    state = pickle.loads(gzip.decompress(path.read_bytes()))
    traces = [packer.rows(_transposed(trace)) for trace in state.pop("device_traces")]
    blocks = [block for segment in state["segments"] for block in segment["blocks"]]
    counts = [len(segment.pop("blocks")) for segment in state["segments"]]
    return {
        "traces": traces, "blocks": packer.rows(_transposed(blocks)), "counts": counts,
        "segments": packer.rows(_transposed(state.pop("segments"))), "rest": state,
    }  # fmt: skip


def _unpack_snapshot(about: Any, unpacker: Unpacker, out: Path) -> None:
    traces = [list(_dicts(unpacker.rows(trace))) for trace in about["traces"]]
    blocks = _dicts(unpacker.rows(about["blocks"]))
    segments = list(_dicts(unpacker.rows(about["segments"])))
    for segment, count in zip(segments, about["counts"], strict=True):
        segment["blocks"] = [next(blocks) for _ in range(count)]
    state = {**about["rest"], "segments": segments, "device_traces": traces}
    out.write_bytes(gzip.compress(pickle.dumps(state, protocol=4), 1))


def _pack_kineto(path: Path, packer: Packer) -> Any:
    """Events by the keys that they have, since each kind has its own."""
    trace = json.loads(gzip.decompress(path.read_bytes()))
    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for event in trace.pop("traceEvents"):
        flat = {key: value for key, value in event.items() if key != "args"}
        flat |= {f"args.{key}": value for key, value in event.get("args", {}).items()}
        kinds.setdefault(tuple(flat), []).append(flat)
    return {"events": [packer.rows(_transposed(events)) for events in kinds.values()], "rest": trace}


def _unpack_kineto(about: Any, unpacker: Unpacker, out: Path) -> None:
    events = []
    for kind in about["events"]:
        for flat in _dicts(unpacker.rows(kind)):
            args = {key.removeprefix("args."): flat.pop(key) for key in list(flat) if key.startswith("args.")}
            events.append({**flat, **({"args": args} if args else {})})
    text = json.dumps({**about["rest"], "traceEvents": events})
    out.write_bytes(gzip.compress(text.encode(), 1))


def _transposed(rows: list[dict[str, Any]]) -> Rows:
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _dicts(columns: Rows) -> Iterator[dict[str, Any]]:
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


_PACK: Final = {
    ".json": _pack_json,
    ".arrows": _pack_stream,
    ".sqlite": _pack_export,
    ".pickle.gz": _pack_snapshot,
    ".json.gz": _pack_kineto,
}
_UNPACK: Final = {
    ".json": _unpack_json,
    ".arrows": _unpack_stream,
    ".sqlite": _unpack_export,
    ".pickle.gz": _unpack_snapshot,
    ".json.gz": _unpack_kineto,
}
