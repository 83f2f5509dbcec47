"""A progressive JPEG of a baseline one, with the same coefficients, in scans of any script (ITU T.81 annex G).

Pillow writes one script only. Each scan has Huffman tables of its own, with codes of 8 and 9 bits, or of up to 16.
"""

import random

import numpy as np

from fastimg.loaders.jpeg.rewriting.coefficients import planes
from fastimg.loaders.jpeg.rewriting.markers import Parser

DC_SYMBOLS = range(12)
AC_SYMBOLS = [run << 4 | size for run in range(16) for size in range(11)]


def some_script(rng, components):
    """A valid script: scans (components, first, last, high, low) in an order that decoders must accept."""
    everything = tuple(range(components))
    lines = []  # each in its own order
    low = rng.randint(0, 2)
    interleaved = rng.random() < 0.6
    first = [(everything, 0, 0, 0, low)] if interleaved else [((c,), 0, 0, 0, low) for c in everything]
    means = []
    for bit in range(low, 0, -1):
        together = rng.random() < 0.6
        means += [(everything, 0, 0, bit, bit - 1)] if together else [((c,), 0, 0, bit, bit - 1) for c in everything]
    lines.append(means)
    for c in everything:
        low = rng.randint(0, 3)
        line = [((c,), *band, 0, low) for band in _bands(rng)]
        for bit in range(low, 0, -1):
            line += [((c,), *band, bit, bit - 1) for band in _bands(rng)]
        lines.append(line)
    scans = first
    while lines := [line for line in lines if line]:
        scans.append(rng.choice(lines).pop(0))
    return scans


def _bands(rng):
    ends = [*sorted(rng.sample(range(1, 63), rng.randint(0, 3))), 63]
    return [(begin + 1, end) for begin, end in zip([0, *ends], ends, strict=False)]


def progressive(jpeg, script, longest_run=32767, long_codes=False):
    """The JPEG in these scans. Runs of blocks without further coefficients are at most `longest_run` long."""
    parser = Parser(memoryview(jpeg))
    coefficients = planes(parser, 1 << 30)
    frame = parser.frame
    start = jpeg.index(b"\xff\xc0")
    length = int.from_bytes(jpeg[start + 2 : start + 4], "big")
    out = bytearray(_without_tables(jpeg[:start]))
    out += b"\xff\xc2" + jpeg[start + 2 : start + 2 + length]
    ids = [component.id for component in frame.components]
    for chosen, first, last, high, low in script:
        kind, symbols = (0, DC_SYMBOLS) if first == 0 else (1, AC_SYMBOLS)
        counts, codes = _codes(list(symbols), long_codes)
        if not (first == 0 and high):
            out += _segment(0xC4, bytes([kind << 4, *counts, *symbols]))
        body = bytes([len(chosen), *(byte for c in chosen for byte in (ids[c], 0)), first, last, high << 4 | low])
        out += _segment(0xDA, body)
        writer = _Scan(codes, longest_run)
        if first == 0:
            _write_means(writer, frame, coefficients, chosen, high, low)
        else:
            columns, rows = frame.blocks(chosen[0])
            for block in coefficients[chosen[0]][:rows, :columns].reshape(-1, 64)[:, first : last + 1].tolist():
                (writer.refine if high else writer.first)(block, low)
            writer.end_run()
        out += writer.stuffed()
    return bytes(out + b"\xff\xd9")


def _without_tables(head):
    """The segments before the frame without Huffman tables."""
    out, at = bytearray(head[:2]), 2
    while at < len(head):
        end = at + 2 + int.from_bytes(head[at + 2 : at + 4], "big")
        if head[at + 1] != 0xC4:
            out += head[at:end]
        at = end
    return out


def _segment(marker, body):
    return bytes((0xFF, marker)) + (len(body) + 2).to_bytes(2, "big") + body


