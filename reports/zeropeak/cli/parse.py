"""Turn a run's raw files into tables: parquet that pandas reads.

RUN is a run directory, or files and folders that zeropeak did not capture, in any mixture: torch.profiler traces
(.json, .gz, .xz, .zst), nsys exports (.sqlite, or .nsys-rep when nsys is here), torch.cuda memory snapshots (.pickle).
Such files get a run directory of their own, for `zeropeak report`. Tables are rewritten; raw files are not touched.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from zeropeak.profile.errors import UsageError
from zeropeak.profile.version import __version__

if TYPE_CHECKING:
    import argparse

NAME: Final = "parse"
SUMMARY: Final = "turn a run's raw files, or any traces, into tables"
EXAMPLE: Final = "zeropeak parse runs/nsys-stage3"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("paths", type=Path, nargs="+", metavar="RUN", help="run directory, or trace files and folders")
    parser.add_argument("--out", type=Path, metavar="DIR", help="for traces: their run directory (runs/<name>)")
    parser.add_argument(
        "--rank",
        action="append",
        default=[],
        metavar="FILE=N",
        help="for traces: the rank of a file that says none itself; repeatable",
    )


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    from zeropeak.cli.progress import progress_bar

    first = args.paths[0]
    if len(args.paths) == 1 and (first / "run.json").is_file():
        from zeropeak.parse.pipeline import parse_run

        if args.out or args.rank:
            raise UsageError(f"{first} is a run directory: its tables go into it, and its ranks are known")
        with progress_bar("parsing") as show:
            parse_run(first, progress=show)
        out = first
    else:
        from zeropeak.parse.ahead import chosen_ahead
        from zeropeak.parse.manifest import read_run_json
        from zeropeak.parse.provenance import FILES

        out = args.out or Path("runs") / first.name.split(".")[0]
        if (read_run_json(out) or {"tool": FILES}).get("tool") != FILES:
            raise UsageError(f"{out} is a run of its own; choose another --out")
        versions = {"zeropeak": __version__}
        with progress_bar("parsing") as show, chosen_ahead(args.paths, _ranks(args.rank), _export, out) as ahead:
            from zeropeak.parse.foreign import parse_chosen  # now, while other processes scan

            parse_chosen(ahead, out, progress=show, versions=versions)
    print(f"Wrote {out / 'tables'}")
    print(f"For the report: {os.environ.get('ZEROPEAK_PROGRAM', 'zeropeak')} report {shlex.quote(str(out))}")
    return 0


def _ranks(texts: list[str]) -> dict[Path, int]:
    ranks = {}
    for text in texts:
        file, equals, number = text.rpartition("=")
        if not equals or not number.isdecimal():
            raise UsageError(f"--rank {text}: write it as FILE=N")
        ranks[Path(file)] = int(number)
    return ranks


def _export(report: Path) -> Path:
    """Make a sqlite file of an .nsys-rep, beside it, without the private data."""
    from zeropeak.cli.setup import need_nsys
    from zeropeak.profile.nsys_export import to_sqlite

    return to_sqlite(need_nsys(os.environ), report.with_suffix(""), ranges_expected=False)
