"""Check the project's prose: ``python -m tests.house.language [PATH ...]``.

The command prints ``file:line: finding: replacement`` for each finding and ends with 1 if there is any. A path is a
file or a folder; without one, the command checks ``src/``, ``examples/``, ``benchmarks/`` and every Markdown file.

Markdown is checked for banned openings, banned phrases, retired words and sentences of more than 25 words. Code is not
checked there, and a link counts as its text. In code, docstrings, comments and the texts of strings are checked for
the same, except for the length of sentences. A class or a module with a retired name is a finding too, and so is a
docstring that begins with neither a verb nor a noun.
"""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.house.counting import SQL
from tests.house.ids import ROOT

WORDS_MAX = 25
# The questions are fixed: nobody may change their wording.
EXEMPT = {"tests/house/questions.md"}
# Folders that hold no page of ours.
FOREIGN = {".venv", ".git", ".demo", "node_modules", ".pytest_cache", ".hypothesis", "build", "dist"}

# The beginning of a sentence, of a table's cell or of a clause after a semicolon.
OPENINGS = {
    "what": "name the subject",
    "whatever": "name the subject",
    "who": "name the subject: a worker, a caller, a reader",
    "whom": "name the subject",
    "whose": "name the subject",
    "whoever": "name the subject: a worker, a caller, a reader",
    "whichever": "name the subject",
    "nobody": "name the subject: no process, no caller",
    "that which": "name the subject",
    "those who": "name the subject",
    "those that": "name the subject",
    "of the": "begin with the verb or the noun",
}
PHRASES = {
    r"but for": "except for",
    r"of which": "begin a new sentence",
    r"all the same": "still",
    r"likewise": "also",
    r"for ever": "forever, or without limit",
    r"ever so": "very",
    r"that which": "name the thing",
    r"by itself ends": "name the subject first",
    r"whoever|whomever|whosoever": "name the subject: the worker, the caller, the reader",
    r"he|him|his|himself|she|hers|herself": "it, its, they, their",
    r"unless it is said|unless they are said|where it is not said": "by default",
    r"come to be one": "commit together",
    r"let in": "accepted",
    r"lets in": "accepts",
    r"thereof|therein|thereby|hereby|wherein|whereby": "a plain preposition and a noun",
    r"nought|aught|naught": "nothing, anything",
    r"in vain": "without success",
    r"passes? over|passed over": "skips, skipped",
    r"look(?:s|ed)? anew": "looks again",
    r"anew": "again",
    r"amongst|whilst|amidst": "among, while, amid",
    r"three o'clock call": "say what happened",
}
# Retired by the tables of the design's page on language, each with its successor.
WORDS = {
    r"demarcations?": "transaction mode",
    r"turnstiles?": "writer lock",
    r"vigils?": "watchdog",
    r"streaks?": "circuit breaker, or failures in a row",
    r"intakes?": "prefetcher",
    r"exhumes?|exhumed": "removes the dead letter",
    r"coordinator's bell|the bell": "notifier",
    r"waypointer": "waypoint",
    r"lodgers?": "scripted worker",
}
CLASSES = {
    "Ear": "ReplyListener or NotificationListener",
    "Bell": "Notifier",
    "Home": "Databases",
    "Entry": "FlowStarter",
    "StageTransaction": "AttemptRunner",
    "StageWorkspace": "UnitOfWork",
    "Demarcation": "TransactionMode",
    "Post": "QueueCommit",
    "Intake": "Prefetcher",
    "Window": "PrefetchWindow",
    "Vigil": "Watchdog",
    "Survey": "FailureDetector",
    "Found": "PeerStatus",
    "Lives": "WorkerRegistry",
    "Flight": "StatementPipeline",
    "Landed": "Result",
    "Asked": "QueuedStatement or ReplyFuture",
    "Lease": "ConnectionLoan, where it is a connection's",
    "Streak": "CircuitBreaker",
    "Turnstile": "WriterLock",
    "Holding": "ConnectionUsage",
    "Holder": "ClaimCount or OpenFile",
    "Vitals": "StoreHealth",
    "Recorder": "StoreWriter",
    "Patience": "StopSignal",
}
MODULES = {"telling": "outcome_log", "standing": "message_status", "working": "loop"}

