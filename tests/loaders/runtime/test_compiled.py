"""Compiled code is cached on disk, and is recompiled when what it was made of changes."""

import errno
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import llvmlite
import numba
import numpy as np
import pytest
from PIL import Image

import fastimg
import fastimg.augment.cpu.compiled
import fastimg.loaders.runtime
from fastimg.loaders.jpeg import exif
from fastimg.loaders.jpeg.decoding import crops, dct, frame, vectors
from fastimg.loaders.runtime.compiled import compiled, is_compiled, is_kept, telling_of_compilation
from fastimg.loaders.runtime.made_of import made_of

CALLED = "from fastimg.loaders.runtime.compiled import {kind}\n\n\n@{kind}\ndef number():\n    return {number}\n"
CALLER = (
    "from called_by_test import number\n"
    "from fastimg.loaders.runtime.compiled import compiled\n\n\n"
    "@compiled\ndef doubled():\n    return 2 * number()\n"
)


def loaded(folder, name):
    """The module of a file, as a new process imports it."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_edited_function_in_another_file_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "caller_by_test.py").write_text(CALLER)
    for kind in ("compiled", "inlined"):
        for number in (1, 2):
            (tmp_path / "called_by_test.py").write_text(CALLED.format(kind=kind, number=number))
            loaded(tmp_path, "called_by_test")
            doubled = loaded(tmp_path, "caller_by_test").doubled
            assert not is_kept(doubled)
            assert doubled() == 2 * number
            assert doubled.stats.cache_misses == {(): 1}  # made anew
        again = loaded(tmp_path, "caller_by_test").doubled
        assert is_kept(again)
        assert again() == 4
        assert again.stats.cache_hits == {(): 1}  # and kept
    for name in ("called_by_test", "caller_by_test"):
        del sys.modules[name]


def test_called_functions_may_be_defined_below(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    first, last = CALLER.split("@compiled\n")
    (tmp_path / "caller_by_test.py").write_text(
        first + "@compiled\ndef quadrupled():\n    return 2 * doubled()\n\n\n@compiled\n" + last
    )
    for number in (1, 2):
        (tmp_path / "called_by_test.py").write_text(CALLED.format(kind="compiled", number=number))
        loaded(tmp_path, "called_by_test")
        quadrupled = loaded(tmp_path, "caller_by_test").quadrupled
        assert quadrupled() == 4 * number
        assert quadrupled.stats.cache_misses == {(): 1}
    for name in ("called_by_test", "caller_by_test"):
        del sys.modules[name]


@pytest.mark.parametrize(
    ("before", "after", "used", "kind", "through"),
    [
        ("NUMBER = 2", "NUMBER = 3", "NUMBER", "compiled", "from"),
        ("NUMBER = 2.0", "NUMBER = 2.5", "NUMBER", "inlined", "import"),
        ("NUMBER = 2", "NUMBER = 2.0", "NUMBER", "inlined", "from"),
        ("NUMBERS = (1, (2, 3))", "NUMBERS = (1, (2, 4))", "NUMBERS[1][1]", "compiled", "import"),
        ("NUMBERS = np.arange(9)", "NUMBERS = np.arange(9) + 1", "NUMBERS[4]", "inlined", "from"),
        ("NUMBERS = np.arange(9)", "NUMBERS = np.arange(9).astype(np.float32)", "NUMBERS[4]", "inlined", "import"),
    ],
)
def test_a_constant_of_another_module_is_noticed(tmp_path, monkeypatch, before, after, used, kind, through):
    """Two functions away, with files that are as old and as long as before where the constants are."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("constants_by_test", "called_by_test", "caller_by_test"):
        monkeypatch.setitem(sys.modules, name, None)  # so that they are gone afterwards
    name = used.partition("[")[0]
    imported = f"from constants_by_test import {name}" if through == "from" else "import constants_by_test"
    value = used if through == "from" else f"constants_by_test.{used}"
    called = CALLED.format(kind=kind, number=value)
    (tmp_path / "called_by_test.py").write_text(f"{imported}\n{called}")
    (tmp_path / "caller_by_test.py").write_text(CALLER)
    for text in (before, after, after):
        (tmp_path / "constants_by_test.py").write_text(f"import numpy as np\n{text}\n")
        constants = loaded(tmp_path, "constants_by_test")
        loaded(tmp_path, "called_by_test")
        doubled = loaded(tmp_path, "caller_by_test").doubled
        wanted = 2 * eval(used, vars(constants))
        assert doubled() == wanted
        assert type(doubled()) is type(getattr(wanted, "item", lambda: wanted)())  # noqa: B023
    assert doubled.stats.cache_hits == {(): 1}


