"""Data-loader scripts: what they may do, and what becomes of their failures."""

from pathlib import Path

import numpy as np
import pytest

from precision_bisect.errors import PrecisionBisectError
from precision_bisect.judging.inputs.input_files import read_samples
from precision_bisect.protocols import Sample


def read(folder: Path, text: str) -> list[Sample]:
    """Write a loader script and read its samples."""
    path = folder / "loader.py"
    path.write_text("import numpy as np\n" + text)
    return read_samples(path, ["x"])


def test_lists_generators_and_iterators(tmp_path: Path) -> None:
    """load_data() may return a list, any iterable, or be a generator."""
    body = "[{'x': np.full(1, k)} for k in range(3)]"
    for returned in (body, f"iter({body})", f"tuple({body})"):
        samples = read(tmp_path, f"def load_data():\n    return {returned}")
        assert [int(sample["x"][0]) for sample in samples] == [0, 1, 2]
    samples = read(tmp_path, f"def load_data():\n    yield from {body}")
    assert len(samples) == 3


def test_imports_beside_the_script_work_at_any_time(tmp_path: Path) -> None:
    """A neighbour module can be imported at the top, in load_data(), and while it yields."""
    (tmp_path / "neighbour_a.py").write_text("value = 1")
    (tmp_path / "neighbour_b.py").write_text("value = 2")
    (tmp_path / "neighbour_c.py").write_text("value = 3")
    text = """
import neighbour_a
def load_data():
    import neighbour_b
    yield {"x": np.array([neighbour_a.value, neighbour_b.value])}
    import neighbour_c
    yield {"x": np.array([neighbour_c.value])}
"""
    first, second = read(tmp_path, text)
    assert [first["x"].tolist(), second["x"].tolist()] == [[1, 2], [3]]


def test_scripts_may_define_dataclasses(tmp_path: Path) -> None:
    """A dataclass with postponed annotations needs its module to be registered."""
    text = """
from __future__ import annotations
from dataclasses import dataclass, KW_ONLY
@dataclass
class Feed:
    x: list
    _: KW_ONLY = None
def load_data():
    import numpy as np
    return [{"x": np.array(Feed([1]).x)}]
"""
    path = tmp_path / "loader.py"
    path.write_text(text)
    np.testing.assert_array_equal(read_samples(path, ["x"])[0]["x"], [1])


def test_two_scripts_of_one_name_are_two_scripts(tmp_path: Path) -> None:
    """Scripts of the same name in two folders, or named like a library, do not mix."""
    for k, name in enumerate(("json.py", "other/json.py")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"def load_data(): return [{{'x': [{k}]}}]")
    found = [
        read_samples(tmp_path / name, ["x"])[0]["x"].tolist()
        for name in ("json.py", "other/json.py")
    ]
    assert found == [[0], [1]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def load_data(): raise ValueError('no\\ndata')", "failed: no"),
        ("def load_data():\n    yield {'x': np.ones(1)}\n    1 / 0", "division by zero"),
        ("def load_data(): raise SystemExit(3)", "failed: 3"),
        ("def load_data(): raise ValueError", "failed: ValueError"),
        ("raise SystemExit", "does not run: SystemExit"),
        ("def load_data(:", "does not run"),
        ("import no_such_module_at_all", "no_such_module_at_all"),
        ("other = 1", "has no function load_data()"),
        ("load_data = 1", "has no function load_data()"),
        ("def load_data(): return None", "no list of samples"),
        ("def load_data(): return 'text'", "no list of samples"),
        ("def load_data(): return {'x': np.ones(1)}", "no list of samples"),
        ("def load_data(): return [1]", "no dict of name to array"),
        ("def load_data(): return []", "holds no samples"),
        ("def load_data(): return [{'x': [[1], [1, 2]]}]", "that is no array"),
        ("def load_data(needed): return []", "needed"),
    ],
)
def test_failing_scripts(tmp_path: Path, text: str, expected: str) -> None:
    """Whatever a script does wrong ends in one line that says so."""
    with pytest.raises(PrecisionBisectError) as caught:
        read(tmp_path, text)
    line = caught.value.one_line()
    assert expected in line
    assert caught.value.hint
    assert "\n" not in line
