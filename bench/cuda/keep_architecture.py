"""Empties the kernels of all but one GPU architecture in a shared library, which keeps its layout and still loads.

What is emptied is zeros, which compress to nothing. usage: keep_architecture.py LIBRARY OUT 90
"""
import collections
import struct
import sys

MAGIC = struct.pack("<I", 0xBA55ED50)  # of a fat binary: version, bytes of the header, bytes that follow
PTX, MACHINE_CODE = 1, 2


def entries(data, start, end):
    """(kind, architecture, first byte, end) of the payloads of a fat binary."""
    at = start
    while at + 64 <= end:
        kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
        architecture, = struct.unpack_from("<I", data, at + 28)
        if kind not in (PTX, MACHINE_CODE) or not 64 <= header <= 4096:
            return
        yield kind, architecture, at + header, at + header + size
        at += header + size


def main():
    source, target, keep = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with open(source, "rb") as file:
        data = bytearray(file.read())
    emptied, kept, at = 0, collections.Counter(), 0
    while (at := data.find(MAGIC, at)) >= 0:
        version, header, size = struct.unpack_from("<HHQ", data, at + 4)
        end = at + header + size
        if version != 1 or header != 16 or end > len(data):
            at += 4
            continue
        found = list(entries(data, at + header, end))
        native = any(kind == MACHINE_CODE and architecture == keep for kind, architecture, _, _ in found)
        for kind, architecture, first, last in found:
            # Without machine code for this one, PTX that it can be made from stays.
            if architecture == keep if kind == MACHINE_CODE else not native and architecture <= keep:
                kept[kind] += last - first
            else:
                data[first:last] = bytes(last - first)
                emptied += last - first
        at = end
    if not kept:
        sys.exit(f"{source}: nothing for architecture {keep}")
    with open(target, "wb") as file:
        file.write(data)
    print(f"{source}: {kept[MACHINE_CODE]} bytes of machine code and {kept[PTX]} of PTX kept, {emptied} emptied")


if __name__ == "__main__":
    main()
