"""`.npy` files: what NumPy writes and reads is the judge."""

import ast
import io
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastimg.loaders.containers.npy import npy_array, npy_bytes, read_npy_header
from fastimg.loaders.errors import ImageError
from fastimg.loaders.folders.bands import npy_head, read_bands

TYPES = ["<f2", "<f4", ">f8", "<i4", ">i2", "|u1", "|b1", "<c8", "|S5", "<U3", "<M8[ns]"]
SHAPES = [(), (0,), (3,), (2, 3, 4)]
VERSIONS = [(1, 0), (2, 0), (3, 0)]


def some(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """An array that differs from item to item."""
    array: np.ndarray[Any, Any] = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype("<i8").astype(dtype)
    return array


def written(array: np.ndarray[Any, Any], version: tuple[int, int] = (1, 0)) -> bytes:
    """As NumPy writes it."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version)
    return buffer.getvalue()


def with_header(header: str, values: bytes = bytes(96)) -> bytes:
    """A file of format 1.0 with this header."""
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + values


@pytest.fixture
def no_ast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing Python fails, as it does now and then in CPython 3.11 when several threads parse."""

    def literal_eval(text: object) -> None:
        raise SystemError("AST constructor recursion depth mismatch (before=48, after=53)")

    monkeypatch.setattr(ast, "literal_eval", literal_eval)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_arrays_are_written_as_numpy_does_and_read_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = some(shape, dtype)
    data = npy_bytes(array)
    assert data == written(array)
    for back in (npy_array(data), npy_array(memoryview(data)), np.load(io.BytesIO(data))):
        assert back.dtype == array.dtype and back.shape == shape and np.array_equal(back, array)


@pytest.mark.usefixtures("no_ast")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("dtype", TYPES)
def test_no_header_that_numpy_writes_is_parsed_as_python(dtype: str, version: tuple[int, int]) -> None:
    for shape in SHAPES:
        for array in (some(shape, dtype), np.asfortranarray(some(shape, dtype)), some(shape, dtype).T):
            data = written(array, version)
            back = npy_array(data + b"and more")
            assert back.dtype == array.dtype and back.flags.writeable and back.flags.owndata
            assert np.array_equal(back, array)
            file = io.BytesIO(data)
            header = read_npy_header(file)
            assert header[:2] == (array.dtype, array.shape) and header.nbytes == array.nbytes
            assert len(data) - file.tell() == array.nbytes


@pytest.mark.usefixtures("no_ast")
def test_headers_of_other_programs_are_parsed_without_python_too() -> None:
    """As cnpy, ndarray-npy and npyjs write them: other spaces, no comma at the end."""
    for header in (
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,4)}\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4,), }\n",
    ):
        assert npy_array(with_header(header)).shape == (3, 4), header


COUNTS = st.sampled_from(["", "0", "1", "3", "03", "-1", "3L", "12", "1_2", "0x3", "3.0", "99999999999999999999"])
COMMAS = st.sampled_from([",", ", ", " ,", "  ", ",,"])


@given(
    descr=st.sampled_from(["'<f4'", "'f4'", "'|O'", "'<q9'", "'f4,i4'", "[('a', '<f4')]", "'float32'", "None", "'<f4"]),
    order=st.sampled_from(["False", "True", "0", "false"]),
    counts=st.lists(COUNTS, max_size=3),
    comma=COMMAS,
    ends=st.tuples(st.sampled_from(["(", "[", "( "]), st.sampled_from([")", ",)", "]", " )"])),
    tail=st.sampled_from([", }\n", "}", ",}", ", 'more': 1}", "", ", } x", " }\n \n"]),
    swapped=st.booleans(),
)
def test_any_header_is_understood_as_numpy_understands_it(
    descr: str, order: str, counts: list[str], comma: str, ends: tuple[str, str], tail: str, swapped: bool
) -> None:
    shape = ends[0] + comma.join(counts) + ends[1]
    items = [f"'descr': {descr}", f"'fortran_order': {order}", f"'shape': {shape}"]
    data = with_header("{" + ", ".join(reversed(items) if swapped else items) + tail)
    try:
        expected = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # noqa: BLE001 - whatever NumPy raises
        with pytest.raises(type(error) if isinstance(error, Warning) else ValueError):  # NumPy lets tokenize's pass
            npy_array(data)
    else:
        back = npy_array(data)
        assert back.dtype == expected.dtype and back.shape == expected.shape and np.array_equal(back, expected)


def test_broken_files_are_refused_as_numpy_does() -> None:
    data = npy_bytes(some((3, 4), "<i4"))
    for broken in (b"", data[:7], data[:9], data[:100], data[:-1], data.replace(b"(3, 4)", b"(3,-4)"), b"x" * 200):
        for _ in range(2):  # the second time its header may be known
            with pytest.raises((ValueError, EOFError)) as theirs:
                np.lib.format.read_array(io.BytesIO(broken))
            with pytest.raises(theirs.type):
                npy_array(broken)
    for broken in (b"", data[:7], data[:9], data[:100], b"x" * 200):
        with pytest.raises(ValueError):
            read_npy_header(io.BytesIO(broken))


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000), }", "not the whole of float64"),  # 8 TB
        ("{'descr':'<f8', 'fortran_order':False, 'shape':(1000000,1000000)}", "not the whole of float64"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999, 3), }", "not the whole of float64"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 0), }", "not the whole of float64"),
        ("{'descr': '|V0', 'fortran_order': False, 'shape': (1000000000000,), }", r"not the whole of \|V0"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 3), }", r"an array of shape \(-1, 3\)"),
        ("{'a", "its header cannot be parsed"),
        ("(" * 3000, "its header cannot be parsed"),
    ],
)
def test_headers_that_claim_more_than_there_is(header: str, words: str) -> None:
    data = with_header(header)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=words):
            npy_array(data)
        with pytest.raises(ValueError, match=words):
            npy_head(io.BytesIO(data), "x.npy")
        with pytest.raises(ImageError, match=words):
            read_bands(data, "x.npy")
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


def test_objects_and_archives_are_refused() -> None:
    with pytest.raises(ValueError, match="pickle"):
        npy_bytes(np.array([{}], object))
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="pickle"):
        npy_array(buffer.getvalue())
    archive = io.BytesIO()
    np.savez(archive, a=np.zeros(3))
    with pytest.raises(ValueError, match="magic string"):
        npy_array(archive.getvalue())


def test_several_threads_read_headers_that_were_never_seen() -> None:
    files = [written(some((size,), "<f4")) for size in range(400)]
    sizes: list[list[int]] = [[], [], [], []]
    threads = [threading.Thread(target=lambda own=own: own.extend(len(npy_array(f)) for f in files)) for own in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == [list(range(400))] * 4
