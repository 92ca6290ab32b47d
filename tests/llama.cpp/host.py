"""Runs the programs of a stock llama.cpp build with and without the plug-in. Standard library only."""
import contextlib
import http.client
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import threading
import time

# What selects the device and the cache that it holds.
DEVICE = ["-dev", "GAAC0", "-ngl", "99"]
GAAC = DEVICE + ["-fa", "on", "-ctk", "bf16", "-ctv", "bf16"]
STOCK = ["-dev", "none", "-fa", "on", "-ctk", "bf16", "-ctv", "bf16"]
LIMIT_S = 300


class Host:
    """A stock build: where it is, which plug-in it loads, which model it runs."""

    def __init__(self, build, plugin, model):
        self.bin = pathlib.Path(build).resolve() / "bin"
        self.plugin = pathlib.Path(plugin).resolve()
        self.model = pathlib.Path(model).resolve()

    def environment(self, settings):
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("GAAC_")}
        # Stock builds answer a failed assertion with a debugger that prints for seconds.
        return inherited | {"GGML_BACKEND_PATH": str(self.plugin), "GGML_NO_BACKTRACE": "1"} | settings

    def run(self, program, *arguments, **settings):
        """(exit code, all output) of a program; settings are GAAC_ variables."""
        with tempfile.TemporaryDirectory(prefix="gaac-llama-") as folder:  # some leave files where they run
            done = subprocess.run([str(self.bin / program), *map(str, arguments)], env=self.environment(settings),
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  cwd=folder, timeout=LIMIT_S, check=False)
        return done.returncode, done.stdout.decode("utf-8", "replace")

    def generate(self, *arguments, prompt="The capital of France is", tokens=8, **settings):
        """The same for a short greedy answer of llama-cli."""
        return self.run("llama-cli", "-m", self.model, "-p", prompt, "-n", tokens, "-t", 2, "--temp", 0, "-st",
                        "-c", 512, *arguments, **settings)


def lines_of(output):
    """The plug-in's own lines. llama-cli draws a spinner in front of them."""
    return [line[line.index("gaac: "):] for line in output.splitlines() if "gaac: " in line]


def answer_of(output):
    """What llama-cli generated: between the echoed prompt and its speed line."""
    body = output[output.rindex("\n> ") + 3:]
    return body[body.index("\n"):body.index("[ Prompt:")].strip()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """llama-server as a context manager; `log` is complete after it has ended."""

    def __init__(self, host, *arguments, **settings):
        self.port = free_port()
        self.log = ""
        self.exit_code = None
        command = [host.bin / "llama-server", "-m", host.model, "--host", "127.0.0.1", "--port", self.port, "-t", 2,
                   "--no-warmup", *arguments]
        # pylint: disable=consider-using-with
        self.output = tempfile.TemporaryFile()
        self.process = subprocess.Popen(list(map(str, command)), env=host.environment(settings),
                                        stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT)

    def __enter__(self):
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.request("GET", "/health")[0] == 200:
                    return self
            time.sleep(0.1)
        self.stop()
        raise AssertionError("llama-server did not start:\n" + self.log[-4000:])

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Ends the server as a user does, with SIGINT, and keeps its log."""
        if self.process.poll() is None:
            self.process.send_signal(2)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.exit_code = self.process.wait()
        self.output.seek(0)
        self.log = self.output.read().decode("utf-8", "replace")
        self.output.close()

    def request(self, method, path, body=None):
        """(status, decoded JSON) of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None,
                               {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read() or b"null")
        finally:
            connection.close()

    def complete(self, prompt, tokens, **options):
        """One greedy completion, which must succeed."""
        status, reply = self.request("POST", "/completion", greedy(prompt, tokens) | options)
        if status != 200:
            raise AssertionError(f"HTTP {status}: {reply}")
        return reply

    def complete_all(self, prompts, tokens, **options):
        """Several completions at the same time, in the order of the prompts."""
        replies = [None] * len(prompts)

        def one(index):
            replies[index] = self.complete(prompts[index], tokens, **options)

        threads = [threading.Thread(target=one, args=(index,)) for index in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return replies

    def begin_and_cancel(self, prompt):
        """Starts a long streamed completion and hangs up after its first pieces."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        connection.request("POST", "/completion", json.dumps(greedy(prompt, 2000) | {"stream": True}),
                           {"Content-Type": "application/json"})
        reply = connection.getresponse()
        pieces = [reply.readline() for _ in range(6)]
        connection.sock.close()
        connection.close()
        return pieces


def greedy(prompt, tokens):
    """A request whose answer depends on the logits alone. ignore_eos: exactly that many tokens."""
    return {"prompt": prompt, "n_predict": tokens, "temperature": 0, "top_k": 1, "seed": 1, "cache_prompt": False,
            "ignore_eos": True, "return_tokens": True}


def tokens_of(reply):
    return reply["tokens"]


def probabilities_of(reply):
    """(token, log probability) of what was generated; ask with n_probs=1."""
    return [(entry["id"], entry["logprob"]) for entry in reply["completion_probabilities"]]
