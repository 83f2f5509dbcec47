"""Mutations of JPEGs, pictures, arrays, tars, indexes and .beton files: anywhere, or in the fields of their formats."""

import re
import struct
import zlib

EXTREMES = (0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def mutated(data, others, draw, fields):
    """Some changes, half of them at random places and half at those in `fields`."""
    data = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if len(data) < 8:
            break
        if draw.random() < 0.6:
            data = bytearray(fields(data, draw))
        else:
            scatter(data, bytes(draw.choice(others)), draw)
    return bytes(data)


def scatter(data, other, draw):
    """Changes of bits, bytes and chunks at any place."""
    at = draw.randrange(len(data))
    length = draw.choice((1, 2, 4, 16, 64, 512))
    match draw.randrange(9):
        case 0:
            data[at] ^= 1 << draw.randrange(8)
        case 1:
            data[at] = draw.randrange(256)
        case 2:
            data[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF))
        case 3:
            del data[at : at + length]
        case 4:
            data[at:at] = draw.randbytes(length)
        case 5:
            data[at:at] = data[at : at + length]
        case 6:
            data[at : at + length] = bytes(len(data[at : at + length]))
        case 7:  # the end of another file
            data[at:] = other[draw.randrange(len(other)) :]
        case 8 if draw.random() < 0.3:
            del data[at:]


def near(value, draw):
    """Another value for a field: an extreme, or a neighbour of the true one."""
    return draw.choice((*EXTREMES, value - 1, value + 1, value * 2, value // 2, draw.randrange(256)))


def jpeg_segments(data):
    """(begin, end) of the segments before the scan."""
    at, found = 2, []
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xD9:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        found.append((at, min(end, len(data))))
        if data[at + 1] == 0xDA:
            break
        at = end
    return found


def jpeg_fields(data, draw):
    """Places of lengths, sizes, factors, table counts, intervals and markers."""
    segments = jpeg_segments(data)
    if not segments:
        return data
    wanted = draw.choice((0xC0, 0xC2, 0xC4, 0xDB, 0xDA, 0xDD, None, None))
    begin, end = draw.choice([s for s in segments if data[s[0] + 1] == wanted] or segments)
    marker, body = data[begin + 1], begin + 4
    match draw.randrange(8):
        case 0:
            length = near(end - begin - 2, draw) & 0xFFFF
            data[begin + 2 : begin + 4] = length.to_bytes(2, "big")
        case 1:
            data[begin + 1] = draw.choice((*range(0xC0, 0xE3), 0xFE, 0x01, 0x00, 0xFF))
        case 2:
            del data[begin:end]
        case 3:
            data[begin:begin] = data[begin:end]
        case 4:
            other = draw.choice(segments)[0]
            data[other:other] = data[begin:end]
        case 5:
            data[begin:begin] = b"\xff\xdd\0\4" + (draw.choice((0, 1, 2, 3, 5, 65535))).to_bytes(2, "big")
        case _ if marker in (0xC0, 0xC1, 0xC2) and end - body >= 9:
            at = body + draw.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, *range(6, end - body)))
            data[at] = draw.choice((0, 1, 2, 3, 4, 7, 8, 0x11, 0x12, 0x21, 0x22, 0x41, 0x44, 0xFF))
        case _ if end > body:
            at = body + draw.randrange(min(end - body, 20))
            data[at] = near(data[at], draw) & 0xFF
    return data


