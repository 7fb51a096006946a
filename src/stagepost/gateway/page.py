"""The page of the OpenAPI document: plain HTML that loads nothing and runs no script."""

from __future__ import annotations

import json
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --accent: #2563eb; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
code, pre { font: 14px/1.45 ui-monospace, monospace; }
pre { background: var(--soft); padding: .75rem; overflow-x: auto; border-radius: .4rem; }
.method { display: inline-block; min-width: 3.5rem; color: #fff; background: var(--accent); border-radius: .3rem;
  text-align: center; font: 600 13px/1.7 ui-monospace, monospace; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top;
  padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); }
details { margin: .5rem 0; } summary { cursor: pointer; }
"""


def page_of(document: dict[str, Any]) -> str:
    """Return the page of an OpenAPI document."""
    title = escape(document["info"]["title"])
    operations = "".join(
        _operation(path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    schemas = "".join(
        f"<details id='{escape(name)}'><summary>{escape(name)}</summary>{_json(schema)}</details>"
        for name, schema in document["components"]["schemas"].items()
    )
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title>"
        f"<meta name='viewport' content='width=device-width'><style>{STYLE}</style></head><body>"
        f"<h1>{title}</h1><p>A message that is answered with 200 is on the disk. Retry 408, 429 and the 500s with the "
        "same id. <a href='openapi.json'>openapi.json</a></p>"
        f"{operations}<h2>Types</h2>{schemas}</body></html>"
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    heading = (
        f"<h2 id='{escape(operation['operationId'])}'><span class='method'>{method.upper()}</span> "
        f"<code>{escape(path)}</code></h2>"
    )
    parts = [heading, f"<p>{escape(operation['summary'])}. {escape(operation.get('description', ''))}</p>"]
    if "security" not in operation:
        parts.append(f"<pre>{escape(_curl(path, method, operation))}</pre>")
    contents = operation.get("requestBody", {}).get("content", {})
    parts += [
        f"<details><summary>Body, <code>{escape(name)}</code></summary>{_json(content['schema'])}</details>"
        for name, content in contents.items()
    ]
    rows = "".join(
        f"<tr><td><code>{status}</code></td><td>{escape(answer['description'])}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    parts.append(f"<table><tr><th>Status</th><th>Meaning</th></tr>{rows}</table>")
    return "".join(parts)


def _curl(path: str, method: str, operation: dict[str, Any]) -> str:
    lines = [
        "curl -i -H 'Authorization: Bearer KEY'",
        *(
            f"  -H '{each['name']}: {each['schema'].get('const', 'VALUE')}'"
            for each in operation.get("parameters", ())
            if each["in"] == "header"
        ),
    ]
    if method == "post":
        lines += ["  -H 'Content-Type: application/json'", "  -d @message.json"]
    return " \\\n".join([*lines, f"  GATEWAY{path}"])


def _json(schema: Any) -> str:
    return f"<pre>{escape(json.dumps(schema, indent=2))}</pre>"