def test_code_that_a_full_disk_kept_from_being_written_is_not_taken_for_older_code(tmp_path, monkeypatch):
    """numba has written the index by then, with the name of a file that holds what was compiled before."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("called_by_test", "caller_by_test"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "caller_by_test.py").write_text(CALLER)

    def full(*_):
        raise OSError(28, "No space left on device")

    for number, fails in ((1, False), (2, True), (2, False)):
        (tmp_path / "called_by_test.py").write_text(CALLED.format(kind="inlined", number=number))
        loaded(tmp_path, "called_by_test")
        doubled = loaded(tmp_path, "caller_by_test").doubled
        with monkeypatch.context() as patched:
            if fails:
                patched.setattr(doubled._cache._cache_file, "_save_data", full)
            assert doubled() == 2 * number


def test_code_of_another_signature_is_not_taken(tmp_path, monkeypatch):
    """Two processes that compile at once can give the same name to the code of two signatures."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setitem(sys.modules, "halved_by_test", None)
    (tmp_path / "halved_by_test.py").write_text(
        "from fastimg.loaders.runtime.compiled import compiled\n\n\n@compiled\ndef halved(n):\n    return n / 2\n"
    )
    halved = loaded(tmp_path, "halved_by_test").halved
    assert (halved(3), halved(5.0)) == (1.5, 2.5)
    whole, real = sorted(Path(halved._cache.cache_path).glob("halved_by_test.*.nbc"))
    whole.write_bytes(real.read_bytes())
    again = loaded(tmp_path, "halved_by_test").halved
    assert again(3) == 1.5
    assert len(again.stats.cache_misses) == 1


def test_what_functions_are_made_of(monkeypatch):
    """What they call and the constants in it, and what generates code for them; nothing else of the same modules."""

    def changed(module, name, value):
        before = [made_of(function) for function in (crops.crop_tiled, crops.peek)]
        with monkeypatch.context() as patched:
            patched.setattr(module, name, value)
            after = [made_of(function) for function in (crops.crop_tiled, crops.peek)]
        assert [made_of(function) for function in (crops.crop_tiled, crops.peek)] == before
        return [one != other for one, other in zip(before, after, strict=True)]

    assert changed(vectors, "WIDE", 64) == [True, False]
    assert changed(vectors, "clamp", lambda builder, value, low, high: value) == [True, False]
    assert changed(dct, "_saturated", lambda *_: None) == [True, False]
    assert changed(exif, "_FLIPS_X", ~exif._FLIPS_X) == [True, True]
    assert changed(frame, "compiled", None) == [False, False]


@pytest.mark.parametrize("library", [numba, llvmlite, np])
def test_other_versions_of_compilers_are_noticed(library, monkeypatch):
    before = made_of(crops.peek)
    monkeypatch.setattr(library, "__version__", "0.0.1")
    assert made_of(crops.peek) != before


def test_code_for_another_processor_is_not_taken(tmp_path, monkeypatch):
    """As on machines that share a home directory."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setitem(sys.modules, "called_by_test", None)
    (tmp_path / "called_by_test.py").write_text(CALLED.format(kind="compiled", number=3))
    number = loaded(tmp_path, "called_by_test").number
    codegen = type(number.targetctx.codegen())
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(codegen, "magic_tuple", lambda self: ("another-triple", "another-cpu", "+avx9"))
        assert number() == 3
        assert is_kept(loaded(tmp_path, "called_by_test").number)
    assert not is_kept(loaded(tmp_path, "called_by_test").number)


DECODING = """
import sys
import numpy as np
from fastimg.loaders.crop import CenterCrop
from fastimg.loaders.jpeg.decoding import crops
from fastimg.loaders.runtime.scratch import Scratch