def tar_fields(data, draw):
    """Change a field of a header together with its checksum, or else blocks."""
    headers = [at for at in range(0, len(data) - 511, 512) if data[at + 257 : at + 262] == b"ustar"]
    if not headers:
        return data
    at = draw.choice(headers)
    digits = bytes(data[at + 124 : at + 135])
    size = int(digits, 8) if digits.isdigit() and digits.isascii() and b"8" not in digits and b"9" not in digits else 0
    match draw.randrange(7):
        case 0:
            value = near(size, draw)
            data[at + 124 : at + 136] = draw.choice(
                (
                    b"%011o\0" % (max(value, 0) & (8**11 - 1)),
                    (value & (1 << 95) - 1 | 1 << 95).to_bytes(12, "big"),
                    (value % 2**96).to_bytes(12, "big"),
                    draw.randbytes(12),
                )
            )
        case 1:
            data[at + 156] = draw.choice(b"0\x001234567SxgLKVMDN\xff")
        case 2:
            name = draw.choice(
                (b"0.jpg", b"1.jpg", b"1.cls", b"../x.jpg", b"/a.jpg", b"\xff\xfe.jpg", b"b .jpg", b"._.jpg")
            )
            start = at + draw.choice((0, 0, 157, 345))
            data[start : start + len(name) + 1] = name + b"\0"
        case 3:
            data[at + 257 : at + 265] = draw.choice((b"ustar\x0000", b"ustar  \0", bytes(8)))
        case 4:
            del data[at : at + 512]
            return data
        case 5:
            data[at:at] = data[at : at + 512 * draw.randrange(1, 4)]
            return data
        case 6:
            data[at + draw.randrange(512)] = draw.randrange(256)
    if len(data) >= at + 512 and draw.random() < 0.9:
        data[at + 148 : at + 156] = b" " * 8
        data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return data


def idx_fields(data, draw):
    """Words and lines of an index."""
    lines = [line.split(b" ") for line in bytes(data).split(b"\n")]
    line = draw.choice(lines)
    at = draw.randrange(len(line))
    match draw.randrange(8):
        case 0 | 1 | 2:
            numbers = [i for i, word in enumerate(line) if word.isdigit()]
            if numbers:
                at = draw.choice(numbers)
                line[at] = b"%d" % near(int(line[at][:18]), draw)
        case 3:
            line[at] = draw.choice((b"", b"-1", b"+5", b"1_0", b"9" * 5000, "٣".encode(), "²".encode(), b"jpg"))
        case 4:
            del line[at]
        case 5:
            lines.remove(line)
        case 6:
            lines.insert(draw.randrange(len(lines)), line)
        case 7:
            draw.shuffle(lines)
    return b"\n".join(b" ".join(line) for line in lines)


