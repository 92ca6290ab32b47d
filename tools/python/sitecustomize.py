"""Loads the GAAC device into llama-cpp-python.

`gaac exec` puts this file's directory on PYTHONPATH and the plug-in's path into GGML_BACKEND_PATH, which
llama-cpp-python does not read by itself. Python imports a module of this name when it starts; it waits for
`llama_cpp` to be imported and then hands the plug-in to the ggml library that llama_cpp has loaded. It needs
nothing but the standard library and leaves alone any program that never imports llama_cpp.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _load_device():
    """Registers the plug-in's device, before any model is loaded. Raises SystemExit where that fails."""
    import ctypes

    path = os.environ["GGML_BACKEND_PATH"]
    try:
        from llama_cpp._ggml import libggml

        load = libggml.ggml_backend_load
    except (ImportError, AttributeError, OSError) as error:
        raise SystemExit(
            f"gaac: this llama-cpp-python can't load devices ({error}); use 0.3.36 or newer, or run without gaac exec"
        )
    load.argtypes = [ctypes.c_char_p]
    load.restype = ctypes.c_void_p
    if not load(os.fsencode(path)):
        raise SystemExit(f"gaac: llama-cpp-python refused {path} (the lines above say why); run without gaac exec")


class _Loader(importlib.abc.Loader):
    """The module's own loader, followed by the device."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        _load_device()

    def __getattr__(self, name):  # get_code, get_source, ...: what tracebacks and runpy ask for
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds llama_cpp through the others, as often as it is looked for, and sees to its loading."""

    def __init__(self):
        self._asking_others = False

    def find_spec(self, name, path=None, target=None):
        if name != "llama_cpp" or self._asking_others:
            return None
        self._asking_others = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking_others = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def _run_shadowed_sitecustomize():
    """Runs the sitecustomize that this one stands in front of, as if it were not there."""
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("GGML_BACKEND_PATH"):
    sys.meta_path.insert(0, _Finder())
_run_shadowed_sitecustomize()
