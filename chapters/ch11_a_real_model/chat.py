"""`python -m chapters chat`: a real model, compiled by the course's passes, answers in the terminal."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from chapters.ch11_a_real_model.passes import PASSES, chat_model, compile_model, owners
from chapters.kit.chat.cache_layout import LANES
from chapters.kit.chat.conversation import Chat, note, reply
from chapters.kit.chat.gguf_file import GGUF, read_gguf
from chapters.kit.chat.model_cache import cached_model, fetch_model
from chapters.kit.chat.optional_packages import extra
from chapters.kit.chat.template import Renderer
from chapters.kit.chat.tokenizer import Tokenizer
from chapters.kit.chat.weights import Weights, read_config
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.kit.machine import DeviceError, processors
from chapters.runner.earlier import THE_REFERENCES, explain_unused

if TYPE_CHECKING:  # a start that compiles nothing loads no compiler
    from chapters.kit.chat.model_on_device import ModelOnDevice
    from chapters.kit.measure.devices import Device

INTERRUPTED = 130  # exit status after Ctrl-C, as a shell gives it
ENDS = ("", "exit", "quit", "/exit", "/quit")  # messages that end a conversation


def start(options) -> Chat:
    """The chat that the options ask for; says on standard error what it does. Raises ValueError in one sentence."""
    device = _open_device(options) if options.device or options.remote else None
    if device and (options.without or options.explain):
        raise ValueError(
            "--without and --explain are about this machine's processor, not about a device."
        )
    file, tokenizer, renderer = _open_model(options.gguf)
    path = file.path
    config = read_config(file, max(LANES, options.context))
    if len(tokenizer.tokens) != config.vocab_size:
        raise ValueError(
            f"{path} has {len(tokenizer.tokens)} tokens and embeddings of {config.vocab_size}; convert the model again."
        )
    if options.context > config.context_window_size + LANES:
        note(
            f"The model's context is {config.context_window_size} tokens, and not {options.context}."
        )
    for line in explain_unused(PASSES):
        note(line)
    begin = time.perf_counter()
    if device:
        model, by, kept = _load_on_device(file, config, options.exact, device)
    else:
        model, by, kept = chat_model(file, config, options.exact, note, options.without)
    yours = [number for number, owner in by.items() if owner != THE_REFERENCES]
    code = "the reference's passes"
    if yours:
        code = f"your passes of chapter {', '.join(yours)}, and the reference's elsewhere"
    how = "loaded what was compiled by" if kept else "compiled by"
    if options.without:
        code += f", without exercise {options.without}"
    note(f"{path.name}: {how} {code} in {time.perf_counter() - begin:.1f} s")
    if options.explain:
        from chapters.ch11_a_real_model.explain_kernels import explain

        token = tokenizer.encode("the")[0]
        print(f"{explain(model, file, config, options.exact, options.without, token)}\n")
    return Chat(model, tokenizer, renderer, options.temperature, options.seed)


def _open_device(options) -> Device:
    """The device that was asked for. Raises ValueError in one sentence."""
    from chapters.kit.measure.devices import Device, open_device

    device = open_device(options.device or "", options.remote or "")
    if not isinstance(device, Device):
        raise ValueError(
            f"chat cannot use {device.name}: it needs a device that TVM itself runs, such as cuda or metal."
        )
    note(f"The model runs on {device.name}.")
    return device


def _load_on_device(
    file: GGUF, config: LlamaConfig, exact: bool, device: Device
) -> tuple[ModelOnDevice, dict[str, str], bool]:
    """What `chat_model` returns, on `device`. Nothing is kept: it is compiled at each start."""
    from chapters.kit.chat.model_on_device import ModelOnDevice

    decoder = compile_model(file, config, exact, target=device.target)
    model = ModelOnDevice(decoder, Weights(file, config, decoder.lanes), device)
    return model, owners(), False


def _open_model(path: str | None) -> tuple[GGUF, Tokenizer, Renderer]:
    """The model's file, the default model's if `path` is None, and what reads and writes its texts."""
    extra("tokenizers")  # say what is missing before anything is fetched
    file = read_gguf(_find_default_model() if path is None else os.path.expanduser(path))
    renderer = Renderer(file.field("tokenizer.chat_template", str))
    renderer.begin()  # its process starts while the tokenizer is made
    try:
        tokenizer = Tokenizer.from_gguf(file)
    except BaseException:
        renderer.close()
        raise
    renderer.bos, renderer.eos = (
        "" if one is None else tokenizer.tokens[one] for one in (tokenizer.bos, tokenizer.eos)
    )
    return file, tokenizer, renderer


def _find_default_model() -> Path:
    if path := cached_model():
        return path
    note("Fetching SmolLM2-135M-Instruct with 4-bit weights, once.")
    path = fetch_model()
    note(f"It is kept in {path.parent}.")
    return path


def run(options) -> int:
    """One answer if `options.prompt` is given, else a conversation until the end of the input."""
    if options.prompt is not None and not options.prompt.strip():
        raise ValueError("The prompt is empty; write what the model should answer.")
    if options.threads and options.threads > processors():
        # TVM's threads wait for each other actively: with more of them than processors a step takes minutes
        raise ValueError(
            f"--threads {options.threads} is too many; N is at most {processors()} here, one for each processor."
        )
    if options.prompt is None and sys.stdin is None:
        raise ValueError(
            "There is no input from which messages could be read; give one with --prompt."
        )
    gc.disable()  # nothing of what is made now becomes garbage, and looking for it takes a tenth of the time
    try:
        with interruptible():
            chat = start(options)
    except KeyboardInterrupt:
        note(
            "\nStopped before the model was ready. Whatever was not finished is begun again at the next start."
        )
        return INTERRUPTED
    finally:
        gc.freeze()
        gc.enable()
    return _talk(chat, options)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt for Ctrl-C, also where TVM's C++ code makes another error of it, or none."""
    if (
        signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):  # someone ignores it, or handles it
        yield
        return
    pressed = False

    def interrupt(number, frame) -> None:
        nonlocal pressed
        pressed = True
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception:
        if not pressed:
            raise
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def _talk(chat: Chat, options) -> int:
    with chat.renderer:
        if options.prompt is not None:
            try:
                reply(chat, options.prompt)
            except KeyboardInterrupt:
                return INTERRUPTED
            return 0
        if hasattr(sys.stdin, "reconfigure"):
            sys.stdin.reconfigure(errors="replace")  # bytes that are not UTF-8
        with contextlib.suppress(ImportError):  # arrow keys, where the system has what they need
            importlib.import_module("readline")
        note(
            "Write a message. Ctrl-C stops an answer; an empty line or Ctrl-D ends the conversation."
        )
        while True:
            try:
                text = input("> " if sys.stdin.isatty() else "")
            except EOFError:
                print()
                return 0
            except (
                KeyboardInterrupt
            ):  # it may come between a message and its answer, and is meant for the answer
                note("\nCtrl-D ends the conversation.")
                continue
            if text.strip().lower() in ENDS:
                return 0
            try:
                with contextlib.suppress(KeyboardInterrupt):  # it has stopped the answer
                    reply(chat, text)
            except DeviceError:  # the model is gone
                raise
            except ValueError as error:  # such as a template that takes no second message
                note(str(error))