def beton_fields(data, draw):
    """A number in the header, a descriptor, the metadata or the table."""
    table = int.from_bytes(data[16:24], "little")
    fields = int.from_bytes(data[2:4], "little")
    metadata = 24 + 1041 * fields
    places = [(0, 2), (2, 2), (4, 4), (8, 8), (16, 8)]
    places += [(24 + 1041 * i, 1) for i in range(min(fields, 9))]
    places += [(24 + 1041 * i + 17 + 8 * j, 8) for i in range(min(fields, 9)) for j in (0, 1, 31, 32, 33)]
    places += [(metadata + draw.randrange(300), width) for width in (1, 2, 4, 8) for _ in range(6)]
    if table + 24 <= len(data):
        places += [(table + 8 * draw.randrange((len(data) - table) // 8), 8) for _ in range(20)]
    at, width = draw.choice(places)
    if at + width <= len(data):
        value = int.from_bytes(data[at : at + width], "little")
        data[at : at + width] = (near(value, draw) % (1 << 8 * width)).to_bytes(width, "little")
    return data


def png_fields(data, draw):
    """Change a chunk of a PNG: its length, name, content or checksum; or what is deflated. Mostly the checksum fits."""
    if data[:4] != b"\x89PNG":
        return header_fields(data, draw)
    at, chunks = 8, []
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        chunks.append([bytes(data[at + 4 : at + 8]), bytes(data[at + 8 : at + 8 + size])])
        at += 12 + size
    if not chunks:
        return data
    place = draw.randrange(len(chunks))
    name, content = chunks[place]
    length = None
    match draw.randrange(8):
        case 0:
            length = near(len(content), draw) % 2**32
        case 1:
            chunks[place][0] = draw.choice(
                (b"IDAT", b"PLTE", b"tRNS", b"IEND", b"eXIf", b"tEXt", b"iCCP", b"acTL", b"fgRP")
            )
        case 2 if len(content) > 1:
            cut = draw.randrange(len(content))
            chunks[place : place + 1] = [[name, content[:cut]], [name, content[cut:]]]
        case 3:
            chunks.insert(draw.randrange(len(chunks)), list(chunks[place]))
        case 4:
            del chunks[place]
        case 5 | 6 if name == b"IDAT":
            chunks[place][1] = deflated_anew(content, draw)
        case _ if content:
            changed = bytearray(content)
            spot = draw.randrange(len(changed))
            changed[spot] = draw.choice((0, 1, 2, 3, 4, 5, 8, 16, 127, 255, changed[spot] ^ 1 << draw.randrange(8)))
            chunks[place][1] = bytes(changed)
    out = bytearray(data[:8])
    for number, (name, content) in enumerate(chunks):
        total = zlib.crc32(name + content) ^ (draw.random() < 0.03)
        size = length if length is not None and number == place else len(content)
        out += struct.pack(">I", size) + name + content + struct.pack(">I", total)
    return out


def webp_chunks(data):
    """[name, content] of the chunks of a WebP, as far as their lengths are right."""
    at, chunks = 12, []
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        chunks.append([bytes(data[at : at + 4]), bytes(data[at + 8 : at + 8 + size])])
        at += 8 + size + size % 2
    return chunks


def webp_file(chunks, length=None):
    """A WebP of these chunks; `length` is (the place of a chunk, the length that it says)."""
    body = b"WEBP"
    for number, (name, content) in enumerate(chunks):
        size = length[1] if length is not None and length[0] == number else len(content)
        body += name + struct.pack("<I", size) + content + bytes(len(content) % 2)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def webp_fields(data, draw):
    """Change a chunk of a WebP: its length, name, place, header or pixels. Mostly the length of the file fits."""
    chunks = webp_chunks(data)
    if not chunks:
        return data
    place = draw.randrange(len(chunks))
    name, content = chunks[place]
    length = None
    match draw.randrange(9):
        case 0:
            length = place, near(len(content), draw) % 2**32
        case 1:
            names = (b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ICCP", b"EXIF", b"XMP ", b"ANIM", b"ANMF", b"abcd")
            chunks[place][0] = draw.choice(names)
        case 2:
            chunks.insert(draw.randrange(len(chunks) + 1), list(draw.choice(chunks)))
        case 3:
            del chunks[place]
        case 4:
            chunks[place][1] = content[: draw.randrange(len(content) + 1)]
        case 5 if name in (b"VP8 ", b"VP8L") and len(content) > 12:  # bits behind the header: of a code or of pixels
            changed = bytearray(content)
            spot = draw.randrange(10, len(changed))
            changed[spot : spot + draw.choice((1, 4, 64))] = draw.randbytes(draw.choice((1, 4, 64)))
            chunks[place][1] = bytes(changed)
        case 6 if name == b"VP8X" and content:
            chunks[place][1] = bytes([content[0] ^ 1 << draw.randrange(8)]) + content[1:]
        case _ if content:
            changed = bytearray(content)
            spot = draw.randrange(min(len(changed), 20))
            changed[spot] = draw.choice((0, 1, 2, 8, 16, 127, 255, changed[spot] ^ 1 << draw.randrange(8)))
            chunks[place][1] = bytes(changed)
    return bytearray(webp_file(chunks, length))


def deflated_anew(stream, draw):
    """Other bytes in a stream: fewer, more, other filters; or another way to deflate the same."""
    try:
        rows = bytearray(zlib.decompressobj().decompress(stream, 1 << 16))
    except zlib.error:
        return stream
    if rows:
        match draw.randrange(4):
            case 0:
                rows[draw.randrange(len(rows))] = draw.choice((0, 1, 2, 3, 4, 5, 255))
            case 1:
                del rows[draw.randrange(len(rows)) :]
            case 2:
                rows += bytes(draw.choice((1, 100, 70000)))
    how = draw.choice((zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE))
    packer = zlib.compressobj(draw.randrange(10), zlib.DEFLATED, draw.randrange(9, 16), draw.randrange(1, 10), how)
    return packer.compress(bytes(rows)) + packer.flush()


def header_fields(data, draw):
    """Change a number in the first bytes of a BMP or PPM, or a tag of a TIFF."""
    if data[:4] in (b"II*\0", b"MM\0*") and len(data) > 40:
        return tiff_fields(data, draw)
    at = draw.choice((2, 10, 14, 18, 22, 26, 28, 30, 34, 46, 50))
    if data[:2] == b"BM" and len(data) > 54:
        width = draw.choice((2, 4))
        value = int.from_bytes(data[at : at + width], "little")
        data[at : at + width] = (near(value, draw) % 2 ** (8 * width)).to_bytes(width, "little")
    elif len(data) > 8:
        spot = draw.randrange(min(16, len(data)))
        data[spot : spot + 1] = draw.choice((b"", b" ", b"\n", b"#", b"9", b"0", b"-", b"P", b"255"))
    return data


def tiff_fields(data, draw):
    """Change a tag, its type, its number of values, the values, or where they are; or the order of tags."""
    order = "little" if data[:1] == b"I" else "big"
    begin = int.from_bytes(data[4:8], order) + 2
    count = int.from_bytes(data[begin - 2 : begin], order)
    if not 0 < count < 50 or begin + 12 * count > len(data):
        return data
    entry = begin + 12 * draw.randrange(count)
    tags = (*range(254, 286), 296, 305, 317, 320, 322, 338, 339, 700)
    match draw.randrange(6):
        case 0:
            data[entry : entry + 2] = draw.choice(tags).to_bytes(2, order)
        case 1:
            data[entry + 2 : entry + 4] = draw.randrange(14).to_bytes(2, order)
        case 2:
            other = begin + 12 * draw.randrange(count)
            data[entry : entry + 12], data[other : other + 12] = data[other : other + 12], data[entry : entry + 12]
        case 3:  # a value out of line
            at = int.from_bytes(data[entry + 8 : entry + 12], order)
            width = draw.choice((2, 4))
            at += width * draw.randrange(4)
            value = int.from_bytes(data[at : at + width], order)
            if at + width <= len(data):
                data[at : at + width] = (near(value, draw) % 2 ** (8 * width)).to_bytes(width, order)
        case _:
            at, width = draw.choice(((entry + 4, 4), (entry + 8, 2), (entry + 8, 4), (begin - 2, 2), (4, 4)))
            value = int.from_bytes(data[at : at + width], order)
            data[at : at + width] = (near(value, draw) % 2 ** (8 * width)).to_bytes(width, order)
    return data


def npy_fields(data, draw):
    """Change the header of an .npy file: a number, a word, its length, the version or the padding; or values."""
    begin = 12 if data[6:7] in (b"\x02", b"\x03") else 10
    end = begin + int.from_bytes(data[8:begin], "little")
    said = bytes(data[begin:end])
    match draw.randrange(9):
        case 0 | 1:
            numbers = [found.span() for found in re.finditer(rb"[0-9]+", said)]
            if numbers:
                first, last = draw.choice(numbers)
                said = said[:first] + b"%d" % near(int(said[first:last][:18]), draw) + said[last:]
        case 2:
            words = (b"<u2", b"|u1", b"<f4", b">u2", b"<i2", b"|O", b"<f2", b"True", b"False", b"()", b"-1", b"0", b"")
            spots = [found.span() for found in re.finditer(rb"[<>|][a-zA-Z][0-9]|True|False|[0-9]+", said)]
            if spots:
                first, last = draw.choice(spots)
                said = said[:first] + draw.choice(words) + said[last:]
        case 3:
            spot = draw.randrange(len(said) + 1)
            said = said[:spot] + draw.choice((b" ", b",", b"\n", b"\0", b"(", b")", b"}", b"'", b"x")) + said[spot:]
        case 4 if said:
            spot = draw.randrange(len(said))
            said = said[:spot] + said[spot + draw.choice((1, 2, 8)) :]
        case 5:
            data[draw.choice((6, 7, 8, 9))] = draw.choice((0, 1, 2, 3, 10, 64, 118, 119, 255))
            return data
        case 6:  # values that are no numbers, or small, or large
            spot = draw.randrange(len(data))
            data[spot : spot + 4] = draw.choice((b"\0\0\x80\x7f", b"\1\0\xc0\x7f", b"\1\0\0\0", b"\xff\xff\x7f\x7f"))
            return data
        case 7:
            return data[: len(data) - draw.choice((1, 2, 4, 100))] if draw.random() < 0.5 else data + bytes(2)
        case _:
            return bytearray(data[:begin]) + said.rstrip() + b"\n" + data[end:]
    length = len(said) if draw.random() < 0.8 else end - begin
    return data[:8] + (length % 65536).to_bytes(begin - 8, "little") + said + data[end:]