def _codes(symbols, long_codes):
    """The counts of codes of each length, and the code of each symbol as (code, length)."""
    counts = [0] * 16
    if long_codes:  # one code of each of some lengths, and as many of 16 bits as are left
        counts[1:9] = [1] * 8
        counts[15] = len(symbols) - 8
    else:
        counts[7] = min(len(symbols), 128)
        counts[8] = len(symbols) - counts[7]
    code, codes, left = 0, {}, list(symbols)
    for length, count in enumerate(counts, 1):
        for _ in range(count):
            codes[left.pop(0)] = (code, length)
            code += 1
        code <<= 1
    assert not left
    return counts, codes


class _Scan:
    """The bits of one scan."""

    def __init__(self, codes, longest_run):
        self.codes = codes
        self.longest = longest_run
        self.bits = []
        self.run = 0  # blocks that end alike
        self.waiting = []  # corrections of these blocks

    def put(self, value, length):
        self.bits += [value >> (length - 1 - i) & 1 for i in range(length)]

    def symbol(self, symbol):
        self.put(*self.codes[symbol])

    def value(self, value, size):
        self.put(value if value > 0 else value - 1 + (1 << size), size)

    def end_run(self):
        if self.run:
            size = self.run.bit_length() - 1
            self.symbol(size << 4)
            self.put(self.run - (1 << size), size)
        self.bits += self.waiting
        self.run, self.waiting = 0, []

    def _ended(self, corrections):
        self.run += 1
        self.waiting += corrections
        if self.run == self.longest:
            self.end_run()

    def first(self, block, low):
        run = 0
        for value in block:
            value = int(np.sign(value)) * (abs(value) >> low)
            if value == 0:
                run += 1
                continue
            self.end_run()
            while run > 15:
                self.symbol(0xF0)
                run -= 16
            size = abs(value).bit_length()
            self.symbol(run << 4 | size)
            self.value(value, size)
            run = 0
        if run:
            self._ended([])

    def refine(self, block, low):
        sizes = [abs(value) >> low for value in block]
        last = max((k for k, size in enumerate(sizes) if size == 1), default=-1)
        run, corrections = 0, []
        for k, size in enumerate(sizes):
            if size == 0:
                run += 1
                continue
            while run > 15 and k <= last:
                self.end_run()
                self.symbol(0xF0)
                self.bits += corrections
                run, corrections = run - 16, []
            if size > 1:
                corrections.append(size & 1)
                continue
            self.end_run()
            self.symbol(run << 4 | 1)
            self.put(int(block[k] > 0), 1)
            self.bits += corrections
            run, corrections = 0, []
        if run or corrections:
            self._ended(corrections)

    def stuffed(self):
        bits = self.bits + [1] * (-len(self.bits) % 8)
        return np.packbits(bits).tobytes().replace(b"\xff", b"\xff\0") if bits else b""


def _write_means(writer, frame, coefficients, chosen, high, low):
    previous = dict.fromkeys(chosen, 0)
    for c, value in _in_order(frame, coefficients, chosen):
        if high:
            writer.put(value >> low & 1, 1)
            continue
        difference = (value >> low) - previous[c]
        previous[c] = value >> low
        size = abs(difference).bit_length()
        writer.symbol(size)
        if size:
            writer.value(difference, size)


def _in_order(frame, coefficients, chosen):
    """(component, DC) of each block of a scan."""
    if len(chosen) == 1:
        columns, rows = frame.blocks(chosen[0])
        yield from ((chosen[0], value) for value in coefficients[chosen[0]][:rows, :columns, 0].ravel().tolist())
        return
    columns, rows = frame.mcus
    for row in range(rows):
        for column in range(columns):
            for c in chosen:
                h, v = frame.components[c].h, frame.components[c].v
                for block in coefficients[c][row * v : row * v + v, column * h : column * h + h, 0].ravel().tolist():
                    yield c, block


def recoded(jpeg, seed):
    """The JPEG in scans of a script of its own."""
    rng = random.Random(seed)
    components = jpeg[jpeg.index(b"\xff\xc0") + 9]
    return progressive(jpeg, some_script(rng, components), rng.choice([1, 3, 32767]), rng.random() < 0.3)
