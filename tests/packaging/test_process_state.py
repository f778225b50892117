"""What a test leaves in its process fails that test, not one that comes later."""

import os
import signal
import tempfile
import threading
from pathlib import Path

import pytest

import process_state
from process_state import changes_since, threads_left


def test_what_is_left_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables, folders, the mask and handlers of signals."""
    monkeypatch.setenv("FORMER", "a")
    before = process_state.process_state()
    assert {} == changes_since(before)
    monkeypatch.setenv("FORMER", "b")
    monkeypatch.setenv("LEFT", "x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mask = os.umask(0o123)
    former = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        changes = changes_since(before)
    finally:
        os.umask(mask)
        signal.signal(signal.SIGUSR2, former)
    assert {
        "folder": (before["folder"], tmp_path),
        "folder of temporary files": (before["folder of temporary files"], str(tmp_path)),
        "handler of SIGUSR2": (former, signal.SIG_IGN),
        "mask of new files": (mask, 0o123),
        "variable FORMER": ("a", "b"),
        "variable LEFT": (None, "x"),
    } == changes


def test_a_thread_at_work_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends by itself is not, nor one that the process does not wait for."""
    before, over = threading.enumerate(), threading.Event()
    works = threading.Thread(target=over.wait)
    for thread in (works, threading.Thread(target=over.wait, daemon=True)):
        thread.start()
    with monkeypatch.context() as patch:
        patch.setattr(process_state, "PATIENCE_S", 0.1)
        assert [works] == threads_left(before)
    over.set()
    assert [] == threads_left(before)