# A docstring that begins with one of these is a fragment.
FRAGMENT = re.compile(
    r"\s*(As|At|By|For|From|How|In|Like|Not|Of|On|So|That|Those|Until|When|Where|Whether|With|Without)\b"
)
OPENING = re.compile(r"\W*(" + "|".join(map(re.escape, OPENINGS)) + r")\b", re.IGNORECASE)
CLAUSE = re.compile(r";\s+(" + "|".join(map(re.escape, OPENINGS)) + r")\b")
BANNED = [
    (re.compile(r"\b(" + pattern.replace(" ", r"\s+") + r")\b", re.IGNORECASE), replacement)
    for pattern, replacement in (*PHRASES.items(), *WORDS.items())
]
# A sentence ends with its mark, before a blank and what may begin the next one.
END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!vs)(?<!\betc)[.!?][)\"'*_’”]*(?=\s+[^a-z\s])")  # noqa: RUF001 - typed quotes
FENCE = re.compile(r"\s*(```|~~~)")
ITEM = re.compile(r"^\s*([*+-]|\d+\.)\s+")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"(`+)(?:.+?)\1", re.DOTALL)
DIRECTIVE = re.compile(r"#\s*(noqa|type:|pragma|fmt:|mypy:|!)")


@dataclass(frozen=True)
class Finding:
    file: str
    line: int
    text: str
    replacement: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}: {self.replacement}"


@dataclass(frozen=True)
class Block:
    """A piece of prose whose sentences do not go on in the next one, and the line it begins at."""

    line: int
    text: str


def sentences(block: Block) -> Iterator[Block]:
    """Split a block into sentences. Code must be gone from it: a dot in code ends no sentence."""
    begin = 0
    for end in (*(match.end() for match in END.finditer(block.text)), len(block.text)):
        text = block.text[begin:end]
        skipped = len(text) - len(text.lstrip())
        if text.strip():
            yield Block(block.line + block.text.count("\n", 0, begin + skipped), text.strip())
        begin = end


def words(sentence: str) -> int:
    return sum(1 for word in sentence.split() if any(map(str.isalnum, word)))


def plain(text: str) -> str:
    """Replace code by one word, and links by their text. Lines stay where they are."""
    without = CODE.sub(lambda found: "Code" + "\n" * found[0].count("\n"), text)
    return LINK.sub(lambda found: found[1], without)


def judge(file: str, block: Block, words_max: int | None) -> Iterator[Finding]:
    """Yield the findings of one block."""
    prose = Block(block.line, plain(block.text))
    for sentence in sentences(prose):
        opening = OPENING.match(sentence.text)
        if opening and not sentence.text.endswith("?"):
            yield Finding(file, sentence.line, f"{opening[1]!r} begins a sentence", OPENINGS[opening[1].lower()])
        for clause in CLAUSE.finditer(sentence.text):
            yield Finding(file, sentence.line, f"{clause[1]!r} begins a clause", OPENINGS[clause[1].lower()])
        count = words(sentence.text)
        if words_max is not None and count > words_max:
            begin = " ".join(sentence.text.split()[:5])
            yield Finding(file, sentence.line, f"{count} words in a sentence ({begin} …)", "split it")
    for pattern, replacement in BANNED:
        for found in pattern.finditer(prose.text):
            line = prose.line + prose.text.count("\n", 0, found.start())
            yield Finding(file, line, repr(" ".join(found[1].split())), replacement)


