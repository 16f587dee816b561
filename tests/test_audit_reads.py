"""The audit tells what a strategy reads besides its view: files, network, processes and the clock."""

import os
import socket
import subprocess
import threading
import time
from datetime import date, datetime

import numpy as np
import pandas as pd
import pyarrow
import pytest
from made_strategies import MARKET, Acts, Holds, Ranks, kinds
from pyarrow import csv, dataset, feather, parquet
from sklearn.datasets import load_iris

from finpod.lookahead.audit import audit
from finpod.records import Severity

CAN = Severity.CAN_LOOK_AHEAD


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same prices in files of many kinds."""
    folder = tmp_path_factory.mktemp("prices")
    frame = pd.DataFrame(np.nan_to_num(MARKET.close), columns=list(MARKET.tickers))
    frame.to_csv(folder / "a.csv")
    frame.to_parquet(folder / "a.parquet")
    np.save(folder / "a.npy", frame.to_numpy())
    table = pyarrow.Table.from_pandas(frame)
    feather.write_feather(frame, folder / "a.feather")
    csv.write_csv(table, folder / "b.csv")
    return folder


def in_a_thread(folder):
    thread = threading.Thread(target=pd.read_csv, args=(folder / "a.csv",))
    thread.start()
    thread.join()


ARROW = {
    "lib.memory_map": lambda folder: pyarrow.memory_map(str(folder / "a.npy")),
    "lib.OSFile": lambda folder: pyarrow.OSFile(str(folder / "a.npy")),
    "parquet.read_table": lambda folder: parquet.read_table(folder / "a.parquet"),
    "dataset": lambda folder: dataset.dataset(folder / "a.parquet"),
    "csv.read_csv": lambda folder: csv.read_csv(folder / "b.csv"),
}
READS = [
    lambda folder: pd.read_csv(folder / "a.csv"),
    lambda folder: (folder / "a.csv").read_text(),
    lambda folder: os.listdir(folder),  # noqa: PTH208
    lambda folder: pd.read_parquet(folder / "a.parquet"),
    lambda folder: pd.read_feather(folder / "a.feather"),
    lambda folder: np.load(folder / "a.npy"),
    lambda folder: load_iris(),  # prices that ship with a package
]


def test_files_that_are_read_can_look_ahead(files):
    reads = [*READS, *ARROW.values(), in_a_thread]
    verdict = audit(Acts(lambda: [read(files) for read in reads]), MARKET, days=2)
    assert kinds(verdict) == {("file", CAN)}
    where = "\n".join(f"{finding.subject} {finding.note}" for finding in verdict.findings)
    assert [read for read in READS if f"line {read.__code__.co_firstlineno})" not in where] == []
    assert [name for name in ARROW if f".{name})" not in where] == []
    assert any(not finding.subject for finding in verdict.findings)  # in a thread


def test_a_file_that_is_read_while_it_is_loaded_or_by_a_feature_can_look_ahead(files):
    path = files / "a.csv"

    def from_file(on):
        return on.close * len(path.read_text())

    read_when_loaded = type("ReadWhenLoaded", (), {"__reduce__": lambda self: (pd.read_csv, (path,))})()
    assert kinds(audit(Holds(read_when_loaded), MARKET, days=2)) == {("file", CAN)}
    (finding,) = audit(Ranks(from_file), MARKET, days=2).findings
    assert (finding.kind, finding.where) == ("file", "features")


def read_clock(now=time.time):
    return now()


DEEDS = [
    ("clock", lambda: datetime.now()),
    ("clock", lambda: datetime.today()),
    ("clock", lambda: date.today()),
    ("clock", lambda: time.time()),
    ("clock", lambda: time.strftime("%Y")),
    ("clock", lambda: pd.Timestamp.now()),
    ("clock", lambda: pd.Timestamp("now")),
    ("clock", lambda: pd.to_datetime("now")),
    ("clock", read_clock),
    ("process", lambda: subprocess.run(["true"], check=True)),
    ("process", lambda: os.system("true")),
    ("network", lambda: socket.getaddrinfo("localhost", 80)),
    ("network", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", ("127.0.0.1", 9))),
]


def test_what_is_read_besides_the_view_is_told():
    acts = [act for _, act in DEEDS]
    findings = audit(Acts(lambda: [act() for act in acts]), MARKET, days=2).findings
    found = {(finding.kind, int(finding.subject.rpartition("line ")[2].rstrip(")"))) for finding in findings}
    assert found == {(kind, act.__code__.co_firstlineno + (act is read_clock)) for kind, act in DEEDS}
    assert {finding.severity for finding in findings} == {CAN}
