#!/usr/bin/env python3
"""Tests of case_list.py and report.py. Needs neither a GPU nor torch."""
import contextlib
import io
import json
import pathlib
import tempfile
import unittest

import case_list
import report

K = case_list.K


class CaseListTest(unittest.TestCase):
    def test_names_are_unique(self):
        names = [case.name for case in case_list.CASES]
        self.assertEqual(sorted(names), sorted(set(names)))

    def test_names(self):
        self.assertEqual(case_list.Attention(8, 32 * K).name, "attention D128 GQA8 8x32K")
        self.assertEqual(case_list.Attention(8, 32 * K, order="in order").name, "attention D128 GQA8 8x32K in order")
        self.assertEqual(case_list.Attention(64, 8 * K, spread=True, query_tokens=4, raw=0.1, data="gemma").name,
                         "attention D128 GQA8 64x1K-8K 4 queries 10% raw gemma")

    def test_targets_come_first_and_in_both_orders(self):
        count = 2 * len(case_list.MAIN)
        first, rest = case_list.CASES[:count], case_list.CASES[count:]
        self.assertEqual({case.order for case in first[0::2]}, {"in order"})
        for ordered, random in zip(first[0::2], first[1::2]):
            self.assertEqual(ordered.name, random.name + " in order")
            self.assertEqual((ordered.target, ordered.quick), (random.target, random.quick))
            self.assertIsNotNone(random.target)
        self.assertFalse([case for case in rest if isinstance(case, case_list.Attention) and case.target])

    def test_synthetic_twins_are_measured_before(self):
        seen, twins = set(), 0
        for quick in (False, True):
            for case in case_list.CASES:
                if quick and not case.quick:
                    continue
                twin = case_list.synthetic_twin(case)
                if twin:
                    twins += 1
                    self.assertIn(twin, seen)
                seen.add(case.name)
            seen.clear()
        self.assertGreater(twins, 5)

    def test_synthetic_cases_have_no_twin(self):
        for case in (case_list.Attention(8, 32 * K), case_list.Completed(64), case_list.DecompressFirst(64 * K),
                     case_list.Compressors("gemma", 128)):
            self.assertIsNone(case_list.synthetic_twin(case))


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name, "result.json")
        self.report = report.Report(self.path, False)
        self.report.data["started"] = 0
        self.printed = io.StringIO()
        output = contextlib.redirect_stdout(self.printed)
        output.__enter__()
        self.addCleanup(output.__exit__, None, None, None)

    def test_row(self):
        self.report.row("a case", "a peer", 200.0, 250.0, mismatches=0, spread=0.0123456, setting=None)
        row = self.report.data["rows"][0]
        self.assertEqual(row, {"case": "a case", "baseline": "a peer", "us": 200.0, "baseline_us": 250.0,
                               "speedup": 1.25, "mismatches": 0, "spread": 0.0123})
        self.assertEqual(list(row)[:6], list(report.ALWAYS))
        self.assertIn("1.250", self.printed.getvalue())

    def test_row_without_a_baseline(self):
        self.report.row("a case", "plan", 7.0)
        self.assertEqual(self.report.data["rows"][0], {"case": "a case", "baseline": "plan", "us": 7.0,
                                                       "baseline_us": None, "speedup": None, "mismatches": None})

    def test_met(self):
        for field, target, met in (("speedup", 1.25, True), ("speedup", 1.26, False), ("us", 200, True),
                                   ("us", 199, False), ("gb_per_s", 3000, True), ("gb_per_s", 3001, False)):
            with self.subTest(field=field, target=target):
                self.report.row("a case", "a peer", 200.0, 250.0, gb_per_s=3000.0, target=target, target_field=field)
                self.assertIs(self.report.data["rows"][-1]["met"], met)

    def test_find(self):
        self.report.row("a case", "a peer", 200.0, 250.0)
        self.report.row("a case", "a peer", 201.0, 250.0)
        self.assertEqual(self.report.find("a case", "a peer")["us"], 201.0)
        self.assertIsNone(self.report.find("a case", "another"))

    def test_file(self):
        self.report.row("a case", "a peer", 200.0, 250.0, note='with "quotes"')
        self.report.fail("a case", "another", ValueError("first line\nsecond line"))
        self.report.data["done"].append("a case")
        self.report.save()
        self.assertEqual(json.loads(self.path.read_text(encoding="utf-8")), self.report.data)
        self.assertEqual(report.Report(self.path, True).data, self.report.data)
        self.assertEqual(self.report.data["failures"][0]["why"], "ValueError: first line")
        self.assertEqual(report.Report(self.path, False).data["rows"], [])

    def test_targets(self):
        goal = {"target": 1.3, "target_field": "speedup"}
        self.report.row("one", "a peer", 200.0, 250.0, mismatches=0)
        self.report.row("one", "best BF16", 200.0, 250.0, note="a peer", **goal)
        self.report.row("one", "best paged BF16", 200.0, 262.0, note="a paged peer")
        self.report.row("two", "best BF16", 100.0, 150.0, note="another", **goal)
        self.report.row("encode", "copy", 100.0, 80.0, gb_per_s=1234.5, target=1000, target_field="gb_per_s")
        self.report.row("append", "kept raw", 15.7, 8.0, target=10, target_field="us")
        self.report.row("first", "decompress first, best", 50.0, 150.0, note="expand, a peer", target=2.0,
                        target_field="speedup")
        lines = [line.split("  ") for line in report.targets(self.report.data["rows"])]
        cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
        self.assertEqual(cells[0], ["case", "GAAC", "against", "measured", "target", "against the best paged BF16"])
        self.assertEqual(cells[1], ["one", "200.0 us", "a peer, 250.0 us", "1.250", "1.300", "MISSED",
                                    "1.310 a paged peer"])
        self.assertEqual(cells[2], ["two", "100.0 us", "another, 150.0 us", "1.500", "1.300", "met"])
        self.assertEqual(cells[3], ["encode", "100.0 us", "copy, 80.0 us", "1234 GB/s", "1000 GB/s", "met"])
        self.assertEqual(cells[4], ["append", "15.7 us", "kept raw, 8.0 us", "15.7 us", "10.0 us", "MISSED"])
        self.assertEqual(cells[5], ["first", "50.0 us", "expand, a peer, 150.0 us", "3.000", "2.000", "met"])
        self.assertEqual(len(cells), 6)

    def test_targets_are_aligned(self):
        self.report.row("short", "best BF16", 9.0, 10.0, note="a peer", target=1.0, target_field="speedup")
        self.report.row("a longer name", "best BF16", 1234.5, 99.0, note="a longer peer", target=1.0,
                        target_field="speedup")
        first, *rest = report.targets(self.report.data["rows"])
        self.assertEqual({line.index(" us  ") for line in rest}, {first.index("GAAC") + 1})
        self.assertEqual({line.index("a ", 20) for line in rest}, {first.index("against")})


if __name__ == "__main__":
    unittest.main()
