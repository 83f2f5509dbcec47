"""ETags that are checksums, of objects that were sent whole or in parts."""

import hashlib

import numpy as np
import pytest

from fastimg.loaders.remote.client.etags import agrees, may_be_checksum

MIB = 1 << 20


def tag_of_parts(content, part):
    sums = [hashlib.md5(content[at : at + part]).digest() for at in range(0, len(content), part)]
    return f'"{hashlib.md5(b"".join(sums)).hexdigest()}-{len(sums)}"'


def vouches(tag, content):
    return agrees(tag, len(content), lambda start, size: content[start : start + size])


@pytest.fixture(scope="module")
def content():
    return np.random.default_rng(0).bytes(17 * MIB + 5)


@pytest.mark.parametrize("part", [5 * MIB, 8 * MIB, 16 * MIB, 15 * MIB, 6 * MIB])
def test_of_parts_of_the_usual_lengths(content, part):
    tag = tag_of_parts(content, part)
    assert vouches(tag, content) and may_be_checksum(tag)
    flipped = bytearray(content)
    flipped[9 * MIB] ^= 1
    assert not vouches(tag, bytes(flipped))
    assert not vouches(tag, content[:-1])


def test_of_a_whole_object(content):
    tag = f'"{hashlib.md5(content).hexdigest()}"'
    assert vouches(tag, content) and not vouches(tag, content[:-1])
    assert vouches(f'"{hashlib.md5(b"").hexdigest()}"', b"")


@pytest.mark.parametrize("tag", ["", '"65a1b2c3-1f4"', 'W/"0"', '"0x8DA"', f'"{"0" * 32}-0"', "written 2024"])
def test_that_are_no_checksums(tag):
    assert not may_be_checksum(tag) and not vouches(tag, b"x")


def test_of_parts_of_another_length_vouches_for_nothing(content):
    assert not vouches(tag_of_parts(content, 3 * MIB + 1), content)
