"""Millstream in a minute: write, be killed, recover, verify, analyse.

`make demo` runs this. It leaves its data in `demo-data/`, so that you can look around afterwards,
and starts anew each time.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.compute as pc

import millstream
from millstream import Record

DATA = Path("demo-data")
PAGES = ("/", "/pricing", "/docs", "/docs/start", "/blog")
KILL_AFTER = 2_000


def main() -> None:
    """Tell the story, step by step."""
    if len(sys.argv) > 1:
        write_for_ever(Path(sys.argv[1]))
        return
    shutil.rmtree(DATA, ignore_errors=True)
    acked = write_until_killed()
    recover(acked)
    verify()
    analyse()
    say(f"That was it. The data is in {DATA}/; have a look:")
    print(f"    .venv/bin/millstream segments list --data {DATA}")
    print(f"    .venv/bin/millstream segments dump --data {DATA} --topic clicks --limit 3")


def write_until_killed() -> int:
    """Have a process append clicks, and kill it in the middle. Return how many it had acked."""
    say("A process appends clicks, eight threads at once. Each append returns when the record is")
    print(f"    on the disk. After {KILL_AFTER:,} of them we kill it with SIGKILL, mid-write.")
    process = subprocess.Popen(
        [sys.executable, __file__, str(DATA)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        acked = 0
        while acked < KILL_AFTER and process.stdout.readline():
            acked += 1
        process.send_signal(signal.SIGKILL)
        acked += sum(line.endswith("\n") for line in process.stdout)
    print(f"    killed; it had said of {acked:,} records that they were safe")
    return acked


def write_for_ever(path: Path) -> None:
    """What the killed process does."""

    def append(seed: int) -> None:
        chance = random.Random(seed)
        while True:
            click = {"user": chance.randrange(500), "page": chance.choice(PAGES)}
            offset = log.append(Record(json.dumps(click).encode(), key=b"%d" % click["user"]))
            os.write(1, b"%d\n" % offset)

    with millstream.open(path) as store:
        log = store.log("clicks")
        threads = [Thread(target=append, args=(seed,), daemon=True) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def recover(acked: int) -> None:
    """Open what the process left behind."""
    say("We open what it left behind.")
    started = time.perf_counter()
    with millstream.open(DATA) as store:
        log = store.log("clicks")
        took = time.perf_counter() - started
        found = log.end_offset
        print(f"    open in {took * 1000:.0f} ms, {found:,} records, none of {acked:,} lost")
        assert found >= acked, "an acknowledged record is missing"


def verify() -> None:
    """Check every byte, then break one and check again."""
    say("`millstream segments verify` checks every byte that a checksum covers.")
    run("segments", "verify", "--data", str(DATA))
    say("A cosmic ray flips one bit in a copy. It is found, with file and position.")
    copy = DATA.with_name("demo-data-broken")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(DATA, copy)
    path = next(copy.glob("topics/clicks/0/*.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    run("segments", "verify", "--data", str(copy))
    shutil.rmtree(copy)


def analyse() -> None:
    """Read the log as Arrow columns and count."""
    say("The log reads as Arrow columns, with no loop over records in Python.")
    with millstream.open(DATA) as store:
        batches = list(store.log("clicks").read_arrow(columns=["key", "value"]))
    table = pa.Table.from_batches(batches)
    users = pc.count_distinct(table["key"]).as_py()
    print(f"    {table.num_rows:,} clicks of {users} users, {table.nbytes / 1024:.0f} KiB")
    pages = pc.value_counts(
        pc.struct_field(
            pc.extract_regex(table["value"].cast(pa.string()), r'"page": "(?P<page>[^"]*)"'), "page"
        )
    )
    for entry in sorted(pages.to_pylist(), key=lambda entry: -entry["counts"]):
        print(f"    {entry['counts']:>6,}  {entry['values']}")


def run(*arguments: str) -> None:
    """Run the `millstream` command as a user would."""
    command = Path(sys.executable).with_name("millstream")
    print(f"    $ millstream {' '.join(arguments)}", flush=True)
    result = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
    for line in (result.stdout + result.stderr).splitlines():
        print(f"      {line}")
    print(f"      exit status {result.returncode}")


step = 0


def say(text: str) -> None:
    """Begin a step."""
    global step
    step += 1
    print(f"\n{step}.  {text}", flush=True)


if __name__ == "__main__":
    main()
