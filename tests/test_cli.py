"""The command line on bad input: one line with the way out, and the exit code."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zeropeak.cli.main import VERBS, main
from zeropeak.cli.model_options import size_bytes
from zeropeak.parse.schema import BY_NAME

if TYPE_CHECKING:
    from tests.conftest import MakeRun

ROOT = Path(__file__).parents[1]


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and the one line on standard error."""
    code = main(words)
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert said.startswith("zeropeak: ")
    return code, said


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (("nsys", "stage4"), "neither one of stage2, stage3, stage3-efficient nor a file"),
        (("nsys", "stage3", "--ranks", "0"), "--ranks 0: must be at least 1"),
        (("nsys", "stage3", "--model", "7b"), "neither one of tiny, 70m"),
        (("torch", "stage3", "--set", "zero_optimization.stage=0"), "ZeRO stages 1, 2 and 3"),
        (("torch", "stage3", "--set", "zero_optimization=3"), "no zero_optimization section"),
        (("report", "runs/x", "--fail-on", "nothing"), "one of retained-after-release"),
    ],
)
def test_wrong_usage_exits_2(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], way_out: str) -> None:
    code, said = fails(capsys, *words)
    assert code == 2
    assert way_out in said


@pytest.mark.parametrize("text", ["{", '{"zero_optimization": {"stage": 0}}', "{}", "[1]", "\ufeff{}"])
def test_a_wrong_config_exits_2(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    path = tmp_path / "ds.json"
    path.write_text(text)
    assert fails(capsys, "nsys", str(path))[0] == 2


def test_an_existing_folder_is_never_taken_for_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    code, said = fails(capsys, "torch", "stage3", "--out", str(tmp_path), "--force")
    assert (code, precious.read_text()) == (2, "mine")
    assert "is not a run directory" in said


def test_an_existing_run_needs_force(capsys: pytest.CaptureFixture[str], make_run: MakeRun) -> None:
    code, said = fails(capsys, "torch", "stage3", "--out", str(make_run()))
    assert code == 2
    assert "--force overwrites it" in said


def test_a_capture_that_does_not_fit_is_not_started(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, said = fails(capsys, "torch", "stage3", "--out", str(tmp_path / "run"), "--disk-cap", "1MiB")
    assert code == 1
    assert "fewer --steps" in said


def test_without_nsys_the_torch_verb_is_the_way_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No nsys anywhere and no apt to fetch it with."""
    from zeropeak.profile import nsys_find

    monkeypatch.setattr(nsys_find, "_candidates", lambda *_: iter(()))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NSYS", raising=False)
    for _ in range(2):  # and the first try leaves nothing that would stop the second
        code, said = fails(capsys, "nsys", "stage3", "--out", str(tmp_path / "run"))
        assert code == 1
        assert "the verb `torch`" in said


def test_nsys_named_by_hand_must_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSYS", str(tmp_path / "nsys"))
    code, said = fails(capsys, "nsys", "stage3", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "no such file" in said


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\x00" + b"\x00" * 200, b"not a database"])
def test_a_broken_export_names_the_file(capsys: pytest.CaptureFixture[str], make_run: MakeRun, content: bytes) -> None:
    run = make_run()
    (run / "raw" / "node-0.sqlite").write_bytes(content)
    code, said = fails(capsys, "parse", str(run))
    assert code == 1
    assert "node-0.sqlite" in said


def test_half_an_export_names_the_file(capsys: pytest.CaptureFixture[str], make_run: MakeRun) -> None:
    run = make_run()
    export = run / "raw" / "node-0.sqlite"
    export.write_bytes(export.read_bytes()[: export.stat().st_size // 2])
    code, said = fails(capsys, "parse", str(run))
    assert code == 1
    assert "node-0.sqlite" in said


@pytest.mark.parametrize("verb", ["parse", "report"])
def test_a_run_of_a_newer_zeropeak_is_refused(capsys: pytest.CaptureFixture[str], make_run: MakeRun, verb: str) -> None:
    run = make_run()
    assert main(["parse", str(run)]) == 0
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**manifest, "schema": manifest["schema"] + 1}))
    capsys.readouterr()
    code, said = fails(capsys, verb, str(run))
    assert code == 1
    assert "newer" in said


def test_a_report_without_tables_says_to_parse(capsys: pytest.CaptureFixture[str], make_run: MakeRun) -> None:
    code, said = fails(capsys, "report", str(make_run()))
    assert code == 1
    assert "zeropeak parse" in said


def test_no_room_for_the_report_leaves_the_old_one(make_run: MakeRun) -> None:
    """The disk's end is played by a limit on the size of files."""
    run = make_run()
    assert main(["parse", str(run)]) == 0
    assert main(["report", str(run)]) == 0
    before = (run / "report" / "report.pdf").read_bytes()
    limited = subprocess.run(
        [sys.executable, "-m", "zeropeak.cli", "report", str(run)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("profile", "parse", "reports"))},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert limited.returncode == 1
    assert limited.stderr.count("\n") == 1, limited.stderr
    assert (run / "report" / "report.pdf").read_bytes() == before


def test_every_verb_has_help_with_an_example(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the console command; launch.sh puts its own name in the examples."""
    monkeypatch.delenv("ZEROPEAK_PROGRAM", raising=False)
    for name in VERBS:
        verb = import_module(f"zeropeak.cli.{name}")
        assert name == verb.NAME
        with pytest.raises(SystemExit) as left:
            main([name, "--help"])
        assert left.value.code == 0
        assert verb.EXAMPLE in capsys.readouterr().out


@pytest.mark.parametrize(("text", "size"), [("1MiB", 2**20), ("1.5 GiB", 3 * 2**29), ("2GB", 2 * 10**9), ("7", 7)])
def test_sizes_are_read_with_their_units(text: str, size: int) -> None:
    assert size_bytes(text) == size


def test_parse_does_without_pandas_and_writes_the_same(tmp_path: Path) -> None:
    """pyarrow would import it at the first list that it is handed: a quarter of a second of every parse."""
    trace = tmp_path / "trace_rank0.json"
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.0, "dur": 2.0, "args": {"stream": 7}}
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event], "baseTimeNanoseconds": 0}))
    watched = (
        "import sys, zeropeak.cli.main as main; code = 1\n"
        "try: main.run()\n"
        "except SystemExit as end: code = end.code\n"
        "print('pandas' in sys.modules, code)"
    )
    tables = []
    for name, words in (("lean", ["-c", watched]), ("plain", ["-m", "pandas_first"])):
        (tmp_path / "pandas_first.py").write_text("import pandas\nfrom zeropeak.cli.main import run\nrun()\n")
        out = tmp_path / name
        done = subprocess.run(
            [sys.executable, *words, "parse", str(trace), "--out", str(out)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        )
        if name == "lean":
            assert done.stdout.splitlines()[-1] == "False 0"
        tables.append({str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.parquet")})
    assert tables[0] == tables[1] != {}


def test_a_run_without_one_of_its_tables_gets_no_verdicts(
    capsys: pytest.CaptureFixture[str], make_run: MakeRun
) -> None:
    """An absent table would be taken for an empty one: nothing fetched, nothing released, nothing retained."""
    run = make_run()
    assert main(["parse", str(run)]) == 0
    capsys.readouterr()
    for name in BY_NAME:
        there, away = run / "tables" / name, run / "away"
        there.rename(away)
        code, said = fails(capsys, "report", str(run))
        away.rename(there)
        assert code == 1
        assert f"tables/{name}/rank-" in said
        assert "zeropeak parse" in said
    assert not (run / "report").exists()
    assert main(["report", str(run)]) == 0


def test_ranges_that_no_rank_made_ask_nothing_of_other_tables(make_run: MakeRun) -> None:
    run = make_run()
    assert main(["parse", str(run)]) == 0
    shutil.copy(run / "tables/nvtx_ranges/rank-0.parquet", run / "tables/nvtx_ranges/rank-none.parquet")
    assert main(["report", str(run)]) == 0