def blocks_of_markdown(text: str) -> Iterator[Block]:
    """Yield headings, items, paragraphs and table cells; code blocks and HTML comments are left out."""
    text = re.sub(r"<!--.*?-->", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    begin, lines, is_code = 0, list[str](), False
    for number, line in enumerate((*text.splitlines(), ""), 1):
        is_fence = FENCE.match(line) is not None
        is_table = line.lstrip().startswith("|") and not is_code
        is_heading = line.startswith("#")
        if lines and (is_fence or is_table or is_heading or not line.strip() or ITEM.match(line)):
            yield Block(begin, "\n".join(lines))
            lines = []
        if is_fence:
            is_code = not is_code
        elif is_table:
            row = CODE.sub(lambda found: found[0].replace("|", " "), line.strip().strip("|"))
            yield from (Block(number, part) for cell in row.split("|") for part in re.split(r"<br>", cell))
        elif is_heading and not is_code:
            yield Block(number, line.lstrip("# "))
        elif line.strip() and not is_code:
            begin = begin if lines else number
            lines.append(ITEM.sub("", line) if not lines else line.strip())


def blocks_of_python(text: str, nodes: Sequence[ast.AST]) -> Iterator[Block]:
    """Yield paragraphs of docstrings, comments and the texts that are shown to people. ``nodes`` are of its tree."""
    documents = docstrings_among(nodes)
    others = {id(each.value) for each in documents}
    for each in documents:
        yield from paragraphs(each.lineno, text_of(each))
    for joined in nodes:
        if isinstance(joined, ast.JoinedStr):
            others |= {id(part) for part in ast.walk(joined)} - {id(joined)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr) and id(node) not in others:
            told = "".join(map(_shown, node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in others:
            told = node.value
        else:
            continue
        if len(told.split()) > 2 and not SQL.match(told):
            yield from paragraphs(node.lineno, told)
    yield from comments(text)


def _shown(part: ast.expr) -> str:
    """Return a part of an f-string as it reads."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    ends = isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Call)
    return "Value." if ends and ast.unparse(part).find("as_sentence(") >= 0 else "Value"


def docstrings_among(nodes: Sequence[ast.AST]) -> list[ast.Expr]:
    found = []
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            match node.body[0]:
                case ast.Expr(ast.Constant(str())) as first:
                    found.append(first)
    return found


def text_of(docstring: ast.Expr) -> str:
    assert isinstance(docstring.value, ast.Constant)
    return str(docstring.value.value)


def comments(text: str) -> Iterator[Block]:
    """Yield the comments of Python source; comments of lines that follow one another are one block."""
    begin, last, lines = 0, -1, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or DIRECTIVE.match(token.string):
            continue
        row = token.start[0]
        if lines and row != last + 1:
            yield Block(begin, "\n".join(lines))
            lines = []
        begin = begin if lines else row
        lines.append(token.string.lstrip("# ").partition("# noqa")[0])
        last = row
    if lines:
        yield Block(begin, "\n".join(lines))


def blocks_of_sql(text: str) -> Iterator[Block]:
    """Yield runs of comment lines."""
    begin, lines = 0, list[str]()
    for number, line in enumerate((*text.splitlines(), ""), 1):
        _, is_comment, comment = line.partition("--")
        if is_comment:
            begin = begin if lines else number
            lines.append(comment.strip())
        elif lines:
            yield Block(begin, "\n".join(lines))
            lines = []


def paragraphs(line: int, text: str) -> Iterator[Block]:
    for found in re.finditer(r"[^\n]*\S[^\n]*(?:\n[^\n]*\S[^\n]*)*", text):
        yield Block(line + text.count("\n", 0, found.start()), found[0])


def findings_in(path: Path) -> list[Finding]:
    """Return the findings of one file, in the order of its lines."""
    text, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
    found = list[Finding]()
    match path.suffix:
        case ".md":
            found += [each for block in blocks_of_markdown(text) for each in judge(name, block, WORDS_MAX)]
        case ".sql":
            found += [each for block in blocks_of_sql(text) for each in judge(name, block, None)]
        case ".py":
            nodes = list(ast.walk(ast.parse(text)))
            found += [each for block in blocks_of_python(text, nodes) for each in judge(name, block, None)]
            found += names_in(name, path.stem, nodes)
            found += fragments_in(name, nodes)
    return sorted(found, key=lambda each: each.line)


def names_in(file: str, module: str, nodes: Sequence[ast.AST]) -> Iterator[Finding]:
    """Yield the retired names of a module and of the classes that it defines."""
    if module in MODULES:
        yield Finding(file, 1, f"module {module!r}", MODULES[module])
    for node in nodes:
        if isinstance(node, ast.ClassDef) and node.name in CLASSES:
            yield Finding(file, node.lineno, f"class {node.name!r}", CLASSES[node.name])


def fragments_in(file: str, nodes: Sequence[ast.AST]) -> Iterator[Finding]:
    """Yield the docstrings that begin with neither a verb nor a noun."""
    for each in docstrings_among(nodes):
        if found := FRAGMENT.match(text_of(each)):
            yield Finding(file, each.lineno, f"{found[1]!r} begins a docstring", "a verb or a noun: 'Return whether …'")


def files_below(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_file():
            yield path
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(set(folders) - FOREIGN)
            for each in (Path(folder, name) for name in sorted(names)):
                if each.suffix in {".md", ".py", ".sql"} and str(each.relative_to(ROOT)) not in EXEMPT:
                    yield each


def pages() -> list[Path]:
    """Return every Markdown file of the project, except those that may not change."""
    return [path for path in files_below([ROOT]) if path.suffix == ".md"]


def sources() -> list[Path]:
    folders = [ROOT / "src", ROOT / "examples", ROOT / "benchmarks"]
    return [path for path in files_below(folders) if path.suffix != ".md"]


def main() -> int:
    given = [Path(argument).resolve() for argument in sys.argv[1:]]
    paths = files_below(given) if given else (*sources(), *pages())
    found = [each for path in paths for each in findings_in(path)]
    print(*found, sep="\n", end="\n" if found else "")  # noqa: T201 - it is what the command is for
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
