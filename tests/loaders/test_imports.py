"""Lazy imports: text datasets, and a loader over them, do not import the JPEG decoder and its compiler."""

import subprocess
import sys

# Without the names of fastimg.loaders itself, as it has no others.
CODE = """
import sys, types
import fastimg
package = types.ModuleType("fastimg.loaders")
package.__path__ = [fastimg.__path__[0] + "/loaders"]
sys.modules["fastimg.loaders"] = package

import fastimg.loaders.containers.datasets
import fastimg.loaders.containers.arrays
import fastimg.loaders.decoders.arrays
import fastimg.loaders.loader

heavy = ("numba", "simplejpeg", "fastimg.loaders.jpeg")
print(sorted(name for name in sys.modules if name.startswith(heavy)))
"""


def test_texts_do_not_import_the_jpeg_decoder():
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
