"""How each kind of case of case_list.py is measured: made, checked, then timed in turns with what it is compared to."""
import math

import binding
import case_list
import kv_data
import nvcomp
import peers
import torch
from binding import BLOCK_TOKENS
from device_cache import Attention, DeviceCache, Windows, choose_pool
from timing import Contender, Timer

WRONG = 0.02  # relative error from which a BF16 attention counts as wrong; sound ones have 0.002 to 0.005
OURS_RAW = "GAAC's kernel, raw blocks"
COPY = "copy of K and V (torch)"
CHUNK = 65536


def differing(a, b):
    """Elements whose bits differ."""
    whole = {2: torch.int16, 4: torch.int32}[a.element_size()]
    return int((a.contiguous().view(whole) != b.contiguous().view(whole)).sum())


class Layer:
    """Keys and values of one case, their windows, and caches of them."""

    def __init__(self, library, kv, lengths, generator, in_order=False):
        self.library, self.kv, self.lengths = library, kv, lengths
        batch, tokens, heads, head_dim = kv.k.shape
        self.blocks = batch * (tokens // BLOCK_TOKENS)
        self.shape = binding.Shape(heads, head_dim, head_dim)
        self.in_order = in_order
        order = (torch.arange(self.blocks, device="cuda") if in_order else
                 torch.randperm(self.blocks, device="cuda", generator=generator))
        self.block_table = order.view(batch, -1).int()
        self.k_rows, self.v_rows = (part.view(-1, heads, head_dim) for part in (kv.k, kv.v))
        self.windows = Windows(library, self.shape, *kv.calibration)
        self.pool_bytes = choose_pool(library, self.shape, self.windows, self.k_rows, self.v_rows)
        self.lengths_device = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        self.whole = min(lengths) == tokens
        self.offsets = torch.arange(self.blocks, device="cuda") * BLOCK_TOKENS

    def empty(self, raw_blocks, slots=None):
        return DeviceCache(self.library, self.shape, self.windows, self.pool_bytes, self.blocks, raw_blocks, slots)

    def filled(self, keep_raw=False, raw_share=0.0, generator=None, slots=None):
        """A cache of everything, all blocks coded where they can be, or raw, or a share of them chosen at random."""
        extra = self.blocks // 20 + 2 * len(self.lengths) + 64
        cache = self.empty(self.blocks + 64 if keep_raw else int(raw_share * self.blocks) + extra, slots)
        if self.whole:
            order = self.block_table.flatten()
            raw = torch.rand(self.blocks, device="cuda", generator=generator) < raw_share
            if keep_raw or not raw_share:
                cache.encode_call(self.k_rows, self.v_rows, self.offsets, order, keep_raw)()
            else:
                for part, kept in ((raw, True), (~raw, False)):
                    cache.encode_call(self.k_rows, self.v_rows, self.offsets[part], order[part], kept)()
        else:
            rows = [torch.cat([part[i, :length] for i, length in enumerate(self.lengths)])
                    for part in (self.kv.k, self.kv.v)]
            starts = torch.tensor([0, *self.lengths], device="cuda").cumsum(0).int()
            cache.append_call(*rows, self.lengths_device, self.block_table, starts, keep_raw)()
        torch.cuda.synchronize()
        counters = cache.counters()
        if counters["lost"]:
            raise RuntimeError(f"{counters['lost']} blocks found no raw block")
        if not keep_raw and not counters["encoded"]:
            raise RuntimeError("no block was encoded")
        if keep_raw and self.in_order and self.whole:
            cache.sort_raw_blocks()
        return cache

    def used_blocks(self):
        return torch.cat([self.block_table[i, :(length + BLOCK_TOKENS - 1) // BLOCK_TOKENS]
                          for i, length in enumerate(self.lengths)])

    def bf16_bytes(self):
        _, _, heads, head_dim = self.kv.k.shape
        return sum(self.lengths) * heads * head_dim * 2 * 2

    def statistics(self, cache):
        """Exceptions of 16 tokens x 128 channels and the share of groups with 4 bits, of what was encoded so far."""
        counters = cache.counters()
        channels = self.shape.kv_heads * 2 * (self.shape.head_dim_k // 64 * 64)  # of K and V that are coded
        coded = max(counters["encoded"], 1) * channels * BLOCK_TOKENS
        return {"pool_bytes": self.pool_bytes, "fallbacks": counters["fallbacks"],
                "exceptions_a_tile": counters["exceptions"] / (coded / 2048),
                "four_bit_groups": counters["stored_n"] / (coded / 8)}


class Bench:
    def __init__(self, arguments, report):
        self.arguments, self.report = arguments, report
        self.library = binding.Library(arguments.library.resolve())
        self.timer = Timer()

    def run(self, case):
        generator = torch.Generator(device="cuda")
        generator.manual_seed(20261130)
        torch.manual_seed(20261130)
        {case_list.Attention: self.attention, case_list.DecompressFirst: self.decompress_first,
         case_list.Prefill: self.prefill, case_list.Completed: self.completed, case_list.Decode: self.decode,
         case_list.Compressors: self.compressors}[type(case)](case, generator)
        self.against_synthetic(case)
        torch.cuda.empty_cache()

    def against_synthetic(self, case):
        """Real keys and values beside synthetic ones, if both were measured: the speed-ups' ratio. As a baseline, the
        time that real ones would take with the synthetic ones' speed-up."""
        twin = case_list.synthetic_twin(case)
        baseline = "best BF16" if isinstance(case, case_list.Attention) else COPY
        rows = [self.report.find(name, baseline) for name in (case.name, twin)] if twin else [None]
        if None in rows:
            return
        real, synthetic = rows
        target = {"target": 0.97, "target_field": "speedup"} if isinstance(case, case_list.Attention) else {}
        self.report.row(case.name, "against synthetic", real["us"], real["baseline_us"] / synthetic["speedup"],
                        mismatches=real["mismatches"], exceptions_a_tile=real.get("exceptions_a_tile"),
                        note=f"{real['speedup']:.3f} beside {synthetic['speedup']:.3f}", **target)

    def measure(self, contenders, fewest=11):
        return self.timer.measure(contenders, self.arguments.seconds, fewest, 31 if self.arguments.quick else 101)

    def make(self, case, batch, tokens, head_dim, generator, lengths=None, kv_heads=8,
             in_order=False):
        kv = kv_data.make(getattr(case, "data", "synthetic"), self.arguments.kv, batch, tokens, kv_heads, head_dim,
                          generator)
        return Layer(self.library, kv, lengths or [tokens] * batch, generator, in_order)

    # ---- attention

    def attention(self, case, generator):
        lengths = [case.tokens] * case.batch
        if case.spread:  # from an eighth of the longest to all of it, and no multiples of 16
            lengths = [case.tokens // 8 + (case.tokens * 7 // 8) * i // max(case.batch - 1, 1) - i % 16
                       for i in range(case.batch)]
        in_order = case.order == "in order"
        layer = self.make(case, case.batch, case.tokens, case.head_dim, generator, lengths, case.kv_heads, in_order)
        heads = case.kv_heads * case.group
        q = (torch.rand(case.batch * case.query_tokens, heads, case.head_dim, device="cuda", generator=generator) * 2
             - 1).mul_(layer.kv.query_scale).to(torch.bfloat16)
        problem = peers.Problem(layer.kv, q, case.query_tokens, lengths, layer.block_table, in_order)
        coded = layer.filled(raw_share=case.raw, generator=generator)
        raw = layer.filled(keep_raw=True, slots=coded.slots)
        calls = {name: Attention(cache, q, torch.empty_like(q), layer.lengths_device, layer.block_table,
                                 case.query_tokens) for name, cache in (("GAAC", coded), (OURS_RAW, raw))}
        mismatches, error = self.check_own(case, layer, problem, coded, raw, calls)

        contenders = [Contender(name, call) for name, call in calls.items()]
        for contender in contenders:
            self.timer.warm_up(contender)
        errors, settings = {OURS_RAW: error}, {}
        unmixed = None
        if case.raw:
            unmixed = layer.filled()
            calls["no raw"] = Attention(unmixed, q, torch.empty_like(q), layer.lengths_device, layer.block_table,
                                        case.query_tokens)
            contenders.append(Contender("no raw", calls["no raw"]))
            self.timer.warm_up(contenders[-1])
        plan = Contender("plan", calls["GAAC"].plan)
        self.timer.warm_up(plan)
        contenders.append(plan)
        contenders += self.attention_peers(case, problem, errors, settings)
        samples = self.measure(contenders)

        ours, (read, raw_blocks) = samples["GAAC"], coded.bytes_to_read(layer.used_blocks())
        of_case = {"relative_error": error, "runs": ours.runs, "gb_per_s": read / ours.us / 1e3,
                   "ratio": layer.bf16_bytes() / read,
                   "resident_ratio": raw.blocks * raw.sizes.raw_bytes / coded.resident_bytes(),
                   "raw_blocks": raw_blocks, "kernel": self.library.attention_kernel(layer.shape),
                   **layer.statistics(coded)}
        common = {"mismatches": mismatches, "spread": ours.spread}
        rivals = [name for name in samples if name not in ("GAAC", "no raw", "plan")]
        for name in rivals:
            sample = samples[name]
            self.report.row(case.name, name, ours.us, sample.us, **common, baseline_spread=sample.spread,
                            baseline_gb_per_s=layer.bf16_bytes() / sample.us / 1e3,
                            baseline_relative_error=errors[name], setting=settings.get(name))
        target = {"target": case.target, "target_field": "speedup"} if case.target else {}
        paged = [name for name in rivals if name == OURS_RAW or name in peers.PAGED]
        for title, names, more in (("best BF16", rivals, {**of_case, **target}), ("best paged BF16", paged, {})):
            best = min(names, key=lambda name: samples[name].us)
            self.report.row(case.name, title, ours.us, samples[best].us, **common,
                            baseline_spread=samples[best].spread, note=best, **more)
        self.report.row(case.name, "plan, once a step", samples["plan"].us, spread=samples["plan"].spread)
        if case.raw:
            # A step with as many bytes, at the speed of the cache that has no raw blocks.
            says = samples["no raw"].us * read / unmixed.bytes_to_read(layer.used_blocks())[0]
            self.report.row(case.name, "what its bytes say", ours.us, says, **common, target=0.97,
                            target_field="speedup")

    def check_own(self, case, layer, problem, coded, raw, calls):
        """Elements in which coded blocks give other bits than raw ones, and the error against double precision."""
        results = []
        for name, cache in (("GAAC", coded), (OURS_RAW, raw)):
            out = torch.full(problem.q.shape, float("nan"), dtype=torch.float32, device="cuda")
            lse = torch.full(problem.q.shape[:2], float("nan"), dtype=torch.float32, device="cuda")
            calls[name].out.fill_(float("nan"))
            Attention(cache, problem.q, out, layer.lengths_device, layer.block_table, case.query_tokens, lse)()
            calls[name]()
            torch.cuda.synchronize()
            if not (torch.isfinite(out).all() and torch.isfinite(lse).all() and
                    torch.isfinite(calls[name].out).all()):
                raise RuntimeError(f"{name}: outputs that are missing or not finite")
            results.append((out, lse, calls[name].out))
        mismatches = sum(differing(a, b) for a, b in zip(*results))
        error = self.relative_error(problem, results[0][0])
        if error > WRONG:
            raise RuntimeError(f"relative error {error:.2g} against double precision")
        return mismatches, error

    @staticmethod
    def relative_error(problem, out):
        """Of the first and the last sequence, the worse."""
        worst = 0.0
        for sequence in {0, problem.sequences - 1}:
            expected = problem.expected(sequence)
            rows = slice(sequence * problem.query_tokens, (sequence + 1) * problem.query_tokens)
            off = out[rows].double() - expected
            error = float(off.norm() / expected.norm())
            worst = float("inf") if math.isnan(error) else max(worst, error)
        return worst

    def attention_peers(self, case, problem, errors, settings, title="{}"):
        """Contenders that run and are right; the rest is reported. title: what a contender is called."""
        contenders = []
        for peer_name, make in peers.ATTENTION.items():
            name = title.format(peer_name)
            try:
                peer = make(problem, self.arguments.peers)
                contender = Contender(name, peer.run)
                self.timer.fastest_setting(peer, contender)
                peer.run()
                torch.cuda.synchronize()
                errors[name] = self.relative_error(problem, peer.output())
                if errors[name] > WRONG:
                    raise RuntimeError(f"relative error {errors[name]:.2g} against double precision")
            except Exception as error:
                self.report.fail(case.name, name, error)
                torch.cuda.synchronize()  # raises again what cannot be survived
                continue
            settings[name] = str(peer.setting)
            contenders.append(contender)
        return contenders

    def decompress_first(self, case, generator):
        layer = self.make(case, 1, case.tokens, 128, generator)
        q = (torch.rand(1, 64, 128, device="cuda", generator=generator) - 0.5).to(torch.bfloat16)
        problem = peers.Problem(layer.kv, q, 1, layer.lengths, layer.block_table)
        coded = layer.filled()
        raw = layer.filled(keep_raw=True, slots=coded.slots)
        fused = Attention(coded, q, torch.empty_like(q), layer.lengths_device, layer.block_table, 1)
        on_raw = Attention(raw, q, torch.empty_like(q), layer.lengths_device, layer.block_table, 1)
        mismatches, error = self.check_own(case_list.Attention(1, case.tokens), layer, problem, coded, raw,
                                           {"GAAC": fused, OURS_RAW: on_raw})
        contenders = [Contender("GAAC", fused)]
        errors, settings = {}, {}
        for layout in ("head by head", "token by token"):
            expanded = peers.Expanded(layer.kv, q, layer.lengths, layer.block_table, layout)
            expand = coded.expand_call(*expanded.parts, layer.lengths_device,
                                       torch.zeros(1, dtype=torch.int64, device="cuda"), layer.block_table,
                                       case.tokens)
            for part in expanded.parts:
                part.fill_(float("nan"))
            expand()
            mismatches += sum(differing(part, whole[0]) for part, whole in zip(expanded.parts,
                                                                               (layer.kv.k, layer.kv.v)))
            title = "expand" if layout == "head by head" else "expand by token"
            contenders.append(Contender(f"{title} alone", expand))
            for peer in self.attention_peers(case, expanded, errors, settings, title + ", {}"):
                def both(expand=expand, attend=peer.run):
                    expand()
                    attend()
                contenders.append(Contender(peer.name, both))
        for contender in contenders:
            self.timer.warm_up(contender)
        samples = self.measure(contenders)
        ours = samples["GAAC"]
        common = {"mismatches": mismatches, "spread": ours.spread}
        for name in list(samples)[1:]:
            self.report.row(case.name, name, ours.us, samples[name].us, **common, baseline_spread=samples[name].spread,
                            baseline_relative_error=errors.get(name), setting=settings.get(name))
        rivals = [name for name in samples if name in errors]
        if rivals:
            best = min(rivals, key=lambda name: samples[name].us)
            target = {"target": case.target, "target_field": "speedup"} if case.target else {}
            self.report.row(case.name, "decompress first, best", ours.us, samples[best].us, **common,
                            relative_error=error, note=best, **target)

    # ---- encode and decode

    def check_decoded(self, layer, cache):
        """Elements of all blocks that decode to other bits than the source's."""
        out = [torch.full_like(rows, float("nan")) for rows in (layer.k_rows, layer.v_rows)]
        cache.decode_call(*out, layer.offsets, layer.block_table.flatten())()
        return sum(differing(a, b) for a, b in zip(out, (layer.k_rows, layer.v_rows)))

    def prefill(self, case, generator):
        layer = self.make(case, case.batch, case.tokens, 128, generator)
        starts = (torch.arange(case.batch + 1, device="cuda") * case.tokens).int()
        coded, raw = layer.empty(layer.blocks // 20 + 64), layer.empty(layer.blocks + 64)
        append, keep = (cache.append_call(layer.k_rows, layer.v_rows, layer.lengths_device, layer.block_table, starts,
                                          keep_raw) for cache, keep_raw in ((coded, False), (raw, True)))
        append()
        keep()
        mismatches = self.check_decoded(layer, coded) + self.check_decoded(layer, raw)
        counters = coded.counters()
        if counters["lost"] or not counters["encoded"]:
            raise RuntimeError(f"nothing encoded, or blocks lost: {counters}")
        statistics = layer.statistics(coded)
        listed = coded.encode_call(layer.k_rows, layer.v_rows, layer.offsets, layer.block_table.flatten())
        target = [torch.empty_like(rows) for rows in (layer.k_rows, layer.v_rows)]

        def copy():
            target[0].copy_(layer.k_rows)
            target[1].copy_(layer.v_rows)
        contenders = [Contender("GAAC", append), Contender("listed blocks", listed), Contender("kept raw", keep),
                      Contender("copy", copy)]
        for contender in contenders:
            self.timer.warm_up(contender)
        samples = self.measure(contenders)
        mismatches += self.check_decoded(layer, coded)
        ours, size = samples["GAAC"], layer.bf16_bytes()
        common = {"mismatches": mismatches, "spread": ours.spread, "gb_per_s": size / ours.us / 1e3,
                  "ratio": size / coded.resident_bytes(), **statistics}
        names = {"listed blocks": "gaac_cuda_encode of the same", "kept raw": "the same, blocks kept raw",
                 "copy": COPY}
        for name, title in names.items():
            goal = {"target": case.target, "target_field": "gb_per_s"} if case.target and name == "copy" else {}
            self.report.row(case.name, title, ours.us, samples[name].us, **common,
                            baseline_gb_per_s=size / samples[name].us / 1e3, baseline_spread=samples[name].spread,
                            **goal)

    def completed(self, case, generator):
        """One token each of many sequences that completes a block: 15 tokens of it are there."""
        tokens = 1024
        layer = self.make(case, case.batch, tokens, 128, generator)
        caches = {"GAAC": layer.empty(layer.blocks // 20 + 2 * case.batch + 64),
                  "kept raw": layer.empty(layer.blocks + 64), "stays open": layer.empty(layer.blocks + 64)}
        everything = (torch.arange(case.batch + 1, device="cuda") * tokens).int()
        rows = {count: [part[:, count - 1].contiguous() for part in (layer.kv.k, layer.kv.v)]
                for count in (tokens - 1, tokens)}
        lengths = {count: torch.full((case.batch,), count, dtype=torch.int32, device="cuda")
                   for count in (tokens - 1, tokens)}
        contenders = []
        for name, cache in caches.items():
            keep_raw = name == "kept raw"
            cache.append_call(layer.k_rows, layer.v_rows, layer.lengths_device, layer.block_table, everything,
                              keep_raw)()
            # Writing token 15 again opens the block: it forgets the 16th.
            one_less = cache.append_call(*rows[tokens - 1], lengths[tokens - 1], layer.block_table, None, keep_raw)
            last = cache.append_call(*rows[tokens], lengths[tokens], layer.block_table, None, keep_raw)
            contenders.append(Contender(name, one_less if name == "stays open" else last, one_less))
        for contender in contenders:
            self.timer.warm_up(contender)
        before = caches["GAAC"].counters()
        samples = self.measure(contenders)
        after = caches["GAAC"].counters()
        if after["encoded"] - before["encoded"] + after["fallbacks"] - before["fallbacks"] < \
                samples["GAAC"].runs * case.batch or after["lost"]:
            raise RuntimeError(f"not every run completed its blocks: {before}, then {after}")
        mismatches = self.check_decoded(layer, caches["GAAC"]) + self.check_decoded(layer, caches["kept raw"])
        ours = samples["GAAC"]
        common = {"mismatches": mismatches, "spread": ours.spread}
        for name, title in (("kept raw", "the same, blocks kept raw"), ("stays open", "a token that completes none")):
            goal = {"target": case.target, "target_field": "us"} if case.target and name == "kept raw" else {}
            self.report.row(case.name, title, ours.us, samples[name].us, **common,
                            baseline_spread=samples[name].spread, **goal)

    def decode(self, case, generator):
        layer = self.make(case, case.batch, case.tokens, case.head_dim, generator)
        coded = layer.filled()
        raw = layer.filled(keep_raw=True, slots=coded.slots)
        out = [torch.full_like(rows, float("nan")) for rows in (layer.k_rows, layer.v_rows)]
        order = layer.block_table.flatten()
        calls = {"GAAC": coded.decode_call(*out, layer.offsets, order),
                 "raw": raw.decode_call(*out, layer.offsets, order)}
        mismatches = 0
        for call in calls.values():
            for part in out:
                part.fill_(float("nan"))
            call()
            mismatches += sum(differing(a, b) for a, b in zip(out, (layer.k_rows, layer.v_rows)))

        def copy():
            out[0].copy_(layer.k_rows)
            out[1].copy_(layer.v_rows)
        contenders = [Contender(name, call) for name, call in calls.items()] + [Contender("copy", copy)]
        for contender in contenders:
            self.timer.warm_up(contender)
        samples = self.measure(contenders)
        ours, size = samples["GAAC"], layer.bf16_bytes()
        for name, title in (("raw", "the same from raw blocks"), ("copy", COPY)):
            goal = {"target": case.target, "target_field": "gb_per_s"} if case.target and name == "copy" else {}
            self.report.row(case.name, title, ours.us, samples[name].us, mismatches=mismatches, spread=ours.spread,
                            gb_per_s=size / ours.us / 1e3, baseline_gb_per_s=size / samples[name].us / 1e3,
                            baseline_spread=samples[name].spread, **goal)

    # ---- general compressors

    def compressors(self, case, generator):
        layer = self.make(case, 1, case.tokens, case.head_dim, generator)
        coded = layer.filled()
        mismatches = self.check_decoded(layer, coded)
        order = layer.block_table.flatten()
        out = [torch.empty_like(rows) for rows in (layer.k_rows, layer.v_rows)]
        size, ratio = layer.bf16_bytes(), layer.bf16_bytes() / coded.resident_bytes()
        ours = [Contender("encode", coded.encode_call(layer.k_rows, layer.v_rows, layer.offsets, order)),
                Contender("decode", coded.decode_call(*out, layer.offsets, order))]
        for contender in ours:
            self.timer.warm_up(contender)
        library = nvcomp.load(self.arguments.peers)
        whole = torch.cat([layer.k_rows.flatten(), layer.v_rows.flatten()])
        exponents = (whole.view(torch.int16) >> 7).to(torch.uint8)
        for name, (whole_kind, exponent_kind) in nvcomp.TYPES.items():
            for title, kind, data in ((f"nvCOMP {name}", whole_kind, whole),
                                      (f"nvCOMP {name}, exponents", exponent_kind, exponents)):
                try:
                    codec = nvcomp.Codec(library, name, kind, data, CHUNK)
                    compressed, wrong = codec.check()
                    contenders = [*ours, Contender("compress", codec.compress),
                                  Contender("decompress", codec.decompress)]
                    for contender in contenders[2:]:
                        self.timer.warm_up(contender)
                    # Slow ones need few runs.
                    samples = self.measure(contenders, 5)
                except Exception as error:
                    self.report.fail(case.name, title, error)
                    torch.cuda.synchronize()
                    continue
                # Exponents alone: sign and mantissa stay as they are, and cost no time here.
                stored = compressed + (whole.numel() if data is exponents else 0)
                for mine, other in (("encode", "compress"), ("decode", "decompress")):
                    self.report.row(case.name, f"{title}, {mine}", samples[mine].us, samples[other].us,
                                    mismatches=mismatches, baseline_mismatches=wrong, spread=samples[mine].spread,
                                    baseline_spread=samples[other].spread, gb_per_s=size / samples[mine].us / 1e3,
                                    baseline_gb_per_s=size / samples[other].us / 1e3, ratio=ratio,
                                    baseline_ratio=size / stored)
                del codec
