"""`make evidence`: run every study that we publish, or those named, in the background at the lowest priority.

    python results/evidence.py                     all studies with `published = true`
    python results/evidence.py causes strength     these

Studies run one after the other, each with one process per core, and go on where they were.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from afec.lab.studies import load_study, study_names

LOG = Path("runs") / "evidence.log"
AUTOGROUP = Path("/proc/self/autogroup")


def main() -> int:
    """Start the work in a session of its own, or do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", help="names of studies, or TOML files")
    parser.add_argument("--foreground", action="store_true", help="run here, and not in the background")
    options = parser.parse_args()
    studies = options.studies or published()
    if options.foreground:
        return run(studies)
    LOG.parent.mkdir(exist_ok=True)
    command = [sys.executable, __file__, "--foreground", *studies]
    with LOG.open("a") as log:
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    print(f"{len(studies)} studies run in the background; what they come to goes into results/")
    print(f"watch them:  tail -f {LOG}")
    print(f"stop them:   kill -INT -- -{started.pid}     (the same command goes on where they were)")
    return 0


def published() -> list[str]:
    """The studies whose results are in the project."""
    return [name for name in study_names() if load_study(name).published]


def run(studies: list[str]) -> int:
    """Run the studies one after the other; one that fails stops no other. Returns how many failed, or 130 after Ctrl-C."""
    lowest_priority()
    failed = 0
    for study in studies:
        print(f"== {study}", flush=True)
        process = subprocess.Popen([sys.executable, "-m", "afec.cli", "study", "run", study])
        try:
            failed += process.wait() != 0
        except KeyboardInterrupt:
            process.wait()  # it has got the signal as well, and writes its checkpoints
            return 130
    return failed


def lowest_priority() -> None:
    """Leave the machine to others. Where the kernel groups processes by session, `nice` counts inside a session only."""
    os.nice(19)
    with suppress(OSError):
        AUTOGROUP.write_text("19")


if __name__ == "__main__":
    sys.exit(main())
