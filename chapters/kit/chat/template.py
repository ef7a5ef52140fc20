"""Render a model's chat template, which is a program that a stranger wrote.

A chat template is a Jinja program in the GGUF file. It turns a list of messages into the one text that the model was
trained on. We run it as other programs do, with the functions that Hugging Face's transformers offers, but expect the
worst of it: it runs in Jinja's sandbox, which keeps it from Python's internals; in a process of its own, which may use
1 GB and a few seconds; and what it writes is counted while it writes.

    with Renderer(template, bos="<s>", eos="</s>") as renderer:
        text = renderer.render([{"role": "user", "content": "Hello"}])

The limit on memory exists on Linux only. Elsewhere the limit on time has to do.
"""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import sys
from collections.abc import Callable
from datetime import datetime

from chapters.child import Child, Lost
from chapters.kit.chat.optional_packages import INSTALL, require

MOST_WRITTEN = 1_000_000  # characters
MOST_MEMORY = 1 << 30  # bytes


class TemplateError(ValueError):
    """The template did not render. The message is one sentence."""


class Renderer(contextlib.AbstractContextManager):
    """Renders one template, in a process that lives until `close`. Raises ValueError if the package jinja2 is missing.

    template: the field tokenizer.chat_template. bos, eos: the texts of these tokens, which the template may write; they
    may be set as long as nothing has been rendered.
    """

    def __init__(self, template: str, *, bos: str = "", eos: str = ""):
        require("jinja2")
        self.template, self.bos, self.eos = template, bos, eos
        self._child: Child | None = None

    def begin(self) -> None:
        """Start the process. `render` does so too, and then waits until it is ready: a tenth of a second."""
        if self._child is None:
            self._child = Child(__name__)

    def render(self, messages: list[dict[str, str]], *, seconds: float = 5) -> str:
        """The text for `messages` and the beginning of an answer; each has a "role" and a "content".

        Raises TemplateError if the template is wrong, refuses the messages, attempts what the sandbox forbids, takes
        longer than `seconds`, writes more than MOST_WRITTEN characters, or needs more memory than MOST_MEMORY.
        """
        self.begin()
        asked = {"template": self.template, "bos_token": self.bos, "eos_token": self.eos}
        try:
            answer = self._child.ask({**asked, "messages": messages}, seconds)
        except Lost as lost:
            self._child = None  # it is closed
            what = f"takes longer than {seconds} s" if lost.late else f"ended its process ({lost})"
            answer = {"error": what}
        except BaseException:  # after Ctrl-C, this answer must not be taken for the next one
            self.close()
            raise
        if "error" in answer:
            remedy = answer.get("remedy", "use a model whose template works")
            raise TemplateError(f"The model's chat template {answer['error']}; {remedy}.")
        return answer["text"]

    def close(self) -> None:
        if self._child:
            self._child.close()
            self._child = None

    def __exit__(self, *_) -> None:
        self.close()


# --- in the child process -------------------------------------------------------------------------


class MessagesRefused(Exception):
    """The template called raise_exception."""


def make_answerer() -> Callable[[dict], dict]:
    """What chapters.child calls: {"template": …, "messages": …, "bos_token": …, "eos_token": …} to text or error."""
    try:
        from jinja2.exceptions import SecurityError, TemplateSyntaxError
    except ImportError as error:
        broken = {"error": f"cannot be rendered ({error})", "remedy": INSTALL.format("model")}
        return lambda question: broken

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the model's answer, not this process
    if sys.platform == "linux":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)  # chapters.child has set one
        most = min(MOST_MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    def answer(question: dict) -> dict:
        try:
            text = _render(**question)
        except TemplateSyntaxError as error:
            return {"error": f"has a mistake in line {error.lineno} ({_shorten(error.message)})"}
        except SecurityError as error:
            return {"error": f"attempts what is forbidden ({_shorten(error)})"}
        except MessagesRefused as error:
            remedy = "start again with messages in roles and an order that it takes"
            return {"error": f"refuses these messages ({_shorten(error)})", "remedy": remedy}
        except MemoryError:
            return {"error": f"needs more than {MOST_MEMORY >> 20} MB of memory"}
        except RecursionError:
            return {"error": "calls itself without end"}
        except Exception as error:
            return {"error": f"fails ({type(error).__name__}: {_shorten(error)})"}
        if len(text) > MOST_WRITTEN:
            return {"error": f"writes more than {MOST_WRITTEN:,} characters"}
        if not text:
            return {"error": "writes nothing"}
        return {"text": text}

    return answer


def _render(template: str, messages: list, **tokens: str) -> str:
    """What the template writes; if that is more than MOST_WRITTEN characters, only the beginning."""
    written, length = [], 0
    names = {"messages": messages, "add_generation_prompt": True, "tools": None, "documents": None}
    for part in _compile_template(template).generate(**names, **tokens):
        written.append(part)
        length += len(part)
        if length > MOST_WRITTEN:
            break
    return "".join(written)


@functools.lru_cache(maxsize=1)
def _compile_template(template: str):
    """The Jinja template, in the environment that transformers gives to chat templates."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} … {% endgeneration %} tells a trainer which text is the model's; here it is text as any."""

        tags = frozenset({"generation"})

        def parse(self, parser) -> nodes.Scope:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def refuse(message: str) -> None:
        raise MessagesRefused(message)

    def as_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = as_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _shorten(text: object) -> str:
    """The beginning of a message, in one line, with nothing that a terminal would obey."""
    return f"{' '.join(str(text)[:300].split())!r}"
