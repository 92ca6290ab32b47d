"""A second decoder of the tile format, written from docs/format.md alone.

It is made for reading, not for speed: one value after the other, in the order of the specification.
"Section n" in the comments is a section of docs/format.md.

    keys, values = decode_block(layout, windows, entries, slot)

The slot and its table entries are untrusted: whatever their bytes are, the decoder returns values or
raises FormatError.
"""

import struct
from typing import NamedTuple

TOKENS = 16                     # section 1: tokens of a block
LANES = 32                      # section 3
WORDS = 8                       # section 5: words of a lane and half
FRAGMENT_BYTES = 512            # section 4
HALF_FIXED_BYTES = 1408         # section 2: fixed bytes of a part, for each half
LARGEST_BASE = 240              # section 7
LARGEST_POOL = 65536            # section 2
ENTRY_UNIT = 16                 # section 2: offset and length of an entry count 16 bytes
NIBBLE_TOPS = 0x44444444        # section 6: top bits of the eight nibbles of a T word
SIGN_AND_MANTISSA = 0x807F807F  # section 5: m
KEY, VALUE = 0, 1               # v of section 8's tag bits and exception records
GROUPS = ("B.hi", "A.lo", "B.lo", "A.hi")   # section 8: group of byte i of an N word


class FormatError(Exception):
    """The bytes are not a block of this format."""


class Layout(NamedTuple):
    """What a reader knows of a layer before it sees a slot."""
    kv_heads: int
    head_dim_k: int
    head_dim_v: int
    pool_bytes: int

    def head_dim(self, kind):
        return self.head_dim_k if kind == KEY else self.head_dim_v


class Unit(NamedTuple):
    """A unit of a head (section 1)."""
    first_channel: int
    channels: int
    halves: int                 # HV; 0 for the remainder, which is not coded
    kinds: tuple                # its parts: (KEY, VALUE), (KEY,) or (VALUE,)

    def part_bytes(self):
        """Fixed bytes of one part (section 2)."""
        return self.halves * HALF_FIXED_BYTES if self.halves else 2 * TOKENS * self.channels


class Entry(NamedTuple):
    """Table entry of a coded unit (section 2)."""
    offset: int
    length: int
    exceptions: int             # bits: K half 0, K half 1, V half 0, V half 1


# ---- Section 1: units ------------------------------------------------------------------------------

