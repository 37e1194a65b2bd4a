"""The grammar of the fake's small shell: text in, commands out. Runs nothing.

It has simple commands, quotes, `$NAME`, `$?`, `$$`, `$(…)`, pipes, `&& || ; & !`, `( … )` and
redirections. It has no loops, conditions, functions, globs or here-documents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

_OPERATORS = (
    "2>&1",
    ">&2",
    "1>&2",
    "2>>",
    "2>",
    "&&",
    "||",
    ">>",
    ";",
    "&",
    "|",
    ">",
    "<",
    "(",
    ")",
    "\n",
)
_REDIRECTIONS = ("2>&1", ">&2", "1>&2", "2>>", "2>", ">>", ">", "<")
_NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"


class ScriptError(ValueError):
    """The text is not in the grammar."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a word. kind: `text`, `name` (of a variable) or `script` (to substitute)."""

    kind: str
    value: str
    quoted: bool


Word = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Redirection:
    """`operator` and the file it names, if it names one."""

    operator: str
    target: Word = ()


@dataclass(frozen=True, slots=True)
class Simple:
    """A command with its words and redirections; assignments stand among the first words."""

    words: tuple[Word, ...]
    redirections: tuple[Redirection, ...]


@dataclass(frozen=True, slots=True)
class Subshell:
    """`( … )`."""

    body: Script
    redirections: tuple[Redirection, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands joined by pipes. when: `&&` or `||`, what must hold of the one before."""

    commands: tuple[Simple | Subshell, ...]
    negated: bool = False
    when: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """Pipelines joined by `&&` and `||`, waited for or not."""

    pipelines: tuple[Pipeline, ...]
    background: bool


@dataclass(slots=True)
class Script:
    """Jobs, one after another."""

    jobs: list[Job] = field(default_factory=list)


def parse(text: str) -> Script:
    """The commands of a text. Raises ScriptError."""
    reader = _Parser(_Lexer(text).tokens())
    return reader.script(until=None)


class _Lexer:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def tokens(self) -> list[str | Word]:
        found: list[str | Word] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in " \t" or self._text.startswith("\\\n", self._at):
                self._at += 1 if char in " \t" else 2
            elif char == "#":
                self._at = (self._text + "\n").index("\n", self._at)
            elif (operator := self._operator()) is not None:
                found.append(operator)
            else:
                found.append(self._word())
        return found

    def _operator(self) -> str | None:
        for operator in _OPERATORS:
            if self._text.startswith(operator, self._at):
                self._at += len(operator)
                return operator
        return None

    def _word(self) -> Word:
        parts: list[Part] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in " \t\n;&|<>()":
                break
            if char == "'":
                parts.append(Part("text", self._until("'"), quoted=True))
            elif char == '"':
                self._double(parts)
            elif char == "\\":
                parts.append(Part("text", self._text[self._at + 1 : self._at + 2], quoted=True))
                self._at += 2
            elif char == "$":
                parts.append(self._dollar(quoted=False))
            else:
                parts.append(Part("text", char, quoted=False))
                self._at += 1
        return tuple(parts)

    def _until(self, quote: str) -> str:
        end = self._text.find(quote, self._at + 1)
        if end < 0:
            raise ScriptError("unterminated quoted string")
        inside, self._at = self._text[self._at + 1 : end], end + 1
        return inside

    def _double(self, parts: list[Part]) -> None:
        self._at += 1
        parts.append(Part("text", "", quoted=True))
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == '"':
                self._at += 1
                return
            if char == "$":
                parts.append(self._dollar(quoted=True))
                continue
            if char == "\\" and self._text[self._at + 1 : self._at + 2] in {'"', "\\", "$", "`"}:
                self._at += 1
            parts.append(Part("text", self._text[self._at], quoted=True))
            self._at += 1
        raise ScriptError("unterminated quoted string")

    def _dollar(self, *, quoted: bool) -> Part:
        self._at += 1
        rest = self._text[self._at :]
        if rest.startswith("("):
            return Part("script", self._nested(), quoted)
        if rest.startswith("{"):
            return Part("name", self._until("}"), quoted)
        if rest[:1] in {"?", "$"}:
            self._at += 1
            return Part("name", rest[0], quoted)
        size = next((i for i, char in enumerate(rest) if char not in _NAME), len(rest))
        self._at += size
        return Part("name", rest[:size], quoted) if size else Part("text", "$", quoted)

    def _nested(self) -> str:
        start, depth = self._at + 1, 0
        for end in range(self._at, len(self._text)):
            depth += {"(": 1, ")": -1}.get(self._text[end], 0)
            if not depth:
                self._at = end + 1
                return self._text[start:end]
        raise ScriptError("unterminated substitution")


class _Parser:
    def __init__(self, tokens: list[str | Word]) -> None:
        self._tokens = tokens
        self._at = 0

    def script(self, *, until: str | None) -> Script:
        script = Script()
        while (token := self._peek()) is not None and token != until:
            if token in {";", "\n"}:
                self._at += 1
                continue
            pipelines = self._joined()
            script.jobs.append(Job(pipelines, background=self._take("&")))
        if until is not None and not self._take(until):
            raise ScriptError(f"`{until}` expected")
        return script

    def _joined(self) -> tuple[Pipeline, ...]:
        found = [self._pipeline(when="")]
        while (token := self._peek()) in {"&&", "||"}:
            self._at += 1
            while self._take("\n"):
                pass
            found.append(self._pipeline(when=str(token)))
        return tuple(found)

    def _pipeline(self, *, when: str) -> Pipeline:
        negated = self._peek() == (Part("text", "!", quoted=False),)
        self._at += negated
        commands = [self._command()]
        while self._take("|"):
            commands.append(self._command())
        return Pipeline(tuple(commands), negated, when)

    def _command(self) -> Simple | Subshell:
        if self._take("("):
            return Subshell(self.script(until=")"), self._redirections(lambda _: False))
        words: list[Word] = []

        def word(token: Word) -> bool:
            words.append(token)
            return True

        redirections = self._redirections(word)
        if not words and not redirections:
            raise ScriptError(f"syntax error near {self._peek() or 'the end'!r}")
        return Simple(tuple(words), redirections)

    def _redirections(self, word: Callable[[Word], bool]) -> tuple[Redirection, ...]:
        found: list[Redirection] = []
        while (token := self._peek()) is not None:
            if isinstance(token, str):
                if token not in _REDIRECTIONS:
                    break
                self._at += 1
                found.append(Redirection(token, () if "&" in token else self._target()))
            elif word(token):
                self._at += 1
            else:
                break
        return tuple(found)

    def _target(self) -> Word:
        token = self._peek()
        if token is None or isinstance(token, str):
            raise ScriptError("a file name is missing")
        self._at += 1
        return token

    def _peek(self) -> str | Word | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self, operator: str) -> bool:
        taken = self._peek() == operator
        self._at += taken
        return taken
