"""Tests of the format: the decoder that was written from docs/format.md, against the golden files.

The golden files are written by the library. Fields: kv_heads, head_dim_k, head_dim_v, pool_bytes; hex:
windows (section 7), entries (section 2, 32 bits little endian, [head][coded unit]), slot, and the rows k and v.
"""

import json
import pathlib
import random
import struct
import unittest

import decoder
from decoder import KEY, VALUE, FormatError

GOLDEN = pathlib.Path(__file__).parent / "golden"
SEED = 20240607
DAMAGED_BLOCKS = 150    # for each golden file
ENTRY_EXCEPTIONS = 20   # section 2: first of the four exception bits of an entry
LENGTH_LIMIT = 4080     # section 2: longest variable part of a unit
EXCEPTIONS_A_HALF = 8   # section 2: for each half of K or V, on average over the block


class Golden:
    """A golden file."""

    def __init__(self, path):
        fields = json.loads(path.read_text(encoding="utf-8"))
        self.name = path.stem
        self.layout = decoder.Layout(*(fields[name] for name in decoder.Layout._fields))
        self.windows, self.slot, self.k, self.v = (bytes.fromhex(fields[name]) for name in
                                                   ("windows", "slot", "k", "v"))
        entries = bytes.fromhex(fields["entries"])
        self.entries = list(struct.unpack(f"<{len(entries) // 4}I", entries))
        self.units = decoder.units_of_head(self.layout)
        self.coded = [(head, unit) for head in range(self.layout.kv_heads) for unit in self.units if unit.halves]
        self.pool_at = len(self.slot) - self.layout.pool_bytes

    def decode(self, entries=None, slot=None):
        return decoder.decode_block(self.layout, self.windows, self.entries if entries is None else entries,
                                    self.slot if slot is None else bytes(slot))

    def parsed(self, number):
        return decoder.parse_entry(self.entries[number], self.layout)

    def value(self, kind, token, head, channel):
        """Expected 16 bits of an element."""
        heads, head_dim = self.layout.kv_heads, self.layout.head_dim(kind)
        rows = self.v if kind == VALUE else self.k
        return struct.unpack_from("<H", rows, 2 * ((token * heads + head) * head_dim + channel))[0]


def golden_blocks():
    return [Golden(path) for path in sorted(GOLDEN.glob("*.json"))]