def split_head(head_dim, kinds):
    """The units of a head: 128 channels each, then 64, then the remainder."""
    if head_dim <= 0 or head_dim % 16:
        raise FormatError(f"head_dim {head_dim} is no multiple of 16")
    units = []
    first = 0
    while first < head_dim:
        left = head_dim - first
        channels = 128 if left >= 128 else 64 if left >= 64 else left
        units.append(Unit(first, channels, channels // 64, kinds))
        first += channels
    return units


def units_of_head(layout):
    """All units of a head in the order in which slots, raw blocks and entries have them."""
    if layout.head_dim_k == layout.head_dim_v:
        return split_head(layout.head_dim_k, (KEY, VALUE))
    return split_head(layout.head_dim_k, (KEY,)) + split_head(layout.head_dim_v, (VALUE,))


# ---- Sections 3 and 4: lanes and the order of elements ---------------------------------------------

def lane_position(lane):
    """Position p of a lane = 4g + t in every stream (section 3)."""
    g, t = lane >> 2, lane & 3
    return 8 * t + (g ^ (2 * t))


def element(kind, fragments, fragment, lane, s, b, hi):
    """(token, channel of the unit) of half hi of register b (A = 0, B = 1) of (fragment, s): section 4."""
    g, t = lane >> 2, lane & 3
    if kind == KEY:
        return g + 8 * s, 4 * fragments * t + 4 * fragment + 2 * b + hi
    return 2 * t + 8 * s + hi, 2 * fragments * g + 2 * fragment + b


def register_number(kind, s, b):
    """r of section 4."""
    return s + 2 * b if kind == KEY else 2 * s + b


# ---- Rows that are decoded into --------------------------------------------------------------------

class Rows:
    """BF16 values [token][head][channel] of the K or the V of a block."""

    def __init__(self, layout, kind):
        self.heads = layout.kv_heads
        self.head_dim = layout.head_dim(kind)
        self.values = [0] * (TOKENS * self.heads * self.head_dim)

    def index(self, token, head, channel):
        return (token * self.heads + head) * self.head_dim + channel

    def to_bytes(self):
        return struct.pack(f"<{len(self.values)}H", *self.values)


class Windows:
    """The window table of a layer (section 7): a base b4 for each channel, for V and each token parity."""

    def __init__(self, layout, table):
        self.layout = layout
        self.table = table
        if len(table) != layout.kv_heads * (layout.head_dim_k + 2 * layout.head_dim_v):
            raise FormatError(f"a window table of {len(table)} bytes")
        if any(base > LARGEST_BASE for base in table):
            raise FormatError("a base above 240")

    def base(self, kind, token, head, channel):
        layout = self.layout
        if kind == KEY:
            return self.table[head * layout.head_dim_k + channel]
        row = (token & 1) * layout.kv_heads + head
        return self.table[layout.kv_heads * layout.head_dim_k + row * layout.head_dim_v + channel]


# ---- Values that are kept as they are: the remainder, raw blocks -----------------------------------

def read_fragments(data, kind, unit, head, rows):
    """A part of 16-bit values in fragment order (section 4)."""
    fragments = unit.channels // 16
    for fragment in range(fragments):
        for lane in range(LANES):
            for s in (0, 1):
                for b in (0, 1):
                    at = fragment * FRAGMENT_BYTES + lane_position(lane) * 16 + register_number(kind, s, b) * 4
                    for hi, value in enumerate(struct.unpack_from("<HH", data, at)):
                        token, channel = element(kind, fragments, fragment, lane, s, b, hi)
                        rows.values[rows.index(token, head, unit.first_channel + channel)] = value


def decode_raw_block(layout, data):
    """K and V of a block that is kept raw (section 2)."""
    units = units_of_head(layout)
    if len(data) != 2 * TOKENS * layout.kv_heads * (layout.head_dim_k + layout.head_dim_v):
        raise FormatError(f"a raw block of {len(data)} bytes")
    rows = (Rows(layout, KEY), Rows(layout, VALUE))
    at = 0
    for head in range(layout.kv_heads):
        for unit in units:
            for kind in unit.kinds:
                part_bytes = 2 * TOKENS * unit.channels
                read_fragments(data[at:at + part_bytes], kind, unit, head, rows[kind])
                at += part_bytes
    return rows[KEY].to_bytes(), rows[VALUE].to_bytes()


# ---- Sections 2 and 8: the variable part -----------------------------------------------------------

def parse_entry(word, layout):
    """A table entry, checked against the pool."""
    entry = Entry((word & 0xFFF) * ENTRY_UNIT, ((word >> 12) & 0xFF) * ENTRY_UNIT, (word >> 20) & 0xF)
    if entry.offset + entry.length > layout.pool_bytes:
        raise FormatError("a variable part passes the end of the pool")
    return entry


def read_n_words(variable, unit):
    """Tags and stored N bytes (section 8, 1 and 2).

    Returns {(kind, half, lane): (N word, stored)}, where bit i of stored is the tag bit of byte i.
    """
    tag_bytes = LANES * unit.halves
    if tag_bytes > len(variable):
        raise FormatError("the tags pass the end of the variable part")
    tags = struct.unpack_from("<32H" if unit.halves == 2 else "<32B", variable)
    at = tag_bytes
    result = {}
    for lane in range(LANES):
        tag = tags[lane_position(lane)]
        for kind in (KEY, VALUE):
            for half in range(unit.halves):
                stored = (tag >> (4 * (unit.halves * kind + half))) & 0xF
                if stored and kind not in unit.kinds:
                    raise FormatError("a tag bit of a part that the unit lacks")
                n_word = 0
                for i in range(4):
                    byte = 0xFF                     # 3-bit group: all top bits are set, and not stored
                    if (stored >> i) & 1:
                        if at == len(variable):
                            raise FormatError("the N bytes pass the end of the variable part")
                        byte = variable[at]
                        at += 1
                    n_word |= byte << (8 * i)
                result[kind, half, lane] = n_word, stored
    return result


def apply_exceptions(variable, unit, head, rows):
    """Exponents that are outside both windows (section 8, 4): records from the end downwards."""
    lane_at = {lane_position(lane): lane for lane in range(LANES)}
    at = len(variable)
    more = True
    while more:
        at -= 4
        if at < 0:
            raise FormatError("the exceptions do not end inside the variable part")
        record, = struct.unpack_from("<I", variable, at)
        half, kind, j, r = (record >> 13) & 1, (record >> 14) & 1, (record >> 11) & 3, (record >> 9) & 3
        if half >= unit.halves:
            raise FormatError("an exception in a half that the unit lacks")
        if kind not in unit.kinds:
            raise FormatError("an exception in a part that the unit lacks")
        s, b = (r & 1, r >> 1) if kind == KEY else (r >> 1, r & 1)
        lane = lane_at[(record >> 15) & 0x1F]
        token, channel = element(kind, unit.channels // 16, 4 * half + j, lane, s, b, (record >> 8) & 1)
        index = rows[kind].index(token, head, unit.first_channel + channel)
        rows[kind].values[index] = (rows[kind].values[index] & 0x807F) | ((record & 0xFF) << 7)
        more = record >> 31


# ---- Sections 5 and 6: the fixed part --------------------------------------------------------------

def rotate_right(count, word):
    return ((word >> count) | (word << (32 - count))) & 0xFFFFFFFF


def word_offset(half, k, p):
    """Where word k of a lane lies in the part (section 5)."""
    return half * 1024 + (k >> 2) * 512 + p * 16 + (k & 3) * 4


def code_offsets(halves, half, p):
    """Where C0, C1 and C2 of a lane lie in the part (section 5)."""
    c = 1024 * halves
    if halves == 1:
        return c + 8 * p, c + 8 * p + 4, c + 256 + 4 * p
    if half == 0:
        return c + 16 * p, c + 16 * p + 4, c + 16 * p + 8
    return c + 16 * p + 12, c + 512 + 8 * p, c + 512 + 8 * p + 4


def nibble_words(c0, c1, c2, n_word):
    """T_0 to T_3 (section 6). The low bits of T_3 are in the bits of C0..C2 where the others have N's."""
    def with_tops(code, tops):
        return (code & ~NIBBLE_TOPS) | (tops & NIBBLE_TOPS)
    low_bits_3 = ((c0 << 1) & 0x88888888) | ((c1 >> 2) & 0x11111111) | ((c2 >> 1) & 0x22222222)
    return (with_tops(c0, n_word), with_tops(c1, n_word << 1), with_tops(c2, n_word << 2),
            with_tops(low_bits_3, n_word >> 1))


def base_word(a_lo, b_lo, a_hi, b_hi):
    """B of section 6, of the bases of the four values of a word."""
    if b_hi & 1:
        raise FormatError("an odd base in the field B.hi")
    return (a_lo << 7) + (b_lo << 15) + (a_hi << 23) + (b_hi >> 1)


def correction_word(stored):
    """I of section 8: a bit for each 3-bit group, that is for each N byte that is not stored."""
    bits = {"A.lo": 1 << 7, "B.lo": 1 << 15, "A.hi": 1 << 23, "B.hi": 1 << 0}
    return sum(bits[group] for i, group in enumerate(GROUPS) if not (stored >> i) & 1)


def join_word(w, e):
    """Registers A and B, of their signs and mantissas w and their exponents e (section 5)."""
    m = SIGN_AND_MANTISSA
    return (w & m) | (e & ~m), rotate_right(8, (e & m) | (w & ~m))


def decode_part(fixed, kind, unit, head, n_words, windows, rows):
    """One part of a coded unit, all but its exceptions."""
    fragments = unit.channels // 16
    for half in range(unit.halves):
        for lane in range(LANES):
            p = lane_position(lane)
            n_word, stored = n_words[kind, half, lane]
            codes = [struct.unpack_from("<I", fixed, at)[0] for at in code_offsets(unit.halves, half, p)]
            t_words = nibble_words(*codes, n_word)
            correction = correction_word(stored)
            for k in range(WORDS):
                j, s = k >> 1, k & 1
                # The four values of the word, in the order A.lo, B.lo, A.hi, B.hi.
                places = [element(kind, fragments, 4 * half + j, lane, s, b, hi) for hi in (0, 1) for b in (0, 1)]
                places = [(token, head, unit.first_channel + channel) for token, channel in places]
                bases = base_word(*(windows.base(kind, *place) for place in places))
                e = ((rotate_right(4 * s, t_words[j]) & 0x87878787) + bases - correction) & 0xFFFFFFFF
                w, = struct.unpack_from("<I", fixed, word_offset(half, k, p))
                a, b = join_word(w, e)
                for place, value in zip(places, (a & 0xFFFF, b & 0xFFFF, a >> 16, b >> 16)):
                    rows.values[rows.index(*place)] = value


# ---- The block -------------------------------------------------------------------------------------

def decode_block(layout, window_table, entry_words, slot):
    """K and V of a block that is not raw: BF16, little endian, [token][head][channel].

    entry_words are the table entries, [head][coded unit]; slot is the fixed areas and the pool (section 2).
    """
    if layout.kv_heads <= 0:
        raise FormatError("no heads")
    if layout.pool_bytes % 64 or not 0 <= layout.pool_bytes <= LARGEST_POOL:
        raise FormatError(f"a pool of {layout.pool_bytes} bytes")
    units = units_of_head(layout)
    windows = Windows(layout, window_table)
    pool_at = layout.kv_heads * sum(unit.part_bytes() * len(unit.kinds) for unit in units)
    if len(slot) != pool_at + layout.pool_bytes:
        raise FormatError(f"a slot of {len(slot)} bytes")
    if len(entry_words) != layout.kv_heads * sum(unit.halves > 0 for unit in units):
        raise FormatError(f"{len(entry_words)} table entries")

    rows = (Rows(layout, KEY), Rows(layout, VALUE))
    entries = iter(entry_words)
    at = 0
    for head in range(layout.kv_heads):
        for unit in units:
            if unit.halves:
                entry = parse_entry(next(entries), layout)
                variable = slot[pool_at + entry.offset:pool_at + entry.offset + entry.length]
                n_words = read_n_words(variable, unit)
            for kind in unit.kinds:
                fixed = slot[at:at + unit.part_bytes()]
                at += unit.part_bytes()
                if unit.halves:
                    decode_part(fixed, kind, unit, head, n_words, windows, rows[kind])
                else:
                    read_fragments(fixed, kind, unit, head, rows[kind])
            if unit.halves and entry.exceptions:
                apply_exceptions(variable, unit, head, rows)
    return rows[KEY].to_bytes(), rows[VALUE].to_bytes()