assert crops.__file__.startswith(sys.argv[1])
crop, queue, out = CenterCrop(size=40, resize=40), crops.CropQueue(), np.zeros((1, 40, 40, 1), np.uint8)
assert queue.add(open(sys.argv[2], "rb").read(), crop, (), 1600, 0) and not queue.run(crop, 0, Scratch(), out)
sys.stdout.buffer.write(out.tobytes())
"""


def test_pixels_follow_a_constant_of_another_module(tmp_path):
    """The order of coefficients turned over turns each block over, with the machine code of before in the cache."""
    copied = tmp_path / "fastimg"
    shutil.copytree(fastimg.__path__[0], copied, ignore=shutil.ignore_patterns("__pycache__"))
    y, x = np.mgrid[:40, :40]
    Image.fromarray((4 * x + (x - 20) * (y - 20) // 9 + y).clip(0, 255).astype(np.uint8)).save(tmp_path / "gray.jpg")
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path),
        "NUMBA_CACHE_DIR": str(tmp_path / "code"),
        "PYTHONDONTWRITEBYTECODE": "1",  # an edit within a second would not be noticed
    }

    def decoded():
        command = [sys.executable, "-c", DECODING, str(copied), str(tmp_path / "gray.jpg")]
        ran = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, check=True)
        return np.frombuffer(ran.stdout, np.uint8).reshape(40, 40)

    before = decoded()
    assert (before == np.array(Image.open(tmp_path / "gray.jpg"))).all()
    constants = copied / "loaders" / "jpeg" / "decoding" / "entropy" / "symbols.py"
    constants.write_text(constants.read_text() + "\nNATURAL[:64] = NATURAL[:64] % 8 * 8 + NATURAL[:64] // 8\n")
    turned = before.reshape(5, 8, 5, 8).transpose(0, 3, 2, 1).reshape(40, 40)
    assert np.abs(turned.astype(int) - before).max() > 20
    assert np.abs(turned.astype(int) - decoded()).max() <= 1  # rounded first down, then across


def test_both_libraries_look_at_the_same():
    texts = [
        Path(package.__path__[0], "made_of.py").read_text()
        for package in (fastimg.loaders.runtime, fastimg.augment.cpu)
    ]
    assert texts[0] == texts[1]


def test_code_that_cannot_be_cached_is_still_compiled():
    namespace = {"compiled": compiled}
    exec("def three():\n    return 3\n", namespace)  # no file: numba has no place to cache its code
    assert compiled(namespace["three"])() == 3


def test_compiling_is_reported_once_and_loading_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "called_by_test.py").write_text(CALLED.format(kind="compiled", number=3))
    (tmp_path / "caller_by_test.py").write_text(CALLER)
    told = []
    for compilations in (1, 1):  # the second time, cached code is loaded
        loaded(tmp_path, "called_by_test")
        with telling_of_compilation(lambda: told.append("compiling")):
            assert loaded(tmp_path, "caller_by_test").doubled() == 6
        assert told == ["compiling"] * compilations
    for name in ("called_by_test", "caller_by_test"):
        del sys.modules[name]


KEPT = """
import gc, sys
from pathlib import Path
import numpy as np
from numba import njit
from fastimg.loaders.runtime.compiled import compiled

def arrays(n):
    a = np.zeros(n, np.int64)
    for i in range(n):
        a[i] = i
    return a[2:].copy(), a

f = compiled(arrays)
made = [f(10) for _ in range(1000)]
assert made[0][0].tolist() == [2, 3, 4, 5, 6, 7, 8, 9] and sys.getrefcount(made[0][0]) == 2
del made
gc.collect()
print(len(f.stats.cache_hits), "numba.cpython.setobj" in sys.modules)
print(njit(lambda n: [i * 2.0 for i in range(n)])(3))  # compiled after it
"""


def test_kept_code_allocates_and_what_comes_later_is_compiled(tmp_path):
    """Loading does not import numba's compiler, which numba imports on demand."""
    (tmp_path / "kept.py").write_text(KEPT)
    said = [
        subprocess.run([sys.executable, "kept.py"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert said == ["0 True\n[0.0, 2.0, 4.0]\n", "1 False\n[0.0, 2.0, 4.0]\n"]


def test_asking_while_another_thread_compiles(monkeypatch):
    """A thread that adds machine code changes what another one would iterate over."""

    class Changing(dict):
        def __iter__(self):
            raise KeyError("changed")

    for kept in (is_compiled, is_kept, fastimg.augment.cpu.compiled.is_kept):
        function = compiled(lambda: 1)
        monkeypatch.setattr(function, "overloads", Changing(a=1))
        assert kept(function)


def test_an_index_that_cannot_be_opened_keeps_nothing(tmp_path, monkeypatch):
    """With too many open files a loader's threads do without machine code, and name the file that they were to read."""
    (tmp_path / "called_by_test.py").write_text(CALLED.format(kind="compiled", number=3))
    number = loaded(tmp_path, "called_by_test").number

    def refused():
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(number._cache._cache_file, "_load_index", refused)
    assert not is_kept(number)
    assert not is_compiled(number)


ALLOCATES = """
import sys
import numpy as np
from fastimg.loaders.runtime.compiled import compiled


@compiled
def total(count):
    found = np.zeros(count, np.int64)
    found[:] = 2
    return found[0] + found[count - 1]


assert total(3) == 4
print("numba.np.arrayobj" in sys.modules)
"""


def test_kept_code_imports_nothing_of_numba_for_its_functions(tmp_path):
    (tmp_path / "allocates.py").write_text(ALLOCATES)
    command = [sys.executable, "allocates.py"]
    ran = [subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True) for _ in range(2)]
    assert [each.stdout.strip() for each in ran] == ["True", "False"]
