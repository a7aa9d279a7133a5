"""The code in README.md runs as written."""

import linecache
import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_every_python_block_of_the_readme_runs(capsys):
    scope: dict[str, object] = {"__name__": "readme"}
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.S)
    assert len(blocks) >= 7
    for k, block in enumerate(blocks):
        name = f"<readme block {k}>"
        linecache.cache[name] = (len(block), None, block.splitlines(True), name)  # kernels read their source
        exec(compile(block, name, "exec"), scope)
    assert "proved" in capsys.readouterr().out
