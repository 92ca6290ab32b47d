"""The rows of a run: printed as they come, kept in the result file, and what became of the targets at the end."""
import json
import threading
import time

ALWAYS = ("case", "baseline", "us", "baseline_us", "speedup", "mismatches")
FORMS = {"speedup": "{:.3f}", "us": "{:.1f} us", "gb_per_s": "{:.0f} GB/s"}


class Report:
    """The result file, written after each case, so that nothing is lost when a later one fails."""

    def __init__(self, path, resumed):
        self.path = path
        self.data = {"rows": [], "failures": [], "done": []}
        if resumed and path.exists():
            self.data = json.loads(path.read_text(encoding="utf-8"))
        self.lock = threading.Lock()

    def row(self, case, baseline, us, baseline_us=None, **fields):
        """us: ours. Fields that are None are left out."""
        row = {"case": case, "baseline": baseline, "us": round(us, 2),
               "baseline_us": None if baseline_us is None else round(baseline_us, 2),
               "speedup": None if baseline_us is None else round(baseline_us / us, 4),
               "mismatches": fields.pop("mismatches", None)}
        row.update({name: round(value, 4) if isinstance(value, float) else value for name, value in fields.items()
                    if value is not None})
        if "target" in row:
            measured = row[row["target_field"]]
            row["met"] = measured <= row["target"] if row["target_field"] == "us" else measured >= row["target"]
        with self.lock:
            self.data["rows"].append(row)
        self.show(row)

    @staticmethod
    def show(row):
        def number(value, form):
            return "-" if value is None else format(value, form)
        more = [f"{name} {row[name]}" for name in ("setting", "ratio", "baseline_ratio", "note") if row.get(name)]
        if "target" in row:
            more.insert(0, f"target {row['target']} {'met' if row['met'] else 'MISSED'}")
        print(f"{row['case']:<36} {row['baseline']:<34} {number(row['us'], '10.1f')} us"
              f"{number(row['baseline_us'], '10.1f'):>11}{number(row['speedup'], '.3f'):>8}"
              f"{number(row.get('gb_per_s'), '.0f'):>6} GB/s  mism. {number(row['mismatches'], 'd'):<4}"
              f"spread {100 * row.get('spread', 0):.1f}%  {', '.join(more)}", flush=True)

    def fail(self, case, who, error):
        text = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__
        with self.lock:
            self.data["failures"].append({"case": case, "who": who, "why": reason})
        print(f"{case:<36} {who:<34} not measured: {reason}", flush=True)

    def find(self, case, baseline):
        """The row, or None."""
        found = [row for row in self.data["rows"] if row["case"] == case and row["baseline"] == baseline]
        return found[-1] if found else None

    def save(self):
        with self.lock:
            self.data["seconds"] = round(time.time() - self.data["started"], 1)
            unfinished = self.path.with_name(self.path.name + ".part")
            unfinished.write_text(file_text(self.data), encoding="utf-8")
            unfinished.replace(self.path)


def file_text(data):
    """JSON with a line for each field of data, and for each element of a list."""
    fields = []
    for name, value in data.items():
        if isinstance(value, list):
            text = "[\n" + ",\n".join(json.dumps(element) for element in value) + "\n]"
        else:
            text = json.dumps(value)
        fields.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def targets(rows):
    """Lines of a table: each row with a target. Attention's rows end with what the best paged attention says."""
    paged = {row["case"]: row for row in rows if row["baseline"] == "best paged BF16"}
    table = [("case", "GAAC", "against", "measured", "target", "", "against the best paged BF16")]
    for row in rows:
        if "target" not in row:
            continue
        form = FORMS[row["target_field"]].format
        who = row["baseline"]
        if row["baseline_us"] is not None:
            who = f"{row.get('note', who) if 'best' in who else who}, {row['baseline_us']:.1f} us"
        other = paged.get(row["case"]) if row["baseline"] == "best BF16" else None
        table.append((row["case"], f"{row['us']:.1f} us", who, form(row[row["target_field"]]), form(row["target"]),
                      "met" if row["met"] else "MISSED",
                      f"{other['speedup']:.3f} {other['note']}" if other else ""))
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    return ["  ".join(cell.rjust(width) if i in (1, 3, 4) else cell.ljust(width)
                      for i, (cell, width) in enumerate(zip(line, widths))).rstrip() for line in table]
