"""What mkdocs does to every page before it reads it."""

import re
from typing import Any

NEEDS = re.compile(r"^```python needs=(\S+)$", re.M)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A block that runs only where some backends are says which ones, above its code."""
    return NEEDS.sub(lambda found: f'```python title="needs {found[1].replace(",", ", ")}"', markdown)
