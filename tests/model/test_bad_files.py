"""Damaged and hostile files: a model or a one-line error with a hint, never anything else."""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from effort import examples
from models import OVERFLOW, normal, parse, save, save_external, with_weights
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.errors import ModelError, PrecisionBisectError
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.load import load_model


def refused(path: Path, *, judge: bool = False) -> str:
    """Return the line that loading (and, with `judge`, running) the file ends with."""
    with pytest.raises(ModelError) as caught:
        model = load_model(path)
        if judge:
            reference_outputs(model, [{"x": np.ones(1, np.float32)}])
    line = caught.value.one_line()
    assert "\n" not in line
    assert caught.value.hint
    return line


@functools.cache
def healthy() -> bytes:
    """Return a small healthy model with names, weights, a subgraph and a function."""
    text = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
        g (float[1,4] x, bool c) => (float[1,4] y) { [call] a = local.act(x) [mm] b = MatMul(a, w)
            y = If (c) <then_branch = t () => (float[1,4] d) { d = Relu(b) },
                        else_branch = e () => (float[1,4] f) { f = Neg(b) }> }
        <domain: "local", opset_import: ["": 17]> act (p) => (q) { q = Sigmoid(p) }"""
    model = with_weights(onnx.parser.parse_model(text), {"w": normal(4, 4)})
    return model.SerializeToString()


def survives(data: bytes) -> None:
    """Load the bytes as a model; only errors of this package may come of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(data)
        try:
            model = load_model(path)
            reference_outputs(model, [{"x": normal(1, 4), "c": np.array(True)}], threads=1)
            EmulatedBackend(model, threads=1)
        except PrecisionBisectError as error:
            assert "\n" not in error.one_line()


@examples(15)
@given(cut=st.integers(0, len(healthy())))
def test_any_truncation_is_a_model_or_an_error(cut: int) -> None:
    """A file cut anywhere loads or is refused."""
    survives(healthy()[:cut])


@examples(37)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(healthy()) - 1), st.integers(0, 255)), min_size=1, max_size=3
    )
)
def test_any_changed_bytes_are_a_model_or_an_error(changes: list[tuple[int, int]]) -> None:
    """A file with a few bytes changed loads or is refused."""
    data = bytearray(healthy())
    for place, value in changes:
        data[place] = value
    survives(bytes(data))


@pytest.mark.parametrize("name", [b"call", b"act", b"mm", b"w", b"local"])
def test_names_that_are_no_text(name: bytes) -> None:
    """Names that are no UTF-8 pass protobuf's parser unread; they end in an error as well."""
    survives(healthy().replace(name, b"\xf0" * len(name)))