def expected_code(golden, head, unit):
    """What the values and the windows say of a unit's variable part, with no look at the slot.

    Returns (tags by position, number of exceptions of each [K half 0, K half 1, V half 0, V half 1]).
    """
    windows = decoder.Windows(golden.layout, golden.windows)
    tags = [0] * decoder.LANES
    exceptions = [0] * 4
    for kind in unit.kinds:
        for half in range(unit.halves):
            for lane in range(decoder.LANES):
                for j, s, b, hi in ((j, s, b, hi) for j in range(4) for s in (0, 1) for b in (0, 1) for hi in (0, 1)):
                    token, channel = decoder.element(kind, unit.channels // 16, 4 * half + j, lane, s, b, hi)
                    place = (token, head, unit.first_channel + channel)
                    above = ((golden.value(kind, *place) >> 7) & 0xFF) - windows.base(kind, *place)
                    group = decoder.GROUPS.index("AB"[b] + (".lo", ".hi")[hi])
                    k = 6 if group == 0 else 7
                    if not 0 <= above <= 15:
                        exceptions[2 * kind + half] += 1
                    elif not k <= above <= k + 7:
                        bit = 4 * (unit.halves * kind + half) + group
                        tags[decoder.lane_position(lane)] |= 1 << bit
    return tags, exceptions


class GoldenFiles(unittest.TestCase):
    def test_there_are_golden_files(self):
        self.assertGreater(len(golden_blocks()), 0, "no golden files")

    def test_keys_and_values_decode_exactly(self):
        for golden in golden_blocks():
            with self.subTest(golden.name):
                keys, values = golden.decode()
                self.assertTrue(keys == golden.k, "K differs")
                self.assertTrue(values == golden.v, "V differs")


class Text(unittest.TestCase):
    """Statements of the specification that golden files can confirm or refute."""

    def test_every_element_has_one_place(self):
        """Section 4's order is a permutation, with and without a remainder, one and two halves."""
        for kv_heads, head_dim_k, head_dim_v in ((1, 64, 64), (2, 128, 128), (1, 256, 48), (1, 112, 112), (1, 160, 64)):
            with self.subTest(k=head_dim_k, v=head_dim_v):
                count = decoder.TOKENS * kv_heads * (head_dim_k + head_dim_v)
                layout = decoder.Layout(kv_heads, head_dim_k, head_dim_v, 64)
                keys, values = decoder.decode_raw_block(layout, struct.pack(f"<{count}H", *range(count)))
                self.assertEqual(sorted(struct.unpack(f"<{count}H", keys + values)), list(range(count)))

    def test_exceptional_fields_of_the_windows(self):
        """Section 7: B.hi is the K channels 3 modulo 4, and the odd tokens of the odd channels of V."""
        for fragments in (4, 8):
            for kind in (KEY, VALUE):
                elements = {decoder.element(kind, fragments, fragment, lane, s, b=1, hi=1)
                            for fragment in range(fragments) for lane in range(decoder.LANES) for s in (0, 1)}
                inside = (lambda token, channel: channel % 4 == 3) if kind == KEY else \
                         (lambda token, channel: token % 2 == 1 and channel % 2 == 1)
                every = {(token, channel) for token in range(16) for channel in range(16 * fragments)}
                self.assertEqual(elements, {place for place in every if inside(*place)})

    def test_tags_are_the_smallest(self):
        """Section 8: a group is 4-bit exactly if one of its values needs it, and an exception never does."""
        for golden in golden_blocks():
            for number, (head, unit) in enumerate(golden.coded):
                with self.subTest(golden.name, unit=number):
                    tags, _ = expected_code(golden, head, unit)
                    stored = struct.unpack_from("<32H" if unit.halves == 2 else "<32B", golden.slot,
                                                golden.pool_at + golden.parsed(number).offset)
                    self.assertEqual(list(stored), tags)

    def test_entries(self):
        """Sections 2 and 10: length, exception bits, reserved bits."""
        for golden in golden_blocks():
            for number, (head, unit) in enumerate(golden.coded):
                with self.subTest(golden.name, unit=number):
                    tags, exceptions = expected_code(golden, head, unit)
                    size = 32 * unit.halves + sum(tag.bit_count() for tag in tags) + 4 * sum(exceptions)
                    entry = golden.parsed(number)
                    self.assertEqual(entry.length, (size + 15) // 16 * 16)
                    self.assertEqual(entry.exceptions, sum((count > 0) << i for i, count in enumerate(exceptions)))
                    self.assertEqual(golden.entries[number] >> 24, 0)

    def test_golden_blocks_are_rightly_coded(self):
        """Section 2: none of the three reasons to keep a block raw holds for a block that is coded."""
        for golden in golden_blocks():
            with self.subTest(golden.name):
                self.assertEqual(golden.layout.pool_bytes % 64, 0)
                lengths = [golden.parsed(number).length for number in range(len(golden.coded))]
                self.assertLessEqual(sum(lengths), golden.layout.pool_bytes)
                self.assertLessEqual(max(lengths, default=0), LENGTH_LIMIT)
                exceptions = sum(sum(expected_code(golden, head, unit)[1]) for head, unit in golden.coded)
                halves = sum(unit.halves * len(unit.kinds) for _, unit in golden.coded)
                self.assertLessEqual(exceptions, EXCEPTIONS_A_HALF * halves)

    def test_longest_length_is_what_an_entry_can_say(self):
        layout = decoder.Layout(1, 64, 64, decoder.LARGEST_POOL)
        self.assertEqual(decoder.parse_entry(0x000FF000, layout).length, LENGTH_LIMIT)
        self.assertEqual(decoder.parse_entry(0x00000FFF, layout).offset, decoder.LARGEST_POOL - 16)


class Damage(unittest.TestCase):
    """Section 8: bytes from elsewhere give values or FormatError, and nothing else."""

    def check(self, golden, entries, slot):
        try:
            keys, values = golden.decode(entries, slot)
        except FormatError:
            return False
        self.assertEqual((len(keys), len(values)), (len(golden.k), len(golden.v)))
        return True

    def test_random_damage(self):
        source = random.Random(SEED)
        outcomes = set()
        for golden in golden_blocks():
            for attempt in range(DAMAGED_BLOCKS):
                entries, slot = list(golden.entries), bytearray(golden.slot)
                number = source.randrange(len(entries)) if entries else 0
                what = source.choice(("slot", "pool", "tags", "entry bit", "entry", "cut"))
                if what == "slot":
                    for _ in range(source.randint(1, 64)):
                        slot[source.randrange(len(slot))] = source.randrange(256)
                elif what == "pool":
                    slot[golden.pool_at:] = source.randbytes(golden.layout.pool_bytes)
                elif what == "tags" and entries:
                    entry = golden.parsed(number)
                    at = golden.pool_at + entry.offset
                    tag_bytes = 32 * golden.coded[number][1].halves
                    for _ in range(source.randint(1, 4)):
                        slot[at + source.randrange(tag_bytes)] ^= 1 << source.randrange(8)
                elif what == "entry bit" and entries:
                    entries[number] ^= 1 << source.randrange(32)
                elif what == "entry" and entries:
                    entries[number] = source.getrandbits(32)
                elif what == "cut":
                    del slot[source.randrange(len(slot)):]
                with self.subTest(golden.name, attempt=attempt, what=what):
                    outcomes.add((what, self.check(golden, entries, slot)))
        self.assertIn(("slot", True), outcomes)
        self.assertIn(("cut", False), outcomes)

    def test_any_fixed_bytes_decode(self):
        source = random.Random(SEED + 1)
        for golden in golden_blocks():
            with self.subTest(golden.name):
                slot = source.randbytes(golden.pool_at) + golden.slot[golden.pool_at:]
                self.assertTrue(self.check(golden, golden.entries, slot))

    def refuse(self, golden, message, entries=None, slot=None):
        with self.subTest(golden.name), self.assertRaisesRegex(FormatError, message):
            golden.decode(entries, slot)

    def with_entry(self, golden, number, word):
        return golden.entries[:number] + [word] + golden.entries[number + 1:]

    def test_entry_past_the_pool(self):
        for golden in golden_blocks():
            for number, word in enumerate(golden.entries):
                offset = golden.layout.pool_bytes // 16 - golden.parsed(number).length // 16 + 1
                damaged = self.with_entry(golden, number, (word & ~0xFFF) | offset)
                self.refuse(golden, "end of the pool", entries=damaged)

    def test_variable_part_too_short_for_its_tags(self):
        for golden in golden_blocks():
            for number, (_, unit) in enumerate(golden.coded):
                length = 2 * unit.halves - 1
                damaged = self.with_entry(golden, number, length << 12)
                self.refuse(golden, "tags pass", entries=damaged)

    def test_tags_promise_too_much(self):
        for golden in golden_blocks():
            for number, (_, unit) in enumerate(golden.coded):
                if len(unit.kinds) == 2:
                    slot = bytearray(golden.slot)
                    at = golden.pool_at + golden.parsed(number).offset
                    slot[at:at + 32 * unit.halves] = b"\xff" * (32 * unit.halves)
                    self.refuse(golden, "N bytes pass", slot=slot)

    def test_tag_of_a_missing_part(self):
        for golden in golden_blocks():
            for number, (_, unit) in enumerate(golden.coded):
                if len(unit.kinds) == 1:
                    slot = bytearray(golden.slot)
                    missing = 1 - unit.kinds[0]
                    tag = 1 << (4 * unit.halves * missing)
                    at = golden.pool_at + golden.parsed(number).offset
                    slot[at + tag // 256] |= tag % 256 or 1
                    self.refuse(golden, "tag bit of a part", slot=slot)

    def with_records(self, golden, number, record):
        """The variable part of a unit after its tags, which are made zero, is filled with one record."""
        slot = bytearray(golden.slot)
        entry = golden.parsed(number)
        tag_bytes = 32 * golden.coded[number][1].halves
        at = golden.pool_at + entry.offset
        records = struct.pack("<I", record) * ((entry.length - tag_bytes) // 4)
        slot[at:at + entry.length] = bytes(tag_bytes) + records
        return self.with_entry(golden, number, golden.entries[number] | 1 << ENTRY_EXCEPTIONS), slot

    def test_exceptions_without_an_end(self):
        """All of a variable part says "another record": so can tags, where bit 31 is a tag bit of V."""
        tried = 0
        for golden in golden_blocks():
            for number, (_, unit) in enumerate(golden.coded):
                entry = golden.parsed(number)
                record = 1 << 31 | unit.kinds[0] << 14
                promised = record.bit_count() * 8 * unit.halves
                if VALUE in unit.kinds and 32 * unit.halves + promised <= entry.length:
                    tried += 1
                    entries, slot = self.with_records(golden, number, record)
                    at = golden.pool_at + entry.offset
                    slot[at:at + entry.length] = struct.pack("<I", record) * (entry.length // 4)
                    self.refuse(golden, "do not end", entries, slot)
        self.assertGreater(tried, 0)

    def test_exception_outside_the_unit(self):
        for golden in golden_blocks():
            for number, (_, unit) in enumerate(golden.coded):
                if unit.halves == 1:
                    entries, slot = self.with_records(golden, number, 1 << 13 | unit.kinds[0] << 14)
                    self.refuse(golden, "in a half", entries, slot)
                if len(unit.kinds) == 1:
                    entries, slot = self.with_records(golden, number, (1 - unit.kinds[0]) << 14)
                    self.refuse(golden, "exception in a part", entries, slot)

    def test_exception_record(self):
        """Section 8: a record replaces the exponent of the element that it names, and nothing else."""
        for golden in golden_blocks():
            for number, (head, unit) in enumerate(golden.coded):
                kind, half, j, r, hi, p = unit.kinds[-1], unit.halves - 1, 2, 1, 1, 13
                record = 0x5A | hi << 8 | (4 * j + r) << 9 | half << 13 | kind << 14 | p << 15
                entries, slot = self.with_records(golden, number, record)
                without = self.with_entry(golden, number, golden.entries[number] & ~(0xF << ENTRY_EXCEPTIONS))
                with self.subTest(golden.name):
                    before, after = (golden.decode(words, slot)[kind] for words in (without, entries))
                    changed = [i for i in range(0, len(after), 2) if before[i:i + 2] != after[i:i + 2]]
                    lane = [decoder.lane_position(lane) for lane in range(32)].index(p)
                    s, b = (1, 0) if kind == KEY else (0, 1)
                    token, channel = decoder.element(kind, unit.channels // 16, 4 * half + j, lane, s, b, hi)
                    index = (token * golden.layout.kv_heads + head) * golden.layout.head_dim(kind)
                    self.assertEqual(changed, [2 * (index + unit.first_channel + channel)])
                    value, = struct.unpack_from("<H", after, changed[0])
                    self.assertEqual((value >> 7) & 0xFF, 0x5A)


if __name__ == "__main__":
    unittest.main()