@examples(10)
@given(st.binary(max_size=200))
@example(b"")
@example(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
@example(b"ir_version: 8\n")
@example(b'{"irVersion": 8}')
def test_what_is_not_onnx_is_refused(data: bytes) -> None:
    """Text, images, nothing at all and noise are no models."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(data)
        assert "not an ONNX model" in refused(path)


@pytest.mark.parametrize("suffix", [".json", ".textproto", ".onnxtxt", ".pt", ""])
def test_the_suffix_does_not_decide(tmp_path: Path, suffix: str) -> None:
    """A binary model is read whatever it is called, and text is refused."""
    path = tmp_path / f"model{suffix}"
    path.write_bytes(healthy())
    assert load_model(path).table.names
    path.write_text("graph { }")
    assert "not an ONNX model" in refused(path)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    """A path to nothing, to a folder, or with a NUL in it is refused."""
    assert "no such file" in refused(tmp_path / "none.onnx")
    assert "is a folder" in refused(tmp_path)
    assert refused(tmp_path / "a\0b.onnx")
    assert refused(Path("/dev/null") / "model.onnx")


def test_a_file_over_the_limit_of_protobuf(tmp_path: Path) -> None:
    """A file over 2 GiB is refused without reading it."""
    path = tmp_path / "large.onnx"
    with path.open("wb") as stream:
        stream.truncate(2**31 + 5)
    assert "external data" in refused(path)


def external(folder: Path) -> Path:
    """Save a model with external data in a folder of its own below `folder`."""
    place = folder / "inside"
    place.mkdir()
    proto = with_weights(
        parse("(float[1,64] x) => (float[1,64] y) { y = MatMul(x, w) }"), {"w": normal(64, 64)}
    )
    return save_external(proto, place)


def relocate(path: Path, **entries: str) -> None:
    """Change the external-data entries of the model's only weight."""
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        entry.value = entries.get(entry.key, entry.value)
    path.write_bytes(proto.SerializeToString())


def _remove(path: Path) -> None:
    path.with_name("model.data").unlink()


def _shorten(path: Path) -> None:
    path.with_name("model.data").write_bytes(b"\0" * 100)


def _escape(path: Path) -> None:
    (path.parent.parent / "secret").write_bytes(b"\0" * 64 * 64 * 4)
    relocate(path, location="../secret")


def _escape_absolutely(path: Path) -> None:
    (path.parent.parent / "secret").write_bytes(b"\0" * 64 * 64 * 4)
    relocate(path, location=str(path.parent.parent / "secret"))


def _escape_by_link(path: Path) -> None:
    (path.parent.parent / "secret").write_bytes(b"\0" * 64 * 64 * 4)
    _remove(path)
    path.with_name("model.data").symlink_to(path.parent.parent / "secret")


def _name_nothing(path: Path) -> None:
    relocate(path, location="")


def _name_a_folder(path: Path) -> None:
    relocate(path, location=".")


def _start_beyond(path: Path) -> None:
    relocate(path, offset="999999999999999999999")


def _start_before(path: Path) -> None:
    relocate(path, offset="-4")


def _garble_offset(path: Path) -> None:
    relocate(path, offset="four")


def _wrong_length(path: Path) -> None:
    relocate(path, length="5")


def _nul(path: Path) -> None:
    relocate(path, location="a\0b")


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (_remove, "is missing"),
        (_shorten, "needs 16384 bytes"),
        (_escape, "outside the model's folder"),
        (_escape_absolutely, "outside the model's folder"),
        (_escape_by_link, "outside the model's folder"),
        (_name_nothing, "outside the model's folder"),
        (_name_a_folder, "is missing"),
        (_start_beyond, "needs 16384 bytes"),
        (_start_before, "needs 16384 bytes"),
        (_garble_offset, "malformed offset"),
        (_wrong_length, "says 5 bytes"),
        (_nul, "damaged"),
    ],
)
def test_bad_external_data(tmp_path: Path, spoil: Callable[[Path], None], expected: str) -> None:
    """External data that is missing, short, elsewhere or misdescribed is refused."""
    path = external(tmp_path)
    spoil(path)
    assert expected in refused(path)


def test_huge_dimensions_take_no_memory(tmp_path: Path) -> None:
    """Sizes that overflow 64 bits are computed exactly, and refused."""
    path = external(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    del proto.graph.initializer[0].dims[:]
    proto.graph.initializer[0].dims.extend([2**32, 2**32])
    path.write_bytes(proto.SerializeToString())
    assert "needs" in refused(path)


def test_unknown_operators_and_domains(tmp_path: Path) -> None:
    """What ONNX Runtime does not know is refused with its own words on one line."""
    body = "(float[1] x) => (float[1] y) { y = Frobnicate(x) }"
    assert "Frobnicate" in refused(save(parse(body), tmp_path), judge=True)
    body = "(float[1] x) => (float[1] y) { y = acme.Frob(x) }"
    path = save(parse(body, domains='"acme": 1'), tmp_path)
    assert "acme" in refused(path, judge=True)


def test_opsets_too_old_and_too_new(tmp_path: Path) -> None:
    """Opsets outside of what is known are refused with what to do."""
    old = refused(save(parse(OVERFLOW, opset=8), tmp_path))
    assert "older than 9" in old
    assert "version_converter" in old
    proto = parse(OVERFLOW)
    proto.opset_import[0].version = 999
    assert "newer than" in refused(save(proto, tmp_path))


def test_malformed_functions(tmp_path: Path) -> None:
    """A function that calls itself is refused, not unrolled for ever."""
    text = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
        g (float[1] x) => (float[1] y) { y = local.act(x) }
        <domain: "local", opset_import: ["": 17, "local": 1]>
        act (p) => (q) { q = local.act(p) }"""
    refused(save(onnx.parser.parse_model(text), tmp_path), judge=True)
